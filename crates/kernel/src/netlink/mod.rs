//! Netlink: encoding and decoding of messages and attributes, sockets, requests with their answers, and notifications.
//!
//! [`MessageWriter`] appends to one growing buffer and records attributes that are too long for the format. [`Messages`] and
//! [`Attributes`] read without copying and without trusting any length. A protocol uses a [`Session`] for requests and
//! [`Notifications`] for multicast messages; both work over any [`Transport`].

mod error;
pub(crate) mod generic;
pub(crate) mod nfnetlink;
mod notifications;
mod reader;
#[cfg(test)]
pub(crate) mod scripted;
mod session;
mod socket;
#[cfg(feature = "testing")]
pub mod tap;
mod transport;
mod wait;
mod writer;

#[cfg(test)]
mod tests;

pub use error::{MessageError, Reply, decode_reply};
pub use notifications::{Notifications, Overrun};
pub use reader::{Attribute, Attributes, Malformed, Message, Messages};
pub use session::{AnswerEnd, AnswerMessage, AnswerObjects, Interrupted, Requests, Session, Unanswered};
pub use socket::NetlinkSocket;
pub use transport::Transport;
pub use wait::{wait_readable, wait_readable_for};
pub use writer::{MessageMark, MessageWriter, NestMark};

/// Bytes of a message header.
pub const HEADER_LEN: usize = 16;

/// Message and request flags, `linux/netlink.h`.
pub mod flag {
    /// the message is a request
    pub const REQUEST: u16 = 0x1;
    /// acknowledge success, too
    pub const ACK: u16 = 0x4;
    /// the listed objects changed during the dump
    pub const DUMP_INTR: u16 = 0x10;
    /// list all objects instead of one
    pub const DUMP: u16 = 0x300;
    /// replace the object if it exists
    pub const REPLACE: u16 = 0x100;
    /// fail if the object exists; for some protocols also: fail if the one to delete does not
    pub const EXCL: u16 = 0x200;
    /// create the object if it does not exist
    pub const CREATE: u16 = 0x400;
    /// add the object after the existing ones
    pub const APPEND: u16 = 0x800;
    /// the answer does not echo the request's payload
    pub(crate) const CAPPED: u16 = 0x100;
    /// the answer has extended-acknowledgement attributes
    pub(crate) const ACK_TLVS: u16 = 0x200;
}

/// Message types common to all protocols, `linux/netlink.h`.
pub mod control {
    /// an acknowledgement or an error
    pub const ERROR: u16 = 2;
    /// the end of a dump
    pub const DONE: u16 = 3;
}

/// Rounds a length up to the alignment of messages and attributes, four bytes.
pub(crate) fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}
