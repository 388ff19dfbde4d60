//! The elements of the table: their keys and their values.

use std::fmt;
use std::net::IpAddr;

use ferry_api::object::Protocol;
use ferry_ruleset::table::ChainName;

use crate::names::FixedSet;
use crate::server::ServerId;

/// The vocabulary of this mode's table, implemented in `vocabulary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpvsTable {}

/// Identity of an element: its set or map, and its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementKey {
    /// a verdict map keyed by VIP, protocol and port
    Vip {
        /// the map
        map: VipMap,
        /// the frontend
        at: ServerId,
    },
    /// `service-nodeports`
    NodePort {
        /// protocol
        protocol: Protocol,
        /// node port
        port: u16,
    },
    /// `bound-ips`
    BoundIp(IpAddr),
    /// `nodeport-ips`
    NodePortIp(IpAddr),
    /// `pinged-ips`
    PingedIp(IpAddr),
    /// `health-ports`
    HealthPort(u16),
    /// `same-octet`
    SameOctet(u8),
}

/// The verdict maps keyed by VIP, protocol and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VipMap {
    /// `service-ips`
    Services,
    /// `restricted-ips`
    Restricted,
}

/// Value of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// a set's element
    None,
    /// the packet goes to the virtual server with its source address
    Accept,
    /// the packet is dropped
    Drop,
    /// evaluation goes on in this chain
    Goto(ChainName<IpvsTable>),
    /// a value that this mode never writes
    Foreign,
}

// === impl ElementKey ===

impl ElementKey {
    /// The set or map that it belongs to.
    pub const fn set(&self) -> FixedSet {
        match self {
            Self::Vip { map: VipMap::Services, .. } => FixedSet::ServiceIps,
            Self::Vip { map: VipMap::Restricted, .. } => FixedSet::RestrictedIps,
            Self::NodePort { .. } => FixedSet::ServiceNodePorts,
            Self::BoundIp(_) => FixedSet::BoundIps,
            Self::NodePortIp(_) => FixedSet::NodePortIps,
            Self::PingedIp(_) => FixedSet::PingedIps,
            Self::HealthPort(_) => FixedSet::HealthPorts,
            Self::SameOctet(_) => FixedSet::SameOctet,
        }
    }
}

impl fmt::Display for ElementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip { at, .. } => write!(f, "{} . {} . {}", at.address, at.protocol.lower(), at.port),
            Self::NodePort { protocol, port } => write!(f, "{} . {port}", protocol.lower()),
            Self::BoundIp(address) | Self::NodePortIp(address) | Self::PingedIp(address) => write!(f, "{address}"),
            Self::HealthPort(port) => write!(f, "{port}"),
            Self::SameOctet(octet) => write!(f, "{octet} . {octet}"),
        }
    }
}

// === impl Value ===

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Accept => f.write_str(" : accept"),
            Self::Drop => f.write_str(" : drop"),
            Self::Goto(chain) => write!(f, " : goto {chain}"),
            Self::Foreign => f.write_str(" : foreign value"),
        }
    }
}
