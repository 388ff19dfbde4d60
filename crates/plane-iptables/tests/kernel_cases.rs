//! Every case folder on the real kernel: loaded, read back, changed into the next one, and deleted.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panic")]

#[expect(dead_code, reason = "shared with tests that use more of it")]
#[path = "kernel/machine.rs"]
mod machine;
mod mode;

use std::time::Instant;

use ferry_api::object::Family;
use ferry_conformance::{Case, Decided, cases, good};
use ferry_kernel::iptables::Backend;
use ferry_kernel::netns::Namespace;
use ferry_lab::iptables::{create_counters, left_by_upstream};
use ferry_plane::{Delta, SyncEngine};
use ferry_plane_iptables::Features;
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
                assert_same(&machine.read_back(), &wanted(&engine), &case.name);
                before = next;
            }
            assert!(!good(engine.tend(Instant::now())).worked, "our own commits are no drift");
        })
        .unwrap();
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
