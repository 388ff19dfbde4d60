//! Lists sets of ipset (`linux/netfilter/ipset/ip_set.h`) and their members, creates sets of networks, swaps and destroys sets, over
//! nfnetlink.
//!
//! A kernel without ipset answers `EINVAL`, which [`ErrorClass::lacks_subsystem`]
//! includes. Error codes from 4096 on are ipset's own: `IPSET_ERR_BUSY` is returned as `EBUSY`, `IPSET_ERR_EXIST_SETNAME2` (which means that
//! the second set of a swap is missing) as `ENOENT`, `IPSET_ERR_PROTOCOL` and
//! `IPSET_ERR_FIND_TYPE` as of kind `Unsupported`, and all others with their number in the text.

mod nets;

use std::io;
use std::net::IpAddr;

use ferry_family::Family;
use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::errno::{self, ErrorClass};
use crate::netlink::{AnswerObjects, Attribute, Attributes, Malformed, MessageWriter, Session, flag, nfnetlink};

pub use nets::{create_nets, has_nets};

#[cfg(test)]
mod tests;

/// `NFNL_SUBSYS_IPSET`, the high byte of a message type.
const SUBSYSTEM: u8 = 6;
/// `IPSET_PROTOCOL_MIN`: the oldest version, which all kernels since 2.6.39 understand.
const PROTOCOL: u8 = 6;
/// `IPSET_MAXNAMELEN` without the final NUL.
const NAME_BYTES: usize = 31;
/// Maximum number of attempts at a list that changes meanwhile.
const LIST_ATTEMPTS: u32 = 8;
/// `IPSET_FLAG_LIST_HEADER`
const LIST_HEADER: u32 = 1 << 2;
/// The types whose members are decoded.
const READABLE: [&str; 3] = ["bitmap:port", "hash:ip,port", NETS];
/// The type of sets of networks.
pub const NETS: &str = "hash:net";

/// Commands, the low byte of a message type.
mod msg {
    pub(super) const CREATE: u8 = 2;
    pub(super) const DESTROY: u8 = 3;
    pub(super) const SWAP: u8 = 6;
    pub(super) const LIST: u8 = 7;
    pub(super) const ADD: u8 = 9;
    pub(super) const TYPE: u8 = 13;
}

/// Attributes of a message.
mod attribute {
    pub(super) const PROTOCOL: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const TYPE: u16 = 3;
    /// the second name of a swap
    pub(super) const NAME_2: u16 = 3;
    pub(super) const REVISION: u16 = 4;
    pub(super) const FAMILY: u16 = 5;
    pub(super) const FLAGS: u16 = 6;
    /// properties of a set; within [`MEMBERS`], a member
    pub(super) const DATA: u16 = 7;
    pub(super) const MEMBERS: u16 = 8;
    /// required beside [`MEMBERS`] of a request
    pub(super) const LINE: u16 = 9;
}

/// Attributes of a set's properties and of members.
mod data {
    pub(super) const IP: u16 = 1;
    /// length of a prefix
    pub(super) const CIDR: u16 = 3;
    pub(super) const PORT: u16 = 4;
    pub(super) const PROTOCOL: u16 = 7;
    pub(super) const HASH_SIZE: u16 = 18;
    pub(super) const MOST_MEMBERS: u16 = 19;
    pub(super) const ELEMENTS: u16 = 24;
    pub(super) const REFERENCES: u16 = 25;
    /// within [`IP`]
    pub(super) const IPV4: u16 = 1;
    /// within [`IP`]
    pub(super) const IPV6: u16 = 2;
}

/// Ipset's own error codes.
mod code {
    pub(super) const FIRST: i32 = 4096;
    pub(super) const PROTOCOL: i32 = 4097;
    pub(super) const FIND_TYPE: i32 = 4098;
    pub(super) const BUSY: i32 = 4100;
    /// the second set of a swap is missing
    pub(super) const MISSING_2: i32 = 4101;
}

/// A set, without its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// name
    pub name: String,
    /// type, such as `hash:ip,port`
    pub type_name: String,
    /// family of the members; `None` where the type has no addresses, such as `bitmap:port`
    pub family: Option<Family>,
    /// number of rules and of other sets that refer to it: as long as there is one, it can't be destroyed
    pub references: u32,
    /// number of members; `None` before Linux 4.10
    pub elements: Option<u32>,
}

/// A member of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    /// of a set of type `bitmap:port`
    Port(u16),
    /// of a set of type `hash:ip,port`
    Socket {
        /// the address
        address: IpAddr,
        /// the IP protocol
        protocol: u8,
        /// the port
        port: u16,
    },
    /// of a set of type `hash:net`
    Net(IpNet),
}

/// Lists all sets in the network namespace of the calling thread, in no order.
///
/// # Errors
/// The system's error if this kernel lacks ipset, or without permission.
pub fn sets() -> io::Result<Vec<Set>> {
    let listed = list(&|writer| writer.be_u32(attribute::FLAGS, LIST_HEADER))?;
    let sets = listed.of(kind(msg::LIST)).map(decode_set);
    Ok(sets.filter_map(Result::transpose).collect::<Result<_, _>>()?)
}

/// Lists all sets as [`sets`] does; none if the kernel lacks ipset.
///
/// # Errors
/// The system's error, for example without permission.
pub fn sets_if_any() -> io::Result<Vec<Set>> {
    match sets() {
        Err(error) if ErrorClass::of(&error).lacks_subsystem() => Ok(Vec::new()),
        sets => sets,
    }
}

/// The result of [`destroy_all`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destroyed {
    /// number of sets that were destroyed
    pub count: usize,
    /// the first one that stays, since a rule or another set refers to it
    pub referred: Option<String>,
}

/// Destroys these sets; those that are missing count as destroyed by another program. Goes on behind one that something refers to.
///
/// # Errors
/// As [`destroy`], but for sets that are missing or referred to.
pub fn destroy_all(names: impl IntoIterator<Item = String>) -> io::Result<Destroyed> {
    let mut destroyed = Destroyed::default();
    for name in names {
        match destroy(&name) {
            Ok(()) => destroyed.count += 1,
            Err(error) => match ErrorClass::of(&error) {
                ErrorClass::Missing => {}
                ErrorClass::InUse => drop(destroyed.referred.get_or_insert(name)),
                _ => return Err(error),
            },
        }
    }
    Ok(destroyed)
}

/// Lists the members of a set of type `bitmap:port`, `hash:ip,port` or `hash:net`, in no order.
///
/// # Errors
/// `ENOENT` if there is no set of this name; `InvalidInput` if it is of another type, or the name isn't one of a set; otherwise
/// as [`sets`].
pub fn members(name: &str) -> io::Result<Vec<Member>> {
    check(name)?;
    let listed = list(&|writer| writer.text(attribute::NAME, name))?;
    let mut members = Vec::new();
    for message in listed.of(kind(msg::LIST)) {
        if let Some(Set { type_name, .. }) = decode_set(message)?
            && !READABLE.contains(&type_name.as_str())
        {
            let text = format!("ipset {name} is of type {type_name}, whose members are not decoded");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        decode_members(message, &mut |member| members.push(member))?;
    }
    Ok(members)
}

/// Destroys the set of this name with its members.
///
/// # Errors
/// `ENOENT` if there is no set of this name; `EBUSY` while a rule or another set refers to it; `InvalidInput` if the name isn't
/// one of a set; otherwise as [`sets`].
pub fn destroy(name: &str) -> io::Result<()> {
    // The kernel would take a message without a name as the destruction of all sets.
    check(name)?;
    let mut session = Session::open(NETLINK_NETFILTER)?;
    // Newer kernels report a missing set only with this flag.
    let answer = session.request(kind(msg::DESTROY), flag::EXCL, |writer| {
        encode_header(writer);
        writer.text(attribute::NAME, name);
    });
    answer.map(drop).map_err(translate)
}

/// Exchanges the names, and with them the references, of two sets of the same type and family: rules that refer to one refer to the
/// other's members from then on.
///
/// # Errors
/// `ENOENT` if one of them is missing; `InvalidInput` if a name isn't one of a set; otherwise as [`sets`].
pub fn swap(one: &str, other: &str) -> io::Result<()> {
    check(one)?;
    check(other)?;
    let mut session = Session::open(NETLINK_NETFILTER)?;
    let answer = session.request(kind(msg::SWAP), 0, |writer| {
        encode_header(writer);
        writer.text(attribute::NAME, one);
        writer.text(attribute::NAME_2, other);
    });
    answer.map(drop).map_err(translate)
}

/// Decodes the properties of a set from a message of a list. `None` if it has only further members of the set before.
///
/// # Errors
/// [`Malformed`].
pub fn decode_set(payload: &[u8]) -> Result<Option<Set>, Malformed> {
    let (mut name, mut type_name, mut family, mut properties) = (None, None, None, None);
    let mut attributes = message_attributes(payload)?;
    while let Some(found) = attributes.next_attribute()? {
        match found.kind {
            attribute::NAME => name = Some(found.text().into_owned()),
            attribute::TYPE => type_name = Some(found.text().into_owned()),
            attribute::FAMILY => family = Family::from_number(byte(&found)?),
            attribute::DATA => properties = Some(found),
            _ => {} // protocol, revision, index, members
        }
    }
    let name = name.ok_or(Malformed("ipset without a name"))?;
    let Some(type_name) = type_name else { return Ok(None) };
    let number = |kind| properties.as_ref().map_or(Ok(None), |found| found.nested().find(kind));
    let references = number(data::REFERENCES)?.ok_or(Malformed("ipset without a reference count"))?.be_u32()?;
    let elements = number(data::ELEMENTS)?.map(|found| found.be_u32()).transpose()?;
    Ok(Some(Set { name, type_name, family, references, elements }))
}

/// Decodes the members in a message of a list.
///
/// # Errors
/// [`Malformed`], also for a member of another type than those of [`Member`]. Members passed on until then are valid.
pub fn decode_members(payload: &[u8], each: &mut dyn FnMut(Member)) -> Result<(), Malformed> {
    let Some(members) = message_attributes(payload)?.find(attribute::MEMBERS)? else { return Ok(()) };
    let mut members = members.nested();
    while let Some(member) = members.next_attribute()? {
        if member.kind == attribute::DATA {
            each(decode_member(member.nested())?);
        }
    }
    Ok(())
}

fn decode_member(mut attributes: Attributes<'_>) -> Result<Member, Malformed> {
    let (mut address, mut prefix, mut protocol, mut port) = (None, None, None, None);
    while let Some(found) = attributes.next_attribute()? {
        match found.kind {
            data::IP => address = Some(decode_ip(found.nested())?),
            data::CIDR => prefix = Some(byte(&found)?),
            data::PROTOCOL => protocol = Some(byte(&found)?),
            data::PORT => {
                let octets = found.value.try_into().map_err(|_| Malformed("size of an ipset member's port"))?;
                port = Some(u16::from_be_bytes(octets));
            }
            _ => {} // timeout, counters, comment
        }
    }
    match (address, prefix, protocol, port) {
        (None, None, None, Some(port)) => Ok(Member::Port(port)),
        (Some(address), None, Some(protocol), Some(port)) => Ok(Member::Socket { address, protocol, port }),
        (Some(address), Some(prefix), None, None) => {
            IpNet::new(address, prefix).map(Member::Net).map_err(|_| Malformed("prefix length of an ipset member"))
        }
        _ => Err(Malformed("ipset member of another type")),
    }
}

fn decode_ip(mut attributes: Attributes<'_>) -> Result<IpAddr, Malformed> {
    let malformed = Malformed("address of an ipset member");
    while let Some(found) = attributes.next_attribute()? {
        match found.kind {
            data::IPV4 => return <[u8; 4]>::try_from(found.value).map(IpAddr::from).map_err(|_| malformed),
            data::IPV6 => return <[u8; 16]>::try_from(found.value).map(IpAddr::from).map_err(|_| malformed),
            _ => {}
        }
    }
    Err(malformed)
}

/// The attributes behind the header of a message.
fn message_attributes(payload: &[u8]) -> Result<Attributes<'_>, Malformed> {
    payload.get(nfnetlink::HEADER_LEN..).map(Attributes::new).ok_or(Malformed("short ipset header"))
}

fn byte(attribute: &Attribute<'_>) -> Result<u8, Malformed> {
    <[u8; 1]>::try_from(attribute.value).map(|[byte]| byte).map_err(|_| Malformed("size of an 8-bit attribute"))
}

/// Sends the request for a list and reads it.
fn list(fill: &dyn Fn(&mut MessageWriter)) -> io::Result<AnswerObjects> {
    let fill = |writer: &mut MessageWriter| {
        encode_header(writer);
        fill(writer);
    };
    let mut session = Session::open(NETLINK_NETFILTER)?;
    let listed = session.dump(kind(msg::LIST), LIST_ATTEMPTS, &fill, &mut |attempt| Ok(!attempt.interrupted));
    listed.map_err(translate)
}

fn encode_header(writer: &mut MessageWriter) {
    nfnetlink::header(writer, 0);
    writer.attribute(attribute::PROTOCOL, &[PROTOCOL]);
}

/// The kernel would end a name at a NUL.
fn check(name: &str) -> io::Result<()> {
    if (1..=NAME_BYTES).contains(&name.len()) && !name.contains('\0') {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of an ipset")))
}

/// Replaces ipset's own error codes, which the system has no texts for.
fn translate(error: io::Error) -> io::Error {
    match errno::number(&error) {
        Some(code::BUSY) => io::Error::from_raw_os_error(libc::EBUSY),
        Some(code::MISSING_2) => io::Error::from_raw_os_error(libc::ENOENT),
        Some(code::FIND_TYPE) => {
            io::Error::new(io::ErrorKind::Unsupported, "ipset of this kernel lacks this type of sets")
        }
        Some(code::PROTOCOL) => io::Error::new(
            io::ErrorKind::Unsupported,
            format!("ipset of this kernel lacks protocol version {PROTOCOL}"),
        ),
        Some(number) if number >= code::FIRST => io::Error::other(format!("ipset error {number}")),
        _ => error,
    }
}

const fn kind(message: u8) -> u16 {
    nfnetlink::kind(SUBSYSTEM, message)
}
