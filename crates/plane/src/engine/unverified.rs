//! Commits that failed half-way: reads back the objects whose state is unknown, and completes or reverts them.

use std::collections::{BTreeSet, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::{BatchOf, Engine, Purpose, keys};
use crate::diff::difference_to_kernel;
use crate::{Batch, CommitError, Compile, Kernel, Object, Outcome, UnitId};

/// Keys of failed batches of which some operations may be in force.
#[derive(Debug)]
pub(super) struct Unverified<K> {
    keys: HashSet<K>,
    /// those of them that the batches were to create
    created: HashSet<K>,
    /// any object may differ
    all: bool,
    /// units of which the kernel refused to take back even the acknowledged state: some attempted state may be in force
    strays: BTreeSet<UnitId>,
    /// waiting units without acknowledged state whose objects were found: an earlier run's, or of a base, an earlier attempt's. They
    /// may refer to any others of it
    found: BTreeSet<UnitId>,
}

/// With more keys than this, everything is compared.
const MOST_KEYS: usize = 10_000;

// === impl Unverified ===

impl<K> Default for Unverified<K> {
    fn default() -> Self {
        Self {
            keys: HashSet::new(),
            created: HashSet::new(),
            all: false,
            strays: BTreeSet::new(),
            found: BTreeSet::new(),
        }
    }
}

impl<K: Eq + Hash + Clone> Unverified<K> {
    /// A batch failed half-way.
    pub(super) fn failed<O: Object<Key = K>>(&mut self, batch: &Batch<O>) {
        self.keys.extend(keys(batch));
        self.created.extend(batch.create.iter().map(Object::key));
    }

    /// True if the actual state of every object is known.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.all
    }

    /// True if everything is to be compared.
    pub(super) fn is_all(&self) -> bool {
        self.all || self.keys.len() > MOST_KEYS
    }

    /// True since the last unit that had no acknowledged state has one: objects were kept for such units.
    pub(super) fn wants_comparison(&self) -> bool {
        self.all
    }

    /// True if the object, if it is there, may be this engine's, and wasn't there before.
    pub(super) fn may_have_created(&self, key: &K) -> bool {
        self.created.contains(key)
    }

    /// True if a failed commit was to change the object, and not to create it.
    pub(super) fn was_there(&self, key: &K) -> bool {
        self.keys.contains(key) && !self.created.contains(key)
    }

    /// True if the object may differ from the acknowledged state by a commit of this engine.
    pub(super) fn contains(&self, key: &K) -> bool {
        self.all || self.keys.contains(key)
    }

    /// All keys.
    pub(super) fn keys(&self) -> HashSet<K> {
        self.keys.clone()
    }

    /// The keys except these.
    pub(super) fn without(&self, keys: &HashSet<K>) -> HashSet<K> {
        self.keys.difference(keys).cloned().collect()
    }

    /// Every object has been read back, and is as acknowledged.
    pub(super) fn clear(&mut self) {
        self.keys = HashSet::new();
        self.created = HashSet::new();
        self.all = false;
    }

    /// Everything but these objects has been read back, and is as acknowledged.
    pub(super) fn retain(&mut self, left: &HashSet<K>) {
        self.keys.retain(|key| left.contains(key));
        self.created.retain(|key| left.contains(key));
        self.all = false;
    }

    /// The unit has no acknowledged state any more.
    pub(super) fn demoted(&mut self, id: &UnitId) {
        if !self.is_empty() {
            self.strays.insert(id.clone());
        }
    }

    /// The unit waits and has no acknowledged state, but objects of it were found.
    pub(super) fn found(&mut self, id: &UnitId) {
        self.found.insert(id.clone());
    }

    /// True if adopted objects of waiting units may refer to objects that no unit wants.
    pub(super) fn keeps_referred(&self) -> bool {
        !self.found.is_empty()
    }

    /// The unit has an acknowledged state. After the last one that had none, everything is to be compared: objects were kept.
    pub(super) fn accepted(&mut self, id: &UnitId) {
        self.all |= self.strays.remove(id) && self.strays.is_empty();
        self.all |= self.found.remove(id) && self.found.is_empty();
    }
}

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    /// Takes deletions of shared objects out of a batch as long as a stray or found unit may refer to them.
    pub(super) fn keep_shared(&self, batch: &mut BatchOf<C>) {
        if !self.unverified.strays.is_empty() || self.unverified.keeps_referred() {
            batch.delete.retain(|object| object.shared().is_none());
        }
    }

    /// Reverts what failed commits left in force and no pending unit has completed since: to the acknowledged state.
    pub(super) fn revert(
        &mut self,
        context: &Arc<Context>,
        now: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        if self.unverified.is_empty() {
            return Ok(());
        }
        outcome.worked = true;
        let result = if self.unverified.is_all() { Err(unknown()) } else { self.revert_keys(context, outcome) };
        match result {
            // More differs, or the kernel refuses to take back what it had accepted.
            Err(CommitError::Resources(error)) if self.failures == 0 => Err(CommitError::Resources(error)),
            Err(CommitError::Drifted { .. } | CommitError::Refused(_) | CommitError::Resources(_)) => {
                self.sync_all(context, now, Purpose::Rescue, outcome)
            }
            result => result,
        }
    }

    fn revert_keys(&mut self, context: &Context, outcome: &mut Outcome) -> Result<(), CommitError> {
        if self.pending.contains_key(&UnitId::Base) && !self.acked.contains_key(&UnitId::Base) {
            self.unverified.found(&UnitId::Base);
        }
        let keys = self.unverified.keys();
        let actual = self.read_sorted(&keys)?;
        let mut batch = difference_to_kernel(actual, self.wanted(context, &keys).objects.into_iter());
        self.keep_found(context, &BTreeSet::new(), &mut batch);
        outcome.unserved.extend(batch.delete.iter().filter_map(Object::serves));
        self.commit(&batch, outcome)?;
        self.unverified.clear();
        Ok(())
    }
}

/// The reason to read back before a commit.
pub(super) fn unknown() -> CommitError {
    CommitError::Drifted { object: "what a commit that failed half-way was about".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::tests::Plain;

    #[test]
    fn with_more_than_ten_thousand_unknown_objects_everything_is_compared() {
        for (objects, is_all) in [(9_999, false), (10_000, false), (10_001, true), (10_002, true)] {
            let mut unverified = Unverified::default();
            unverified.failed(&Batch { replace: (0..objects).map(Plain).collect(), ..Batch::default() });
            assert_eq!(unverified.is_all(), is_all, "{objects} objects");
        }
    }
}
