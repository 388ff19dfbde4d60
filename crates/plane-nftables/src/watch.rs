//! The keys of objects that a foreign change to our tables affects.

use ferry_api::object::Family;
use ferry_kernel::nft::Changed;
use ferry_ruleset::watch::{CommitLock, TableKeys};

use crate::names::{ChainName, SetName, TABLE};
use crate::object::NftKey;
use crate::wire;

/// Our tables.
#[derive(Debug)]
pub enum NftablesTable {}

/// Engines of one process commit one after another.
pub type NftablesCommitLock = CommitLock<NftablesTable>;

// === impl NftablesTable ===

impl TableKeys for NftablesTable {
    type Key = NftKey;

    const TABLE: &'static str = TABLE;

    fn keys_of(family: Family, what: &Changed) -> Option<Vec<NftKey>> {
        match what {
            // The notification of a renamed chain has the new name only.
            Changed::Table | Changed::Set(_) | Changed::Chain { deleted: false, .. } | Changed::Other => None,
            Changed::Chain { name: chain, deleted: true } | Changed::Rule { chain } => {
                Some(vec![NftKey::Chain(ChainName::parse(chain)?)])
            }
            Changed::Elements { set, elements } => {
                let set = SetName::parse(set)?;
                if matches!(set, SetName::Affinity(..)) {
                    // Affinity entries are written by packets.
                    return Some(Vec::new());
                }
                if matches!(set, SetName::Sources(_)) {
                    return Some(vec![NftKey::Set(set)]);
                }
                elements.iter().map(|element| wire::key(set, family, element).map(NftKey::Element)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_kernel::nft::{Element, Octets, OwnedData};

    use super::*;
    use crate::names::{FixedChain, FixedSet};
    use crate::object::ElementKey;

    fn keys_of(what: &Changed) -> Option<Vec<NftKey>> {
        NftablesTable::keys_of(Family::V4, what)
    }

    #[test]
    fn a_change_affects_the_keys_that_it_names() {
        let services = NftKey::Chain(ChainName::Fixed(FixedChain::Services));
        let rule = |chain: &str| Changed::Rule { chain: chain.to_owned() };
        assert_eq!(keys_of(&rule("services")), Some(vec![services]));
        assert_eq!(keys_of(&rule("of nobody")), None);
        let chain = |deleted| Changed::Chain { name: "services".to_owned(), deleted };
        assert_eq!(keys_of(&chain(true)), Some(vec![services]));
        assert_eq!(keys_of(&chain(false)), None, "it may be renamed");
        assert_eq!(keys_of(&Changed::Table), None);
    }

    #[test]
    fn elements_are_keys_of_their_own_except_those_of_source_ranges_and_affinity_maps() {
        let key = Octets::new(&[10, 96, 0, 1]).unwrap();
        let element = Element { key, key_end: None, data: OwnedData::None, interval_end: false };
        let changed = |set: &str| Changed::Elements { set: set.to_owned(), elements: vec![element.clone()] };
        let cluster_ip = NftKey::Element(ElementKey::ClusterIp([10, 96, 0, 1].into()));
        assert_eq!(keys_of(&changed(FixedSet::ClusterIps.name())), Some(vec![cluster_ip]));
        let id = "05d5e123421d5532bb46df639921dcaf";
        let sources = SetName::parse(&format!("sources-{id}")).unwrap();
        assert_eq!(keys_of(&changed(&sources.to_string())), Some(vec![NftKey::Set(sources)]));
        assert_eq!(keys_of(&changed(&format!("affinity-{id}"))), Some(Vec::new()), "packets write them");
        assert_eq!(keys_of(&changed("of nobody")), None);
    }
}
