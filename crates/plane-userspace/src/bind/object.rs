//! Objects of the way `bind`: where clients are, service ports with their endpoints, addresses of Services, listeners. Their keys and
//! ranks.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferry_api::object::{IpNet, Protocol};
use ferry_model::{FrontendAddr, Scope};
use ferry_plane::{Object, Served};

use crate::port::{PortId, PortSpec, scope_word};

/// One object that this way owns, in the kernel or in the relay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BindObject {
    /// the facts that tell where a client is
    Origins(Origins),
    /// a service port of the relay
    Port(PortId, PortSpec),
    /// the address of a Service, which no interface has: this way makes it one of the machine
    Address(IpAddr),
    /// a listener of the relay
    Listener(ListenAddress, Serves),
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BindKey {
    /// the facts that tell where a client is
    Origins,
    /// a service port
    Port(PortId),
    /// the address of a Service
    Address(IpAddr),
    /// a listener
    Listener(ListenAddress),
}

/// The facts that tell where a client is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origins {
    /// the addresses of the machine's interfaces, sorted. Those of Services are the machine's, too
    pub local: Arc<[IpAddr]>,
    /// the range of this node's pods, if there is a detector by range
    pub pods: Option<IpNet>,
}

/// Where a listener listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenAddress {
    /// the protocol
    pub protocol: Protocol,
    /// the address
    pub address: IpAddr,
    /// the port
    pub port: u16,
}

/// The way in which a listener serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serves {
    /// the service port, with any scope
    pub port: PortId,
    /// the endpoints of clients by their origin; none where a client is refused
    pub scopes: ByOrigin,
    /// the addresses of admitted clients; `None` admits all
    pub sources: Option<Arc<[IpNet]>>,
}

/// A scope of endpoints for the clients of each origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByOrigin {
    /// pods of this node
    pub pod: Option<Scope>,
    /// this node
    pub host: Option<Scope>,
    /// others
    pub other: Option<Scope>,
}

/// The addresses of one kind of operation, with their indices in the batch.
pub(super) type Indexed = Vec<(usize, IpAddr)>;

/// The addresses among objects, with their indices.
pub(super) fn addresses(objects: &[BindObject]) -> Indexed {
    let address = |(index, object): (usize, &BindObject)| match object {
        BindObject::Address(address) => Some((index, *address)),
        BindObject::Origins(_) | BindObject::Port(..) | BindObject::Listener(..) => None,
    };
    objects.iter().enumerate().filter_map(address).collect()
}

// === impl ListenAddress ===

impl ListenAddress {
    /// Its address and port.
    pub fn at(self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at(), self.protocol.lower())
    }
}

// === impl ByOrigin ===

impl ByOrigin {
    /// The scopes that some client is led to.
    pub fn scopes(self) -> impl Iterator<Item = Scope> {
        let Self { pod, host, other } = self;
        let leads_to = move |scope: &Scope| [pod, host, other].contains(&Some(*scope));
        [Scope::Cluster, Scope::Local].into_iter().filter(leads_to)
    }
}

impl fmt::Display for ByOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |scope: Option<Scope>| scope.map_or("nobody", scope_word);
        let Self { pod, host, other } = *self;
        if pod == other && host == other {
            f.write_str(word(other))
        } else {
            write!(f, "pods {}, node {}, others {}", word(pod), word(host), word(other))
        }
    }
}

// === impl Serves ===

impl Serves {
    /// The service ports that it leads to.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        self.scopes.scopes().map(|scope| PortId { scope, ..self.port.clone() })
    }
}

impl fmt::Display for Serves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortId { service, name, .. } = &self.port;
        let colon = if name.is_empty() { "" } else { ":" };
        write!(f, "{service}{colon}{name} ({})", self.scopes)?;
        let Some(sources) = &self.sources else { return Ok(()) };
        f.write_str(" from")?;
        sources.iter().try_for_each(|range| write!(f, " {range}"))
    }
}

// === impl BindObject ===

impl Object for BindObject {
    type Key = BindKey;
    type Shared = IpAddr;

    fn key(&self) -> BindKey {
        match self {
            Self::Origins(_) => BindKey::Origins,
            Self::Port(id, _) => BindKey::Port(id.clone()),
            Self::Address(address) => BindKey::Address(*address),
            Self::Listener(place, _) => BindKey::Listener(*place),
        }
    }

    /// A listener needs what it leads to, and its address, which is there before it and afterwards.
    fn rank(&self) -> u8 {
        match self {
            Self::Origins(_) => 0,
            Self::Address(_) => 1,
            Self::Port(..) => 2,
            Self::Listener(..) => 3,
        }
    }

    fn shared(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Origins(_) | Self::Port(..) | Self::Listener(..) => None,
        }
    }

    fn serves(&self) -> Option<Served> {
        match self {
            Self::Listener(ListenAddress { protocol, address, port }, _) => {
                Some(Served::Frontend(*protocol, FrontendAddr::Vip(*address, *port)))
            }
            Self::Origins(_) | Self::Port(..) | Self::Address(_) => None,
        }
    }

    /// Listeners refer to service ports.
    fn is_leaf(&self) -> bool {
        matches!(self, Self::Address(_) | Self::Listener(..))
    }
}

impl fmt::Display for BindObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Origins(Origins { local, pods }) => {
                f.write_str("origins: node")?;
                local.iter().try_for_each(|address| write!(f, " {address}"))?;
                pods.iter().try_for_each(|range| write!(f, ", pods {range}"))
            }
            Self::Port(id, spec) => write!(f, "port {id}{spec}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Listener(place, serves) => write!(f, "listener {place} to {serves}"),
        }
    }
}

// === impl BindKey ===

impl fmt::Display for BindKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Origins => f.write_str("origins"),
            Self::Port(id) => write!(f, "port {id}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Listener(place) => write!(f, "listener {place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::ObjectName;

    use super::*;

    #[test]
    fn an_object_has_a_key_and_may_serve_a_frontend_or_be_a_leaf() {
        let address = IpAddr::from([10, 96, 0, 10]);
        let place = ListenAddress { protocol: Protocol::Tcp, address, port: 80 };
        let (service, scope) = (ObjectName::new("demo", "web"), Scope::Cluster);
        let port = PortId { service, name: "http".into(), protocol: Protocol::Tcp, scope };
        let spec = PortSpec { affinity_seconds: None, pool: [].into(), kept: Default::default() };
        let scopes = ByOrigin { pod: Some(scope), host: Some(scope), other: None };
        let serves = Serves { port: port.clone(), scopes, sources: None };
        let served = Served::Frontend(Protocol::Tcp, FrontendAddr::Vip(address, 80));
        for (object, key, served, is_leaf) in [
            (BindObject::Origins(Origins::default()), "origins", None, false),
            (BindObject::Port(port, spec), "port demo/web:http/tcp/cluster", None, false),
            (BindObject::Address(address), "address 10.96.0.10", None, true),
            (BindObject::Listener(place, serves), "listener 10.96.0.10:80/tcp", Some(served), true),
        ] {
            assert_eq!((object.key().to_string().as_str(), object.serves(), object.is_leaf()), (key, served, is_leaf));
        }
    }
}
