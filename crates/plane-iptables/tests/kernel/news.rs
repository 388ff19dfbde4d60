//! Foreign changes are noticed, also during a run of ours; our own changes are not reported as foreign.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::machine::{Machine, assert_same, inside, settle, wanted};
use crate::wrapper::with_wrapper;
use ferry_api::object::Family;
use ferry_conformance::good;
use ferry_conformance::states::{everything, pool};
use ferry_kernel::iptables::Backend;
use ferry_kernel::netns::Namespace;
use ferry_plane::{Delta, Kernel, SyncEngine, Unit};
use ferry_plane_iptables::{IptablesCommitLock, IptablesEngine};

/// A timeout that is not reached.
const LONG: Duration = Duration::from_secs(60);

fn started(machine: &Machine, commit_lock: IptablesCommitLock) -> IptablesEngine {
    let mut engine = machine.engine_with(commit_lock);
    engine.offer(everything(machine.family));
    good(engine.sync(Instant::now()));
    engine
}

/// One service gets other endpoints; now and then none, or all services are deleted.
pub(crate) fn change(family: Family, round: u8) -> Delta {
    let mut delta = everything(family);
    let all = round % 20 == 19;
    delta.units.retain(|id, _| all || id.to_string().ends_with("/plain"));
    delta.context = None;
    for unit in delta.units.values_mut() {
        let Some(Unit::Service(state)) = unit.as_mut().map(Arc::make_mut) else { continue };
        for port in &mut state.ports {
            if !port.cluster.is_empty() {
                port.cluster = pool(family, &[1 + round % 7, 10 + round % 3]);
            }
        }
        if round % 20 == 9 {
            *unit = None;
        }
    }
    delta
}

fn two_hundred_commits(backend: Backend) {
    Namespace::new()
        .expect("root and CAP_SYS_ADMIN are needed")
        .run(|| {
            let commit_lock = IptablesCommitLock::default();
            let namespace = ferry_kernel::netns::current().unwrap();
            std::thread::scope(|scope| {
                for family in Family::ALL {
                    let (commit_lock, namespace) = (commit_lock.clone(), &namespace);
                    scope.spawn(move || {
                        namespace.enter().unwrap();
                        let machine = Machine::new(backend, family);
                        let mut engine = started(&machine, commit_lock);
                        for round in 0..200 {
                            engine.offer(change(family, round));
                            good(engine.sync(Instant::now()));
                            let tended = engine.kernel_mut().tend(Instant::now()).unwrap();
                            assert!(tended.is_empty(), "{backend:?} {family:?} {round}: {tended:?}");
                        }
                        assert!(engine.kernel().counters().runs() >= 180);
                        assert_same(&machine.read_back(), &wanted(&engine), "");
                    });
                }
            });
        })
        .unwrap();
}

#[test]
fn our_own_commits_are_no_news_in_nft() {
    two_hundred_commits(Backend::Nft);
}

#[test]
fn our_own_commits_are_no_news_in_legacy() {
    two_hundred_commits(Backend::Legacy);
}

#[test]
fn what_others_do_while_a_run_is_under_way_is_noticed() {
    with_wrapper("-restore", LONG, |machine, wrapper| {
        let mut engine = started(machine, IptablesCommitLock::default());
        let tool = machine.program("");
        let own = machine.folder().join("theirs");
        for (before, after) in [(true, false), (false, true)] {
            for damage in
                ["-t nat -D KUBE-SERVICES 1", "-t nat -I KUBE-NODEPORTS -p tcp -j RETURN", "-t nat -F KUBE-POSTROUTING"]
            {
                let theirs = format!("XTABLES_LOCKFILE={} {tool} {damage} </dev/null", own.display());
                let theirs = |is: bool| if is { theirs.as_str() } else { ":" };
                wrapper.fault(&format!(
                    "{}\ntext > $FOLDER/input\nprinted=$($REAL \"$@\" < $FOLDER/input)\nrc=$?\n{}\necho \"$printed\"\nexit $rc\n",
                    theirs(before),
                    theirs(after)
                ));
                engine.offer(change(machine.family, u8::from(before)));
                let outcome = engine.sync(Instant::now());
                assert!(outcome.error.is_none(), "{outcome:?}");
                wrapper.well();
                let now = Instant::now();
                let mut repairs = good(engine.tend(now)).repairs;
                repairs += good(engine.tend(now + Duration::from_secs(2))).repairs;
                assert!(repairs >= 1, "{damage}");
                assert_same(&machine.read_back(), &wanted(&engine), damage);
                engine.offer(everything(machine.family));
                good(engine.sync(now + Duration::from_secs(3)));
                settle(&mut engine, now);
            }
        }
    });
}

/// Foreign changes while another part of the same chain is read.
#[test]
fn no_damage_is_forgotten_over_other_damage() {
    inside(|machine| {
        let mut engine = started(machine, IptablesCommitLock::default());
        let mut now = Instant::now();
        for round in 0..24_u8 {
            let table = if round % 3 == 0 { "filter" } else { "nat" };
            let chain = if round % 5 == 0 { "KUBE-NODEPORTS" } else { "KUBE-SERVICES" };
            let (lost, _, _) = machine.run("", &["-t", table, "-D", chain, "1"], "");
            if round % 4 == 3 {
                engine.offer(change(machine.family, round % 8));
                good(engine.sync(now));
            } else {
                good(engine.tend(now));
            }
            now += Duration::from_millis(if lost { 40 } else { 90 });
        }
        settle(&mut engine, now);
        assert_same(&machine.read_back(), &wanted(&engine), "all of it");
    });
}

/// A neighbour that writes all the time.
#[test]
fn others_who_keep_writing_elsewhere_keep_nobody_waiting() {
    inside(|machine| {
        let mut engine = started(machine, IptablesCommitLock::default());
        let namespace = ferry_kernel::netns::current().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let theirs = scope.spawn(|| {
                namespace.enter().unwrap();
                while !done.load(Ordering::Relaxed) {
                    for table in ["mangle", "filter", "nat"] {
                        machine.iptables(&format!("-t {table} -A OUTPUT -p udp -j ACCEPT"));
                    }
                }
            });
            let mut now = Instant::now();
            for round in 0..12 {
                engine.offer(change(machine.family, round));
                let outcome = engine.sync(now);
                assert!(outcome.error.is_none() && !outcome.acked.is_empty(), "{outcome:?}");
                now += Duration::from_millis(100);
                let outcome = engine.tend(now);
                assert!(outcome.error.is_none() && outcome.repairs == 0, "{outcome:?}");
            }
            done.store(true, Ordering::Relaxed);
            theirs.join().unwrap();
        });
        settle(&mut engine, Instant::now() + Duration::from_secs(100));
        assert_same(&machine.read_back(), &wanted(&engine), "");
    });
}

/// The engine comes upon the damage itself, and the run that repairs it fails.
#[test]
fn damage_is_not_forgotten_when_its_first_repair_fails() {
    with_wrapper("-restore", LONG, |machine, wrapper| {
        let mut engine = started(machine, IptablesCommitLock::default());
        machine.iptables("-t nat -F");
        machine.iptables("-t nat -X");
        // There is no memory for the repair.
        wrapper.fault(
            "input=$FOLDER/input\ntext > $input\nif grep -q '^:KUBE-MARK-MASQ' $input; then echo \"iptables-restore: line 2 failed: Memory allocation problem.\" >&2; exit 1; fi\nexec $REAL \"$@\" < $input\n",
        );
        let now = Instant::now();
        engine.offer(change(machine.family, 1));
        let outcome = engine.sync(now);
        assert!(outcome.error.is_some(), "{outcome:?}");
        wrapper.well();
        settle(&mut engine, now);
        assert_same(&machine.read_back(), &wanted(&engine), "repaired");
        engine.each_pending(&mut |unit| panic!("{unit} waits"));
    });
}
