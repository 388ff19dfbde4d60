//! Odd objects: few names, addresses and ports, so that they often meet, and now and then something malformed.

use std::net::IpAddr;

use ferry_api::object::{
    AddressKind, AddressType, BalancingAnnotations, Conditions, EndpointSlice, EndpointSliceBuilder, Family, Hints,
    IpNet, KubeObject, LoadBalancerIngress, Node, NodeAddress, ObjectName, Parsed, Protocol, Service, ServiceCidr,
    ServicePort, ServiceType, SlicePort, Timestamp, TrafficPolicy,
};
use ferry_model::{DetectLocal, NodePortSelection, Packet, Profile, ReplyOwner, Scheduler, Settings};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

const ADDRESSES_V4: [&str; 6] = ["10.96.0.1", "10.96.0.2", "203.0.113.9", "192.0.2.10", "10.244.1.1", "10.244.2.1"];
const ADDRESSES_V6: [&str; 5] = ["fd00:10:96::1", "fd00:10:96::2", "2001:db8::10", "fd00:10:244::1", "fd00:10:244::2"];
const SPECIAL: [&str; 7] =
    ["127.0.0.1", "::1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "fe80::1", "ff02::1"];
const NETS: [&str; 9] = [
    "10.0.0.0/8",
    "10.244.0.0/16",
    "192.0.2.10/24",
    "203.0.113.9/32",
    "0.0.0.0/0",
    "fd00:10:244::/56",
    "2001:db8::/32",
    "::/0",
    "10.96.0.0/16",
];
const NODES: [&str; 3] = ["here", "there", ""];
const PORTS: [u16; 4] = [80, 81, 30_080, 65_535];

/// Addresses of the machine.
pub(crate) fn local_addresses() -> Vec<IpAddr> {
    ["127.0.0.1", "::1", "192.0.2.10", "2001:db8::10"].map(|text| text.parse().unwrap()).to_vec()
}

fn one_of(addresses: &'static [&'static str]) -> impl Strategy<Value = IpAddr> {
    select(addresses).prop_map(|text| text.parse().unwrap())
}

fn address_of(family: Family) -> BoxedStrategy<IpAddr> {
    match family {
        Family::V4 => one_of(&ADDRESSES_V4).boxed(),
        Family::V6 => one_of(&ADDRESSES_V6).boxed(),
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![6 => one_of(&ADDRESSES_V4), 4 => one_of(&ADDRESSES_V6), 1 => one_of(&SPECIAL)]
}

fn net() -> impl Strategy<Value = IpNet> {
    select(&NETS[..]).prop_map(|text| text.parse().unwrap())
}

fn mostly<T: Clone + std::fmt::Debug + 'static>(good: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Parsed<T>> {
    prop_oneof![29 => good.prop_map(Ok), 1 => Just(Err("bad".into()))].boxed()
}

fn number() -> impl Strategy<Value = u16> {
    prop_oneof![29 => select(&PORTS[..]), 1 => Just(0)]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![1 => Just(Protocol::Tcp), 3 => Just(Protocol::Udp), 1 => Just(Protocol::Sctp)]
}

fn port_name() -> impl Strategy<Value = Box<str>> {
    prop_oneof![12 => Just(""), 6 => Just("http"), 1 => Just("dns"), 1 => Just("web:http")].prop_map(Box::from)
}

fn name() -> impl Strategy<Value = ObjectName> {
    select(&["a", "b", "c"][..]).prop_map(|name| ObjectName::new("default", name))
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![2 => Just(TrafficPolicy::Cluster), 1 => Just(TrafficPolicy::Local)]
}

fn kind() -> impl Strategy<Value = ServiceType> {
    prop_oneof![
        4 => Just(ServiceType::LoadBalancer),
        2 => Just(ServiceType::NodePort),
        2 => Just(ServiceType::ClusterIp),
        1 => Just(ServiceType::ExternalName),
    ]
}

fn service_port() -> impl Strategy<Value = ServicePort> {
    (port_name(), mostly(protocol()), mostly(number()), mostly(number()))
        .prop_map(|(name, protocol, port, node_port)| ServicePort { name, protocol, port, node_port })
}

fn ingress() -> impl Strategy<Value = LoadBalancerIngress> {
    (mostly(address()), prop::bool::weighted(0.2)).prop_map(|(ip, proxy_mode)| LoadBalancerIngress { ip, proxy_mode })
}

/// clusterIP, clusterIPs and ipFamilies.
type ClusterIps = (Option<Parsed<IpAddr>>, Vec<Parsed<IpAddr>>, Vec<Family>);

/// Mostly as an API server has them, so that something is served; or anything.
fn cluster_ips() -> impl Strategy<Value = ClusterIps> {
    use Family::{V4, V6};
    const FAMILIES: [&[Family]; 4] = [&[V4], &[V6], &[V4, V6], &[V6, V4]];
    let families = select(&FAMILIES[..]);
    let consistent = (families, address_of(V4), address_of(V6)).prop_map(|(families, v4, v6)| {
        let of = |family: &Family| Ok(if *family == V4 { v4 } else { v6 });
        (families.first().map(of), families.iter().map(of).collect(), families.to_vec())
    });
    let anything =
        (option::weighted(0.9, mostly(address())), vec(mostly(address()), 0..3), vec(select(&Family::ALL[..]), 0..3));
    prop_oneof![4 => consistent, 1 => anything]
}

fn balancing() -> impl Strategy<Value = BalancingAnnotations> {
    let some = |texts: &'static [&'static str]| option::of(select(texts).prop_map(Box::from));
    let schedulers = some(&["wlc", "sh", "fastest", ""]);
    (schedulers, some(&["z1=3,z2=2", "z1=65535", "z1=0,z2=2,="]), some(&["2", "65535", "0", "-"])).prop_map(
        |(scheduler, weight_zones, weight_local)| BalancingAnnotations { scheduler, weight_zones, weight_local },
    )
}

fn service() -> impl Strategy<Value = Service> {
    let addresses = (cluster_ips(), vec(mostly(address()), 0..3), vec(ingress(), 0..3), vec(mostly(net()), 0..3));
    let rest = (
        name(),
        option::of((0i64..3).prop_map(|seconds| Timestamp { seconds, nanoseconds: 0 })),
        prop::bool::weighted(0.05),
        kind(),
        vec(service_port(), 0..4),
        option::of(0u32..3),
        policy(),
        policy(),
        (number(), option::weighted(0.3, balancing())),
    );
    (addresses, rest).prop_map(|(addresses, rest)| {
        let ((cluster_ip, cluster_ips, families), external_ips, ingress, source_ranges) = addresses;
        let (name, created, foreign_proxy, kind, ports, affinity_seconds, internal, external, (health, balancing)) =
            rest;
        Service {
            name,
            uid: None,
            created,
            foreign_proxy,
            kind,
            cluster_ip,
            cluster_ips: cluster_ips.into(),
            families: families.into(),
            ports: ports.into(),
            external_ips: external_ips.into(),
            ingress: ingress.into(),
            source_ranges: source_ranges.into(),
            affinity_seconds,
            internal_policy: internal,
            external_policy: external,
            health_check_node_port: health,
            odd: [].into(),
            balancing: balancing.map(Box::new),
        }
    })
}

fn conditions() -> impl Strategy<Value = Conditions> {
    (prop::bool::weighted(0.6), any::<bool>(), prop::bool::weighted(0.3))
        .prop_map(|(ready, serving, terminating)| Conditions { ready, serving, terminating })
}

fn hints() -> impl Strategy<Value = Hints> {
    let names = |names: &'static [&'static str]| {
        prop_oneof![2 => Just(Vec::new()), 1 => vec(select(names), 1..3)]
            .prop_map(|names| names.into_iter().map(Box::from).collect())
    };
    (names(&["z1", "z2"]), names(&NODES)).prop_map(|(zones, nodes)| Hints { zones, nodes })
}

/// A node and a zone, or one of them.
fn place() -> impl Strategy<Value = (Option<&'static str>, Option<&'static str>)> {
    (option::of(select(&NODES[..])), option::of(select(&["z1", "z2"][..])))
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let port = (option::weighted(0.95, port_name()), mostly(protocol()), option::weighted(0.95, mostly(number())))
        .prop_map(|(name, protocol, port)| SlicePort { name, protocol, port });
    let types = prop_oneof![
        6 => Just((AddressType::Ipv4, Family::V4)),
        6 => Just((AddressType::Ipv6, Family::V6)),
        1 => Just((AddressType::Other, Family::V4)),
    ];
    let endpoints = types.prop_flat_map(|(address_type, family)| {
        let address = prop_oneof![8 => address_of(family), 1 => address()];
        (Just(address_type), vec((mostly(address), conditions(), place(), hints()), 0..6))
    });
    let name = select(&["s", "t", "u", "v"][..]).prop_map(|name| ObjectName::new("default", name));
    let service = option::weighted(0.95, self::name());
    (name, service, endpoints, vec(port, 1..6), prop::bool::weighted(0.1)).prop_map(
        |(name, service, (address_type, endpoints), ports, headless)| {
            let mut builder = EndpointSliceBuilder::default();
            for (address, conditions, (node, zone), hints) in endpoints {
                builder.push(address, conditions, node, zone, hints);
            }
            let mut slice = builder.build(name, service, address_type, ports);
            slice.headless = headless;
            slice
        },
    )
}

fn node() -> impl Strategy<Value = Node> {
    let kind = select(&[AddressKind::Internal, AddressKind::External][..]);
    let addresses = vec((kind, mostly(address())).prop_map(|(kind, address)| NodeAddress { kind, address }), 0..4);
    let zone = option::of(select(&["z1", "z2"][..]));
    (select(&NODES[..2]), zone, addresses, vec(mostly(net()), 0..3)).prop_map(|(name, zone, addresses, pod_cidrs)| {
        Node {
            name: ObjectName::cluster_wide(name),
            zone: zone.map(Box::from),
            addresses: addresses.into(),
            pod_cidrs: pod_cidrs.into(),
            deleting: false,
            to_be_deleted: false,
        }
    })
}

fn service_cidr() -> impl Strategy<Value = ServiceCidr> {
    (select(&["k", "l"][..]), vec(mostly(net()), 0..3))
        .prop_map(|(name, cidrs)| ServiceCidr { name: ObjectName::cluster_wide(name), cidrs: cidrs.into() })
}

pub(crate) fn object() -> impl Strategy<Value = KubeObject> {
    prop_oneof![
        6 => service().prop_map(KubeObject::Service),
        10 => slice().prop_map(KubeObject::EndpointSlice),
        1 => node().prop_map(KubeObject::Node),
        1 => service_cidr().prop_map(KubeObject::ServiceCidr),
    ]
}

/// Each fact on its own: the model may not rely on those that the modes of today have in common.
pub(crate) fn profile() -> impl Strategy<Value = Profile> {
    let any_facts = any::<[bool; 16]>().prop_map(|facts| {
        let [short_circuit, local_falls_back, masquerades_host_on_local, rejects_unknown_ports, ..] = facts;
        let [_, _, _, _, rejects_host_to_external, filters_sources_before_reject, refuses_by_hook, ..] = facts;
        let [.., serves_localhost, lists_node_addresses, _, _, _, _, _, relays] = facts;
        let [.., binds_addresses, drops_unassigned_cluster_ips, balances, ends_connections, listens, _] = facts;
        let keeps_client_ports = facts[7];
        Profile {
            short_circuit,
            local_falls_back,
            masquerades_host_on_local,
            rejects_unknown_ports,
            rejects_host_to_external,
            filters_sources_before_reject,
            refuses_by_hook,
            serves_localhost,
            lists_node_addresses,
            binds_addresses,
            drops_unassigned_cluster_ips,
            balances,
            ends_connections,
            listens,
            keeps_client_ports,
            reply_owner: if relays { ReplyOwner::Proxy } else { ReplyOwner::Endpoint },
        }
    });
    prop_oneof![2 => select(Profile::ALL), 1 => any_facts]
}

pub(crate) fn settings() -> impl Strategy<Value = Settings> {
    let detect_local = prop_oneof![
        vec(net(), 0..3).prop_map(DetectLocal::ClusterCidr),
        Just(DetectLocal::NodeCidr),
        Just(DetectLocal::Bridge("cni0".to_owned())),
        Just(DetectLocal::InterfacePrefix("veth".to_owned())),
    ];
    let node_ports = prop_oneof![Just(NodePortSelection::Primary), vec(net(), 0..3).prop_map(NodePortSelection::Cidrs)];
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.9));
    let scheduler = select(&Scheduler::ALL[..]);
    (option::weighted(0.2, address()), detect_local, 0u8..32, node_ports, (flags, scheduler)).prop_map(
        |(bind_address, detect_local, masquerade_bit, node_port_addresses, (flags, scheduler))| {
            let (masquerade_all, localhost_node_ports, external_ips) = flags;
            Settings {
                node_name: "here".to_owned(),
                bind_address,
                detect_local,
                masquerade_all,
                masquerade_bit,
                node_port_addresses,
                localhost_node_ports,
                external_ips,
                scheduler,
            }
        },
    )
}

pub(crate) fn packet() -> impl Strategy<Value = Packet> {
    let interface = option::of(select(&["eth0", "cni0", "veth1"][..]));
    (address(), address(), interface, protocol(), select(&PORTS[..])).prop_map(
        |(source, destination, interface, protocol, port)| Packet {
            source,
            source_local: local_addresses().contains(&source),
            interface: interface.map(str::to_owned),
            destination,
            destination_local: local_addresses().contains(&destination),
            protocol,
            port,
        },
    )
}
