//! Objects of the userspace mode: service ports with their endpoints, listeners, routes from original destinations to service ports,
//! and the table. Their keys and ranks.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use ferry_api::object::{ObjectName, Protocol};
use ferry_model::{Endpoint, FrontendAddr, Scope};
use ferry_plane::{Object, Served};
use ferry_ruleset::table::{ChainName, ELEMENT_RANK, InTable, TableKey, TableObject};

use crate::names::{FixedChain, FixedSet};
use crate::vocabulary::Userspace;

/// One object that this mode owns, in the kernel or in the relay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UserspaceObject {
    /// a service port of the relay
    Port(PortId, PortSpec),
    /// a listener of the relay
    Listener(Door),
    /// TCP connections to this destination, at the gate of this scope, are of this service port
    Route(Scope, FrontendAddr, PortId),
    /// an object of the table
    Table(TableObject<Userspace>),
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UserspaceKey {
    /// a service port
    Port(PortId),
    /// a listener
    Listener(Door),
    /// a destination of TCP connections at the gate of a scope
    Route(Scope, FrontendAddr),
    /// an object of the table
    Table(TableKey<Userspace>),
}

/// Keys of shared objects: those that several Services may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedKey {
    /// source ranges, or the chain that checks them
    Sources(ferry_ruleset::sources::SourcesId, bool),
    /// an element of `cluster-ips`
    ClusterIp(IpAddr),
}

/// Identifies a service port in one family, as it is served with endpoints of one scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// the Service
    pub service: ObjectName,
    /// the port's name; empty when unnamed
    pub name: Arc<str>,
    /// its protocol
    pub protocol: Protocol,
    /// the scope of its endpoints
    pub scope: Scope,
}

/// What the relay has to know of a service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortSpec {
    /// the timeout of session affinity by client address, in seconds
    pub affinity_seconds: Option<NonZeroU32>,
    /// the endpoints
    pub pool: Arc<[Endpoint]>,
}

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

// === impl PortId ===

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, name, protocol, scope } = self;
        let colon = if name.is_empty() { "" } else { ":" };
        write!(f, "{service}{colon}{name}/{}/{}", protocol.lower(), scope_word(*scope))
    }
}

// === impl PortSpec ===

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seconds) = self.affinity_seconds {
            write!(f, " affinity {seconds}s")?;
        }
        let address = |endpoint: &Endpoint| SocketAddr::new(endpoint.address, endpoint.port);
        self.pool.iter().try_for_each(|endpoint| write!(f, " {}", address(endpoint)))
    }
}

/// The word for a scope in names.
pub(crate) const fn scope_word(scope: Scope) -> &'static str {
    match scope {
        Scope::Cluster => "cluster",
        Scope::Local => "local",
    }
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

// === impl UserspaceObject ===

impl Object for UserspaceObject {
    type Key = UserspaceKey;
    type Shared = SharedKey;

    fn key(&self) -> UserspaceKey {
        match self {
            Self::Port(id, _) => UserspaceKey::Port(id.clone()),
            Self::Listener(door) => UserspaceKey::Listener(door.clone()),
            Self::Route(scope, at, _) => UserspaceKey::Route(*scope, *at),
            Self::Table(object) => UserspaceKey::Table(object.key()),
        }
    }

    /// An element needs its listener, a listener and a route their service port. The relay comes below the table: its objects
    /// are there before a packet is led to them.
    fn rank(&self) -> u8 {
        match self {
            Self::Port(..) => 0,
            Self::Listener(_) | Self::Route(..) => 1,
            Self::Table(object) => FIRST_OF_TABLE + object.rank(),
        }
    }

    fn shared(&self) -> Option<SharedKey> {
        match self {
            Self::Table(TableObject::Ranges(id, _)) => Some(SharedKey::Sources(*id, false)),
            Self::Table(TableObject::Chain(ChainName::Restricted(id), _)) => Some(SharedKey::Sources(*id, true)),
            Self::Table(TableObject::Element(ElementKey::ClusterIp(address), _)) => {
                Some(SharedKey::ClusterIp(*address))
            }
            Self::Table(_) | Self::Port(..) | Self::Listener(_) | Self::Route(..) => None,
        }
    }

    fn serves(&self) -> Option<Served> {
        let Self::Table(TableObject::Element(key, Value::Goto(ChainName::Fixed(chain)))) = self else { return None };
        if *chain == FixedChain::Reject {
            return None;
        }
        match key {
            ElementKey::Vip { protocol, address, port, .. } => {
                Some(Served::Frontend(*protocol, FrontendAddr::Vip(*address, *port)))
            }
            ElementKey::NodePort { protocol, port } => Some(Served::Frontend(*protocol, FrontendAddr::NodePort(*port))),
            ElementKey::ClusterIp(_)
            | ElementKey::NodePortIp(_)
            | ElementKey::Gate(_)
            | ElementKey::Datagrams(..)
            | ElementKey::Listener(_) => None,
        }
    }
}

/// The rank of the table, above the relay's objects.
const FIRST_OF_TABLE: u8 = 2;

const _: () = assert!(FIRST_OF_TABLE.checked_add(ELEMENT_RANK).is_some());

impl InTable<Userspace> for UserspaceObject {
    fn in_table(&self) -> Option<&TableObject<Userspace>> {
        match self {
            Self::Table(object) => Some(object),
            Self::Port(..) | Self::Listener(_) | Self::Route(..) => None,
        }
    }

    fn of_table(object: TableObject<Userspace>) -> Self {
        Self::Table(object)
    }

    fn key_in_table(key: &UserspaceKey) -> Option<&TableKey<Userspace>> {
        match key {
            UserspaceKey::Table(key) => Some(key),
            UserspaceKey::Port(_) | UserspaceKey::Listener(_) | UserspaceKey::Route(..) => None,
        }
    }

    fn key_of_table(key: TableKey<Userspace>) -> UserspaceKey {
        UserspaceKey::Table(key)
    }
}

impl fmt::Display for UserspaceObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(id, spec) => write!(f, "port {id}{spec}"),
            Self::Listener(door) => write!(f, "listener {door}"),
            Self::Route(_, at, port) => write!(f, "route {at} to {port}"),
            Self::Table(object) => object.fmt(f),
        }
    }
}

// === impl UserspaceKey ===

impl fmt::Display for UserspaceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(id) => write!(f, "port {id}"),
            Self::Listener(door) => write!(f, "listener {door}"),
            Self::Route(scope, at) => write!(f, "route {at} at gate-{}", scope_word(*scope)),
            Self::Table(key) => key.fmt(f),
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
