//! The lab's network: a node with two pods, a second node, and a client outside the cluster.
//!
//! ```text
//!   pod-a ──┐                 ┌── far      another node: 192.168.9.2, with a pod 10.244.5.10
//!           ├──── node ───────┤
//!   pod-b ──┘   the proxy     └── client   outside: 203.0.113.10 and more addresses
//! ```
//! Each pod is routed over its own veth. Every machine has both IP families.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ferry_api::object::Family;

use crate::host::Host;
use crate::patience::until;
use crate::probe::{ProbeClient, ProbeServer};

/// The name of the Node that the proxy runs on.
pub const NODE_NAME: &str = "node-a";
/// The name of the other Node.
pub const FAR_NAME: &str = "node-b";
/// The pod range, by family.
pub const POD_RANGES: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/56"];
/// The range of cluster IPs, by family.
pub const SERVICE_RANGES: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];
/// The ports of the servers in pods.
pub const POD_PORTS: [u16; 4] = [8080, 8081, 8082, 8083];
/// The port of the servers of the nodes themselves, and of the client.
pub const NODE_PORT: u16 = 9090;

/// A machine where connections start or end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LabMachine {
    /// the proxy's node, at its primary address
    Node,
    /// a pod of the node
    PodA,
    /// the other pod of the node
    PodB,
    /// the pod of the other node
    Far,
    /// outside the cluster
    Client,
}

/// The lab's machines and servers; removed when dropped.
pub struct Lab {
    // servers before hosts: they are stopped first
    servers: Vec<ProbeServer>,
    hosts: [Host; 5],
}

// === impl LabMachine ===

impl LabMachine {
    /// All machines.
    pub const ALL: [Self; 5] = [Self::Node, Self::PodA, Self::PodB, Self::Far, Self::Client];

    /// The element of this place in an array in the order of [`LabMachine::ALL`].
    pub(crate) fn of<T>(self, [node, pod_a, pod_b, far, client]: &[T; 5]) -> &T {
        match self {
            Self::Node => node,
            Self::PodA => pod_a,
            Self::PodB => pod_b,
            Self::Far => far,
            Self::Client => client,
        }
    }

    /// Its primary address.
    pub fn address(self, family: Family) -> IpAddr {
        let (v4, v6) = match self {
            Self::Node => ([203, 0, 113, 1], [0xfd00, 0xcc, 0, 0, 0, 0, 0, 1]),
            Self::PodA => ([10, 244, 0, 10], [0xfd00, 0x10, 0x244, 0, 0, 0, 0, 0x10]),
            Self::PodB => ([10, 244, 0, 11], [0xfd00, 0x10, 0x244, 0, 0, 0, 0, 0x11]),
            Self::Far => ([10, 244, 5, 10], [0xfd00, 0x10, 0x244, 0, 5, 0, 0, 0x10]),
            Self::Client => ([203, 0, 113, 10], [0xfd00, 0xcc, 0, 0, 0, 0, 0, 0x10]),
        };
        pick(family, v4, v6)
    }

    /// The name of its server in answers; the client has none.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::PodA => "pod-a",
            Self::PodB => "pod-b",
            Self::Far => "far",
            Self::Client => "client",
        }
    }

    /// The Node that it runs on; empty for the client.
    pub fn node_name(self) -> &'static str {
        match self {
            Self::Node | Self::PodA | Self::PodB => NODE_NAME,
            Self::Far => FAR_NAME,
            Self::Client => "",
        }
    }
}

/// A cluster IP of the lab's service range. Numbers from 0xf000 are reserved for the lab.
pub fn cluster_ip(family: Family, number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    pick(family, [10, 96, high, low], [0xfd00, 0x10, 0x96, 0, 0, 0, 0, number])
}

/// An address outside the cluster that is routed to the node, for externalIPs and load balancers.
pub fn external_ip(family: Family, number: u8) -> IpAddr {
    pick(family, [198, 51, 100, number], [0xfd00, 0x1b, 0, 0, 0, 0, 0, number.into()])
}

/// The node's addresses for other machines: the primary one, then the one towards the other node.
pub fn node_addresses(family: Family) -> [IpAddr; 2] {
    [LabMachine::Node.address(family), pick(family, [192, 168, 9, 1], [0xfd00, 0x9, 0, 0, 0, 0, 0, 1])]
}

/// The other node's own address.
pub fn far_node_address(family: Family) -> IpAddr {
    pick(family, [192, 168, 9, 2], [0xfd00, 0x9, 0, 0, 0, 0, 0, 2])
}

/// Further addresses of the client: 20 to 27, and 200.
pub fn client_address(family: Family, number: u8) -> IpAddr {
    // the same digits in both families: ::20 is hexadecimal
    let digits = u16::from_str_radix(&number.to_string(), 16).unwrap_or_default();
    pick(family, [203, 0, 113, number], [0xfd00, 0xcc, 0, 0, 0, 0, 0, digits])
}

/// True for an address of the node, on any device: a server sees it as the source of a masqueraded connection.
pub fn is_node_address(address: IpAddr) -> bool {
    let family = Family::of(address);
    let gateway = pick(family, [169, 254, 1, 1], [0xfe80, 0, 0, 0, 0, 0, 0, 1]);
    address == gateway || node_addresses(family).contains(&address)
}

// === impl Lab ===

impl Lab {
    /// Builds the lab, with a server in every pod and on both nodes.
    pub fn new() -> Self {
        let hosts = LabMachine::ALL.map(|place| Host::new(place.name()));
        let mut lab = Self { servers: Vec::new(), hosts };
        for place in LabMachine::ALL {
            settings(lab.host(place), place == LabMachine::Node);
        }
        lab.wire();
        for (place, text) in CONFIGURATION {
            if let Err(complaint) = lab.host(place).feed("ip", &["-batch", "-"], text) {
                panic!("configuring {}: {complaint}", place.name());
            }
        }
        lab.serve();
        lab.wait_until_connected();
        lab
    }

    /// The machine at a place.
    pub fn host(&self, place: LabMachine) -> &Host {
        place.of(&self.hosts)
    }

    /// A client on the machine at a place.
    pub fn from(&self, place: LabMachine) -> ProbeClient<'_> {
        ProbeClient::new(self.host(place))
    }

    fn wire(&self) {
        let mut text = String::new();
        for (place, device) in [
            (LabMachine::PodA, "vpoda"),
            (LabMachine::PodB, "vpodb"),
            (LabMachine::Far, "vfar"),
            (LabMachine::Client, "vcli"),
        ] {
            let peer = self.host(place).thread_id();
            text.push_str(&format!("link add {device} type veth peer name eth0 netns {peer}\n"));
        }
        if let Err(complaint) = self.host(LabMachine::Node).feed("ip", &["-batch", "-"], &text) {
            panic!("making the links: {complaint}");
        }
    }

    /// Waits until every link forwards packets, which takes a moment after its setup.
    fn wait_until_connected(&self) {
        let node = self.from(LabMachine::Node).patience(Duration::from_millis(100));
        for family in Family::ALL {
            for (place, port) in [
                (LabMachine::PodA, 8080),
                (LabMachine::PodB, 8080),
                (LabMachine::Far, 8080),
                (LabMachine::Client, NODE_PORT),
            ] {
                let at = SocketAddr::new(place.address(family), port);
                until("a server answers the node", Duration::from_secs(10), || node.tcp(at, 1).all_answered());
            }
        }
    }

    fn serve(&mut self) {
        for place in [LabMachine::PodA, LabMachine::PodB, LabMachine::Far] {
            let addresses = Family::ALL.map(|family| place.address(family)).to_vec();
            self.servers.push(ProbeServer::start(self.host(place), addresses, POD_PORTS.to_vec()));
        }
        let own = Family::ALL.into_iter().flat_map(node_addresses).collect();
        self.servers.push(ProbeServer::start(self.host(LabMachine::Node), own, vec![NODE_PORT]));
        let client = Family::ALL.map(|family| LabMachine::Client.address(family)).to_vec();
        self.servers.push(ProbeServer::start(self.host(LabMachine::Client), client, vec![NODE_PORT]));
        let far = Family::ALL.map(far_node_address).to_vec();
        self.servers.push(ProbeServer::start(self.host(LabMachine::Far), far, vec![NODE_PORT]));
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

fn pick(family: Family, v4: [u8; 4], v6: [u16; 8]) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(v4)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(v6)),
    }
}

fn settings(host: &Host, forwards: bool) {
    for key in ["net/ipv6/conf/all/accept_dad", "net/ipv6/conf/default/accept_dad"] {
        host.sysctl(key, "0");
    }
    // ICMP types in this mask are rate-limited, per destination and globally; redirects count towards the same limit.
    host.sysctl("net/ipv4/icmp_ratemask", "0");
    host.sysctl("net/ipv6/icmp/ratemask", "0");
    host.sysctl("net/ipv4/conf/all/send_redirects", "0");
    host.sysctl("net/ipv4/conf/default/send_redirects", "0");
    if forwards {
        host.sysctl("net/ipv4/ip_forward", "1");
        host.sysctl("net/ipv6/conf/all/forwarding", "1");
    }
}

/// Addresses and routes, as `ip -batch` reads them.
const CONFIGURATION: [(LabMachine, &str); 5] = [
    (
        LabMachine::Node,
        "addr add 169.254.1.1/32 dev vpoda
addr add fe80::1/64 dev vpoda nodad
link set vpoda up
addr add 169.254.1.1/32 dev vpodb
addr add fe80::1/64 dev vpodb nodad
link set vpodb up
addr add 192.168.9.1/24 dev vfar
addr add fd00:9::1/64 dev vfar nodad
link set vfar up
addr add 203.0.113.1/24 dev vcli
addr add fd00:cc::1/64 dev vcli nodad
link set vcli up
route add 10.244.0.10/32 dev vpoda
route add fd00:10:244::10/128 dev vpoda
route add 10.244.0.11/32 dev vpodb
route add fd00:10:244::11/128 dev vpodb
route add 10.244.5.0/24 via 192.168.9.2
route add fd00:10:244:0:5::/80 via fd00:9::2
route add default via 203.0.113.10
route add default via fd00:cc::10
",
    ),
    (
        LabMachine::PodA,
        "addr add 10.244.0.10/32 dev eth0
addr add fd00:10:244::10/128 dev eth0 nodad
link set eth0 up
route add 169.254.1.1/32 dev eth0
route add default via 169.254.1.1
route add default via fe80::1 dev eth0
",
    ),
    (
        LabMachine::PodB,
        "addr add 10.244.0.11/32 dev eth0
addr add fd00:10:244::11/128 dev eth0 nodad
link set eth0 up
route add 169.254.1.1/32 dev eth0
route add default via 169.254.1.1
route add default via fe80::1 dev eth0
",
    ),
    (
        LabMachine::Far,
        "addr add 192.168.9.2/24 dev eth0
addr add fd00:9::2/64 dev eth0 nodad
addr add 10.244.5.10/32 dev lo
addr add fd00:10:244:0:5::10/128 dev lo nodad
link set eth0 up
route add default via 192.168.9.1 src 10.244.5.10
route add default via fd00:9::1 src fd00:10:244:0:5::10
",
    ),
    (
        LabMachine::Client,
        "addr add 203.0.113.10/24 dev eth0
addr add 203.0.113.20/24 dev eth0
addr add 203.0.113.21/24 dev eth0
addr add 203.0.113.22/24 dev eth0
addr add 203.0.113.23/24 dev eth0
addr add 203.0.113.24/24 dev eth0
addr add 203.0.113.25/24 dev eth0
addr add 203.0.113.26/24 dev eth0
addr add 203.0.113.27/24 dev eth0
addr add 203.0.113.200/24 dev eth0
addr add fd00:cc::20/64 dev eth0 nodad
addr add fd00:cc::21/64 dev eth0 nodad
addr add fd00:cc::22/64 dev eth0 nodad
addr add fd00:cc::23/64 dev eth0 nodad
addr add fd00:cc::24/64 dev eth0 nodad
addr add fd00:cc::25/64 dev eth0 nodad
addr add fd00:cc::26/64 dev eth0 nodad
addr add fd00:cc::27/64 dev eth0 nodad
addr add fd00:cc::200/64 dev eth0 nodad
addr add fd00:cc::10/64 dev eth0 nodad
link set eth0 up
route add default via 203.0.113.1
route add default via fd00:cc::1 src fd00:cc::10
",
    ),
];
