//! Filters of conntrack dumps.

use std::net::IpAddr;

use ferry_family::Family;

use super::entry::address;
use super::{Entry, FlowStatus, wire};
use crate::netlink::MessageWriter;

/// The entries that a dump returns. The kernel filters as far as it can, which saves writing and reading the others: by family
/// always, by the rest since Linux 5.8. The entries that it sends are filtered once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// IP family
    pub family: Family,
    /// IP protocol
    pub protocol: u8,
    /// original destination address, before translation
    pub destination: Option<IpAddr>,
    /// original destination port, before translation
    pub port: Option<u16>,
    /// only unreplied entries, without [`FlowStatus::SEEN_REPLY`]
    pub unanswered: bool,
}

// === impl Filter ===

impl Filter {
    /// True if the filter admits the entry.
    pub fn matches(&self, entry: &Entry) -> bool {
        entry.protocol == self.protocol
            && entry.original.family() == self.family
            && self.destination.is_none_or(|destination| destination == entry.original.destination)
            && self.port.is_none_or(|port| port == entry.original.destination_port)
            && !(self.unanswered && entry.is_answered())
    }

    /// Writes the attributes of a request by which the kernel filters. Flags select the parts of the tuple to compare; a
    /// selected part must be present, and ports are compared only together with the protocol.
    ///
    /// IPv6 addresses are not written: kernels (5.8 to 6.18 at least) invert the comparison and leave out exactly the requested
    /// entries. SCTP ports are not compared by kernels.
    pub(super) fn encode(&self, writer: &mut MessageWriter) {
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
            writer.be_u32(wire::STATUS_MASK, FlowStatus::SEEN_REPLY.0);
        }
    }
}
