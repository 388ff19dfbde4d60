//! The engine that all modes share: keeps the pending and the acknowledged state of each unit, and commits the difference.
//!
//! | Result of a commit | Reaction of the engine |
//! |---|---|
//! | ok | the units are acknowledged and no longer pending |
//! | drifted | reads back the pending units' objects; again: all objects; again: commits every difference; then as busy |
//! | refused | the units of the named objects keep their last good state and wait; the others go on |
//! | no resources | the groups behind are tried, then as busy; again: split the group, until the unit that is too large or whose object is in use waits alone |
//! | busy | everything stays pending; again after a while |
//! | unusable | as busy, more slowly; at start the caller decides whether to go on without this family |
//!
//! Pending work is dropped only when it is acknowledged. After a commit that failed half-way the engine reads back what it
//! was about before it commits anything else.

mod blame;
mod candidates;
mod changes;
mod conflict;
mod drift;
mod full;
mod owners;
mod placement;
mod plan;
mod portions;
mod trace;
mod unverified;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use ferry_model::Context;

use self::candidates::DriftCandidates;
use self::unverified::Unverified;
use crate::contested::ContestedKeys;
use crate::diff::References;
use crate::quarantine::Quarantine;
use crate::{
    Acked, Batch, CommitError, Compile, Delta, Extent, Kernel, Next, Object, Outcome, Plan, Served, SyncEngine, Unit,
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
    contested_keys: ContestedKeys<KeyOf<C>>,
    stage: StartStage,
    /// true if a base is in force although this engine's is not acknowledged: an earlier run's, or one that the kernel has
    /// rejected since; `None` until the first full sync
    found_base: Option<bool>,
    /// keys with possible foreign changes
    candidates: DriftCandidates<KeyOf<C>>,
    /// objects that commits that failed half-way may have left in force
    unverified: Unverified<KeyOf<C>>,
    /// acknowledged units follow the order found in the kernel, and the operations that this requires are not committed yet
    ahead: bool,
    /// largest number of new units in one commit of a first load
    portion: usize,
    /// units set apart, and groups passed over, for want of resources since the last success of this pass
    starved: usize,
    /// passes that failed in a row
    failures: u32,
}

type KeyOf<C> = <<C as Compile>::Object as Object>::Key;
type BatchOf<C> = Batch<<C as Compile>::Object>;

/// Progress of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartStage {
    /// the kernel half is not prepared
    New,
    /// the actual state is unknown
    Prepared,
    /// the kernel holds what is acknowledged
    Adopted,
}

/// Why everything is compared with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// differences are an earlier run's
    Adopt,
    /// differences are foreign changes
    Repair,
    /// as a repair, but our own changes have just failed and are left out
    Rescue,
    /// own changes conflict with foreign ones: the own ones come first, other differences are compared again later
    Conflict,
}

/// Waits after a failed pass: first, longest, and the one while the mode can't be used.
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
            contested_keys: ContestedKeys::default(),
            stage: StartStage::New,
            found_base: None,
            candidates: DriftCandidates::new(C::REPAIR_PAUSE),
            unverified: Unverified::default(),
            ahead: false,
            portion: C::PORTION,
            starved: 0,
            failures: 0,
        }
    }

    /// With another number of new units that go in together, so that a test needs few.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_portion(self, portion: usize) -> Self {
        Self { portion, ..self }
    }

    /// The kernel half.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// The kernel half, to change (tests inject faults there).
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// The acknowledged state by unit.
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

    // --- sync passes

    /// Runs one pass and returns its outcome.
    fn pass(
        &mut self,
        now: Instant,
        work: impl FnOnce(&mut Self, &Arc<Context>, &mut Outcome) -> Result<(), CommitError>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let Some(context) = self.context.clone() else { return outcome };
        self.starved = 0;
        let result = self.prepared().and_then(|()| work(self, &context, &mut outcome));
        self.note_outdated(&context);
        match result {
            Ok(()) => {
                self.ahead = false;
                self.failures = 0;
            }
            Err(error) => {
                if std::mem::take(&mut self.ahead) {
                    self.candidates.check(Extent::All, now);
                }
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
        if self.stage == StartStage::New {
            self.kernel.prepare()?;
            self.stage = StartStage::Prepared;
        }
        Ok(())
    }

    fn retry_after(&self, error: &CommitError) -> Duration {
        match error {
            CommitError::Unusable(_) => UNUSABLE_RETRY,
            CommitError::Drifted { .. }
            | CommitError::Refused(_)
            | CommitError::Resources(_)
            | CommitError::Busy(_) => RETRY.saturating_mul(1 << self.failures.min(16)).min(LONGEST_RETRY),
        }
    }

    fn next(&mut self, now: Instant) -> Next {
        // A table contested as a whole is compared when its pause ends.
        let candidates = if self.contested_keys.holds(&None, now) { None } else { self.candidates.wake() };
        let wakes = [self.kernel.wake(now), self.quarantine.wake(now), self.contested_keys.wake(), candidates];
        match wakes.into_iter().flatten().min() {
            Some(wake) => Next::RetryAfter(wake.saturating_duration_since(now)),
            None => Next::Idle,
        }
    }

    fn sync_pending(&mut self, context: &Arc<Context>, now: Instant, outcome: &mut Outcome) -> Result<(), CommitError> {
        if self.stage != StartStage::Adopted {
            outcome.worked = true;
            return self.sync_all(context, now, Purpose::Adopt, outcome);
        }
        self.sync_changes(context, now, outcome)
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
        self.pass(now, |engine, context, outcome| engine.sync_pending(context, now, outcome))
    }

    fn repair(&mut self, now: Instant) -> Outcome {
        self.pass(now, |engine, context, outcome| {
            engine.candidates.check(Extent::All, now);
            if engine.contested_keys.holds(&None, now) {
                // Nothing is compared now, but what is pending is ours.
                return engine.sync_pending(context, now, outcome);
            }
            engine.mend(context, now, Purpose::Repair, outcome)
        })
    }

    fn tend(&mut self, now: Instant) -> Outcome {
        self.pass(now, |engine, context, outcome| {
            if engine.stage != StartStage::Adopted {
                return engine.sync_pending(context, now, outcome);
            }
            // If the plane's check of the kernel fails, pending changes are committed nevertheless.
            let tended = engine.kernel.tend(now).map(|drift| engine.candidates.touched(drift, now));
            engine.reclaim(now);
            // Pending changes first: another proxy may have just made them too.
            let changed = engine.sync_changes(context, now, outcome);
            let purpose = if changed.is_ok() { Purpose::Repair } else { Purpose::Rescue };
            changed.and(engine.mend(context, now, purpose, outcome)).and(tended)
        })
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.kernel.wake_by(waker);
    }

    fn each_unit(&self, see: &mut dyn FnMut(&Unit)) {
        self.acked.values().for_each(|acked| see(&acked.unit));
    }

    fn each_pending(&self, see: &mut dyn FnMut(&UnitId)) {
        self.pending.keys().for_each(see);
    }

    fn plan(&mut self) -> Result<Plan, CommitError> {
        let mut actual = self.kernel.read_back(&Extent::All)?;
        actual.sort_unstable();
        let Some(context) = self.context.clone() else { return Ok(Plan::default()) };
        let replaced = self.adopt_order(&actual, None);
        self.place_pending(&actual, None);
        let group = self.all_changes(&context);
        let batch = self.full_batch(&context, &group, actual, &mut Vec::new());
        let plan = self.attributed(&context, &group, &batch);
        for (id, unit) in replaced {
            if let Some(acked) = self.acked.get_mut(&id) {
                acked.unit = unit;
            }
        }
        self.ahead = false;
        Ok(plan)
    }

    fn retire(mut self: Box<Self>, served: &mut Vec<Served>) -> Result<usize, CommitError> {
        match self.remove_all(served) {
            // A foreign change came between.
            Err(CommitError::Drifted { .. }) => self.remove_all(served),
            result => result,
        }
    }
}

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    /// Deletes all objects and returns their number. `served` is filled before the commit, since some may be gone after an error.
    fn remove_all(&mut self, served: &mut Vec<Served>) -> Result<usize, CommitError> {
        let mut delete = self.kernel.read_back(&Extent::All)?;
        delete.retain(|object| !object.stays());
        delete.sort_by_key(|object| std::cmp::Reverse(object.rank()));
        served.extend(delete.iter().filter_map(Object::serves));
        served.extend(self.kernel.foreign_serves());
        let objects = delete.len();
        if objects > 0 {
            self.kernel.commit(&Batch { delete, ..Batch::default() }).map_err(|failure| failure.error)?;
        }
        Ok(objects)
    }
}

/// The keys of all operations of a batch.
fn keys<O: Object>(batch: &Batch<O>) -> impl Iterator<Item = O::Key> {
    batch.operations().map(|(_, _, object)| object.key())
}

/// The keys of the batch's created and replaced objects that not even clean-up removes.
fn staying<O: Object>(batch: &Batch<O>) -> HashSet<O::Key> {
    batch.create.iter().chain(&batch.replace).filter(|object| object.stays()).map(Object::key).collect()
}

/// Takes the operations on these keys out of a batch.
fn leave_out<O: Object>(batch: &mut Batch<O>, keys: &HashSet<O::Key>) {
    if keys.is_empty() {
        return;
    }
    for objects in [&mut batch.create, &mut batch.replace, &mut batch.delete] {
        objects.retain(|object| !keys.contains(&object.key()));
    }
}
