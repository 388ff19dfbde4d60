//! Receives the notifications of all nf_tables changes in a network namespace.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{NftNotice, decode_events, wire};
use crate::netlink::{Notifications, Overrun};

/// Receive buffer of the monitor in bytes. Each of the kernel's datagrams counts with its overhead.
const RECEIVE_BYTES: usize = 4 << 20;

/// A listener to the changes of all tables in a network namespace. It has not joined when it is opened.
///
/// While any process listens, each element of every commit costs the committing process the time to write an event: leave before
/// a large commit, and compare afterwards for foreign changes made meanwhile.
#[derive(Debug)]
pub struct Monitor {
    notifications: Notifications,
}

// === impl Monitor ===

impl Monitor {
    /// Opens the listener in the network namespace of this thread.
    ///
    /// # Errors
    /// The system's error.
    pub fn open() -> io::Result<Self> {
        let notifications = Notifications::open(NETLINK_NETFILTER)?;
        notifications.set_receive_buffer(RECEIVE_BYTES)?;
        Ok(Self { notifications })
    }

    /// Sets how many bytes of unread notifications the kernel keeps, overhead included, before it reports an overrun.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> io::Result<()> {
        self.notifications.set_receive_buffer(bytes)
    }

    /// Starts to listen. Changes from here on are seen.
    ///
    /// # Errors
    /// The system's error; `EPERM` without `CAP_NET_ADMIN`.
    pub fn join(&mut self) -> io::Result<()> {
        self.notifications.join(wire::GROUP)
    }

    /// Stops listening. What had been notified by then can still be read.
    ///
    /// # Errors
    /// The system's error.
    pub fn leave(&mut self) -> io::Result<()> {
        self.notifications.leave(wire::GROUP)
    }

    /// Leaves out the notifications of what these sockets commit: they don't wake who waits for this one to be readable.
    ///
    /// # Errors
    /// The system's.
    pub fn ignore(&mut self, port_ids: &BTreeSet<u32>) -> io::Result<()> {
        self.notifications.ignore(port_ids)
    }

    /// The address of this socket.
    pub fn port_id(&self) -> u32 {
        self.notifications.port_id()
    }

    /// Reads all that is there, without waiting. A notification that cannot be decoded counts as lost.
    ///
    /// # Errors
    /// The system's error, except for an overrun.
    pub fn read(&mut self, each: &mut dyn FnMut(NftNotice)) -> io::Result<Overrun> {
        self.notifications.read(&mut |datagram| decode_events(datagram, each))
    }
}

impl AsFd for Monitor {
    /// To wait for it to be readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}
