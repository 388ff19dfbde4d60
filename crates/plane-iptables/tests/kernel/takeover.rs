//! Take-over: tables that another proxy has written, or writes at the same time.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_kernel::iptables::{Backend, Table};
use ferry_kernel::nfacct;
use ferry_lab::iptables::{create_counters, left_by_upstream};
use ferry_model::{Action, FrontendAddr, FrontendKind, Treatment};
use ferry_plane::{Delta, Served, SyncEngine, Unit};
use ferry_plane_iptables::object::{ChainId, OwnedRulesKey};
use ferry_plane_iptables::{Features, IptObject, IptablesCommitLock, IptablesEngine, in_use, names};

use crate::machine::{FEATURES, Machine, assert_same, inside, on, settle, wanted};
use ferry_conformance::good;
use ferry_conformance::states::{self, everything, pool};

fn started(machine: &Machine) -> IptablesEngine {
    let mut engine = machine.engine_with(IptablesCommitLock::default());
    engine.offer(everything(machine.family));
    good(engine.sync(Instant::now()));
    engine
}

fn plain(family: Family, last: u8) -> Delta {
    let mut delta = everything(family);
    delta.context = None;
    delta.units.retain(|id, _| id.to_string().ends_with("demo/plain"));
    for unit in delta.units.values_mut().flatten() {
        if let Unit::Service(state) = Arc::make_mut(unit) {
            state.ports.iter_mut().for_each(|port| port.cluster = pool(family, &[1, last]));
        }
    }
    delta
}

/// Rules that upstream's proxy left, of both releases, are deleted: all chains that are ours by name, and nothing else.
#[test]
fn what_upstream_has_left_is_read_and_goes() {
    inside(|machine| {
        create_counters();
        for version in ["1.30", "1.36"] {
            machine.restore(&left_by_upstream(version, machine.family));
            let objects = machine.read_back();
            assert!(objects.len() > 30, "{version}: {objects:?}");
            let text = format!("{objects:?}");
            assert!(!text.contains("Stray") && !text.contains("Jump(?)"), "{version}: {text}");
            let mut served = Vec::new();
            Box::new(machine.engine()).retire(&mut served).unwrap();
            let dual = if machine.family == Family::V4 { "10.96.0.110" } else { "fd00:96::110" };
            for at in [FrontendAddr::Vip(dual.parse().unwrap(), 80), FrontendAddr::NodePort(30110)] {
                assert!(served.contains(&Served::Frontend(Protocol::Tcp, at)), "{version}: {served:?}");
            }
            let left: Vec<String> = machine.saved().into_iter().filter(|line| line.contains("KUBE-")).collect();
            assert!(
                left.iter().all(|line| line.contains("KUBE-FIREWALL")
                    || line.contains("KUBE-KUBELET")
                    || line.contains("KUBE-IPTABLES")),
                "{version}: {left:?}"
            );
        }
    });
}

#[test]
fn a_proxy_that_is_behind_looks_only_at_what_the_change_is_about() {
    inside(|machine| {
        let (mut first, mut second) = (started(machine), started(machine));
        for last in 10..14 {
            first.offer(plain(machine.family, last));
            good(first.sync(Instant::now()));
            second.offer(plain(machine.family, last));
            let outcome = good(second.sync(Instant::now()));
            assert_eq!(outcome.acked.len(), 1, "{outcome:?}");
            // The legacy variant shows only that something changed.
            assert!(machine.backend == Backend::Legacy || !outcome.full, "{outcome:?}");
        }
        assert_same(&machine.read_back(), &wanted(&second), "both agree");
    });
}

#[test]
fn two_proxies_that_do_the_same_at_once_come_to_rest() {
    inside(|machine| {
        let namespace = ferry_kernel::netns::current().unwrap();
        let engines: Vec<IptablesEngine> = (0..2).map(|_| started(machine)).collect();
        let now = Instant::now();
        let mut engines: Vec<IptablesEngine> = std::thread::scope(|scope| {
            let run = |mut engine: IptablesEngine| {
                let namespace = &namespace;
                scope.spawn(move || {
                    namespace.enter().unwrap();
                    for round in 0..10 {
                        let mut delta = plain(machine.family, 10 + round);
                        if round % 3 == 2 {
                            delta.units.values_mut().for_each(|unit| *unit = None);
                        }
                        engine.offer(delta);
                        drop(engine.sync(now + Duration::from_secs(u64::from(round))));
                    }
                    engine
                })
            };
            let threads: Vec<_> = engines.into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for _ in 0..2 {
            for engine in &mut engines {
                settle(engine, now + Duration::from_secs(1000));
            }
        }
        let engine = engines.first().unwrap();
        assert_same(&machine.read_back(), &wanted(engine), "both agree");
    });
}

#[test]
fn rules_are_in_use_when_they_lead_to_services() {
    inside(|machine| {
        let uses = || in_use(machine.family).unwrap();
        assert!(!uses());
        let mut base = everything(machine.family);
        base.units.retain(|_, unit| matches!(unit.as_deref(), Some(Unit::Base(_))));
        let mut engine = machine.engine();
        engine.offer(base);
        good(engine.sync(Instant::now()));
        assert!(!uses());
        engine.offer(everything(machine.family));
        good(engine.sync(Instant::now()));
        assert!(uses());
        machine.iptables("-t nat -F KUBE-SERVICES");
        assert!(!uses());
    });
}

#[test]
fn the_counters_say_what_is_there_and_what_was_written() {
    inside(|machine| {
        let mut engine = started(machine);
        let count = |table: Table| {
            let (_, saved, _) = machine.run("-save", &["-t", table.name()], "");
            u64::try_from(saved.lines().filter(|line| line.starts_with("-A ")).count()).unwrap()
        };
        let counters = Arc::clone(engine.kernel().counters());
        for table in [Table::Filter, Table::Nat] {
            assert_eq!(counters.rules(table), count(table), "{table}");
            assert_eq!(counters.written(table), count(table), "{table}");
        }
        engine.offer(plain(machine.family, 99));
        good(engine.sync(Instant::now()));
        let sum: BTreeMap<&str, u64> = Table::ALL.map(|table| (table.name(), counters.rules(table))).into();
        assert_eq!(sum["nat"], count(Table::Nat));
        assert_eq!(counters.written(Table::Filter), 0);
        assert!((3..12).contains(&counters.written(Table::Nat)), "{}", counters.written(Table::Nat));
        assert_eq!((counters.runs(), counters.failures()), (2, 0));
    });
}

/// One rule made by nft in a table, and the tool prints nothing of it.
#[test]
fn a_table_with_rules_that_the_tool_does_not_know_is_read_chain_by_chain() {
    for family in Family::ALL {
        on(Backend::Nft, family, &|machine: &Machine| {
            let mut engine = started(machine);
            let tables = if machine.family == Family::V4 { "ip" } else { "ip6" };
            for table in ["nat", "filter"] {
                let rule = format!(
                    "add chain {tables} {table} theirs; add rule {tables} {table} theirs numgen random mod 2 0 accept"
                );
                assert!(Command::new("nft").arg(&rule).status().unwrap().success());
            }
            let (_, saved, _) = machine.run("-save", &["-t", "nat"], "");
            assert!(!saved.contains("KUBE-"), "{saved}");
            assert_same(&machine.read_back(), &wanted(&engine), "all of it");
            engine.offer(plain(machine.family, 77));
            good(engine.sync(Instant::now()));
            machine.iptables("-t nat -F KUBE-POSTROUTING");
            settle(&mut engine, Instant::now());
            assert_same(&machine.read_back(), &wanted(&engine), "mended");
            let mut again = machine.engine();
            let mut all = everything(machine.family);
            all.units.extend(plain(machine.family, 77).units);
            again.offer(all);
            assert_eq!(good(again.sync(Instant::now())).ops, 0);
        });
    }
}

/// Another program deletes objects that a commit of ours relies on, a moment before it.
#[test]
fn a_change_that_meets_damage_mends_what_it_needs() {
    inside(|machine| {
        let mut engine = started(machine);
        let dispatch = |machine: &Machine, last: u8| {
            let vip = states::address(machine.family, 96, last).to_string();
            let services = machine.iptables("-t nat -S KUBE-SERVICES");
            services.lines().find(|line| line.contains(&vip)).unwrap().rsplit_once(' ').unwrap().1.to_owned()
        };
        let plain_chain = dispatch(machine, 1);
        let endpoints = machine.iptables(&format!("-t nat -S {plain_chain}"));
        let endpoint = endpoints.lines().find_map(|line| line.rsplit_once("-j KUBE-SEP-")).unwrap().1.to_owned();
        let mut now = Instant::now();
        for (round, damage) in (10..).zip([
            format!("*nat\n:{plain_chain} - [0:0]\n:KUBE-SEP-{endpoint} - [0:0]\n-X KUBE-SEP-{endpoint}\nCOMMIT\n"),
            "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n".to_owned(),
            "*filter\n:KUBE-EXTERNAL-SERVICES - [0:0]\nCOMMIT\n*nat\n:KUBE-NODEPORTS - [0:0]\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n".to_owned(),
            "-t nat -F\n-t nat -X".to_owned(),
        ]) {
            match damage.starts_with('*') {
                true => machine.restore(&damage),
                false => damage.lines().for_each(|line| drop(machine.iptables(line))),
            }
            engine.offer(plain(machine.family, round));
            let outcome = engine.sync(now);
            assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{damage}: {outcome:?}");
            now = settle(&mut engine, now);
            assert_same(&machine.read_back(), &wanted(&engine), &damage);
            engine.offer(everything(machine.family));
            good(engine.sync(now));
            now = settle(&mut engine, now);
        }
    });
}

/// A chain with rules of several Services goes, and Services come one after the other before the repair.
#[test]
fn services_that_come_while_a_shared_chain_is_gone_all_stay() {
    for family in Family::ALL {
        on(Backend::Nft, family, &|machine: &Machine| {
            let mut engine = started(machine);
            machine.iptables("-t filter -F");
            machine.iptables("-t filter -X");
            let now = Instant::now();
            engine.tend(now);
            for number in [1, 2] {
                let at = FrontendAddr::Vip(states::address(family, 97, number), 80);
                let refusing = Treatment::all(Action::Reject);
                let frontend = states::frontend(FrontendKind::ClusterIp, at, refusing);
                let none = || pool(family, &[]);
                let port = states::port(Protocol::Tcp, none(), none(), vec![frontend]);
                let units = [states::service(&format!("late-{number}"), vec![port])].into();
                engine.offer(Delta { context: None, units });
                good(engine.sync(now));
            }
            settle(&mut engine, now);
            assert_same(&machine.read_back(), &wanted(&engine), "all of them");
        });
    }
}

/// Foreign rules in chains that we read: the tool prints none of their rules.
#[test]
fn rules_of_nft_in_chains_that_are_looked_at_keep_nobody_from_being_served() {
    for family in Family::ALL {
        on(Backend::Nft, family, &|machine: &Machine| {
            let tables = if machine.family == Family::V4 { "ip" } else { "ip6" };
            let nft = |command: &str| {
                let command = command.replace("TABLES", tables);
                assert!(Command::new("nft").arg(&command).status().unwrap().success(), "{command}");
            };
            machine.iptables("-t filter -A INPUT -p udp -j ACCEPT");
            nft("add rule TABLES filter INPUT ct count over 1000 drop");
            let mut engine = started(machine);
            assert_same(&machine.read_back(), &wanted(&engine), "in a built-in chain");
            let mut again = machine.engine();
            again.offer(everything(machine.family));
            assert_eq!(good(again.sync(Instant::now())).ops, 0, "a restart");
            machine.iptables("-t filter -D INPUT -j KUBE-FIREWALL");
            let now = settle(&mut engine, Instant::now());
            assert_same(&machine.read_back(), &wanted(&engine), "a jump was lost");
            // and where all rules are ours
            let services = machine.iptables("-t nat -S KUBE-SERVICES");
            let chain = services.lines().find_map(|line| line.rsplit_once("-j KUBE-SVC-")).unwrap().1.to_owned();
            for chain in ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-MARK-MASQ", &format!("KUBE-SVC-{chain}")] {
                nft(&format!("add rule TABLES nat {chain} ct count over 1000 drop"));
            }
            let now = settle(&mut engine, now);
            assert_same(&machine.read_back(), &wanted(&engine), "in chains of ours");
            engine.offer(plain(machine.family, 55));
            good(engine.sync(now));
            assert_same(&machine.read_back(), &wanted(&engine), "goes on");
            Box::new(engine).retire(&mut Vec::new()).unwrap();
            let left = machine.read_back();
            assert!(left.iter().all(ferry_plane::Object::spare), "{left:?}");
        });
    }
}

/// The number of rules in table nat's `KUBE-SERVICES` that jump, whether the tool can print the chain or not.
fn jumps_in_services(tables: &str) -> usize {
    let listed = Command::new("nft").args(["list", "chain", tables, "nat", "KUBE-SERVICES"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8(listed.stdout).unwrap().lines().filter(|line| line.contains("jump KUBE-")).count()
}

/// The number that the engine has in force there.
fn wanted_jumps(engine: &IptablesEngine) -> usize {
    let rules = |object: &IptObject| match object {
        IptObject::OwnedRules(
            OwnedRulesKey { chain: ChainId { table: Table::Nat, name: names::SERVICES }, .. },
            rules,
        ) => rules.len(),
        _ => 0,
    };
    wanted(engine).iter().map(rules).sum()
}

/// The tool can't print our rules either, and another program adds its rule again and again.
#[test]
fn a_change_keeps_the_other_rules_of_a_chain_that_cannot_be_printed() {
    for family in Family::ALL {
        on(Backend::Nft, family, &|machine: &Machine| {
            let tables = if machine.family == Family::V4 { "ip" } else { "ip6" };
            let mut engine = started(machine);
            let mut now = Instant::now();
            for round in 0..12 {
                let rule = format!("add rule {tables} nat KUBE-SERVICES ct count over 1000 drop");
                assert!(Command::new("nft").arg(&rule).status().unwrap().success());
                if round % 3 == 2 {
                    good(engine.tend(now));
                    now += Duration::from_millis(90);
                }
                // The Service goes in one round in two, and with it its rules.
                let mut delta = plain(machine.family, 55);
                if round % 2 == 0 {
                    delta.units.values_mut().for_each(|unit| *unit = None);
                }
                engine.offer(delta);
                good(engine.sync(now));
                assert_eq!(jumps_in_services(tables), wanted_jumps(&engine), "{tables} round {round}");
                now += Duration::from_millis(40);
            }
            settle(&mut engine, now);
            assert_same(&machine.read_back(), &wanted(&engine), "in the end");
        });
    }
}

/// Foreign rules in the chain that the kubelet uses too.
#[test]
fn other_rules_about_loopback_are_not_the_guard() {
    inside(|machine| {
        let theirs = match machine.family {
            Family::V4 => "-s 192.0.2.0/24 -d 127.0.0.1/32 -j DROP",
            Family::V6 => "-s 2001:db8::/32 -d ::1/128 -j DROP",
        };
        machine.restore(&format!("*filter\n:KUBE-FIREWALL - [0:0]\n-A KUBE-FIREWALL {theirs}\nCOMMIT\n"));
        let engine = started(machine);
        assert!(machine.iptables("-t filter -S KUBE-FIREWALL").contains(theirs));
        Box::new(engine).retire(&mut Vec::new()).unwrap();
        assert!(machine.iptables("-t filter -S KUBE-FIREWALL").contains(theirs));
    });
}

/// Counters that rules name are created again after they were deleted.
#[test]
fn counters_in_rules_are_read_back() {
    inside(|machine| {
        nfacct::create("ferry_test").expect("the kernel counts packets by nfacct");
        let all = Features { counts_invalid: true, counts_localhost: machine.family == Family::V4, ..FEATURES };
        let open = || machine.engine_of(all);
        let mut engine = open();
        engine.offer(everything(machine.family));
        good(engine.sync(Instant::now()));
        let wanted = wanted(&engine);
        assert_same(&machine.read_back(), &wanted, "counted");
        assert_eq!(nfacct::packets(names::INVALID_DROPPED).unwrap(), Some(0));
        let mut engine = open();
        engine.offer(everything(machine.family));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0);
        // The tool prints a superfluous blank, which doesn't matter for a deletion.
        Box::new(engine).retire(&mut Vec::new()).unwrap();
        assert!(machine.read_back().iter().all(ferry_plane::Object::spare));
    });
}

/// Restored however often another program deletes it: without the guard, `route_localnet` is a hole.
#[test]
fn the_guard_of_loopback_is_never_given_up() {
    for backend in Backend::ALL {
        on(backend, Family::V4, &|machine| {
            let mut engine = machine.engine_of(Features { guards_loopback: true, ..FEATURES });
            engine.offer(everything(machine.family));
            let mut now = Instant::now();
            good(engine.sync(now));
            for round in 0..8 {
                machine.iptables("-t filter -F KUBE-FIREWALL");
                for _ in 0..8 {
                    now += Duration::from_millis(250);
                    good(engine.tend(now));
                }
                let left = machine.iptables("-t filter -S KUBE-FIREWALL");
                assert!(left.contains("-d 127.0.0.0/8"), "{} round {round}: {left}", backend.name());
            }
        });
    }
}

/// Another program deletes everything again and again: repairs pause, except for the guard.
#[test]
fn the_guard_of_loopback_is_kept_while_all_the_rest_is_left_alone() {
    on(Backend::Nft, Family::V4, &|machine| {
        let mut engine = machine.engine_of(Features { guards_loopback: true, ..FEATURES });
        engine.offer(everything(machine.family));
        let mut now = Instant::now();
        good(engine.sync(now));
        let (mut contested, mut left_alone) = (false, false);
        for round in 0..8 {
            let gone = "add table ip nat; delete table ip nat; add table ip filter; delete table ip filter";
            assert!(Command::new("nft").arg(gone).status().unwrap().success());
            for _ in 0..8 {
                now += Duration::from_millis(250);
                contested |= good(engine.tend(now)).contested.contains(&"everything".to_owned());
            }
            let left = machine.saved();
            assert!(
                left.iter().any(|line| line.contains("-A KUBE-FIREWALL") && line.contains("-d 127.0.0.0/8")),
                "round {round}: {left:?}"
            );
            assert!(left.iter().any(|line| line == "filter -A INPUT -j KUBE-FIREWALL"), "round {round}: {left:?}");
            left_alone |= !left.iter().any(|line| line.contains("-j KUBE-SVC-"));
        }
        assert!(contested && left_alone);
    });
}
