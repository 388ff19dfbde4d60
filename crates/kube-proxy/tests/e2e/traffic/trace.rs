//! `kube-proxy trace`: a packet's way through what is in the kernel, where it leaves the model's, and what real packets meet.

use std::net::SocketAddr;
use std::time::Duration;

use ferry_lab::iptables::{self, Backend};
use ferry_lab::nft;
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, Lab, LabMachine, Manifests, Protocol, Stage, TestService};

use crate::support::{EXECUTABLE, alone, folder, inspect};

fn manifests() -> Manifests {
    let all = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
    Manifests::new()
        .with(TestService::new("web", 73).node_port(30073), &all)
        .without_endpoints(TestService::new("empty", 74).node_port(30074))
}

/// The exit code, and the output without the lines of the log, for a connection of pod A to the cluster IP of this number.
fn trace(stage: &Stage<'_>, family: Family, number: u16, more: &[&str]) -> (Option<i32>, String) {
    let connection = format!("{} -> {}", LabMachine::PodA.address(family), at_cluster_ip(family, number));
    let (code, text) = inspect(stage, "trace", &[&[connection.as_str()], more].concat());
    let of_the_log = |line: &&str| line.starts_with('E') || line.starts_with("watching for up to ");
    (code, text.lines().skip_while(of_the_log).map(|line| format!("{line}\n")).collect())
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
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-nft"), ProxyConfig::default(), &manifests());
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
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-foreign"), ProxyConfig::default(), &manifests());
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
fn a_real_packet_is_followed_to_the_foreign_rule_that_drops_it() {
    let _turn = alone();
    let lab = Lab::new();
    let manifests = Manifests::new().with(TestService::new("web", 75), &[LabMachine::PodB]);
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-live"), ProxyConfig::default(), &manifests);
    stage.kill();
    let live = |more: &[&str]| trace(&stage, Family::V4, 75, &[&["--live"], more].concat());
    let (code, text) = live(&["--seconds", "1"]);
    assert!(code == Some(2) && text.contains("\nlive: no such packet has come"), "{text}");

    let (endpoint, vip) = (LabMachine::PodB.address(Family::V4), at_cluster_ip(Family::V4, 75));
    let wall = format!("ip daddr {endpoint} tcp dport 8080 drop comment \"quarantine\"");
    nft::load(
        stage.node(),
        &format!("table inet wall {{ chain gate {{ type filter hook forward priority 0; {wall}; }}; }}"),
    );
    let client = lab.from(LabMachine::PodA).patience(Duration::from_millis(200)).hammer(Protocol::Tcp, vip);
    let (code, text) = live(&["--seconds", "20", "--packets", "2"]);
    assert_eq!(code, Some(2), "{text}");
    let start: Vec<&str> = text.lines().take(3).collect();
    assert_eq!(start[1], "the model decides the same", "{text}");
    assert!(start[2].starts_with("live: 2 of 2 packets ended in table inet wall, chain gate, by rule ["), "{text}");
    assert!(start[2].ends_with("[drop] comment \"quarantine\""), "{text}");
    assert!(
        text.contains("\nlive, packet 2:\n") && text.contains(&format!(" -> {vip} in hook prerouting\n")),
        "{text}"
    );
    assert!(text.contains(&format!(" -> {endpoint}:8080\n")), "the translation is seen: {text}");
    assert!(text.contains(" vmap @service-ips => goto "), "rules of a run are in their words: {text}");

    nft::load(stage.node(), "delete table inet wall");
    let (code, text) = live(&["--seconds", "20", "--json"]);
    assert!(code == Some(0) && text.contains(r#""ended": null"#), "{text}");
    assert!(text.contains("chain nat-postrouting, now ") && text.contains(&format!(" -> {endpoint}:8080")), "{text}");
    assert!(text.contains(" == 0x00000000 return => return\""), "{text}");
    client.stop();
    assert!(!nft::list(stage.node()).contains("kube-proxy-trace"), "its table is gone");
}

#[test]
fn a_real_packet_is_followed_through_the_rules_of_mode_iptables() {
    let _turn = alone();
    let lab = Lab::new();
    iptables::hint(lab.host(LabMachine::Node), Backend::Nft);
    let manifests = Manifests::new().with(TestService::new("web", 78), &[LabMachine::PodB]);
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-live-iptables"), ProxyConfig::iptables(), &manifests);
    stage.kill();
    let live = || trace(&stage, Family::V4, 78, &["--live", "--seconds", "20"]);
    let (endpoint, vip) = (LabMachine::PodB.address(Family::V4), at_cluster_ip(Family::V4, 78));
    let client = lab.from(LabMachine::PodA).patience(Duration::from_millis(200)).pause(Duration::from_millis(20));
    let client = client.hammer(Protocol::Tcp, vip);
    let (code, text) = live();
    assert_eq!(code, Some(0), "{text}");
    let met = "live: 1 of 1 packets met no rule of nf_tables that drops or refuses them";
    assert!(text.lines().any(|line| line == met), "{text}");
    for part in [
        format!(" -> {vip} in hook prerouting\n"),
        "  table ip nat, chain PREROUTING\n".to_owned(),
        " => jump KUBE-SERVICES\n".to_owned(),
        "chain KUBE-SERVICES: rule ".to_owned(),
        "chain KUBE-SEP-".to_owned(),
        "  table ip filter, chain FORWARD".to_owned(),
        format!(" -> {endpoint}:8080\n"),
    ] {
        assert!(text.contains(&part), "{part:?}: {text}");
    }

    // another program's rule, before those of the mode
    let wall = format!("-I FORWARD -p tcp -d {endpoint} --dport 8080 -j DROP");
    iptables::run(stage.node(), Backend::Nft, Family::V4, &wall);
    let (code, text) = live();
    assert_eq!(code, Some(2), "{text}");
    assert_eq!(text.lines().nth(1), Some("the model decides the same"), "{text}");
    let ended = "live: 1 of 1 packets ended in table ip filter, chain FORWARD, by rule ";
    assert!(text.lines().any(|line| line.starts_with(ended) && line.contains("[drop]")), "{text}");
    client.stop();
}

#[test]
fn real_packets_of_each_kind_are_followed() {
    let _turn = alone();
    let lab = Lab::new();
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let manifests = Manifests::new().with(TestService::new("web", 76).protocols(&all), &[LabMachine::PodB]);
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-kinds"), ProxyConfig::default(), &manifests);
    stage.kill();
    for family in Family::ALL {
        for protocol in all {
            for (from, hook) in [(LabMachine::PodA, "prerouting"), (LabMachine::Node, "output")] {
                let (source, vip) = (from.address(family), at_cluster_ip(family, 76));
                let client = lab.from(from).bound_to(source).pause(Duration::from_millis(20)).hammer(protocol, vip);
                let connection = format!("{source} -> {vip}/{protocol}");
                let (code, text) = inspect(&stage, "trace", &[&connection, "--live", "--seconds", "20"]);
                client.stop();
                assert_eq!(code, Some(0), "{connection}: {text}");
                let met = "live: 1 of 1 packets met no rule of nf_tables that drops or refuses them";
                assert!(text.lines().any(|line| line == met), "{connection}: {text}");
                assert!(text.contains(&format!(" -> {vip} in hook {hook}\n")), "{connection}: {text}");
                assert!(text.contains(" vmap @service-ips => goto "), "{connection}: {text}");
            }
        }
    }
}

#[test]
fn a_stale_conntrack_entry_is_printed_with_the_command_that_deletes_it() {
    let _turn = alone();
    let lab = Lab::new();
    let manifests = Manifests::new().with(TestService::new("dns", 77).protocols(&[Protocol::Udp]), &[LabMachine::PodB]);
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-stale"), ProxyConfig::default(), &manifests);
    stage.kill();
    for (family, gone) in [(Family::V4, "10.244.0.99"), (Family::V6, "fd00:244::99")] {
        let (client, vip) = (LabMachine::PodA.address(family), at_cluster_ip(family, 77));
        let (source, connection) = (client.to_string(), format!("{client} -> {vip}/UDP"));
        let (code, text) = inspect(&stage, "trace", &[&connection]);
        assert!(code == Some(0) && !text.contains("conntrack"), "{text}");

        let traffic = lab.from(LabMachine::PodA).pause(Duration::from_millis(20)).hammer(Protocol::Udp, vip);
        let (code, text) = inspect(&stage, "trace", &[&connection, "--live", "--seconds", "20"]);
        traffic.stop();
        assert!(code == Some(0) && text.contains(" to endpoints of new connections, 0 others\n"), "{text}");

        let (address, port) = (vip.ip().to_string(), vip.port().to_string());
        let original = ["-I", "-p", "udp", "-s", &source, "-d", &address, "--sport", "40000", "--dport", &port];
        let reply = ["-r", gone, "-q", &source, "--reply-port-src", "8080", "--reply-port-dst", "40000"];
        stage.node().sh("conntrack", &[&original[..], &reply, &["-t", "300", "-u", "SEEN_REPLY"]].concat());
        let (code, text) = inspect(&stage, "trace", &[&connection]);
        assert_eq!(code, Some(2), "{text}");
        let lines: Vec<&str> = text.lines().skip_while(|line| line.starts_with('E')).take(3).collect();
        let command = lines[2].rsplit_once(": conntrack ").map(|(_, arguments)| arguments).unwrap_or_default();
        assert_eq!(lines[1], "the model decides the same", "{text}");
        let leads_to = SocketAddr::new(gone.parse().unwrap(), 8080);
        assert!(
            lines[2].starts_with(&format!(
                "stale conntrack entry: the flow from port 40000 leads to {leads_to}, which is no endpoint here; "
            )),
            "{text}"
        );

        stage.node().sh("conntrack", &command.split(' ').collect::<Vec<_>>());
        let (code, text) = inspect(&stage, "trace", &[&connection, "--json"]);
        assert!(code == Some(0) && text.contains(r#""stale": 0"#), "{text}");
    }
}

#[test]
fn a_way_shows_each_rule_in_mode_iptables() {
    let _turn = alone();
    let lab = Lab::new();
    iptables::hint(lab.host(LabMachine::Node), Backend::Nft);
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-iptables"), ProxyConfig::iptables(), &manifests());
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

/// With detectLocalMode InterfaceNamePrefix the interface decides whether a connection to a cluster IP is masqueraded.
#[test]
fn the_interface_that_is_given_decides_where_a_connection_comes_from() {
    let _turn = alone();
    let lab = Lab::new();
    let manifests = Manifests::new().with(TestService::new("web", 79), &[LabMachine::PodB]);
    let by_interface = "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: vpod}";
    let config = ProxyConfig { cluster_cidr: None, ..ProxyConfig::with(by_interface) };
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("trace-interface"), config, &manifests);
    stage.kill();
    for family in Family::ALL {
        let (client, vip) = (LabMachine::PodA.address(family), at_cluster_ip(family, 79));
        let endpoint = SocketAddr::new(LabMachine::PodB.address(family), 8080);
        for (device, masqueraded, origin) in [
            ("vpoda", "", "a pod of this node (through vpod*)"),
            ("vcli", "+masquerade", "elsewhere, no pod of this node (through vpod*)"),
        ] {
            let (code, text) = trace(&stage, family, 79, &["--in", device]);
            assert_eq!(code, Some(0), "{device}: {text}");
            let start: Vec<&str> = text.lines().take(2).collect();
            assert!(start[0].ends_with(&format!(": forward to {endpoint}{masqueraded}")), "{device}: {text}");
            assert_eq!(start[1], "the model decides the same", "{device}: {text}");
            let connection = format!("{client} -> {vip}");
            let (code, text) = inspect(&stage, "explain", &[&connection, "--in", device]);
            assert!(code == Some(0) && text.contains(&format!("{client} is {origin}\n")), "{device}: {text}");
        }
    }
}

#[test]
fn what_is_no_connection_says_what_is() {
    let _turn = alone();
    let lab = Lab::new();
    let stage = Stage::new(&lab, EXECUTABLE, &folder("trace-errors"), ProxyConfig::default(), &manifests());
    for (asked, wanted) in [
        ("10.96.0.73:80", "\"10.96.0.73:80\" is not CLIENT -> IP:PORT[/PROTOCOL]"),
        ("web -> 10.96.0.73:80", "\"web\" is not an IP address"),
        ("fd00::1 -> 10.96.0.73:80", "addresses of two families"),
    ] {
        let (code, text) = inspect(&stage, "trace", &[asked]);
        assert!(code == Some(1) && text.contains(wanted), "{asked}: {text}");
    }
    for (more, wanted) in [
        (&["--packets", "2"][..], "--packets is about watching packets: give --live, too"),
        (&["--live", "--seconds", "0"], "--seconds: give a number from 1 to 3600"),
    ] {
        let (code, text) = inspect(&stage, "trace", &[&["192.0.2.1 -> 10.96.0.73:80"], more].concat());
        assert!(code == Some(1) && text.contains(wanted), "{more:?}: {text}");
    }
}
