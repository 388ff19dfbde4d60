//! `kube-proxy plan`: nothing after a run, what is missing after damage, and how much of upstream's rules is equal.

use ferry_lab::iptables::{self, Backend, IptablesRules};
use ferry_lab::nft;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, Lab, LabMachine, Manifests, Stage, TestService};

use crate::support::{EXECUTABLE, alone, folder, inspect};

fn manifests() -> Manifests {
    let all = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
    Manifests::new()
        .with(TestService::new("web", 65).node_port(30065), &all)
        .with(TestService::new("edge", 66).external_ip(66).external_local(), &all)
        .with(TestService::new("ranges", 67).load_balancer(167).source_ranges(&["203.0.113.0/24"]), &[LabMachine::PodA])
}

#[track_caller]
fn assert_nothing(stage: &Stage<'_>) {
    let (code, text) = inspect(stage, "plan", &[]);
    assert_eq!(code, Some(0), "{text}");
    for family in Family::ALL {
        assert!(
            text.contains(&format!("{family} in mode ")) && text.contains(": nothing to change, 4 Services equal"),
            "{text}"
        );
    }
}

#[test]
fn nothing_is_planned_after_a_run_in_mode_nftables_and_damage_is() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("plan-nft"), ProxyConfig::default(), &manifests());
    assert_nothing(&stage);
    stage.kill();
    assert_nothing(&stage);
    nft::load(stage.node(), "delete element ip kube-proxy service-nodeports { tcp . 30065 }");
    let generation = nft::generation(stage.node());
    let (code, text) = inspect(&stage, "plan", &[]);
    assert_eq!(nft::generation(stage.node()), generation, "a plan commits nothing");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("IPv4 in mode nftables: 1 change: 3 Services equal, 1 differ\n"), "{text}");
    assert!(text.contains("  service demo/web: 1 to create, 0 to replace, 0 to delete\n"), "{text}");
    assert!(text.contains("IPv6 in mode nftables: nothing to change, 4 Services equal\n"), "{text}");
    nft::load(stage.node(), "flush ruleset");
    let (code, text) = inspect(&stage, "plan", &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("0 Services equal, 4 differ\n") && text.contains("  base: "), "{text}");
    assert!(nft::list(stage.node()).trim().is_empty(), "a plan writes nothing");
}

#[test]
fn rules_of_another_run_are_compared_in_mode_iptables() {
    let _turn = alone();
    let lab = Lab::new();
    iptables::hint(lab.host(LabMachine::Node), Backend::Nft);
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("plan-iptables"), ProxyConfig::iptables(), &manifests());
    assert_nothing(&stage);
    stage.kill();
    let before = IptablesRules::of(stage.node(), Backend::Nft);
    let web =
        before.names(Family::V4, "nat").find(|name| name.starts_with("KUBE-SEP-")).expect("an endpoint").to_owned();
    iptables::run(stage.node(), Backend::Nft, Family::V4, &format!("-t nat -F {web}"));
    let (code, text) = inspect(&stage, "plan", &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("IPv4 in mode iptables: 1 change: 3 Services equal, 1 differ\n"), "{text}");
    assert!(text.contains(&web), "{text}");
}
