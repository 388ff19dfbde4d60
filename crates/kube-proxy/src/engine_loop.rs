//! Drives one engine: takes changes from its mailbox, syncs, and lets it look after the kernel in between.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_plane::mailbox::{Receiver, Taken};
use ferry_plane::{Delta, Next, Outcome, SyncEngine, UnitId};
use tokio::sync::mpsc::UnboundedSender;

use crate::flows::Witness;
use crate::report::{Pulse, Report, Turn};

/// How often an engine looks after the kernel when nothing happens.
const TEND: Duration = Duration::from_millis(250);
/// How often everything is compared with the kernel, whatever notifications say.
const FULL: Duration = Duration::from_secs(60 * 60);
/// A minSyncPeriod up to this, upstream's default, is no limit to turns that take microseconds.
const UNLIMITED: Duration = Duration::from_secs(1);
/// A turn that takes longer is followed by a pause as long as itself, minSyncPeriod at most, so that a stream of changes takes
/// no more than half of a core, and others have their chance at the lock of iptables.
const SLOW: Duration = Duration::from_millis(10);
/// The first turn, and one with so many units, leaves memory behind that is worth giving back.
const LARGE: usize = 2048;

/// What the loop of one engine needs.
#[derive(Debug)]
pub struct Setup {
    /// the engine's family
    pub family: Family,
    /// the least time between two syncs, as configured; up to 1 s it is no limit
    pub min_sync_period: Duration,
    /// where changes come from
    pub mailbox: Receiver,
    /// health
    pub pulse: Arc<Pulse>,
    /// metrics and logs
    pub reports: UnboundedSender<Report>,
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
    /// the last try to make what was offered failed, or there was none yet
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
    let agenda = Agenda::new(setup.min_sync_period, now);
    Loop {
        setup,
        engine,
        agenda,
        waiting: None,
        pending: BTreeSet::new(),
        unfinished: false,
        first: true,
        littered: false,
    }
    .run();
}

// === impl Loop ===

impl Loop {
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
        // Without the base nothing serves, whatever else is in force.
        let baseless = outcome.quarantined.iter().any(|(unit, _)| *unit == UnitId::Base);
        if baseless {
            self.setup.pulse.take(now);
        } else if outcome.error.is_none() && synced && self.waiting.is_none() {
            self.setup.pulse.update(now);
        }
        self.unfinished &= outcome.error.is_some();
        if !outcome.worked && outcome.error.is_none() && step != Step::Sync {
            return;
        }
        let large = outcome.acked.len() >= LARGE || (self.first && !outcome.acked.is_empty());
        self.first &= outcome.acked.is_empty();
        let settled = self.waiting.is_none() && settled(&self.pending, &outcome);
        let turn = Turn { family: self.setup.family, outcome, pending: self.pending.len(), synced, settled };
        // Without a receiver the program is ending.
        let _ = self.setup.reports.send(Report::Turn(Box::new(turn)));
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
    fn new(min_sync_period: Duration, now: Instant) -> Self {
        let distance = if min_sync_period > UNLIMITED { min_sync_period } else { Duration::ZERO };
        Self {
            distance,
            longest_pause: min_sync_period,
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
        let earliest = self.last_sync.map_or(now, |last| (last + distance).max(now));
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
mod tests {
    use std::io;

    use ferry_plane::{CommitError, ObjectName};

    use super::*;

    fn failed(pause: Duration) -> Outcome {
        let error = Some(Arc::new(CommitError::Busy(io::Error::other("lock"))));
        Outcome { error, next: Next::RetryAfter(pause), ..Outcome::default() }
    }

    #[test]
    fn what_the_kernel_refuses_is_not_waited_for() {
        let (web, mail) = (ObjectName::new("default", "web"), ObjectName::new("default", "mail"));
        let refused = |units: &[UnitId]| {
            let why = || Arc::new(CommitError::Refused(Vec::new()));
            Outcome { quarantined: units.iter().map(|unit| (unit.clone(), why())).collect(), ..Outcome::default() }
        };
        let (web, mail) = (UnitId::Service(web), UnitId::Service(mail));
        let pending = BTreeSet::from([web.clone()]);
        assert!(settled(&BTreeSet::new(), &Outcome::default()));
        assert!(settled(&pending, &refused(&[web.clone(), mail.clone()])));
        assert!(!settled(&pending, &refused(&[mail])));
        assert!(!settled(&BTreeSet::from([UnitId::Base]), &refused(&[UnitId::Base])), "then nothing serves");
        assert!(!settled(&BTreeSet::new(), &failed(TEND)));
        assert!(!settled(&pending, &Outcome::default()));
    }

    #[test]
    fn changes_are_synced_at_once() {
        let start = Instant::now();
        let mut agenda = Agenda::new(UNLIMITED, start);
        assert_eq!(agenda.step(start), Step::Nothing);
        assert_eq!(agenda.patience(start), TEND);
        agenda.offered(start);
        assert_eq!(agenda.step(start), Step::Sync);
        agenda.done(Step::Sync, &Outcome::default(), start);
        assert_eq!(agenda.step(start), Step::Nothing);
        agenda.offered(start);
        assert_eq!(agenda.step(start), Step::Sync);
    }

    #[test]
    fn an_explicit_distance_is_kept() {
        let start = Instant::now();
        let period = Duration::from_secs(5);
        let mut agenda = Agenda::new(period, start);
        agenda.offered(start);
        assert_eq!(agenda.step(start), Step::Sync);
        agenda.done(Step::Sync, &Outcome::default(), start);
        agenda.offered(start + TEND / 2);
        assert_eq!(agenda.step(start + TEND / 2), Step::Nothing);
        assert_eq!(agenda.step(start + TEND), Step::Tend);
        assert_eq!(agenda.step(start + period), Step::Sync);
    }

    #[test]
    fn a_slow_turn_is_followed_by_a_pause() {
        let start = Instant::now();
        let took = |millis| Outcome { elapsed: Duration::from_millis(millis), ..Outcome::default() };
        let pause_after = |period, millis| {
            let mut agenda = Agenda::new(period, start);
            agenda.done(Step::Sync, &took(millis), start);
            agenda.offered(start);
            agenda.sync.unwrap() - start
        };
        for (millis, pause) in [(1, 0), (9, 0), (10, 10), (300, 300), (5_000, 1_000)] {
            assert_eq!(pause_after(UNLIMITED, millis), Duration::from_millis(pause), "{millis} ms");
        }
        assert_eq!(pause_after(Duration::ZERO, 300), Duration::ZERO, "nobody wants a pause");
        assert_eq!(pause_after(Duration::from_secs(5), 300), Duration::from_secs(5));
        // Who comes later than that doesn't wait.
        let mut agenda = Agenda::new(UNLIMITED, start);
        agenda.done(Step::Sync, &took(100), start);
        agenda.offered(start + TEND);
        assert_eq!(agenda.step(start + TEND), Step::Sync);
    }

    #[test]
    fn many_syncs_do_not_put_off_tending() {
        let start = Instant::now();
        let mut agenda = Agenda::new(Duration::ZERO, start);
        let mut now = start;
        let mut tended = 0;
        while now < start + 4 * TEND {
            now += Duration::from_millis(1);
            agenda.offered(now);
            loop {
                let step = agenda.step(now);
                tended += u32::from(step == Step::Tend);
                if step == Step::Nothing {
                    break;
                }
                agenda.done(step, &Outcome::default(), now);
            }
        }
        assert_eq!(tended, 4);
    }

    #[test]
    fn after_an_error_the_next_try_waits() {
        let start = Instant::now();
        let mut agenda = Agenda::new(Duration::ZERO, start);
        agenda.offered(start);
        agenda.done(Step::Sync, &failed(Duration::from_secs(10)), start);
        assert_eq!(agenda.step(start + TEND), Step::Nothing);
        assert_eq!(agenda.patience(start), Duration::from_secs(10));
        assert_eq!(agenda.step(start + Duration::from_secs(10)), Step::Tend);
        agenda.offered(start + TEND);
        assert_eq!(agenda.step(start + TEND), Step::Sync);
    }

    #[test]
    fn a_repair_is_made_once_an_hour() {
        let now = Instant::now();
        let mut agenda = Agenda::new(Duration::ZERO, now);
        assert_eq!(agenda.step(now + FULL), Step::Repair);
        agenda.done(Step::Repair, &Outcome::default(), now + FULL);
        assert_ne!(agenda.step(now + FULL), Step::Repair);
        assert_eq!(agenda.step(now + 2 * FULL), Step::Repair);
    }
}
