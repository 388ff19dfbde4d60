//! Counters that rules of `iptables` count with (`-m nfacct`), by nfnetlink_acct.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::netlink::{self, Messages, Reply, Writer, control, decode_reply, flag};

#[cfg(test)]
mod tests;

/// nfnetlink's subsystem of these counters, in the high byte of a message type.
const SUBSYSTEM: u8 = 7;
/// The header that follows the netlink header: family, version, resource.
const HEADER_LEN: usize = 4;
const SEQUENCE: u32 = 1;

/// Numbers of `linux/netfilter/nfnetlink_acct.h`.
mod msg {
    pub(super) const NEW: u8 = 0;
    pub(super) const GET: u8 = 1;
}

mod attribute {
    pub(super) const NAME: u16 = 1;
    pub(super) const PACKETS: u16 = 2;
}

/// Makes a counter of this name in the network namespace of the calling thread, from 0; one that is there goes on as it is.
///
/// # Errors
/// What the system says: that this kernel has no such counters, that the name is too long (31 bytes at most) or empty, no
/// permission.
pub fn create(name: &str) -> io::Result<()> {
    match ask(msg::NEW, flag::CREATE, name) {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// How many packets a counter of the calling thread's network namespace has counted; `None` if there is none of this name.
///
/// # Errors
/// What the system says, as [`create`].
pub fn packets(name: &str) -> io::Result<Option<u64>> {
    match ask(msg::GET, 0, name) {
        Ok(found) => Ok(found),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

const fn kind(message: u8) -> u16 {
    u16::from_be_bytes([SUBSYSTEM, message])
}

/// One message and what is answered: the count of the counter that the answer is about, if it is about one.
fn ask(message: u8, flags: u16, name: &str) -> io::Result<Option<u64>> {
    let mut writer = Writer::new();
    let mark = writer.message(kind(message), flag::REQUEST | flag::ACK | flags, SEQUENCE);
    writer.raw(&[0; HEADER_LEN]);
    writer.text(attribute::NAME, name);
    writer.end_message(mark);
    let mut socket = netlink::Socket::open(NETLINK_NETFILTER)?;
    socket.send(writer.bytes())?;
    let (mut datagram, mut found) = (Vec::new(), None);
    while socket.receive(&mut datagram)? {
        for message in Messages::new(&datagram) {
            let message = message?;
            if message.sequence != SEQUENCE {
                continue;
            }
            if message.kind == control::ERROR {
                return match decode_reply(&message)? {
                    Some(Reply::Refused(refusal)) => Err(refusal.into()),
                    Some(Reply::Done(_)) | None => Ok(found),
                };
            }
            if message.kind == kind(msg::NEW) {
                found = count(message.payload)?;
            }
        }
    }
    Err(io::Error::other("the kernel did not answer"))
}

/// The packets of a counter.
fn count(payload: &[u8]) -> Result<Option<u64>, netlink::Malformed> {
    let attributes = payload.get(HEADER_LEN..).ok_or(netlink::Malformed("short nfnetlink_acct header"))?;
    let packets = netlink::Attributes::new(attributes).find(attribute::PACKETS)?;
    packets.map(|packets| packets.be_u64()).transpose()
}
