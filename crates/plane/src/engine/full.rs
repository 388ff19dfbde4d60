//! The long way: from what the kernel holds to the whole target.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::changes::PORTION;
use super::drift::Scale;
use super::{BatchOf, Engine, KeyOf, Purpose, Stage, keys};
use crate::attempt::{Change, halves, owners};
use crate::diff::{difference, difference_to_kernel};
use crate::{Acked, CommitError, Compile, Extent, Kernel, Object, Op, Outcome, UnitId};

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    pub(super) fn sync_all(
        &mut self,
        context: &Arc<Context>,
        now: Instant,
        purpose: Purpose,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        outcome.full = true;
        let mut postponed = BTreeSet::new();
        let mut drifted = false;
        let mut later = false;
        loop {
            let mut actual = self.kernel.read_back(&Extent::All)?;
            actual.sort_unstable();
            let mut group = self.changes(context, now);
            self.hold_back(context, &mut group, now);
            group.retain(|change| !postponed.contains(&change.id));
            // Nothing of ours is there: the base and some units, the others follow.
            if actual.is_empty() {
                later = group.len() > PORTION;
                group.truncate(PORTION);
            }
            self.place(&mut group, &actual);
            let spare = actual.iter().filter(|object| object.spare()).cloned().collect();
            let batch = self.full_batch(context, &group, actual);
            let foreign = if purpose == Purpose::Repair { self.drift_in(context, &group, &batch) } else { Vec::new() };
            match if batch.is_empty() { Ok(()) } else { self.kernel.commit(&batch) } {
                Ok(()) => {
                    outcome.ops += batch.len();
                    self.count_repairs(foreign, Scale::Everything, now, outcome);
                    self.adopt(context, &group, spare, outcome);
                    break;
                }
                Err(error @ CommitError::Drifted { .. }) if drifted => return Err(error),
                Err(CommitError::Drifted { .. }) => drifted = true,
                Err(CommitError::Refused(refusals)) => {
                    self.set_apart_all(context, &group, &batch, refusals, &mut postponed, now)?;
                }
                Err(error @ (CommitError::Busy(_) | CommitError::Unusable(_))) => return Err(error),
            }
        }
        if postponed.is_empty() && !later { Ok(()) } else { self.sync_changes(context, now, outcome) }
    }

    /// What makes the kernel's objects those of the group and of every unit that stays as it is. What a unit that has
    /// to wait wants is left as it is found.
    pub(super) fn full_batch(&self, context: &Context, group: &[Change], actual: Vec<C::Object>) -> BatchOf<C> {
        let changing: BTreeSet<&UnitId> = group.iter().map(|change| &change.id).collect();
        let mut batch = difference_to_kernel(actual, self.target(context, group, &changing));
        if !batch.delete.is_empty() {
            let protected = self.wanted_by_waiting(context, &changing);
            batch.delete.retain(|object| !protected.contains(&object.key()));
        }
        batch
    }

    /// The objects of the group as it shall be, and those of every other unit as it was accepted. What was compiled with
    /// an earlier context comes last: where it shares an object with this context's, the object is this context's.
    pub(super) fn target<'a>(
        &'a self,
        context: &'a Context,
        group: &'a [Change],
        changing: &'a BTreeSet<&UnitId>,
    ) -> impl Iterator<Item = C::Object> + 'a {
        let outdated = |acked: &Acked| self.outdated && *acked.context != *context;
        let staying = || self.acked.iter().filter(|(id, _)| !changing.contains(id)).map(|(_, acked)| acked);
        let accepted = |acked: &'a Acked| (&*acked.context, &*acked.unit);
        let changed = group.iter().filter_map(move |change| Some((context, &**change.after.as_ref()?)));
        changed
            .chain(staying().filter(move |acked| !outdated(acked)).map(accepted))
            .chain(staying().filter(move |acked| outdated(acked)).map(accepted))
            .flat_map(|(context, unit)| {
                let mut objects = Vec::new();
                self.compile.compile(context, unit, &mut objects);
                objects
            })
    }

    /// Keys of units that are pending, not in the kernel as far as we know, and not part of this try.
    fn wanted_by_waiting(&self, context: &Context, changing: &BTreeSet<&UnitId>) -> HashSet<KeyOf<C>> {
        let mut objects = Vec::new();
        for (id, unit) in &self.pending {
            if let Some(unit) = unit
                && !changing.contains(id)
                && !self.acked.contains_key(id)
            {
                self.compile.compile(context, unit, &mut objects);
            }
        }
        objects.iter().map(Object::key).collect()
    }

    /// Operations of a full batch that no pending change explains.
    fn drift_in(&self, context: &Context, group: &[Change], batch: &BatchOf<C>) -> Vec<KeyOf<C>> {
        let (before, after) = self.compile_group(context, group);
        let own = difference(before, after, &self.remembered(group));
        let own: HashSet<KeyOf<C>> = keys(&own).collect();
        keys(batch).filter(|key| !own.contains(key)).collect()
    }

    /// After a full batch the kernel holds exactly the target, and the spare parts that were there.
    fn adopt(&mut self, context: &Arc<Context>, group: &[Change], spare: Vec<C::Object>, outcome: &mut Outcome) {
        for change in group {
            self.accept(context, change, outcome);
        }
        self.references.restart(spare);
        let mut objects = Vec::new();
        for acked in self.acked.values() {
            objects.clear();
            self.compile.compile(&acked.context, &acked.unit, &mut objects);
            self.references.acquire(&objects);
        }
        self.drift = None;
        self.stage = Stage::Adopted;
    }

    fn set_apart_all(
        &mut self,
        context: &Context,
        group: &[Change],
        batch: &BatchOf<C>,
        refusals: Vec<(Op, usize, io::Error)>,
        postponed: &mut BTreeSet<UnitId>,
        now: Instant,
    ) -> Result<(), CommitError> {
        let mut refused = owners(&self.compile, context, group, batch, &refusals);
        if refused.is_empty() {
            refused = self.demote_owners(context, group, batch, &refusals);
        }
        if refused.is_empty() {
            let (first, second) = halves(&self.compile, context, group.to_vec());
            if !second.is_empty() {
                postponed.extend(second.into_iter().map(|change| change.id));
                return Ok(());
            }
            refused.extend(first.into_iter().map(|change| change.id));
        }
        if refused.is_empty() {
            // What was accepted before is refused now: nobody to set apart.
            return Err(CommitError::Refused(refusals));
        }
        let error = Arc::new(CommitError::Refused(refusals));
        for id in refused {
            self.quarantine.put(id, Arc::clone(&error), now);
        }
        Ok(())
    }

    /// Units that were accepted before and whose objects the kernel refuses to take again: they are pending anew, and
    /// harm nobody else.
    fn demote_owners(
        &mut self,
        context: &Context,
        group: &[Change],
        batch: &BatchOf<C>,
        refusals: &[(Op, usize, io::Error)],
    ) -> BTreeSet<UnitId> {
        if refusals.is_empty() {
            return BTreeSet::new();
        }
        let changing: BTreeSet<&UnitId> = group.iter().map(|change| &change.id).collect();
        let staying: Vec<Change> = self
            .acked
            .iter()
            .filter(|(id, _)| !changing.contains(id))
            .map(|(id, acked)| Change {
                id: id.clone(),
                before: Some(acked.clone()),
                after: Some(Arc::clone(&acked.unit)),
            })
            .collect();
        let refused = owners(&self.compile, context, &staying, batch, refusals);
        for id in &refused {
            if let Some(acked) = self.acked.remove(id) {
                self.pending.entry(id.clone()).or_insert(Some(acked.unit));
            }
        }
        refused
    }
}
