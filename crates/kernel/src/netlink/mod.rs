//! Netlink: messages and attributes to and from bytes, the socket, requests and their answers, and notifications.
//!
//! [`Writer`] appends to one growing buffer and notes what is too long for the format. [`Messages`] and [`Attributes`] read without copying and without trusting any length.
//! A protocol is a [`Session`] for requests and [`Notifications`] for what the kernel reports unasked; both work over any [`Transport`].

mod error;
pub(crate) mod nfnetlink;
mod notifications;
mod reader;
mod session;
mod socket;
mod transport;
mod writer;

#[cfg(test)]
mod tests;

pub use error::{MessageError, Reply, decode_reply};
pub use notifications::{Notifications, Overrun};
pub use reader::{Attribute, Attributes, Malformed, Message, Messages};
pub use session::{Answer, End, Interrupted, Objects, Requests, Session, Unanswered};
pub use socket::Socket;
pub use transport::Transport;
pub use writer::{MessageMark, NestMark, Writer};

/// Bytes of a message header.
pub const HEADER_LEN: usize = 16;

/// Message and request flags, `linux/netlink.h`.
pub mod flag {
    /// it is a request
    pub const REQUEST: u16 = 0x1;
    /// answer even a success
    pub const ACK: u16 = 0x4;
    /// a dump that something changed under
    pub const DUMP_INTR: u16 = 0x10;
    /// all objects, not one
    pub const DUMP: u16 = 0x300;
    /// make it if it is not there
    pub const CREATE: u16 = 0x400;
    /// behind the others
    pub const APPEND: u16 = 0x800;
    /// an answer that leaves the request's payload out
    pub(crate) const CAPPED: u16 = 0x100;
    /// an answer with extended-acknowledgement attributes
    pub(crate) const ACK_TLVS: u16 = 0x200;
}

/// Message types below the protocols' own, `linux/netlink.h`.
pub mod control {
    /// an acknowledgement or an error
    pub const ERROR: u16 = 2;
    /// the end of a dump
    pub const DONE: u16 = 3;
}

/// Rounds up to the four bytes at which messages and attributes are aligned.
pub(crate) fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}
