//! Service addresses on an interface of the machine, for a mode that listens on them: added and removed by name of the interface,
//! and removed also after a crash.
//!
//! - [`InterfaceAddresses`] adds, removes and lists the addresses of an interface. On Windows `windows::addresses::IpHelper` does, in
//!   tests `MemoryInterfaces` (feature `testing`).
//! - [`OwnedAddresses`] keeps an interface's service addresses as they are wanted, and records them in a file.

#[cfg(any(test, feature = "testing"))]
mod memory;
mod owned;
mod record;

use std::io;
use std::net::IpAddr;

#[cfg(any(test, feature = "testing"))]
pub use memory::MemoryInterfaces;
pub use owned::{OwnedAddresses, Replaced};
pub use record::AddressRecord;

/// The addresses of the machine's interfaces.
pub trait InterfaceAddresses {
    /// Adds an address, which the system never takes as the source of packets.
    ///
    /// # Errors
    /// `NotFound` without such an interface, `Unsupported` if the system can't do that, or the system's error.
    fn add(&mut self, interface: &str, address: IpAddr) -> io::Result<AddressEffect>;

    /// Removes an address.
    ///
    /// # Errors
    /// As those of [`Self::add`].
    fn remove(&mut self, interface: &str, address: IpAddr) -> io::Result<AddressEffect>;

    /// The addresses of an interface.
    ///
    /// # Errors
    /// `NotFound` without such an interface, or the system's error.
    fn list(&mut self, interface: &str) -> io::Result<Vec<LocalAddress>>;
}

/// The effect of adding or removing an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressEffect {
    /// It was added, or removed.
    Made,
    /// It was there before, or absent.
    None,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// the address
    pub address: IpAddr,
    /// the system never takes it as the source of packets, as all that [`InterfaceAddresses::add`] adds
    pub never_source: bool,
}

#[cfg(test)]
mod tests;
