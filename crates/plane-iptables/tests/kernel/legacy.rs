//! The legacy variant has no notifications: which tables are checked for foreign changes, and how often.

use std::time::{Duration, Instant};

use crate::machine::{Machine, assert_same, on, wanted};
use crate::news::change;
use crate::wrapper::Wrapper;
use ferry_api::object::Family;
use ferry_conformance::good;
use ferry_conformance::states::everything;
use ferry_kernel::iptables::{Backend, Table, legacy};
use ferry_plane::{Kernel, Outcome, SyncEngine};
use ferry_plane_iptables::{IptablesCommitLock, IptablesEngine};

/// Interval at which all tables are read.
const MINUTE: Duration = Duration::from_secs(61);
const SECOND: Duration = Duration::from_secs(1);

fn in_legacy(test: impl Fn(&Machine) + Send + Sync) {
    std::thread::scope(|scope| {
        for family in Family::ALL {
            let test = &test;
            scope.spawn(move || on(Backend::Legacy, family, test));
        }
    });
}

/// A machine with a wrapped program that counts how often tables were read.
fn counted(test: impl Fn(&Machine, &Wrapper, &dyn Fn() -> usize) + Send + Sync) {
    in_legacy(|machine| {
        let mut machine = Machine::new(machine.backend, machine.family);
        let wrapper = Wrapper::new(&mut machine, "-save");
        let counts = machine.folder().join("reads");
        let reads = || {
            let reads = std::fs::read_to_string(&counts).unwrap_or_default().lines().count();
            drop(std::fs::remove_file(&counts));
            reads
        };
        test(&machine, &wrapper, &reads);
    });
}

/// An engine after its first sync and its first check.
fn started(machine: &Machine, now: Instant) -> IptablesEngine {
    let mut engine = machine.engine_with(IptablesCommitLock::default());
    engine.offer(everything(machine.family));
    good(engine.sync(now));
    assert_eq!(good(engine.tend(now)).repairs, 0);
    engine
}

fn sizes(machine: &Machine) -> Vec<Option<legacy::TableInfo>> {
    Table::ALL.iter().map(|table| legacy::info(machine.family, *table).unwrap()).collect()
}

/// The first printed rule of a chain whose name begins so: its chain, and its text.
fn rule(machine: &Machine, chain: &str) -> (String, String) {
    let saved = machine.saved();
    let line = saved.iter().find_map(|line| line.strip_prefix("nat -A ").filter(|rest| rest.starts_with(chain)));
    let (chain, text) = line.unwrap_or_else(|| panic!("no {chain}")).split_once(' ').unwrap();
    (chain.to_owned(), text.to_owned())
}

/// The drift found now, which is repaired a moment later.
fn mended(engine: &mut IptablesEngine, now: Instant) -> Outcome {
    let first = good(engine.tend(now));
    assert_eq!(first.repairs, 0, "what differs is looked at twice");
    good(engine.tend(now + SECOND / 2))
}

#[test]
fn damage_of_the_same_size_is_found_within_a_minute() {
    in_legacy(|machine| {
        let begin = Instant::now();
        let mut engine = started(machine, begin);
        let before = sizes(machine);
        let (services, text) = rule(machine, "KUBE-SERVICES -d ");
        let (rest, target) = text.rsplit_once(' ').unwrap();
        assert_ne!(target, "KUBE-MARK-MASQ");
        // It is printed before the first rule of the chain.
        let (endpoint, own) = rule(machine, "KUBE-SEP-");
        machine.restore(&format!(
            "*nat\n-D {services} {text}\n-I {services} {rest} KUBE-MARK-MASQ\n-D {endpoint} {own}\n-I {endpoint} {own}\nCOMMIT\n"
        ));
        assert_eq!(sizes(machine), before, "the size says nothing");
        assert_eq!(mended(&mut engine, begin + SECOND).repairs, 0);
        let outcome = mended(&mut engine, begin + MINUTE);
        assert!((2..=3).contains(&outcome.repairs), "{outcome:?}");
        assert!(outcome.repaired.iter().any(|name| name.contains(&endpoint)), "{outcome:?}");
        assert_same(&machine.read_back(), &wanted(&engine), "");
        let tended = engine.kernel_mut().tend(begin + 3 * MINUTE).unwrap();
        assert!(tended.is_empty(), "{tended:?}");
    });
}

#[test]
fn unrelated_damage_is_no_fight_over_everything() {
    in_legacy(|machine| {
        let mut now = Instant::now();
        let mut engine = started(machine, now);
        for damage in [
            "-t nat -F KUBE-SERVICES",
            "-t nat -F KUBE-POSTROUTING",
            "-F",
            "-t nat -F KUBE-NODEPORTS",
            "-t mangle -X KUBE-PROXY-CANARY",
            "-t nat -F KUBE-MARK-MASQ",
        ] {
            machine.iptables(damage);
            // Under load a read takes longer, and the next one waits ten times as long.
            let mut looks = (0..60).map(|_| {
                now += SECOND / 2;
                good(engine.tend(now))
            });
            let outcome = looks.find(|outcome| outcome.repairs > 0);
            assert!(outcome.as_ref().is_some_and(|outcome| outcome.contested.is_empty()), "{damage}: {outcome:?}");
            assert_same(&machine.read_back(), &wanted(&engine), damage);
        }
    });
}

#[test]
fn our_own_commits_cause_no_look_and_others_one() {
    counted(|machine, wrapper, reads| {
        let begin = Instant::now();
        let mut engine = started(machine, begin);
        wrapper.fault("echo >>$FOLDER/reads\n");
        for round in 0..40 {
            engine.offer(change(machine.family, round));
            good(engine.sync(begin));
            assert_eq!(good(engine.tend(begin)).repairs, 0);
        }
        assert_eq!(reads(), 0, "our own");
        // Chains that are not checked, and rules next to ours.
        for (theirs, tables) in
            [(&["-t mangle -A INPUT -j RETURN"][..], 1), (&["-t nat -A OUTPUT -p udp -j ACCEPT", "-N THEIRS"], 2)]
        {
            theirs.iter().for_each(|theirs| drop(machine.iptables(theirs)));
            for since in [30, 31, 32] {
                assert_eq!(good(engine.tend(begin + since * SECOND)).repairs, 0);
            }
            assert_eq!(reads(), tables, "{theirs:?}");
        }
        let tended = engine.kernel_mut().tend(begin + MINUTE).unwrap();
        assert!(tended.is_empty(), "{tended:?}");
        assert_eq!(reads(), 3, "once a minute");
    });
}

#[test]
fn others_who_keep_writing_are_looked_at_a_tenth_of_the_time() {
    counted(|machine, wrapper, reads| {
        let begin = Instant::now();
        let mut engine = started(machine, begin);
        wrapper.fault("echo >>$FOLDER/reads; sleep 0.3\n");
        let mut tend = |since: Duration, looks: usize| {
            machine.iptables("-t nat -A OUTPUT -p udp -j ACCEPT");
            let before = Instant::now();
            assert_eq!(good(engine.tend(begin + since)).repairs, 0);
            assert_eq!(reads(), looks, "after {since:?}");
            before.elapsed()
        };
        // At least 0.3 s, and more on a busy machine.
        let took = tend(SECOND / 10, 1);
        for tenths in [2, 11, 25] {
            tend(tenths * SECOND / 10, 0);
        }
        let rested = SECOND / 10 + 10 * took;
        assert!(rested < MINUTE - 2 * SECOND, "too busy to tell this look from that of the minute: {took:?}");
        tend(rested, 1);
        tend(rested + SECOND / 10, 0);
        // But it is read before a rule is put next to it.
        engine.offer(change(machine.family, 9));
        good(engine.sync(begin + rested + SECOND));
        assert_eq!(reads(), 1);
        assert_same(&machine.read_back(), &wanted(&engine), "");
    });
}

/// Foreign changes of our chains are noticed before rules are added to them or deleted.
#[test]
fn a_change_meets_what_others_have_done() {
    in_legacy(|machine| {
        let mut now = Instant::now();
        let mut engine = started(machine, now);
        for (round, damage) in (0_u8..).zip(["-t nat -F KUBE-SERVICES", "-F KUBE-SERVICES", "-t nat -F"]) {
            machine.iptables(damage);
            engine.offer(change(machine.family, 9 + 10 * (round % 2)));
            let outcome = good(engine.sync(now));
            assert!(!outcome.acked.is_empty() && outcome.contested.is_empty(), "{damage}: {outcome:?}");
            for _ in 0..4 {
                now += SECOND;
                good(engine.tend(now));
            }
            assert_same(&machine.read_back(), &wanted(&engine), damage);
        }
        assert_eq!(engine.kernel().tool().backend(), Backend::Legacy);
    });
}
