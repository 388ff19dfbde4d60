//! Source ranges of the Service that is being compiled: merged, hashed and turned into rules once.

use std::sync::Arc;

use ferry_api::object::IpNet;
use ferry_ruleset::Rules;
use ferry_ruleset::sources::Ranges;
use ferry_ruleset::sources::SourcesId;

use crate::chains::Chains;

/// Cache of the source ranges seen so far, so that those of a Service are merged and hashed once, and not for each frontend.
#[derive(Default)]
pub(crate) struct Restrictions(Vec<Restriction>);

/// Source ranges and the rules of the chain that checks them.
#[derive(Clone)]
pub(crate) struct Restriction {
    pub(crate) networks: Arc<[IpNet]>,
    pub(crate) id: SourcesId,
    pub(crate) ranges: Ranges,
    pub(crate) rules: Rules,
}

// === impl Restrictions ===

impl Restrictions {
    /// The ranges with their id and rules, from the cache if they are known.
    pub(crate) fn of(&mut self, networks: &Arc<[IpNet]>, chains: &Chains) -> Restriction {
        let same = |known: &&Restriction| Arc::ptr_eq(&known.networks, networks) || known.networks == *networks;
        if let Some(known) = self.0.iter().find(same) {
            return known.clone();
        }
        let ranges = Ranges::new(networks);
        let id = ranges.id();
        let restriction = Restriction { networks: Arc::clone(networks), id, ranges, rules: chains.restricted(id) };
        self.0.push(restriction.clone());
        restriction
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Family;

    use super::*;

    #[test]
    fn equal_source_ranges_are_merged_once_and_others_are_kept_apart() {
        let chains = Chains::new(Family::V4);
        let networks = |text: &str| -> Arc<[IpNet]> { [text.parse().unwrap()].into() };
        let mut restrictions = Restrictions::default();
        let mut first = Vec::new();
        for text in ["192.0.2.0/24", "198.51.100.0/24"] {
            let networks = networks(text);
            let ranges = Ranges::new(&networks);
            let Restriction { id, rules, .. } = restrictions.of(&networks, &chains);
            assert_eq!((id, &rules), (ranges.id(), &chains.restricted(ranges.id())), "{text}");
            first.push((text, networks, ranges));
        }
        for (text, first, ranges) in first {
            let equal = restrictions.of(&networks(text), &chains);
            assert!(Arc::ptr_eq(&equal.networks, &first), "{text} is known");
            assert_eq!(equal.ranges, ranges, "{text}");
        }
    }
}
