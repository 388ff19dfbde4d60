//! The desired state: for one Service in one IP family, every frontend with its treatment by source.

use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use ferry_api::object::{IpNet, ObjectName, Protocol};

use crate::context::Context;
use crate::scheduler::Scheduler;

/// Everything the kernel must do for one Service in one IP family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceState {
    /// the Service
    pub name: ObjectName,
    /// its ports, in the order of the object
    pub ports: Vec<PortState>,
    /// the health check that the node serves for load balancers, if the Service has one
    pub health_check: Option<HealthCheck>,
}

/// healthCheckNodePort of a Service of type LoadBalancer with externalTrafficPolicy Local: the number of its endpoints here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// the port that serves it
    pub port: NonZeroU16,
    /// number of addresses on this node with a ready endpoint, of any port of the Service
    pub local_endpoints: u32,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortState {
    /// the port's name; empty when unnamed
    pub name: Box<str>,
    /// its protocol
    pub protocol: Protocol,
    /// ClientIP session affinity
    pub affinity: Option<Affinity>,
    /// usable endpoints under traffic policy Cluster, at most [`MAX_ENDPOINTS`]
    pub cluster: Pool,
    /// usable endpoints under traffic policy Local, at most [`MAX_ENDPOINTS`]
    pub local: Pool,
    /// endpoints in neither pool that get no new flows and keep those they have, at most [`MAX_ENDPOINTS`]. Sorted. For UDP and
    /// SCTP those that still serve ([`flow_rules`](crate::flow_rules)); for TCP, whose connections end by themselves, all others
    /// of the slices in modes that [end connections](crate::Profile::ends_connections), and none in all other modes
    pub lingering: Pool,
    /// the addresses that clients may use; no two of one family's states share one
    pub frontends: Box<[Frontend]>,
    /// what the Service's annotations choose; `None` without them, and in modes that don't
    /// [balance](crate::Profile::balances)
    pub balance: Option<Box<Balance>>,
    /// where its node port is not served; `None` for almost all, and in modes that don't
    /// [list node addresses](crate::Profile::lists_node_addresses)
    pub shadowed: Option<Box<Shadowed>>,
}

/// The choices of a Service for one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// its own scheduler; `None` for the configured one
    pub scheduler: Option<Scheduler>,
    /// weights other than 1, up to 65,535, of endpoints of its pools; sorted by endpoint
    pub weights: Box<[(Endpoint, u32)]>,
}

/// Addresses of the node that have a cluster IP or load balancer frontend, of this or another Service, with the protocol and
/// number of a node port: that frontend serves them instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadowed {
    /// the addresses, sorted; not empty
    pub addresses: Box<[IpAddr]>,
}

/// ClientIP session affinity: a client that comes back within the timeout gets the endpoint it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// lifetime of an affinity entry after the client's last new connection, in seconds
    pub timeout_seconds: NonZeroU32,
}

/// The endpoints chosen for a scope. Sorted by address and port when it leaves `resolve`; a plane may order it anew
/// (`Compile::place`). Shared when equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool(pub Arc<[Endpoint]>);

/// Most endpoints of a pool: some planes number them with 16 bits. Endpoints beyond it, by address and port, get no
/// connections, with a diagnostic.
pub const MAX_ENDPOINTS: usize = 65_536;

/// Up to this many frontends of a port have a copy of the endpoints each; more frontends share one, so that a Service with
/// many addresses costs no more than one with this many.
pub const MAX_COPIES: usize = 8;

/// The largest weight of an endpoint.
pub const MAX_WEIGHT: u32 = 65_535;

/// One ip:port behind a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// its address, of the state's family
    pub address: IpAddr,
    /// its port
    pub port: u16,
}

/// One address a client may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// the kind of address
    pub kind: FrontendKind,
    /// the address
    pub at: FrontendAddr,
    /// admitted sources
    pub sources: SourceRanges,
    /// the treatment of new connections
    pub treatment: Treatment,
}

/// The kinds of frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// spec.clusterIP
    ClusterIp,
    /// spec.externalIPs
    ExternalIp,
    /// status.loadBalancer.ingress
    LoadBalancer,
    /// spec.ports[].nodePort
    NodePort,
}

/// The address and port that clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendAddr {
    /// a virtual address and a port
    Vip(IpAddr, u16),
    /// a port of the node's addresses ([`NodePortAddresses`])
    NodePort(u16),
}

/// loadBalancerSourceRanges of a frontend. A source outside is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRanges {
    /// no restriction
    Any,
    /// disjoint and sorted, without host bits; the VIPs are included where the node itself is in a range. An empty list admits
    /// no source
    Only(Arc<[IpNet]>),
}

/// The treatment of new connections by their source. `pod`: matched by the local detector; `host`: the source is an address
/// of this node; `other`: anything else. Without a detector no source is a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Treatment {
    /// from a pod of this node
    pub pod: Action,
    /// from this node
    pub host: Action,
    /// from anywhere else
    pub other: Action,
}

/// The verdict for one class of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// to one of the scope's endpoints, whose pool is not empty
    Forward {
        /// which pool
        to: Scope,
        /// the translation of the source address
        snat: Snat,
    },
    /// no answer
    Drop,
    /// refused with an answer (TCP reset or ICMP error)
    Reject,
    /// the packet is left alone
    Pass,
}

/// A traffic policy, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// the Cluster pool
    Cluster,
    /// the Local pool
    Local,
}

/// The source address of forwarded connections. A hairpin connection is always masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snat {
    /// kept
    Keep,
    /// replaced by the node's own
    Masquerade,
}

/// One family's state outside of services: computed by the core from the context and from all states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseState {
    /// addresses that serve nodePorts
    pub node_ports: NodePortAddresses,
    /// 127.0.0.0/8 does too; with [`NodePortAddresses::Only`], those of its addresses that are listed
    pub localhost: bool,
    /// ranges of cluster IPs, sorted: what is in them and belongs to no service is dropped
    pub service_cidrs: Vec<IpNet>,
    /// some service of this family has session affinity
    pub affinity: bool,
}

/// The node's addresses that serve node ports; loopback addresses only if [`BaseState::localhost`] is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// every local address but loopback
    All,
    /// these, sorted
    Only(Vec<IpAddr>),
}

const _: () =
    assert!(size_of::<ServiceState>() <= 48 && size_of::<PortState>() <= 104, "one for each of many services");

// === impl HealthCheck ===

impl HealthCheck {
    /// Asked on this port; `None` for port 0, which is no port.
    pub fn new(port: u16, local_endpoints: u32) -> Option<Self> {
        Some(Self { port: NonZeroU16::new(port)?, local_endpoints })
    }
}

// === impl Affinity ===

impl Affinity {
    /// With this timeout; `None` for 0, which would be no timeout to the kernel.
    pub fn new(timeout_seconds: u32) -> Option<Self> {
        Some(Self { timeout_seconds: NonZeroU32::new(timeout_seconds)? })
    }
}

// === impl Pool ===

impl Pool {
    /// A pool of these endpoints, in this order.
    pub fn new(endpoints: impl Into<Arc<[Endpoint]>>) -> Self {
        Self(endpoints.into())
    }

    /// True without endpoints.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of endpoints.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

// === impl Frontend ===

impl Frontend {
    /// True if its source ranges admit this source.
    pub fn admits(&self, source: IpAddr) -> bool {
        match &self.sources {
            SourceRanges::Any => true,
            SourceRanges::Only(ranges) => ranges.iter().any(|range| range.contains(&source)),
        }
    }

    /// True if a proxy that [listens](crate::Profile::listens) itself has a listener for it: some client is led to endpoints.
    pub fn has_listener(&self) -> bool {
        let Treatment { pod, host, other } = self.treatment;
        let leads = [pod, host, other].iter().any(|action| matches!(action, Action::Forward { .. }));
        leads && !matches!(&self.sources, SourceRanges::Only(ranges) if ranges.is_empty())
    }
}

// === impl FrontendAddr ===

impl FrontendAddr {
    /// The port, where it has an address of its own.
    pub const fn vip_port(self) -> Option<u16> {
        match self {
            Self::Vip(_, port) => Some(port),
            Self::NodePort(_) => None,
        }
    }

    /// The port that it has at the node's addresses.
    pub const fn node_port(self) -> Option<u16> {
        match self {
            Self::Vip(..) => None,
            Self::NodePort(port) => Some(port),
        }
    }
}

// === impl PortState ===

impl PortState {
    /// The pool of a scope.
    pub fn pool(&self, scope: Scope) -> &Pool {
        match scope {
            Scope::Cluster => &self.cluster,
            Scope::Local => &self.local,
        }
    }

    /// The scheduler of its connections: its own, or the configured one.
    pub fn scheduler(&self, context: &Context) -> Scheduler {
        self.balance.as_ref().and_then(|balance| balance.scheduler).unwrap_or(context.scheduler)
    }

    /// True if an address that serves node ports serves this port's: no other frontend has taken its place there.
    pub fn serves_node_port_at(&self, address: IpAddr) -> bool {
        self.shadowed.as_ref().is_none_or(|shadowed| !shadowed.addresses.contains(&address))
    }

    /// The weight of one of its endpoints, 1 to 65,535.
    pub fn weight(&self, endpoint: &Endpoint) -> u32 {
        self.balance.as_ref().map_or(1, |balance| balance.weight(endpoint))
    }
}

// === impl Balance ===

impl Balance {
    /// The weight of an endpoint, 1 to 65,535.
    pub fn weight(&self, endpoint: &Endpoint) -> u32 {
        let at = self.weights.binary_search_by_key(endpoint, |(known, _)| *known);
        at.ok().and_then(|at| self.weights.get(at)).map_or(1, |(_, weight)| *weight)
    }
}

// === impl Treatment ===

impl Treatment {
    /// The same for everybody.
    pub const fn all(action: Action) -> Self {
        Self { pod: action, host: action, other: action }
    }

    /// With each action changed.
    pub(crate) fn map(self, change: impl Fn(Action) -> Action) -> Self {
        Self { pod: change(self.pod), host: change(self.host), other: change(self.other) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_has_a_listener_if_some_client_is_led_to_endpoints() {
        let forward = Action::Forward { to: Scope::Local, snat: Snat::Masquerade };
        let (served, refused) = (Treatment::all(forward), Treatment::all(Action::Reject));
        let only = |ranges: &[&str]| SourceRanges::Only(ranges.iter().map(|range| range.parse().unwrap()).collect());
        for (treatment, sources, wanted) in [
            (served, SourceRanges::Any, true),
            (Treatment { pod: forward, ..refused }, SourceRanges::Any, true),
            (Treatment { host: forward, ..refused }, SourceRanges::Any, true),
            (Treatment { other: forward, ..refused }, SourceRanges::Any, true),
            (Treatment { pod: Action::Pass, host: Action::Drop, ..refused }, SourceRanges::Any, false),
            (served, only(&["198.51.100.0/24"]), true),
            (refused, only(&["198.51.100.0/24"]), false),
            (served, only(&[]), false),
            (refused, only(&[]), false),
        ] {
            let at = FrontendAddr::NodePort(30_080);
            let frontend = Frontend { kind: FrontendKind::NodePort, at, sources, treatment };
            assert_eq!(frontend.has_listener(), wanted, "{frontend}");
        }
    }
}
