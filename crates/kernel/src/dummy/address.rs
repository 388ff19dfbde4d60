//! Addresses of a device: what the kernel reports, and requests to add, change and remove them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ferry_family::Family;
use ipnet::IpNet;
use netlink_packet_core::Parseable;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};

use super::wire::{self, address};
use crate::netlink::{Malformed, MessageWriter};

/// Bytes of `struct ifaddrmsg`.
const HEADER_LEN: usize = 8;

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAddress {
    /// index of the device
    pub device: u32,
    /// the address, and the length of its prefix: 32 or 128 bits for a service address
    pub network: IpNet,
    /// scope: 0 (`RT_SCOPE_UNIVERSE`), 253 (`RT_SCOPE_LINK`), 254 (`RT_SCOPE_HOST`). The kernel computes that of IPv6.
    pub scope: u8,
    /// `IFA_F_…`
    pub flags: u32,
    /// the rest of the time in which the kernel prefers it as a source; `None`: forever, as always with IPv4
    pub preferred: Option<Duration>,
}

// === impl DeviceAddress ===

impl DeviceAddress {
    /// True if the kernel can choose this address as the source of a connection to another machine: for IPv6, where there is
    /// an alternative to it.
    pub fn is_source(&self) -> bool {
        match self.network {
            IpNet::V4(_) => self.scope < wire::SCOPE_HOST,
            IpNet::V6(_) => self.flags & wire::FLAG_DEPRECATED == 0 && self.preferred != Some(Duration::ZERO),
        }
    }
}

/// Reads the payload of a message about an address (`RTM_NEWADDR`, `RTM_DELADDR`); `None` if it names none.
///
/// # Errors
/// [`Malformed`] if it is none, or its prefix is longer than the address.
pub fn decode_address(payload: &[u8]) -> Result<Option<DeviceAddress>, Malformed> {
    payload.get(..HEADER_LEN).ok_or(Malformed("short address message"))?; // the codec takes it for granted
    let message = AddressMessage::parse(payload).map_err(|_| Malformed("address message"))?;
    let (mut local, mut remote, mut preferred) = (None, None, None);
    let mut flags = u32::from(message.header.flags.bits());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => remote = Some(*ip),
            AddressAttribute::Flags(all) => flags = all.bits(),
            AddressAttribute::CacheInfo(times) => {
                let finite = Some(times.ifa_preferred).filter(|&seconds| seconds != wire::FOREVER);
                preferred = finite.map(|seconds| Duration::from_secs(seconds.into()));
            }
            _ => {} // label, broadcast
        }
    }
    let Some(ip) = local.or(remote) else { return Ok(None) };
    let network = IpNet::new(ip, message.header.prefix_len).map_err(|_| Malformed("prefix length"))?;
    let scope = message.header.scope.into();
    Ok(Some(DeviceAddress { device: message.header.index, network, scope, flags, preferred }))
}

/// Writes a service address: not a source of the node's own connections.
pub(super) fn encode_service(writer: &mut MessageWriter, device: u32, ip: IpAddr) {
    encode_host(writer, device, ip);
    if ip.is_ipv6() {
        writer.attribute(address::FLAGS, &wire::FLAG_NO_DAD.to_ne_bytes());
        let (preferred, valid) = (0_u32, wire::FOREVER);
        let mut cache_info = [0; 16];
        for (place, byte) in cache_info.iter_mut().zip([preferred, valid].into_iter().flat_map(u32::to_ne_bytes)) {
            *place = byte;
        }
        writer.attribute(address::CACHE_INFO, &cache_info);
    }
}

/// Writes an IPv4 address of scope `host` with a prefix that service addresses don't have, and without a route for that.
pub(super) fn encode_stand_in(writer: &mut MessageWriter, device: u32, ip: Ipv4Addr) {
    encode_header(writer, Family::V4, wire::STAND_IN_PREFIX, wire::SCOPE_HOST, device);
    encode_ip(writer, ip.into());
    writer.attribute(address::FLAGS, &wire::FLAG_NO_PREFIX_ROUTE.to_ne_bytes());
}

/// Writes the reference to an address of a device. The kernel compares the prefix, too.
pub(super) fn encode_reference(writer: &mut MessageWriter, device: u32, network: IpNet) {
    encode_header(writer, Family::of_net(network), network.prefix_len(), wire::SCOPE_UNIVERSE, device);
    encode_ip(writer, network.addr());
}

/// Writes the header of a request to list the addresses of a device.
pub(super) fn encode_filter(writer: &mut MessageWriter, device: u32, family: Family) {
    encode_header(writer, family, 0, wire::SCOPE_UNIVERSE, device);
}

fn encode_host(writer: &mut MessageWriter, device: u32, ip: IpAddr) {
    let network = IpNet::from(ip);
    encode_header(writer, Family::of(ip), network.prefix_len(), wire::SCOPE_HOST, device);
    encode_ip(writer, ip);
}

fn encode_header(writer: &mut MessageWriter, family: Family, prefix_length: u8, scope: u8, device: u32) {
    let [d0, d1, d2, d3] = device.to_ne_bytes();
    writer.raw(&[family.number(), prefix_length, 0, scope, d0, d1, d2, d3]);
}

fn encode_ip(writer: &mut MessageWriter, ip: IpAddr) {
    let mut write = |octets: &[u8]| {
        writer.attribute(address::LOCAL, octets);
        writer.attribute(address::ADDRESS, octets);
    };
    match ip {
        IpAddr::V4(ip) => write(&ip.octets()),
        IpAddr::V6(ip) => write(&ip.octets()),
    }
}
