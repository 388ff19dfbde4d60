//! Enumerates the connections of a situation, each with the model's verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_model::{
    BaseState, Context, Frontend, FrontendAddr, FrontendKind, NodePortAddresses, Packet, PerFamily, PortState, Profile,
    ServiceState, Settings, SourceRanges, Store, Verdict, decide, facts, resolve,
};

use super::ask::Ask;
use super::icmp::{Ping, PingAnswer};
use super::terrain::{Addresses, interface, is_special};
use crate::lab::LabMachine;
use crate::mode::{Mode, Remembers};

/// The model's desired state of a situation on the lab's node.
pub(super) struct Decided {
    contexts: PerFamily<Context>,
    profile: Profile,
    remembers: Remembers,
    families: [(Family, BaseState, Vec<ServiceState>); 2],
    written: BTreeSet<(SocketAddr, Protocol)>,
    listed: BTreeSet<(Protocol, SocketAddr)>,
    pinged: PingAnswer,
    beside_upstream: bool,
}

/// A connection and its expected outcome.
pub(super) struct Try {
    pub(super) ask: Ask,
    pub(super) packet: Packet,
    pub(super) verdict: Verdict,
    pub(super) affinity_key: Option<AffinityKey>,
}

/// Key of session affinity. Connections with equal keys have to reach the same endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AffinityKey {
    /// the service port
    pub(super) port: String,
    /// the client
    pub(super) client: IpAddr,
    /// the frontend, where each has an affinity of its own
    at: Option<SocketAddr>,
    /// the frontend's treatment of clients by traffic policy
    policy: String,
    /// the endpoints to choose from
    pub(super) pool: Vec<SocketAddr>,
}

/// Destination of connections.
#[derive(Clone, Copy)]
struct PlannedDestination<'a> {
    to: SocketAddr,
    protocol: Protocol,
    /// the frontend that serves it, if any
    served: Option<ServedFrontend<'a>>,
}

#[derive(Clone, Copy)]
struct ServedFrontend<'a> {
    service: &'a ServiceState,
    port: &'a PortState,
    frontend: &'a Frontend,
}

/// Machines of pods, other nodes and the outside, with an address of each family.
const CALLERS: [(LabMachine, [&str; 2]); 5] = [
    (LabMachine::PodA, ["10.244.1.90", "fd00:10:244:1::90"]),
    (LabMachine::PodB, ["10.244.1.190", "fd00:10:244:1:8000::90"]),
    (LabMachine::Client, ["100.64.9.9", "fd00:cc::99"]),
    (LabMachine::Far, ["10.244.2.90", "fd00:10:244:2::90"]),
    (LabMachine::Far, ["192.0.2.90", "2001:db8::90"]),
];
/// Number of callers that connect to destinations without a frontend.
const FEW: usize = 3;
/// An address that no case assigns.
const ELSEWHERE: [&str; 2] = ["198.51.100.77", "2001:db8:77::77"];
/// Number of a port's endpoints that connect to it themselves (hairpin).
const HAIRPINS: usize = 4;
/// Affinity timeout in seconds that outlasts a trial.
const LASTING: u32 = 60;

// === impl Decided ===

impl Decided {
    /// Resolves the objects on a machine with these addresses.
    pub(super) fn new(settings: &Settings, store: &Store, mode: &Mode, addresses: &Addresses) -> Self {
        let (local, profile) = (addresses.local(), &mode.profile);
        let contexts = PerFamily::from_fn(|family| facts::context(settings, store.node(), &local, profile, family));
        let mut store = store.clone();
        store.serve_node_ports_at(facts::node_port_addresses(settings, store.node(), &local));
        let families = Family::ALL.map(|family| {
            let (base, _) = facts::base(settings, contexts.of(family), &local, &store, profile, family);
            let states = store
                .service_names()
                .map(|name| resolve(&store.objects(name), store.claims(), contexts.of(family), profile, family).0);
            (family, base, states.collect())
        });
        let pinged = if profile.binds_addresses { PingAnswer::Echo } else { PingAnswer::Refusal };
        let (profile, remembers) = (mode.profile, mode.remembers);
        let mut listed = listed(&store);
        listed.retain(|(_, at)| !is_special(at.ip()) && addresses.owner(at.ip()) != LabMachine::Node);
        let written = written(&store);
        Self { contexts, families, profile, remembers, written, listed, pinged, beside_upstream: false }
    }

    /// The same beside upstream's proxy, which refuses pings to service addresses in each mode. Connections that it treats
    /// otherwise in mode ipvs are left out.
    pub(super) fn of_upstream(self) -> Self {
        Self { pinged: PingAnswer::Refusal, beside_upstream: true, ..self }
    }

    /// Endpoints of all pools: each needs a server. And those in no pool, on other machines: a connection that reaches one by
    /// mistake gets its name, rather than nothing.
    pub(super) fn endpoints(&self) -> BTreeSet<(Protocol, SocketAddr)> {
        let states = self.families.iter().flat_map(|(_, _, states)| states);
        let ports = states.flat_map(|state| &state.ports);
        let in_pools = ports.flat_map(|port| endpoints(port).into_iter().map(|at| (port.protocol, at)));
        in_pools.chain(self.listed.iter().copied()).collect()
    }

    /// Every connection to try.
    pub(super) fn tries(&self, addresses: &Addresses) -> Vec<Try> {
        let mut tries = Vec::new();
        for (family, base, states) in &self.families {
            for destination in destinations(*family, states, base, addresses, &self.written) {
                let sources = sources(*family, &destination, addresses).into_iter();
                let sources = sources.filter(|source| !self.is_martian(*source, states));
                let all = sources.map(|source| self.one(&destination, source, states, base, addresses));
                tries.extend(all.filter(|tried| !self.differs_upstream(tried, &destination)));
            }
        }
        tries
    }

    /// Pings to cluster IPs, which are refused, or answered where the node binds the addresses.
    pub(super) fn pings(&self, addresses: &Addresses) -> Vec<Ping> {
        let mut pings = Vec::new();
        let expected = self.pinged;
        for (family, base, states) in &self.families {
            let frontends = states.iter().flat_map(|state| &state.ports).flat_map(|port| &port.frontends);
            let vips: BTreeSet<IpAddr> = frontends.filter_map(vip).collect();
            for to in vips.into_iter().filter(|vip| !is_special(*vip)) {
                let destination =
                    PlannedDestination { to: SocketAddr::new(to, 0), protocol: Protocol::Tcp, served: None };
                let sources = sources(*family, &destination, addresses).into_iter();
                let refused = sources.filter(|source| {
                    !self.is_martian(*source, states)
                        && self.one(&destination, *source, states, base, addresses).verdict == Verdict::Reject
                });
                pings.extend(refused.map(|(from, source)| Ping { from, source, to, expected }));
            }
        }
        pings
    }

    /// True if the node drops packets from this source on its interfaces, since it has bound the address itself.
    fn is_martian(&self, (from, source): (LabMachine, IpAddr), states: &[ServiceState]) -> bool {
        let mut frontends = states.iter().flat_map(|state| &state.ports).flat_map(|port| &port.frontends);
        self.profile.binds_addresses
            && from != LabMachine::Node
            && frontends.any(|frontend| vip(frontend) == Some(source))
    }

    /// True if upstream's proxy treats a connection otherwise in mode ipvs. It knows the host by the service address that the
    /// kernel takes as the source, and not by another address of the node: so it neither masquerades the host, where pods aren't
    /// recognised, nor applies source ranges to it. And it masquerades a hairpin only if the endpoint's nodeName is this node.
    /// Its virtual servers without endpoints refuse, also where policy Local leaves none.
    fn differs_upstream(&self, tried: &Try, destination: &PlannedDestination<'_>) -> bool {
        if !(self.beside_upstream && self.profile.binds_addresses) {
            return false;
        }
        let context = self.contexts.of(Family::of(tried.packet.destination));
        let is_cluster_ip = destination.served.is_some_and(|served| served.frontend.kind == FrontendKind::ClusterIp);
        let unmasked_host = is_cluster_ip && context.local.is_none() && !context.masquerade_all;
        match &tried.verdict {
            Verdict::Drop => {
                let ranges = destination.served.map(|served| &served.frontend.sources);
                tried.packet.source_local || ranges.is_some_and(|ranges| matches!(ranges, SourceRanges::Any))
            }
            Verdict::Forward(pool) => {
                let local = destination.served.map(|served| &served.port.local.0);
                let elsewhere = |endpoint| local.is_none_or(|local| !local.contains(endpoint));
                let mut itself = pool.keys().filter(|endpoint| endpoint.address == tried.packet.source);
                (tried.packet.source_local && unmasked_host) || itself.any(elsewhere)
            }
            Verdict::Reject | Verdict::Pass => false,
        }
    }

    fn one(
        &self,
        destination: &PlannedDestination<'_>,
        (from, source): (LabMachine, IpAddr),
        states: &[ServiceState],
        base: &BaseState,
        addresses: &Addresses,
    ) -> Try {
        let packet = Packet {
            source,
            source_local: from == LabMachine::Node,
            interface: interface(from).map(str::to_owned),
            destination: destination.to.ip(),
            destination_local: addresses.local().contains(&destination.to.ip()),
            protocol: destination.protocol,
            port: destination.to.port(),
        };
        let verdict = decide(states, base, &packet, self.contexts.of(Family::of(packet.destination)), &self.profile);
        let affinity_key = destination.served.and_then(|served| {
            let at = (self.remembers == Remembers::ByFrontend).then_some(destination.to);
            affinity_key(&served, at, source, &verdict)
        });
        // the node refuses connections without a server, except SCTP, which a raw socket takes in
        let ignored = verdict == Verdict::Pass
            && destination.protocol == Protocol::Sctp
            && addresses.owner(destination.to.ip()) == LabMachine::Node;
        let silent = verdict == Verdict::Drop || ignored;
        let ask = Ask { from, source, to: destination.to, protocol: destination.protocol, silent };
        Try { ask, packet, verdict, affinity_key }
    }
}

/// The client's affinity key, if its affinity lasts long enough for its later connections to be compared.
fn affinity_key(
    served: &ServedFrontend<'_>,
    at: Option<SocketAddr>,
    client: IpAddr,
    verdict: &Verdict,
) -> Option<AffinityKey> {
    let Verdict::Forward(pool) = verdict else { return None };
    let ServedFrontend { service, port, frontend } = served;
    port.affinity.filter(|affinity| affinity.timeout_seconds.get() >= LASTING)?;
    Some(AffinityKey {
        port: format!("{}:{} {}", service.name, port.name, port.protocol),
        client,
        at,
        policy: format!("{:?}", frontend.treatment),
        pool: pool.keys().map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port)).collect(),
    })
}

/// The endpoints of a port, of both pools.
fn endpoints(port: &PortState) -> BTreeSet<SocketAddr> {
    let pools = port.cluster.0.iter().chain(&*port.local.0);
    pools.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port)).collect()
}

/// Every address of every Service's spec and status with each of its ports, served or not.
pub fn written(store: &Store) -> BTreeSet<(SocketAddr, Protocol)> {
    let mut written = BTreeSet::new();
    for service in store.service_names().filter_map(|name| store.objects(name).service) {
        let ingress = service.ingress.iter().map(|ingress| &ingress.ip);
        let addresses = service.cluster_ips.iter().chain(&service.external_ips).chain(ingress).flatten();
        for address in addresses {
            let ports = service
                .ports
                .iter()
                .filter_map(|port| Some((*port.port.as_ref().ok()?, *port.protocol.as_ref().ok()?)));
            written.extend(ports.map(|(port, protocol)| (SocketAddr::new(*address, port), protocol)));
        }
    }
    written
}

/// Every endpoint of every Service's slices with each of the slice's ports, in a pool or not.
fn listed(store: &Store) -> BTreeSet<(Protocol, SocketAddr)> {
    let mut listed = BTreeSet::new();
    for slice in store.service_names().flat_map(|name| store.objects(name).slices) {
        let ports = slice.ports.iter();
        let ports: Vec<(Protocol, u16)> = ports
            .filter_map(|port| Some((*port.protocol.as_ref().ok()?, *port.port.as_ref()?.as_ref().ok()?)))
            .collect();
        for endpoint in &slice.endpoints {
            listed.extend(ports.iter().map(|(protocol, port)| (*protocol, SocketAddr::new(endpoint.address, *port))));
        }
    }
    listed
}

/// Every frontend with its own protocol and with others, undefined ports, and addresses of no service.
fn destinations<'a>(
    family: Family,
    states: &'a [ServiceState],
    base: &BaseState,
    addresses: &Addresses,
    written: &BTreeSet<(SocketAddr, Protocol)>,
) -> Vec<PlannedDestination<'a>> {
    let mut served = BTreeMap::new();
    let mut others: BTreeSet<_> = written.iter().copied().filter(|(at, _)| Family::of(at.ip()) == family).collect();
    let elsewhere = if family == Family::V4 { ELSEWHERE[0] } else { ELSEWHERE[1] };
    others.insert((SocketAddr::new(elsewhere.parse().expect("an address"), 80), Protocol::Tcp));
    for cidr in &base.service_cidrs {
        let unallocated = SocketAddr::new(cidr.broadcast(), 80);
        others.extend([(unallocated, Protocol::Tcp), (unallocated, Protocol::Udp)]);
    }
    let mut some_vip = None;
    for service in states {
        for port in &service.ports {
            for frontend in &port.frontends {
                let at = match frontend.at {
                    FrontendAddr::Vip(vip, number) => {
                        some_vip.get_or_insert(vip);
                        vec![SocketAddr::new(vip, number)]
                    }
                    FrontendAddr::NodePort(number) => {
                        let (at, elsewhere) = node_port(number, family, base, addresses, some_vip);
                        others.extend(elsewhere.into_iter().map(|to| (to, port.protocol)));
                        at
                    }
                };
                for to in at {
                    served.insert((to, port.protocol), ServedFrontend { service, port, frontend });
                    others.extend(beside(to, port.protocol));
                }
            }
        }
    }
    others.retain(|known| !served.contains_key(known));
    let served = served.into_iter().map(|(at, served)| (at, Some(served)));
    let all = served.chain(others.into_iter().map(|at| (at, None)));
    let all = all.map(|((to, protocol), served)| PlannedDestination { to, protocol, served });
    // special addresses belong to no machine, and connections to port 0 are impossible
    all.filter(|to| to.to.port() != 0 && (to.to.ip().is_loopback() || !is_special(to.to.ip()))).collect()
}

/// The addresses that serve a node port, and some that don't.
fn node_port(
    number: u16,
    family: Family,
    base: &BaseState,
    addresses: &Addresses,
    vip: Option<IpAddr>,
) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    let local = addresses.local().into_iter().filter(|address| Family::of(*address) == family);
    let serves = |address: &IpAddr| match &base.node_ports {
        NodePortAddresses::All => !address.is_loopback() || (base.localhost && address.is_ipv4()),
        NodePortAddresses::Only(list) => list.contains(address),
    };
    let (at, elsewhere): (Vec<_>, Vec<_>) = local.partition(serves);
    let with_port = |address| SocketAddr::new(address, number);
    let elsewhere = elsewhere.into_iter().chain(vip).map(with_port);
    (at.into_iter().map(with_port).collect(), elsewhere.collect())
}

fn vip(frontend: &Frontend) -> Option<IpAddr> {
    match frontend.at {
        FrontendAddr::Vip(vip, _) => Some(vip),
        FrontendAddr::NodePort(_) => None,
    }
}

/// The same destination with other protocols, and the neighbouring port.
fn beside(to: SocketAddr, protocol: Protocol) -> Vec<(SocketAddr, Protocol)> {
    let next = SocketAddr::new(to.ip(), to.port() ^ 1);
    let usual = [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(|usual| [(to, usual), (next, usual)]);
    usual.chain((protocol == Protocol::Sctp).then_some((next, protocol))).collect()
}

/// The machines that connect to a destination, and their source addresses.
fn sources(family: Family, destination: &PlannedDestination<'_>, addresses: &Addresses) -> Vec<(LabMachine, IpAddr)> {
    if destination.to.ip().is_loopback() {
        return vec![(LabMachine::Node, destination.to.ip())];
    }
    let callers = CALLERS.iter().map(|(place, [v4, v6])| {
        (*place, if family == Family::V4 { v4 } else { v6 }.parse::<IpAddr>().expect("an address"))
    });
    let local = addresses.local().into_iter();
    let local = local.filter(|address| Family::of(*address) == family && !address.is_loopback());
    let Some(ServedFrontend { port, frontend, .. }) = destination.served else {
        return callers.take(FEW).chain(local.take(1).map(|address| (LabMachine::Node, address))).collect();
    };
    let mut sources: Vec<(LabMachine, IpAddr)> =
        callers.chain(local.map(|address| (LabMachine::Node, address))).collect();
    let hairpins = endpoints(port).into_iter().map(|endpoint| endpoint.ip()).collect::<BTreeSet<_>>();
    let hairpins = hairpins.into_iter().take(HAIRPINS);
    let ranges = match &frontend.sources {
        SourceRanges::Any => &[][..],
        SourceRanges::Only(ranges) => ranges,
    };
    for address in hairpins.chain(ranges.iter().flat_map(edges)).filter(|address| !is_special(*address)) {
        let source = (addresses.owner(address), address);
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    sources
}

/// The first and the last address of a range, and their neighbours outside.
pub fn edges(range: &IpNet) -> Vec<IpAddr> {
    let (first, last) = (range.network(), range.broadcast());
    let beside = |address: IpAddr, up: bool| match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            IpAddr::V4(if up { bits.wrapping_add(1) } else { bits.wrapping_sub(1) }.into())
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            IpAddr::V6(if up { bits.wrapping_add(1) } else { bits.wrapping_sub(1) }.into())
        }
    };
    vec![first, last, beside(first, false), beside(last, true)]
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// The affinity key of one client of one service port with this pool.
    pub(crate) fn affinity_key(pool: &[SocketAddr]) -> AffinityKey {
        let client = IpAddr::from([192, 0, 2, 1]);
        AffinityKey { port: "demo/web:".to_owned(), client, at: None, policy: String::new(), pool: pool.to_vec() }
    }
}
