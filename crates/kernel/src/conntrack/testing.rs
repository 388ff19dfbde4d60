//! Support of tests and benchmarks: creates conntrack entries without packets, and reports their end.

use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::wire::{self, msg};
use super::{Entry, decode_entry};
use crate::netlink::{AnswerEnd, AnswerMessage, Messages, Notifications, Session, flag, nfnetlink};

/// `IPS_CONFIRMED`, the status bit of every entry in the table
const CONFIRMED: u32 = 1 << 3;
/// `NFNLGRP_CONNTRACK_DESTROY`, nfnetlink's multicast group for the end of entries
const GROUP_DESTROY: u32 = 3;
/// Maximum number of entries created with one `send`.
const CREATIONS_PER_SEND: usize = 128;
const RECEIVE_BYTES: usize = 16 << 20;

/// A subscription to the end of entries, by deletion or timeout, in the network namespace in which it was opened. The end of
/// entries that were created without any subscription may not be reported.
#[derive(Debug)]
pub struct DestroyMonitor {
    notifications: Notifications,
}

// === impl DestroyMonitor ===

impl DestroyMonitor {
    /// Subscribes.
    ///
    /// # Errors
    /// The system's error.
    pub fn open() -> io::Result<Self> {
        let notifications = Notifications::open(NETLINK_NETFILTER)?;
        notifications.set_receive_buffer(RECEIVE_BYTES)?;
        notifications.join(GROUP_DESTROY)?;
        Ok(Self { notifications })
    }

    /// Returns the entries that have ended since the last call.
    ///
    /// # Errors
    /// The system's error; `ENOBUFS` if notifications were lost.
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

/// Creates entries with these tuples, protocols and zones. The kernel assigns the ids, and the status is that of an unreplied
/// flow plus those bits of the given one that the kernel accepts (`SEEN_REPLY`).
///
/// # Errors
/// The kernel's error, for example for an entry that exists.
pub fn create(entries: impl IntoIterator<Item = Entry>, timeout: Duration) -> io::Result<()> {
    let mut session = Session::open(NETLINK_NETFILTER)?;
    let mut entries = entries.into_iter().peekable();
    let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
    while entries.peek().is_some() {
        let mut requests = session.requests();
        for entry in entries.by_ref().take(CREATIONS_PER_SEND) {
            requests.add(wire::kind(msg::NEW), flag::CREATE | flag::ACK, |writer| {
                nfnetlink::header(writer, entry.original.family().number());
                entry.original.encode(writer, wire::TUPLE_ORIGINAL, entry.protocol);
                entry.reply.encode(writer, wire::TUPLE_REPLY, entry.protocol);
                writer.be_u32(wire::TIMEOUT, seconds);
                writer.be_u32(wire::STATUS, entry.status.0 | CONFIRMED);
                if entry.zone != 0 {
                    writer.attribute(wire::ZONE, &entry.zone.to_be_bytes());
                }
            });
        }
        session.exchange(&requests, AnswerEnd::Reply, &mut |answer| match answer {
            AnswerMessage::Refused(refusal) => Err(io::Error::from(refusal)),
            AnswerMessage::Object(_) => Ok(()),
        })?;
    }
    Ok(())
}
