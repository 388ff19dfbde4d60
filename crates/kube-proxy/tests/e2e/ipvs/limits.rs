//! The limits of connection tracking, in all modes: they belong to the initial network namespace, so that this test changes the machine
//! itself, which must be a virtual one.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{EXECUTABLE, folder};

const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";
/// The program that this machine was started for: no other machine has this file.
const JOB: &str = "/run/job/guest";

fn read(file: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    text.trim().parse().expect("a number")
}

/// Sets what these flags say; returns what the log says about the limits.
fn initialised(limits: &[&str]) -> Vec<String> {
    let manifests = folder("limits");
    fs::create_dir_all(&manifests).expect("making a folder");
    let manifests = manifests.to_str().expect("a path of this repository is text");
    let start = ["--init-only", "--proxy-mode=nftables", "--hostname-override=node", "--manifests", manifests];
    let output = Command::new(EXECUTABLE).args(start).args(limits).output().expect("starting the executable");
    let log = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{limits:?}: {log}");
    let about =
        |line: &&str| line.contains("\"Set sysctl\"") && (line.contains("conntrack_max") || line.contains("hashsize"));
    log.lines().filter(about).map(|line| line.split("] ").last().unwrap_or_default().to_owned()).collect()
}

#[test]
#[ignore = "changes the limits of the machine: runs in virtual machines"]
fn limits_of_connection_tracking_are_set() {
    assert!(Path::new(JOB).exists(), "this is no virtual machine");
    let limits = |per_core: u64, min: u64| {
        initialised(&[&format!("--conntrack-max-per-core={per_core}"), &format!("--conntrack-min={min}")])
    };
    let max = |value: u64| format!("\"Set sysctl\" entry=\"net.netfilter.nf_conntrack_max\" value=\"{value}\"");
    let buckets = |value: u64| format!("\"Set sysctl\" entry=\"{HASH_SIZE}\" value={value}");
    // Connection tracking may not be loaded before the first start.
    initialised(&[]);
    let before = read(HASH_SIZE);
    let min = 8 * before;
    assert_ne!(read(MAX), min);
    let log = limits(1, min);
    assert_eq!(log, [max(min), buckets(min / 4)], "the minimum, and four entries in each bucket");
    assert_eq!(read(MAX), min);
    let grown = read(HASH_SIZE);
    assert!(grown >= min / 4 && grown > before, "{before}, then {grown}");

    assert_eq!(limits(1, min), [""; 0], "nothing differs");
    assert_eq!(limits(0, 1), [""; 0], "without a number for each processor, the kernel's limit stays");
    assert_eq!(read(MAX), min);

    assert_eq!(limits(1, min - 4), [max(min - 4)], "a large table stays");
    assert_eq!(read(HASH_SIZE), grown);

    limits(2_000_000, 1);
    assert_eq!(read(MAX), 1 << 20, "a number for each processor has this limit");
    limits(2_000_000, 1_200_000);
    assert_eq!(read(MAX), 1_200_000, "the minimum has none");
    assert!(read(HASH_SIZE) >= 300_000);
}
