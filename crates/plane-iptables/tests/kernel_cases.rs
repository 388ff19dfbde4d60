//! Every case folder on the real kernel: loaded, read back, changed into the next one, and deleted.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panic")]

#[expect(dead_code, reason = "shared with tests that use more of it")]
#[path = "kernel/machine.rs"]
mod machine;
mod mode;

use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_conformance::{Case, Decided, cases, good};
use ferry_kernel::ipset;
use ferry_kernel::iptables::Backend;
use ferry_kernel::netns::Namespace;
use ferry_lab::iptables::{create_counters, left_by_upstream};
use ferry_plane::{Delta, SyncEngine};
use ferry_plane_iptables::{Features, IptObject, IptablesEngine, retire_of_ipvs};
use machine::{FEATURES, Machine, assert_same, wanted};
use mode::ThisMode;

/// Applies one case after another, in one namespace.
fn go_through(backend: Backend, family: Family) {
    let machine = Machine::new(backend, family);
    Namespace::new()
        .expect("root and CAP_SYS_ADMIN are needed")
        .run(|| {
            let mut engine = machine.engine();
            let mut before = Delta::default();
            for case in cases::all::<ThisMode>().iter() {
                let next = Decided::of::<ThisMode>(case, family).delta(&before);
                engine.offer(next.clone());
                good(engine.sync(Instant::now()));
                wait_for_sets(&mut engine);
                assert_same(&machine.read_back(), &wanted(&engine), &case.name);
                before = next;
            }
            assert!(!good(engine.tend(Instant::now())).worked, "our own commits are no drift");
        })
        .unwrap();
}

/// Waits until sets that no rule names any more are deleted: a moment after the rules.
fn wait_for_sets(engine: &mut IptablesEngine) {
    let is_set = |object: &IptObject| matches!(object, IptObject::SourceSet(..));
    let wanted = engine.objects().iter().filter(|object| is_set(object)).count();
    let deadline = Instant::now() + Duration::from_secs(30);
    while ipset::sets().is_ok_and(|sets| sets.len() != wanted) {
        assert!(Instant::now() < deadline, "{:?}", ipset::sets());
        std::thread::sleep(Duration::from_millis(20));
        good(engine.tend(Instant::now()));
    }
}

#[test]
fn every_case_becomes_the_next_one_in_nft() {
    std::thread::scope(|scope| {
        for family in Family::ALL {
            scope.spawn(move || go_through(Backend::Nft, family));
        }
    });
}

#[test]
fn every_case_becomes_the_next_one_in_legacy() {
    std::thread::scope(|scope| {
        for family in Family::ALL {
            scope.spawn(move || go_through(Backend::Legacy, family));
        }
    });
}

/// Upstream's chains are found by name, owned rules at any position, and jumps in any order; release 1.30 has no counters.
#[test]
fn what_upstream_has_left_is_taken_over_without_a_write() {
    let objects = include_str!("../../../testdata/upstream/objects.yaml").to_owned();
    let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
                  clusterCIDR: 10.180.0.0/16\nhostnameOverride: node-a";
    let case = Case::of("upstream", config, &[objects]);
    let test = |machine: &Machine| {
        create_counters();
        for (version, counts) in [("1.30", false), ("1.36", true)] {
            machine.restore(&left_by_upstream(version, machine.family));
            if machine.family == Family::V4 {
                ferry_kernel::sysctl::write("net/ipv4/conf/all/route_localnet", "1").unwrap();
            }
            let before = machine.saved();
            let counts_localhost = counts && machine.family == Family::V4;
            let mut engine = machine.engine_of(Features { counts_invalid: counts, counts_localhost, ..FEATURES });
            engine.offer(Decided::of::<ThisMode>(&case, machine.family).delta(&Delta::default()));
            let outcome = good(engine.sync(Instant::now()));
            assert_same(&machine.read_back(), &wanted(&engine), version);
            assert_eq!((outcome.ops, engine.kernel().counters().runs()), (0, 0), "{version}");
            assert_eq!(machine.saved(), before);
            Box::new(engine).retire(&mut Vec::new()).unwrap();
        }
    };
    machine::inside(test);
}

/// The chains that only upstream's mode ipvs has: clean-up removes them with all others, but not a kubelet's.
#[test]
fn chains_of_upstreams_mode_ipvs_are_removed() {
    let test = |machine: &Machine| {
        let file = if machine.family == Family::V4 { "iptables-save.txt" } else { "ip6tables-save.txt" };
        machine.restore("*filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n");
        for version in ["1.30", "1.36"] {
            let path = format!("{}/../../testdata/upstream/ipvs/{version}/{file}", env!("CARGO_MANIFEST_DIR"));
            machine.restore(&without_ipvs(&std::fs::read_to_string(path).unwrap()));
            assert_eq!(retire_of_ipvs(machine.family).unwrap(), 6, "{version}");
            assert_eq!(retire_of_ipvs(machine.family).unwrap(), 0, "{version}");
            Box::new(machine.engine()).retire(&mut Vec::new()).unwrap();
            let of_proxy = |line: &String| line.contains("KUBE-");
            let left: Vec<String> = machine.saved().into_iter().filter(of_proxy).collect();
            assert_eq!(left, ["filter -A INPUT -j KUBE-FIREWALL", "filter :KUBE-FIREWALL -"], "{version}");
        }
    };
    machine::inside(test);
}

/// Takes out the matches that need ipsets and IPVS, which not every kernel has.
fn without_ipvs(saved: &str) -> String {
    let without = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        // `-m set --match-set NAME dst,dst`, `-m ipvs --vproto 6 --vaddr ADDRESS --vport PORT`
        for (module, length) in [("set", 5), ("ipvs", 8)] {
            while let Some(at) = words.windows(2).position(|pair| pair == ["-m", module]) {
                words.drain(at..at + length);
            }
        }
        words.join(" ")
    };
    saved.lines().map(|line| without(line) + "\n").collect()
}
