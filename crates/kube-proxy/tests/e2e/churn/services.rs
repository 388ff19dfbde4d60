//! The changing services, their endpoints, and their manifests.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

use ferry_lab::lab::{POD_PORTS, client_address};
use ferry_lab::objects::{EndpointCondition, NAMESPACE, at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::{Family, LabMachine, Protocol, TestService};

/// Places of endpoints: two pods of the node, and one elsewhere.
pub(crate) const PODS: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
/// Number of endpoints: one per pod and port.
pub(crate) const ENDPOINTS: usize = PODS.len() * POD_PORTS.len();
/// First port of the echo servers, the endpoints of established connections.
pub(crate) const HELD_PORTS: u16 = 8180;
/// The endpoints on the node.
const LOCAL: Pool = Pool(0x00ff);
/// First number of the markers' cluster IPs.
const MARKERS: u16 = 0x2000;
/// First port of markers: a marker's port is this plus the version of its service's manifest. By way bind of mode userspace the proxy
/// listens there, so none may be its own (10249, 10256), a node port, or one that the kernel gives to clients.
const MARKER_PORTS: u16 = 20_000;

/// A set of endpoints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pool(pub(crate) u16);

/// A client's kind of access, which determines its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// by the cluster IP
    Internal,
    /// by an external address, from outside
    External,
    /// by an external address, from this node: whatever the policy is, to all endpoints; not in mode ipvs
    Short,
}

/// Purpose of a service, in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// policies Cluster, TCP and UDP
    Plain,
    /// externalTrafficPolicy Local
    Edge,
    /// session affinity
    Sticky,
    /// a load balancer whose source ranges change
    Ranged,
    /// its policies and its affinity change
    Turning,
    /// carries the established connections
    Held,
    /// carries none: may lose all its endpoints, its node port changes
    Other,
}

/// Current state of a service.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) number: u8,
    pub(crate) role: Role,
    /// by endpoint; `None` if in no slice
    pub(crate) conditions: [Option<EndpointCondition>; ENDPOINTS],
    pub(crate) external_local: bool,
    pub(crate) internal_local: bool,
    pub(crate) affinity: bool,
    pub(crate) ranges: Ranges,
    pub(crate) node_port: u16,
    /// number of written versions
    pub(crate) written: u16,
}

/// The source ranges of a load balancer; the client is within all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    None,
    Narrow,
    Wide,
    Both,
}

/// Target of a client.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) service: u8,
    pub(crate) way: Way,
    pub(crate) protocol: Protocol,
    pub(crate) at: SocketAddr,
    /// the source; any where it has no port
    pub(crate) from: Option<std::net::IpAddr>,
}

/// The services that carry connections.
pub(crate) const CARRIERS: [Role; 6] = [Role::Plain, Role::Edge, Role::Sticky, Role::Ranged, Role::Turning, Role::Held];
/// Number of services without connections.
const OTHERS: u8 = 6;

/// Initial state of all services.
pub(crate) fn all() -> Vec<State> {
    let others = std::iter::repeat_n(Role::Other, OTHERS.into());
    (0..).zip(CARRIERS.into_iter().chain(others)).map(|(number, role)| State::new(number, role)).collect()
}

/// Targets of clients at this place, in their order. `of_host` is the node's kind of access to external addresses.
pub(crate) fn targets(place: LabMachine, of_host: Way) -> Vec<Target> {
    let mut targets = Vec::new();
    for family in Family::ALL {
        for (service, role) in (0_u8..).zip(CARRIERS) {
            let mut add = |way, protocol, at| targets.push(Target { service, way, protocol, at, from: None });
            let inside = at_cluster_ip(family, u16::from(service) + 1);
            let (outside, node_port) =
                (at_external_ip(family, service + 1), at_node_port(family, 30000 + u16::from(service)));
            match (place, role) {
                (_, Role::Other | Role::Held) => {}
                (LabMachine::Client, Role::Ranged) => add(Way::External, Protocol::Tcp, outside),
                (LabMachine::Client, _) => {
                    add(Way::External, Protocol::Tcp, outside);
                    add(Way::External, Protocol::Tcp, node_port);
                }
                (LabMachine::Node, Role::Edge | Role::Turning) => {
                    add(of_host, Protocol::Tcp, outside);
                    add(Way::Internal, Protocol::Tcp, inside);
                }
                (_, _) => add(Way::Internal, Protocol::Tcp, inside),
            }
            if role == Role::Plain {
                let (way, at) =
                    if place == LabMachine::Client { (Way::External, node_port) } else { (Way::Internal, inside) };
                add(way, Protocol::Udp, at);
            }
        }
    }
    if place == LabMachine::Client {
        // repeated, so that affinity has an effect
        for target in targets.clone().into_iter().filter(|target| CARRIERS[usize::from(target.service)] == Role::Sticky)
        {
            let clients = (20..28).map(|number| client_address(Family::of(target.at.ip()), number));
            targets.extend(clients.map(|from| Target { from: Some(from), ..target }));
        }
    }
    targets
}

/// The endpoint with this answer, `pod-a:8080`.
pub(crate) fn endpoint(name: &str) -> Option<usize> {
    let (place, port) = name.split_once(':')?;
    let (place, port) =
        (PODS.iter().position(|pod| pod.name() == place)?, POD_PORTS.iter().position(|own| Ok(*own) == port.parse())?);
    Some(place * POD_PORTS.len() + port)
}

// === impl Way ===

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Internal, Self::External, Self::Short];
}

// === impl Pool ===

impl Pool {
    pub(crate) fn has(self, endpoint: usize) -> bool {
        self.0 & (1 << endpoint) != 0
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = (0..ENDPOINTS).filter(|endpoint| self.has(*endpoint)).map(|endpoint| {
            let (place, port) = (PODS[endpoint / POD_PORTS.len()], POD_PORTS[endpoint % POD_PORTS.len()]);
            format!("{}:{port}", place.name())
        });
        f.write_str(&names.collect::<Vec<_>>().join(" "))
    }
}

// === impl State ===

impl State {
    fn new(number: u8, role: Role) -> Self {
        let mut conditions = [None; ENDPOINTS];
        for endpoint in [0, 4, 8] {
            conditions[endpoint] = Some(EndpointCondition::Ready);
        }
        Self {
            number,
            role,
            conditions,
            external_local: role == Role::Edge,
            internal_local: false,
            affinity: role == Role::Sticky,
            ranges: Ranges::None,
            node_port: 30000 + u16::from(number),
            written: 0,
        }
    }

    /// The pool of this kind of access: the ready endpoints, or else those that still serve.
    pub(crate) fn pool(&self, way: Way) -> Pool {
        let local = match way {
            Way::Internal => self.internal_local,
            Way::External => self.external_local,
            Way::Short => false,
        };
        let of = |condition| {
            let is = |endpoint: &usize| self.conditions[*endpoint] == Some(condition);
            Pool(
                (0..ENDPOINTS).filter(is).fold(0, |pool, endpoint| pool | 1 << endpoint)
                    & if local { LOCAL.0 } else { !0 },
            )
        };
        let ready = of(EndpointCondition::Ready);
        if ready == Pool(0) { of(EndpointCondition::Terminating) } else { ready }
    }

    /// True if every pool has an endpoint under any policy.
    pub(crate) fn is_healthy(&self) -> bool {
        let serves = |condition: &Option<EndpointCondition>| {
            condition
                .is_some_and(|condition| matches!(condition, EndpointCondition::Ready | EndpointCondition::Terminating))
        };
        self.role == Role::Other || self.conditions[..LOCAL.0.count_ones() as usize].iter().any(serves)
    }

    /// The address that answers once the last manifest is in force.
    pub(crate) fn marker(&self, family: Family) -> SocketAddr {
        let ip = ferry_lab::lab::cluster_ip(family, MARKERS + u16::from(self.number));
        SocketAddr::new(ip, MARKER_PORTS + self.written)
    }

    /// The service, its slices, and the marker.
    pub(crate) fn manifest(&self) -> String {
        let service = self.service();
        let mut text = format!("---\n{service}");
        for family in Family::ALL {
            for (index, port) in POD_PORTS.into_iter().enumerate() {
                self.slice(&service, family, index, port, &mut text);
            }
        }
        let marker = TestService::new(&format!("marker-{}", self.number), MARKERS + u16::from(self.number))
            .port(MARKER_PORTS + self.written);
        let endpoints = marker.endpoints(8083, &[LabMachine::PodB]);
        let _ = write!(text, "---\n{marker}{endpoints}");
        text
    }

    fn service(&self) -> TestService {
        let name = format!("{:?}-{}", self.role, self.number).to_lowercase();
        let mut service = TestService::new(&name, u16::from(self.number) + 1).node_port(self.node_port);
        match self.role {
            Role::Plain => service = service.external_ip(self.number + 1).protocols(&[Protocol::Tcp, Protocol::Udp]),
            Role::Ranged => service = service.load_balancer(self.number + 1),
            Role::Edge | Role::Sticky | Role::Turning | Role::Held => service = service.external_ip(self.number + 1),
            Role::Other => {}
        }
        let (narrow, wide) = (["203.0.113.0/28", "fd00:cc::/120"], ["203.0.113.0/24", "fd00:cc::/64"]);
        service = match self.ranges {
            Ranges::None => service,
            Ranges::Narrow => service.source_ranges(&narrow),
            Ranges::Wide => service.source_ranges(&wide),
            Ranges::Both => service.source_ranges(&[narrow, wide].concat()),
        };
        service = if self.external_local { service.external_local() } else { service };
        service = if self.internal_local { service.internal_local() } else { service };
        if self.affinity { service.affinity(10800) } else { service }
    }

    /// The EndpointSlice of the endpoints at one port of the pods; it stays when it is empty.
    fn slice(&self, service: &TestService, family: Family, index: usize, port: u16, text: &mut String) {
        let target = if self.role == Role::Held { HELD_PORTS + port - POD_PORTS[0] } else { port };
        let protocols = if self.role == Role::Plain { &["TCP", "UDP"][..] } else { &["TCP"] };
        let name = &service.name;
        let _ = write!(
            text,
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-{index}-{0}\n  \
             namespace: {NAMESPACE}\n  labels: {{kubernetes.io/service-name: {name}}}\naddressType: {family}\nports:\n",
            family.to_string().to_lowercase()
        );
        for protocol in protocols {
            let _ = writeln!(text, "- {{name: {}, protocol: {protocol}, port: {target}}}", protocol.to_lowercase());
        }
        text.push_str("endpoints:\n");
        let mut none = true;
        for (place, pod) in PODS.into_iter().enumerate() {
            let Some(condition) = self.conditions[place * POD_PORTS.len() + index] else { continue };
            none = false;
            let (ready, serving, terminating) = match condition {
                EndpointCondition::Ready => (true, true, false),
                EndpointCondition::Unready => (false, false, false),
                EndpointCondition::Terminating => (false, true, true),
            };
            let _ = writeln!(
                text,
                "- {{addresses: [\"{}\"], nodeName: {}, conditions: {{ready: {ready}, serving: {serving}, terminating: {terminating}}}}}",
                pod.address(family),
                pod.node_name()
            );
        }
        if none {
            text.truncate(text.len() - 1);
            text.push_str(" []\n");
        }
    }
}
