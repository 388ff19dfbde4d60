//! Numbers of `linux/ip_vs.h`, and the encodings that servers and destinations share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferry_family::Family;

use crate::netlink::{Attribute, Attributes, Malformed, MessageWriter, generic};

/// `IPVS_GENL_NAME`
pub(super) const FAMILY_NAME: &str = "IPVS";

/// `IPVS_GENL_VERSION`
const VERSION: u8 = 1;

/// commands, `IPVS_CMD_…`; an answer has the command that would create its object
pub(super) mod command {
    pub(in crate::ipvs) const NEW_SERVICE: u8 = 1;
    pub(in crate::ipvs) const SET_SERVICE: u8 = 2;
    pub(in crate::ipvs) const DEL_SERVICE: u8 = 3;
    pub(in crate::ipvs) const GET_SERVICE: u8 = 4;
    pub(in crate::ipvs) const NEW_DEST: u8 = 5;
    pub(in crate::ipvs) const SET_DEST: u8 = 6;
    pub(in crate::ipvs) const DEL_DEST: u8 = 7;
    pub(in crate::ipvs) const GET_DEST: u8 = 8;
    pub(in crate::ipvs) const SET_CONFIG: u8 = 12;
    pub(in crate::ipvs) const GET_CONFIG: u8 = 13;
}

/// attributes of a message, `IPVS_CMD_ATTR_…`
pub(super) mod message {
    pub(in crate::ipvs) const SERVICE: u16 = 1;
    pub(in crate::ipvs) const DEST: u16 = 2;
    pub(in crate::ipvs) const TIMEOUT_TCP: u16 = 4;
    pub(in crate::ipvs) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(in crate::ipvs) const TIMEOUT_UDP: u16 = 6;
}

/// attributes of a server, `IPVS_SVC_ATTR_…`
pub(super) mod service {
    pub(in crate::ipvs) const FAMILY: u16 = 1;
    pub(in crate::ipvs) const PROTOCOL: u16 = 2;
    pub(in crate::ipvs) const ADDRESS: u16 = 3;
    pub(in crate::ipvs) const PORT: u16 = 4;
    pub(in crate::ipvs) const FIREWALL_MARK: u16 = 5;
    pub(in crate::ipvs) const SCHEDULER: u16 = 6;
    pub(in crate::ipvs) const FLAGS: u16 = 7;
    pub(in crate::ipvs) const TIMEOUT: u16 = 8;
    pub(in crate::ipvs) const NETMASK: u16 = 9;
    pub(in crate::ipvs) const STATISTICS: u16 = 10;
    pub(in crate::ipvs) const STATISTICS_64: u16 = 12;
}

/// attributes of a destination, `IPVS_DEST_ATTR_…`
pub(super) mod destination {
    pub(in crate::ipvs) const ADDRESS: u16 = 1;
    pub(in crate::ipvs) const PORT: u16 = 2;
    pub(in crate::ipvs) const FORWARDING: u16 = 3;
    pub(in crate::ipvs) const WEIGHT: u16 = 4;
    pub(in crate::ipvs) const UPPER_THRESHOLD: u16 = 5;
    pub(in crate::ipvs) const LOWER_THRESHOLD: u16 = 6;
    pub(in crate::ipvs) const ACTIVE: u16 = 7;
    pub(in crate::ipvs) const INACTIVE: u16 = 8;
    pub(in crate::ipvs) const PERSISTENT: u16 = 9;
    /// Linux 3.18 and later
    pub(in crate::ipvs) const FAMILY: u16 = 11;
}

/// attributes of statistics, `IPVS_STATS_ATTR_…`
pub(super) mod statistics {
    pub(in crate::ipvs) const CONNECTIONS: u16 = 1;
    pub(in crate::ipvs) const PACKETS_IN: u16 = 2;
    pub(in crate::ipvs) const PACKETS_OUT: u16 = 3;
    pub(in crate::ipvs) const BYTES_IN: u16 = 4;
    pub(in crate::ipvs) const BYTES_OUT: u16 = 5;
}

/// Writes the header of a message.
pub(super) fn header(writer: &mut MessageWriter, command: u8) {
    generic::header(writer, command, VERSION);
}

/// The attributes of an answer with this command.
pub(super) fn body(payload: &[u8], wanted: u8) -> Result<Attributes<'_>, Malformed> {
    let (command, attributes) = generic::body(payload)?;
    if command == wanted { Ok(attributes) } else { Err(Malformed("command of an IPVS answer")) }
}

/// The attributes of the nested object in an answer with this command.
pub(super) fn object(payload: &[u8], wanted: u8, kind: u16) -> Result<Attributes<'_>, Malformed> {
    let object = body(payload, wanted)?.find(kind)?.ok_or(Malformed("IPVS answer without an object"))?;
    Ok(object.nested())
}

pub(super) fn number(writer: &mut MessageWriter, kind: u16, value: u32) {
    writer.attribute(kind, &value.to_ne_bytes());
}

pub(super) fn family(writer: &mut MessageWriter, kind: u16, address: IpAddr) {
    writer.attribute(kind, &u16::from(Family::of(address).number()).to_ne_bytes());
}

pub(super) fn port(writer: &mut MessageWriter, kind: u16, port: u16) {
    writer.attribute(kind, &port.to_be_bytes());
}

/// Writes an address as `union nf_inet_addr`: 16 bytes, of which IPv4 uses the first four.
pub(super) fn address(writer: &mut MessageWriter, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            writer.attribute(kind, &[a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        IpAddr::V6(address) => writer.attribute(kind, &address.octets()),
    }
}

/// Decodes an attribute with an address family; `None` for one that is no IP family.
pub(super) fn decode_family(attribute: &Attribute<'_>) -> Result<Option<Family>, Malformed> {
    Ok(u8::try_from(attribute.native_u16()?).ok().and_then(Family::from_number))
}

/// Decodes `union nf_inet_addr`.
pub(super) fn decode_address(family: Family, value: &[u8]) -> Result<IpAddr, Malformed> {
    const SIZE: Malformed = Malformed("size of an IPVS address");
    Ok(match family {
        Family::V4 => Ipv4Addr::from(*value.first_chunk::<4>().ok_or(SIZE)?).into(),
        Family::V6 => Ipv6Addr::from(<[u8; 16]>::try_from(value).map_err(|_| SIZE)?).into(),
    })
}
