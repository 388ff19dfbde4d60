//! Ipsets of many source ranges on the real kernel, in both variants of the tool and both families. A kernel without ipset gets rules.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::machine::{Machine, assert_same, inside, settle, wanted};
use crate::mode::ThisMode;
use ferry_api::object::Family;
use ferry_conformance::{Case, Decided, good};
use ferry_kernel::ipset::{self, Destroyed};
use ferry_plane::{Delta, Next, SyncEngine};
use ferry_plane_iptables::{IptObject, IptablesEngine, retire_sets, retiring};

/// A load balancer with so many ranges in each family.
fn offered(machine: &Machine, ranges: u32, before: &Delta) -> Delta {
    let v4 = (0..ranges).map(|number| format!("10.{}.{}.0/25", 66 + number / 200, number % 200));
    let v6 = (0..ranges).map(|number| format!("\"2001:db8:66:{number:x}::/64\""));
    let list = v4.chain(v6).collect::<Vec<_>>().join(", ");
    let objects = include_str!("../../../../testdata/cases/source-ranges-neighbours/objects.yaml");
    let (head, rest) = objects.split_once("  loadBalancerSourceRanges:\n").unwrap();
    let (_, tail) = rest.split_once("status:\n").unwrap();
    let objects = format!("{head}  loadBalancerSourceRanges: [{list}]\nstatus:\n{tail}");
    let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
                  clusterCIDR: 10.244.0.0/16,fd00:10:244::/56\nhostnameOverride: node-a";
    Decided::of::<ThisMode>(&Case::of("many", config, &[objects]), machine.family).delta(before)
}

/// The members of all sets of source ranges.
fn members(machine: &Machine) -> Vec<usize> {
    let sets = machine.read_back().into_iter().filter_map(|object| match object {
        IptObject::SourceSet(_, nets) => Some(nets.len()),
        _ => None,
    });
    sets.collect()
}

fn ipset(arguments: &str) {
    let status = Command::new("ipset").args(arguments.split(' ')).status().expect("ipset is needed");
    assert!(status.success(), "ipset {arguments}");
}

/// Runs a test with an engine that has made a set of 300 ranges.
fn with_set(test: impl Fn(&Machine, &mut IptablesEngine, Delta, Instant) + Send + Sync) {
    inside(|machine| {
        let mut engine = machine.engine();
        let now = Instant::now();
        let offer = offered(machine, 300, &Delta::default());
        engine.offer(offer.clone());
        good(engine.sync(now));
        assert_same(&machine.read_back(), &wanted(&engine), "first");
        if machine.has_sets() {
            assert_eq!(members(machine), [300]);
            test(machine, &mut engine, offer, now);
        } else {
            assert!(members(machine).is_empty(), "rules");
        }
    });
}

#[test]
fn sets_come_change_and_go_with_their_service() {
    with_set(|machine, engine, first, now| {
        // A changed list needs no run of the tool.
        let runs = engine.kernel().counters().runs();
        let second = offered(machine, 1200, &first);
        engine.offer(second.clone());
        good(engine.sync(now));
        assert_eq!((members(machine), engine.kernel().counters().runs()), (vec![1200], runs));
        // Few ranges are rules, and many a set again before the old one has been deleted.
        let few = offered(machine, 5, &second);
        engine.offer(few.clone());
        good(engine.sync(now));
        let is_set = |object: &IptObject| matches!(object, IptObject::SourceSet(..));
        let rules: Vec<_> = machine.read_back().into_iter().filter(|object| !is_set(object)).collect();
        assert_same(&rules, &wanted(engine), "few");
        assert!(!wanted(engine).iter().any(is_set));
        let many = offered(machine, 70, &few);
        engine.offer(many.clone());
        good(engine.sync(now));
        assert_eq!(members(machine), [70]);
        engine.offer(offered(machine, 5, &many));
        good(engine.sync(now));
        // The kernel frees the rule, which refers to the set, later.
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut later = now;
        while !ipset::sets().unwrap().is_empty() {
            assert!(Instant::now() < deadline, "{:?}", ipset::sets());
            std::thread::sleep(Duration::from_millis(20));
            later += Duration::from_secs(11);
            good(engine.tend(later));
        }
    });
}

#[test]
fn damage_of_a_set_is_noticed_by_its_size_and_mended() {
    with_set(|machine, engine, _, now| {
        let set = ipset::sets().unwrap().remove(0).name;
        let range = match machine.family {
            Family::V4 => "192.0.2.0/24",
            Family::V6 => "2001:db8:99::/48",
        };
        let now = settle(engine, now);
        for (number, damage) in [format!("flush {set}"), format!("add {set} {range}")].iter().enumerate() {
            ipset(damage);
            let noticed = now + (1 + u32::try_from(number).unwrap()) * Duration::from_secs(11);
            let Next::RetryAfter(pause) = good(engine.tend(noticed)).next else { panic!("no comparison is due") };
            let outcome = good(engine.tend(noticed + pause));
            assert_eq!(outcome.repairs, 1, "{damage}: {outcome:?}");
            assert_same(&machine.read_back(), &wanted(engine), damage);
        }
        assert_eq!(ipset::sets().unwrap().len(), 1, "nothing is left of the replacements");
    });
}

#[test]
fn a_restart_adopts_sets_and_deletes_those_that_nobody_wants() {
    with_set(|machine, _, offer, _| {
        let orphan = "FERRY-SRC-ABCDEFGHIJKLMNOP";
        let mut next = machine.engine();
        next.offer(offer);
        let outcome = good(next.sync(Instant::now()));
        assert_eq!((outcome.ops, next.kernel().counters().runs()), (0, 0), "{outcome:?}");
        drop(next);
        // An earlier process ended before it had put a set in place, or before it could delete one.
        let unfinished = "FERRY-NXT-ABCDEFGHIJKLMNOP";
        for name in [orphan, unfinished] {
            ipset::create_nets(name, machine.family, &[]).unwrap();
        }
        let mut next = machine.engine();
        next.offer(offered(machine, 300, &Delta::default()));
        assert_eq!(good(next.sync(Instant::now())).ops, 1);
        // The sets' times are those of the clock, since the deletions were planned by a commit.
        for seconds in [1, 2] {
            good(next.tend(Instant::now() + Duration::from_secs(seconds)));
        }
        assert!(ipset::sets().unwrap().iter().all(|set| set.name != orphan && set.name != unfinished));
    });
}

/// The other variant's rules may name them.
#[test]
fn sets_go_by_themselves_once_no_rule_names_them() {
    with_set(|machine, _, _, _| {
        let set = ipset::sets().unwrap().remove(0).name;
        assert_eq!(retire_sets(machine.family).unwrap(), Destroyed { count: 0, referred: Some(set) });
        let rules = SyncEngine::retire(Box::new(retiring(machine.tool())), &mut Vec::new()).unwrap();
        assert!(rules > 0);
        assert_eq!(ipset::sets().unwrap().len(), 1, "the rules' engine deletes no set");
        // The kernel frees the rule, which refers to it, later.
        let deadline = Instant::now() + Duration::from_secs(30);
        while retire_sets(machine.family).unwrap() != (Destroyed { count: 1, referred: None }) {
            assert!(Instant::now() < deadline && ipset::sets().unwrap().len() == 1);
        }
        assert_eq!(SyncEngine::retire(Box::new(retiring(machine.tool())), &mut Vec::new()).unwrap(), 0);
    });
}
