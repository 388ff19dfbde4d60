//! The transport of sessions and notifications: a netlink socket, or a scripted peer in tests.

use std::io;

/// Sends and receives netlink datagrams.
pub trait Transport {
    /// Sends one datagram.
    ///
    /// # Errors
    /// The system's error.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()>;

    /// Reads one datagram, replacing the content of `datagram`. False if there is none.
    ///
    /// # Errors
    /// `ENOBUFS` if datagrams were lost; other errors of the system.
    fn receive(&mut self, datagram: &mut Vec<u8>) -> io::Result<bool>;
}
