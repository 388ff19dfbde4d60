//! Objects on the real kernel, in both variants of the tool and both families, each test in a network namespace of its own.

use std::ffi::OsStr;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::machine::{Machine, assert_same, inside, settle, wanted};
use crate::wrapper::with_wrapper;
use ferry_api::object::Family;
use ferry_conformance::good;
use ferry_conformance::states::{self, everything};
use ferry_kernel::iptables::Backend;
use ferry_lab::patience::slowly;
use ferry_plane::{Object, SyncEngine, Unit};
use ferry_plane_iptables::IptablesEngine;

fn started(machine: &Machine) -> IptablesEngine {
    let mut engine = machine.engine();
    engine.offer(everything(machine.family));
    good(engine.sync(Instant::now()));
    engine
}

#[test]
fn what_is_written_reads_back() {
    inside(|machine| {
        let engine = started(machine);
        assert_same(&machine.read_back(), &wanted(&engine), "");
    });
}

#[test]
fn a_restart_commits_nothing() {
    with_wrapper("-restore", Duration::from_secs(60), |machine, wrapper| {
        drop(started(machine));
        let before = (machine.moved(), machine.saved());
        // The tool's input without empty sections: legacy tables don't show that they were written.
        wrapper.fault(
            "text >$FOLDER/input\ngrep '^[:-]' $FOLDER/input >>$FOLDER/given\nexec $REAL \"$@\" <$FOLDER/input\n",
        );
        let given = || fs::read_to_string(machine.folder().join("given")).expect("the tool was tried");
        let mut engine = machine.engine();
        engine.offer(everything(machine.family));
        let outcome = good(engine.sync(Instant::now()));
        assert_eq!((outcome.ops, engine.kernel().counters().runs()), (0, 0), "{outcome:?}");
        assert_eq!(given(), "");
        assert_eq!((machine.moved(), machine.saved()), before);
        // and a write would have been visible
        machine.iptables("-t nat -F KUBE-SERVICES");
        good(engine.repair(Instant::now()));
        assert!(given().contains("KUBE-SERVICES"), "{}", given());
    });
}

#[test]
fn jumps_stand_in_upstreams_order_and_node_ports_last() {
    inside(|machine| {
        drop(started(machine));
        let jumps = |chain: &str| -> Vec<String> {
            let text = machine.iptables(&format!("-t filter -S {chain}"));
            text.lines().filter_map(|line| line.split_once(" -j ")).map(|(_, to)| to.to_owned()).collect()
        };
        assert_eq!(
            jumps("INPUT"),
            ["KUBE-FIREWALL", "KUBE-PROXY-FIREWALL", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"]
        );
        assert_eq!(
            jumps("FORWARD"),
            ["KUBE-PROXY-FIREWALL", "KUBE-FORWARD", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"]
        );
        assert_eq!(jumps("OUTPUT"), ["KUBE-FIREWALL", "KUBE-PROXY-FIREWALL", "KUBE-SERVICES"]);
        let services = machine.iptables("-t nat -S KUBE-SERVICES");
        assert!(services.lines().last().unwrap().ends_with("-j KUBE-NODEPORTS"), "{services}");
    });
}

/// Foreign changes, each with the number of objects to repair after it.
fn damages(machine: &Machine, all: usize) -> Vec<(Vec<String>, RangeInclusive<usize>)> {
    let vip = states::address(machine.family, 96, 1);
    let text = machine.iptables("-t nat -S KUBE-SERVICES");
    let rule = text.lines().find(|line| line.contains(&vip.to_string())).unwrap();
    let chain = rule.rsplit_once(' ').unwrap().1.to_owned();
    let mut damage = vec![
        (vec!["-t nat -D KUBE-SERVICES 1".into()], 1..=1),
        (vec!["-t nat -I KUBE-SERVICES -s 192.0.2.1 -j RETURN".into()], 1..=1),
        (vec!["-t nat -A KUBE-SERVICES -j RETURN".into()], 1..=1),
        (vec![format!("-t nat -F {chain}")], 1..=1),
        (vec![format!("-t nat -I {chain} -j RETURN")], 1..=1),
        (vec!["-t nat -F KUBE-SERVICES".into()], 2..=40),
        (vec!["-t nat -F KUBE-POSTROUTING".into()], 1..=1),
        (vec!["-t mangle -X KUBE-PROXY-CANARY".into()], 1..=1),
        (vec!["-t filter -F INPUT".into()], 4..=4),
        (vec!["-t filter -F KUBE-FORWARD".into()], 1..=1),
        (
            vec!["-t filter -F FORWARD".into(), "-t filter -F KUBE-FORWARD".into(), "-t filter -X KUBE-FORWARD".into()],
            5..=5,
        ),
        (vec!["-t nat -F".into()], 20..=all),
        (
            vec![
                "-t nat -F".into(),
                "-t nat -X".into(),
                "-t filter -F".into(),
                "-t filter -X".into(),
                "-t mangle -F".into(),
                "-t mangle -X".into(),
            ],
            20..=all,
        ),
    ];
    if machine.family == Family::V6 {
        damage.remove(1);
    }
    damage
}

#[test]
fn damage_is_noticed_and_mended() {
    inside(|machine| {
        let mut engine = started(machine);
        let now = Instant::now();
        assert!(!good(engine.tend(now)).worked, "our own commits are no drift");
        let damage = damages(machine, wanted(&engine).len());
        for (round, (damage, repairs)) in (1..).zip(&damage) {
            damage.iter().for_each(|command| drop(machine.iptables(command)));
            let noticed = now + Duration::from_secs(60 * round);
            let runs = engine.kernel().counters().runs();
            let first = good(engine.tend(noticed));
            // The legacy variant doesn't tell which program has changed its tables.
            let is_one = machine.backend == Backend::Nft && damage.len() == 1 && *repairs == (1..=1);
            assert_eq!(first.repairs, usize::from(is_one), "{damage:?}: several objects are looked at twice");
            // On a busy machine the legacy variant's own look in between may come upon it once more.
            let mut turns = (1..4).map(|turn| good(engine.tend(noticed + Duration::from_millis(200 * turn))));
            let outcome = if is_one { first } else { turns.find(|outcome| outcome.repairs > 0).unwrap_or_default() };
            assert!(repairs.contains(&outcome.repairs), "{machine:?} {damage:?}: {outcome:?}");
            assert_eq!(engine.kernel().counters().runs(), runs + 1, "{damage:?}");
            let cheap = machine.backend == Backend::Legacy || !outcome.full || outcome.repairs > 20;
            assert!(cheap, "{damage:?}: {outcome:?}");
            assert_same(&machine.read_back(), &wanted(&engine), &format!("{damage:?}"));
            assert!(!good(engine.tend(noticed + Duration::from_secs(2))).worked, "{damage:?}");
        }
    });
}

/// In the nft variant, whose notifications name the chain.
#[test]
fn a_chain_with_one_damaged_object_is_read_once() {
    with_wrapper("", slowly(Duration::from_secs(60)), |machine, wrapper| {
        if machine.backend == Backend::Legacy {
            return;
        }
        let mut engine = started(machine);
        let reads = machine.folder().join("reads");
        wrapper.fault("case \"$*\" in *' -S '*) echo >> $FOLDER/reads;; esac\n");
        machine.iptables("-t nat -D KUBE-SERVICES 1");
        assert_eq!(good(engine.tend(Instant::now())).repairs, 1);
        assert_eq!(fs::read_to_string(reads).unwrap().lines().count(), 1);
        assert_same(&machine.read_back(), &wanted(&engine), "");
    });
}

/// Packets that are dropped must not be accepted before.
#[test]
fn a_jump_that_is_put_back_has_its_place() {
    inside(|machine| {
        let mut engine = started(machine);
        let mut now = Instant::now();
        let chains = ["-t filter -S FORWARD", "-t filter -S INPUT", "-t filter -S OUTPUT", "-t nat -S OUTPUT"];
        for chain in chains {
            // The place of the kubelet's jump doesn't matter.
            let listed = || machine.iptables(chain).replace(&format!("-A {} -j KUBE-FIREWALL\n", &chain[13..]), "");
            let before = listed();
            let rules = machine.iptables(chain).lines().filter(|line| line.starts_with("-A ")).count();
            for lost in (1..=rules).map(|at| vec![at]).chain([vec![1, 1], vec![rules, 1]]).filter(|_| rules > 1) {
                for at in &lost {
                    machine.iptables(&format!("{} {at}", chain.replace("-S", "-D")));
                    // The first one is repaired at once, where the writer is known.
                    good(engine.tend(now));
                    now += Duration::from_millis(5);
                }
                settle(&mut engine, now);
                assert_eq!(listed().trim(), before.trim(), "{lost:?}");
                now += Duration::from_secs(60);
            }
        }
    });
}

#[test]
fn the_rules_of_others_stay_and_are_no_drift() {
    inside(|machine| {
        machine.restore("*filter\n:CNI - [0:0]\n-A FORWARD -j CNI\n-A INPUT -p tcp -j ACCEPT\n:KUBE-FIREWALL - [0:0]\n-A KUBE-FIREWALL -p udp -j DROP\nCOMMIT\n");
        machine.restore("*mangle\n:KUBE-KUBELET-CANARY - [0:0]\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n");
        let before = machine.saved();
        let mut engine = started(machine);
        good(engine.tend(Instant::now()));
        machine.iptables("-t filter -A CNI -p tcp -j RETURN");
        machine.iptables("-t filter -A FORWARD -p udp -j ACCEPT");
        let now = Instant::now();
        let outcome = good(engine.tend(now));
        assert!(!outcome.worked && outcome.repairs == 0, "{outcome:?}");
        let outcome = good(engine.tend(now + Duration::from_secs(3)));
        assert!(outcome.repairs == 0, "{outcome:?}");
        machine.iptables("-t filter -D CNI -p tcp -j RETURN");
        machine.iptables("-t filter -D FORWARD -p udp -j ACCEPT");
        Box::new(engine).retire(&mut Vec::new()).unwrap();
        let mut after = machine.saved();
        // objects shared with the kubelet, and built-in chains
        after.retain(|line| !line.ends_with("-j KUBE-FIREWALL"));
        let built_in = |line: &&String| line.contains(" :") && !line.ends_with(" -");
        let own: Vec<&String> = after.iter().filter(|line| !built_in(line)).collect();
        let wanted: Vec<&String> = before.iter().filter(|line| !built_in(line)).collect();
        assert_eq!(own, wanted);
    });
}

/// Adds a rule with a comment that is no UTF-8.
fn garbled(machine: &Machine, rule: &str) {
    let mut command = Command::new(machine.program(""));
    command.env("XTABLES_LOCKFILE", &machine.environment.lock_file);
    command.args(rule.split(' ')).args(["-m", "comment", "--comment"]).arg(OsStr::from_bytes(b"caf\xe9"));
    assert!(command.status().unwrap().success(), "{rule}");
}

#[test]
fn rules_that_the_tool_does_not_find_again_go_at_a_start() {
    inside(|machine| {
        let engine = started(machine);
        let wanted = wanted(&engine);
        drop(engine);
        for place in ["nat -A KUBE-SERVICES", "filter -A KUBE-SERVICES", "filter -A KUBE-NODEPORTS"] {
            machine.iptables(&format!("-t {place} -p tcp -m recent --set --name SEEN --rsource -j RETURN"));
            machine.iptables(&format!("-t {place} -p tcp -m connlimit --connlimit-above 9 -j RETURN"));
        }
        // Other programs may jump to the kubelet's chain for any packets.
        machine.iptables("-t filter -A INPUT -i eth7 -j KUBE-FIREWALL");
        let mut engine = machine.engine();
        engine.offer(everything(machine.family));
        good(engine.sync(Instant::now()));
        assert_same(&machine.read_back(), &wanted, "started again");
        let input = machine.iptables("-t filter -S INPUT");
        assert!(input.contains("-A INPUT -i eth7 -j KUBE-FIREWALL"), "{input}");
        assert!(input.contains("-A INPUT -j KUBE-FIREWALL"), "{input}");
    });
}

#[test]
fn rules_whose_comment_is_no_text_go_at_a_start() {
    inside(|machine| {
        let engine = started(machine);
        let wanted = wanted(&engine);
        drop(engine);
        let served = machine.iptables("-t nat -S KUBE-SERVICES");
        let served = served.lines().find(|line| line.contains(" cluster IP\" ")).unwrap();
        let (head, rest) = served.split_once(" -m comment --comment ").unwrap();
        let (_, tail) = rest.split_once("\" ").unwrap();
        // One superfluous rule that looks like a Service's, and some foreign ones.
        for rule in [
            &*format!("nat {head} {tail}").replace("-A", "-I"),
            "filter -A KUBE-SERVICES -p tcp",
            "filter -A KUBE-NODEPORTS -p udp",
        ] {
            garbled(machine, &format!("-t {rule}"));
            let mut engine = machine.engine();
            engine.offer(everything(machine.family));
            let outcome = good(engine.sync(Instant::now()));
            assert_eq!(outcome.ops, 1, "{rule}");
            assert_same(&machine.read_back(), &wanted, rule);
        }
    });
}

#[test]
fn duplicates_and_what_stands_behind_the_last_are_mended_at_a_start() {
    inside(|machine| {
        let engine = started(machine);
        let wanted = wanted(&engine);
        drop(engine);
        machine.iptables("-t nat -I PREROUTING -m comment --comment kubernetes -j KUBE-SERVICES");
        machine.iptables("-t filter -I FORWARD -m comment --comment kubernetes -j KUBE-FORWARD");
        machine.iptables("-t nat -A KUBE-SERVICES -p tcp -m tcp --dport 1 -j KUBE-MARK-MASQ");
        let last = machine.iptables("-t nat -S KUBE-SERVICES");
        let last = last.lines().find(|line| line.ends_with("-j KUBE-NODEPORTS")).unwrap().to_owned();
        machine.restore(&format!("*nat\n{last}\n-I{}\nCOMMIT\n", last.strip_prefix("-A").unwrap()));
        let mut engine = machine.engine();
        engine.offer(everything(machine.family));
        good(engine.sync(Instant::now()));
        assert_same(&machine.read_back(), &wanted, "started again");
        let services = machine.iptables("-t nat -S KUBE-SERVICES");
        assert_eq!(services.matches("KUBE-NODEPORTS").count(), 1, "{services}");
        assert!(services.lines().last().unwrap().ends_with("-j KUBE-NODEPORTS"), "{services}");
    });
}

#[test]
fn units_go_without_a_trace() {
    inside(|machine| {
        let mut engine = started(machine);
        let mut gone = everything(machine.family);
        for unit in gone.units.values_mut() {
            if matches!(unit.as_deref(), Some(Unit::Service(_))) {
                *unit = None;
            }
        }
        engine.offer(gone);
        good(engine.sync(Instant::now()));
        assert_same(&machine.read_back(), &wanted(&engine), "without services");
        Box::new(engine).retire(&mut Vec::new()).unwrap();
        let left = machine.read_back();
        assert!(left.iter().all(Object::spare), "{left:?}");
    });
}
