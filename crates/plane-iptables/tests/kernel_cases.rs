//! Every case folder on the real kernel: loaded, read back, changed into the next one, and taken away.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panic")]

#[expect(dead_code, reason = "shared with tests that use more of it")]
#[path = "kernel/machine.rs"]
mod machine;
mod mode;

use std::path::Path;
use std::time::Instant;

use ferry_api::object::Family;
use ferry_kernel::iptables::Backend;
use ferry_kernel::netns::Namespace;
use ferry_modekit::{Case, Decided, cases, good};
use ferry_plane::{Delta, SyncEngine};
use machine::{Machine, assert_same, wanted};
use mode::ThisMode;

/// Of all cases, every `step`th from `first` on: tests run at the same time.
fn go_through(backend: Backend, family: Family, first: usize, step: usize) {
    let machine = Machine::new(backend, family);
    Namespace::new()
        .expect("root and CAP_SYS_ADMIN are needed")
        .run(|| {
            let mut engine = machine.engine();
            let mut before = Delta::default();
            for case in cases::all::<ThisMode>().iter().skip(first).step_by(step) {
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
            scope.spawn(move || go_through(Backend::Nft, family, 0, 1));
        }
    });
}

#[test]
fn every_case_becomes_the_next_one_in_legacy() {
    std::thread::scope(|scope| {
        for family in Family::ALL {
            scope.spawn(move || go_through(Backend::Legacy, family, 0, 1));
        }
    });
}

/// A text that upstream's proxy of this release has left, without the counters that not every kernel has.
fn left_by_upstream(version: &str, family: Family) -> String {
    let file = match family {
        Family::V4 => "iptables-save.txt",
        Family::V6 => "ip6tables-save.txt",
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/upstream/iptables");
    let saved = std::fs::read_to_string(folder.join(version).join(file)).unwrap();
    let counts_alone = |line: &&str| line.contains("localhost_nps_accepted_pkts");
    let lines = saved.lines().filter(|line| !counts_alone(line));
    lines.fold(String::new(), |text, line| {
        text + &line.replace(" -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts", "") + "\n"
    })
}

/// Chains by their names, entries wherever they stand, jumps in whatever order.
#[test]
fn what_upstream_has_left_is_taken_over_without_a_write() {
    let objects = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/upstream/iptables/objects.yaml"),
    )
    .unwrap();
    let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
                  clusterCIDR: 10.180.0.0/16\nhostnameOverride: node-a";
    let case = Case::of("upstream", config, &[objects]);
    let test = |machine: &Machine| {
        for version in ["1.30", "1.36"] {
            machine.restore(&left_by_upstream(version, machine.family));
            if machine.family == Family::V4 {
                ferry_kernel::sysctl::write("net/ipv4/conf/all/route_localnet", "1").unwrap();
            }
            let before = machine.saved();
            let mut engine = machine.engine();
            engine.offer(Decided::of::<ThisMode>(&case, machine.family).delta(&Delta::default()));
            let outcome = good(engine.sync(Instant::now()));
            assert_same(&machine.read_back(), &wanted(&engine), version);
            assert_eq!((outcome.ops, engine.kernel().counters().runs()), (0, 0), "{version}");
            assert_eq!(machine.saved(), before);
            Box::new(engine).retire().unwrap();
        }
    };
    machine::inside(test);
}
