//! Conntrack entries: the tuples, status, id and zone of one flow.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferry_family::Family;

use super::wire;
use crate::netlink::{Attributes, Malformed, MessageWriter, nfnetlink};

/// A conntrack entry: a flow of a protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// tuple of the original direction, before any translation
    pub original: Tuple,
    /// tuple of the reply direction: its source is the endpoint that the flow was translated to
    pub reply: Tuple,
    /// the IP protocol
    pub protocol: u8,
    /// status bits
    pub status: FlowStatus,
    /// the kernel's id (`CTA_ID`), computed from the entry's memory address and original tuple
    pub id: u32,
    /// conntrack zone, also one of a single direction; 0 unless zones are configured
    pub zone: u16,
}

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// source address
    pub source: IpAddr,
    /// destination address
    pub destination: IpAddr,
    /// source port
    pub source_port: u16,
    /// destination port
    pub destination_port: u16,
}

/// Status bits of a flow, `IPS_…` in `linux/netfilter/nf_conntrack_common.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowStatus(
    /// the bits
    pub u32,
);

/// The parts of a tuple while it is decoded.
#[derive(Default)]
struct Parts {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    protocol: Option<u8>,
    source_port: Option<u16>,
    destination_port: Option<u16>,
    zone: Option<u16>,
}

// === impl Entry ===

impl Entry {
    /// True if this is a later state of the other entry: the same flow, whatever its status is now.
    pub fn is_same_flow(&self, other: &Self) -> bool {
        Self { status: other.status, ..*self } == *other
    }

    /// True if a packet of the reply direction was seen.
    pub fn is_answered(&self) -> bool {
        self.status.contains(FlowStatus::SEEN_REPLY)
    }
}

// === impl FlowStatus ===

impl FlowStatus {
    /// a packet of the reply direction was seen
    pub const SEEN_REPLY: Self = Self(1 << 1);
    /// the destination was translated
    pub const DST_NAT: Self = Self(1 << 5);

    /// True if all these bits are set.
    pub const fn contains(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }
}

// === impl Tuple ===

impl Tuple {
    /// Source address and port.
    pub fn from(&self) -> SocketAddr {
        SocketAddr::new(self.source, self.source_port)
    }

    /// Destination address and port.
    pub fn to(&self) -> SocketAddr {
        SocketAddr::new(self.destination, self.destination_port)
    }

    /// The IP family of both addresses; that of the destination if they differ.
    pub fn family(&self) -> Family {
        Family::of(self.destination)
    }

    /// Writes the tuple as this attribute of an entry.
    pub(super) fn encode(&self, writer: &mut MessageWriter, kind: u16, protocol: u8) {
        use wire::tuple;
        let nest = writer.nest(kind);
        let addresses = writer.nest(tuple::IP);
        address(writer, self.source, [tuple::V4_SOURCE, tuple::V6_SOURCE]);
        address(writer, self.destination, [tuple::V4_DESTINATION, tuple::V6_DESTINATION]);
        writer.end_nest(addresses);
        let ports = writer.nest(tuple::PROTO);
        writer.attribute(tuple::PROTOCOL, &[protocol]);
        writer.attribute(tuple::SOURCE_PORT, &self.source_port.to_be_bytes());
        writer.attribute(tuple::DESTINATION_PORT, &self.destination_port.to_be_bytes());
        writer.end_nest(ports);
        writer.end_nest(nest);
    }
}

// === impl Parts ===

impl Parts {
    fn read(mut attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let mut parts = Self::default();
        while let Some(attribute) = attributes.next_attribute()? {
            match attribute.kind {
                wire::tuple::IP => parts.read_addresses(attribute.nested())?,
                wire::tuple::PROTO => parts.read_ports(attribute.nested())?,
                wire::tuple::ZONE => parts.zone = Some(attribute.be_u16()?),
                _ => {} // attributes of later kernels
            }
        }
        Ok(parts)
    }

    fn read_addresses(&mut self, mut attributes: Attributes<'_>) -> Result<(), Malformed> {
        use wire::tuple::{V4_DESTINATION, V4_SOURCE, V6_DESTINATION, V6_SOURCE};
        while let Some(attribute) = attributes.next_attribute()? {
            let place = match attribute.kind {
                V4_SOURCE | V6_SOURCE => &mut self.source,
                V4_DESTINATION | V6_DESTINATION => &mut self.destination,
                _ => continue, // attributes of later kernels
            };
            *place = Some(match attribute.kind {
                V4_SOURCE | V4_DESTINATION => Ipv4Addr::from(octets::<4>(attribute.value)?).into(),
                _ => Ipv6Addr::from(octets::<16>(attribute.value)?).into(),
            });
        }
        Ok(())
    }

    fn read_ports(&mut self, mut attributes: Attributes<'_>) -> Result<(), Malformed> {
        while let Some(attribute) = attributes.next_attribute()? {
            match attribute.kind {
                wire::tuple::PROTOCOL => self.protocol = Some(octets::<1>(attribute.value)?[0]),
                wire::tuple::SOURCE_PORT => self.source_port = Some(attribute.be_u16()?),
                wire::tuple::DESTINATION_PORT => self.destination_port = Some(attribute.be_u16()?),
                _ => {} // attributes of protocols without ports, such as ICMP ids
            }
        }
        Ok(())
    }

    fn tuple(&self) -> Option<Tuple> {
        Some(Tuple {
            source: self.source?,
            destination: self.destination?,
            source_port: self.source_port?,
            destination_port: self.destination_port?,
        })
    }
}

/// Decodes the payload of a message about an entry; `None` if its protocol has no ports.
///
/// # Errors
/// [`Malformed`] if the payload is no entry.
pub fn decode_entry(payload: &[u8]) -> Result<Option<Entry>, Malformed> {
    Ok(decode_with_timeout(payload)?.map(|(entry, _)| entry))
}

/// As [`decode_entry`], with the seconds until the entry ends unless a packet comes. Zero if the message has no timeout, as
/// for flows that the kernel forwards by a flow table.
///
/// # Errors
/// [`Malformed`] if the payload is no entry.
pub(super) fn decode_with_timeout(payload: &[u8]) -> Result<Option<(Entry, u32)>, Malformed> {
    let attributes = payload.get(nfnetlink::HEADER_LEN..).ok_or(Malformed("short conntrack message"))?;
    let mut attributes = Attributes::new(attributes);
    let (mut original, mut reply) = (Parts::default(), Parts::default());
    let (mut status, mut id, mut zone, mut timeout) = (FlowStatus::default(), None, None, 0);
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            wire::TUPLE_ORIGINAL => original = Parts::read(attribute.nested())?,
            wire::TUPLE_REPLY => reply = Parts::read(attribute.nested())?,
            wire::STATUS => status = FlowStatus(attribute.be_u32()?),
            wire::TIMEOUT => timeout = attribute.be_u32()?,
            wire::ID => id = Some(attribute.be_u32()?),
            wire::ZONE => zone = Some(attribute.be_u16()?),
            _ => {} // counters, marks: not used
        }
    }
    let protocol = original.protocol.ok_or(Malformed("conntrack entry without a protocol"))?;
    let zone = zone.or(original.zone).or(reply.zone).unwrap_or(0);
    let (Some(original), Some(reply)) = (original.tuple(), reply.tuple()) else { return Ok(None) };
    let id = id.ok_or(Malformed("conntrack entry without an id"))?;
    Ok(Some((Entry { original, reply, protocol, status, id, zone }, timeout)))
}

/// Writes an address; `kinds`: the attribute types for IPv4 and IPv6.
pub(super) fn address(writer: &mut MessageWriter, address: IpAddr, kinds: [u16; 2]) {
    let [v4, v6] = kinds;
    match address {
        IpAddr::V4(address) => writer.attribute(v4, &address.octets()),
        IpAddr::V6(address) => writer.attribute(v6, &address.octets()),
    }
}

fn octets<const N: usize>(value: &[u8]) -> Result<[u8; N], Malformed> {
    value.try_into().map_err(|_| Malformed("size of a tuple attribute"))
}
