//! For tests and benchmarks: entries that no packet has made, and what becomes of them.

use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::wire::{self, msg};
use super::{Entry, decode_entry};
use crate::netlink::{Answer, End, Messages, Notifications, Session, flag, nfnetlink};

const TIMEOUT: u16 = 7;
/// the bit of the status that every entry has which can be found
const CONFIRMED: u32 = 1 << 3;
/// nfnetlink's multicast group of entries that end
const GROUP_DESTROY: u32 = 3;
/// Entries of one send.
const AT_ONCE: usize = 128;
const RECEIVE_BYTES: usize = 16 << 20;

/// A listener to the end of entries, by removal or by time, in the network namespace of the thread that opened it. Entries
/// that were made while nobody listened may end unheard.
#[derive(Debug)]
pub struct Endings {
    notifications: Notifications,
}

// === impl Endings ===

impl Endings {
    /// Starts to listen.
    ///
    /// # Errors
    /// What the system says.
    pub fn open() -> io::Result<Self> {
        let notifications = Notifications::open(NETLINK_NETFILTER)?;
        notifications.set_receive_buffer(RECEIVE_BYTES)?;
        notifications.join(GROUP_DESTROY)?;
        Ok(Self { notifications })
    }

    /// The entries that have ended since the last call.
    ///
    /// # Errors
    /// What the system says; `ENOBUFS` if some are missing.
    pub fn read(&mut self) -> io::Result<Vec<Entry>> {
        let mut ended = Vec::new();
        let overrun = self.notifications.read(&mut |datagram| {
            for message in Messages::new(datagram) {
                let message = message?;
                if message.kind == wire::kind(msg::DELETE) {
                    ended.extend(decode_entry(message.payload)?);
                }
            }
            Ok(())
        })?;
        if overrun.0 { Err(io::Error::from_raw_os_error(libc::ENOBUFS)) } else { Ok(ended) }
    }
}

/// Makes entries with these tuples, this protocol and this zone; the kernel gives the numbers, and the status is that of a
/// flow that nobody has answered, with the bits that may be set from outside (`SEEN_REPLY`).
///
/// # Errors
/// What the kernel says, for example that there is such an entry.
pub fn create(entries: impl IntoIterator<Item = Entry>, timeout: Duration) -> io::Result<()> {
    let mut session = Session::open(NETLINK_NETFILTER)?;
    let mut entries = entries.into_iter().peekable();
    let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
    while entries.peek().is_some() {
        let mut requests = session.requests();
        for entry in entries.by_ref().take(AT_ONCE) {
            requests.add(wire::kind(msg::NEW), flag::CREATE | flag::ACK, |writer| {
                nfnetlink::header(writer, entry.original.family().number());
                entry.original.encode(writer, wire::TUPLE_ORIGINAL, entry.protocol);
                entry.reply.encode(writer, wire::TUPLE_REPLY, entry.protocol);
                writer.be_u32(TIMEOUT, seconds);
                writer.be_u32(wire::STATUS, entry.status.0 | CONFIRMED);
                if entry.zone != 0 {
                    writer.attribute(wire::ZONE, &entry.zone.to_be_bytes());
                }
            });
        }
        session.exchange(&requests, End::Reply, &mut |answer| match answer {
            Answer::Refused(refusal) => Err(io::Error::from(refusal)),
            Answer::Object(_) => Ok(()),
        })?;
    }
    Ok(())
}
