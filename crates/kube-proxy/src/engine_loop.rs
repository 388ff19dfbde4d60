//! Drives one engine: takes changes from its mailbox, syncs, and lets it look after the kernel in between.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ferry_api::object::Family;
use ferry_plane::mailbox::{Receiver, Taken};
use ferry_plane::{Delta, Next, Outcome, SyncEngine, UnitId};

use crate::flows::Witness;
use crate::health::Pulse;
use crate::report::{Report, Reports, Turn};

/// How often an engine looks after the kernel when nothing happens.
const TEND: Duration = Duration::from_millis(250);
/// How often everything is compared with the kernel, whatever notifications say.
const FULL: Duration = Duration::from_secs(60 * 60);
/// A minSyncPeriod up to this, upstream's default, is no limit to turns that take microseconds.
const UNLIMITED: Duration = Duration::from_secs(1);
/// A turn that takes longer is followed by a pause as long as itself, minSyncPeriod at most, so that a stream of changes takes
/// no more than half of a core, and others have their chance at the lock of iptables.
const SLOW: Duration = Duration::from_millis(10);
/// In a paced mode so many syncs in a row are made at once, before they come at their interval.
const BURST: u32 = 5;
/// The first turn, and one with so many units, leaves memory behind that is worth giving back.
const LARGE: usize = 2048;

/// What the loop of one engine needs.
#[derive(Debug)]
pub struct Setup {
    /// the engine's family
    pub family: Family,
    /// the least time between two syncs, as configured; up to 1 s it is no limit
    pub min_sync_period: Duration,
    /// a sync costs as much however little it changes, so that those of a stream of changes come at half of minSyncPeriod
    pub paced: bool,
    /// where changes come from
    pub mailbox: Receiver,
    /// health
    pub pulse: Arc<Pulse>,
    /// metrics and logs
    pub reports: Reports,
    /// the cleaner of the connection table
    pub flows: Witness,
}

/// The loop's memory.
struct Loop {
    setup: Setup,
    engine: Box<dyn SyncEngine>,
    agenda: Agenda,
    /// not offered yet, since it isn't time for a sync
    waiting: Option<Delta>,
    /// handed over and not acknowledged
    pending: BTreeSet<UnitId>,
    /// what was offered is not made, or it isn't known whether what is in force is right: the last turn failed, or left the
    /// base out
    unfinished: bool,
    /// nothing has been synced yet
    first: bool,
    /// a turn left memory behind; what others still held then is free by the next look after the kernel
    littered: bool,
}

/// When to do what.
#[derive(Debug)]
struct Agenda {
    /// least time between two syncs
    distance: Duration,
    /// longest pause after a slow one
    longest_pause: Duration,
    /// from the start of one sync to that of the next, in the long run; zero: no limit
    interval: Duration,
    /// when the syncs so far would have been allowed had each waited for its interval
    spent: Option<Instant>,
    /// pause after the last one
    pause: Duration,
    last_sync: Option<Instant>,
    /// changes were offered: sync
    sync: Option<Instant>,
    /// look after the kernel
    tend: Instant,
    /// compare everything
    repair: Instant,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Sync,
    Tend,
    Repair,
    Nothing,
}

/// Runs until the mailbox closes.
pub fn run(setup: Setup, engine: Box<dyn SyncEngine>) {
    let now = Instant::now();
    setup.pulse.update(now);
    Loop::new(setup, engine, now).run();
}

// === impl Loop ===

impl Loop {
    fn new(setup: Setup, engine: Box<dyn SyncEngine>, now: Instant) -> Self {
        let agenda = Agenda::new(setup.min_sync_period, setup.paced, now);
        Self {
            setup,
            engine,
            agenda,
            waiting: None,
            pending: BTreeSet::new(),
            unfinished: false,
            first: true,
            littered: false,
        }
    }

    fn run(mut self) {
        loop {
            let patience = self.agenda.patience(Instant::now());
            match self.setup.mailbox.take(Some(patience)) {
                Taken::Closed => return,
                Taken::Delta(delta) => self.accept(delta),
                Taken::Timeout => {}
            }
            // A stream of changes must not keep the engine from looking after the kernel.
            while self.step() {}
        }
    }

    fn accept(&mut self, delta: Delta) {
        let now = Instant::now();
        self.setup.pulse.take(now);
        self.pending.extend(delta.units.keys().cloned());
        match &mut self.waiting {
            Some(waiting) => waiting.merge(delta),
            None => self.waiting = Some(delta),
        }
        self.agenda.offered(now);
    }

    /// Does the most urgent thing; whether there was one.
    fn step(&mut self) -> bool {
        let now = Instant::now();
        let step = self.agenda.step(now);
        if matches!(step, Step::Sync | Step::Repair)
            && let Some(delta) = self.waiting.take()
        {
            self.unfinished = true;
            self.engine.offer(delta);
        }
        let turn: fn(&mut (dyn SyncEngine + 'static), Instant) -> Outcome = match step {
            Step::Nothing => return false,
            Step::Sync => <dyn SyncEngine>::sync,
            Step::Tend => <dyn SyncEngine>::tend,
            Step::Repair => <dyn SyncEngine>::repair,
        };
        self.setup.flows.begin();
        let mut outcome = turn(&mut *self.engine, now);
        self.setup.flows.end(&outcome, &*self.engine);
        let after = Instant::now();
        outcome.elapsed = after.saturating_duration_since(now);
        self.agenda.done(step, &outcome, after);
        for acknowledged in &outcome.acked {
            self.pending.remove(&acknowledged.id);
        }
        self.tell(step, outcome, after);
        if step == Step::Tend && std::mem::take(&mut self.littered) {
            ferry_kernel::memory::trim();
        }
        true
    }

    fn tell(&mut self, step: Step, outcome: Outcome, now: Instant) {
        // Tending also tries again what failed.
        let synced = step != Step::Tend || self.unfinished;
        // Without the base nothing serves, whatever else is in force; and what can't be looked at may be gone.
        let baseless = outcome.quarantined.iter().any(|(unit, _)| *unit == UnitId::Base);
        let bad = baseless || outcome.error.is_some();
        if bad {
            self.setup.pulse.take(now);
        } else if synced && self.waiting.is_none() {
            self.setup.pulse.update(now);
        }
        // That what failed works again is news, even if there is nothing to do.
        let recovered = std::mem::replace(&mut self.unfinished, bad) && !bad;
        if !outcome.worked && outcome.error.is_none() && step != Step::Sync && !recovered {
            return;
        }
        let large = outcome.acked.len() >= LARGE || (self.first && !outcome.acked.is_empty());
        self.first &= outcome.acked.is_empty();
        let settled = self.waiting.is_none() && settled(&self.pending, &outcome);
        let (family, pending, ended) = (self.setup.family, self.pending.len(), SystemTime::now());
        let turn = Turn { family, outcome, pending, synced, settled, ended };
        self.setup.reports.send(Report::Turn(Box::new(turn)));
        if large {
            ferry_kernel::memory::trim();
            self.littered = true;
        }
    }
}

/// Whether nothing is left to do after this turn but what the kernel refuses; the base must be in force.
fn settled(pending: &BTreeSet<UnitId>, outcome: &Outcome) -> bool {
    let refused: BTreeSet<&UnitId> = outcome.quarantined.iter().map(|(unit, _)| unit).collect();
    let waits = |unit: &UnitId| *unit != UnitId::Base && refused.contains(unit);
    outcome.error.is_none() && pending.iter().all(waits)
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
            tend: now + TEND,
            repair: now + FULL,
        }
    }

    /// How long nothing is due.
    fn patience(&self, now: Instant) -> Duration {
        let next = self.sync.into_iter().chain([self.tend, self.repair]).min();
        next.map_or(TEND, |next| next.saturating_duration_since(now))
    }

    /// There is something to sync.
    fn offered(&mut self, now: Instant) {
        let distance = self.distance.max(self.pause);
        let credit = self.interval.saturating_mul(BURST - 1);
        let paced = self.spent.and_then(|spent| spent.checked_sub(credit));
        let rested = self.last_sync.map(|last| last + distance);
        let earliest = rested.into_iter().chain(paced).fold(now, Instant::max);
        self.sync = Some(self.sync.map_or(earliest, |known| known.min(earliest)));
    }

    fn step(&self, now: Instant) -> Step {
        if self.repair <= now {
            Step::Repair
        } else if self.sync.is_some_and(|due| due <= now) {
            Step::Sync
        } else if self.tend <= now {
            Step::Tend
        } else {
            Step::Nothing
        }
    }

    fn done(&mut self, step: Step, outcome: &Outcome, now: Instant) {
        match step {
            // A repair brings what is pending, too.
            Step::Sync | Step::Repair => {
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
            Step::Tend | Step::Nothing => {}
        }
        if step == Step::Repair {
            self.repair = now + FULL;
        }
        match outcome.next {
            // After an error looking after the kernel is the next try, so it waits as long as the engine asks.
            Next::RetryAfter(pause) if outcome.error.is_some() => {
                self.tend = now + pause;
            }
            Next::RetryAfter(pause) => self.plan_tend(step, now, pause.min(TEND)),
            Next::Idle => self.plan_tend(step, now, TEND),
        }
    }

    /// A sync doesn't put the next look off, or else many syncs would put it off for ever.
    fn plan_tend(&mut self, step: Step, now: Instant, pause: Duration) {
        let next = now + pause;
        self.tend = if step == Step::Tend || self.tend > next { next } else { self.tend };
    }
}

#[cfg(test)]
mod tests;
