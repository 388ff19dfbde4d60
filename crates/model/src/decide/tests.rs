use ferry_api::object::{ObjectName, Protocol};

use super::*;
use crate::context::PerFamily;
use crate::state::{Affinity, Endpoint, Pool, Scope, Treatment};
use crate::testing::{context, ip, name, pool};

const VIP: &str = "10.96.0.10";
const POD: &str = "10.244.1.1";
const NODE: &str = "192.0.2.10";
const CLIENT: &str = "198.51.100.99";

fn state() -> ServiceState {
    let to = |to, snat| Action::Forward { to, snat };
    let cluster_ip = Treatment {
        pod: to(Scope::Cluster, Snat::Keep),
        host: to(Scope::Cluster, Snat::Masquerade),
        other: to(Scope::Local, Snat::Masquerade),
    };
    let frontend = |kind, at, sources, treatment| Frontend { kind, at, sources, treatment };
    let only = SourceRanges::Only(vec!["198.51.100.0/24".parse().unwrap(), "192.0.2.10/32".parse().unwrap()]);
    ServiceState {
        name: name("web"),
        ports: vec![PortState {
            name: "".into(),
            protocol: Protocol::Tcp,
            affinity: Affinity::new(1),
            cluster: pool(&[POD, "10.244.2.1"]),
            local: pool(&[POD]),
            lingering: Pool::default(),
            frontends: [
                frontend(FrontendKind::ClusterIp, FrontendAddr::Vip(ip(VIP), 80), SourceRanges::Any, cluster_ip),
                frontend(
                    FrontendKind::LoadBalancer,
                    FrontendAddr::Vip(ip("203.0.113.9"), 80),
                    only,
                    Treatment::all(Action::Reject),
                ),
                frontend(
                    FrontendKind::NodePort,
                    FrontendAddr::NodePort(30_080),
                    SourceRanges::Any,
                    Treatment::all(Action::Drop),
                ),
            ]
            .into(),
        }],
        health_check: None,
    }
}

fn base() -> BaseState {
    let service_cidrs = vec!["10.96.0.0/16".parse().unwrap()];
    BaseState { node_ports: NodePortAddresses::All, localhost: false, service_cidrs, affinity: true }
}

/// From outside to some address that isn't the node's.
fn packet(source: &str, destination: &str, port: u16) -> Packet {
    Packet {
        source: ip(source),
        source_local: false,
        interface: Some("eth0".to_owned()),
        destination: ip(destination),
        destination_local: false,
        protocol: Protocol::Tcp,
        port,
    }
}

fn from_host(destination: &str, port: u16) -> Packet {
    Packet { source_local: true, interface: None, ..packet(NODE, destination, port) }
}

fn decided(packet: &Packet) -> String {
    decide([&state()], &base(), packet, &context(), &Profile::NFTABLES).to_string()
}

#[test]
fn the_source_decides() {
    assert_eq!(decided(&packet("10.244.9.9", VIP, 80)), "forward to 10.244.1.1:8080 10.244.2.1:8080");
    assert_eq!(decided(&from_host(VIP, 80)), "forward to 10.244.1.1:8080+masquerade 10.244.2.1:8080+masquerade");
    assert_eq!(decided(&packet(CLIENT, VIP, 80)), "forward to 10.244.1.1:8080+masquerade");
    // an address of the node within the pod range is a pod
    let gateway = Packet { source: ip("10.244.0.1"), ..from_host(VIP, 80) };
    assert_eq!(decided(&gateway), "forward to 10.244.1.1:8080 10.244.2.1:8080");
}

#[test]
fn an_endpoint_that_reaches_itself_is_masqueraded() {
    assert_eq!(decided(&packet(POD, VIP, 80)), "forward to 10.244.1.1:8080+masquerade 10.244.2.1:8080");
}

#[test]
fn source_ranges_come_first() {
    assert_eq!(decided(&packet(CLIENT, "203.0.113.9", 80)), "reject");
    assert_eq!(decided(&from_host("203.0.113.9", 80)), "reject");
    assert_eq!(decided(&packet("203.0.113.1", "203.0.113.9", 80)), "drop");
    assert_eq!(decided(&packet(POD, "203.0.113.9", 80)), "drop");
}

#[test]
fn ports_and_addresses_nobody_serves() {
    assert_eq!(decided(&packet(CLIENT, VIP, 81)), "reject");
    assert_eq!(decided(&Packet { protocol: Protocol::Udp, ..packet(CLIENT, VIP, 80) }), "reject");
    assert_eq!(decided(&from_host(VIP, 81)), "reject");
    assert_eq!(decided(&packet(CLIENT, "10.96.7.7", 80)), "drop");
    assert_eq!(decided(&from_host("10.96.7.7", 80)), "drop");
    assert_eq!(decided(&packet(CLIENT, "203.0.113.9", 81)), "pass");
    assert_eq!(decided(&packet(CLIENT, "192.0.2.200", 80)), "pass");
    // a cluster IP that is bound here (a DNS cache) answers by itself, but not to the host
    let bound = |packet| Packet { destination_local: true, ..packet };
    assert_eq!(decided(&bound(packet(CLIENT, VIP, 81))), "pass");
    assert_eq!(decided(&bound(packet(CLIENT, "10.96.7.7", 81))), "pass");
    assert_eq!(decided(&bound(from_host(VIP, 81))), "reject");
    assert_eq!(decided(&bound(packet(CLIENT, VIP, 80))), "forward to 10.244.1.1:8080+masquerade");
}

#[test]
fn node_ports_live_on_the_nodes_addresses() {
    let local = |destination| Packet { destination_local: true, ..packet(CLIENT, destination, 30_080) };
    assert_eq!(decided(&local(NODE)), "drop");
    assert_eq!(decided(&local("127.0.0.1")), "pass");
    assert_eq!(decided(&packet(CLIENT, NODE, 30_080)), "pass", "the address is another's");
    assert_eq!(decided(&Packet { protocol: Protocol::Udp, ..local(NODE) }), "pass");
    let only = BaseState { node_ports: NodePortAddresses::Only(vec![ip(NODE), ip("127.0.0.1")]), ..base() };
    let decided = |packet: Packet| decide([&state()], &only, &packet, &context(), &Profile::NFTABLES).to_string();
    assert_eq!(decided(local(NODE)), "drop");
    assert_eq!(decided(local("192.0.2.11")), "pass");
    assert_eq!(decided(local("127.0.0.1")), "pass");
}

#[test]
fn a_vip_on_the_node_comes_before_its_node_port() {
    let mut vip = state();
    vip.ports[0].frontends[0].at = FrontendAddr::Vip(ip(NODE), 30_080);
    let packet = Packet { destination_local: true, ..packet(CLIENT, NODE, 30_080) };
    assert_eq!(
        decide([&vip], &base(), &packet, &context(), &Profile::NFTABLES).to_string(),
        "forward to 10.244.1.1:8080+masquerade"
    );
}

#[test]
fn other_detectors() {
    let on = |detector: Option<LocalDetector>, interface: Option<&str>| {
        let context = Context { local: PerFamily::from_fn(|_| detector.clone()), ..context() };
        let packet = Packet { interface: interface.map(str::to_owned), ..packet(CLIENT, VIP, 80) };
        matches!(decide([&state()], &base(), &packet, &context, &Profile::NFTABLES), Verdict::Forward(endpoints) if endpoints.len() == 2)
    };
    let bridge = || Some(LocalDetector::Bridge("cni0".to_owned()));
    let prefix = || Some(LocalDetector::InterfacePrefix("veth".to_owned()));
    assert!(on(bridge(), Some("cni0")));
    assert!(!on(bridge(), Some("cni01")));
    assert!(!on(bridge(), None));
    assert!(on(prefix(), Some("veth7")));
    assert!(!on(prefix(), Some("eth0")));
    assert!(!on(None, Some("veth7")));
}

#[test]
fn a_packet_that_is_left_alone() {
    let mut left = state();
    left.ports[0].frontends[0].treatment = Treatment::all(Action::Pass);
    left.ports[0].cluster = Pool::new(vec![Endpoint { address: ip(POD), port: 1 }]);
    left.name = ObjectName::new("default", "left");
    assert_eq!(decide([&left], &base(), &packet(CLIENT, VIP, 80), &context(), &Profile::NFTABLES), Verdict::Pass);
}
