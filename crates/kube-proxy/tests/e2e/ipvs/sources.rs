//! A service address becomes no source address: neither of the node's own connections, nor of those that it masquerades.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ferry_lab::lab::{NODE_PORT, is_node_address};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::{Checks, Family, Host, Lab, LabMachine, Manifests, ProbeTally, SeenSource, Stage, TestService};

use crate::support::{EXECUTABLE, LIMIT, folder, ipvs, stage};

/// A node whose links have no IPv4 address and no global one of IPv6: its own addresses are on a device, as those that a routing daemon
/// announces. For IPv4 the kernel then takes the first address of wide enough scope of all devices, in the order in which these were made,
/// and `kube-ipvs0` was made before this one. Its neighbours find the addresses by ARP, or behind its link-local one. What they knew
/// before is forgotten.
const UNNUMBERED: [(LabMachine, &str); 3] = [
    (
        LabMachine::Node,
        "link add own0 type dummy
link set own0 up
addr del 169.254.1.1/32 dev vpoda
addr del 169.254.1.1/32 dev vpodb
addr del 192.168.9.1/24 dev vfar
addr del 203.0.113.1/24 dev vcli
addr del fd00:9::1/64 dev vfar
addr del fd00:cc::1/64 dev vcli
addr add fe80::1/64 dev vfar nodad
addr add fe80::1/64 dev vcli nodad
addr add 203.0.113.1/32 dev own0
addr add 192.168.9.1/32 dev own0
addr add 169.254.1.1/32 dev own0 scope link
addr add fd00:cc::1/128 dev own0 nodad
addr add fd00:9::1/128 dev own0 nodad
route add 10.244.0.10/32 dev vpoda
route add 10.244.0.11/32 dev vpodb
route add 10.244.5.0/24 via 192.168.9.2 dev vfar onlink
route add 203.0.113.0/24 dev vcli
route add default via 203.0.113.10 dev vcli onlink
route add fd00:9::/64 dev vfar
route add fd00:cc::/64 dev vcli
route replace fd00:10:244:0:5::/80 via fd00:9::2 dev vfar
route replace default via fd00:cc::10 dev vcli
neigh flush all
",
    ),
    (
        LabMachine::Far,
        "route add fd00:9::1/128 via fe80::1 dev eth0
route replace default via fe80::1 dev eth0 src fd00:10:244:0:5::10
neigh flush all
",
    ),
    (
        LabMachine::Client,
        "route add fd00:cc::1/128 via fe80::1 dev eth0
route replace default via fe80::1 dev eth0 src fd00:cc::10
neigh flush all
",
    ),
];

/// A connection for which the node chooses a source address.
struct Connection {
    from: LabMachine,
    to: SocketAddr,
    /// the server behind it
    server: &'static str,
}

fn manifests() -> Manifests {
    Manifests::new()
        .with(TestService::new("web", 20).node_port(30020), &[LabMachine::PodA])
        .with(TestService::new("away", 21).external_ip(21), &[LabMachine::Far])
}

/// Connections over each device: the node's own to the servers themselves, and masqueraded ones.
fn connections(family: Family) -> Vec<Connection> {
    let own = |(place, port, server): (LabMachine, u16, _)| Connection {
        from: LabMachine::Node,
        to: SocketAddr::new(place.address(family), port),
        server,
    };
    let masqueraded = |(to, server)| [LabMachine::Client, LabMachine::Node].map(|from| Connection { from, to, server });
    let places = [
        (LabMachine::Client, NODE_PORT, "client:9090"),
        (LabMachine::PodA, 8080, "pod-a:8080"),
        (LabMachine::Far, 8080, "far:8080"),
    ];
    let frontends = [(at_node_port(family, 30020), "pod-a:8080"), (at_external_ip(family, 21), "far:8080")];
    places.map(own).into_iter().chain(frontends.into_iter().flat_map(masqueraded)).collect()
}

/// The source address of the node's route to this address.
fn source_of_route(node: &Host, to: IpAddr) -> Option<IpAddr> {
    let route = node.sh("ip", &["route", "get", &to.to_string()]);
    route.split_once(" src ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
}

fn ask(lab: &Lab, connection: &Connection) -> (String, ProbeTally) {
    let &Connection { from, to, server } = connection;
    (format!("{from:?} to {server} by {to}"), lab.from(from).tcp(to, 2))
}

/// Checks that all have an address of the node as their source, and those of pods their own.
fn check(lab: &Lab, checks: &mut Checks) {
    let node = lab.host(LabMachine::Node);
    for family in Family::ALL {
        for connection in connections(family) {
            let (what, tally) = ask(lab, &connection);
            checks.served(&what, &tally, &[connection.server], SeenSource::Masqueraded);
        }
        for place in [LabMachine::Client, LabMachine::PodA, LabMachine::Far] {
            let source = source_of_route(node, place.address(family));
            checks.that(source.is_some_and(is_node_address), || format!("route to {place:?}: from {source:?}"));
        }
        let tally = lab.from(LabMachine::PodB).tcp(at_cluster_ip(family, 21), 3);
        checks.served("a pod", &tally, &["far:8080"], SeenSource::Kept(LabMachine::PodB.address(family)));
    }
}

/// Makes the service addresses as eligible as upstream's proxy does: of scope global, and not deprecated. Returns them.
fn prefer(node: &Host) -> BTreeSet<IpAddr> {
    let listed = node.sh("ip", &["-o", "addr", "show", "dev", "kube-ipvs0"]);
    let change = |line: &str| {
        let network = line.split_whitespace().nth(3).expect("an address");
        if network.contains(':') {
            node.sh("ip", &["addr", "change", network, "dev", "kube-ipvs0", "preferred_lft", "forever"]);
        } else {
            // The kernel changes no scope in place.
            node.sh("ip", &["addr", "del", network, "dev", "kube-ipvs0"]);
            node.sh("ip", &["addr", "add", network, "dev", "kube-ipvs0"]);
        }
        network.split('/').next().and_then(|address| address.parse().ok()).expect("an address")
    };
    listed.lines().map(change).collect()
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_service_address_is_no_source() {
    let stage = stage(&manifests());
    check(stage.lab, &mut Checks::new());
}

/// This node has no better addresses on the way: were the service addresses as eligible as any other, it would take them, which the test
/// shows for each kind of connection while the proxy is stopped.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_service_address_is_no_source_where_the_links_have_none() {
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("sources"), ipvs(""), &manifests());
    let node = stage.node();
    for (place, text) in UNNUMBERED {
        lab.host(place).feed("ip", &["-batch", "-"], text).expect("another layout");
    }
    // The node has the same addresses as before, on another device.
    stage.restart();
    let mut checks = Checks::new();
    check(&lab, &mut checks);
    stage.proxy.suspend();
    let preferred = prefer(node);
    let is_service_address = |address: &IpAddr| preferred.contains(address);
    for family in Family::ALL {
        // Of IPv6 the address with the longest common prefix counts, and there the node's own one is the next to the client.
        let is_nearer = |connection: &Connection| family == Family::V4 || connection.server != "client:9090";
        for connection in connections(family).iter().filter(|connection| is_nearer(connection)) {
            let (what, tally) = ask(&lab, connection);
            let is_taken = tally.all_answered() && tally.sources().iter().all(is_service_address);
            checks.that(is_taken, || format!("{what}: {tally}, although service addresses are eligible"));
        }
    }
    stage.proxy.go_on();
    until("sources of the node again", LIMIT, || {
        let places = [LabMachine::PodA, LabMachine::Far];
        let mut to = Family::ALL.into_iter().flat_map(|family| places.map(|place| place.address(family)));
        to.all(|to| source_of_route(node, to).is_some_and(is_node_address))
    });
    check(&lab, &mut checks);
}
