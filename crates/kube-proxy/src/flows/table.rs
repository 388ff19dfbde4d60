//! The kernel as the cleaner uses it: conntrack table and local addresses.

use std::io;
use std::net::IpAddr;

use ferry_kernel::conntrack::{Deletion, Entry, Error, Filter, Socket};
use ferry_kernel::link;

/// The conntrack table, and this machine's addresses.
pub(super) trait ConntrackTable {
    /// The node's addresses, without those of loopback and of these devices.
    fn local_addresses(&mut self, own_devices: &[&str]) -> io::Result<Vec<IpAddr>>;
    /// Lists all entries that match.
    fn dump(&mut self, filter: &Filter, each: &mut dyn FnMut(&Entry)) -> Result<(), Error>;
    /// Deletes exactly these entries.
    fn delete(&mut self, entries: &[Entry]) -> Deletion;
}

impl ConntrackTable for Socket {
    fn local_addresses(&mut self, own_devices: &[&str]) -> io::Result<Vec<IpAddr>> {
        Ok(link::addresses(own_devices)?
            .into_iter()
            .filter(|local| !local.loopback)
            .map(|local| local.address)
            .collect())
    }

    fn dump(&mut self, filter: &Filter, each: &mut dyn FnMut(&Entry)) -> Result<(), Error> {
        if Self::dump_few(self, filter, each)? { Ok(()) } else { Self::dump(self, filter, each) }
    }

    fn delete(&mut self, entries: &[Entry]) -> Deletion {
        Self::delete(self, entries)
    }
}
