//! Schedulers and weights, and schedulers that the kernel lacks.

use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferry_api::object::{Family, ObjectName, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{address, pool, service};
use ferry_kernel::module;
use ferry_model::{Affinity, Balance, Endpoint, MissingSchedulers, Scheduler};
use ferry_plane::{CommitError, Delta, SyncEngine, Unit, UnitId};
use ferry_plane_ipvs::{IpvsEngine, IpvsOptions, SchedulerReports, ServerOptions};

use crate::common::{
    assert_idle, assert_in_force, at_vip, change, endpoint, inside, only, open, open_with, options, port, servers,
    until_repaired,
};

/// The scheduler that a kernel may lack: Linux 6.1 of Debian has none of this name.
const RARE: Scheduler = Scheduler::Twos;

/// A file that forbids the kernel to load the module of [`RARE`].
struct Hidden;

const FORBIDS: &str = "/etc/modprobe.d/ferry-test.conf";
/// Gets a line for each attempt to load it.
const ATTEMPTS: &str = "/run/ferry-test-attempts";

// === impl Hidden ===

impl Hidden {
    fn new() -> Self {
        fs::write(FORBIDS, format!("install ip_vs_{RARE} echo attempt >>{ATTEMPTS}; /bin/false\n")).unwrap();
        // Loaded by another test, or not at all.
        let _ = Command::new("modprobe").args(["--remove", &format!("ip_vs_{RARE}")]).status();
        assert!(!module::find(&format!("ip_vs_{RARE}")).is_present());
        fs::write(ATTEMPTS, "").unwrap();
        Self
    }

    fn attempts(&self) -> usize {
        fs::read_to_string(ATTEMPTS).unwrap().lines().count()
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = fs::remove_file(FORBIDS);
    }
}

/// A service with endpoints of weights 1, 5 and 100.
fn scheduled(family: Family, last: u8, scheduler: Scheduler) -> (UnitId, Option<Arc<Unit>>) {
    let mut port = port(family, Protocol::Tcp, last, &[1, 2, 3]);
    let at = |last| Endpoint { address: address(family, 244, last), port: 8080 };
    port.cluster = pool(family, &[1, 2, 3]);
    port.balance = Some(Box::new(Balance { scheduler: Some(scheduler), weights: [(at(2), 5), (at(3), 100)].into() }));
    port.affinity = if last.is_multiple_of(2) { Affinity::new(10_800) } else { None };
    service(&format!("by-{scheduler}"), vec![port])
}

fn by_all(family: Family) -> Delta {
    let mut delta = only(family, &[]);
    delta.units.extend((60..).zip(Scheduler::ALL).map(|(last, scheduler)| scheduled(family, last, scheduler)));
    delta
}

/// An engine with this configured scheduler that records its reports.
fn recording(family: Family, scheduler: Scheduler) -> (IpvsEngine, Arc<Mutex<Vec<MissingSchedulers>>>) {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let take = Arc::clone(&reports);
    let reports_to = SchedulerReports(Arc::new(move |missing| take.lock().unwrap().push(missing)));
    let servers = ServerOptions { scheduler, reports: Some(reports_to), ..options().servers };
    (open_with(family, IpvsOptions { servers, ..options() }), reports)
}

fn is_absent(scheduler: Scheduler) -> bool {
    module::find(&format!("ip_vs_{scheduler}")).state == module::ModuleState::Absent
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn every_scheduler_and_weight_is_set() {
    inside(|family| {
        let (mut engine, reports) = recording(family, Scheduler::Wlc);
        engine.offer(by_all(family));
        good(engine.sync(Instant::now()));
        let absent: Vec<Scheduler> = Scheduler::ALL.into_iter().filter(|one| is_absent(*one)).collect();
        let reported = reports.lock().unwrap().last().cloned().unwrap_or_default();
        assert_eq!(reported.keys().copied().collect::<Vec<_>>(), absent);
        for (last, scheduler) in (60..).zip(Scheduler::ALL) {
            let set = if absent.contains(&scheduler) { Scheduler::Wlc } else { scheduler };
            let at = at_vip(family, last);
            let listed = servers();
            assert!(
                listed.iter().any(|line| line.starts_with(&format!("-A {at} -s {set}"))),
                "{scheduler}: {listed:?}"
            );
            for (last, weight) in [(1, 1), (2, 5), (3, 100)] {
                let line = format!("-a {at} -r {} -m -w {weight}", endpoint(family, last));
                assert!(listed.contains(&line), "{line}: {listed:?}");
            }
        }
        assert_idle(&mut engine, Instant::now(), 20, "replaced ones are no drift");
        assert_eq!(good(engine.repair(Instant::now())).repairs, 0);
        drop(engine);
        let mut engine = open_with(
            family,
            IpvsOptions { servers: ServerOptions { scheduler: Scheduler::Wlc, ..options().servers }, ..options() },
        );
        engine.offer(by_all(family));
        let before = servers();
        assert_eq!(good(engine.sync(Instant::now())).ops, absent.len());
        assert_eq!(servers(), before);
        assert_eq!(good(engine.repair(Instant::now())).ops, 0);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_scheduler_changes_in_place() {
    inside(|family| {
        let mut engine = open(family);
        engine.offer(only(family, &[]));
        good(engine.sync(Instant::now()));
        for scheduler in Scheduler::ALL.into_iter().filter(|one| !is_absent(*one)) {
            let (_, unit) = scheduled(family, 60, scheduler);
            engine.offer(change([(UnitId::Service(ObjectName::new("demo", "web")), unit)]));
            assert!(good(engine.sync(Instant::now())).ops >= 1);
            assert_in_force(&engine, family, &[], scheduler.name());
        }
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_missing_scheduler_is_replaced_and_set_once_it_is_there() {
    inside(|family| {
        let hidden = Hidden::new();
        let (mut engine, reports) = recording(family, Scheduler::Rr);
        let mut delta = only(family, &[]);
        delta.units.extend([scheduled(family, 60, RARE), scheduled(family, 61, Scheduler::Sed)]);
        engine.offer(delta.clone());
        good(engine.sync(Instant::now()));
        let line = |last, scheduler: &str| {
            let at = at_vip(family, last);
            servers().iter().any(|line| line.starts_with(&format!("-A {at} -s {scheduler}")))
        };
        assert!(line(60, "rr") && line(61, "sed"), "{:?}", servers());
        assert_eq!(servers().iter().filter(|line| line.starts_with(&format!("-a {}", at_vip(family, 60)))).count(), 3);
        let reported = reports.lock().unwrap().clone();
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0][&RARE].contains("modprobe -- ip_vs_twos"), "{reported:?}");
        assert_idle(&mut engine, Instant::now(), 5, "no drift");
        // A changed endpoint meets the same scheduler again.
        let (id, unit) = scheduled(family, 60, RARE);
        let mut unit = unit.unwrap();
        if let Unit::Service(state) = Arc::make_mut(&mut unit) {
            state.ports[0].cluster = pool(family, &[1]);
        }
        engine.offer(change([(id, Some(unit))]));
        good(engine.sync(Instant::now()));
        assert!(line(60, "rr"));
        // Another program's change of a replaced one is drift.
        crate::common::ipvsadm(&format!("-E {} -s lc", at_vip(family, 60)));
        assert_eq!(good(engine.repair(Instant::now())).repairs, 1);
        assert!(line(60, "rr"));
        drop(hidden);
        if is_absent(RARE) {
            return;
        }
        crate::common::run("modprobe", "-- ip_vs_twos");
        // Within a minute, not only at a full comparison.
        until_repaired(&mut engine, Instant::now(), "the scheduler");
        assert!(reports.lock().unwrap().last().unwrap().is_empty());
        assert!(line(60, "twos"), "{:?}", servers());
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_missing_scheduler_of_many_services_is_looked_for_once() {
    inside(|family| {
        let hidden = Hidden::new();
        let (mut engine, reports) = recording(family, Scheduler::Rr);
        let many = |range: std::ops::Range<u8>| {
            range.map(|last| {
                let (_, unit) = scheduled(family, last, RARE);
                (UnitId::Service(ObjectName::new("demo", &format!("many-{last}"))), unit)
            })
        };
        let mut delta = only(family, &[]);
        delta.units.extend(many(60..120));
        engine.offer(delta);
        let now = Instant::now();
        good(engine.sync(now));
        let with_fallback =
            || servers().iter().filter(|line| line.starts_with("-A ") && line.contains("-s rr")).count();
        assert_eq!((hidden.attempts(), with_fallback()), (1, 60));
        engine.offer(change(many(120..180)));
        good(engine.sync(now));
        assert_idle(&mut engine, now, 100, "replaced ones are no drift");
        good(engine.repair(now));
        assert_eq!((hidden.attempts(), with_fallback(), reports.lock().unwrap().len()), (1, 120, 1));
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_missing_configured_scheduler_is_named() {
    inside(|family| {
        let _hidden = Hidden::new();
        let (mut engine, _) = recording(family, RARE);
        engine.offer(only(family, &["plain"]));
        let outcome = engine.sync(Instant::now());
        let Some(CommitError::Unusable(error)) = outcome.error.as_deref() else { panic!("{outcome:?}") };
        let text = error.to_string();
        assert!(text.contains("modprobe -- ip_vs_twos") && text.contains("scheduler twos"), "{text}");
        assert!(servers().is_empty(), "nothing is left of the probe");
    });
}
