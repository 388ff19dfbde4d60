//! What `kube-proxy render` prints is what a run has in the kernel: loaded by the tools, it is the same.

use ferry_lab::iptables::{self, Backend, IptablesRules};
use ferry_lab::nft::{self, Ruleset};
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, Lab, LabMachine, Manifests, Protocol, Stage, TestService};

use crate::support::{EXECUTABLE, alone, folder};

fn manifests() -> Manifests {
    let all = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
    Manifests::new()
        .with(
            TestService::new("web", 60).protocols(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]).node_port(30060),
            &all,
        )
        .with(TestService::new("edge", 61).external_ip(61).external_local().node_port(30061), &all)
        .with(
            TestService::new("ranges", 62).load_balancer(162).source_ranges(&["203.0.113.0/24", "fd00:cc::/64"]),
            &[LabMachine::PodA],
        )
        // nft 1.0.6 can't load the rule that records an endpoint for IPv6 clients.
        .with(TestService::new("sticky", 63).affinity(600).only(Family::V4), &all)
        .without_endpoints(TestService::new("empty", 64).node_port(30064).external_ip(64))
}

/// The part of a running proxy's input, as rendered on its node.
fn rendered(stage: &Stage<'_>, part: &str) -> String {
    let folder = stage.folder();
    let (config, manifests) = (folder.join("config.yaml"), folder.join("manifests"));
    let (config, manifests) = (config.display().to_string(), manifests.display().to_string());
    stage.node().sh(EXECUTABLE, &["render", "--config", &config, "--manifests", &manifests, "--part", part])
}

#[test]
fn nft_loads_what_runs() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("render-nft"), ProxyConfig::default(), &manifests());
    let text = rendered(&stage, "nft");
    stage.kill();
    let running = Ruleset::of(stage.node());
    nft::load(stage.node(), &format!("flush ruleset\n{text}"));
    let loaded = Ruleset::of(stage.node());
    let difference = running.essence().difference(&loaded.essence());
    assert!(difference.is_empty(), "{difference}");
}

#[test]
fn iptables_restore_loads_what_runs() {
    let _turn = alone();
    let lab = Lab::new();
    iptables::hint(lab.host(LabMachine::Node), Backend::Nft);
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("render-iptables"), ProxyConfig::iptables(), &manifests());
    let texts =
        [(Family::V4, "iptables"), (Family::V6, "ip6tables")].map(|(family, part)| (family, rendered(&stage, part)));
    stage.kill();
    let running = IptablesRules::of(stage.node(), Backend::Nft);
    nft::load(stage.node(), "flush ruleset");
    iptables::hint(stage.node(), Backend::Nft);
    for (family, text) in &texts {
        iptables::restore(stage.node(), Backend::Nft, *family, text);
    }
    let difference =
        running.sorted_dispatch().difference(&IptablesRules::of(stage.node(), Backend::Nft).sorted_dispatch());
    assert!(difference.is_empty(), "{difference}");
}
