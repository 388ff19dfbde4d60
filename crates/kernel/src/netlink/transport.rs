//! The socket below sessions and notifications, or a script in its place.

use std::io;

/// The socket below a session, or a script in tests.
pub trait Transport {
    /// Sends one datagram.
    ///
    /// # Errors
    /// The system's.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()>;

    /// Reads one datagram into `datagram`, in place of its content. False if there is none.
    ///
    /// # Errors
    /// `ENOBUFS` if datagrams were lost; others of the system.
    fn receive(&mut self, datagram: &mut Vec<u8>) -> io::Result<bool>;
}
