//! `kube-proxy verify`: nothing differs after a run, and damage is named with the Service, the packets and the repair.

use ferry_lab::iptables::{self, Backend, IptablesRules};
use ferry_lab::nft;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, Lab, LabMachine, Manifests, Protocol, Stage, TestService};

use crate::support::{EXECUTABLE, alone, folder, inspect};

fn manifests() -> Manifests {
    let all = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
    let both = [Protocol::Tcp, Protocol::Udp];
    Manifests::new()
        .with(TestService::new("web", 68).protocols(&both).node_port(30068), &all)
        .with(TestService::new("edge", 69).external_ip(69).external_local(), &all)
        .with(TestService::new("ranges", 70).load_balancer(170).source_ranges(&["203.0.113.0/24"]), &[LabMachine::PodA])
        .with(TestService::new("sticky", 71).affinity(600), &all)
        .without_endpoints(TestService::new("empty", 72).node_port(30072))
}

/// All packets to these Services meet what they should, in both families.
#[track_caller]
fn assert_right(stage: &Stage<'_>, more: &[&str], services: usize) {
    let (code, text) = inspect(stage, "verify", more);
    assert_eq!(code, Some(0), "{text}");
    for family in Family::ALL {
        let line = text.lines().find(|line| line.starts_with(&format!("{family} in mode "))).unwrap_or_default();
        let wanted = format!("packets to {services} Services meet the verdict that they should");
        assert!(line.contains(": all ") && line.ends_with(&wanted), "{text}");
    }
}

#[test]
fn damage_is_named_with_its_service_and_repair_in_mode_nftables() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("verify-nft"), ProxyConfig::default(), &manifests());
    stage.kill();
    assert_right(&stage, &["--all"], 6);
    assert_right(&stage, &["--sample", "2"], 2);
    nft::load(stage.node(), "delete element ip kube-proxy service-nodeports { tcp . 30068 }");
    let (code, text) = inspect(&stage, "verify", &[]);
    assert_eq!(code, Some(2), "{text}");
    let start: Vec<&str> = text.lines().take(3).collect();
    assert!(start[0].contains("IPv4 in mode nftables: ") && start[0].contains("don't meet the verdict"), "{text}");
    assert!(start[1].contains("  service demo/web: "), "{text}");
    assert!(start[2].contains(":30068/TCP: pass; should: forward to "), "{text}");
    assert!(text.contains("    a run would create element service-nodeports { tcp . 30068 "), "{text}");
    assert!(text.contains("IPv6 in mode nftables: all "), "{text}");
    nft::load(stage.node(), "flush ruleset");
    let (code, text) = inspect(&stage, "verify", &["--json"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains(r#""service": "demo/edge""#) && text.contains(r#""actual": "pass""#), "{text}");
    assert!(nft::list(stage.node()).trim().is_empty(), "a comparison writes nothing");
}

/// The lines about one family.
fn of_family(text: &str, family: Family) -> Vec<&str> {
    let is_head = |line: &&str| Family::ALL.iter().any(|family| line.starts_with(&format!("{family} in mode ")));
    let head = format!("{family} in mode ");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&head));
    let first = lines.next();
    first.into_iter().chain(lines.take_while(|line| !is_head(line))).collect()
}

/// The first three lines about a family name its table as missing, and then a Service.
#[track_caller]
fn assert_missing_table(text: &str, family: Family) {
    let lines = of_family(text, family);
    let line = |at: usize| lines.get(at).copied().unwrap_or_default();
    assert!(line(0).contains(" in mode nftables: ") && line(0).contains("don't meet the verdict"), "{text}");
    assert!(line(1).starts_with("  table kube-proxy is missing: another program has removed it, "), "{text}");
    assert!(line(2).starts_with("  service demo/"), "{text}");
}

#[test]
fn a_flush_by_another_program_is_named_first_in_mode_nftables() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("verify-flush"), ProxyConfig::default(), &manifests());
    stage.kill();
    nft::load(stage.node(), "delete table ip kube-proxy");
    let (code, text) = inspect(&stage, "verify", &[]);
    assert_eq!(code, Some(2), "{text}");
    assert_missing_table(&text, Family::V4);
    assert!(of_family(&text, Family::V6)[0].contains(": all "), "{text}");
    nft::load(stage.node(), "flush ruleset");
    let (code, text) = inspect(&stage, "verify", &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.starts_with("IPv4 in mode nftables: "), "{text}");
    Family::ALL.into_iter().for_each(|family| assert_missing_table(&text, family));
}

#[test]
fn emptied_chains_that_all_services_share_are_named_first() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("verify-emptied"), ProxyConfig::default(), &manifests());
    stage.kill();
    nft::load(stage.node(), "flush table ip kube-proxy");
    let (code, text) = inspect(&stage, "verify", &[]);
    assert_eq!(code, Some(2), "{text}");
    let lines = of_family(&text, Family::V4);
    assert!(lines[1].starts_with("  what all Services share: 0 to create, "), "{text}");
    assert!(lines[2].starts_with("    a run would replace chain "), "{text}");
    assert!(of_family(&text, Family::V6)[0].contains(": all "), "{text}");
}

#[test]
fn an_emptied_chain_is_named_with_its_service_in_mode_iptables() {
    let _turn = alone();
    let lab = Lab::new();
    iptables::hint(lab.host(LabMachine::Node), Backend::Nft);
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("verify-iptables"), ProxyConfig::iptables(), &manifests());
    stage.kill();
    assert_right(&stage, &[], 6);
    let rules = IptablesRules::of(stage.node(), Backend::Nft);
    let chain = rules.names(Family::V4, "nat").find(|name| name.starts_with("KUBE-SEP-")).expect("one").to_owned();
    iptables::run(stage.node(), Backend::Nft, Family::V4, &format!("-t nat -F {chain}"));
    let (code, text) = inspect(&stage, "verify", &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("  service demo/") && text.contains("; should: forward to "), "{text}");
    assert!(text.contains(&format!("    a run would replace chain nat {chain} ")), "{text}");
    iptables::run(stage.node(), Backend::Nft, Family::V4, "-t nat -F");
    let (code, text) = inspect(&stage, "verify", &[]);
    assert_eq!(code, Some(2), "{text}");
    let lines = of_family(&text, Family::V4);
    assert!(lines[0].contains(" in mode iptables: ") && lines[0].contains("don't meet the verdict"), "{text}");
    assert!(lines[1].starts_with("  what all Services share: "), "{text}");
    assert!(lines[2].starts_with("    a run would create "), "{text}");
}

#[test]
fn what_cannot_be_compared_is_an_error() {
    let _turn = alone();
    let lab = Lab::new();
    let stage = Stage::new(&lab, EXECUTABLE, &folder("verify-errors"), ProxyConfig::default(), &manifests());
    for (more, wanted) in [
        (&["--sample", "0"][..], "--sample 0: give a number of Services from 1 on"),
        (&["--sample", "3", "--all"], "--sample and --all exclude each other"),
        (&["--mode", "userspace"], "mode userspace holds its objects in the process that runs"),
    ] {
        let (code, text) = inspect(&stage, "verify", more);
        assert!(code == Some(1) && text.contains(wanted), "{more:?}: {text}");
    }
}
