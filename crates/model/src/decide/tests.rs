use ferry_api::object::{ObjectName, Protocol};

use super::*;
use crate::state::{Affinity, Endpoint, HealthCheck, Pool, Scope, Shadowed, SourceRanges, Treatment};
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
    let only = SourceRanges::Only(["198.51.100.0/24".parse().unwrap(), "192.0.2.10/32".parse().unwrap()].into());
    ServiceState {
        name: name("web"),
        ports: vec![PortState {
            name: "".into(),
            protocol: Protocol::Tcp,
            affinity: Affinity::new(1),
            cluster: pool(&[POD, "10.244.2.1"]),
            local: pool(&[POD]),
            lingering: Pool::default(),
            balance: None,
            shadowed: None,
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
        let context = Context { local: detector.clone(), ..context() };
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

fn by_ipvs(packet: &Packet) -> String {
    where_bound(packet, &Profile::IPVS)
}

/// In a mode that binds addresses, on a node whose own address serves node ports, and that has the address 10.96.0.99 too.
fn where_bound(packet: &Packet, profile: &Profile) -> String {
    let mut state = state();
    state.health_check = HealthCheck::new(32_000, 1);
    let mut cached = self::state();
    cached.ports[0].frontends =
        [Frontend { at: FrontendAddr::Vip(ip("10.96.0.99"), 80), ..cached.ports[0].frontends[0].clone() }].into();
    let addresses: std::sync::Arc<[IpAddr]> = ["10.96.0.99", NODE].map(ip).into();
    let base = BaseState { node_ports: NodePortAddresses::Only(addresses.to_vec()), ..base() };
    let context = Context { node_addresses: addresses.clone(), local_addresses: addresses, ..context() };
    decide([&state, &cached], &base, packet, &context, profile).to_string()
}

#[test]
fn bound_addresses_refuse_what_nobody_serves() {
    let bound = |packet| Packet { destination_local: true, ..packet };
    let udp = |packet| Packet { protocol: Protocol::Udp, ..packet };
    for vip in [VIP, "203.0.113.9"] {
        for packet in
            [packet(CLIENT, vip, 81), from_host(vip, 81), udp(packet(POD, vip, 80)), packet(CLIENT, vip, 30_080)]
        {
            assert_eq!(by_ipvs(&packet), "reject", "{packet:?}");
            assert_eq!(by_ipvs(&bound(packet)), "reject");
        }
        // load balancers ask there for the health of the node
        assert_eq!(by_ipvs(&bound(packet(CLIENT, vip, 32_000))), "pass");
        assert_eq!(by_ipvs(&bound(udp(packet(CLIENT, vip, 32_000)))), "reject");
    }
    assert_eq!(by_ipvs(&bound(packet(CLIENT, VIP, 80))), "forward to 10.244.1.1:8080+masquerade");
    // what another interface has is not bound, and what no Service has isn't either
    assert_eq!(by_ipvs(&bound(packet(CLIENT, "10.96.0.99", 80))), "forward to 10.244.1.1:8080+masquerade");
    assert_eq!(by_ipvs(&bound(packet(CLIENT, "10.96.0.99", 81))), "pass");
    assert_eq!(by_ipvs(&bound(from_host("10.96.0.99", 81))), "pass");
    assert_eq!(by_ipvs(&bound(packet(CLIENT, NODE, 81))), "pass");
    assert_eq!(by_ipvs(&packet(CLIENT, "10.96.7.7", 80)), "pass", "unassigned");
}

#[test]
fn listed_addresses_serve_node_ports() {
    let at = |destination| Packet { destination_local: true, ..packet(CLIENT, destination, 30_080) };
    assert_eq!(by_ipvs(&at(NODE)), "drop");
    assert_eq!(by_ipvs(&at("10.96.0.99")), "drop");
    assert_eq!(by_ipvs(&at("192.0.2.11")), "pass", "not listed");
    assert_eq!(by_ipvs(&at("127.0.0.1")), "pass");
    // where another frontend has its place, a node port isn't served
    let mut state = state();
    state.ports[0].shadowed = Some(Box::new(Shadowed { addresses: [ip(NODE)].into() }));
    let decided = |packet| decide([&state], &base(), &packet, &context(), &Profile::NFTABLES).to_string();
    assert_eq!(decided(at(NODE)), "pass");
    assert_eq!(decided(at("192.0.2.11")), "drop");
}

#[test]
fn a_listener_resets_connections_and_leaves_datagrams_unanswered() {
    let forward = Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade };
    let served = "forward to 10.244.1.1:8080+masquerade 10.244.2.1:8080+masquerade";
    for (protocol, refused) in [(Protocol::Tcp, "reject"), (Protocol::Udp, "drop")] {
        let decided = |state: &ServiceState, source| {
            let packet = Packet { protocol, ..packet(source, VIP, 80) };
            decide([state], &base(), &packet, &context(), &Profile::USERSPACE_BIND).to_string()
        };
        for other in [Action::Drop, Action::Reject, Action::Pass] {
            let mut state = treated(Treatment { other, ..Treatment::all(forward) }, Treatment::all(forward));
            state.ports[0].protocol = protocol;
            assert_eq!(decided(&state, "10.244.9.9"), served, "{protocol}");
            assert_eq!(decided(&state, CLIENT), refused, "{protocol} {other}");
        }
        let mut state = treated(Treatment::all(forward), Treatment::all(forward));
        state.ports[0].protocol = protocol;
        state.ports[0].frontends[0].sources = SourceRanges::Only(["198.51.100.0/24".parse().unwrap()].into());
        assert_eq!(decided(&state, CLIENT), served, "{protocol}");
        assert_eq!(decided(&state, "203.0.113.1"), refused, "{protocol}");
    }
}

#[test]
fn without_a_listener_the_kernel_refuses_at_bound_addresses_alone() {
    let decided = |packet: Packet| where_bound(&packet, &Profile::USERSPACE_BIND);
    let local = |destination, port| Packet { destination_local: true, ..packet(CLIENT, destination, port) };
    assert_eq!(decided(local(VIP, 80)), "forward to 10.244.1.1:8080+masquerade");
    assert_eq!(decided(local(VIP, 81)), "reject");
    assert_eq!(decided(Packet { protocol: Protocol::Udp, ..local(VIP, 80) }), "reject");
    assert_eq!(decided(local("203.0.113.9", 80)), "reject", "no client of this frontend is led to endpoints");
    assert_eq!(decided(local("10.96.0.99", 81)), "pass", "another interface has the address");
    assert_eq!(decided(local(NODE, 30_080)), "pass", "no client of the node port is led to endpoints");
    assert_eq!(decided(local("192.0.2.11", 81)), "pass", "no Service has the address");
    assert_eq!(decided(packet(CLIENT, "10.96.7.7", 80)), "pass", "no Service has the address");
}

#[test]
fn a_relay_serves_node_ports_on_loopback_to_the_node_alone() {
    let forward = Treatment::all(Action::Forward { to: Scope::Local, snat: Snat::Masquerade });
    let state = treated(forward, forward);
    let localhost = BaseState { localhost: true, ..base() };
    let decided = |packet: Packet| {
        let packet = Packet { destination_local: true, ..packet };
        decide([&state], &localhost, &packet, &context(), &Profile::USERSPACE).to_string()
    };
    let served = "forward to 10.244.1.1:8080+masquerade";
    assert_eq!(decided(packet(CLIENT, NODE, 30_080)), served);
    assert_eq!(decided(from_host(NODE, 30_080)), served);
    assert_eq!(decided(from_host("127.0.0.1", 30_080)), served);
    assert_eq!(decided(packet(CLIENT, "127.0.0.1", 30_080)), "pass");
}

/// In the iptables mode.
fn by_hook(state: &ServiceState, base: &BaseState, packet: &Packet) -> String {
    decide([state], base, packet, &context(), &Profile::IPTABLES).to_string()
}

/// A service on three addresses, all treated alike but for this node.
fn treated(treatment: Treatment, of_external: Treatment) -> ServiceState {
    let mut state = state();
    let [cluster_ip, balancer, node_port] = &mut *state.ports[0].frontends else { panic!("three frontends") };
    cluster_ip.treatment = treatment;
    for external in [balancer, node_port] {
        external.sources = SourceRanges::Any;
        external.treatment = of_external;
    }
    state
}

#[test]
fn each_kind_is_refused_in_its_hooks() {
    let reject = Treatment::all(Action::Reject);
    let state = treated(reject, Treatment { host: Action::Pass, ..reject });
    let decided = |packet: Packet| by_hook(&state, &base(), &packet);
    let at_node = |packet: Packet| Packet { destination_local: true, ..packet };
    let forwarded = |to, port| packet(CLIENT, to, port);
    // forward and output refuse for cluster IPs
    assert_eq!(decided(forwarded(VIP, 80)), "reject");
    assert_eq!(decided(from_host(VIP, 80)), "reject");
    assert_eq!(decided(at_node(forwarded(VIP, 80))), "pass", "bound here, as a node-local DNS cache binds it");
    assert_eq!(decided(at_node(from_host(VIP, 80))), "reject", "which output has refused before");
    // input and forward for load balancers' addresses
    let balancer = "203.0.113.9";
    assert_eq!(decided(forwarded(balancer, 80)), "reject");
    assert_eq!(decided(at_node(forwarded(balancer, 80))), "reject");
    assert_eq!(decided(from_host(balancer, 80)), "pass");
    assert_eq!(decided(at_node(from_host(balancer, 80))), "reject");
    // input for node ports, at whatever address
    for address in [NODE, "192.0.2.11", "127.0.0.1"] {
        assert_eq!(decided(at_node(forwarded(address, 30_080))), "reject");
        assert_eq!(decided(at_node(from_host(address, 30_080))), "reject");
        let nowhere = BaseState { node_ports: NodePortAddresses::Only(Vec::new()), ..base() };
        assert_eq!(by_hook(&state, &nowhere, &at_node(forwarded(address, 30_080))), "reject");
    }
    assert_eq!(decided(forwarded(NODE, 30_080)), "pass");
    // other ports of a cluster IP, and other addresses of its range, belong to no service
    assert_eq!(decided(forwarded(VIP, 81)), "pass");
    assert_eq!(decided(from_host("10.96.0.99", 80)), "pass");
}

#[test]
fn who_is_not_translated_is_refused_as_others_are() {
    let to = |to, snat| Action::Forward { to, snat };
    let local = Treatment {
        pod: to(Scope::Cluster, Snat::Keep),
        host: to(Scope::Cluster, Snat::Masquerade),
        other: Action::Drop,
    };
    let state = treated(Treatment::all(Action::Drop), local);
    let decided = |packet: Packet| by_hook(&state, &base(), &packet);
    assert_eq!(decided(packet("10.244.9.9", "203.0.113.9", 80)), "forward to 10.244.1.1:8080 10.244.2.1:8080");
    assert_eq!(
        decided(from_host("203.0.113.9", 80)),
        "forward to 10.244.1.1:8080+masquerade 10.244.2.1:8080+masquerade"
    );
    assert_eq!(decided(packet(CLIENT, "203.0.113.9", 80)), "drop");
    assert_eq!(decided(packet(CLIENT, VIP, 80)), "drop");
    assert_eq!(decided(Packet { destination_local: true, ..packet(CLIENT, VIP, 80) }), "pass");
}

#[test]
fn source_ranges_refuse_in_every_hook() {
    let forward = Treatment::all(Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade });
    let mut state = treated(forward, forward);
    state.ports[0].frontends[1].sources = SourceRanges::Only(["198.51.100.0/24".parse().unwrap()].into());
    let balancer = "203.0.113.9";
    let decided = |packet: Packet| by_hook(&state, &base(), &packet);
    assert!(decided(packet(CLIENT, balancer, 80)).starts_with("forward"));
    for source in ["10.244.9.9", "203.0.113.77"] {
        assert_eq!(decided(packet(source, balancer, 80)), "drop");
        assert_eq!(decided(Packet { destination_local: true, ..packet(source, balancer, 80) }), "drop");
    }
    assert_eq!(decided(from_host(balancer, 80)), "drop");
    // A node port of the same number at an address of the node serves whom the ranges refuse.
    state.ports[0].frontends[2].at = FrontendAddr::NodePort(80);
    let bound = Packet { destination_local: true, ..packet("10.244.9.9", balancer, 80) };
    assert!(by_hook(&state, &base(), &bound).starts_with("forward"));
}

#[test]
fn health_checks_are_let_in_before_anything_is_refused() {
    let reject = Treatment::all(Action::Reject);
    let mut state = treated(reject, reject);
    state.health_check = HealthCheck::new(30_080, 0);
    let at_node = |destination, port| Packet { destination_local: true, ..packet(CLIENT, destination, port) };
    assert_eq!(by_hook(&state, &base(), &at_node(NODE, 30_080)), "pass");
    assert_eq!(by_hook(&state, &base(), &at_node(NODE, 30_081)), "pass");
    state.health_check = HealthCheck::new(80, 0);
    assert_eq!(by_hook(&state, &base(), &at_node(NODE, 30_080)), "reject");
    assert_eq!(by_hook(&state, &base(), &at_node("203.0.113.9", 80)), "pass");
    assert_eq!(by_hook(&state, &base(), &packet(CLIENT, "203.0.113.9", 80)), "reject");
    assert_eq!(by_hook(&state, &base(), &from_host(VIP, 80)), "reject");
}

#[test]
fn loopback_serves_node_ports_and_is_guarded() {
    let forward = Treatment::all(Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade });
    let state = treated(forward, forward);
    let localhost = BaseState { localhost: true, ..base() };
    let from = |source: &str, port| Packet {
        source: ip(source),
        source_local: true,
        interface: None,
        destination_local: true,
        ..packet(source, "127.0.0.1", port)
    };
    for source in ["127.0.0.1", NODE] {
        assert!(by_hook(&state, &localhost, &from(source, 30_080)).starts_with("forward"));
        assert_eq!(by_hook(&state, &base(), &from(source, 30_080)), "pass", "where loopback serves none");
    }
    // Servers on loopback are for this node only.
    let martian = Packet { destination_local: true, ..packet(CLIENT, "127.0.0.1", 22) };
    assert_eq!(by_hook(&state, &localhost, &martian), "drop");
    assert_eq!(by_hook(&state, &localhost, &from("127.0.0.1", 22)), "pass");
    assert_eq!(by_hook(&state, &localhost, &from(NODE, 22)), "drop");
    assert_eq!(by_hook(&state, &base(), &martian), "pass");
    let listed = BaseState { node_ports: NodePortAddresses::Only(vec![ip(NODE)]), ..localhost.clone() };
    assert_eq!(by_hook(&state, &listed, &from("127.0.0.1", 30_080)), "pass");
    let refused = treated(forward, Treatment::all(Action::Reject));
    assert_eq!(by_hook(&refused, &localhost, &from("127.0.0.1", 30_080)), "reject");
}
