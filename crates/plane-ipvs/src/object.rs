//! Kernel objects of the ipvs mode: the table with its sets, chains and elements, virtual servers, and addresses of the device.
//! Their keys and ranks.

use std::fmt;
use std::net::IpAddr;

use ferry_api::object::Protocol;
use ferry_model::FrontendAddr;
use ferry_plane::{Object, Served};
use ferry_ruleset::Rules;
use ferry_ruleset::sources::{Ranges, SourcesId};

use crate::names::{ChainName, DEVICE, FixedChain, FixedSet, SetName, TABLE, TABLE_COMMENT};
use crate::server::{ServerId, VirtualServer};

/// One object in the kernel that this mode owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpvsObject {
    /// the table
    Table(Table),
    /// a set or map without its elements; its shape follows from its name. Not [`SetName::Sources`]
    Set(SetName),
    /// the set of source ranges with this id, with all its elements. Its key is that of a set and sorts behind all other sets
    Ranges(SourcesId, Ranges),
    /// a chain with its rules; its hook follows from its name
    Chain(ChainName, Rules),
    /// an element
    Element(ElementKey, Value),
    /// a virtual server with its endpoints
    Server(ServerId, VirtualServer),
    /// an address of the device
    Address(IpAddr, Lifetime),
}

/// Identity of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpvsKey {
    /// the table
    Table,
    /// a set or map
    Set(SetName),
    /// a chain
    Chain(ChainName),
    /// an element
    Element(ElementKey),
    /// a virtual server
    Server(ServerId),
    /// an address of the device
    Address(IpAddr),
}

/// Keys of shared objects: those that several Services may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedKey {
    /// a set of source ranges
    Sources(SourcesId),
    /// the chain that checks it
    Restricted(SourcesId),
    /// an element of `bound-ips`
    BoundIp(IpAddr),
    /// an element of `pinged-ips`
    PingedIp(IpAddr),
    /// an element of `health-ports`
    HealthPort(u16),
    /// an address of the device
    Address(IpAddr),
}

const _: () = assert!(size_of::<(SharedKey, u32)>() <= 24, "there are two for each of a node's services");

/// Owner of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// ours, of this layout
    Ours,
    /// another mode's, upstream's, another layout's, or one with objects that this mode never makes: it is replaced as a whole
    Foreign,
}

/// The lifetime of an address on the device, which decides whether the kernel takes it as a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifetime {
    /// as this mode sets it: no connection takes the address as its source, except one to that address
    Deprecated,
    /// IPv6 with a preferred lifetime, IPv4 of scope `global`, as upstream's proxy sets them: connections may take it as their source
    Preferred,
}

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
    Goto(ChainName),
    /// a value that this mode never writes
    Foreign,
}

// === impl IpvsObject ===

impl Object for IpvsObject {
    type Key = IpvsKey;
    type Shared = SharedKey;

    fn key(&self) -> IpvsKey {
        match self {
            Self::Table(_) => IpvsKey::Table,
            Self::Set(name) => IpvsKey::Set(*name),
            Self::Ranges(id, _) => IpvsKey::Set(SetName::Sources(*id)),
            Self::Chain(name, _) => IpvsKey::Chain(*name),
            Self::Element(key, _) => IpvsKey::Element(*key),
            Self::Server(id, _) => IpvsKey::Server(*id),
            Self::Address(address, _) => IpvsKey::Address(*address),
        }
    }

    /// A virtual server needs the elements that mark, restrict or refuse its packets: the nat chains decide on the first packet
    /// of a connection for all later ones. An address needs its servers and refusals, since until then it leads nowhere.
    fn rank(&self) -> u8 {
        match self {
            Self::Table(_) => 0,
            Self::Set(_) | Self::Ranges(..) => 1,
            // Other chains refer to these.
            Self::Chain(
                ChainName::Fixed(FixedChain::Reject | FixedChain::MasqueradeCluster | FixedChain::MasqueradeExternal),
                _,
            ) => 2,
            Self::Chain(ChainName::Fixed(FixedChain::Bound | FixedChain::Unserved) | ChainName::Restricted(_), _) => 3,
            Self::Chain(ChainName::Fixed(FixedChain::Services), _) => 4,
            Self::Chain(..) => 5,
            Self::Element(..) => 6,
            Self::Server(..) => 7,
            Self::Address(..) => 8,
        }
    }

    fn shared(&self) -> Option<SharedKey> {
        match self {
            Self::Ranges(id, _) => Some(SharedKey::Sources(*id)),
            Self::Chain(ChainName::Restricted(id), _) => Some(SharedKey::Restricted(*id)),
            Self::Element(ElementKey::BoundIp(address), _) => Some(SharedKey::BoundIp(*address)),
            Self::Element(ElementKey::PingedIp(address), _) => Some(SharedKey::PingedIp(*address)),
            Self::Element(ElementKey::HealthPort(port), _) => Some(SharedKey::HealthPort(*port)),
            Self::Address(address, _) => Some(SharedKey::Address(*address)),
            Self::Table(_) | Self::Set(_) | Self::Chain(..) | Self::Element(..) | Self::Server(..) => None,
        }
    }

    /// A virtual server without endpoints serves nothing.
    fn serves(&self) -> Option<Served> {
        match self {
            Self::Server(id, server) if !server.endpoints.is_empty() => {
                Some(Served::Frontend(id.protocol, FrontendAddr::Vip(id.address, id.port)))
            }
            Self::Table(_)
            | Self::Set(_)
            | Self::Ranges(..)
            | Self::Chain(..)
            | Self::Element(..)
            | Self::Server(..)
            | Self::Address(..) => None,
        }
    }
}

impl fmt::Display for IpvsObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(Table::Ours) => write!(f, "table {TABLE} {{ comment \"{TABLE_COMMENT}\" }}"),
            Self::Table(Table::Foreign) => write!(f, "table {TABLE} {{ foreign }}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Ranges(id, ranges) => {
                write!(f, "set {} {{ ", SetName::Sources(*id))?;
                for (index, range) in ranges.as_slice().iter().enumerate() {
                    write!(f, "{}{range}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str(" }")
            }
            Self::Chain(name, rules) => {
                write!(f, "chain {name} {{")?;
                for rule in &*rules.0 {
                    write!(f, " {rule};")?;
                }
                f.write_str(" }")
            }
            Self::Element(key, value) => write!(f, "element {} {{ {key}{value} }}", key.set()),
            Self::Server(id, server) => write!(f, "virtual server {id} {server}"),
            Self::Address(address, Lifetime::Deprecated) => write!(f, "address {address} dev {DEVICE}"),
            Self::Address(address, Lifetime::Preferred) => write!(f, "address {address} dev {DEVICE} preferred"),
        }
    }
}

// === impl IpvsKey ===

impl fmt::Display for IpvsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => write!(f, "table {TABLE}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Element(key) => write!(f, "element {} {{ {key} }}", key.set()),
            Self::Server(id) => write!(f, "virtual server {id}"),
            Self::Address(address) => write!(f, "address {address} dev {DEVICE}"),
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
