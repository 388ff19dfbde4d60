//! The way `bind`: changes of way and mode under connections, ports that others have, routes that others remove, no rights, clean-up.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use ferry_lab::lab::{cluster_ip, node_addresses};
use ferry_lab::objects::{EndpointCondition, at_cluster_ip, at_node_port};
use ferry_lab::patience::{slowly, until};
use ferry_lab::probe::Held;
use ferry_lab::proxy::{NFTABLES, ProxyConfig};
use ferry_lab::stage::ManifestDirectory;
use ferry_lab::{Family, Host, Lab, LabMachine, Manifests, ProbeOutcome, Protocol, ProxyProcess, TestService};

use super::{ECHO, NO_RETRY, assert_unharmed, busy, config, echo, hammers, held_by, own, stage};
use crate::support::{EXECUTABLE, alone, folder, run_to_end};

const BIND: &str = "userspaceWay: bind";
/// Changes of way, mode and settings.
const CHANGES: usize = 12;
/// Time within which a removed route is back.
const REPAIR: Duration = Duration::from_millis(500);

/// The local routes of this program.
fn routes(node: &Host, family: Family) -> Vec<String> {
    let version = if family == Family::V4 { "-4" } else { "-6" };
    let routes = node.sh("ip", &[version, "route", "show", "table", "local", "proto", "243"]);
    routes.lines().filter_map(|line| Some(line.split_whitespace().nth(1)?.to_owned())).collect()
}

/// Another program's table with connection tracking and translation, such as that of a network plugin: on a node there always is one.
/// Otherwise the kernel would follow no connection while way bind serves, and take one that goes on meanwhile for one that the node has
/// begun.
fn track_connections(node: &Host) {
    let chains = ["prerouting", "input", "output", "postrouting"]
        .map(|hook| format!("chain {hook} {{ type nat hook {hook} priority 10; ct state established accept; }}"));
    node.feed("nft", &["-f", "-"], &format!("table inet plugin {{\n{}\n}}\n", chains.join("\n")))
        .expect("loading a table");
}

#[test]
fn changes_of_way_and_mode_fail_no_new_connection() {
    let (_turn, lab) = (alone(), Lab::new());
    track_connections(lab.host(LabMachine::Node));
    let mut stage = stage(&lab, "bind-modes", own(BIND), &busy());
    let hammers = hammers(&lab);
    for change in 0..CHANGES {
        let runs = stage.proxy.log().matches("Starting kube-proxy").count();
        let changed = match change % 4 {
            0 => config(""),
            1 => ProxyConfig { mode: NFTABLES, ..ProxyConfig::default() },
            2 => own(BIND),
            _ => own(&format!("{BIND}\nuserspaceUDPTimeout: {}ms", 300 + change)),
        };
        stage.reconfigure(&changed);
        stage.proxy.wait_for("a new run", |proxy| proxy.log().matches("Starting kube-proxy").count() > runs);
        stage.proxy.wait_until_synced(&Family::ALL);
        std::thread::sleep(slowly(Duration::from_millis(300)));
    }
    assert_unharmed("changes of way bind", hammers);
    for family in Family::ALL {
        assert!(routes(stage.node(), family).contains(&at_cluster_ip(family, 46).ip().to_string()), "{family}");
    }
    let domain = "domain=\"nft table kube-proxy\" objects=";
    stage.proxy.wait_for("no table of the other way", |proxy| proxy.log().matches(domain).count() >= CHANGES / 4);
    let tables = stage.node().sh("nft", &["list", "tables"]);
    assert!(!tables.contains("kube-proxy"), "{tables}");
}

#[test]
fn a_port_of_another_program_is_named_and_served_later() {
    let (_turn, lab) = (alone(), Lab::new());
    let node = lab.host(LabMachine::Node);
    let taken = SocketAddr::new(node_addresses(Family::V4)[0], 30046);
    let other = node.run(move || TcpListener::bind(taken).unwrap());
    let mut stage = stage(&lab, "bind-taken", own(BIND), &busy());
    let problem = "reason=\"ListenerFailed\"";
    stage.proxy.wait_for("a report", |proxy| {
        proxy.log().lines().any(|line| line.contains(problem) && line.contains(&format!("{taken} over TCP")))
    });
    let client = lab.from(LabMachine::Client);
    assert!(client.tcp(at_cluster_ip(Family::V4, 46), 4).all_answered(), "its Service is served elsewhere");
    assert!(client.tcp(at_node_port(Family::V6, 30046), 4).all_answered());
    assert!(stage.proxy.metric("kubeproxy_userspace_listener_errors_total", &[]) >= 1.0);
    drop(other);
    stage.proxy.wait_for("the node port", |_| client.tcp(taken, 1).all_answered());
    stage.proxy.wait_for("the end of the problem", |proxy| proxy.log().contains("Problem of this node has ended"));
}

/// An EndpointSlice made by hand may name the address of a Service: the relay would be its own client, for each connection until it has no
/// local port left.
#[test]
fn a_service_that_is_its_own_endpoint_is_reset_and_others_are_served() {
    const PORT: u16 = 8080;
    let (_turn, lab) = (alone(), Lab::new());
    let service = |name, number| TestService::new(name, number).port(PORT).protocols(&[Protocol::Tcp, Protocol::Udp]);
    let own = |number| Family::ALL.map(|family| cluster_ip(family, number));
    let (itself, partly) = (service("itself", 48), service("partly", 49));
    let of_itself =
        own(48).into_iter().fold(itself.endpoints(PORT, &[]), |to, at| to.and_at(at, "", EndpointCondition::Ready));
    // Both its own address and that of the other Service, beside a pod.
    let of_partly = [own(48), own(49)].concat();
    let of_partly = of_partly
        .into_iter()
        .fold(partly.endpoints(PORT, &[LabMachine::PodA]), |to, at| to.and_at(at, "", EndpointCondition::Ready));
    let manifests = Manifests::new().with_endpoints(itself, of_itself).with_endpoints(partly, of_partly);
    let stage = stage(&lab, "bind-itself", super::own(BIND), &manifests);
    for (family, from) in
        Family::ALL.into_iter().flat_map(|family| [(family, LabMachine::PodB), (family, LabMachine::Node)])
    {
        let client = lab.from(from).patience(NO_RETRY);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let tally = client.ask(protocol, SocketAddr::new(cluster_ip(family, 49), PORT), 8);
            assert!(tally.all_answered(), "{family} {from:?} {protocol}: {tally}");
            let tally = client.ask(protocol, SocketAddr::new(cluster_ip(family, 48), PORT), 1);
            // A listener accepts and resets; a socket can't refuse a datagram.
            let refused = if protocol == Protocol::Tcp { ProbeOutcome::Reset } else { ProbeOutcome::Timeout };
            assert!(tally.all(&refused), "{family} {from:?} {protocol}: {tally}");
        }
    }
    let metric = |name: &str| stage.proxy.metric(name, &["service=\"itself\""]);
    let (refused, failed) = (metric("kubeproxy_userspace_refused_total"), metric("kubeproxy_userspace_failures_total"));
    assert!(refused >= 4.0 && failed <= 0.0, "{refused} refused, {failed} failed");
}

#[test]
fn a_removed_route_is_back_at_once_and_others_stay() {
    let (_turn, lab) = (alone(), Lab::new());
    let node = lab.host(LabMachine::Node);
    let foreign = |family| if family == Family::V4 { "203.0.113.99" } else { "2001:db8:99::99" };
    for family in Family::ALL {
        node.sh("ip", &["route", "add", "local", foreign(family), "dev", "lo", "table", "local"]);
    }
    let stage = stage(&lab, "bind-routes", own(BIND), &busy());
    for family in Family::ALL {
        let vip = at_cluster_ip(family, 46).ip().to_string();
        for _ in 0..3 {
            node.sh("ip", &["route", "del", "local", &vip, "table", "local"]);
            let took = until("the route", slowly(REPAIR), || routes(node, family).contains(&vip));
            println!("{family}: a removed route was back after {took:.0?}");
        }
        let all = node.sh("ip", &[if family == Family::V4 { "-4" } else { "-6" }, "route", "show", "table", "local"]);
        assert!(all.contains(foreign(family)), "{all}");
    }
    drop(stage);
    let (status, log) = run_to_end(&lab, "bind-cleanup", &["--cleanup"]);
    assert!(status.success(), "{log}");
    for family in Family::ALL {
        assert_eq!(routes(node, family), [""; 0]);
        let all = node.sh("ip", &[if family == Family::V4 { "-4" } else { "-6" }, "route", "show", "table", "local"]);
        assert!(all.contains(foreign(family)), "{all}");
    }
}

#[test]
fn without_the_right_to_change_the_network_node_ports_are_served() {
    let (_turn, lab) = (alone(), Lab::new());
    let node = lab.host(LabMachine::Node);
    let folder = folder("bind-without-rights");
    let mut directory = ManifestDirectory::new(&folder);
    directory.write(&busy());
    let config_file = folder.join("config.yaml");
    // No way: the preferred one needs the right.
    config("").write(&config_file);
    let (config, objects) = (config_file.display().to_string(), directory.manifests().display().to_string());
    let confined = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--", EXECUTABLE];
    let arguments = [&confined[..], &["--config", &config, "--manifests", &objects, "-v=2"]].concat();
    let mut proxy = ProxyProcess::start_by(node, "setpriv", &folder, &arguments);
    for family in Family::ALL {
        let client = lab.from(LabMachine::Client);
        proxy.wait_for("a node port", |_| client.tcp(at_node_port(family, 30046), 1).all_answered());
        assert_eq!(routes(node, family), [""; 0]);
    }
    proxy.wait_until_healthy();
    assert_eq!(proxy.metric("kubeproxy_userspace_way", &["way=\"bind\""]), 1.0);
    let log = proxy.log();
    let line = log.lines().find(|line| line.contains("Way redirect can't be used")).unwrap();
    assert!(line.contains("CAP_NET_ADMIN"), "{line}");
}

/// Service addresses can be made this machine's then, but their port, 80, takes a right of its own.
#[test]
fn without_the_right_to_listen_at_low_ports_the_others_are_served() {
    let (_turn, lab) = (alone(), Lab::new());
    let folder = folder("bind-low-ports");
    let mut directory = ManifestDirectory::new(&folder);
    directory.write(&busy());
    let config_file = folder.join("config.yaml");
    own(BIND).write(&config_file);
    let (config, objects) = (config_file.display().to_string(), directory.manifests().display().to_string());
    let confined = ["--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs", "--", EXECUTABLE];
    let arguments = [&confined[..], &["--config", &config, "--manifests", &objects, "-v=2"]].concat();
    let mut proxy = ProxyProcess::start_by(lab.host(LabMachine::Node), "setpriv", &folder, &arguments);
    for family in Family::ALL {
        let at = at_cluster_ip(family, 46);
        proxy.wait_for("a report", |proxy| {
            let log = proxy.log();
            let named = format!("{at} over TCP");
            let line = log.lines().find(|line| line.contains("reason=\"ListenerFailed\"") && line.contains(&named));
            line.is_some_and(|line| line.contains("Permission denied") && line.contains("CAP_NET_BIND_SERVICE"))
        });
        let client = lab.from(LabMachine::Client);
        proxy.wait_for("a node port", |_| client.tcp(at_node_port(family, 30046), 1).all_answered());
    }
}

#[test]
fn established_connections_outlive_changes_of_others_and_end_with_their_grace() {
    let (_turn, lab) = (alone(), Lab::new());
    let _servers = [echo(&lab, LabMachine::PodA), echo(&lab, LabMachine::Far)];
    let config = own(&format!("{BIND}\nuserspaceTerminationGracePeriod: 1s"));
    let mut stage = stage(&lab, "bind-held", config, &held_by(&[LabMachine::PodA, LabMachine::Far]));
    let to = Family::ALL.map(|family| at_cluster_ip(family, 47));
    let held = Held::open(lab.host(LabMachine::PodB), &to, 4);
    let open = |stage: &ferry_lab::Stage<'_>, at: LabMachine, family| {
        let endpoint = format!("endpoint=\"{}\"", SocketAddr::new(at.address(family), ECHO));
        stage.proxy.metric("kubeproxy_userspace_endpoint_open_connections", &[&endpoint])
    };
    // Each endpoint is counted once, though several listeners lead to it.
    for (family, at) in
        Family::ALL.into_iter().flat_map(|family| [(family, LabMachine::PodA), (family, LabMachine::Far)])
    {
        until("half of the connections", slowly(Duration::from_secs(5)), || open(&stage, at, family) == 2.0);
    }
    let web = (TestService::new("web", 48).protocols(&[Protocol::Tcp, Protocol::Udp]), [LabMachine::PodA]);
    for _ in 0..3 {
        stage.set(&held_by(&[LabMachine::PodA, LabMachine::Far]).with(web.0.clone(), &web.1));
        stage.set(&held_by(&[LabMachine::PodA, LabMachine::Far]));
    }
    assert!(!held.is_broken(), "unchanged Services are not touched");
    stage.set(&Manifests::new());
    until("the end of the grace", slowly(Duration::from_secs(10)), || held.is_broken());
    held.finish();
    let refused = lab.from(LabMachine::PodB).patience(NO_RETRY).tcp(to[0], 1);
    assert!(!refused.all_answered(), "{refused}");
}
