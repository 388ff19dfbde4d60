//! Full sync: from the actual to the whole desired state.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::drift::Scale;
use super::portions::only_adds;
use super::{BatchOf, Engine, KeyOf, Purpose, StartStage, leave_out, staying};
use crate::attempt::{Change, halves, owners};
use crate::diff::difference_showing;
use crate::{Acked, Batch, CommitError, Compile, Extent, Kernel, Object, Outcome, Refusal, Served, Unit, UnitId};

/// The result of a comparison with everything in the kernel.
struct Draft<O: Object> {
    /// the changes that are part of it
    group: Vec<Change>,
    /// more changes follow
    more: bool,
    batch: Batch<O>,
    /// frontends of replaced objects whose successors don't serve them
    replaced: Vec<(O::Key, Served)>,
    /// keys of operations that undo foreign changes
    foreign: HashSet<O::Key>,
    /// the idle objects in the kernel
    spare: Vec<O>,
}

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    pub(super) fn sync_all(
        &mut self,
        context: &Arc<Context>,
        now: Instant,
        purpose: Purpose,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        outcome.full = true;
        match self.commit_all(context, now, purpose, outcome) {
            Ok(true) => Ok(()),
            Ok(false) => self.sync_changes(context, now, outcome),
            Err(error) => {
                // A kernel half may not report again what it has read.
                self.candidates.check(Extent::All, now);
                Err(error)
            }
        }
    }

    /// Commits the difference to everything in the kernel; false if changes are left for other commits.
    fn commit_all(
        &mut self,
        context: &Arc<Context>,
        now: Instant,
        purpose: Purpose,
        outcome: &mut Outcome,
    ) -> Result<bool, CommitError> {
        let mut postponed = BTreeSet::new();
        let mut drifted = false;
        let mut keeps = false;
        loop {
            let Draft { group, more, mut batch, replaced, mut foreign, spare } =
                self.compare_all(context, &postponed, purpose, now)?;
            // If our own changes conflict again, they need the other differences repaired, too.
            let unconfirmed = purpose == Purpose::Conflict && !drifted;
            let mut later = if unconfirmed { std::mem::take(&mut foreign) } else { HashSet::new() };
            if keeps {
                later.extend(batch.delete.iter().map(Object::key));
                foreign.retain(|key| !later.contains(key));
            }
            leave_out(&mut batch, &later);
            let staying = staying(&batch);
            // Before the commit: with a kernel half that is not atomic, some objects may be gone after an error.
            let replaced = replaced.into_iter().filter(|(key, _)| !later.contains(key)).map(|(_, served)| served);
            outcome.unserved.extend(replaced.chain(self.unserved(&batch, purpose)));
            match self.commit(&batch, outcome) {
                Ok(()) => {
                    self.count_repairs(foreign.into_iter().collect(), &staying, Scale::Everything, now, outcome);
                    self.unverified.retain(&later);
                    self.adopt(context, &group, spare, outcome);
                    self.candidates.found(None, later, now);
                    return Ok(postponed.is_empty() && !more && !self.unverified.wants_comparison());
                }
                Err(error @ CommitError::Drifted { .. }) if drifted => return Err(error),
                Err(CommitError::Drifted { .. }) => drifted = true,
                // The cause may be an operation that was left out.
                Err(CommitError::Refused(_)) if unconfirmed && !later.is_empty() => drifted = true,
                // The shortage may be temporary.
                Err(error @ CommitError::Resources(_)) if self.failures == 0 => return Err(error),
                // Objects that can't be deleted stay, so that the other operations can be committed.
                Err(CommitError::Resources(_)) if !batch.delete.is_empty() => keeps = true,
                Err(error @ (CommitError::Refused(_) | CommitError::Resources(_))) => {
                    self.set_apart_all(context, &group, &batch, error, &mut postponed, now)?;
                }
                Err(error @ (CommitError::Busy(_) | CommitError::Unusable(_))) => return Err(error),
            }
        }
    }

    /// Reads everything back and drafts the batch.
    fn compare_all(
        &mut self,
        context: &Arc<Context>,
        postponed: &BTreeSet<UnitId>,
        purpose: Purpose,
        now: Instant,
    ) -> Result<Draft<C::Object>, CommitError> {
        let mut actual = self.kernel.read_back(&Extent::All)?;
        actual.sort_unstable();
        self.adopt_order(&actual, None);
        self.place_pending(&actual, None);
        let mut group = if purpose == Purpose::Rescue { Vec::new() } else { self.changes(context, now) };
        self.hold_back(context, &mut group, now);
        // A first load into an empty kernel: the base and some units first, the others follow.
        let held = actual.iter().any(|object| !object.stays());
        let more = !held && group.len() > self.portion && only_adds(&group);
        if more {
            group.truncate(self.portion);
        }
        // After the truncation, so that a portion that is refused as a whole shrinks.
        group.retain(|change| !postponed.contains(&change.id));
        if self.found_base.is_none() {
            self.found_base = Some(self.finds_base(context, &actual));
        }
        if self.lacks_base(&group) {
            group.clear();
        }
        self.note_found(context, &group, &actual);
        let spare = actual.iter().filter(|object| object.spare()).cloned().collect();
        let mut replaced = Vec::new();
        let batch = self.full_batch(context, &group, actual, &mut replaced);
        let foreign = match purpose {
            Purpose::Adopt => HashSet::new(),
            Purpose::Repair | Purpose::Rescue | Purpose::Conflict => self.drift_in(context, &group, &batch),
        };
        Ok(Draft { group, more, batch, replaced, foreign, spare })
    }

    /// Records the waiting units without acknowledged state that have objects from before this engine's first commit. Of a base, the
    /// remains of an attempt with another state count, too: its objects stay, and refer to each other.
    fn note_found(&mut self, context: &Context, group: &[Change], actual: &[C::Object]) {
        let changing: BTreeSet<&UnitId> = group.iter().map(|change| &change.id).collect();
        let mut objects = Vec::new();
        for (id, unit) in self.pending.iter().filter(|(id, _)| !changing.contains(id)) {
            let Some(unit) = unit.as_ref().filter(|_| !self.acked.contains_key(id)) else { continue };
            if *id == UnitId::Base {
                self.unverified.found(id);
                continue;
            }
            objects.clear();
            self.compile.compile(context, unit, &mut objects);
            let own = objects.iter().filter(|object| object.shared().is_none()).map(Object::key);
            let is_there = |key: &KeyOf<C>| actual.binary_search_by(|object| object.key().cmp(key)).is_ok();
            if own.filter(|key| !self.unverified.may_have_created(key)).any(|key| is_there(&key)) {
                self.unverified.found(id);
            }
        }
    }

    /// True if the kernel holds some objects of the pending base.
    fn finds_base(&self, context: &Context, actual: &[C::Object]) -> bool {
        let Some(Some(base)) = self.pending.get(&UnitId::Base) else { return false };
        let mut objects = Vec::new();
        self.compile.compile(context, base, &mut objects);
        let keys: HashSet<KeyOf<C>> = objects.iter().filter(|object| !object.stays()).map(Object::key).collect();
        actual.iter().any(|object| keys.contains(&object.key()))
    }

    /// Frontends that the deleted objects served and that no unit in force names.
    fn unserved(&mut self, batch: &BatchOf<C>, purpose: Purpose) -> Vec<Served> {
        let mut served: Vec<Served> = batch.delete.iter().filter_map(Object::serves).collect();
        if purpose == Purpose::Adopt {
            served.extend(self.kernel.foreign_serves());
        }
        served
    }

    /// The operations from the actual objects to those of the group and of every unchanged unit. Objects of waiting units stay
    /// as they are found. Frontends that replaced objects serve and their successors don't are added to `replaced`.
    pub(super) fn full_batch(
        &self,
        context: &Context,
        group: &[Change],
        actual: Vec<C::Object>,
        replaced: &mut Vec<(KeyOf<C>, Served)>,
    ) -> BatchOf<C> {
        let changing: BTreeSet<&UnitId> = group.iter().map(|change| &change.id).collect();
        let mut batch = difference_showing(actual, self.target(context, group, &changing), |before, after| {
            let lost = before.serves().filter(|served| after.serves().as_ref() != Some(served));
            replaced.extend(lost.map(|served| (before.key(), served)));
        });
        self.keep_found(context, &changing, &mut batch);
        batch
    }

    /// Removes from a batch the deletions of desired objects of waiting units that the kernel already held, and of those that such objects
    /// may refer to.
    pub(super) fn keep_found(&self, context: &Context, changing: &BTreeSet<&UnitId>, batch: &mut BatchOf<C>) {
        if batch.delete.is_empty() {
            return;
        }
        let protected = self.wanted_by_waiting(context, changing, batch);
        batch.delete.retain(|object| !protected.contains(&object.key()));
        self.keep_shared(batch);
        if self.unverified.keeps_referred() {
            batch.delete.retain(Object::is_leaf);
        }
    }

    /// The desired objects of the group, and the acknowledged ones of every other unit.
    fn target<'a>(
        &'a self,
        context: &'a Context,
        group: &'a [Change],
        changing: &'a BTreeSet<&UnitId>,
    ) -> impl Iterator<Item = C::Object> + 'a {
        let changed = group.iter().filter_map(move |change| Some((&change.id, context, &**change.after.as_ref()?)));
        changed.chain(self.accepted(context, changing)).flat_map(|(_, context, unit)| {
            let mut objects = Vec::new();
            self.compile.compile(context, unit, &mut objects);
            objects
        })
    }

    /// The acknowledged units, without these. Those compiled with an earlier context come last: an object that they share with
    /// units of the current context has the current content.
    pub(super) fn accepted<'a>(
        &'a self,
        context: &'a Context,
        without: &'a BTreeSet<&UnitId>,
    ) -> impl Iterator<Item = (&'a UnitId, &'a Context, &'a Unit)> + 'a {
        let outdated = move |acked: &Acked| self.outdated && *acked.context != *context;
        let all = move || self.acked.iter().filter(|(id, _)| !without.contains(id));
        let current = all().filter(move |(_, acked)| !outdated(acked));
        current
            .chain(all().filter(move |(_, acked)| outdated(acked)))
            .map(|(id, acked)| (id, &*acked.context, &*acked.unit))
    }

    /// Keys of pending units without acknowledged state that are not part of this attempt; without objects that a failed commit
    /// may have created for a Service that had none before, without those that an acknowledged unit has or had until now (such
    /// an object refers to others of that unit), and without shared ones unless a failed commit was to change one of the others. The
    /// keys of a base are always included: it serves nothing by itself, and idle objects refer to it.
    fn wanted_by_waiting(
        &self,
        context: &Context,
        changing: &BTreeSet<&UnitId>,
        batch: &BatchOf<C>,
    ) -> HashSet<KeyOf<C>> {
        let is_waiting = |id: &UnitId| !changing.contains(id) && !self.acked.contains_key(id);
        let waiting = self.pending.iter().filter_map(|(id, unit)| Some((id, unit.as_ref()?)));
        let waiting: Vec<(&UnitId, &Arc<Unit>)> = waiting.filter(|(id, _)| is_waiting(id)).collect();
        let held = self.held_of(context, &waiting, batch);
        let (mut protected, mut objects) = (HashSet::new(), Vec::new());
        for (id, unit) in waiting {
            self.compile.compile(context, unit, &mut objects);
            objects.retain(|object| !held.contains(&object.key()));
            let found = |object: &C::Object| object.shared().is_none() && self.unverified.was_there(&object.key());
            let mixed = *id == UnitId::Base || objects.iter().any(found);
            // Shared ones stay anyway while the unit counts as found.
            let kept = |object: &C::Object| {
                mixed || object.shared().is_none() && !self.unverified.may_have_created(&object.key())
            };
            protected.extend(objects.drain(..).filter(kept).map(|object| object.key()));
        }
        protected
    }

    /// Of the keys of these waiting units, those under which an acknowledged unit has an object that only one unit can want, as far
    /// as this batch deletes it, or a failed commit was to change it.
    fn held_of(&self, context: &Context, waiting: &[(&UnitId, &Arc<Unit>)], batch: &BatchOf<C>) -> HashSet<KeyOf<C>> {
        let deleted: HashSet<KeyOf<C>> = batch.delete.iter().map(Object::key).collect();
        let (mut keys, mut objects) = (HashSet::new(), Vec::new());
        for (_, unit) in waiting {
            self.compile.compile(context, unit, &mut objects);
            let own = objects.drain(..).filter(|object| object.shared().is_none()).map(|object| object.key());
            keys.extend(own.filter(|key| deleted.contains(key) || self.unverified.was_there(key)));
        }
        if keys.is_empty() { keys } else { self.wanted(context, &keys).objects.iter().map(Object::key).collect() }
    }

    /// Acknowledges a full batch: the kernel holds exactly the target and the idle objects found before.
    fn adopt(&mut self, context: &Arc<Context>, group: &[Change], spare: Vec<C::Object>, outcome: &mut Outcome) {
        for change in group {
            self.accept(context, change, outcome);
        }
        self.references.restart(spare);
        let mut objects = Vec::new();
        for acked in self.acked.values().filter(|_| C::Object::SHARES) {
            objects.clear();
            self.compile.compile(&acked.context, &acked.unit, &mut objects);
            self.references.acquire(&objects);
            self.kernel.acknowledged(&objects);
        }
        self.ahead = false;
        self.stage = StartStage::Adopted;
    }

    fn set_apart_all(
        &mut self,
        context: &Context,
        group: &[Change],
        batch: &BatchOf<C>,
        error: CommitError,
        postponed: &mut BTreeSet<UnitId>,
        now: Instant,
    ) -> Result<(), CommitError> {
        let refusals: &[_] = if let CommitError::Refused(refusals) = &error { refusals } else { &[] };
        let mut refused = owners(&self.compile, context, group, batch, refusals);
        if refused.is_empty() {
            refused = self.demote_owners(context, group, batch, refusals);
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
            // The acknowledged state itself is rejected: there is no unit to set apart.
            return Err(error);
        }
        let error = Arc::new(error);
        for id in refused {
            self.quarantine.put(id, Arc::clone(&error), now);
        }
        Ok(())
    }

    /// Makes acknowledged units pending again whose objects the kernel rejects now, so that they hold up no other unit.
    fn demote_owners(
        &mut self,
        context: &Context,
        group: &[Change],
        batch: &BatchOf<C>,
        refusals: &[Refusal],
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
                self.unverified.demoted(id);
                if *id == UnitId::Base {
                    self.found_base = Some(true);
                }
                // Its remaining objects in the kernel are unknown.
                let mut objects = Vec::new();
                self.compile.compile(&acked.context, &acked.unit, &mut objects);
                self.references.release(&objects);
                self.references.forget_parked(objects.iter().map(Object::key).collect::<Vec<_>>().iter());
                self.pending.entry(id.clone()).or_insert(Some(acked.unit));
            }
        }
        refused
    }
}
