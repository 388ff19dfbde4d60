//! Incremental sync: from the acknowledged state to the pending units.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::portions::portions;
use super::{BatchOf, Engine, Purpose, unverified};
use crate::attempt::Change;
use crate::diff::{Remembered, difference};
use crate::{Acked, Acknowledged, Applied, CommitError, CommitFailure, Compile, Kernel, Object, Outcome, UnitId};

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    pub(super) fn sync_changes(
        &mut self,
        context: &Arc<Context>,
        now: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        // `tend` reports notifications that can't be read; pending units are committed all the same.
        if !self.pending.is_empty()
            && let Ok(drift) = self.kernel.news()
        {
            self.candidates.touched(drift, now);
        }
        self.place_pending(&[], None);
        let mut groups = portions(self.changes(context, now), self.portion);
        let mut short = None;
        while let Some(mut group) = groups.pop() {
            if self.unverified.is_all() {
                outcome.worked = true;
                return self.sync_all(context, now, Purpose::Conflict, outcome);
            }
            self.hold_back(context, &mut group, now);
            if group.is_empty() {
                continue;
            }
            if self.lacks_base(&group) {
                // A group that was split off from that of the base waits until the base was tried.
                if groups.iter().flatten().any(|change| change.id == UnitId::Base) {
                    groups.insert(0, group);
                }
                continue;
            }
            outcome.worked = true;
            let (mut before, mut after) = (Vec::new(), Vec::new());
            group.iter().for_each(|change| self.compile_change(context, change, &mut before, &mut after));
            let remembered = self.remembered(&group);
            let uniform = remembered.uniform;
            let mut batch = difference(before, after, &remembered);
            self.keep_shared(&mut batch);
            // A foreign change of the same objects, mostly a second proxy's that made the same change first.
            let result = if !self.unverified.is_empty() {
                Err(unverified::unknown())
            } else if uniform && self.candidates.concern(super::keys(&batch)) {
                Err(CommitError::Drifted { object: "what another writer has just changed".to_owned() })
            } else {
                self.commit(&batch, outcome)
            };
            let left = match result {
                Ok(()) => {
                    group.iter().for_each(|change| self.acknowledge(context, change, outcome));
                    Ok(Vec::new())
                }
                Err(CommitError::Drifted { .. }) if uniform => self.reconcile(context, &group, now, outcome),
                Err(error) if self.blames_units(&error, &group) => self.set_apart(context, group, &batch, error, now),
                Err(error) => self.pass_over(error, &mut short),
            };
            match left {
                Err(CommitError::Drifted { .. }) => return self.sync_all(context, now, Purpose::Conflict, outcome),
                left => groups.extend(left?),
            }
        }
        let reverted = self.revert(context, now, outcome);
        short.map_or(Ok(()), Err).and(reverted)
    }

    /// Records if some units still have an earlier context, because they wait or were not reached.
    pub(super) fn note_outdated(&mut self, context: &Arc<Context>) {
        if self.outdated {
            self.outdated = self.acked.values().any(|acked| !Arc::ptr_eq(&acked.context, context));
            let was_uniform = std::mem::replace(&mut self.uniform, !self.outdated);
            if !self.uniform || !was_uniform {
                // An object that the last unit of an earlier context drops, in this pass too, may have been written by one of this
                // context.
                self.references.forget_all_parked();
            }
        }
    }

    /// The reference counts and idle objects before this group's commit. If a new context leaves units out, a shared object
    /// that the group begins to want may still have their content.
    pub(super) fn remembered(&self, group: &[Change]) -> Remembered<'_, C::Object> {
        let complete = !self.outdated || {
            let members: BTreeSet<&UnitId> = group.iter().map(|change| &change.id).collect();
            let current = |acked: &Acked| self.context.as_ref().is_some_and(|now| Arc::ptr_eq(&acked.context, now));
            self.acked.iter().all(|(id, acked)| current(acked) || members.contains(id))
        };
        Remembered { references: &self.references, uniform: self.uniform && complete }
    }

    /// Every unit whose desired state is not in force, without those that have to wait.
    pub(super) fn changes(&self, context: &Arc<Context>, now: Instant) -> Vec<Change> {
        let mut changes = self.all_changes(context);
        changes.retain(|change| !self.quarantine.waits(&change.id, now));
        changes
    }

    /// Every unit whose desired state is not in force.
    pub(super) fn all_changes(&self, context: &Arc<Context>) -> Vec<Change> {
        let mut changes: Vec<Change> = self
            .pending
            .iter()
            .map(|(id, unit)| Change { id: id.clone(), before: self.acked.get(id).cloned(), after: unit.clone() })
            .collect();
        if self.outdated {
            let outdated = self
                .acked
                .iter()
                .filter(|(id, acked)| !Arc::ptr_eq(&acked.context, context) && !self.pending.contains_key(id));
            changes.extend(outdated.map(|(id, acked)| Change {
                id: id.clone(),
                before: Some(acked.clone()),
                after: Some(Arc::clone(&acked.unit)),
            }));
        }
        changes
    }

    /// True if the group needs a base and there is none: the kernel rejected it. Everything else waits with it.
    pub(super) fn lacks_base(&self, group: &[Change]) -> bool {
        let is_wanted = self.pending.get(&UnitId::Base).is_some_and(Option::is_some);
        let is_there = self.found_base == Some(true) || self.acked.contains_key(&UnitId::Base);
        is_wanted && !is_there && group.iter().all(|change| change.id != UnitId::Base)
    }

    /// Commits, unless there is nothing to do.
    pub(super) fn commit(&mut self, batch: &BatchOf<C>, outcome: &mut Outcome) -> Result<(), CommitError> {
        if !batch.is_empty()
            && let Err(CommitFailure { error, applied }) = self.kernel.commit(batch)
        {
            if applied == Applied::Unknown {
                self.unverified.failed(batch);
                self.references.forget_parked(super::keys(batch).collect::<Vec<_>>().iter());
            }
            return Err(error);
        }
        outcome.ops += batch.len();
        Ok(())
    }

    pub(super) fn compile_group(&self, context: &Context, group: &[Change]) -> (Vec<C::Object>, Vec<C::Object>) {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for change in group {
            if let Some(acked) = &change.before {
                self.compile.compile(&acked.context, &acked.unit, &mut before);
            }
            if let Some(unit) = &change.after {
                self.compile.compile(context, unit, &mut after);
            }
        }
        (before, after)
    }

    /// As [`Engine::compile_group`] for one change, without objects that the mode finds equal before and after.
    fn compile_change(
        &self,
        context: &Context,
        change: &Change,
        before: &mut Vec<C::Object>,
        after: &mut Vec<C::Object>,
    ) {
        match (&change.before, &change.after) {
            (Some(acked), Some(unit)) if std::ptr::eq(&raw const *acked.context, context) => {
                self.compile.compile_change(context, (&acked.unit, unit), before, after);
            }
            (old, new) => {
                if let Some(acked) = old {
                    self.compile.compile(&acked.context, &acked.unit, before);
                }
                if let Some(unit) = new {
                    self.compile.compile(context, unit, after);
                }
            }
        }
    }

    pub(super) fn acknowledge(&mut self, context: &Arc<Context>, change: &Change, outcome: &mut Outcome) {
        if C::Object::SHARES {
            self.count(context, change);
        }
        self.accept(context, change, outcome);
    }

    /// Updates the reference counts of shared objects, and shows the kernel half what is desired now.
    fn count(&mut self, context: &Context, change: &Change) {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        self.compile_change(context, change, &mut before, &mut after);
        // New references first, so that the count of an object that passes from one unit to another never falls to zero.
        self.references.acquire(&after);
        self.references.release(&before);
        self.kernel.acknowledged(&after);
    }

    /// Records the acknowledged state of a unit. The caller counts references.
    pub(super) fn accept(&mut self, context: &Arc<Context>, change: &Change, outcome: &mut Outcome) {
        match &change.after {
            Some(unit) => {
                let acked = Acked { unit: Arc::clone(unit), context: Arc::clone(context) };
                self.acked.insert(change.id.clone(), acked);
            }
            None => drop(self.acked.remove(&change.id)),
        }
        self.pending.remove(&change.id);
        self.starved = 0;
        self.quarantine.release(&change.id);
        self.unverified.accepted(&change.id);
        outcome.acked.push(Acknowledged {
            id: change.id.clone(),
            before: change.before.as_ref().map(|acked| Arc::clone(&acked.unit)),
            after: change.after.clone(),
        });
    }
}
