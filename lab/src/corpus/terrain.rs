//! The machines of the corpus test: together they own every address, so that any address of a case, as an endpoint or as a
//! source, has a machine that answers at it and sends from it.
//!
//! ```text
//!   pod-a ── bridge cni0 ──┐          ┌── eth0 ── far      the other nodes and their pods
//!                          ├── node ──┤
//!   pod-b ────── veth12 ───┘          └── eth1 ── client   everything else
//! ```
//! Only the node has addresses. The others accept every packet from it (a policy rule leads to a table in which every
//! destination is local) and may bind any address; the node's routes define which machine owns an address. Neighbour entries
//! are permanent on both sides, so no packet waits for neighbour discovery.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferry_api::object::{Family, IpNet};

use crate::host::Host;
use crate::lab::LabMachine;

/// The machines; removed when dropped.
pub struct Terrain {
    hosts: [Host; 5],
    source_ports: [Arc<SourcePorts>; 5],
}

/// The source ports of one machine's clients. Conntrack keeps the entry of a connection for up to 120 s after its last packet,
/// and translates a packet with the same addresses and ports by that entry instead of the rules. Each lab therefore has a
/// port range per machine, which is longer than the list of connections of one run.
#[derive(Default)]
pub(super) struct SourcePorts(AtomicU32);

/// The node's addresses, which follow its Node object, and the owners of all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    /// on the interface towards the other nodes, in order
    of_node: Vec<IpAddr>,
}

/// The node's interface towards a machine.
struct Link {
    place: LabMachine,
    /// the interface that the node's rules match
    interface: &'static str,
    /// the node's end of the veth
    device: &'static str,
    number: u8,
    /// the node's own address on it
    own: [&'static str; 2],
    /// the ranges behind it
    ranges: &'static [&'static str],
}

const LINKS: [Link; 4] = [
    Link {
        place: LabMachine::Far,
        interface: "eth0",
        device: "eth0",
        number: 1,
        // the node's own addresses are on this link, and follow the Node object
        own: ["", ""],
        ranges: &["192.0.2.0/24", "2001:db8::/64", "10.244.0.0/16", "fd00:10:244::/56"],
    },
    Link {
        place: LabMachine::PodA,
        interface: "cni0",
        device: "port1",
        number: 2,
        own: ["10.244.1.1", "fd00:10:244:1::1"],
        ranges: &["10.244.1.0/24", "fd00:10:244:1::/64"],
    },
    Link {
        place: LabMachine::PodB,
        interface: "veth12",
        device: "veth12",
        number: 3,
        own: ["172.31.0.1", "fd00:31::1"],
        ranges: &["10.244.1.11/32", "10.244.1.128/25", "fd00:10:244:1::11/128", "fd00:10:244:1:8000::/65"],
    },
    Link {
        place: LabMachine::Client,
        interface: "eth1",
        device: "eth1",
        number: 4,
        own: ["100.64.0.1", "fd00:cc::1"],
        ranges: &["0.0.0.0/0", "::/0"],
    },
];

/// The node's addresses in a family without one in its Node object.
const OF_NODE: [&str; 2] = ["192.0.2.10", "2001:db8::10"];

/// Name of each machine's link to the node.
const UPLINK: &str = "eth0";

/// Kernel settings of every machine: no ICMP rate limits, no redirects, no reverse path filter, no duplicate address detection.
const SETTINGS: [(&str, &str); 9] = [
    ("net/ipv4/icmp_ratemask", "0"),
    ("net/ipv6/icmp/ratelimit", "0"),
    ("net/ipv6/icmp/ratemask", "0"),
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/conf/default/send_redirects", "0"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    // no link-local addresses: the node has only the addresses assigned here
    ("net/ipv6/conf/default/addr_gen_mode", "1"),
];
/// Further kernel settings of the node: forwarding, and short conntrack timeouts.
const OF_NODE_SETTINGS: [(&str, &str); 5] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    ("net/netfilter/nf_conntrack_udp_timeout", "3"),
    ("net/netfilter/nf_conntrack_udp_timeout_stream", "3"),
    ("net/netfilter/nf_conntrack_tcp_timeout_close", "2"),
];

// === impl Terrain ===

impl Terrain {
    /// Builds the machines and their links.
    pub fn new() -> Self {
        let hosts = LabMachine::ALL.map(|place| Host::new(place.name()));
        let terrain = Self { hosts, source_ports: Default::default() };
        // Loads connection tracking, whose settings exist only then.
        terrain.host(LabMachine::Node).sh("conntrack", &["-C"]);
        for place in LabMachine::ALL {
            let more = if place == LabMachine::Node { &OF_NODE_SETTINGS[..] } else { &[] };
            for (key, value) in SETTINGS.iter().chain(more) {
                terrain.host(place).sysctl(key, value);
            }
        }
        for link in &LINKS {
            terrain.connect(link);
        }
        terrain
    }

    /// The machine at a place.
    pub fn host(&self, place: LabMachine) -> &Host {
        place.of(&self.hosts)
    }

    /// The source ports of a machine's clients.
    pub(super) fn source_ports(&self, place: LabMachine) -> &Arc<SourcePorts> {
        place.of(&self.source_ports)
    }

    /// Replaces the node's addresses.
    pub(super) fn readdress(&self, from: Option<&Addresses>, to: &Addresses) {
        if from == Some(to) {
            return;
        }
        let mut text = String::new();
        for address in from.into_iter().flat_map(|from| &from.of_node) {
            text += &address_line("del", *address, "eth0");
        }
        for address in &to.of_node {
            text += &address_line("add", *address, "eth0");
        }
        // an interface loses its routes with its last address
        text.extend(LINKS.iter().filter(|link| link.interface == "eth0").map(Link::routes));
        self.ip(LabMachine::Node, &text);
    }

    fn connect(&self, link: &Link) {
        let Link { place, interface, device, number, own, .. } = link;
        let peer = self.host(*place).thread_id();
        let mut text = format!(
            "link add {device} address 02:00:00:00:00:0{number} type veth peer name {UPLINK} \
             address 02:00:00:00:01:0{number} netns {peer}\n"
        );
        if interface != device {
            text += &format!(
                "link add {interface} address 02:00:00:00:02:0{number} type bridge
link set {device} master {interface}
link set {device} type bridge_slave hairpin on
link set {device} up\n"
            );
        }
        text += &format!("link set {interface} up\n");
        let own = own.iter().filter(|own| !own.is_empty());
        text.extend(own.map(|own| address_line("add", own.parse().expect("an address"), interface)));
        for gateway in ["169.254.0.2", "fe80::2"] {
            text += &format!("neigh add {gateway} lladdr 02:00:00:00:01:0{number} dev {interface} nud permanent\n");
        }
        text += &link.routes();
        self.ip(LabMachine::Node, &text);
        let node_side = if interface == device { 0 } else { 2 };
        let mut text = format!("link set {UPLINK} up\n");
        for (family, gateway, everything) in [("-4", "169.254.0.1", "0.0.0.0/0"), ("-6", "fe80::1", "::/0")] {
            text += &format!(
                "neigh add {gateway} lladdr 02:00:00:00:0{node_side}:0{number} dev {UPLINK} nud permanent
route add {everything} via {gateway} dev {UPLINK} onlink
route add local {everything} dev lo table 100\n"
            );
            self.host(*place).sh("ip", &[family, "rule", "add", "iif", UPLINK, "lookup", "100"]);
        }
        self.ip(*place, &text);
    }

    fn ip(&self, place: LabMachine, text: &str) {
        if let Err(complaint) = self.host(place).feed("ip", &["-batch", "-"], text) {
            panic!("configuring {}: {complaint}\n{text}", place.name());
        }
    }
}

// === impl Link ===

impl Link {
    fn routes(&self) -> String {
        let routes = self.ranges.iter().map(|range| {
            let gateway = if range.contains(':') { "fe80::2" } else { "169.254.0.2" };
            format!("route replace {range} via {gateway} dev {} onlink\n", self.interface)
        });
        routes.collect()
    }
}

impl Default for Terrain {
    fn default() -> Self {
        Self::new()
    }
}

// === impl SourcePorts ===

impl SourcePorts {
    /// Outside of node ports and the ports of services.
    const RANGE: std::ops::Range<u16> = 33_000..61_000;

    /// The least recently used port.
    pub(super) fn next(&self) -> u16 {
        let number = self.0.fetch_add(1, Ordering::Relaxed) % u32::from(Self::RANGE.end - Self::RANGE.start);
        Self::RANGE.start + u16::try_from(number).expect("a number below the range's length")
    }
}

// === impl Addresses ===

impl Addresses {
    /// The node's addresses by its Node object. A family without one gets a default.
    pub(super) fn new(of_node: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut list: Vec<IpAddr> = Vec::new();
        for address in of_node {
            if !list.contains(&address) && !is_special(address) {
                list.push(address);
            }
        }
        for (family, text) in Family::ALL.into_iter().zip(OF_NODE) {
            if !list.iter().any(|address| Family::of(*address) == family) {
                list.push(text.parse().expect("an address"));
            }
        }
        Self { of_node: list }
    }

    /// The addresses at which other machines reach the node.
    pub(super) fn of_node(&self) -> &[IpAddr] {
        &self.of_node
    }

    /// All addresses of the node, loopback included.
    pub(super) fn local(&self) -> Vec<IpAddr> {
        let own = LINKS.iter().flat_map(|link| link.own).filter(|own| !own.is_empty());
        let own = own.chain(["127.0.0.1", "::1"]).map(|own| own.parse().expect("an address"));
        self.of_node.iter().copied().chain(own).collect()
    }

    /// The machine that owns an address.
    pub(super) fn owner(&self, address: IpAddr) -> LabMachine {
        if self.local().contains(&address) || address.is_loopback() {
            return LabMachine::Node;
        }
        let ranges = LINKS.iter().flat_map(|link| link.ranges.iter().map(|range| (link.place, *range)));
        let ranges = ranges.map(|(place, range)| (place, range.parse::<IpNet>().expect("a range")));
        let holding = ranges.filter(|(_, range)| range.contains(&address));
        holding.max_by_key(|(_, range)| range.prefix_len()).map_or(LabMachine::Client, |(place, _)| place)
    }

    /// The source addresses that the node may use towards a machine: those of the interface. Towards itself, any of its own.
    pub(super) fn towards(&self, place: LabMachine, family: Family) -> Vec<IpAddr> {
        let all = match LINKS.iter().find(|link| link.place == place) {
            None => self.local(),
            Some(link) if link.place == LabMachine::Far => self.of_node.clone(),
            Some(link) => link.own.map(|own| own.parse().expect("an address")).to_vec(),
        };
        all.into_iter().filter(|address| Family::of(*address) == family).collect()
    }
}

/// The node's ingress interface for packets of this machine.
pub(super) fn interface(place: LabMachine) -> Option<&'static str> {
    LINKS.iter().find(|link| link.place == place).map(|link| link.interface)
}

/// True for special addresses, which no machine owns.
pub(super) fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.is_loopback() || v4.octets()[0] >= 224 || v4.is_link_local(),
        IpAddr::V6(v6) => {
            v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
                || v6.to_ipv4_mapped().is_some()
        }
    }
}

fn address_line(verb: &str, address: IpAddr, device: &str) -> String {
    match address {
        IpAddr::V4(address) => format!("addr {verb} {address}/32 dev {device}\n"),
        IpAddr::V6(address) if verb == "add" => format!("addr add {address}/128 dev {device} nodad\n"),
        IpAddr::V6(address) => format!("addr {verb} {address}/128 dev {device}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(of_node: &[&str]) -> Addresses {
        Addresses::new(of_node.iter().map(|address| address.parse().unwrap()))
    }

    #[test]
    fn every_address_has_an_owner() {
        let addresses = addresses(&["192.0.2.11"]);
        for (address, owner) in [
            ("192.0.2.11", LabMachine::Node),
            ("2001:db8::10", LabMachine::Node),
            ("10.244.1.1", LabMachine::Node),
            ("::1", LabMachine::Node),
            ("192.0.2.10", LabMachine::Far),
            ("10.244.1.10", LabMachine::PodA),
            ("10.244.1.11", LabMachine::PodB),
            ("fd00:10:244:1::10", LabMachine::PodA),
            ("fd00:10:244:1:8000::90", LabMachine::PodB),
            ("10.244.2.10", LabMachine::Far),
            ("fd00:10:244:2::10", LabMachine::Far),
            ("203.0.113.20", LabMachine::Client),
            ("2001:db8:1::20", LabMachine::Client),
        ] {
            assert_eq!(addresses.owner(address.parse().unwrap()), owner, "{address}");
        }
    }

    #[test]
    fn the_node_speaks_from_the_address_of_the_interface() {
        let addresses = addresses(&["192.0.2.11", "198.51.100.10", "127.0.0.1"]);
        let towards = |place| addresses.towards(place, Family::V4).into_iter().map(|own| own.to_string());
        assert_eq!(towards(LabMachine::Far).collect::<Vec<_>>(), ["192.0.2.11", "198.51.100.10"]);
        assert_eq!(towards(LabMachine::PodA).collect::<Vec<_>>(), ["10.244.1.1"]);
        assert!(towards(LabMachine::Node).any(|own| own == "127.0.0.1"));
    }
}
