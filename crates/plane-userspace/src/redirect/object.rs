//! Objects of the userspace mode: service ports with their endpoints, listeners, routes from original destinations to service ports,
//! and the table. Their keys and ranks.

use std::fmt;
use std::net::IpAddr;

use ferry_model::{FrontendAddr, Scope};
use ferry_plane::{Object, Served};
use ferry_ruleset::serves::finds_node_ports_everywhere;
use ferry_ruleset::table::{ChainName, ELEMENT_RANK, InTable, TableKey, TableObject, Vocabulary as _};

use super::element::{Door, ElementKey, Userspace};
use super::names::{FixedChain, FixedSet};
use crate::port::{PortId, PortSpec, scope_word};

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
    /// are there before a packet is led to them. And routes are there before a listener, in which connections may wait already.
    fn rank(&self) -> u8 {
        match self {
            Self::Port(..) => 0,
            Self::Route(..) => 1,
            Self::Listener(_) => 2,
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
        match self {
            Self::Table(TableObject::Element(key, _)) => Userspace::served(key),
            Self::Table(TableObject::Chain(ChainName::Fixed(FixedChain::Services), rules)) => {
                finds_node_ports_everywhere(rules, FixedSet::ServiceNodePorts).then_some(Served::NodePortsEverywhere)
            }
            Self::Table(_) | Self::Port(..) | Self::Listener(_) | Self::Route(..) => None,
        }
    }

    /// Elements and routes refer to others.
    fn is_leaf(&self) -> bool {
        matches!(self, Self::Route(..) | Self::Table(TableObject::Element(..)))
    }
}

/// The rank of the table, above the relay's objects.
const FIRST_OF_TABLE: u8 = 3;

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

#[cfg(test)]
mod tests {
    use ferry_api::object::{ObjectName, Protocol};
    use ferry_ruleset::table::SetName;

    use super::super::element::{Value, VipMap};
    use super::*;

    #[test]
    fn an_object_has_a_key_a_rank_and_may_serve_a_frontend_or_be_a_leaf() {
        let (scope, protocol) = (Scope::Cluster, Protocol::Tcp);
        let address = IpAddr::from([10, 96, 0, 10]);
        let at = FrontendAddr::Vip(address, 80);
        let service = ObjectName::new("demo", "web");
        let port = PortId { service, name: "http".into(), protocol, scope };
        let spec = PortSpec { affinity_seconds: None, pool: [].into(), kept: Default::default() };
        let set = TableObject::Set(SetName::Fixed(FixedSet::ServiceIps));
        let vip = ElementKey::Vip { map: VipMap::Services, protocol, address, port: 80 };
        let element = TableObject::Element(vip, Value::Drop);
        let (of_set, of_element) = (set.key(), element.key());
        let (name_of_set, name_of_element) = (of_set.to_string(), of_element.to_string());
        let served = Some(Served::Frontend(protocol, at));
        let own = "demo/web:http/tcp/cluster";
        for (object, key, text, rank, served, is_leaf) in [
            (UserspaceObject::Port(port.clone(), spec), format!("port {own}"), format!("port {own}"), 0, None, false),
            (
                UserspaceObject::Route(scope, at, port.clone()),
                format!("route {at} at gate-cluster"),
                format!("route {at} to {own}"),
                1,
                None,
                true,
            ),
            (
                UserspaceObject::Listener(Door::Datagrams(port.clone())),
                format!("listener {}", Door::Datagrams(port.clone())),
                format!("listener {}", Door::Datagrams(port)),
                2,
                None,
                false,
            ),
            (UserspaceObject::Table(set.clone()), name_of_set, set.to_string(), 3 + set.rank(), None, false),
            (
                UserspaceObject::Table(element.clone()),
                name_of_element,
                element.to_string(),
                3 + ELEMENT_RANK,
                served,
                true,
            ),
        ] {
            assert_eq!((object.key().to_string(), object.to_string()), (key, text));
            assert_eq!((object.rank(), object.serves(), object.is_leaf()), (rank, served, is_leaf), "{object}");
            let in_table = object.in_table().map(TableObject::key);
            assert_eq!(UserspaceObject::key_in_table(&object.key()), in_table.as_ref());
        }
    }
}
