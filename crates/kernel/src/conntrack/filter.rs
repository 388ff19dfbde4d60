//! Which entries are listed.

use std::net::IpAddr;

use ferry_family::Family;

use super::entry::address;
use super::{Entry, Status, wire};
use crate::netlink::Writer;

/// Which entries are wanted. The kernel leaves out what it can, so that they need not be written and read: by family always,
/// by the rest since Linux 5.8. What it lets through is looked at once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// of this family
    pub family: Family,
    /// of this IP protocol
    pub protocol: u8,
    /// sent to this address, before it was translated
    pub destination: Option<IpAddr>,
    /// sent to this port, before it was translated
    pub port: Option<u16>,
    /// only those that nobody has answered
    pub unanswered: bool,
}

// === impl Filter ===

impl Filter {
    /// Whether this is one of the wanted.
    pub fn matches(&self, entry: &Entry) -> bool {
        entry.protocol == self.protocol
            && entry.original.family() == self.family
            && self.destination.is_none_or(|destination| destination == entry.original.destination)
            && self.port.is_none_or(|port| port == entry.original.destination_port)
            && !(self.unanswered && entry.status.contains(Status::SEEN_REPLY))
    }

    /// Writes the attributes of a request by which the kernel filters. Flags say which parts of the tuple count; a part
    /// that counts must be there, and ports count only with the protocol.
    ///
    /// Not the address in IPv6: kernels compare it the wrong way round and leave out just what is asked for (from 5.8 to 6.18
    /// at least). The ports of SCTP they don't compare.
    pub(super) fn encode(&self, writer: &mut Writer) {
        use wire::{filter, tuple};
        let destination = self.destination.filter(|address| self.family == Family::V4 && address.is_ipv4());
        let mut flags = filter::F_PROTOCOL;
        let nest = writer.nest(wire::TUPLE_ORIGINAL);
        if let Some(destination) = destination {
            let addresses = writer.nest(tuple::IP);
            address(writer, destination, [tuple::V4_DESTINATION, tuple::V6_DESTINATION]);
            writer.end_nest(addresses);
            flags |= filter::F_DESTINATION;
        }
        let ports = writer.nest(tuple::PROTO);
        writer.attribute(tuple::PROTOCOL, &[self.protocol]);
        if let Some(port) = self.port {
            writer.attribute(tuple::DESTINATION_PORT, &port.to_be_bytes());
            flags |= filter::F_DESTINATION_PORT;
        }
        writer.end_nest(ports);
        writer.end_nest(nest);
        writer.nested_attribute(wire::FILTER, filter::ORIGINAL_FLAGS, &flags.to_ne_bytes());
        if self.unanswered {
            writer.be_u32(wire::STATUS, 0);
            writer.be_u32(wire::STATUS_MASK, Status::SEEN_REPLY.0);
        }
    }
}
