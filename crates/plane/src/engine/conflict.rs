//! Conflicts of a commit with a foreign change: reconciles the units of the commit. Mostly a second proxy has made the same
//! change a moment earlier, so it is enough to read back the objects of these units.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::{BatchOf, Engine, KeyOf, leave_out};
use crate::attempt::Change;
use crate::diff::{difference, difference_to_kernel, wanted_after};
use crate::{CommitError, Compile, Extent, Kernel, Object, Outcome, UnitId};

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    /// Commits a group again by its actual objects. Other differences among them become drift candidates. Returns the groups
    /// that are left to try, as after a rejection; the error is `Drifted` if more has to be compared.
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
        // Objects of other units that a half-way failed commit left behind go back to the acknowledged state.
        let others = self.unverified.without(&keys);
        keys.extend(others.iter().cloned());
        let actual = self.read_sorted(&keys)?;
        self.adopt_order(&actual, Some(&units));
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
        let result = self.commit(&batch, outcome);
        if result.is_err() {
            // The kernel half may not report again what it has read.
            let differing = super::keys(&batch).chain(foreign.iter().cloned()).collect();
            self.candidates.check(Extent::Keys(differing), now);
        }
        match result {
            Ok(()) => {
                self.unverified.clear();
                for change in &group {
                    self.acknowledge(context, change, outcome);
                }
                // Their content may be a foreign one.
                self.references.forget_parked(keys.iter());
                self.candidates.found(Some(&keys), foreign, now);
                Ok(Vec::new())
            }
            // The reverted objects of other units may be at fault: a full sync finds out.
            Err(error) if super::keys(&batch).any(|key| others.contains(&key)) && self.blames_units(&error, &group) => {
                Err(CommitError::Drifted { object: error.to_string() })
            }
            Err(error) if self.blames_units(&error, &group) => self.set_apart(context, group, &batch, error, now),
            Err(error) => Err(error),
        }
    }

    /// Operations of a reconciling batch that neither a pending change nor a half-way failed commit explains: these neither
    /// make them nor want their objects.
    pub(super) fn drift_in(&self, context: &Context, group: &[Change], batch: &BatchOf<C>) -> HashSet<KeyOf<C>> {
        let (before, after) = self.compile_group(context, group);
        let mut own: HashSet<KeyOf<C>> = after.iter().map(Object::key).collect();
        own.extend(super::keys(&difference(before, after, &self.remembered(group))));
        super::keys(batch).filter(|key| !own.contains(key) && !self.unverified.contains(key)).collect()
    }
}
