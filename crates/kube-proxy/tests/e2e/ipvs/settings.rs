//! The settings of the mode, and those of all modes that it reads.

use std::net::SocketAddr;
use std::time::Duration;

use ferry_lab::lab::{external_ip, node_addresses};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::{slowly, until};
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Checks, Family, Host, LabMachine, Manifests, SeenSource, TestService};

use crate::support::{LIMIT, ipvs, run_to_end, server, servers, stage, stage_with};

/// The parameters that the mode sets.
const PARAMETERS: [&str; 4] = [
    "net/ipv4/vs/conntrack",
    "net/ipv4/vs/expire_nodest_conn",
    "net/ipv4/vs/expire_quiescent_template",
    "net/ipv4/ip_forward",
];
/// The parameter that it leaves to the operator.
const FORWARDING: [&str; 1] = ["net/ipv6/conf/all/forwarding"];
const ARP: [&str; 2] = ["net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce"];

fn manifests() -> Manifests {
    Manifests::new().with(TestService::new("plain", 60).node_port(30060).external_ip(60), &[LabMachine::Far])
}

fn read(node: &Host, parameters: &'static [&'static str]) -> Vec<String> {
    node.run(move || {
        let read = |name: &&str| std::fs::read_to_string(format!("/proc/sys/{name}")).expect("a parameter");
        parameters.iter().map(|name| read(name).trim().to_owned()).collect()
    })
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn parameters_of_the_kernel_are_set() {
    let mut stage = stage(&manifests());
    let node = stage.node();
    stage.kill();
    PARAMETERS.into_iter().chain(FORWARDING).chain(ARP).for_each(|name| node.sysctl(name, "0"));
    stage.restart();
    assert_eq!(read(node, &PARAMETERS), ["1"; 4]);
    assert_eq!(read(node, &ARP), ["0"; 2], "without strictARP");
    // It would delete the default routes of router advertisements.
    stage.proxy.wait_for("a warning", |proxy| {
        proxy.log().lines().any(|line| line.contains("IPv6ForwardingDisabled") && line.contains("accept_ra=2"))
    });
    assert_eq!(read(node, &FORWARDING), ["0"]);
    FORWARDING.into_iter().for_each(|name| node.sysctl(name, "1"));
    stage.proxy.wait_for("the end of the problem", |proxy| proxy.log().contains("Problem of this node has ended"));
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn service_addresses_are_announced_unless_strict_arp_forbids_it() {
    let to = at_external_ip(Family::V4, 60);
    let route = format!("{}/32", external_ip(Family::V4, 60));
    for (strict, values) in [(false, ["0", "0"]), (true, ["1", "2"])] {
        let stage = stage_with(&ipvs(&format!("ipvs: {{strictARP: {strict}, minSyncPeriod: 1ms}}")), &manifests());
        assert_eq!(read(stage.node(), &ARP), values);
        // The client asks for the hardware address of the service address itself.
        let client = stage.lab.host(LabMachine::Client);
        client.sh("ip", &["route", "add", &route, "dev", "eth0"]);
        let tally = stage.lab.from(LabMachine::Client).patience(slowly(Duration::from_millis(500))).tcp(to, 1);
        client.sh("ip", &["route", "del", &route, "dev", "eth0"]);
        client.sh("ip", &["neigh", "flush", "dev", "eth0"]);
        assert_eq!(tally.all_answered(), !strict, "{tally}");
        ARP.into_iter().for_each(|name| stage.node().sysctl(name, "0"));
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn timeouts_of_connections_are_set() {
    let timeouts = "ipvs: {tcpTimeout: 600s, tcpFinTimeout: 61s, udpTimeout: 201s, minSyncPeriod: 1ms}";
    let stage = stage_with(&ipvs(timeouts), &manifests());
    let listed = stage.node().sh("ipvsadm", &["-L", "--timeout"]);
    assert_eq!(listed.trim(), "Timeout (tcp tcpfin udp): 600 61 201");
    stage.node().sh("ipvsadm", &["--set", "900", "120", "300"]);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn node_ports_are_where_the_configuration_says() {
    let stage = stage_with(&ipvs("nodePortAddresses: [192.168.0.0/16, \"fd00:9::/64\"]"), &manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        let [first, second] = node_addresses(family).map(|address| SocketAddr::new(address, 30060));
        let client = stage.lab.from(LabMachine::Client);
        checks.served(&format!("{second}"), &client.tcp(second, 2), &["far:8080"], SeenSource::Masqueraded);
        checks.refused(&format!("{first}"), &client.tcp(first, 2));
        checks.that(server(stage.node(), first).is_none(), || format!("{first} has a server"));
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn masquerade_all_spares_nobody() {
    let stage = stage_with(&ipvs("iptables: {masqueradeAll: true}\nnftables: {masqueradeAll: true}"), &manifests());
    let mut checks = Checks::new();
    for (family, from) in
        Family::ALL.into_iter().flat_map(|family| [(family, LabMachine::PodB), (family, LabMachine::Client)])
    {
        let tally = stage.lab.from(from).tcp(at_cluster_ip(family, 60), 2);
        checks.served(&format!("{family} from {from:?}"), &tally, &["far:8080"], SeenSource::Masqueraded);
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn without_a_detector_cluster_ips_keep_every_source() {
    let config = ProxyConfig { cluster_cidr: None, ..ipvs("") };
    let stage = stage_with(&config, &manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for from in [LabMachine::PodB, LabMachine::Client] {
            let tally = stage.lab.from(from).tcp(at_cluster_ip(family, 60), 2);
            let kept = SeenSource::Kept(from.address(family));
            checks.served(&format!("{family} from {from:?}"), &tally, &["far:8080"], kept);
        }
        let host = stage.lab.from(LabMachine::Node).tcp(at_cluster_ip(family, 60), 2);
        checks.served(&format!("{family} from the node"), &host, &["far:8080"], SeenSource::Masqueraded);
        let outside = stage.lab.from(LabMachine::Client).tcp(at_node_port(family, 30060), 2);
        checks.served(&format!("{family} node port"), &outside, &["far:8080"], SeenSource::Masqueraded);
    }
}

/// Servers at addresses of the device, where no table lists the frontends: an earlier proxy's, unless the range is excluded.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn foreign_servers_in_excluded_ranges_stay() {
    let config = ipvs("ipvs: {excludeCIDRs: [172.20.0.0/16], minSyncPeriod: 1ms}");
    let mut stage = stage_with(&config, &manifests());
    let node = stage.node();
    stage.kill();
    let [excluded, other, elsewhere] = ["172.20.0.1:80", "172.21.0.1:80", "172.22.0.1:80"];
    for at in [excluded, other, elsewhere] {
        node.sh("ipvsadm", &["-A", "-t", at, "-s", "wlc"]);
        node.sh("ipvsadm", &["-a", "-t", at, "-r", "192.168.9.2:9090", "-m"]);
    }
    for bound in ["172.20.0.1/32", "172.21.0.1/32"] {
        node.sh("ip", &["addr", "add", bound, "dev", "kube-ipvs0"]);
    }
    node.sh("nft", &["delete", "table", "ip", "kube-proxy"]);
    let left = |wanted: &[&str]| {
        let names: Vec<String> = servers(node).into_iter().map(|server| server.name).collect();
        let foreign = names.iter().filter(|name| name.starts_with("TCP 172."));
        let wanted: Vec<String> = wanted.iter().map(|at| format!("TCP {at}")).collect();
        let mut foreign: Vec<String> = foreign.cloned().collect();
        foreign.sort();
        assert_eq!(foreign, wanted);
    };
    // A test that waits for connections would find the servers of the killed proxy.
    stage.restart();
    left(&[excluded, elsewhere]);
    // The device has the addresses of Services only, whatever is excluded.
    until("the device without foreign addresses", LIMIT, || {
        !node.sh("ip", &["addr", "show", "dev", "kube-ipvs0"]).contains("inet 172.")
    });
    stage.restart();
    left(&[excluded, elsewhere]);
    stage.terminate();
    let (status, log) = run_to_end(stage.lab, &["--cleanup"]);
    assert!(status.success(), "{log}");
    left(&[excluded, elsewhere]);
    for at in [excluded, elsewhere] {
        node.sh("ipvsadm", &["-D", "-t", at]);
    }
}
