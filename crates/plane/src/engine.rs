//! The engine that all modes share: what is pending, what is acknowledged, and how the one becomes the other.
//!
//! | Kernel says | Engine does |
//! |---|---|
//! | ok | the units are acknowledged and no longer pending |
//! | drifted | read everything back, diff against the whole target, commit; drifted again: as busy |
//! | refused | the units of the named objects keep their last good state and wait; the others go on |
//! | busy | everything stays pending; again after a while |
//! | unusable | as busy, more slowly; at start the caller decides whether to go on without this family |
//!
//! Pending work is dropped only when it is acknowledged.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_model::Context;

use crate::attempt::{Change, halves, held_back, owners};
use crate::diff::{Presence, References, difference};
use crate::quarantine::Quarantine;
use crate::rivals::Rivals;
use crate::{
    Acked, Batch, Before, CommitError, Compile, Delta, Extent, Kernel, Next, Object, Op, Outcome, SyncEngine, Unit,
    UnitId,
};

/// Drives one mode in one IP family.
#[derive(Debug)]
pub struct Engine<C: Compile, K> {
    compile: C,
    kernel: K,
    /// the latest one offered; nothing can be compiled before the first
    context: Option<Arc<Context>>,
    /// some acknowledged unit may have been compiled with an earlier context
    outdated: bool,
    /// all acknowledged units were compiled with one context, in force or not
    uniform: bool,
    pending: BTreeMap<UnitId, Option<Arc<Unit>>>,
    acked: BTreeMap<UnitId, Acked>,
    references: References<C::Object>,
    quarantine: Quarantine,
    rivals: Rivals<KeyOf<C>>,
    stage: Stage,
    /// found, not mended yet
    drift: Option<Extent<KeyOf<C>>>,
    /// turns that failed in a row
    failures: u32,
    /// when the plane wants its time
    wake: Option<Instant>,
}

type KeyOf<C> = <<C as Compile>::Object as Object>::Key;
type BatchOf<C> = Batch<<C as Compile>::Object>;

/// How far the start has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// the kernel half is not prepared
    New,
    /// what the kernel holds is not known
    Prepared,
    /// the kernel holds what is acknowledged
    Adopted,
}

/// Why everything is compared with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// differences are an earlier run's
    Adopt,
    /// differences are somebody else's work
    Repair,
}

/// Beyond so many objects a repair counts as one of everything, for telling a rival.
const NAMED_REPAIRS: usize = 256;
/// Waits after a failed turn: first, longest, and the one while the mode can't be used.
const RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
const UNUSABLE_RETRY: Duration = Duration::from_secs(10);

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    /// An engine that has touched nothing yet.
    pub fn new(compile: C, kernel: K) -> Self {
        Self {
            compile,
            kernel,
            context: None,
            outdated: false,
            uniform: true,
            pending: BTreeMap::new(),
            acked: BTreeMap::new(),
            references: References::default(),
            quarantine: Quarantine::default(),
            rivals: Rivals::default(),
            stage: Stage::New,
            drift: None,
            failures: 0,
            wake: None,
        }
    }

    /// The kernel half.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// The kernel half, to change (tests inject faults there).
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// What is in the kernel, per unit.
    pub fn acked(&self) -> &BTreeMap<UnitId, Acked> {
        &self.acked
    }

    /// The objects of all acknowledged units, sorted; a shared object stands as often as it is wanted.
    pub fn objects(&self) -> Vec<C::Object> {
        let mut objects = Vec::new();
        for acked in self.acked.values() {
            self.compile.compile(&acked.context, &acked.unit, &mut objects);
        }
        objects.sort_unstable();
        objects
    }

    // --- turns

    /// Runs one turn and says what came of it.
    fn turn(
        &mut self,
        now: Instant,
        work: impl FnOnce(&mut Self, &Arc<Context>, &mut Outcome) -> Result<(), CommitError>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(context) = self.context.clone() else { return outcome };
        let result = self.prepared().and_then(|()| work(self, &context, &mut outcome));
        self.note_outdated(&context);
        match result {
            Ok(()) => self.failures = 0,
            Err(error) => {
                outcome.next = Next::RetryAfter(self.retry_after(&error));
                self.failures += 1;
                outcome.error = Some(Arc::new(error));
            }
        }
        outcome.quarantined = self.quarantine.all().map(|(id, error)| (id.clone(), Arc::clone(error))).collect();
        if outcome.next == Next::Idle {
            outcome.next = self.next(now);
        }
        outcome
    }

    fn prepared(&mut self) -> Result<(), CommitError> {
        if self.stage == Stage::New {
            self.kernel.prepare()?;
            self.stage = Stage::Prepared;
        }
        Ok(())
    }

    fn retry_after(&self, error: &CommitError) -> Duration {
        match error {
            CommitError::Unusable(_) => UNUSABLE_RETRY,
            CommitError::Drifted { .. } | CommitError::Refused(_) | CommitError::Busy(_) => {
                RETRY.saturating_mul(1 << self.failures.min(16)).min(LONGEST_RETRY)
            }
        }
    }

    fn next(&self, now: Instant) -> Next {
        let wakes = [self.wake, self.quarantine.wake(), self.rivals.wake()];
        match wakes.into_iter().flatten().min() {
            Some(wake) => Next::RetryAfter(wake.saturating_duration_since(now)),
            None => Next::Idle,
        }
    }

    fn sync_pending(&mut self, context: &Arc<Context>, now: Instant, outcome: &mut Outcome) -> Result<(), CommitError> {
        if self.stage != Stage::Adopted {
            outcome.worked = true;
            return self.sync_all(context, now, Purpose::Adopt, outcome);
        }
        self.sync_changes(context, now, outcome)
    }

    // --- the usual way: from what is acknowledged to what is pending

    fn sync_changes(&mut self, context: &Arc<Context>, now: Instant, outcome: &mut Outcome) -> Result<(), CommitError> {
        let mut groups = vec![self.changes(context, now)];
        while let Some(mut group) = groups.pop() {
            self.hold_back(context, &mut group, now);
            if group.is_empty() {
                continue;
            }
            outcome.worked = true;
            self.place(&mut group, &[]);
            match self.commit_changes(context, &group, outcome) {
                Ok(()) => {}
                Err(CommitError::Drifted { .. }) => return self.sync_all(context, now, Purpose::Repair, outcome),
                Err(CommitError::Refused(refusals)) => {
                    groups.extend(self.set_apart(context, group, refusals, now));
                }
                Err(error @ (CommitError::Busy(_) | CommitError::Unusable(_))) => return Err(error),
            }
        }
        Ok(())
    }

    /// Who waits, or was not reached, is left behind by a new context.
    fn note_outdated(&mut self, context: &Arc<Context>) {
        if self.outdated {
            self.outdated = self.acked.values().any(|acked| !Arc::ptr_eq(&acked.context, context));
            self.uniform = !self.outdated;
            if !self.uniform {
                // What the last unit of an earlier context ceases to want may have been written by one of this.
                self.references.forget_all_parked();
            }
        }
    }

    fn remembered(&self) -> Presence<'_, C::Object> {
        Presence::Remembered { references: &self.references, uniform: self.uniform }
    }

    /// Every unit that isn't in the kernel as it should be, without those that have to wait.
    fn changes(&self, context: &Arc<Context>, now: Instant) -> Vec<Change> {
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
    fn hold_back(&mut self, context: &Context, group: &mut Vec<Change>, now: Instant) {
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

    /// Carries the order of pools over from what is in force.
    fn place(&self, group: &mut [Change], read_back: &[C::Object]) {
        for change in group {
            let Some(after) = &mut change.after else { continue };
            if change.before.as_ref().is_some_and(|acked| Arc::ptr_eq(&acked.unit, after)) {
                continue;
            }
            let before = match &change.before {
                Some(acked) => Before::Unit(&acked.unit),
                None if read_back.is_empty() => Before::Nothing,
                None => Before::Objects(read_back),
            };
            self.compile.place(Arc::make_mut(after), before);
        }
    }

    fn commit_changes(
        &mut self,
        context: &Arc<Context>,
        group: &[Change],
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        let (before, after) = self.compile_group(context, group);
        let batch = difference(before, after, &self.remembered());
        if !batch.is_empty() {
            self.kernel.commit(&batch)?;
        }
        outcome.ops += batch.len();
        for change in group {
            self.acknowledge(context, change, outcome);
        }
        Ok(())
    }

    fn compile_group(&self, context: &Context, group: &[Change]) -> (Vec<C::Object>, Vec<C::Object>) {
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
        refusals: Vec<(Op, usize, std::io::Error)>,
        now: Instant,
    ) -> Vec<Vec<Change>> {
        let (before, after) = self.compile_group(context, &group);
        let batch = difference(before, after, &self.remembered());
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

    // --- the long way: from what the kernel holds to the whole target

    fn sync_all(
        &mut self,
        context: &Arc<Context>,
        now: Instant,
        purpose: Purpose,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        outcome.full = true;
        let mut postponed = BTreeSet::new();
        let mut drifted = false;
        loop {
            let mut actual = self.kernel.read_back(&Extent::All)?;
            actual.sort_unstable();
            let mut group = self.changes(context, now);
            self.hold_back(context, &mut group, now);
            group.retain(|change| !postponed.contains(&change.id));
            self.place(&mut group, &actual);
            let spare = actual.iter().filter(|object| object.spare()).cloned().collect();
            let batch = self.full_batch(context, &group, actual);
            let foreign = if purpose == Purpose::Repair { self.drift_in(context, &group, &batch) } else { Vec::new() };
            match if batch.is_empty() { Ok(()) } else { self.kernel.commit(&batch) } {
                Ok(()) => {
                    outcome.ops += batch.len();
                    self.count_repairs(foreign, now, outcome);
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
        if postponed.is_empty() { Ok(()) } else { self.sync_changes(context, now, outcome) }
    }

    /// What makes the kernel's objects those of the group and of every unit that stays as it is. What a unit that has
    /// to wait wants is left as it is found.
    fn full_batch(&self, context: &Context, group: &[Change], actual: Vec<C::Object>) -> BatchOf<C> {
        let changing: BTreeSet<&UnitId> = group.iter().map(|change| &change.id).collect();
        let mut target = Vec::with_capacity(actual.len());
        for change in group {
            if let Some(unit) = &change.after {
                self.compile.compile(context, unit, &mut target);
            }
        }
        let staying = self.acked.iter().filter(|(id, _)| !changing.contains(id)).map(|(_, acked)| acked);
        self.compile_acked(context, staying, &mut target);
        let mut batch = difference(actual, target, &Presence::ReadBack);
        let protected = self.wanted_by_waiting(context, &changing);
        if !protected.is_empty() {
            batch.delete.retain(|object| !protected.contains(&object.key()));
        }
        batch
    }

    /// The objects of units as they were accepted. Where one of an earlier context shares an object with one of this
    /// context, the object is this context's.
    fn compile_acked<'a>(
        &self,
        context: &Context,
        units: impl Iterator<Item = &'a Acked>,
        target: &mut Vec<C::Object>,
    ) {
        let mut outdated = Vec::new();
        for acked in units {
            let out = if self.outdated && *acked.context != *context { &mut outdated } else { &mut *target };
            self.compile.compile(&acked.context, &acked.unit, out);
        }
        if !outdated.is_empty() {
            let shared: HashSet<KeyOf<C>> = target.iter().filter(|object| object.shared()).map(Object::key).collect();
            target.extend(outdated.into_iter().filter(|object| !object.shared() || !shared.contains(&object.key())));
        }
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
        let own = difference(before, after, &self.remembered());
        let own: HashSet<KeyOf<C>> = keys(&own).collect();
        keys(batch).filter(|key| !own.contains(key)).collect()
    }

    /// After a full batch the kernel holds exactly the target, and the spare parts that were there.
    fn adopt(&mut self, context: &Arc<Context>, group: &[Change], spare: Vec<C::Object>, outcome: &mut Outcome) {
        for change in group {
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
        refusals: Vec<(Op, usize, std::io::Error)>,
        postponed: &mut BTreeSet<UnitId>,
        now: Instant,
    ) -> Result<(), CommitError> {
        let mut refused = owners(&self.compile, context, group, batch, &refusals);
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

    // --- drift

    fn mend(&mut self, context: &Arc<Context>, now: Instant, outcome: &mut Outcome) -> Result<(), CommitError> {
        if self.rivals.holds(&None, now) {
            return Ok(());
        }
        let Some(drift) = self.drift.clone() else { return Ok(()) };
        outcome.worked = true;
        match drift {
            Extent::All => self.sync_all(context, now, Purpose::Repair, outcome),
            Extent::Keys(keys) => {
                let keys: HashSet<KeyOf<C>> =
                    keys.into_iter().filter(|key| !self.rivals.holds(&Some(key.clone()), now)).collect();
                self.mend_keys(context, keys, now, outcome)
            }
        }
    }

    fn mend_keys(
        &mut self,
        context: &Arc<Context>,
        keys: HashSet<KeyOf<C>>,
        now: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        if !keys.is_empty() {
            self.references.forget_parked(keys.iter());
            let actual = self.kernel.read_back(&Extent::Keys(keys.iter().cloned().collect()))?;
            let mut target = Vec::new();
            self.compile_acked(context, self.acked.values(), &mut target);
            target.retain(|object| keys.contains(&object.key()));
            let batch = difference(actual, target, &Presence::ReadBack);
            let foreign = self::keys(&batch).collect();
            match if batch.is_empty() { Ok(()) } else { self.kernel.commit(&batch) } {
                Ok(()) => {
                    outcome.ops += batch.len();
                    self.count_repairs(foreign, now, outcome);
                }
                // More is damaged than these keys, or what was accepted before is refused now.
                Err(CommitError::Drifted { .. } | CommitError::Refused(_)) => {
                    return self.sync_all(context, now, Purpose::Repair, outcome);
                }
                Err(error @ (CommitError::Busy(_) | CommitError::Unusable(_))) => return Err(error),
            }
        }
        self.drift = None;
        Ok(())
    }

    fn count_repairs(&mut self, keys: Vec<KeyOf<C>>, now: Instant, outcome: &mut Outcome) {
        outcome.repairs += keys.len();
        let room = Outcome::NAMED.saturating_sub(outcome.repaired.len());
        outcome.repaired.extend(keys.iter().take(room).map(ToString::to_string));
        if keys.len() > NAMED_REPAIRS {
            if self.rivals.repaired(None, now) {
                outcome.contested.push("everything".to_owned());
            }
            return;
        }
        for key in keys {
            let name = key.to_string();
            if self.rivals.repaired(Some(key), now) {
                outcome.contested.push(name);
            }
        }
    }

    fn found(&mut self, drift: Extent<KeyOf<C>>) {
        self.drift = Some(match (self.drift.take(), drift) {
            (Some(Extent::All), _) | (_, Extent::All) => Extent::All,
            (Some(Extent::Keys(mut known)), Extent::Keys(more)) => {
                known.extend(more);
                Extent::Keys(known)
            }
            (None, Extent::Keys(keys)) => Extent::Keys(keys),
        });
    }

    /// Objects that were left to a rival and whose time has come.
    fn reclaim(&mut self, now: Instant) {
        for key in self.rivals.due(now) {
            self.found(key.map_or(Extent::All, |key| Extent::Keys(vec![key])));
        }
    }
}

impl<C, K> SyncEngine for Engine<C, K>
where
    C: Compile + Send,
    C::Object: Send,
    KeyOf<C>: Send,
    K: Kernel<C::Object> + Send,
{
    fn offer(&mut self, delta: Delta) {
        if let Some(context) = delta.context
            && self.context.as_deref() != Some(&*context)
        {
            self.context = Some(context);
            self.outdated = true;
            self.quarantine.release_all();
        }
        for (id, unit) in delta.units {
            self.quarantine.release(&id);
            self.pending.insert(id, unit);
        }
    }

    fn sync(&mut self, now: Instant) -> Outcome {
        self.turn(now, |engine, context, outcome| engine.sync_pending(context, now, outcome))
    }

    fn repair(&mut self, now: Instant) -> Outcome {
        self.turn(now, |engine, context, outcome| {
            outcome.worked = true;
            engine.sync_all(context, now, Purpose::Repair, outcome)
        })
    }

    fn tend(&mut self, now: Instant) -> Outcome {
        self.turn(now, |engine, context, outcome| {
            if engine.stage != Stage::Adopted {
                return engine.sync_pending(context, now, outcome);
            }
            let tended = engine.kernel.tend(now)?;
            engine.wake = tended.wake;
            if let Some(drift) = tended.drift {
                engine.found(drift);
            }
            engine.reclaim(now);
            engine.mend(context, now, outcome)?;
            engine.sync_changes(context, now, outcome)
        })
    }

    fn plan(&mut self) -> Result<Batch<String>, CommitError> {
        self.prepared()?;
        let mut actual = self.kernel.read_back(&Extent::All)?;
        actual.sort_unstable();
        let Some(context) = self.context.clone() else { return Ok(Batch::default()) };
        let mut group: Vec<Change> = self
            .pending
            .iter()
            .map(|(id, unit)| Change { id: id.clone(), before: self.acked.get(id).cloned(), after: unit.clone() })
            .collect();
        self.place(&mut group, &actual);
        let batch = self.full_batch(&context, &group, actual);
        let print = |objects: Vec<C::Object>| objects.iter().map(ToString::to_string).collect();
        Ok(Batch { create: print(batch.create), replace: print(batch.replace), delete: print(batch.delete) })
    }

    fn retire(mut self: Box<Self>) -> Result<(), Vec<CommitError>> {
        let mut delete = self.kernel.read_back(&Extent::All).map_err(|error| vec![error])?;
        delete.sort_by_key(|object| std::cmp::Reverse(object.rank()));
        if delete.is_empty() {
            return Ok(());
        }
        self.kernel.commit(&Batch { delete, ..Batch::default() }).map_err(|error| vec![error])
    }
}

/// The keys of all operations of a batch.
fn keys<O: Object>(batch: &Batch<O>) -> impl Iterator<Item = O::Key> {
    batch.create.iter().chain(&batch.replace).chain(&batch.delete).map(Object::key)
}
