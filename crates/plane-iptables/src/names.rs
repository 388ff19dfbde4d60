//! Names of chains, sets, counters and services: upstream's, so that either proxy takes over the other's rules.

use ferry_api::object::{Family, ObjectName, Protocol};
use ferry_kernel::iptables::{IptablesChainName, Table};
use sha2::{Digest, Sha256};

/// The accounting object that counts dropped packets in conntrack state INVALID.
pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";

/// The accounting object that counts connections to node ports over loopback.
pub const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";

/// The canary, an empty chain in each table: it is missing after another program has flushed the table.
pub const CANARY: IptablesChainName = IptablesChainName::literal("KUBE-PROXY-CANARY");
/// nat: marks packets for masquerading.
pub const MARK_MASQ: IptablesChainName = IptablesChainName::literal("KUBE-MARK-MASQ");
/// nat: masquerades marked packets.
pub const POSTROUTING: IptablesChainName = IptablesChainName::literal("KUBE-POSTROUTING");
/// filter: accepts forwarded packets of services.
pub const FORWARD: IptablesChainName = IptablesChainName::literal("KUBE-FORWARD");
/// nat: dispatches packets to services; filter: refuses cluster IPs without endpoints.
pub const SERVICES: IptablesChainName = IptablesChainName::literal("KUBE-SERVICES");
/// filter: refuses external addresses and node ports without endpoints.
pub const EXTERNAL_SERVICES: IptablesChainName = IptablesChainName::literal("KUBE-EXTERNAL-SERVICES");
/// nat: dispatches packets to node ports; filter: accepts packets to health check ports.
pub const NODE_PORTS: IptablesChainName = IptablesChainName::literal("KUBE-NODEPORTS");
/// filter: drops packets to load balancer addresses from outside their source ranges.
pub const PROXY_FIREWALL: IptablesChainName = IptablesChainName::literal("KUBE-PROXY-FIREWALL");
/// filter: the loopback guard, shared with the kubelet.
pub const FIREWALL: IptablesChainName = IptablesChainName::literal("KUBE-FIREWALL");

/// Prefixes of the names of per-service chains.
const PREFIXES: [(Class, &str); 5] = [
    (Class::Cluster, "KUBE-SVC-"),
    (Class::Local, "KUBE-SVL-"),
    (Class::External, "KUBE-EXT-"),
    (Class::Firewall, "KUBE-FW-"),
    (Class::Endpoint, "KUBE-SEP-"),
];

/// Maximum bytes of one part of a Service port's printed name, as in the API.
const PART: usize = 63;

/// Characters of a hash in a chain's name.
const HASH: usize = 16;

/// End of the comment of a rule that accepts health checks.
const HEALTH_CHECK: &str = " health check node port";

/// Prefix of the names of ipsets of source ranges. Not `KUBE-`, by which those of upstream's mode ipvs are recognised.
const SOURCES: &str = "FERRY-SRC-";

/// Prefix of the names of sets that are filled before they take the place of one of these.
const NEXT_SOURCES: &str = "FERRY-NXT-";

/// Purpose of one of our chains, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// a chain of the base with rules of its own, or without rules: `KUBE-PROXY-CANARY`, `KUBE-MARK-MASQ`, `KUBE-POSTROUTING`,
    /// `KUBE-FORWARD`
    Fixed,
    /// a shared chain of the base, with rules of many owners: `KUBE-SERVICES` and its like
    Shared,
    /// `KUBE-SEP-…`: translates to one endpoint
    Endpoint,
    /// `KUBE-SVC-…`: balances between all endpoints
    Cluster,
    /// `KUBE-SVL-…`: balances between this node's endpoints
    Local,
    /// `KUBE-EXT-…`: traffic to external frontends
    External,
    /// `KUBE-FW-…`: source ranges
    Firewall,
}

/// True for chains that balance between endpoints.
pub(crate) fn is_balancing(name: IptablesChainName) -> bool {
    matches!(Class::of(name), Some(Class::Cluster | Class::Local))
}

/// Names of one Service port: of its chains and in comments.
#[derive(Clone, Debug)]
pub struct PortNames {
    /// `namespace/name:port`, or `namespace/name` if the port has no name. Only characters that need no quoting, at most 191
    /// bytes
    pub printed: String,
    /// input of the hashes: `namespace/name:port` and the protocol
    identity: String,
    hash: String,
}

// === impl PortNames ===

impl PortNames {
    /// The names of this port of a Service; `port` is empty if it has no name.
    pub fn new(service: &ObjectName, port: &str, protocol: Protocol) -> Self {
        let mut identity = format!("{}/{}", service.namespace(), service.name());
        let mut printed = printed_service(service);
        if !port.is_empty() {
            identity += &format!(":{port}");
            printed += &format!(":{}", part(port));
        }
        identity += protocol.lower();
        Self { printed, hash: hash(&identity), identity }
    }

    /// The chain of this class; `Endpoint`, `Fixed` and `Shared` are no classes of a port.
    fn chain(&self, class: Class) -> IptablesChainName {
        with_hash(class, &self.hash)
    }

    /// `KUBE-SVC-…`
    pub fn cluster(&self) -> IptablesChainName {
        self.chain(Class::Cluster)
    }

    /// `KUBE-SVL-…`
    pub fn local(&self) -> IptablesChainName {
        self.chain(Class::Local)
    }

    /// `KUBE-EXT-…`
    pub fn external(&self) -> IptablesChainName {
        self.chain(Class::External)
    }

    /// `KUBE-FW-…`
    pub fn firewall(&self) -> IptablesChainName {
        self.chain(Class::Firewall)
    }

    /// `KUBE-SEP-…` of the endpoint with this text: `10.180.0.1:80`, `[fd00:10::1]:80`.
    pub fn endpoint(&self, endpoint: &str) -> IptablesChainName {
        with_hash(Class::Endpoint, &hash(&format!("{}{endpoint}", self.identity)))
    }
}

// === impl Class ===

impl Class {
    /// The purpose of a chain; `None` if it is none of ours in any table.
    pub fn of(name: IptablesChainName) -> Option<Self> {
        match name {
            CANARY | MARK_MASQ | POSTROUTING | FORWARD => return Some(Self::Fixed),
            SERVICES | EXTERNAL_SERVICES | NODE_PORTS | PROXY_FIREWALL | FIREWALL => return Some(Self::Shared),
            _ => {}
        }
        let of_prefix =
            |(class, prefix): &(Self, &str)| name.as_str().strip_prefix(prefix).is_some_and(is_hash).then_some(*class);
        PREFIXES.iter().find_map(of_prefix)
    }

    /// True if it belongs to one Service.
    pub fn is_of_service(self) -> bool {
        !matches!(self, Self::Fixed | Self::Shared)
    }
}

/// True if a chain of this table is ours: read back, and deleted at clean-up. `KUBE-FIREWALL` is not, since the kubelet uses it
/// too.
pub fn is_ours(table: Table, name: IptablesChainName) -> bool {
    match name {
        CANARY => true,
        FORWARD | EXTERNAL_SERVICES | PROXY_FIREWALL => table == Table::Filter,
        SERVICES | NODE_PORTS => matches!(table, Table::Filter | Table::Nat),
        MARK_MASQ | POSTROUTING => table == Table::Nat,
        _ => table == Table::Nat && Class::of(name).is_some_and(Class::is_of_service),
    }
}

/// The rank of a chain with rules of its own: it refers to chains of lower ranks only.
pub fn rank(name: IptablesChainName) -> u8 {
    match Class::of(name) {
        Some(Class::Fixed | Class::Shared) | None => 0,
        Some(Class::Endpoint) => 1,
        Some(Class::Cluster | Class::Local) => 2,
        Some(Class::External) => 3,
        Some(Class::Firewall) => 4,
    }
}

/// The name that represents a Service in [`RuleOwner::HealthCheck`](crate::object::RuleOwner::HealthCheck). No chain has it.
pub fn of_service(service: &ObjectName) -> IptablesChainName {
    service_called(&printed_service(service))
}

/// `FERRY-SRC-…`: the ipset of a Service's source ranges of this family.
pub fn sources(service: &ObjectName, family: Family) -> IptablesChainName {
    chain(SOURCES, &hash(&format!("{}/{} {family}", service.namespace(), service.name())))
}

/// True if an ipset of this name has source ranges of a Service.
pub fn is_sources(name: IptablesChainName) -> bool {
    name.as_str().strip_prefix(SOURCES).is_some_and(is_hash)
}

/// `FERRY-NXT-…`: the ipset that a process, known by a random number, fills before it takes the place of the one with this name.
pub fn next_sources(name: IptablesChainName, process: u64) -> IptablesChainName {
    chain(NEXT_SOURCES, &hash(&format!("{name} {process}")))
}

/// True if an ipset of this name was to take the place of another one.
pub fn is_next_sources(name: IptablesChainName) -> bool {
    name.as_str().strip_prefix(NEXT_SOURCES).is_some_and(is_hash)
}

/// The comment of the rule that accepts health checks of a Service, from the printed name of one of its ports.
pub fn health_check_comment(printed: &str) -> String {
    format!("{printed}{HEALTH_CHECK}")
}

/// The Service of the rule with this comment that accepts health checks, as named by [`of_service`].
pub fn health_check_of(comment: &str) -> Option<IptablesChainName> {
    let printed = comment.strip_suffix(HEALTH_CHECK)?;
    let service = printed.split_once(':').map_or(printed, |(service, _)| service);
    service.contains('/').then(|| service_called(service))
}

fn service_called(printed: &str) -> IptablesChainName {
    const PREFIX: &str = "SERVICE-";
    chain(PREFIX, &hash(printed))
}

fn printed_service(service: &ObjectName) -> String {
    format!("{}/{}", part(service.namespace()), part(service.name()))
}

/// A part of a printed name. One that no API server would admit is truncated and sanitised, so that a comment fits into a rule
/// and needs no quoting, and gets a hash, so that it stays unique.
fn part(text: &str) -> String {
    let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_');
    if text.len() <= PART && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    let plain = |char: char| u8::try_from(char).ok().filter(|byte| is_plain(*byte)).map_or('_', char::from);
    let mut part: String = text.chars().map(plain).take(PART - 1 - HASH).collect();
    part.push('~');
    part += &hash(text);
    part
}

fn with_hash(class: Class, hash: &str) -> IptablesChainName {
    let prefix = PREFIXES.iter().find(|(of, _)| *of == class).map_or("", |(_, prefix)| prefix);
    chain(prefix, hash)
}

/// A prefix and a hash are 26 bytes at most.
fn chain(prefix: &str, rest: &str) -> IptablesChainName {
    IptablesChainName::new(&format!("{prefix}{rest}")).unwrap_or(CANARY)
}

fn is_hash(text: &str) -> bool {
    text.len() == HASH && text.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'))
}

/// The first 80 bits of a SHA-256 in base32 of RFC 4648.
fn hash(text: &str) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = Sha256::digest(text.as_bytes());
    let bits = digest.iter().take(10).fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
    let mut hash = String::with_capacity(HASH);
    for at in (0..HASH).rev() {
        let five = usize::try_from(bits >> (5 * at) & 31).unwrap_or_default();
        hash.push(ALPHABET.get(five).copied().map_or('A', char::from));
    }
    hash
}

#[cfg(test)]
mod tests;
