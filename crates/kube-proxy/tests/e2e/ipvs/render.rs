//! What `kube-proxy render` prints is what a run has in the kernel: loaded by the tools, it is the same.

use std::collections::BTreeSet;

use ferry_lab::nft::{self, Ruleset};
use ferry_lab::{Host, LabMachine, Manifests, Protocol, Stage, TestService};

use crate::support::{EXECUTABLE, stage};

fn manifests() -> Manifests {
    let all = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
    Manifests::new()
        .with(
            TestService::new("web", 60).protocols(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]).node_port(30060),
            &all,
        )
        .with(TestService::new("edge", 61).external_ip(61).external_local().node_port(30061), &all)
        .with(TestService::new("sticky", 63).affinity(600).annotate("ferry.io/ipvs-scheduler", "wrr"), &all)
        .without_endpoints(TestService::new("empty", 64).node_port(30064).external_ip(64))
}

fn rendered(stage: &Stage<'_>, part: &str) -> String {
    let (config, manifests) = (stage.folder().join("config.yaml"), stage.folder().join("manifests"));
    let (config, manifests) = (config.display().to_string(), manifests.display().to_string());
    let here = ["--config", &config, "--manifests", &manifests, "--local-addresses", "machine"];
    stage.node().sh(EXECUTABLE, &[&["render", "--part", part], &here[..]].concat())
}

/// The table, the virtual servers with their destinations, and the addresses of the device.
fn state(node: &Host) -> (Ruleset, BTreeSet<String>, BTreeSet<String>) {
    let lines = |text: String| text.lines().map(|line| line.trim().to_owned()).collect();
    let addresses = node.sh("ip", &["-o", "address", "show", "dev", "kube-ipvs0"]);
    // The index of the device comes first.
    let addresses = addresses.lines().filter_map(|line| Some(line.split_once(": ")?.1.to_owned())).collect();
    (Ruleset::of(node), lines(node.sh("ipvsadm", &["--save", "--numeric"])), addresses)
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn tools_load_what_runs() {
    let mut stage = stage(&manifests());
    let [table, servers, addresses] = ["nft", "ipvsadm", "addresses"].map(|part| rendered(&stage, part));
    stage.kill();
    let node = stage.node();
    let running = state(node);
    assert!(running.1.len() > 30 && running.2.len() > 6, "{running:#?}");
    node.sh("ipvsadm", &["--clear"]);
    node.sh("ip", &["link", "delete", "kube-ipvs0"]);
    nft::load(node, &format!("flush ruleset\n{table}"));
    node.feed("ipvsadm", &["--restore"], &servers).expect("servers that load");
    node.feed("ip", &["-batch", "-"], &addresses).expect("addresses that load");
    let loaded = state(node);
    stage.restart();
    let difference = running.0.essence().difference(&loaded.0.essence());
    assert!(difference.is_empty(), "{difference}");
    assert_eq!((running.1, running.2), (loaded.1, loaded.2));
}
