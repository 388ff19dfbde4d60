//! Changes of mode under traffic, and the end of the mode.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferry_lab::objects::{at_cluster_ip, at_node_port};
use ferry_lab::patience::{slowly, until};
use ferry_lab::probe::{Echo, Hammer, Held};
use ferry_lab::proxy::{IPTABLES, IPVS, NFTABLES, ProxyConfig, USERSPACE};
use ferry_lab::{Family, Host, LabMachine, Manifests, ProbeOutcome, Protocol, ProxyProcess, Stage, TestService};

use crate::support::{
    Server, ask_from_port, devices, ipvs, leftovers, run_to_end, run_to_end_without_tools, servers, stage_with,
};

/// The port of the echo servers in pods.
const ECHO: u16 = 8180;
/// The port of UDP clients.
const FLOW_PORT: u16 = 5007;
/// Time limit of an answer to a flow after a change.
const FLOWS: Duration = Duration::from_secs(5);
/// Time limit of the end of rules that wait for connections: their removal is tried again after up to a minute.
const CLEARED: Duration = Duration::from_secs(30);

fn manifests() -> Manifests {
    let long = TestService::new("long", 2).node_port(30002);
    let endpoints = long.endpoints(ECHO, &[LabMachine::PodA]);
    Manifests::new()
        .with(TestService::new("short", 1).node_port(30001), &[LabMachine::PodA, LabMachine::Far])
        .with_endpoints(long, endpoints)
        .with(
            TestService::new("flow", 4).node_port(30004).protocols(&[Protocol::Udp]),
            &[LabMachine::PodA, LabMachine::Far],
        )
        .without_endpoints(TestService::new("empty", 3).node_port(30003).external_ip(3))
}

/// A cluster IP and a node port for each family, of the service with this number.
fn frontends(number: u16) -> Vec<(LabMachine, SocketAddr)> {
    let of = |family| {
        [(LabMachine::PodB, at_cluster_ip(family, number)), (LabMachine::Client, at_node_port(family, 30000 + number))]
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

/// True if nothing of this mode is left on the node. In both modes that have one, the next mode's table may have replaced it.
fn is_cleared(node: &Host, mode: &str) -> bool {
    match mode {
        IPVS => servers(node).is_empty() && devices(node).is_empty(),
        NFTABLES | USERSPACE => !node.sh("nft", &["list", "tables"]).contains("kube-proxy"),
        _ => ferry_lab::iptables::IptablesRules::of(node, ferry_lab::iptables::Backend::Nft).of_proxy().is_empty(),
    }
}

/// `ipvsadm` shows every Service with its endpoints.
fn assert_listed(node: &Host) {
    let listed = servers(node);
    for (number, endpoints) in [(1, 2), (2, 1), (3, 0)] {
        for (_, at) in frontends(number) {
            let name = format!("TCP {at}");
            let server = listed.iter().find(|server| server.name == name);
            let serving = server.map(|server| server.endpoints.iter().filter(|real| real.weight > 0).count());
            assert_eq!(serving, Some(endpoints), "{name}: {listed:?}");
        }
    }
}

/// The flows from all places go on, wherever they lead: an entry that leads to what has served before would lose each packet.
fn assert_flows(stage: &Stage<'static>, when: &str) {
    let patience = slowly(Duration::from_millis(300));
    for (place, at) in frontends(4) {
        until(&format!("{when}: an answer to the flow from {place:?} to {at}"), FLOWS, || {
            ask_from_port(stage.lab, (place, FLOW_PORT), at, patience).all_answered()
        });
    }
}

fn hammers(stage: &Stage<'static>) -> Vec<(SocketAddr, Hammer)> {
    let start = |(place, to)| {
        let client = stage.lab.from(place).patience(slowly(Duration::from_secs(3)));
        (to, client.hammer(Protocol::Tcp, to))
    };
    frontends(1).into_iter().map(start).collect()
}

/// The number of connections, and those that failed, with the time since this start at which they began.
fn stop(hammers: Vec<(SocketAddr, Hammer)>, start: Instant) -> (usize, Vec<String>) {
    let (mut connections, mut failed) = (0, Vec::new());
    for (at, hammer) in hammers {
        for (begun, outcome) in hammer.stop() {
            connections += 1;
            if !matches!(outcome, ProbeOutcome::Answered(_)) {
                let after = begun.saturating_duration_since(start);
                failed.push(format!("{at}: {outcome:?}, begun after {after:.3?}"));
            }
        }
    }
    (connections, failed)
}

/// Ends the process, and starts it in another mode. Returns the length of the log before.
fn restart_in(stage: &mut Stage<'static>, to: &'static str) -> usize {
    stage.terminate();
    stage.reset(&ProxyConfig { mode: to, ..ipvs("") }, &manifests());
    0
}

/// Changes the mode in the configuration file of the running process. Returns the length of the log before.
fn reload_in(stage: &mut Stage<'static>, to: &'static str) -> usize {
    let logged = stage.proxy.log().len();
    stage.reconfigure(&ProxyConfig { mode: to, ..ipvs("") });
    let begins = format!("\"Using {to} Proxier\"");
    stage.proxy.wait_for("a run in the new mode", |proxy| since(proxy, logged).contains(&begins));
    logged
}

/// The log from this length on.
fn since(proxy: &ProxyProcess<'_>, logged: usize) -> String {
    proxy.log().split_off(logged)
}

/// One step, from the mode that runs to another.
fn change(
    stage: &mut Stage<'static>,
    from: &str,
    to: &'static str,
    begin: fn(&mut Stage<'static>, &'static str) -> usize,
) {
    let lab = stage.lab;
    // Relayed connections end with their run.
    let kept = if from == USERSPACE { Vec::new() } else { frontends(2) };
    assert_flows(stage, "before");
    let held: Vec<Held> = kept.into_iter().map(|(place, at)| Held::open(lab.host(place), &[at], 1)).collect();
    let (hammers, start) = (hammers(stage), Instant::now());
    let logged = begin(stage, to);
    let begun = start.elapsed();
    stage.proxy.wait_until_synced(&Family::ALL);
    let synced = start.elapsed();
    if from == IPVS {
        let waits = "Keeping rules of an earlier run until the connections";
        stage.proxy.wait_for("servers that wait", |proxy| since(proxy, logged).matches(waits).count() == 2);
    } else {
        until("no rules of the former mode", CLEARED, || {
            from != IPTABLES && to == IPVS || is_cleared(lab.host(LabMachine::Node), from)
        });
    }
    let cleared = start.elapsed();
    assert_flows(stage, "in force");
    if to == IPVS {
        assert_listed(lab.host(LabMachine::Node));
    }
    let (connections, mut failed) = stop(hammers, start);
    let mut exchanges = 0;
    for held in held {
        let fate = held.finish();
        exchanges += fate.exchanges;
        failed.extend(fate.broken);
    }
    println!("{from} to {to}: {connections} connections, {exchanges} exchanges, {} failed", failed.len());
    let times = format!("changed after {begun:.3?}, synced after {synced:.3?}, cleared after {cleared:.3?}");
    assert!(failed.is_empty(), "{from} to {to}, {times}: {failed:?}\n{}", since(&stage.proxy, logged));
    if from == IPVS {
        stage.proxy.wait_for("end of the virtual servers", |_| {
            std::thread::sleep(Duration::from_millis(100));
            is_cleared(lab.host(LabMachine::Node), from)
        });
        assert_flows(stage, "without virtual servers");
    }
}

/// Changes into and out of mode ipvs.
const RESTARTS: &[&str] = &[NFTABLES, IPVS, IPTABLES, IPVS, NFTABLES];
/// Also of mode userspace, which accepts no connection between two processes.
const RELOADS: &[&str] = &[NFTABLES, IPVS, IPTABLES, IPVS, USERSPACE, IPVS, NFTABLES];

/// All steps, each begun in this way.
fn change_all(
    stage: &mut Stage<'static>,
    modes: &[&'static str],
    begin: fn(&mut Stage<'static>, &'static str) -> usize,
) {
    let lab = stage.lab;
    let at = Family::ALL.map(|family| SocketAddr::new(LabMachine::PodA.address(family), ECHO));
    let _echo = Echo::start(lab.host(LabMachine::PodA), &at);
    for (from, to) in modes.iter().zip(modes.iter().skip(1)) {
        change(stage, from, to, begin);
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_change_of_mode_fails_no_connection_and_leaves_nothing() {
    let mut stage = stage_with(&ProxyConfig::default(), &manifests());
    change_all(&mut stage, RESTARTS, restart_in);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_change_of_mode_in_the_running_process_fails_no_connection_and_leaves_nothing() {
    let mut stage = stage_with(&ProxyConfig::default(), &manifests());
    // One process from here to the end, whichever test ran before.
    stage.restart();
    change_all(&mut stage, RELOADS, reload_in);
    let runs = stage.proxy.log().matches("\"Starting kube-proxy\"").count();
    assert_eq!(runs, RELOADS.len(), "in one process: {}", stage.proxy.log());
}

/// The rules that list this mode's servers are gone then, and so is what the process before knew of them.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_restart_while_servers_wait_for_connections_leaves_nothing() {
    let mut stage = stage_with(&ipvs(""), &manifests());
    let (lab, node) = (stage.lab, stage.lab.host(LabMachine::Node));
    let at = Family::ALL.map(|family| SocketAddr::new(LabMachine::PodA.address(family), ECHO));
    let _echo = Echo::start(lab.host(LabMachine::PodA), &at);
    let held: Vec<Held> = frontends(2).into_iter().map(|(place, at)| Held::open(lab.host(place), &[at], 1)).collect();
    for _ in 0..2 {
        restart_in(&mut stage, IPTABLES);
        stage.proxy.wait_until_synced(&Family::ALL);
        let waits = "Keeping rules of an earlier run until the connections";
        stage.proxy.wait_for("servers that wait", |proxy| proxy.log().matches(waits).count() == 2);
        assert!(!servers(node).is_empty());
    }
    for held in held {
        assert_eq!(held.finish().broken, [""; 0]);
    }
    stage.proxy.wait_for("end of the virtual servers", |_| {
        std::thread::sleep(Duration::from_millis(100));
        is_cleared(node, IPVS)
    });
}

/// Settings of mode ipvs change in the running process. A changed scheduler refuses connections for a moment, whoever changes it
/// (`docs/modes/ipvs.md`); these settings have no such effect.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_reload_changes_settings_without_a_failed_connection() {
    let mut stage = stage_with(&ipvs(""), &manifests());
    stage.restart();
    let node = stage.node();
    let timeouts = || node.sh("ipvsadm", &["-l", "--timeout"]);
    let (hammers, start) = (hammers(&stage), Instant::now());
    let runs = |proxy: &ProxyProcess<'_>| proxy.log().matches("\"Starting kube-proxy\"").count();
    for (former, (tcp, udp)) in (1..).zip([(901, 301), (902, 302)]) {
        let wanted = format!("{tcp} 121 {udp}");
        assert!(!timeouts().contains(&wanted));
        let lines = format!("minSyncPeriod: 1ms, tcpTimeout: {tcp}s, tcpFinTimeout: 121s, udpTimeout: {udp}s");
        stage.reconfigure(&ipvs(&format!("ipvs: {{{lines}}}")));
        stage.proxy.wait_for("another run", |proxy| runs(proxy) == former + 1);
        stage.proxy.wait_until_synced(&Family::ALL);
        assert!(timeouts().contains(&wanted), "{}", timeouts());
    }
    let (connections, failed) = stop(hammers, start);
    println!("changes of settings: {connections} connections, {} failed", failed.len());
    assert!(connections > 0 && failed.is_empty(), "{failed:?}");
}

/// Upstream's proxy gives IPv4 addresses the scope global, with which the node's connections may take them as their source. A
/// start sets their scope while clients connect.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn the_scope_of_adopted_addresses_changes_without_a_failed_connection() {
    let many = (100..150).fold(manifests(), |all, number| {
        all.with(TestService::new(&format!("more-{number}"), number), &[LabMachine::PodA])
    });
    let mut stage = stage_with(&ipvs(""), &many);
    let node = stage.lab.host(LabMachine::Node);
    let listed = || node.sh("ip", &["-4", "-o", "addr", "show", "dev", "kube-ipvs0"]);
    let at = Family::ALL.map(|family| SocketAddr::new(LabMachine::PodA.address(family), ECHO));
    let _echo = Echo::start(stage.lab.host(LabMachine::PodA), &at);
    stage.terminate();
    for line in listed().lines() {
        let address = line.split_whitespace().skip_while(|word| *word != "inet").nth(1).expect("an address");
        node.sh("ip", &["addr", "del", address, "dev", "kube-ipvs0"]);
        node.sh("ip", &["addr", "add", address, "dev", "kube-ipvs0"]);
    }
    let before = listed();
    assert!(before.lines().count() > 50 && before.lines().all(|line| line.contains("scope global")), "{before}");
    let held = Held::open(stage.lab.host(LabMachine::PodB), &[at_cluster_ip(Family::V4, 2)], 1);
    let (hammers, start) = (hammers(&stage), Instant::now());
    stage.start();
    until("addresses of scope host", CLEARED, || listed().lines().all(|line| line.contains("scope host")));
    let (connections, mut failed) = stop(hammers, start);
    failed.extend(held.finish().broken);
    println!("{} addresses: {connections} connections, {} failed", before.lines().count(), failed.len());
    assert!(connections > 0 && failed.is_empty(), "{failed:?}");
    assert_eq!(listed().lines().count(), before.lines().count());
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn clean_up_leaves_nothing() {
    let mut stage = stage_with(&ipvs(""), &manifests());
    let node = stage.node();
    assert!(servers(node).len() > 4 && devices(node).len() == 1);
    stage.terminate();
    assert!(servers(node).len() > 4, "the end of the proxy ends no service");
    let (status, log) = run_to_end(stage.lab, &["--cleanup"]);
    assert!(status.success(), "{log}");
    assert_eq!(leftovers(node), [""; 0], "{log}");
}

/// Virtual servers of another program: one elsewhere, and one at an address that a Service has at other ports.
const SERVERS_OF_OTHERS: [&str; 2] = ["192.0.2.77:80", "10.96.0.1:8888"];

/// Makes virtual servers, an address and a table of another program.
fn make_others(node: &Host) {
    for at in SERVERS_OF_OTHERS {
        node.sh("ipvsadm", &["-A", "-t", at, "-s", "wlc"]);
        node.sh("ipvsadm", &["-a", "-t", at, "-r", "192.168.9.2:9090", "-m"]);
    }
    node.sh("ip", &["link", "add", "others0", "type", "dummy"]);
    node.sh("ip", &["addr", "add", "192.0.2.77/32", "dev", "others0"]);
    for family in ["ip", "ip6", "inet"] {
        let chain = "chain output { type nat hook output priority 0; meta mark 0x4000 counter; }";
        node.feed("nft", &["-f", "-"], &format!("table {family} others {{\n{chain}\n}}\n")).expect("a table");
    }
}

/// The virtual servers, the address and the tables of another program.
fn others(node: &Host) -> (Vec<Server>, String, Vec<String>) {
    let is_theirs = |server: &Server| SERVERS_OF_OTHERS.iter().any(|at| server.name == format!("TCP {at}"));
    let tables =
        ["ip", "ip6", "inet"].map(|family| node.sh("nft", &["--stateless", "list", "table", family, "others"]));
    let addresses = node.sh("ip", &["-o", "addr", "show", "dev", "others0"]);
    (servers(node).into_iter().filter(is_theirs).collect(), addresses, tables.to_vec())
}

fn remove_others(node: &Host) {
    SERVERS_OF_OTHERS.iter().for_each(|at| drop(node.sh("ipvsadm", &["-D", "-t", at])));
    node.sh("ip", &["link", "del", "others0"]);
    ["ip", "ip6", "inet"].iter().for_each(|family| drop(node.sh("nft", &["delete", "table", family, "others"])));
}

/// A clean-up needs no tool: `PATH` has no program here, as in an image from scratch.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn clean_up_leaves_nothing_but_what_others_have() {
    let mut stage = stage_with(&ipvs(""), &manifests());
    let node = stage.node();
    make_others(node);
    stage.terminate();
    let (kept, before) = (others(node), leftovers(node));
    assert_eq!(kept.0.len(), SERVERS_OF_OTHERS.len());
    let tables = before.iter().filter(|left| left.starts_with("table "));
    assert!(tables.count() == 2 && servers(node).len() > 10 && devices(node).len() == 1, "{before:?}");
    let (status, log) = run_to_end_without_tools(stage.lab, &["--cleanup"]);
    assert!(status.success(), "{log}");
    let names: Vec<String> = kept.0.iter().map(|server| server.name.clone()).collect();
    assert_eq!(leftovers(node), names, "{log}");
    assert_eq!(others(node), kept, "{log}");
    remove_others(node);
}
