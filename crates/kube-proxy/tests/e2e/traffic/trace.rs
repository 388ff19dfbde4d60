//! `kube-proxy trace`: a packet's way through what is in the kernel, and where it leaves the model's.

use ferry_lab::iptables::{self, Backend};
use ferry_lab::nft;
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::proxy::Config;
use ferry_lab::{Family, Lab, Manifests, Place, Service, Stage};

use crate::support::{EXECUTABLE, alone, folder, inspect};

fn manifests() -> Manifests {
    let all = [Place::PodA, Place::PodB, Place::Far];
    Manifests::new()
        .with(Service::new("web", 73).node_port(30073), &all)
        .without_endpoints(Service::new("empty", 74).node_port(30074))
}

/// The exit code, and the output without the lines of the log, for a connection of pod A to the cluster IP of this number.
fn trace(stage: &Stage<'_>, family: Family, number: u16, more: &[&str]) -> (Option<i32>, String) {
    let connection = format!("{} -> {}", Place::PodA.address(family), at_cluster_ip(family, number));
    let (code, text) = inspect(stage, "trace", &[&[connection.as_str()], more].concat());
    (code, text.lines().skip_while(|line| line.starts_with('E')).map(|line| format!("{line}\n")).collect())
}

/// The packet meets what it should, in both families, and its way has these lines.
#[track_caller]
fn assert_way(stage: &Stage<'_>, number: u16, lines: &[&str]) {
    for family in Family::ALL {
        let (code, text) = trace(stage, family, number, &[]);
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(text.lines().nth(1), Some("the model decides the same"), "{text}");
        for line in lines {
            assert!(text.lines().any(|met| met.trim().starts_with(line)), "{line}: {text}");
        }
    }
}

#[test]
fn a_way_shows_each_object_and_what_is_missing_in_mode_nftables() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-nft"), Config::default(), &manifests());
    stage.kill();
    let common = ["hook prerouting, chain ", "element service-ips { "];
    assert_way(
        &stage,
        73,
        &[&common[..], &["=> forward to ", "or by another choice:", "hook postrouting, chain "]].concat(),
    );
    assert_way(&stage, 74, &["=> reject"]);
    let table = nft::list(stage.node());
    let (code, text) = trace(&stage, Family::V4, 73, &["--json"]);
    assert!(code == Some(0) && text.contains(r#""repair": null"#) && text.contains(r#""depth": 0"#), "{text}");
    assert_eq!(nft::list(stage.node()), table, "a trace writes nothing");

    let vip = at_cluster_ip(Family::V4, 73);
    let (vip, port) = (vip.ip(), vip.port());
    nft::load(stage.node(), &format!("delete element ip kube-proxy service-ips {{ {vip} . tcp . {port} }}"));
    let (code, text) = trace(&stage, Family::V4, 73, &[]);
    assert_eq!(code, Some(2), "{text}");
    let start: Vec<&str> = text.lines().take(3).collect();
    assert!(!start[0].contains("forward to"), "{text}");
    assert!(start[1].starts_with("the model decides otherwise: forward to "), "{text}");
    assert!(
        start[2].starts_with(&format!("a run would create element service-ips {{ {vip} . tcp . {port} ")),
        "{text}"
    );
    assert_way(&stage, 74, &["=> reject"]);
}

#[test]
fn a_foreign_rule_is_on_the_way_that_it_ends() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-foreign"), Config::default(), &manifests());
    stage.kill();
    let (_, text) = trace(&stage, Family::V4, 73, &[]);
    let hook = text.lines().find_map(|line| line.trim().strip_prefix("hook prerouting, chain ")).expect("a chain");
    let chain = hook.split(' ').next().unwrap_or_default();
    nft::load(stage.node(), &format!("insert rule ip kube-proxy {chain} meta l4proto tcp drop"));
    let (code, text) = trace(&stage, Family::V4, 73, &[]);
    assert_eq!(code, Some(2), "{text}");
    let start: Vec<&str> = text.lines().take(3).collect();
    assert!(start[0].ends_with(": drop"), "{text}");
    assert!(start[2].starts_with(&format!("a run would replace chain {chain} ")), "{text}");
    assert!(text.contains("[reg8 = l4proto] [reg8 == 0x06] [drop]\n  => drop\n"), "{text}");
}

#[test]
fn a_way_shows_each_rule_in_mode_iptables() {
    let _turn = alone();
    let lab = Lab::new();
    iptables::hint(lab.host(Place::Node), Backend::Nft);
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-iptables"), Config::iptables(), &manifests());
    stage.kill();
    assert_way(&stage, 73, &["table nat, chain PREROUTING", "table filter, chain FORWARD", "=> forward to "]);
    assert_way(&stage, 74, &["table filter, chain FORWARD", "=> reject"]);
    let (_, text) = trace(&stage, Family::V4, 73, &[]);
    assert!(text.contains(" -j KUBE-SERVICES\n") && text.contains(" -j DNAT --to-destination "), "{text}");
    iptables::run(stage.node(), Backend::Nft, Family::V4, "-t nat -F KUBE-SERVICES");
    let (code, text) = trace(&stage, Family::V4, 73, &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.lines().nth(1).is_some_and(|line| line.starts_with("the model decides otherwise: forward to ")),
        "{text}"
    );
    assert!(text.contains("a run would "), "{text}");
}

#[test]
fn what_is_no_connection_says_what_is() {
    let _turn = alone();
    let lab = Lab::new();
    let stage = Stage::new(&lab, EXECUTABLE, &folder("trace-errors"), Config::default(), &manifests());
    for (asked, wanted) in [
        ("10.96.0.73:80", "\"10.96.0.73:80\" is not CLIENT -> IP:PORT[/PROTOCOL]"),
        ("web -> 10.96.0.73:80", "\"web\" is not an IP address"),
        ("fd00::1 -> 10.96.0.73:80", "addresses of two families"),
    ] {
        let (code, text) = inspect(&stage, "trace", &[asked]);
        assert!(code == Some(1) && text.contains(wanted), "{asked}: {text}");
    }
}
