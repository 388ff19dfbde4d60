//! Destinations of virtual servers.

use std::net::SocketAddr;

use super::wire::{self, command, destination, message};
use crate::netlink::{Malformed, MessageWriter};

/// The settings of a destination of a virtual server. Its address and port identify it within the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpvsDestination {
    /// address and port
    pub address: SocketAddr,
    /// the share of connections that weighted schedulers give it, at most `i32::MAX`; 0: no new connections, existing ones stay
    pub weight: u32,
    /// how packets reach it
    pub forwarding: Forwarding,
    /// number of connections from which on it gets no new ones; 0: no limit
    pub upper_threshold: u32,
    /// number of connections below which it gets new ones again; 0: three quarters of the upper threshold
    pub lower_threshold: u32,
}

/// A forwarding method, `IP_VS_CONN_F_…`. Methods without a constant here are those of other programs, and are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Forwarding(
    /// the kernel's number, 0 to 7
    pub u32,
);

/// Connections of a destination at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// established and half-open ones of TCP, established ones of SCTP
    pub active: u32,
    /// others that have not timed out; all of UDP
    pub inactive: u32,
    /// clients that session affinity sends to it
    pub persistent: u32,
}

// === impl IpvsDestination ===

impl IpvsDestination {
    /// Writes the whole destination.
    pub(super) fn encode(&self, writer: &mut MessageWriter) {
        let nest = writer.nest(message::DEST);
        encode_address(writer, self.address);
        wire::number(writer, destination::FORWARDING, self.forwarding.0);
        wire::number(writer, destination::WEIGHT, self.weight);
        wire::number(writer, destination::UPPER_THRESHOLD, self.upper_threshold);
        wire::number(writer, destination::LOWER_THRESHOLD, self.lower_threshold);
        writer.end_nest(nest);
    }
}

// === impl Forwarding ===

impl Forwarding {
    /// destination NAT
    pub const MASQUERADE: Self = Self(0);

    /// The method of this name in `/proc/net/ip_vs`, where all that have no name of their own are shown as destination NAT; `None` of
    /// other names.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        // By their numbers.
        const NAMES: [&str; 4] = ["Masq", "Local", "Tunnel", "Route"];
        NAMES.iter().zip(0..).find_map(|(own, number)| (*own == name).then_some(Self(number)))
    }
}

/// Writes a reference to a destination.
pub(super) fn encode_reference(writer: &mut MessageWriter, address: SocketAddr) {
    let nest = writer.nest(message::DEST);
    encode_address(writer, address);
    writer.end_nest(nest);
}

fn encode_address(writer: &mut MessageWriter, address: SocketAddr) {
    wire::address(writer, destination::ADDRESS, address.ip());
    wire::port(writer, destination::PORT, address.port());
    wire::family(writer, destination::FAMILY, address.ip());
}

/// Decodes the payload of a message about a destination.
///
/// # Errors
/// [`Malformed`] if the payload is no destination.
pub fn decode_destination(payload: &[u8]) -> Result<(IpvsDestination, Connections), Malformed> {
    const INCOMPLETE: Malformed = Malformed("IPVS destination with a missing attribute");
    let mut attributes = wire::object(payload, command::NEW_DEST, message::DEST)?;
    let (mut family, mut address, mut port) = (None, None, None);
    let (mut weight, mut forwarding, mut upper, mut lower) = (None, None, None, None);
    let mut connections = Connections::default();
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            destination::FAMILY => family = wire::decode_family(&attribute)?,
            destination::ADDRESS => address = Some(attribute.value),
            destination::PORT => port = Some(attribute.be_u16()?),
            destination::FORWARDING => forwarding = Some(Forwarding(attribute.native_u32()?)),
            destination::WEIGHT => weight = Some(attribute.native_u32()?),
            destination::UPPER_THRESHOLD => upper = Some(attribute.native_u32()?),
            destination::LOWER_THRESHOLD => lower = Some(attribute.native_u32()?),
            destination::ACTIVE => connections.active = attribute.native_u32()?,
            destination::INACTIVE => connections.inactive = attribute.native_u32()?,
            destination::PERSISTENT => connections.persistent = attribute.native_u32()?,
            _ => {} // statistics; parameters of tunnels
        }
    }
    let address = wire::decode_address(family.ok_or(INCOMPLETE)?, address.ok_or(INCOMPLETE)?)?;
    let decoded = IpvsDestination {
        address: SocketAddr::new(address, port.ok_or(INCOMPLETE)?),
        weight: weight.ok_or(INCOMPLETE)?,
        forwarding: forwarding.ok_or(INCOMPLETE)?,
        upper_threshold: upper.ok_or(INCOMPLETE)?,
        lower_threshold: lower.ok_or(INCOMPLETE)?,
    };
    Ok((decoded, connections))
}
