//! Routes of redirected connections: from the destination that the client has dialled to the port that serves it.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt::Debug;
use std::hash::BuildHasher as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use crate::port::Port;

/// Parts of [`Routes`], each with a lock of its own: a part that grows copies its entries while the lock is held.
const PARTS: usize = 16;

/// Finds the port of a connection that netfilter has redirected to a gate. Called by the relay's threads for each connection, so
/// it must not block.
pub trait Route: Debug + Send + Sync {
    /// The port that serves connections to this destination; `None` refuses them.
    fn route(&self, destination: SocketAddr) -> Option<Arc<Port>>;
}

/// A destination of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// One address and port.
    Address(IpAddr, u16),
    /// A port at any address that has no [`Destination::Address`] with this port, for example a node port. Rules decide which
    /// addresses are redirected.
    AnyAddress(u16),
}

/// The ports of destinations. One entry changes at a time, in constant time, while connections are routed by the others.
///
/// The port number of a gate must not be an [`Destination::AnyAddress`]: a connection that was redirected from an address to the same
/// address and port looks like one to the gate itself, which is refused.
#[derive(Debug, Default)]
pub struct Routes {
    parts: [RwLock<HashMap<Destination, Arc<Port>>>; PARTS],
    hasher: RandomState,
}

// === impl Destination ===

impl From<SocketAddr> for Destination {
    /// The exact address. An IPv4 address that is mapped into IPv6 counts as IPv4.
    fn from(address: SocketAddr) -> Self {
        Self::Address(address.ip().to_canonical(), address.port())
    }
}

// === impl Routes ===

impl Routes {
    /// No routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Routes new connections to this destination to the port; those that are established stay. Returns the port that the
    /// destination had.
    pub fn insert(&self, destination: Destination, port: Arc<Port>) -> Option<Arc<Port>> {
        self.part(destination)?.write().unwrap_or_else(PoisonError::into_inner).insert(destination, port)
    }

    /// Refuses new connections to this destination, or leaves them to [`Destination::AnyAddress`]; those that are established stay.
    /// Returns the port that the destination had.
    pub fn remove(&self, destination: Destination) -> Option<Arc<Port>> {
        self.part(destination)?.write().unwrap_or_else(PoisonError::into_inner).remove(&destination)
    }

    /// The number of destinations.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.read().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// True if there is no destination.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn find(&self, destination: Destination) -> Option<Arc<Port>> {
        self.part(destination)?.read().unwrap_or_else(PoisonError::into_inner).get(&destination).cloned()
    }

    fn part(&self, destination: Destination) -> Option<&RwLock<HashMap<Destination, Arc<Port>>>> {
        // The remainder is below the number of parts, so there always is one.
        self.parts.get(usize::try_from(self.hasher.hash_one(destination) % PARTS as u64).ok()?)
    }
}

impl Route for Routes {
    fn route(&self, destination: SocketAddr) -> Option<Arc<Port>> {
        self.find(destination.into()).or_else(|| self.find(Destination::AnyAddress(destination.port())))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::balancer::Balancer;

    fn port(name: u8) -> Arc<Port> {
        Arc::new(Port::new(format!("{name}"), Arc::new(Balancer::new(None, std::time::Duration::ZERO)), 1))
    }

    fn address(host: u8, port: u16) -> SocketAddr {
        ([192, 0, 2, host], port).into()
    }

    #[test]
    fn addresses_mapped_into_ipv6_and_scopes_are_ignored() {
        let routes = Routes::new();
        assert!(routes.is_empty());
        for text in ["192.0.2.1:80", "[fe80::1]:80"] {
            assert!(routes.insert(text.parse::<SocketAddr>().unwrap().into(), port(1)).is_none());
        }
        for text in ["192.0.2.1:80", "[::ffff:192.0.2.1]:80", "[fe80::1%3]:80"] {
            assert!(routes.route(text.parse().unwrap()).is_some(), "{text}");
        }
        assert!(routes.route("[fe80::2]:80".parse().unwrap()).is_none());
    }

    proptest! {
        /// After any history the routes are those of a map, and an exact destination comes before any address.
        #[test]
        fn routes_are_those_of_a_map(
            history in prop::collection::vec((0u8..4, 1u16..5, prop::option::of(0u8..9)), 0..60),
        ) {
            let (routes, mut model) = (Routes::new(), BTreeMap::new());
            for (host, number, name) in history {
                // The first host stands for any address.
                let destination =
                    if host == 0 { Destination::AnyAddress(number) } else { address(host, number).into() };
                let names = |port: Option<Arc<Port>>| port.map(|port| port.name().to_owned());
                let (before, modelled) = match name {
                    Some(name) => (routes.insert(destination, port(name)), model.insert(destination, name.to_string())),
                    None => (routes.remove(destination), model.remove(&destination)),
                };
                prop_assert_eq!(names(before), modelled);
                prop_assert_eq!(routes.len(), model.len());
                for (host, number) in (1..5).flat_map(|host| (1..6).map(move |number| (host, number))) {
                    let modelled =
                        model.get(&address(host, number).into()).or_else(|| model.get(&Destination::AnyAddress(number)));
                    prop_assert_eq!(names(routes.route(address(host, number))), modelled.cloned());
                }
            }
            prop_assert_eq!(routes.len(), model.len());
        }
    }
}
