//! The kernel as the cleaner uses it: conntrack table and local addresses.

use std::io;
use std::net::IpAddr;

use ferry_kernel::conntrack::{ConntrackError, ConntrackSocket, Deletion, Entry, Filter};
use ferry_kernel::{link, sysctl};

/// The conntrack table, and this machine's addresses.
pub(super) trait ConntrackTable {
    /// The node's addresses, without those of loopback and of these devices.
    fn local_addresses(&mut self, own_devices: &[&str]) -> io::Result<Vec<IpAddr>>;
    /// Lists all entries that match.
    fn dump(&mut self, filter: &Filter, each: &mut dyn FnMut(&Entry)) -> Result<(), ConntrackError>;
    /// Deletes exactly these entries.
    fn delete(&mut self, entries: &[Entry]) -> Deletion;
    /// The timeout that a packet sets for a UDP flow without an answer, in seconds.
    fn unanswered_timeout(&mut self) -> io::Result<u32>;
    /// The seconds until each of these entries ends unless a packet comes; without those that have ended.
    fn timeouts(&mut self, entries: &[Entry], each: &mut dyn FnMut(&Entry, u32)) -> Result<(), ConntrackError>;
    /// Sets these seconds, until the next packet.
    fn set_timeouts(&mut self, entries: &[(Entry, u32)]) -> Result<(), ConntrackError>;
}

impl ConntrackTable for ConntrackSocket {
    fn local_addresses(&mut self, own_devices: &[&str]) -> io::Result<Vec<IpAddr>> {
        Ok(link::addresses(own_devices)?
            .into_iter()
            .filter(|local| !local.loopback)
            .map(|local| local.address)
            .collect())
    }

    fn dump(&mut self, filter: &Filter, each: &mut dyn FnMut(&Entry)) -> Result<(), ConntrackError> {
        if Self::dump_few(self, filter, each)? { Ok(()) } else { Self::dump(self, filter, each) }
    }

    fn delete(&mut self, entries: &[Entry]) -> Deletion {
        Self::delete(self, entries)
    }

    fn unanswered_timeout(&mut self) -> io::Result<u32> {
        let seconds = sysctl::read("net.netfilter.nf_conntrack_udp_timeout")?;
        seconds.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("a timeout of {seconds:?} s")))
    }

    fn timeouts(&mut self, entries: &[Entry], each: &mut dyn FnMut(&Entry, u32)) -> Result<(), ConntrackError> {
        Self::timeouts(self, entries, each)
    }

    fn set_timeouts(&mut self, entries: &[(Entry, u32)]) -> Result<(), ConntrackError> {
        Self::set_timeouts(self, entries)
    }
}
