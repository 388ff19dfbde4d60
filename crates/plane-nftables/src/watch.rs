//! Foreign changes to our tables, by key: one listener for the whole process, whose engines take turns at committing.

use std::collections::BTreeSet;
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, Accounting, Changed, CommitFailure, Event, ForeignChanges, Listener, Socket};
use ferry_model::PerFamily;
use ferry_plane::{Extent, Turn};

use crate::names::{ChainName, SetName, TABLE};
use crate::object::NftKey;
use crate::wire;

/// Beyond so many changes by others, everything is compared.
const TOUCHED: usize = 1024;

/// Engines of one process commit one after another.
pub type CommitTurn = Turn<Watch>;

/// The listener of this process.
#[derive(Debug, Default)]
pub struct Watch(Listener<Foreign>);

/// Foreign changes to the tables of both families.
#[derive(Debug, Default)]
struct Foreign(PerFamily<Touched>);

/// Foreign changes to one family's table.
#[derive(Debug, Default)]
struct Touched {
    keys: BTreeSet<NftKey>,
    /// or anything else
    everything: bool,
}

// === impl Watch ===

impl Watch {
    /// Subscribes, in the network namespace of this thread; commits by this socket are no foreign changes.
    pub(crate) fn join(&mut self, socket: &Socket) -> io::Result<()> {
        self.0.own(socket);
        self.0.join()
    }

    /// Commits with the subscription suspended.
    pub(crate) fn commit_quietly(
        &mut self,
        socket: &mut Socket,
        batch: nft::Batch,
    ) -> Result<nft::CommitStats, CommitFailure> {
        let commits = |result: &Result<_, _>| Some(u32::from(result.is_ok()));
        self.0.around(Accounting::Quiet, socket, |socket| socket.commit(batch), commits).map_err(CommitFailure::Io)?
    }

    /// Foreign changes to the family's table since the last call.
    pub(crate) fn news(&mut self, family: Family) -> io::Result<Option<Extent<NftKey>>> {
        let touched = std::mem::take(self.0.changes()?.0.of_mut(family));
        if touched.everything {
            return Ok(Some(Extent::All));
        }
        Ok((!touched.keys.is_empty()).then(|| Extent::Keys(touched.keys.into_iter().collect())))
    }
}

// === impl Foreign ===

impl ForeignChanges for Foreign {
    fn record(&mut self, event: &Event) {
        let Some(family) = event.family.filter(|_| event.table == TABLE) else { return };
        let touched = self.0.of_mut(family);
        match keys_of(family, &event.what) {
            Some(keys) if touched.keys.len() < TOUCHED => touched.keys.extend(keys),
            Some(_) | None => touched.everything = true,
        }
    }

    fn lost(&mut self, _: Option<&io::Error>) {
        self.0.v4.everything = true;
        self.0.v6.everything = true;
    }

    fn unobserved(&mut self) {
        self.lost(None);
    }

    fn merge(&mut self, later: Self) {
        for (touched, later) in [(&mut self.0.v4, later.0.v4), (&mut self.0.v6, later.0.v6)] {
            touched.keys.extend(later.keys);
            touched.everything |= later.everything;
        }
    }
}

/// What a change is about; `None` if it may be anything.
fn keys_of(family: Family, what: &Changed) -> Option<Vec<NftKey>> {
    match what {
        // A chain that got another name is told by its new one alone.
        Changed::Table | Changed::Set(_) | Changed::Chain(_) | Changed::Other => None,
        Changed::Rule { chain } => Some(vec![NftKey::Chain(ChainName::parse(chain)?)]),
        Changed::Elements { set, elements } => {
            let set = SetName::parse(set)?;
            if matches!(set, SetName::Affinity(..)) {
                // What clients are remembered with is the packets' to write.
                return Some(Vec::new());
            }
            if matches!(set, SetName::Sources(_)) {
                return Some(vec![NftKey::Set(set)]);
            }
            elements.iter().map(|element| wire::key(set, family, element).map(NftKey::Element)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_kernel::nft::{Element, Octets, OwnedData};

    use super::*;
    use crate::names::FixedSet;

    fn foreign(events: impl IntoIterator<Item = (Option<Family>, &'static str, Changed)>) -> Foreign {
        let mut foreign = Foreign::default();
        for (family, table, what) in events {
            foreign.record(&Event { port_id: 7, family, table: table.to_owned(), what });
        }
        foreign
    }

    fn rule(chain: &str) -> Changed {
        Changed::Rule { chain: chain.to_owned() }
    }

    /// A cluster IP, one element of a set of addresses.
    fn cluster_ip(last: u16) -> Changed {
        let [high, low] = last.to_be_bytes();
        let key = Octets::new(&[10, 96, high, low]).unwrap();
        let element = Element { key, key_end: None, data: OwnedData::None, interval_end: false };
        Changed::Elements { set: SetName::Fixed(FixedSet::ClusterIps).to_string(), elements: vec![element] }
    }

    fn summary(foreign: &Foreign) -> [(usize, bool); 2] {
        Family::ALL.map(|family| (foreign.0.of(family).keys.len(), foreign.0.of(family).everything))
    }

    #[test]
    fn changes_are_noted_by_family_and_key_in_our_table_alone() {
        let (v4, v6) = (Some(Family::V4), Some(Family::V6));
        let changes = foreign([
            (v4, TABLE, rule("ext-3")),
            (v4, TABLE, rule("ext-3")),
            (v4, TABLE, cluster_ip(1)),
            (v4, "other", rule("ext-4")),
            (None, TABLE, rule("ext-5")),
        ]);
        assert_eq!(summary(&changes), [(2, false), (0, false)]);
        assert_eq!(summary(&foreign([(v6, TABLE, Changed::Table)])), [(0, false), (0, true)]);
        assert_eq!(summary(&foreign([(v4, TABLE, rule("of nobody"))])), [(0, true), (0, false)]);
    }

    #[test]
    fn beyond_a_number_of_keys_everything_is_compared() {
        let of = |count: usize| foreign((0..count).map(|n| (Some(Family::V4), TABLE, cluster_ip(n as u16))));
        assert_eq!(summary(&of(TOUCHED)), [(TOUCHED, false), (0, false)]);
        assert_eq!(summary(&of(TOUCHED + 1)), [(TOUCHED, true), (0, false)]);
    }

    #[test]
    fn what_was_lost_or_unobserved_may_be_anything_in_both_families() {
        for (lost, everything) in [(false, false), (true, true)] {
            let mut changes = foreign([(Some(Family::V4), TABLE, rule("ext-3"))]);
            let mut later = foreign([(Some(Family::V6), TABLE, rule("ext-4"))]);
            if lost {
                later.lost(None);
            }
            changes.merge(later);
            assert_eq!(summary(&changes), [(1, everything), (1, everything)]);
        }
        let mut changes = Foreign::default();
        changes.unobserved();
        assert_eq!(summary(&changes), [(0, true), (0, true)]);
    }
}
