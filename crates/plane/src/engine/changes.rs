//! Incremental sync: from the acknowledged state to the pending units.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::portions::portions;
use super::{BatchOf, Engine, Purpose, unverified};
use crate::attempt::{Change, halves, held_back, owners};
use crate::diff::{Remembered, difference};
use crate::{
    Acked, Acknowledged, Applied, Before, CommitError, CommitFailure, Compile, Kernel, Object, Outcome, Unit, UnitId,
};

/// Units without resources one after the other after which the whole kernel counts as short of them.
const MOST_STARVED: usize = 8;

/// The number of a unit's objects that the kernel doesn't hold as desired.
fn distance<C: Compile>(compile: &C, context: &Context, unit: &Unit, read_back: &[C::Object]) -> usize {
    let mut objects = Vec::new();
    compile.compile(context, unit, &mut objects);
    objects.iter().filter(|object| read_back.binary_search(object).is_err()).count()
}

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
        while let Some(mut group) = groups.pop() {
            if self.unverified.is_all() {
                outcome.worked = true;
                return self.sync_all(context, now, Purpose::Conflict, outcome);
            }
            self.hold_back(context, &mut group, now);
            if group.is_empty() || self.lacks_base(&group) {
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
                Err(error) => Err(error),
            };
            match left {
                Err(CommitError::Drifted { .. }) => return self.sync_all(context, now, Purpose::Conflict, outcome),
                left => groups.extend(left?),
            }
        }
        self.revert(context, now, outcome)
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

    /// Removes units from the group that want a key which a waiting unit still holds: they wait too.
    pub(super) fn hold_back(&mut self, context: &Context, group: &mut Vec<Change>, now: Instant) {
        if self.quarantine.is_empty() {
            return;
        }
        let waiting: Vec<(&UnitId, Option<&Acked>)> = self
            .quarantine
            .all()
            .filter(|(id, _)| self.quarantine.waits(id, now))
            .map(|(id, _)| (id, self.acked.get(id)))
            .collect();
        let held = held_back(&self.compile, context, &waiting, group);
        for (id, holder) in held {
            let object = format!("what {holder} holds, which the kernel refuses to change");
            group.retain(|change| change.id != id);
            self.quarantine.put(id, Arc::new(CommitError::Drifted { object }), now);
        }
    }

    /// Applies the order of pools in force to the pending units, or to these of them, in place: they have no other holder, so
    /// nothing is copied.
    pub(super) fn place_pending(&mut self, read_back: &[C::Object], only: Option<&BTreeSet<UnitId>>) {
        if !C::PLACES {
            return;
        }
        for (id, unit) in &mut self.pending {
            let Some(unit) = unit.as_mut().filter(|_| only.is_none_or(|only| only.contains(id))) else { continue };
            let before = match self.acked.get(id) {
                _ if !read_back.is_empty() => Before::Objects(read_back),
                Some(acked) => Before::Unit(&acked.unit),
                None => Before::Nothing,
            };
            self.compile.place(Arc::make_mut(unit), before);
        }
    }

    /// Adopts the kernel's order of pools for all units, or for these, where it is nearer to the actual state: another order is
    /// equivalent, and no damage. Returns the units as they were before.
    ///
    /// Until the rest is committed, the acknowledged state differs from the actual state.
    pub(super) fn adopt_order(
        &mut self,
        read_back: &[C::Object],
        only: Option<&BTreeSet<UnitId>>,
    ) -> Vec<(UnitId, Arc<Unit>)> {
        let mut replaced = Vec::new();
        if read_back.is_empty() || !C::PLACES {
            return replaced;
        }
        for (id, acked) in &mut self.acked {
            if only.is_some_and(|only| !only.contains(id)) {
                continue;
            }
            let mut unit = (*acked.unit).clone();
            self.compile.place(&mut unit, Before::Objects(read_back));
            let distance = |unit| distance(&self.compile, &acked.context, unit, read_back);
            if unit != *acked.unit && distance(&unit) < distance(&acked.unit) {
                replaced.push((id.clone(), std::mem::replace(&mut acked.unit, Arc::new(unit))));
            }
        }
        self.ahead |= !replaced.is_empty();
        replaced
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

    /// True if some units of the batch may be the cause of a failed commit. An object in use, or memory, may be free at the next
    /// attempt; if not, or if a unit was rejected before, the group is split as after a refusal that names no object. So an
    /// object that can't be deleted, or a unit that is too large, blocks no other unit.
    pub(super) fn blames_units(&self, error: &CommitError, group: &[Change]) -> bool {
        match error {
            CommitError::Refused(_) => true,
            CommitError::Resources(_) => {
                self.failures > 0 || group.iter().any(|change| self.quarantine.holds(&change.id))
            }
            CommitError::Drifted { .. } | CommitError::Busy(_) | CommitError::Unusable(_) => false,
        }
    }

    /// Quarantines the units that caused a failed commit; returns the others as groups to try. Fails with the error if the
    /// kernel as a whole is short of resources.
    pub(super) fn set_apart(
        &mut self,
        context: &Context,
        mut group: Vec<Change>,
        batch: &BatchOf<C>,
        error: CommitError,
        now: Instant,
    ) -> Result<Vec<Vec<Change>>, CommitError> {
        self.starved += usize::from(group.len() == 1 && matches!(error, CommitError::Resources(_)));
        if self.starved > MOST_STARVED {
            return Err(error);
        }
        let mut refused = match &error {
            CommitError::Refused(refusals) => owners(&self.compile, context, &group, batch, refusals),
            CommitError::Resources(_)
            | CommitError::Busy(_)
            | CommitError::Drifted { .. }
            | CommitError::Unusable(_) => BTreeSet::new(),
        };
        if refused.is_empty() {
            let (first, second) = halves(&self.compile, context, group);
            if !second.is_empty() {
                return Ok(vec![first, second]);
            }
            refused.extend(first.iter().map(|change| change.id.clone()));
            group = first;
        }
        let error = Arc::new(error);
        for id in &refused {
            self.quarantine.put(id.clone(), Arc::clone(&error), now);
        }
        group.retain(|change| !refused.contains(&change.id));
        Ok(vec![group])
    }
}
