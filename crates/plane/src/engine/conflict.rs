//! A change of ours met what somebody else did. Mostly that is a second proxy, which has made the same change a moment
//! ago, so it is enough to look at what the change is about.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::{BatchOf, Engine, KeyOf, leave_out};
use crate::attempt::Change;
use crate::diff::{difference, difference_to_kernel, wanted_after};
use crate::{CommitError, Compile, Kernel, Object, Outcome, UnitId};

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    /// Commits a group anew by what the kernel holds of it. What differs there and is no part of the change is suspected.
    /// What comes back is left to try, as from a refusal; the error is `Drifted` when more than this has to be looked at.
    pub(super) fn reconcile(
        &mut self,
        context: &Arc<Context>,
        group: &[Change],
        now: Instant,
        outcome: &mut Outcome,
    ) -> Result<Vec<Vec<Change>>, CommitError> {
        let units: BTreeSet<UnitId> = group.iter().map(|change| change.id.clone()).collect();
        let (before, after) = self.compile_group(context, group);
        let mut keys: HashSet<KeyOf<C>> = before.iter().chain(&after).map(Object::key).collect();
        // What a commit that failed half-way left of other units goes back to the acknowledged state.
        let others = self.unverified.without(&keys);
        keys.extend(others.iter().cloned());
        let actual = self.read_sorted(&keys)?;
        self.follow(&actual, Some(&units));
        self.place_pending(&actual, Some(&units));
        let mut group = self.changes(context, now);
        group.retain(|change| units.contains(&change.id));
        let (before, after) = self.compile_group(context, &group);
        let mut wanted = wanted_after(before, after, &self.remembered(&group));
        if !others.is_empty() {
            wanted.extend(self.wanted(context, &others).objects);
        }
        let mut batch = difference_to_kernel(actual, wanted.into_iter());
        let foreign = self.drift_in(context, &group, &batch);
        leave_out(&mut batch, &foreign);
        self.keep_found(context, &group.iter().map(|change| &change.id).collect(), &mut batch);
        let reverted = batch.delete.iter().filter(|object| others.contains(&object.key()));
        outcome.unserved.extend(reverted.filter_map(Object::serves));
        match self.commit(&batch, outcome) {
            Ok(()) => {
                self.unverified.clear();
                for change in &group {
                    self.acknowledge(context, change, outcome);
                }
                // As they lie there they may be somebody else's.
                self.references.forget_parked(keys.iter());
                self.suspects.found(Some(&keys), foreign, now);
                Ok(Vec::new())
            }
            // Perhaps it is the way back of other units: a full sync tells.
            Err(error) if super::keys(&batch).any(|key| others.contains(&key)) && self.blames_units(&error, &group) => {
                Err(CommitError::Drifted { object: error.to_string() })
            }
            Err(error) if self.blames_units(&error, &group) => self.set_apart(context, group, &batch, error, now),
            Err(error) => Err(error),
        }
    }

    /// Operations of a batch to what the kernel holds that no pending change explains, nor a commit that failed half-way: it
    /// neither makes them nor wants their objects.
    pub(super) fn drift_in(&self, context: &Context, group: &[Change], batch: &BatchOf<C>) -> HashSet<KeyOf<C>> {
        let (before, after) = self.compile_group(context, group);
        let mut own: HashSet<KeyOf<C>> = after.iter().map(Object::key).collect();
        own.extend(super::keys(&difference(before, after, &self.remembered(group))));
        super::keys(batch).filter(|key| !own.contains(key) && !self.unverified.contains(key)).collect()
    }
}
