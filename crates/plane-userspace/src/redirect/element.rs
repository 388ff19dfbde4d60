//! The elements of the table: their keys, which may name a listener instead of its port, and their values.

use std::fmt;
use std::net::IpAddr;

use ferry_api::object::Protocol;
use ferry_model::{FrontendAddr, Scope};
use ferry_ruleset::table::ChainName;

use super::names::FixedSet;
use crate::port::{PortId, scope_word};

/// The vocabulary of this mode's table, implemented in `vocabulary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Userspace {}

/// A listener of the relay, to which the table leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Door {
    /// TCP connections of all service ports, to endpoints of this scope
    Gate(Scope),
    /// UDP datagrams of a service port
    Datagrams(PortId),
}

/// Identity of an element: its set or map, and its key there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementKey {
    /// a verdict map keyed by VIP, protocol and port
    Vip {
        /// the map
        map: VipMap,
        /// protocol
        protocol: Protocol,
        /// service address
        address: IpAddr,
        /// port
        port: u16,
    },
    /// `service-nodeports`
    NodePort {
        /// protocol
        protocol: Protocol,
        /// node port
        port: u16,
    },
    /// `cluster-ips`
    ClusterIp(IpAddr),
    /// `nodeport-ips`
    NodePortIp(IpAddr),
    /// `gate-…`
    Gate(Scope),
    /// `datagrams-…` and `datagrams-nodeports-…`
    Datagrams(Scope, FrontendAddr),
    /// `listeners`
    Listener(Entrance),
}

/// The verdict maps keyed by VIP, protocol and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VipMap {
    /// `service-ips`
    Services,
    /// `restricted-ips`
    Restricted,
}

/// The protocol and port of a listener, as an element's key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entrance {
    /// of this one
    Of(Door),
    /// of none of this process
    Unknown(Protocol, u16),
}

/// Value of an element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// a set's element
    None,
    /// the packet is dropped
    Drop,
    /// evaluation goes on in this chain
    Goto(ChainName<Userspace>),
    /// the packet goes to this address, and the port of this listener
    Relay(IpAddr, Door),
    /// a value that this mode never writes, or the port of a listener of an earlier process
    Foreign,
}

// === impl Door ===

impl Door {
    /// The protocol of the listener.
    pub const fn protocol(&self) -> Protocol {
        match self {
            Self::Gate(_) => Protocol::Tcp,
            Self::Datagrams(_) => Protocol::Udp,
        }
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gate(scope) => write!(f, "gate-{}", scope_word(*scope)),
            Self::Datagrams(port) => port.fmt(f),
        }
    }
}

// === impl ElementKey ===

impl ElementKey {
    /// The set or map that it belongs to.
    pub const fn set(&self) -> FixedSet {
        match self {
            Self::Vip { map: VipMap::Services, .. } => FixedSet::ServiceIps,
            Self::Vip { map: VipMap::Restricted, .. } => FixedSet::RestrictedIps,
            Self::NodePort { .. } => FixedSet::ServiceNodePorts,
            Self::ClusterIp(_) => FixedSet::ClusterIps,
            Self::NodePortIp(_) => FixedSet::NodePortIps,
            Self::Gate(scope) => FixedSet::gate(*scope),
            Self::Datagrams(scope, at) => FixedSet::datagrams(*scope, matches!(at, FrontendAddr::NodePort(_))),
            Self::Listener(_) => FixedSet::Listeners,
        }
    }
}

impl fmt::Display for ElementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip { protocol, address, port, .. } => write!(f, "{address} . {} . {port}", protocol.lower()),
            Self::NodePort { protocol, port } => write!(f, "{} . {port}", protocol.lower()),
            Self::ClusterIp(address) | Self::NodePortIp(address) => write!(f, "{address}"),
            Self::Gate(_) => f.write_str("tcp"),
            Self::Datagrams(_, FrontendAddr::Vip(address, port)) => write!(f, "{address} . udp . {port}"),
            Self::Datagrams(_, FrontendAddr::NodePort(port)) => write!(f, "udp . {port}"),
            Self::Listener(Entrance::Of(door)) => write!(f, "{} . {door}", door.protocol().lower()),
            Self::Listener(Entrance::Unknown(protocol, port)) => write!(f, "{} . {port}", protocol.lower()),
        }
    }
}

// === impl Value ===

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Drop => f.write_str(" : drop"),
            Self::Goto(chain) => write!(f, " : goto {chain}"),
            Self::Relay(address, door) => write!(f, " : {address} . {door}"),
            Self::Foreign => f.write_str(" : foreign value"),
        }
    }
}
