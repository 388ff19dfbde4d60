//! Named packet counters of `iptables` rules (`-m nfacct`), over nfnetlink_acct.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::errno::ErrorClass;
use crate::netlink::{Attributes, Malformed, Session, flag, nfnetlink};

#[cfg(test)]
mod tests;

/// `NFNL_SUBSYS_ACCT`, the high byte of a message type.
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

/// Creates a counter of this name, at 0, in the network namespace of the calling thread; an existing one keeps its count.
///
/// # Errors
/// The system's error if this kernel lacks nfnetlink_acct, if the name is too long (31 bytes at most) or empty, or without
/// permission.
pub fn create(name: &str) -> io::Result<()> {
    match query(msg::NEW, flag::CREATE, name) {
        Ok(_) => Ok(()),
        Err(error) if matches!(ErrorClass::of(&error), ErrorClass::InUse | ErrorClass::Exists) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Reads the packet count of a counter in the calling thread's network namespace; `None` if there is none of this name.
///
/// # Errors
/// As [`create`].
pub fn packets(name: &str) -> io::Result<Option<u64>> {
    match query(msg::GET, 0, name) {
        Ok(found) => Ok(found),
        Err(error) if ErrorClass::of(&error) == ErrorClass::Missing => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends one message and returns the packet count of the counter in the answer, if there is one.
fn query(message: u8, flags: u16, name: &str) -> io::Result<Option<u64>> {
    let mut session = Session::open(NETLINK_NETFILTER)?;
    let answer = session.request(nfnetlink::kind(SUBSYSTEM, message), flags, |writer| {
        nfnetlink::header(writer, 0);
        writer.text(attribute::NAME, name);
    })?;
    let counter = answer.of(nfnetlink::kind(SUBSYSTEM, msg::NEW)).last();
    Ok(counter.map(count).transpose()?.flatten())
}

/// Decodes the packet count of a counter.
fn count(payload: &[u8]) -> Result<Option<u64>, Malformed> {
    let attributes = payload.get(nfnetlink::HEADER_LEN..).ok_or(Malformed("short nfnetlink_acct header"))?;
    let packets = Attributes::new(attributes).find(attribute::PACKETS)?;
    packets.map(|packets| packets.be_u64()).transpose()
}
