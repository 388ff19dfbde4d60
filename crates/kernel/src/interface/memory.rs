//! Interfaces in memory: what tests use instead of the machine's.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{AddressEffect, InterfaceAddresses, LocalAddress};

/// Interfaces and their addresses. Clones share them, as processes of one machine do.
#[derive(Clone, Debug, Default)]
pub struct MemoryInterfaces(Arc<Mutex<Interfaces>>);

#[derive(Debug, Default)]
struct Interfaces {
    /// addresses of each interface, with `never_source`
    addresses: BTreeMap<String, BTreeMap<IpAddr, bool>>,
    /// addresses that can be neither added nor removed
    refused: BTreeSet<IpAddr>,
}

// === impl MemoryInterfaces ===

impl MemoryInterfaces {
    /// An interface with addresses that other programs have added.
    #[must_use]
    pub fn with(self, interface: &str, addresses: &[IpAddr]) -> Self {
        let addresses = addresses.iter().map(|&address| (address, false)).collect();
        self.locked().addresses.insert(interface.to_owned(), addresses);
        self
    }

    /// From now on, these addresses, and no others, can be neither added nor removed.
    pub fn refuse(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.locked().refused = addresses.into_iter().collect();
    }

    fn locked(&self) -> MutexGuard<'_, Interfaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the addresses of an interface, unless this one is refused.
    fn change<T>(
        &self,
        interface: &str,
        address: Option<IpAddr>,
        change: impl FnOnce(&mut BTreeMap<IpAddr, bool>) -> T,
    ) -> io::Result<T> {
        let mut interfaces = self.locked();
        if address.is_some_and(|address| interfaces.refused.contains(&address)) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        interfaces.addresses.get_mut(interface).map(change).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl InterfaceAddresses for MemoryInterfaces {
    fn add(&mut self, interface: &str, address: IpAddr) -> io::Result<AddressEffect> {
        self.change(interface, Some(address), |addresses| {
            let is_absent = !addresses.contains_key(&address);
            addresses.entry(address).or_insert(true);
            if is_absent { AddressEffect::Made } else { AddressEffect::None }
        })
    }

    fn remove(&mut self, interface: &str, address: IpAddr) -> io::Result<AddressEffect> {
        self.change(interface, Some(address), |addresses| {
            if addresses.remove(&address).is_some() { AddressEffect::Made } else { AddressEffect::None }
        })
    }

    fn list(&mut self, interface: &str) -> io::Result<Vec<LocalAddress>> {
        self.change(interface, None, |addresses| {
            addresses.iter().map(|(&address, &never_source)| LocalAddress { address, never_source }).collect()
        })
    }
}
