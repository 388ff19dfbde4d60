//! Virtual servers: identity, settings and statistics.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ferry_family::Family;

use super::wire::{self, command, message, service, statistics};
use crate::netlink::{Attribute, Attributes, Malformed, MessageWriter};

/// Protocols of virtual servers, by their IP protocol numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum IpvsProtocol {
    /// `IPPROTO_TCP`
    Tcp = 6,
    /// `IPPROTO_UDP`
    Udp = 17,
    /// `IPPROTO_SCTP`
    Sctp = 132,
}

/// The frontend by which the kernel identifies a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId {
    /// virtual address
    pub address: IpAddr,
    /// virtual port; 0 for all ports, which the kernel accepts of persistent servers
    pub port: u16,
    /// protocol
    pub protocol: IpvsProtocol,
}

/// The name of a scheduler, such as `rr`: 1 to 15 letters, digits, `_` and `-`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scheduler {
    /// unused bytes are 0
    bytes: [u8; Self::MAX_LEN],
}

/// Flags of a server, `IP_VS_SVC_F_…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flags(
    /// the bits
    pub u32,
);

/// The settings of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpvsServer {
    /// what identifies it
    pub id: ServerId,
    /// chooses the destination of a new connection
    pub scheduler: Scheduler,
    /// flags, without the kernel's own
    pub flags: Flags,
    /// duration of session affinity after the last connection, in seconds; used with [`Flags::PERSISTENT`] only
    pub timeout_seconds: u32,
    /// the part of a client's address by which persistent servers recognise it. Of IPv4 a mask; of IPv6 the length of a prefix,
    /// 1 to 128. [`ServerId::host_netmask`] for the whole address
    pub netmask: u32,
}

/// Counters of a virtual server since its creation. Deletion ends them; an edit does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// scheduled connections
    pub connections: u64,
    /// packets from clients
    pub packets_in: u64,
    /// packets to clients
    pub packets_out: u64,
    /// bytes from clients
    pub bytes_in: u64,
    /// bytes to clients
    pub bytes_out: u64,
}

/// The attributes of a server while they are decoded.
#[derive(Default)]
struct Parts<'a> {
    family: Option<Family>,
    protocol: Option<IpvsProtocol>,
    address: Option<&'a [u8]>,
    port: Option<u16>,
    has_mark: bool,
    scheduler: Option<Scheduler>,
    flags: Option<Flags>,
    timeout: Option<u32>,
    netmask: Option<&'a [u8]>,
}

// === impl IpvsProtocol ===

impl IpvsProtocol {
    /// All protocols.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The IP protocol number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The name, as `ipvsadm` and `/proc/net/ip_vs` show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// The protocol of this number; `None` for all others.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.number() == number)
    }
}

impl fmt::Display for IpvsProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl ServerId ===

impl ServerId {
    /// The netmask by which each client address is a client of its own: the one of `ipvsadm`.
    pub const fn host_netmask(&self) -> u32 {
        match self.address {
            IpAddr::V4(_) => u32::MAX,
            IpAddr::V6(_) => 128,
        }
    }

    /// Writes the attributes by which the kernel finds the server.
    fn encode_within(&self, writer: &mut MessageWriter) {
        wire::family(writer, service::FAMILY, self.address);
        writer.attribute(service::PROTOCOL, &u16::from(self.protocol.number()).to_ne_bytes());
        wire::address(writer, service::ADDRESS, self.address);
        wire::port(writer, service::PORT, self.port);
    }

    /// Writes a reference to the server.
    pub(super) fn encode(&self, writer: &mut MessageWriter) {
        let nest = writer.nest(message::SERVICE);
        self.encode_within(writer);
        writer.end_nest(nest);
    }
}

impl fmt::Display for ServerId {
    /// As `TCP 10.96.0.1:80`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, SocketAddr::new(self.address, self.port))
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Most characters of a name: `IP_VS_SCHEDNAME_MAXLEN` without the final NUL.
    pub const MAX_LEN: usize = 15;

    /// The scheduler of this name; `None` if no scheduler can have it.
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; Self::MAX_LEN];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        (!name.is_empty() && name.bytes().all(is_allowed)).then_some(Self { bytes })
    }

    /// The name.
    pub fn name(&self) -> &str {
        // Only `new` makes one, of ASCII.
        std::str::from_utf8(&self.bytes).unwrap_or_default().trim_end_matches('\0')
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

// === impl Flags ===

impl Flags {
    /// session affinity: connections of a client stay with its destination
    pub const PERSISTENT: Self = Self(0x1);
    /// each packet is scheduled on its own (UDP)
    pub const ONE_PACKET: Self = Self(0x4);
    /// first flag of the scheduler; `sh` and `mh`: another destination if the chosen one has weight 0
    pub const SCHEDULER_1: Self = Self(0x8);
    /// second flag of the scheduler; `sh` and `mh`: the source port is a part of the hash
    pub const SCHEDULER_2: Self = Self(0x10);
    /// third flag of the scheduler
    pub const SCHEDULER_3: Self = Self(0x20);

    /// `IP_VS_SVC_F_HASHED`: the server is in the kernel's table, as all servers that are read; the kernel sets it
    const HASHED: u32 = 0x2;

    /// True if all these bits are set.
    pub const fn contains(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// Writes `struct ip_vs_flags`: the flags, and a mask of the flags that they replace.
    fn encode(self, writer: &mut MessageWriter) {
        let [f0, f1, f2, f3] = (self.0 & !Self::HASHED).to_ne_bytes();
        let [m0, m1, m2, m3] = u32::MAX.to_ne_bytes();
        writer.attribute(service::FLAGS, &[f0, f1, f2, f3, m0, m1, m2, m3]);
    }

    fn decode(attribute: &Attribute<'_>) -> Result<Self, Malformed> {
        let ([f0, f1, f2, f3], _) = attribute.value.split_first_chunk().ok_or(Malformed("size of IPVS flags"))?;
        Ok(Self(u32::from_ne_bytes([*f0, *f1, *f2, *f3]) & !Self::HASHED))
    }
}

// === impl IpvsServer ===

impl IpvsServer {
    /// Writes the whole server.
    pub(super) fn encode(&self, writer: &mut MessageWriter) {
        let nest = writer.nest(message::SERVICE);
        self.id.encode_within(writer);
        writer.text(service::SCHEDULER, self.scheduler.name());
        self.flags.encode(writer);
        wire::number(writer, service::TIMEOUT, self.timeout_seconds);
        // a mask in network byte order; a length in the machine's
        match self.id.address {
            IpAddr::V4(_) => writer.be_u32(service::NETMASK, self.netmask),
            IpAddr::V6(_) => wire::number(writer, service::NETMASK, self.netmask),
        }
        writer.end_nest(nest);
    }
}

// === impl Statistics ===

impl Statistics {
    /// Decodes both the older format, with counters of 32 and 64 bits, and the newer one.
    fn decode(mut attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let mut decoded = Self::default();
        while let Some(attribute) = attributes.next_attribute()? {
            let counter = match attribute.kind {
                statistics::CONNECTIONS => &mut decoded.connections,
                statistics::PACKETS_IN => &mut decoded.packets_in,
                statistics::PACKETS_OUT => &mut decoded.packets_out,
                statistics::BYTES_IN => &mut decoded.bytes_in,
                statistics::BYTES_OUT => &mut decoded.bytes_out,
                _ => continue, // rates
            };
            *counter = match <[u8; 8]>::try_from(attribute.value) {
                Ok(bytes) => u64::from_ne_bytes(bytes),
                Err(_) => attribute.native_u32()?.into(),
            };
        }
        Ok(decoded)
    }
}

// === impl Parts ===

impl<'a> Parts<'a> {
    fn read(mut attributes: Attributes<'a>) -> Result<Self, Malformed> {
        let mut parts = Self::default();
        while let Some(attribute) = attributes.next_attribute()? {
            match attribute.kind {
                service::FAMILY => parts.family = wire::decode_family(&attribute)?,
                service::PROTOCOL => {
                    let number = u8::try_from(attribute.native_u16()?).ok();
                    parts.protocol = number.and_then(IpvsProtocol::from_number);
                }
                service::ADDRESS => parts.address = Some(attribute.value),
                service::PORT => parts.port = Some(attribute.be_u16()?),
                service::FIREWALL_MARK => parts.has_mark = true,
                service::SCHEDULER => parts.scheduler = Scheduler::new(&attribute.text()),
                service::FLAGS => parts.flags = Some(Flags::decode(&attribute)?),
                service::TIMEOUT => parts.timeout = Some(attribute.native_u32()?),
                service::NETMASK => parts.netmask = Some(attribute.value),
                _ => {} // statistics, the persistence engine; attributes of later kernels
            }
        }
        Ok(parts)
    }

    fn server(&self, family: Family, protocol: IpvsProtocol) -> Result<IpvsServer, Malformed> {
        const INCOMPLETE: Malformed = Malformed("IPVS server with a missing attribute");
        let address = wire::decode_address(family, self.address.ok_or(INCOMPLETE)?)?;
        let netmask = self.netmask.ok_or(INCOMPLETE)?.try_into().map_err(|_| Malformed("size of an IPVS netmask"))?;
        Ok(IpvsServer {
            id: ServerId { address, port: self.port.ok_or(INCOMPLETE)?, protocol },
            scheduler: self.scheduler.ok_or(Malformed("IPVS server without a scheduler's name"))?,
            flags: self.flags.ok_or(INCOMPLETE)?,
            timeout_seconds: self.timeout.ok_or(INCOMPLETE)?,
            netmask: match family {
                Family::V4 => u32::from_be_bytes(netmask),
                Family::V6 => u32::from_ne_bytes(netmask),
            },
        })
    }
}

/// Decodes the payload of a message about a virtual server; `None` if that serves a firewall mark, or another protocol or
/// address family. Its statistics are most of the message, and are left alone.
///
/// # Errors
/// [`Malformed`] if the payload is no virtual server.
pub fn decode_server(payload: &[u8]) -> Result<Option<IpvsServer>, Malformed> {
    let parts = Parts::read(wire::object(payload, command::NEW_SERVICE, message::SERVICE)?)?;
    let (Some(family), Some(protocol), false) = (parts.family, parts.protocol, parts.has_mark) else { return Ok(None) };
    Ok(Some(parts.server(family, protocol)?))
}

/// Decodes the statistics in the payload of a message about a virtual server, with counters of 64 bits where the kernel has them;
/// zeros if there are none.
///
/// # Errors
/// [`Malformed`] if the payload is no virtual server.
pub fn decode_statistics(payload: &[u8]) -> Result<Statistics, Malformed> {
    let mut attributes = wire::object(payload, command::NEW_SERVICE, message::SERVICE)?;
    let (mut of_32, mut of_64) = (None, None);
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            service::STATISTICS => of_32 = Some(Statistics::decode(attribute.nested())?),
            service::STATISTICS_64 => of_64 = Some(Statistics::decode(attribute.nested())?),
            _ => {} // the server's settings
        }
    }
    Ok(of_64.or(of_32).unwrap_or_default())
}
