//! The parts of the relay that the engines of a process share.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferry_api::object::Family;
use ferry_relay::{Destination, Inheritance, ListenerId, OpenSocket, Relay, SocketName};

use crate::datagrams::DatagramEndpoints;
use crate::readings::PortDirectory;

/// The parts of the relay that the engines of a process share.
#[derive(Clone, Debug)]
pub struct SharedRelay {
    /// the relay, whose threads run
    pub relay: Arc<Relay>,
    /// listening sockets of the process before
    pub inheritance: Arc<Inheritance>,
    /// the ports that listeners prefer: the same ones after a restart, so that clients of UDP go on
    pub ports: RangeInclusive<u16>,
    /// the most connections, and the most associations, of one service port
    pub limit_per_port: usize,
    /// the listeners
    pub names: ListenerNames,
    /// the service ports of all engines
    pub directory: PortDirectory,
    /// what is behind the UDP listeners of all engines
    pub datagrams: DatagramEndpoints,
}

/// The listeners of a process, each with an identity of its own, by the name under which its socket is handed over.
#[derive(Clone, Debug, Default)]
pub struct ListenerNames {
    next: Arc<AtomicU64>,
    names: Arc<Mutex<BTreeMap<ListenerId, SocketName>>>,
}

// === impl ListenerNames ===

impl ListenerNames {
    /// The identity of a new listener.
    pub(crate) fn next(&self) -> ListenerId {
        ListenerId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn insert(&self, id: ListenerId, name: SocketName) {
        self.lock().insert(id, name);
    }

    /// A listener without a name isn't handed over.
    pub(crate) fn remove(&self, id: ListenerId) {
        self.lock().remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ListenerId, SocketName>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl SharedRelay ===

impl SharedRelay {
    /// Duplicates of the sockets of all open listeners, each with its name, for the next process.
    ///
    /// # Errors
    /// The system's error if descriptors are exhausted.
    pub fn sockets(&self) -> io::Result<Vec<(String, OpenSocket)>> {
        let sockets = self.relay.sockets()?;
        let names = self.names.lock();
        let named = |(id, socket)| Some((names.get(&id)?.to_string(), socket));
        Ok(sockets.into_iter().filter_map(named).collect())
    }

    /// Closes the sockets of the process before that no listener of this family has taken: their Services are gone.
    pub fn forget_inherited(&self, family: Family) {
        let any = SocketAddr::new(unspecified(family), 0);
        for name in self.inheritance.names() {
            if is_of(&name, family) {
                drop(self.inheritance.bind(&name, any, false));
            }
        }
    }

    /// Closes a listener.
    pub(crate) fn remove(&self, id: ListenerId) {
        self.names.remove(id);
        self.relay.remove(id);
    }
}

/// True if the socket of this name is of this family.
pub(crate) fn is_of(name: &SocketName, family: Family) -> bool {
    match name {
        SocketName::Gate(label) => label.starts_with(&format!("{}-", family_word(family))),
        SocketName::Listener(_, Destination::Address(address, _)) => Family::of(*address) == family,
        // This mode has none, whose family would be unknown.
        SocketName::Listener(_, Destination::AnyAddress(_)) => true,
    }
}

/// True if a socket of this name is of the way `redirect`: the table leads to it.
pub fn is_gate(name: &str) -> bool {
    matches!(name.parse(), Ok(SocketName::Gate(_)))
}

/// The address of a socket for all addresses of the machine.
pub(crate) const fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// The beginning of the labels of a family's gates.
pub(crate) const fn family_word(family: Family) -> &'static str {
    match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    }
}

#[cfg(test)]
pub(crate) mod tests;
