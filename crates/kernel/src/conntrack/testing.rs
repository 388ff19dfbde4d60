//! For tests and benchmarks: entries that no packet has made, and what becomes of them.

use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::wire::{self, msg};
use super::{Entry, decode_entry};
use crate::netlink::{self, Messages, Reply, Writer, control, decode_reply, flag};

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
    socket: netlink::Socket,
    datagram: Vec<u8>,
}

// === impl Endings ===

impl Endings {
    /// Starts to listen.
    ///
    /// # Errors
    /// What the system says.
    pub fn open() -> io::Result<Self> {
        let socket = netlink::Socket::open(NETLINK_NETFILTER)?;
        socket.set_receive_buffer(RECEIVE_BYTES)?;
        socket.join(GROUP_DESTROY)?;
        Ok(Self { socket, datagram: Vec::new() })
    }

    /// The entries that have ended since the last call.
    ///
    /// # Errors
    /// What the system says; `ENOBUFS` if some are missing.
    pub fn read(&mut self) -> io::Result<Vec<Entry>> {
        let mut ended = Vec::new();
        while self.socket.receive(&mut self.datagram)? {
            for message in Messages::new(&self.datagram) {
                let message = message?;
                if message.kind == wire::kind(msg::DELETE) {
                    ended.extend(decode_entry(message.payload)?);
                }
            }
        }
        Ok(ended)
    }
}

/// Makes entries with these tuples, this protocol and this zone; the kernel gives the numbers, and the status is that of a
/// flow that nobody has answered, with the bits that may be set from outside (`SEEN_REPLY`).
///
/// # Errors
/// What the kernel says, for example that there is such an entry.
pub fn create(entries: impl IntoIterator<Item = Entry>, timeout: Duration) -> io::Result<()> {
    let mut socket = netlink::Socket::open(NETLINK_NETFILTER)?;
    let mut entries = entries.into_iter().peekable();
    let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
    let mut sequence = 0;
    while entries.peek().is_some() {
        let mut writer = Writer::new();
        for entry in entries.by_ref().take(AT_ONCE) {
            sequence += 1;
            let flags = flag::REQUEST | flag::CREATE | flag::ACK;
            let mark = wire::begin(&mut writer, msg::NEW, entry.original.family().number(), flags, sequence);
            entry.original.encode(&mut writer, wire::TUPLE_ORIGINAL, entry.protocol);
            entry.reply.encode(&mut writer, wire::TUPLE_REPLY, entry.protocol);
            writer.be_u32(TIMEOUT, seconds);
            writer.be_u32(wire::STATUS, entry.status.0 | CONFIRMED);
            if entry.zone != 0 {
                writer.attribute(wire::ZONE, &entry.zone.to_be_bytes());
            }
            writer.end_message(mark);
        }
        socket.send(writer.bytes())?;
        answers(&socket, sequence)?;
    }
    Ok(())
}

/// Reads answers up to the one of this number.
fn answers(socket: &netlink::Socket, last: u32) -> io::Result<()> {
    let mut datagram = Vec::new();
    while socket.receive(&mut datagram)? {
        for message in Messages::new(&datagram) {
            let message = message?;
            match (message.kind, decode_reply(&message)?) {
                (control::ERROR, Some(Reply::Refused(refusal))) => return Err(refusal.into()),
                _ if message.sequence == last => return Ok(()),
                _ => {} // an acknowledgement of one before
            }
        }
    }
    Err(io::Error::other("the kernel did not answer"))
}
