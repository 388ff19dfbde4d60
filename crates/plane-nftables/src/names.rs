//! Names of sets, maps and chains. Objects that upstream has too bear upstream's names, so that upstream's proxy, started on our
//! table, rewrites them.

use std::fmt;

use ferry_api::object::{ObjectName, Protocol};
use ferry_model::Scope;
use ferry_ruleset::id::HashId;
use ferry_ruleset::names;
use ferry_ruleset::names::Name as _;
use ferry_ruleset::sources::SourcesId;

/// The name of the table, in either family.
pub const TABLE: &str = "kube-proxy";

/// The comment of the table: its maker and the layout of its contents. A table with another comment is replaced.
pub const TABLE_COMMENT: &str = "kube-proxy by Ferry, layout 3";

/// The beginning of the comment of a table, the same in every layout.
pub(crate) const TABLE_MAKER: &str = "kube-proxy by Ferry, layout ";

/// Identifies one service port in the names of its own chains and sets: the hash of `namespace/name/protocol/port name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(HashId);

/// A set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// part of the base: always present
    Fixed(FixedSet),
    /// session affinity of one service port and scope: client → endpoint, written by rules
    Affinity(PortId, Scope),
    /// the endpoints that may be recorded there
    Members(PortId, Scope),
    /// slot → endpoint of one service port with many frontends; slots from [`LOCAL_SLOTS`] serve the Local policy
    Pool(PortId),
    /// source ranges; sorts last, as [`NftObject::Ranges`](crate::NftObject::Ranges) does
    Sources(SourcesId),
}

/// A chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// part of the base
    Fixed(FixedChain),
    /// draws one of this number of slots
    Pick(Pick, u32),
    /// draws from a scope's slots in the pool of a service port with many frontends
    Pool(Pick, Scope, PortId),
    /// looks up the client in the affinity map of a scope; goes on to a pick chain
    Affinity(Pick, Scope, PortId),
    /// records clients in the affinity maps of a service port
    Record(PortId),
    /// drops packets from outside these source ranges
    Restricted(SourcesId),
}

/// Kind of a pick chain: its treatment of the packet and the slots that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pick {
    /// of a VIP; masquerades packets that don't come from this node's pods
    Internal,
    /// of a VIP; masquerades always
    External,
    /// of a VIP; keeps the source
    Forward,
    /// of a VIP's Local slots; keeps the source
    Local,
    /// of a node port; masquerades always
    NodePort,
    /// of a node port; keeps the source
    NodePortForward,
    /// of a node port's Local slots; keeps the source
    NodePortLocal,
}

names! {
    /// The sets and maps of the base.
    FixedSet {
        /// VIP, protocol, port and slot → endpoint; slots from [`LOCAL_SLOTS`] serve policy Local
        Endpoints = "endpoints",
        /// protocol, node port and slot → endpoint
        NodePortEndpoints = "nodeport-endpoints",
        /// VIP, protocol, port → verdict
        ServiceIps = "service-ips",
        /// protocol, node port → verdict
        ServiceNodePorts = "service-nodeports",
        /// VIP, protocol, port → verdict after the source ranges have admitted the packet
        RestrictedIps = "restricted-ips",
        /// policy Local: VIP, protocol, port → verdict on packets from outside
        LocalIps = "local-ips",
        /// policy Local: VIP, protocol, port → verdict on packets from this node or its pods
        ClusterPolicyIps = "cluster-policy-ips",
        /// policy Local: protocol, node port → verdict on packets from outside
        LocalNodePorts = "local-nodeports",
        /// policy Local: protocol, node port → verdict on packets from this node or its pods
        ClusterPolicyNodePorts = "cluster-policy-nodeports",
        /// VIP, protocol, port → verdict on clients without a recorded endpoint
        AffinityPick = "affinity-pick",
        /// VIP, protocol, port → verdict on clients without a recorded endpoint, Local slots
        AffinityPickLocal = "affinity-pick-local",
        /// protocol, node port → verdict on clients without a recorded endpoint
        AffinityPickNodePorts = "affinity-pick-nodeports",
        /// protocol, node port → verdict on clients without a recorded endpoint, Local slots
        AffinityPickLocalNodePorts = "affinity-pick-local-nodeports",
        /// original TCP destination → chain that records the client's endpoint
        RecordTcp = "learn-tcp",
        /// original UDP destination → chain that records the client's endpoint
        RecordUdp = "learn-udp",
        /// original SCTP destination → chain that records the client's endpoint
        RecordSctp = "learn-sctp",
        /// original TCP node port → chain that records the client's endpoint
        RecordNodePortsTcp = "learn-nodeports-tcp",
        /// original UDP node port → chain that records the client's endpoint
        RecordNodePortsUdp = "learn-nodeports-udp",
        /// original SCTP node port → chain that records the client's endpoint
        RecordNodePortsSctp = "learn-nodeports-sctp",
        /// every cluster IP
        ClusterIps = "cluster-ips",
        /// every octet, paired with itself: addresses are equal if all their octets are
        SameOctet = "same-octet",
        /// the addresses that serve node ports, if those are not all local ones
        NodePortIps = "nodeport-ips",
    }
}

names! {
    /// The chains of the base.
    FixedChain {
        /// rejects: TCP with a reset, other protocols with port-unreachable
        Reject = "reject-chain",
        /// looks up the frontend of a packet
        Services = "services",
        /// policy Local of a VIP
        ExternalLocal = "external-local",
        /// policy Local of a node port
        NodePortLocal = "nodeport-local",
        /// refuses packets to a cluster IP without such a port, and to an address of a service range without a service
        Unknown = "unknown",
        /// looks up the chain that records the client's endpoint
        Record = "learn",
        /// received packets: translation
        NatPrerouting = "nat-prerouting",
        /// packets that this node sends: translation
        NatOutput = "nat-output",
        /// received packets that are not translated: second lookup, refusal of unknown addresses
        NatPreroutingLate = "nat-prerouting-late",
        /// untranslated packets that this node sends: second lookup, refusal of unknown addresses
        NatOutputLate = "nat-output-late",
        /// packets delivered to this node: records host-network endpoints for session affinity
        NatInput = "nat-input",
        /// masquerading, and recording for session affinity
        NatPostrouting = "nat-postrouting",
    }
}

/// The first of the slots that serve policy Local.
pub const LOCAL_SLOTS: u32 = 65_536;

// The model limits a pool to the slots before the Local ones.
const _: () = assert!(LOCAL_SLOTS as usize == ferry_model::MAX_ENDPOINTS);

/// One more than the highest slot.
pub const SLOTS: u32 = 2 * LOCAL_SLOTS;

// === impl PortId ===

impl PortId {
    /// The id of a service port.
    pub fn new(service: &ObjectName, protocol: Protocol, port_name: &str) -> Self {
        let parts = [service.namespace(), service.name(), protocol.lower(), port_name].map(escaped);
        Self(HashId::of(parts.join("/").as_bytes()))
    }

    fn parse(text: &str) -> Option<Self> {
        HashId::parse(text).map(Self)
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A name without separators. An API server admits none; a manifest may hold anything.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

// === impl SetName ===

impl SetName {
    /// Parses a name; `None` for one that this mode never makes.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(fixed) = FixedSet::parse(name) {
            return Some(Self::Fixed(fixed));
        }
        let (rest, scope) = split_scope(name);
        if let Some(id) = rest.strip_prefix("affinity-") {
            return Some(Self::Affinity(PortId::parse(id)?, scope));
        }
        if let Some(id) = name.strip_prefix("pool-") {
            return Some(Self::Pool(PortId::parse(id)?));
        }
        if let Some(id) = name.strip_prefix("sources-") {
            return Some(Self::Sources(SourcesId::parse(id)?));
        }
        Some(Self::Members(PortId::parse(rest.strip_prefix("endpoints-")?)?, scope))
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(fixed) => fixed.fmt(f),
            Self::Affinity(id, scope) => write!(f, "affinity-{id}{}", suffix(*scope)),
            Self::Members(id, scope) => write!(f, "endpoints-{id}{}", suffix(*scope)),
            Self::Pool(id) => write!(f, "pool-{id}"),
            Self::Sources(id) => write!(f, "sources-{id}"),
        }
    }
}

impl FixedSet {
    /// The map that leads from a VIP to the chain that records the client's endpoint.
    pub fn record(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::RecordTcp,
            Protocol::Udp => Self::RecordUdp,
            Protocol::Sctp => Self::RecordSctp,
        }
    }

    /// The map that leads from a node port to the chain that records the client's endpoint.
    pub fn record_node_ports(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::RecordNodePortsTcp,
            Protocol::Udp => Self::RecordNodePortsUdp,
            Protocol::Sctp => Self::RecordNodePortsSctp,
        }
    }
}

// === impl ChainName ===

impl ChainName {
    /// Parses a name; `None` for one that this mode never makes.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(fixed) = FixedChain::parse(name) {
            return Some(Self::Fixed(fixed));
        }
        if let Some(id) = name.strip_prefix("learn-") {
            return Some(Self::Record(PortId::parse(id)?));
        }
        if let Some(id) = name.strip_prefix("restricted-") {
            return Some(Self::Restricted(SourcesId::parse(id)?));
        }
        let (kind, rest) = name.split_once('-')?;
        let pick = Pick::ALL.into_iter().find(|pick| pick.prefix() == kind)?;
        if let Some(rest) = rest.strip_prefix("pool-") {
            let (id, scope) = split_scope(rest);
            return Some(Self::Pool(pick, scope, PortId::parse(id)?));
        }
        let Some(rest) = rest.strip_prefix("affinity-") else {
            let count = rest.parse().ok()?;
            // Only canonical numbers: "int-03" and "int-+3" are not ours.
            return Some(Self::Pick(pick, count)).filter(|parsed| parsed.to_string() == name);
        };
        let (id, scope) = split_scope(rest);
        Some(Self::Affinity(pick, scope, PortId::parse(id)?))
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(fixed) => fixed.fmt(f),
            Self::Pick(pick, count) => write!(f, "{}-{count}", pick.prefix()),
            Self::Pool(pick, scope, id) => write!(f, "{}-pool-{id}{}", pick.prefix(), suffix(*scope)),
            Self::Affinity(pick, scope, id) => write!(f, "{}-affinity-{id}{}", pick.prefix(), suffix(*scope)),
            Self::Record(id) => write!(f, "learn-{id}"),
            Self::Restricted(id) => write!(f, "restricted-{id}"),
        }
    }
}

// === impl Pick ===

impl Pick {
    const ALL: [Self; 7] = [
        Self::Internal,
        Self::External,
        Self::Forward,
        Self::Local,
        Self::NodePort,
        Self::NodePortForward,
        Self::NodePortLocal,
    ];

    /// The first part of its chains' names.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Internal => "int",
            Self::External => "ext",
            Self::Forward => "fwd",
            Self::Local => "lcl",
            Self::NodePort => "np",
            Self::NodePortForward => "npi",
            Self::NodePortLocal => "npl",
        }
    }

    /// True if it reads the slots of a node port.
    pub const fn of_node_port(self) -> bool {
        matches!(self, Self::NodePort | Self::NodePortForward | Self::NodePortLocal)
    }

    /// The kind that reads the same slots without masquerading.
    pub const fn without_mark(self) -> Self {
        match self {
            Self::Internal | Self::External | Self::Forward => Self::Forward,
            Self::NodePort | Self::NodePortForward => Self::NodePortForward,
            Self::Local | Self::NodePortLocal => self,
        }
    }

    /// The kind for a pool, whose slots don't depend on the frontend's address.
    pub const fn of_pool(self) -> Self {
        match self {
            Self::Internal => Self::Internal,
            Self::External | Self::NodePort => Self::External,
            Self::Forward | Self::Local | Self::NodePortForward | Self::NodePortLocal => Self::Forward,
        }
    }

    /// The first slot that it reads.
    pub const fn first_slot(self) -> u32 {
        match self {
            Self::Local | Self::NodePortLocal => LOCAL_SLOTS,
            Self::Internal | Self::External | Self::Forward | Self::NodePort | Self::NodePortForward => 0,
        }
    }
}

fn suffix(scope: Scope) -> &'static str {
    match scope {
        Scope::Cluster => "",
        Scope::Local => "-local",
    }
}

fn split_scope(name: &str) -> (&str, Scope) {
    match name.strip_suffix("-local") {
        Some(rest) => (rest, Scope::Local),
        None => (name, Scope::Cluster),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let id = PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, "http");
        for scope in [Scope::Cluster, Scope::Local] {
            for set in [SetName::Affinity(id, scope), SetName::Members(id, scope), SetName::Pool(id)] {
                assert_eq!(SetName::parse(&set.to_string()), Some(set));
            }
            for pick in Pick::ALL {
                let chains =
                    [ChainName::Pick(pick, 17), ChainName::Pool(pick, scope, id), ChainName::Affinity(pick, scope, id)];
                for chain in chains {
                    assert_eq!(ChainName::parse(&chain.to_string()), Some(chain));
                }
            }
        }
        for fixed in FixedSet::ALL {
            assert_eq!(SetName::parse(fixed.name()), Some(SetName::Fixed(*fixed)));
        }
        for fixed in FixedChain::ALL {
            assert_eq!(ChainName::parse(fixed.name()), Some(ChainName::Fixed(*fixed)));
        }
        let sources = SourcesId::of_digest(&[0xa5; 32]);
        assert_eq!(SetName::parse(&SetName::Sources(sources).to_string()), Some(SetName::Sources(sources)));
        for chain in [ChainName::Record(id), ChainName::Restricted(sources)] {
            assert_eq!(ChainName::parse(&chain.to_string()), Some(chain));
        }
    }

    #[test]
    fn other_names_are_not_ours() {
        for name in [
            "service-ULMVA6XW-ns1/svc1/tcp/p80",
            "int-03",
            "int-+3",
            "int-",
            "filter-input",
            "learn-xyz",
            "restricted",
            "",
        ] {
            assert_eq!(ChainName::parse(name), None, "{name}");
        }
        for name in [
            "hairpin-connections",
            "affinity-",
            "sources-",
            "source-ranges",
            "affinity-GTK6MW7G-ns5/svc5/tcp/p80__10.180.0.3/80",
        ] {
            assert_eq!(SetName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn no_name_of_ours_looks_like_a_service_chain_of_upstream() {
        // Upstream deletes unknown chains whose name holds a slash, and sets named affinity-….
        let id = PortId::new(&ObjectName::new("a/b", "c"), Protocol::Sctp, "");
        assert!(!ChainName::Record(id).to_string().contains('/'));
    }

    #[test]
    fn an_id_is_what_the_documentation_says() {
        // printf %s demo/web/tcp/http | sha256sum | cut -c1-32
        let id = PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, "http");
        assert_eq!(id.to_string(), "05d5e123421d5532bb46df639921dcaf");
    }

    #[test]
    fn names_with_slashes_share_no_id() {
        let ids = [("a", "b/tcp", ""), ("a", "b", "tcp/"), ("a", "b%2Ftcp", "")]
            .map(|(namespace, name, port)| PortId::new(&ObjectName::new(namespace, name), Protocol::Tcp, port));
        let different: std::collections::BTreeSet<PortId> = ids.into();
        assert_eq!(different.len(), ids.len());
    }
}
