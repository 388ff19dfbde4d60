//! The associations of one listener, by client.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// The sender of datagrams: the client's address, and the local address it sends to if the listener serves several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct UdpClient {
    pub(super) address: SocketAddr,
    pub(super) local: Option<IpAddr>,
}

/// The associations, of type `A`. Used by the listener's thread alone, so its lock is free.
#[derive(Debug)]
pub(super) struct AssociationTable<A> {
    associations: Mutex<HashMap<UdpClient, Arc<A>>>,
}

// === impl AssociationTable ===

impl<A> AssociationTable<A> {
    /// An empty table.
    pub(super) fn new() -> Self {
        Self { associations: Mutex::new(HashMap::new()) }
    }

    pub(super) fn find(&self, client: &UdpClient) -> Option<Arc<A>> {
        self.associations.lock().unwrap_or_else(PoisonError::into_inner).get(client).cloned()
    }

    pub(super) fn insert(&self, client: UdpClient, association: Arc<A>) {
        self.associations.lock().unwrap_or_else(PoisonError::into_inner).insert(client, association);
    }

    /// Removes an association, unless the client has another one meanwhile.
    pub(super) fn remove(&self, client: &UdpClient, association: &A) {
        let mut associations = self.associations.lock().unwrap_or_else(PoisonError::into_inner);
        if associations.get(client).is_some_and(|present| std::ptr::eq(Arc::as_ptr(present), association)) {
            associations.remove(client);
        }
        // Tables that were large give their memory back.
        if associations.capacity() > 1024 && associations.len() < associations.capacity() / 8 {
            associations.shrink_to_fit();
        }
    }

    /// All associations.
    pub(super) fn all(&self) -> Vec<Arc<A>> {
        self.associations.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
