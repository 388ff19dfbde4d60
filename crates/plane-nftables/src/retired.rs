//! Deferred deletions: objects that a commit took out of use and that are deleted some time later.
//!
//! - Sets of source ranges. From the commit that deletes a set on, lookups in it find nothing, also those of packets that still
//!   see the rules from before, which would drop them: observed on Linux 6.18 for some packets in a thousand that raced a commit.
//! - Chains, on kernels that release references to a chain late: they are empty, but busy (EBUSY).

use std::time::{Duration, Instant};

use ferry_plane::{Batch, Object as _};

use crate::encode::ChainRelease;
use crate::names::SetName;
use crate::object::{NftKey, NftObject};

/// Delay of a deletion: longer than a packet's way through a hook, and longer than a dereferenced chain stays busy.
const RELEASE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts to delete an object that foreign rules refer to.
const LONGEST: Duration = Duration::from_secs(64);

/// The objects whose deletion is deferred.
#[derive(Debug, Default)]
pub(crate) struct Retired(Vec<DeferredDeletion>);

/// A deferred deletion.
#[derive(Debug)]
struct DeferredDeletion {
    key: NftKey,
    /// the time of the first check after the last attempt
    since: Option<Instant>,
    /// the pause before the next attempt: doubled after each failure
    pause: Duration,
}

// === impl Retired ===

impl Retired {
    /// Adds the objects that a committed batch took out of use, and drops those that it created again.
    pub(crate) fn note(&mut self, batch: &Batch<NftObject>, release: ChainRelease) {
        for object in batch.create.iter().chain(&batch.replace) {
            if matches!(object, NftObject::Chain(..) | NftObject::Ranges(..)) {
                let made = object.key();
                self.0.retain(|waiting| waiting.key != made);
            }
        }
        let waits = |object: &&NftObject| match object {
            NftObject::Ranges(..) => true,
            NftObject::Chain(..) => release == ChainRelease::Later,
            NftObject::Table(_) | NftObject::Set(_) | NftObject::Element(..) => false,
        };
        let waiting = |object: &NftObject| DeferredDeletion { key: object.key(), since: None, pause: RELEASE };
        self.0.extend(batch.delete.iter().filter(waits).map(waiting));
    }

    /// True if the deletion of an object that was read back is deferred.
    pub(crate) fn holds(&self, object: &NftObject) -> bool {
        let unused = match object {
            NftObject::Ranges(..) => true,
            NftObject::Chain(_, rules) => rules.0.is_empty(),
            NftObject::Table(_) | NftObject::Set(_) | NftObject::Element(..) => false,
        };
        unused && self.0.iter().any(|waiting| waiting.key == object.key())
    }

    /// The keys whose deletion is due. Chains come first, since their rules refer to sets.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<NftKey> {
        let mut due = Vec::new();
        for waiting in &mut self.0 {
            if now.saturating_duration_since(*waiting.since.get_or_insert(now)) >= waiting.pause {
                due.push(waiting.key);
            }
        }
        due.sort_unstable_by_key(|key| matches!(key, NftKey::Set(SetName::Sources(_))));
        due
    }

    /// Notes the result of an attempt: the object is gone, or its pause doubles.
    pub(crate) fn tried(&mut self, tried: NftKey, gone: bool) {
        self.0.retain(|waiting| !gone || waiting.key != tried);
        for waiting in self.0.iter_mut().filter(|waiting| waiting.key == tried) {
            waiting.since = None;
            waiting.pause = (2 * waiting.pause).min(LONGEST);
        }
    }

    /// The time of the next deletion. The pause of a newly retired object begins with the first call.
    pub(crate) fn wake(&mut self, now: Instant) -> Option<Instant> {
        let next = |waiting: &mut DeferredDeletion| *waiting.since.get_or_insert(now) + waiting.pause;
        self.0.iter_mut().map(next).min()
    }
}

#[cfg(test)]
mod tests {
    use ferry_ruleset::sources::Ranges;
    use ferry_ruleset::{Rules, TableRule};

    use super::*;
    use crate::ahead::step;
    use crate::names::{ChainName, FixedSet, Pick};
    use crate::object::{ElementKey, Value};

    #[test]
    fn a_set_that_stays_in_use_is_tried_ever_more_seldom() {
        let ranges = Ranges::new(&["192.0.2.0/24".parse().unwrap()]);
        let object = NftObject::Ranges(ranges.id(), ranges);
        let mut retired = Retired::default();
        retired.note(&step(Vec::new(), vec![object.clone()]), ChainRelease::Now);
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(retired.due(now), []);
            assert!(retired.holds(&object));
            let wake = retired.wake(now).unwrap();
            pauses.push((wake - now).as_secs());
            now = wake;
            assert_eq!(retired.due(now), [object.key()]);
            retired.tried(object.key(), false);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        retired.tried(object.key(), true);
        assert_eq!(retired.wake(now), None);
        // made again and retired again: as at first
        retired.note(&step(vec![object.clone()], Vec::new()), ChainRelease::Now);
        retired.note(&step(Vec::new(), vec![object]), ChainRelease::Now);
        assert_eq!(retired.due(now), []);
        assert_eq!(retired.wake(now), Some(now + RELEASE));
    }

    fn set() -> NftObject {
        let ranges = Ranges::new(&["192.0.2.0/24".parse().unwrap()]);
        NftObject::Ranges(ranges.id(), ranges)
    }

    fn chain(rules: usize) -> NftObject {
        let rule = TableRule { exprs: Vec::new(), text: String::new() };
        NftObject::Chain(ChainName::Pick(Pick::Internal, 7), Rules(vec![rule; rules].into()))
    }

    fn retired(objects: &[NftObject], release: ChainRelease) -> Retired {
        let mut retired = Retired::default();
        retired.note(&step(Vec::new(), objects.to_vec()), release);
        retired
    }

    #[test]
    fn chains_wait_only_where_the_kernel_releases_them_late() {
        let now = Instant::now();
        let element = NftObject::Element(ElementKey::SameOctet(7), Value::None);
        let fixed = NftObject::Set(SetName::Fixed(FixedSet::Endpoints));
        let all = [element, fixed, set(), chain(1)];
        for (release, wanted) in [
            (ChainRelease::Now, vec![set().key()]),
            // The chain first: its rules refer to the set.
            (ChainRelease::Later, vec![chain(0).key(), set().key()]),
        ] {
            let mut retired = retired(&all, release);
            assert_eq!(retired.due(now), []);
            assert_eq!(retired.due(now + RELEASE), wanted);
        }
    }

    #[test]
    fn a_chain_that_has_rules_again_is_in_use() {
        let retired = retired(&[chain(1), set()], ChainRelease::Later);
        assert!(retired.holds(&chain(0)) && retired.holds(&set()));
        assert!(!retired.holds(&chain(1)), "another writer filled it");
    }

    #[test]
    fn an_object_that_is_made_again_is_not_deleted() {
        for replaced in [false, true] {
            let mut retired = retired(&[chain(1), set()], ChainRelease::Later);
            let (create, replace) = if replaced { (Vec::new(), vec![chain(2)]) } else { (vec![chain(2)], Vec::new()) };
            retired.note(&Batch { create, replace, delete: Vec::new() }, ChainRelease::Later);
            assert!(!retired.holds(&chain(0)) && retired.holds(&set()));
        }
    }

    #[test]
    fn one_that_stays_in_use_holds_up_no_other() {
        let now = Instant::now();
        let mut retired = retired(&[chain(1), set()], ChainRelease::Later);
        retired.due(now);
        retired.tried(set().key(), false);
        assert_eq!(retired.wake(now), Some(now + RELEASE), "the chain");
        retired.tried(chain(0).key(), true);
        assert_eq!(retired.wake(now), Some(now + 2 * RELEASE), "the set");
    }
}
