//! Builds desired states of every kind directly, without API objects.

use std::net::IpAddr;
use std::sync::Arc;

use ferry_api::object::{Family, IpNet, ObjectName, Protocol};
use ferry_model::{
    Action, Affinity, BaseState, Context, Endpoint, Frontend, FrontendAddr, FrontendKind, LocalDetector,
    MissingSchedulers, NodePortAddresses, Pool, PortState, Profile, Scheduler, Scope, ServiceState, Snat, SourceRanges,
    Treatment,
};
use ferry_plane::{Delta, Unit, UnitId};

/// An address in the network 10.`net`.0.0/24 or fd00:10:`net`::/112.
pub fn address(family: Family, net: u8, last: u8) -> IpAddr {
    match family {
        Family::V4 => format!("10.{net}.0.{last}").parse().unwrap(),
        Family::V6 => format!("fd00:10:{net}::{last:x}").parse().unwrap(),
    }
}

/// The network of the family.
pub fn net(family: Family, v4: &str, v6: &str) -> IpNet {
    match family {
        Family::V4 => v4.parse().unwrap(),
        Family::V6 => v6.parse().unwrap(),
    }
}

/// A context that detects local pods by their range.
pub fn context(family: Family) -> Context {
    let pods = LocalDetector::Cidr(net(family, "10.244.0.0/16", "fd00:10:244::/56"));
    Context {
        node_name: "node-a".into(),
        zone: None,
        node_ip: None,
        node_addresses: [].into(),
        local_addresses: [].into(),
        relay_address: None,
        local: Some(pods),
        masquerade_all: false,
        masquerade_mark: 0x4000,
        scheduler: Scheduler::default(),
        missing_schedulers: MissingSchedulers::new(),
    }
}

/// The same, with the addresses that a mode of this profile asks for.
pub fn context_for(family: Family, profile: &Profile) -> Context {
    let node = [address(family, 0, 1), address(family, 0, 2)];
    let node_addresses = if profile.lists_node_addresses { node.into() } else { [].into() };
    let local_addresses = if profile.binds_addresses { node.into() } else { [].into() };
    let relay_address = profile.relays().then(|| address(family, 0, 1));
    Context { node_addresses, local_addresses, relay_address, ..context(family) }
}

/// A base state in which every address serves node ports.
pub fn base(family: Family, affinity: bool) -> BaseState {
    let service_cidrs =
        vec![net(family, "10.96.0.0/16", "fd00:10:96::/112"), net(family, "10.112.0.0/13", "fd00:11::/50")];
    BaseState { node_ports: NodePortAddresses::All, localhost: false, service_cidrs, affinity }
}

/// A pool of endpoints with these last bytes of addresses.
pub fn pool(family: Family, last: &[u8]) -> Pool {
    Pool::new(last.iter().map(|last| Endpoint { address: address(family, 244, *last), port: 8080 }).collect::<Vec<_>>())
}

/// Treatment of cluster IPs.
pub const INTERNAL: Treatment = Treatment {
    pod: Action::Forward { to: Scope::Cluster, snat: Snat::Keep },
    host: Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade },
    other: Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade },
};
/// Treatment of external frontends with policy Cluster.
pub const EXTERNAL: Treatment = Treatment::all(Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade });
/// Treatment of external frontends with policy Local.
pub const SPLIT: Treatment = Treatment {
    pod: Action::Forward { to: Scope::Cluster, snat: Snat::Keep },
    host: Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade },
    other: Action::Forward { to: Scope::Local, snat: Snat::Keep },
};

/// Treatment of external frontends with policy Local in a mode that treats all sources alike.
pub const LOCAL: Treatment = Treatment::all(Action::Forward { to: Scope::Local, snat: Snat::Keep });
/// The same without endpoints of this node, in a mode that falls back to all.
pub const FALLS_BACK: Treatment = Treatment::all(Action::Forward { to: Scope::Cluster, snat: Snat::Keep });

/// A frontend without source ranges.
pub fn frontend(kind: FrontendKind, at: FrontendAddr, treatment: Treatment) -> Frontend {
    Frontend { kind, at, sources: SourceRanges::Any, treatment }
}

/// A service demo/`name`.
pub fn service(name: &str, ports: Vec<PortState>) -> (UnitId, Option<Arc<Unit>>) {
    let name = ObjectName::new("demo", name);
    (UnitId::Service(name.clone()), Some(Arc::new(Unit::Service(ServiceState { name, ports, health_check: None }))))
}

/// A port http without affinity.
pub fn port(protocol: Protocol, cluster: Pool, local: Pool, frontends: Vec<Frontend>) -> PortState {
    PortState {
        name: "http".into(),
        protocol,
        affinity: None,
        cluster,
        local,
        lingering: Pool::default(),
        balance: None,
        shadowed: None,
        frontends: frontends.into(),
    }
}

/// A delta with a service of every kind, in a mode whose pods and node use all endpoints under policy Local.
pub fn everything(family: Family) -> Delta {
    everything_for(family, &Profile::NFTABLES)
}

/// A delta with a service of every kind, treated as in a mode of this profile.
pub fn everything_for(family: Family, profile: &Profile) -> Delta {
    let policy_local = if profile.short_circuit { SPLIT } else { LOCAL };
    let vip = |last| FrontendAddr::Vip(address(family, 96, last), 80);
    let (all, local) = (pool(family, &[1, 2, 3]), pool(family, &[2]));
    let none = Pool::new([]);
    let cluster_ip = |last, treatment| frontend(FrontendKind::ClusterIp, vip(last), treatment);
    let balancer = |last, treatment| frontend(FrontendKind::LoadBalancer, vip(last), treatment);
    let node_port = |port, treatment| frontend(FrontendKind::NodePort, FrontendAddr::NodePort(port), treatment);
    let mut restricted = balancer(30, EXTERNAL);
    restricted.sources = SourceRanges::Only(
        [net(family, "10.0.0.0/9", "fd00:77::/64"), net(family, "203.0.113.7/32", "fd00:cc::7/128")].into(),
    );
    let mut restricted_split = balancer(31, policy_local);
    restricted_split.sources = restricted.sources.clone();
    let split_none = if profile.local_falls_back { FALLS_BACK } else { Treatment { other: Action::Drop, ..SPLIT } };
    let frontends = vec![cluster_ip(1, INTERNAL), node_port(30001, EXTERNAL), restricted];
    let local_frontends =
        vec![cluster_ip(2, INTERNAL), node_port(30002, policy_local), balancer(32, policy_local), restricted_split];
    let units = [
        service("plain", vec![port(Protocol::Tcp, all.clone(), none.clone(), frontends)]),
        service("local", vec![port(Protocol::Tcp, all.clone(), local, local_frontends)]),
        service(
            "none-local",
            vec![port(
                Protocol::Sctp,
                all.clone(),
                none.clone(),
                vec![cluster_ip(5, Treatment::all(Action::Drop)), node_port(30005, split_none)],
            )],
        ),
        service(
            "empty",
            vec![port(
                Protocol::Udp,
                none.clone(),
                none,
                vec![cluster_ip(6, Treatment::all(Action::Reject)), node_port(30006, Treatment::all(Action::Reject))],
            )],
        ),
        (UnitId::Base, Some(Arc::new(Unit::Base(base(family, true))))),
    ];
    let units = units.into_iter().chain(sticky(family, policy_local)).chain(wide(family, policy_local)).collect();
    Delta { context: Some(Arc::new(context_for(family, profile))), units }
}

/// Services with session affinity.
fn sticky(family: Family, policy_local: Treatment) -> [(UnitId, Option<Arc<Unit>>); 2] {
    let (all, local) = (pool(family, &[1, 2, 3]), pool(family, &[2]));
    let at = |kind, last, treatment| frontend(kind, FrontendAddr::Vip(address(family, 96, last), 80), treatment);
    let node_port = |port, treatment| frontend(FrontendKind::NodePort, FrontendAddr::NodePort(port), treatment);
    let frontends = vec![
        at(FrontendKind::ClusterIp, 3, INTERNAL),
        node_port(30003, policy_local),
        at(FrontendKind::LoadBalancer, 33, policy_local),
    ];
    let mut tcp = port(Protocol::Tcp, all.clone(), local, frontends);
    tcp.affinity = Affinity::new(10_800);
    let frontends = vec![
        at(FrontendKind::ClusterIp, 4, INTERNAL),
        node_port(30004, EXTERNAL),
        at(FrontendKind::ExternalIp, 34, EXTERNAL),
    ];
    let mut udp = port(Protocol::Udp, all, Pool::new([]), frontends);
    udp.affinity = Affinity::new(3);
    [service("sticky", vec![tcp]), service("sticky-udp", vec![udp])]
}

/// Services with enough frontends that a plane lets them share the rules of the endpoints: with policy Cluster, with policy
/// Local, and the same with affinity.
fn wide(family: Family, policy_local: Treatment) -> [(UnitId, Option<Arc<Unit>>); 3] {
    let (all, local) = (pool(family, &[1, 2, 3]), pool(family, &[2]));
    let frontends = |last: u8, port, node_port, treatment| -> Vec<Frontend> {
        let vip = |last| FrontendAddr::Vip(address(family, 96, last), port);
        let external = (0..9).map(|more| frontend(FrontendKind::ExternalIp, vip(100 + 10 * last + more), treatment));
        let cluster_ip = frontend(FrontendKind::ClusterIp, vip(last), INTERNAL);
        let node_port = frontend(FrontendKind::NodePort, FrontendAddr::NodePort(node_port), treatment);
        [cluster_ip, node_port].into_iter().chain(external).collect()
    };
    let plain = port(Protocol::Tcp, all.clone(), Pool::new([]), frontends(7, 80, 30007, EXTERNAL));
    let split = port(Protocol::Tcp, all.clone(), local.clone(), frontends(8, 80, 30008, policy_local));
    let mut sticky = port(Protocol::Tcp, all, local, frontends(8, 81, 31008, policy_local));
    sticky.affinity = Affinity::new(10_800);
    [service("wide", vec![plain]), service("wide-local", vec![split]), service("wide-sticky", vec![sticky])]
}
