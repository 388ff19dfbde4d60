//! Notifications of changes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{Element, Family, decode_events, wire};
use crate::netlink;

/// What the monitor keeps unread at most. Each of the kernel's datagrams counts with its overhead.
const RECEIVE_BYTES: usize = 4 << 20;

/// A listener to the changes of all tables in a network namespace. It has not joined when it is opened.
///
/// While anybody listens, each element of every commit costs its maker the time to write an event: leave before a large
/// commit of one's own, and compare afterwards what others may have done meanwhile.
#[derive(Debug)]
pub struct Monitor {
    socket: netlink::Socket,
    datagram: Vec<u8>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// whose socket made it, see [`super::Socket::port_id`]
    pub port_id: u32,
    /// `None`: a family other than these
    pub family: Option<Family>,
    /// the table
    pub table: String,
    /// what in it
    pub what: Changed,
}

/// What was made, changed or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// the table itself
    Table,
    /// a set or map
    Set(String),
    /// a chain
    Chain(String),
    /// a rule
    Rule {
        /// in this chain
        chain: String,
    },
    /// elements
    Elements {
        /// of this set or map
        set: String,
        /// in no order
        elements: Vec<Element>,
    },
    /// something that this crate does not write: a named object, a flow table
    Other,
}

/// Whether notifications were lost: anything may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Overrun(
    /// whether
    pub bool,
);

// === impl Monitor ===

impl Monitor {
    /// Opens the listener in the network namespace of this thread.
    ///
    /// # Errors
    /// What the system says.
    pub fn open() -> io::Result<Self> {
        let socket = netlink::Socket::open(NETLINK_NETFILTER)?;
        socket.set_receive_buffer(RECEIVE_BYTES)?;
        Ok(Self { socket, datagram: Vec::new() })
    }

    /// Sets how many bytes of unread notifications the kernel keeps, overhead included, before it reports an overrun.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> io::Result<()> {
        self.socket.set_receive_buffer(bytes)
    }

    /// Starts to listen. Changes from here on are seen.
    ///
    /// # Errors
    /// What the system says; `EPERM` without `CAP_NET_ADMIN`.
    pub fn join(&mut self) -> io::Result<()> {
        self.socket.join(wire::GROUP)
    }

    /// Stops listening. What had been notified by then can still be read.
    ///
    /// # Errors
    /// What the system says.
    pub fn leave(&mut self) -> io::Result<()> {
        self.socket.leave(wire::GROUP)
    }

    /// The address of this socket.
    pub fn port_id(&self) -> u32 {
        self.socket.port_id()
    }

    /// Reads all that is there, without waiting. A notification that cannot be decoded counts as lost.
    ///
    /// # Errors
    /// What the system says, an overrun excepted.
    pub fn read(&mut self, each: &mut dyn FnMut(Event)) -> io::Result<Overrun> {
        let mut overrun = Overrun(false);
        loop {
            match self.socket.receive(&mut self.datagram) {
                Ok(false) => return Ok(overrun),
                Ok(true) => overrun.0 |= decode_events(&self.datagram, each).is_err(),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => overrun.0 = true,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => overrun.0 = true,
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Monitor {
    /// To wait for it to be readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
