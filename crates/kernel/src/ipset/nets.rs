//! Creates sets of networks (type `hash:net`).

use std::io;
use std::net::IpAddr;

use ferry_family::Family;
use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{NETS, attribute, check, data, destroy, encode_header, kind, msg, translate};
use crate::errno::ErrorClass;
use crate::netlink::{MessageWriter, Session, flag};

/// The oldest revision of the type. Later ones add ranges, timeouts and comments.
const REVISION: u8 = 0;
/// `NLA_F_NET_BYTEORDER`: required of addresses and numbers.
const NET_BYTE_ORDER: u16 = 0x4000;
/// Members of one message: of IPv6 they take 36 bytes each, and one attribute holds them all.
const MEMBERS_PER_MESSAGE: usize = 1000;
/// The kernel's default of the largest number of members.
const DEFAULT_MOST: usize = 65_536;

/// True if the kernel has sets of networks of this family. Loads their modules, where there are any; nothing else is changed.
///
/// # Errors
/// The system's error, for example without permission.
pub fn has_nets(family: Family) -> io::Result<bool> {
    let mut session = Session::open(NETLINK_NETFILTER)?;
    let answer = session.request(kind(msg::TYPE), 0, |writer| {
        encode_header(writer);
        writer.text(attribute::TYPE, NETS);
        writer.attribute(attribute::FAMILY, &[family.number()]);
    });
    match answer.map_err(translate) {
        Ok(_) => Ok(true),
        Err(error) if ErrorClass::of(&error).lacks_subsystem() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates a set of these networks, all of this family; duplicates count once. After an error there is none.
///
/// # Errors
/// `EEXIST` if there is a set of this name; `InvalidInput` if the name isn't one of a set, or for a network of no bits, which no such set
/// can have; the kernel's error if it lacks ipset or memory, or without permission.
pub fn create_nets(name: &str, family: Family, nets: &[IpNet]) -> io::Result<()> {
    check(name)?;
    if let Some(net) = nets.iter().find(|net| net.prefix_len() == 0 || Family::of_net(**net) != family) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{net} can't be in an ipset of {family}")));
    }
    let mut session = Session::open(NETLINK_NETFILTER)?;
    session
        .request(kind(msg::CREATE), flag::CREATE | flag::EXCL, |writer| encode_set(name, family, nets.len(), writer))
        .map_err(translate)?;
    for members in nets.chunks(MEMBERS_PER_MESSAGE) {
        if let Err(error) = session.request(kind(msg::ADD), 0, |writer| encode_members(name, members, writer)) {
            // The error is reported; an unfinished set of this name would be taken for a whole one.
            let _ = destroy(name);
            return Err(translate(error));
        }
    }
    Ok(())
}

fn encode_set(name: &str, family: Family, members: usize, writer: &mut MessageWriter) {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    encode_header(writer);
    writer.text(attribute::NAME, name);
    writer.text(attribute::TYPE, NETS);
    writer.attribute(attribute::REVISION, &[REVISION]);
    writer.attribute(attribute::FAMILY, &[family.number()]);
    let properties = writer.nest(attribute::DATA);
    // As many buckets as members, so that the table isn't built again and again while it grows.
    writer.be_u32(data::HASH_SIZE | NET_BYTE_ORDER, number(members.next_power_of_two()));
    writer.be_u32(data::MOST_MEMBERS | NET_BYTE_ORDER, number(members.max(DEFAULT_MOST)));
    writer.end_nest(properties);
}

fn encode_members(name: &str, members: &[IpNet], writer: &mut MessageWriter) {
    encode_header(writer);
    writer.text(attribute::NAME, name);
    writer.be_u32(attribute::LINE | NET_BYTE_ORDER, 1);
    let list = writer.nest(attribute::MEMBERS);
    for net in members {
        let member = writer.nest(attribute::DATA);
        match net.network() {
            IpAddr::V4(address) => {
                writer.nested_attribute(data::IP, data::IPV4 | NET_BYTE_ORDER, &address.octets());
            }
            IpAddr::V6(address) => {
                writer.nested_attribute(data::IP, data::IPV6 | NET_BYTE_ORDER, &address.octets());
            }
        }
        writer.attribute(data::CIDR, &[net.prefix_len()]);
        writer.end_nest(member);
    }
    writer.end_nest(list);
}
