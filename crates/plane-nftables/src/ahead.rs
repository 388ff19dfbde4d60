//! Preparatory commits that keep lookups valid while nf_tables switches generations.
//!
//! nf_tables may switch generations between two lookups of one packet. For verdicts and slots the late chains compensate with a
//! second lookup (`base`). Two cases need a commit of their own, ahead of the transaction:
//!
//! - A new set with intervals is empty to packets for a while after its transaction took effect, and a source outside of all
//!   ranges is dropped: such sets are created ahead.
//! - Rules write affinity maps at any time, also while a client's endpoint is being deleted: the endpoint is first removed from
//!   the set of endpoints that may be recorded.

use std::collections::HashSet;

use ferry_kernel::nft;
use ferry_model::Scope;
use ferry_plane::Batch;
use ferry_ruleset::read::TableOwner;
use ferry_ruleset::sources::SourcesId;

use crate::names::{PortId, SetName};
use crate::object::{ElementKey, NftObject};

/// Operations that were committed ahead of the transaction and are left out of it, and the affinity entries that it must delete.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead {
    /// sets of source ranges that exist already
    pub(crate) made: HashSet<SourcesId>,
    /// elements that are deleted already
    pub(crate) deleted: HashSet<ElementKey>,
    /// stale entries of affinity maps, by map and client
    pub(crate) stale_affinity: Vec<(SetName, nft::Octets)>,
}

/// The sets of source ranges that the batch creates, unless it creates, replaces or deletes the table.
pub(crate) fn ranges(batch: &Batch<NftObject>) -> Vec<NftObject> {
    let all = batch.create.iter().chain(&batch.replace).chain(&batch.delete);
    if all.into_iter().any(|object| matches!(object, NftObject::Table(_))) {
        return Vec::new();
    }
    batch.create.iter().filter(|object| matches!(object, NftObject::Ranges(..))).cloned().collect()
}

/// The endpoints that the batch removes from sets of recordable endpoints whose affinity maps stay; and these maps.
pub(crate) fn members(batch: &Batch<NftObject>) -> (Vec<NftObject>, HashSet<(PortId, Scope)>) {
    let mut going = HashSet::new();
    for object in batch.delete.iter().chain(&batch.replace) {
        match object {
            NftObject::Table(TableOwner::Ours | TableOwner::Foreign) => return (Vec::new(), HashSet::new()),
            NftObject::Set(SetName::Affinity(id, scope)) => drop(going.insert((*id, *scope))),
            NftObject::Set(_) | NftObject::Ranges(..) | NftObject::Chain(..) | NftObject::Element(..) => {}
        }
    }
    let mut maps = HashSet::new();
    let members = batch.delete.iter().filter(|object| match object {
        NftObject::Element(ElementKey::Member { id, scope, .. }, _) if !going.contains(&(*id, *scope)) => {
            maps.insert((*id, *scope));
            true
        }
        NftObject::Element(..)
        | NftObject::Table(_)
        | NftObject::Set(_)
        | NftObject::Ranges(..)
        | NftObject::Chain(..) => false,
    });
    let members = members.cloned().collect();
    (members, maps)
}

/// A batch that only creates and deletes these objects.
pub(crate) fn step(create: Vec<NftObject>, delete: Vec<NftObject>) -> Batch<NftObject> {
    Batch { create, delete, ..Batch::default() }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{ObjectName, Protocol};
    use ferry_model::Endpoint;
    use ferry_ruleset::Rules;
    use ferry_ruleset::sources::Ranges;

    use super::*;
    use crate::names::{ChainName, FixedChain};
    use crate::object::Value;

    fn sources(network: &str) -> NftObject {
        let ranges = Ranges::new(&[network.parse().unwrap()]);
        NftObject::Ranges(ranges.id(), ranges)
    }

    fn restricted(network: &str) -> NftObject {
        let chain = ChainName::Restricted(Ranges::new(&[network.parse().unwrap()]).id());
        NftObject::Chain(chain, Rules([].into()))
    }

    fn port_id(service: &str) -> PortId {
        PortId::new(&ObjectName::new("demo", service), Protocol::Tcp, "http")
    }

    fn member(service: &str, scope: Scope, last: u8) -> NftObject {
        let endpoint = Endpoint { address: [10, 244, 0, last].into(), port: 80 };
        NftObject::Element(ElementKey::Member { id: port_id(service), scope, endpoint }, Value::None)
    }

    fn map(service: &str, scope: Scope) -> NftObject {
        NftObject::Set(SetName::Affinity(port_id(service), scope))
    }

    fn batch(create: &[NftObject], replace: &[NftObject], delete: &[NftObject]) -> Batch<NftObject> {
        Batch { create: create.to_vec(), replace: replace.to_vec(), delete: delete.to_vec() }
    }

    #[test]
    fn new_sets_of_source_ranges_are_made_ahead_and_nothing_else_is() {
        let (old, new, other) = (sources("10.0.0.0/8"), sources("192.0.2.0/24"), restricted("192.0.2.0/24"));
        let same = batch(&[new.clone(), other.clone(), map("web", Scope::Cluster)], &[other], &[old]);
        assert_eq!(ranges(&same), [new]);
    }

    #[test]
    fn nothing_is_made_ahead_of_a_table_that_comes_or_goes() {
        let set = [sources("10.0.0.0/8")];
        for table in [TableOwner::Ours, TableOwner::Foreign].map(NftObject::Table) {
            let table = std::slice::from_ref(&table);
            assert_eq!(ranges(&batch(&[table, &set].concat(), &[], &[])), []);
            assert_eq!(ranges(&batch(&set, table, &[])), []);
            assert_eq!(ranges(&batch(&set, &[], table)), []);
        }
    }

    #[test]
    fn endpoints_leave_first_where_the_affinity_map_stays() {
        let (cluster, local) = (member("web", Scope::Cluster, 1), member("web", Scope::Local, 1));
        let other = member("dns", Scope::Local, 2);
        let going = [map("web", Scope::Local), cluster.clone(), local, other.clone()];
        let (members, maps) = members(&batch(&[member("web", Scope::Cluster, 9)], &[], &going));
        assert_eq!(members, [cluster, other]);
        assert_eq!(maps, [(port_id("web"), Scope::Cluster), (port_id("dns"), Scope::Local)].into());
    }

    #[test]
    fn other_elements_and_sets_wait_for_the_transaction() {
        let others = [
            NftObject::Element(ElementKey::SameOctet(7), Value::None),
            NftObject::Set(SetName::Members(port_id("web"), Scope::Cluster)),
            NftObject::Chain(ChainName::Fixed(FixedChain::Record), Rules([].into())),
            sources("10.0.0.0/8"),
        ];
        let (members, maps) = members(&batch(&[], &[], &others));
        assert!(members.is_empty() && maps.is_empty(), "{members:?} {maps:?}");
    }

    #[test]
    fn endpoints_go_with_their_table() {
        let member = [member("web", Scope::Cluster, 1)];
        for table in [TableOwner::Ours, TableOwner::Foreign].map(NftObject::Table) {
            let table = std::slice::from_ref(&table);
            assert_eq!(members(&batch(&[], table, &member)).0, []);
            assert_eq!(members(&batch(&[], &[], &[table, &member].concat())).0, []);
        }
    }
}
