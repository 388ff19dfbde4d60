//! Drives one engine: a sync when its mailbox has changes, a check of the kernel (foreign changes, retries) when it is woken or
//! at a time that it requested, a full sync once an hour. Otherwise the thread sleeps.
//!
//! Changes stay in the mailbox until a sync is due. Those that the engine has taken and that are not in force are pending in the
//! engine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ferry_api::object::Family;
use ferry_plane::mailbox::{Arrival, Receiver};
use ferry_plane::{Next, Outcome, SyncEngine, UnitId};

use crate::flows::FlowObserver;
use crate::health::Pulse;
use crate::platform;
use crate::report::{Report, Reports, SyncPass};

/// Interval of full syncs, whatever the notifications.
const FULL: Duration = Duration::from_secs(60 * 60);
/// A minSyncPeriod up to this, upstream's default, is no limit to passes that take microseconds.
const UNLIMITED: Duration = Duration::from_secs(1);
/// A pass that takes longer is followed by a pause as long as itself, minSyncPeriod at most, so that a stream of changes takes
/// no more than half of a core, and others have their chance at the lock of iptables.
const SLOW: Duration = Duration::from_millis(10);
/// Syncs that a paced mode makes without delay, before the interval applies.
const BURST: u32 = 5;
/// The first pass, and one with this number of units, leaves free memory behind that is worth trimming.
const LARGE: usize = 2048;
/// Delay after such a pass until other threads have released their part of the memory.
const LITTER: Duration = Duration::from_millis(250);

/// The inputs of the loop of one engine.
#[derive(Debug)]
pub struct EngineLoopSetup {
    /// the engine's family
    pub family: Family,
    /// the least time between two syncs, as configured; up to 1 s it is no limit
    pub min_sync_period: Duration,
    /// the cost of a sync doesn't depend on the number of changes, so that under a stream of changes syncs are made at half of
    /// minSyncPeriod
    pub paced: bool,
    /// source of changes
    pub mailbox: Receiver,
    /// health
    pub pulse: Arc<Pulse>,
    /// metrics and logs
    pub reports: Reports,
    /// the cleaner of the connection table
    pub flows: FlowObserver,
}

/// State of the loop.
struct Loop {
    setup: EngineLoopSetup,
    engine: Box<dyn SyncEngine>,
    agenda: Agenda,
    /// pending changes are not in force, or the actual state is uncertain: the last pass failed, or left the base out
    unfinished: bool,
    /// nothing has been synced yet
    first: bool,
}

/// The times of the next steps.
#[derive(Debug)]
struct Agenda {
    /// least time between two syncs
    distance: Duration,
    /// longest pause after a slow one
    longest_pause: Duration,
    /// long-term average from the start of one sync to that of the next; zero: no limit
    interval: Duration,
    /// the time up to which the syncs so far have used their intervals
    spent: Option<Instant>,
    /// pause after the last one
    pause: Duration,
    last_sync: Option<Instant>,
    /// changes were offered: sync
    sync: Option<Instant>,
    /// check the kernel
    tend: Option<Instant>,
    /// the last pass failed: the next check is the retry, and no wake brings it forward
    failing: bool,
    /// full sync
    repair: Instant,
    /// trim the heap
    trim: Option<Instant>,
}

/// The step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineStep {
    Sync,
    Tend,
    Repair,
    Trim,
    Nothing,
}

/// Runs until the mailbox closes.
pub fn run(setup: EngineLoopSetup, engine: Box<dyn SyncEngine>) {
    let now = Instant::now();
    setup.pulse.update(now);
    Loop::new(setup, engine, now).run();
}

// === impl Loop ===

impl Loop {
    fn new(setup: EngineLoopSetup, engine: Box<dyn SyncEngine>, now: Instant) -> Self {
        let agenda = Agenda::new(setup.min_sync_period, setup.paced, now);
        Self { setup, engine, agenda, unfinished: false, first: true }
    }

    fn run(mut self) {
        self.engine.wake_by(&self.setup.mailbox.waker());
        self.setup.flows.wake_by(self.setup.mailbox.waker());
        loop {
            let patience = self.agenda.patience(Instant::now());
            match self.setup.mailbox.wait(Some(patience)) {
                Arrival::Closed => return,
                Arrival::Delta => self.agenda.offered(Instant::now()),
                Arrival::Woken => self.agenda.woken(Instant::now()),
                Arrival::Timeout => {}
            }
            // A stream of changes must not delay the engine's checks of the kernel.
            while self.step() {}
        }
    }

    /// Executes the most urgent step; false if none is due.
    fn step(&mut self) -> bool {
        let now = Instant::now();
        let step = self.agenda.step(now);
        if matches!(step, EngineStep::Sync | EngineStep::Repair)
            && let Some(delta) = self.setup.mailbox.take()
        {
            self.setup.pulse.take(now);
            self.unfinished = true;
            self.engine.offer(delta);
        }
        let pass: fn(&mut (dyn SyncEngine + 'static), Instant) -> Outcome = match step {
            EngineStep::Nothing => return false,
            EngineStep::Trim => {
                self.agenda.trim = None;
                platform::trim_memory();
                return true;
            }
            EngineStep::Sync => <dyn SyncEngine>::sync,
            EngineStep::Tend => <dyn SyncEngine>::tend,
            EngineStep::Repair => <dyn SyncEngine>::repair,
        };
        self.setup.flows.begin();
        let mut outcome = pass(&mut *self.engine, now);
        self.setup.flows.end(&outcome, &*self.engine);
        let after = Instant::now();
        outcome.elapsed = after.saturating_duration_since(now);
        self.agenda.done(step, &outcome, after);
        self.report(step, outcome, after);
        true
    }

    fn report(&mut self, step: EngineStep, outcome: Outcome, now: Instant) {
        // Tending also tries again what failed.
        let synced = step != EngineStep::Tend || self.unfinished;
        // Without the base nothing serves, whatever else is in force; and objects that can't be read may be gone.
        let baseless = outcome.quarantined.iter().any(|(unit, _)| *unit == UnitId::Base);
        let bad = baseless || outcome.error.is_some();
        if bad {
            self.setup.pulse.take(now);
        } else if synced && self.setup.mailbox.waiting().is_none() {
            self.setup.pulse.update(now);
        }
        // A recovery is reported, even without work.
        let recovered = std::mem::replace(&mut self.unfinished, bad) && !bad;
        if !outcome.worked && outcome.error.is_none() && step != EngineStep::Sync && !recovered {
            return;
        }
        let large = outcome.acked.len() >= LARGE || (self.first && !outcome.acked.is_empty());
        self.first &= outcome.acked.is_empty();
        let (offered, engine_settled) = pending(&*self.engine, &outcome);
        let waiting = self.setup.mailbox.waiting();
        let (settled, pending) = (waiting.is_none() && engine_settled, offered + waiting.unwrap_or_default());
        let (family, ended) = (self.setup.family, SystemTime::now());
        let pass = SyncPass { family, outcome, pending, synced, settled, ended };
        self.setup.reports.send(Report::SyncPass(Box::new(pass)));
        if large {
            platform::trim_memory();
            self.agenda.trim = Some(now + LITTER);
        }
    }
}

/// Returns the number of pending units, and true if this pass left no work except for units that the kernel rejects; the base
/// must be in force.
fn pending(engine: &dyn SyncEngine, outcome: &Outcome) -> (usize, bool) {
    let refused: BTreeSet<&UnitId> = outcome.quarantined.iter().map(|(unit, _)| unit).collect();
    let (mut units, mut settled) = (0, outcome.error.is_none());
    engine.each_pending(&mut |unit| {
        units += 1;
        settled &= *unit != UnitId::Base && refused.contains(unit);
    });
    (units, settled)
}

// === impl Agenda ===

impl Agenda {
    fn new(min_sync_period: Duration, paced: bool, now: Instant) -> Self {
        let distance = if min_sync_period > UNLIMITED { min_sync_period } else { Duration::ZERO };
        let interval = if paced { min_sync_period / 2 } else { Duration::ZERO };
        Self {
            distance,
            longest_pause: if paced { interval } else { min_sync_period },
            interval,
            spent: None,
            pause: Duration::ZERO,
            last_sync: None,
            sync: None,
            tend: None,
            failing: false,
            repair: now + FULL,
            trim: None,
        }
    }

    /// Time until the next step.
    fn patience(&self, now: Instant) -> Duration {
        let others = [self.sync, self.tend, self.trim];
        others.into_iter().flatten().fold(self.repair, Instant::min).saturating_duration_since(now)
    }

    /// The engine was woken: the kernel has news for it.
    fn woken(&mut self, now: Instant) {
        if !self.failing {
            self.tend = Some(now);
        }
    }

    /// There are changes to sync.
    fn offered(&mut self, now: Instant) {
        let distance = self.distance.max(self.pause);
        let credit = self.interval.saturating_mul(BURST - 1);
        let paced = self.spent.and_then(|spent| spent.checked_sub(credit));
        let rested = self.last_sync.map(|last| last + distance);
        let earliest = rested.into_iter().chain(paced).fold(now, Instant::max);
        self.sync = Some(self.sync.map_or(earliest, |known| known.min(earliest)));
    }

    fn step(&self, now: Instant) -> EngineStep {
        if self.repair <= now {
            EngineStep::Repair
        } else if self.sync.is_some_and(|due| due <= now) {
            EngineStep::Sync
        } else if self.tend.is_some_and(|due| due <= now) {
            EngineStep::Tend
        } else if self.trim.is_some_and(|due| due <= now) {
            EngineStep::Trim
        } else {
            EngineStep::Nothing
        }
    }

    fn done(&mut self, step: EngineStep, outcome: &Outcome, now: Instant) {
        match step {
            // A full sync commits pending changes, too.
            EngineStep::Sync | EngineStep::Repair => {
                self.sync = None;
                self.last_sync = Some(now);
                let slow = outcome.elapsed >= SLOW;
                self.pause = if slow { outcome.elapsed.min(self.longest_pause) } else { Duration::ZERO };
                if outcome.worked {
                    // From its start, so that a sync that takes long doesn't let more changes pile up for the next one.
                    let start = now.checked_sub(outcome.elapsed).unwrap_or(now);
                    self.spent = Some(self.spent.map_or(start, |spent| spent.max(start)) + self.interval);
                }
            }
            EngineStep::Tend | EngineStep::Trim | EngineStep::Nothing => {}
        }
        if step == EngineStep::Repair {
            self.repair = now + FULL;
        }
        let next = match outcome.next {
            Next::RetryAfter(pause) => Some(now + pause),
            Next::Idle => None,
        };
        let was_failing = std::mem::replace(&mut self.failing, outcome.error.is_some());
        self.tend = match step {
            EngineStep::Tend => next,
            _ if self.failing => next,
            // A wake may have been ignored.
            _ if was_failing => Some(now),
            // A sync doesn't delay the next check: many syncs would delay it for ever.
            _ => self.tend.into_iter().chain(next).min(),
        };
    }
}

#[cfg(test)]
mod tests;
