//! Counters that rules of `iptables` count with (`-m nfacct`), by nfnetlink_acct.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::errno::ErrorClass;
use crate::netlink::{Attributes, Malformed, Session, flag, nfnetlink};

#[cfg(test)]
mod tests;

/// nfnetlink's subsystem of these counters, in the high byte of a message type.
const SUBSYSTEM: u8 = 7;

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
        Err(error) if matches!(ErrorClass::of(&error), ErrorClass::InUse | ErrorClass::Exists) => Ok(()),
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
        Err(error) if ErrorClass::of(&error) == ErrorClass::Missing => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends one message and returns the count of the counter that the answer is about, if it is about one.
fn ask(message: u8, flags: u16, name: &str) -> io::Result<Option<u64>> {
    let mut session = Session::open(NETLINK_NETFILTER)?;
    let answer = session.request(nfnetlink::kind(SUBSYSTEM, message), flags, |writer| {
        nfnetlink::header(writer, 0);
        writer.text(attribute::NAME, name);
    })?;
    let counter = answer.of(nfnetlink::kind(SUBSYSTEM, msg::NEW)).last();
    Ok(counter.map(count).transpose()?.flatten())
}

/// The packets of a counter.
fn count(payload: &[u8]) -> Result<Option<u64>, Malformed> {
    let attributes = payload.get(nfnetlink::HEADER_LEN..).ok_or(Malformed("short nfnetlink_acct header"))?;
    let packets = Attributes::new(attributes).find(attribute::PACKETS)?;
    packets.map(|packets| packets.be_u64()).transpose()
}
