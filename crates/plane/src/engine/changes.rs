//! The usual way: from what is acknowledged to what is pending.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::{Engine, Purpose};
use crate::attempt::{Change, halves, held_back, owners};
use crate::diff::{Remembered, difference};
use crate::{Acked, Before, CommitError, Compile, Kernel, Op, Outcome, UnitId};

/// Units that are committed together where nothing requires more.
pub(super) const PORTION: usize = 1000;

/// Groups to commit one after the other, the first at the end. What only adds can be torn apart: no frontend passes from
/// one unit to another. So many units that come at once take less memory, and the first ones serve earlier.
pub(super) fn portions(mut group: Vec<Change>) -> Vec<Vec<Change>> {
    if group.len() <= PORTION || group.iter().any(|change| change.before.is_some()) {
        return vec![group];
    }
    let mut groups = Vec::new();
    while group.len() > PORTION {
        groups.push(group.split_off(group.len() - PORTION));
    }
    groups.push(group);
    groups
}

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    pub(super) fn sync_changes(
        &mut self,
        context: &Arc<Context>,
        now: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        self.place_pending(&[]);
        let mut groups = portions(self.changes(context, now));
        while let Some(mut group) = groups.pop() {
            self.hold_back(context, &mut group, now);
            if group.is_empty() {
                continue;
            }
            outcome.worked = true;
            match self.commit_changes(context, &group, outcome) {
                Ok(()) => {}
                Err(CommitError::Drifted { .. }) => return self.sync_all(context, now, Purpose::Conflict, outcome),
                Err(CommitError::Refused(refusals)) => {
                    groups.extend(self.set_apart(context, group, refusals, now));
                }
                Err(error @ (CommitError::Busy(_) | CommitError::Unusable(_))) => return Err(error),
            }
        }
        Ok(())
    }

    /// Who waits, or was not reached, is left behind by a new context.
    pub(super) fn note_outdated(&mut self, context: &Arc<Context>) {
        if self.outdated {
            self.outdated = self.acked.values().any(|acked| !Arc::ptr_eq(&acked.context, context));
            self.uniform = !self.outdated;
            if !self.uniform {
                // What the last unit of an earlier context ceases to want may have been written by one of this.
                self.references.forget_all_parked();
            }
        }
    }

    /// What is known of the kernel when this group goes from one state to the other. Where a new context leaves units out,
    /// a shared object that the group begins to want may still be as theirs.
    pub(super) fn remembered(&self, group: &[Change]) -> Remembered<'_, C::Object> {
        let complete = !self.outdated || {
            let members: BTreeSet<&UnitId> = group.iter().map(|change| &change.id).collect();
            let current = |acked: &Acked| self.context.as_ref().is_some_and(|now| Arc::ptr_eq(&acked.context, now));
            self.acked.iter().all(|(id, acked)| current(acked) || members.contains(id))
        };
        Remembered { references: &self.references, uniform: self.uniform && complete }
    }

    /// Every unit that isn't in the kernel as it should be, without those that have to wait.
    pub(super) fn changes(&self, context: &Arc<Context>, now: Instant) -> Vec<Change> {
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
        changes.retain(|change| !self.quarantine.waits(&change.id, now));
        changes
    }

    /// Takes out of the group who wants a key that a waiting unit still holds: they wait or go together.
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

    /// Carries the order of pools over from what is in force to what is pending, in its place: nobody else holds it, so
    /// nothing is copied.
    pub(super) fn place_pending(&mut self, read_back: &[C::Object]) {
        for (id, unit) in &mut self.pending {
            let Some(unit) = unit else { continue };
            let before = match self.acked.get(id) {
                _ if !read_back.is_empty() => Before::Objects(read_back),
                Some(acked) => Before::Unit(&acked.unit),
                None => Before::Nothing,
            };
            self.compile.place(Arc::make_mut(unit), before);
        }
    }

    /// Takes over the order in which the kernel holds what the units want: another one than ours is as good, and no
    /// damage. All units, or these.
    pub(super) fn follow(&mut self, read_back: &[C::Object], only: Option<&BTreeSet<UnitId>>) {
        if read_back.is_empty() {
            return;
        }
        for (id, acked) in &mut self.acked {
            if only.is_none_or(|only| only.contains(id)) {
                let mut unit = (*acked.unit).clone();
                self.compile.place(&mut unit, Before::Objects(read_back));
                if unit != *acked.unit {
                    acked.unit = Arc::new(unit);
                }
            }
        }
    }

    fn commit_changes(
        &mut self,
        context: &Arc<Context>,
        group: &[Change],
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        let (before, after) = self.compile_group(context, group);
        let batch = difference(before, after, &self.remembered(group));
        if !batch.is_empty() {
            self.kernel.commit(&batch)?;
        }
        outcome.ops += batch.len();
        for change in group {
            self.acknowledge(context, change, outcome);
        }
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

    fn acknowledge(&mut self, context: &Arc<Context>, change: &Change, outcome: &mut Outcome) {
        let mut objects = Vec::new();
        // First what is new, so that a count that goes from one unit's to another's never falls to nothing.
        if let Some(unit) = &change.after {
            self.compile.compile(context, unit, &mut objects);
            self.references.acquire(&objects);
            objects.clear();
        }
        if let Some(acked) = &change.before {
            self.compile.compile(&acked.context, &acked.unit, &mut objects);
            self.references.release(&objects);
        }
        self.accept(context, change, outcome);
    }

    /// Remembers what is in the kernel now. References are the caller's to count.
    pub(super) fn accept(&mut self, context: &Arc<Context>, change: &Change, outcome: &mut Outcome) {
        match &change.after {
            Some(unit) => {
                let acked = Acked { unit: Arc::clone(unit), context: Arc::clone(context) };
                self.acked.insert(change.id.clone(), acked);
            }
            None => drop(self.acked.remove(&change.id)),
        }
        self.pending.remove(&change.id);
        self.quarantine.release(&change.id);
        outcome.acked.push(change.id.clone());
    }

    /// Puts those that were refused in quarantine; what is left comes back as groups to try.
    fn set_apart(
        &mut self,
        context: &Context,
        mut group: Vec<Change>,
        refusals: Vec<(Op, usize, io::Error)>,
        now: Instant,
    ) -> Vec<Vec<Change>> {
        let (before, after) = self.compile_group(context, &group);
        let batch = difference(before, after, &self.remembered(&group));
        let mut refused = owners(&self.compile, context, &group, &batch, &refusals);
        if refused.is_empty() {
            let (first, second) = halves(&self.compile, context, group);
            if !second.is_empty() {
                return vec![first, second];
            }
            refused.extend(first.iter().map(|change| change.id.clone()));
            group = first;
        }
        let error = Arc::new(CommitError::Refused(refusals));
        for id in &refused {
            self.quarantine.put(id.clone(), Arc::clone(&error), now);
        }
        group.retain(|change| !refused.contains(&change.id));
        vec![group]
    }
}
