use std::io;

use ferry_plane::mailbox::Mailbox;
use ferry_plane::{CommitError, ObjectName};

use super::*;
use crate::flows::FlowReports;
use crate::flows::testing::Holds;

/// A loop without input, and its reports.
fn quiet(now: Instant) -> (Loop, Reports) {
    let reports = Reports::default();
    let told = reports.clone();
    let setup = EngineLoopSetup {
        family: Family::V4,
        min_sync_period: UNLIMITED,
        paced: false,
        mailbox: Mailbox::new().1,
        pulse: Arc::new(Pulse::new(now)),
        reports,
        flows: Arc::new(FlowReports::default()).observer(Family::V4),
    };
    (Loop::new(setup, Box::new(Holds(Vec::new())), now), told)
}

#[test]
fn a_base_that_is_taken_later_is_healthy_then() {
    let start = Instant::now();
    let (mut alone, _told) = quiet(start);
    let after = |seconds| start + Duration::from_secs(seconds);
    let refused = || Outcome {
        quarantined: vec![(UnitId::Base, Arc::new(CommitError::Refused(Vec::new())))],
        ..Outcome::default()
    };
    alone.report(EngineStep::Sync, refused(), after(1));
    alone.report(EngineStep::Tend, refused(), after(2));
    assert_eq!(alone.setup.pulse.waiting(after(9)), Some(Duration::from_secs(8)));
    alone.report(EngineStep::Tend, Outcome::default(), after(10));
    assert_eq!(alone.setup.pulse.waiting(after(11)), None);
}

/// Another program flushes the rules while they can't be written, and no change is handed over.
#[test]
fn what_cannot_be_looked_after_is_unhealthy_until_it_can() {
    let start = Instant::now();
    let (mut alone, told) = quiet(start);
    let after = |seconds| start + Duration::from_secs(seconds);
    alone.report(EngineStep::Sync, Outcome::default(), start);
    alone.report(EngineStep::Tend, Outcome::default(), after(1));
    assert_eq!(alone.setup.pulse.waiting(after(2)), None);
    alone.report(EngineStep::Tend, failed(RETRY), after(3));
    alone.report(EngineStep::Tend, failed(RETRY), after(5));
    assert_eq!(alone.setup.pulse.waiting(after(7)), Some(Duration::from_secs(4)));
    alone.report(EngineStep::Tend, Outcome::default(), after(8));
    alone.report(EngineStep::Tend, Outcome::default(), after(9));
    assert_eq!(alone.setup.pulse.waiting(after(9)), None);
    let mut failures = Vec::new();
    for report in told.take() {
        if let Report::SyncPass(pass) = report {
            failures.push(pass.outcome.error.is_some());
        }
    }
    assert_eq!(failures, [false, true, true, false], "and its recovery is told, once");
}

const RETRY: Duration = Duration::from_millis(250);

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
    let pending = |units: &[&UnitId], outcome| {
        let pending = units.iter().copied().cloned().collect();
        let engine = Counts { waker: Arc::default(), passes: std::sync::mpsc::channel().0, pending };
        super::pending(&engine, &outcome)
    };
    assert_eq!(pending(&[], Outcome::default()), (0, true));
    assert_eq!(pending(&[&web], refused(&[web.clone(), mail.clone()])), (1, true));
    assert_eq!(pending(&[&web], refused(std::slice::from_ref(&mail))), (1, false));
    assert_eq!(pending(&[&UnitId::Base], refused(&[UnitId::Base])), (1, false), "then nothing serves");
    assert_eq!(pending(&[], failed(RETRY)), (0, false));
    assert_eq!(pending(&[&mail, &web], Outcome::default()), (2, false));
}

#[test]
fn changes_are_synced_at_once() {
    let start = Instant::now();
    let mut agenda = Agenda::new(UNLIMITED, false, start);
    assert_eq!(agenda.step(start), EngineStep::Nothing);
    assert_eq!(agenda.patience(start), FULL, "without an event nothing is looked at");
    agenda.offered(start);
    assert_eq!(agenda.step(start), EngineStep::Sync);
    agenda.done(EngineStep::Sync, &Outcome::default(), start);
    assert_eq!(agenda.step(start), EngineStep::Nothing);
    agenda.offered(start);
    assert_eq!(agenda.step(start), EngineStep::Sync);
}

#[test]
fn an_explicit_distance_is_kept() {
    let start = Instant::now();
    let period = Duration::from_secs(5);
    let mut agenda = Agenda::new(period, false, start);
    agenda.offered(start);
    assert_eq!(agenda.step(start), EngineStep::Sync);
    agenda.done(EngineStep::Sync, &Outcome::default(), start);
    let soon = start + Duration::from_millis(100);
    agenda.offered(soon);
    assert_eq!(agenda.step(soon), EngineStep::Nothing);
    agenda.woken(soon);
    assert_eq!(agenda.step(soon), EngineStep::Tend, "that doesn't wait");
    agenda.done(EngineStep::Tend, &Outcome::default(), soon);
    assert_eq!(agenda.step(soon), EngineStep::Nothing);
    assert_eq!(agenda.step(start + period), EngineStep::Sync);
}

/// As in mode iptables, where each costs a run of the tool.
#[test]
fn the_syncs_of_a_stream_of_changes_are_paced_and_a_few_are_not() {
    let start = Instant::now();
    let after = |millis| start + Duration::from_millis(millis);
    let (took, interval) = (Duration::from_millis(8), Duration::from_millis(500));
    // Start times of so many syncs under endless changes.
    let starts = |agenda: &mut Agenda, mut now: Instant, worked: bool, count: usize| {
        let mut starts = Vec::new();
        for _ in 0..count {
            agenda.offered(now);
            now = agenda.sync.unwrap();
            starts.push((now - start).as_millis());
            now += took;
            agenda.done(EngineStep::Sync, &Outcome { elapsed: took, worked, ..Outcome::default() }, now);
        }
        starts
    };
    let mut agenda = Agenda::new(UNLIMITED, true, start);
    assert_eq!(starts(&mut agenda, start, true, 8), [0, 8, 16, 24, 32, 500, 1000, 1500]);
    // After a rest as many come at once as it was long; those that do nothing count for nothing.
    assert_eq!(starts(&mut agenda, after(2600), true, 3), [2600, 2608, 3000]);
    assert_eq!(starts(&mut agenda, after(3000) + 6 * interval, true, 6), [6000, 6008, 6016, 6024, 6032, 6500]);
    assert_eq!(starts(&mut agenda, after(60_000), false, 8).last(), Some(&60_056));
    // No other mode does, and none does that needn't.
    for (period, paced) in [(UNLIMITED, false), (Duration::ZERO, true)] {
        let mut agenda = Agenda::new(period, paced, start);
        assert_eq!(starts(&mut agenda, start, true, 8).last(), Some(&56));
    }
}

#[test]
fn a_slow_sync_pass_is_followed_by_a_pause() {
    let start = Instant::now();
    let took = |millis| Outcome { elapsed: Duration::from_millis(millis), ..Outcome::default() };
    let pause_after = |period, millis| {
        let mut agenda = Agenda::new(period, false, start);
        agenda.done(EngineStep::Sync, &took(millis), start);
        agenda.offered(start);
        agenda.sync.unwrap() - start
    };
    for (millis, pause) in [(1, 0), (9, 0), (10, 10), (300, 300), (5_000, 1_000)] {
        assert_eq!(pause_after(UNLIMITED, millis), Duration::from_millis(pause), "{millis} ms");
    }
    assert_eq!(pause_after(Duration::ZERO, 300), Duration::ZERO, "nobody wants a pause");
    assert_eq!(pause_after(Duration::from_secs(5), 300), Duration::from_secs(5));
    // In a paced mode it is half as long at most: what comes meanwhile makes the next pass longer.
    let mut agenda = Agenda::new(UNLIMITED, true, start);
    agenda.done(EngineStep::Sync, &took(5_000), start);
    agenda.offered(start);
    assert_eq!(agenda.sync, Some(start + UNLIMITED / 2));
    // A later change doesn't wait.
    let mut agenda = Agenda::new(UNLIMITED, false, start);
    agenda.done(EngineStep::Sync, &took(100), start);
    let later = start + Duration::from_millis(250);
    agenda.offered(later);
    assert_eq!(agenda.step(later), EngineStep::Sync);
}

#[test]
fn many_syncs_do_not_put_off_tending() {
    let start = Instant::now();
    let mut agenda = Agenda::new(Duration::ZERO, false, start);
    let pause = Duration::from_millis(250);
    let wanted = Outcome { next: Next::RetryAfter(pause), ..Outcome::default() };
    let mut now = start;
    let mut tended = 0;
    agenda.done(EngineStep::Sync, &wanted, now);
    while now < start + 4 * pause {
        now += Duration::from_millis(1);
        agenda.offered(now);
        loop {
            let step = agenda.step(now);
            tended += u32::from(step == EngineStep::Tend);
            if step == EngineStep::Nothing {
                break;
            }
            agenda.done(step, &wanted, now);
        }
    }
    assert_eq!(tended, 4);
}

#[test]
fn after_an_error_the_next_try_waits() {
    let start = Instant::now();
    let mut agenda = Agenda::new(Duration::ZERO, false, start);
    agenda.offered(start);
    agenda.done(EngineStep::Sync, &failed(Duration::from_secs(10)), start);
    let soon = start + Duration::from_millis(250);
    agenda.woken(soon);
    assert_eq!(agenda.step(soon), EngineStep::Nothing, "a wake is no reason to try again sooner");
    assert_eq!(agenda.patience(start), Duration::from_secs(10));
    assert_eq!(agenda.step(start + Duration::from_secs(10)), EngineStep::Tend);
    agenda.offered(soon);
    assert_eq!(agenda.step(soon), EngineStep::Sync);
    agenda.done(EngineStep::Sync, &Outcome::default(), soon);
    assert_eq!(agenda.step(soon), EngineStep::Tend, "what the wake was for");
    agenda.done(EngineStep::Tend, &Outcome::default(), soon);
    assert_eq!(agenda.patience(soon), FULL - Duration::from_millis(250));
}

/// An engine that reports what it is asked to do.
struct Counts {
    waker: Arc<std::sync::Mutex<Option<std::task::Waker>>>,
    passes: std::sync::mpsc::Sender<&'static str>,
    pending: Vec<UnitId>,
}

impl SyncEngine for Counts {
    fn offer(&mut self, _: ferry_plane::Delta) {
        self.passes.send("offer").unwrap();
    }
    fn sync(&mut self, _: Instant) -> Outcome {
        self.passes.send("sync").unwrap();
        Outcome::default()
    }
    fn repair(&mut self, _: Instant) -> Outcome {
        Outcome::default()
    }
    fn tend(&mut self, _: Instant) -> Outcome {
        self.passes.send("tend").unwrap();
        Outcome::default()
    }
    fn wake_by(&mut self, waker: &std::task::Waker) {
        *self.waker.lock().unwrap() = Some(waker.clone());
        self.passes.send("waker").unwrap();
    }
    fn each_unit(&self, _: &mut dyn FnMut(&ferry_plane::Unit)) {}
    fn each_pending(&self, see: &mut dyn FnMut(&UnitId)) {
        self.pending.iter().for_each(see);
    }
    fn plan(&mut self) -> Result<ferry_plane::Plan, CommitError> {
        Ok(ferry_plane::Plan::default())
    }
    fn retire(self: Box<Self>, _: &mut Vec<ferry_plane::Served>) -> Result<usize, CommitError> {
        Ok(0)
    }
}

#[test]
fn changes_and_wakes_are_answered_at_once_and_nothing_else_happens() {
    let now = Instant::now();
    let (mut quiet, _told) = quiet(now);
    let (sender, mailbox) = Mailbox::new();
    quiet.setup.mailbox = mailbox;
    let (passes, seen) = std::sync::mpsc::channel();
    let waker = Arc::default();
    quiet.engine = Box::new(Counts { waker: Arc::clone(&waker), passes, pending: Vec::new() });
    let thread = std::thread::spawn(move || quiet.run());
    let next = || seen.recv_timeout(Duration::from_secs(10));
    assert_eq!(next(), Ok("waker"));
    sender.put(ferry_plane::Delta::default());
    assert_eq!([next(), next()], [Ok("offer"), Ok("sync")]);
    waker.lock().unwrap().take().unwrap().wake();
    assert_eq!(next(), Ok("tend"));
    drop(sender);
    thread.join().unwrap();
    assert!(seen.try_recv().is_err(), "no pass without a reason");
}

#[test]
fn a_repair_is_made_once_an_hour() {
    let now = Instant::now();
    let mut agenda = Agenda::new(Duration::ZERO, false, now);
    assert_eq!(agenda.step(now + FULL), EngineStep::Repair);
    agenda.done(EngineStep::Repair, &Outcome::default(), now + FULL);
    assert_ne!(agenda.step(now + FULL), EngineStep::Repair);
    assert_eq!(agenda.step(now + 2 * FULL), EngineStep::Repair);
}
