//! Byte samples in the kernel's format, garbage, and what needs no set in the kernel. `tests/devices.rs` has the tests that need a
//! kernel with ipset.

use std::net::Ipv4Addr;

use super::*;
use crate::netlink::{MessageError, Messages};
use crate::netns::Namespace;

const NESTED: u16 = 0x8000;
const BE: u16 = 0x4000;

/// A message of a list: a set with these members, or, without a header, further members of one.
fn message(name: &str, header: Option<(&str, u8)>, references: u32, members: &[&[u8]]) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    writer.raw(&[2, 0, 0, 0]);
    writer.attribute(attribute::PROTOCOL, &[6]);
    writer.text(attribute::NAME, name);
    if let Some((type_name, family)) = header {
        writer.text(attribute::TYPE, type_name);
        writer.attribute(attribute::FAMILY, &[family]);
        writer.attribute(4, &[3]); // revision
        let properties = writer.nest(attribute::DATA);
        writer.be_u32(18 | BE, 1024); // size of the hash table
        writer.be_u32(data::ELEMENTS | BE, 7);
        writer.be_u32(data::REFERENCES | BE, references);
        writer.be_u32(26 | BE, 65_536); // bytes of memory
        writer.end_nest(properties);
    }
    let list = writer.nest(attribute::MEMBERS);
    for member in members {
        writer.attribute(attribute::DATA | NESTED, member);
    }
    writer.end_nest(list);
    writer.into_bytes()
}

fn port(port: u16) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    writer.attribute(data::PORT | BE, &port.to_be_bytes());
    writer.into_bytes()
}

fn socket(octets: &[u8], protocol: u8, port: u16) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    let inner = if octets.len() == 4 { data::IPV4 } else { data::IPV6 };
    writer.nested_attribute(data::IP, inner | BE, octets);
    writer.attribute(data::PORT | BE, &port.to_be_bytes());
    writer.attribute(data::PROTOCOL, &[protocol]);
    writer.be_u32(6 | BE, 30); // timeout
    writer.into_bytes()
}

fn decoded(payload: &[u8]) -> Result<Vec<Member>, Malformed> {
    let mut members = Vec::new();
    decode_members(payload, &mut |member| members.push(member))?;
    Ok(members)
}

fn net(octets: &[u8], prefix: u8) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    let inner = if octets.len() == 4 { data::IPV4 } else { data::IPV6 };
    writer.nested_attribute(data::IP, inner | BE, octets);
    writer.attribute(data::CIDR, &[prefix]);
    writer.into_bytes()
}

fn samples() -> [Vec<u8>; 5] {
    let v6 = [0xfd, 0, 0, 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    [
        message("KUBE-NODE-PORT-TCP", Some(("bitmap:port", 0)), 1, &[&port(30_080), &port(65_535)]),
        message("KUBE-CLUSTER-IP", Some(("hash:ip,port", 2)), 2, &[&socket(&[10, 96, 0, 1], 6, 443)]),
        message("KUBE-6-CLUSTER-IP", Some(("hash:ip,port", 10)), u32::MAX, &[&socket(&v6, 132, 9)]),
        message("KUBE-CLUSTER-IP", None, 0, &[&socket(&[10, 96, 0, 10], 17, 53)]),
        message("NETS", Some(("hash:net", 10)), 3, &[&net(&v6, 64), &net(&v6, 128)]),
    ]
}

#[test]
#[cfg(target_endian = "little")]
fn a_message_is_decoded_byte_by_byte() {
    #[rustfmt::skip]
    let bytes = [
        2, 0, 0, 0, 5, 0, 1, 0, 6, 0, 0, 0, // header, protocol version
        6, 0, 2, 0, b'P', 0, 0, 0, // name
        16, 0, 3, 0, b'b', b'i', b't', b'm', b'a', b'p', b':', b'p', b'o', b'r', b't', 0,
        5, 0, 5, 0, 0, 0, 0, 0, // family
        12, 0, 7, 0x80, 8, 0, 25, 0x40, 0, 0, 0, 2, // references
        28, 0, 8, 0x80, // members
        12, 0, 7, 0x80, 6, 0, 4, 0x40, 0x75, 0x80, 0, 0,
        12, 0, 7, 0x80, 6, 0, 4, 0x40, 0x00, 0x35, 0, 0,
    ];
    let set =
        Set { name: "P".to_owned(), type_name: "bitmap:port".to_owned(), family: None, references: 2, elements: None };
    assert_eq!(decode_set(&bytes), Ok(Some(set)));
    assert_eq!(decoded(&bytes), Ok(vec![Member::Port(30_080), Member::Port(53)]));
}

#[test]
fn sets_and_members_are_decoded() {
    let [ports, v4, v6, further, nets] = samples();
    let set = |name: &str, type_name: &str, family, references| {
        Some(Set { name: name.to_owned(), type_name: type_name.to_owned(), family, references, elements: Some(7) })
    };
    let member = |address: &str, protocol, port| Member::Socket { address: address.parse().unwrap(), protocol, port };
    assert_eq!(decode_set(&ports).unwrap(), set("KUBE-NODE-PORT-TCP", "bitmap:port", None, 1));
    assert_eq!(decoded(&ports).unwrap(), [Member::Port(30_080), Member::Port(65_535)]);
    assert_eq!(decode_set(&v4).unwrap(), set("KUBE-CLUSTER-IP", "hash:ip,port", Some(Family::V4), 2));
    assert_eq!(decoded(&v4).unwrap(), [member("10.96.0.1", 6, 443)]);
    assert_eq!(decode_set(&v6).unwrap(), set("KUBE-6-CLUSTER-IP", "hash:ip,port", Some(Family::V6), u32::MAX));
    assert_eq!(decoded(&v6).unwrap(), [member("fd00:96::1", 132, 9)]);
    assert_eq!(decode_set(&nets).unwrap(), set("NETS", "hash:net", Some(Family::V6), 3));
    let of_net = |prefix| Member::Net(IpNet::new("fd00:96::1".parse().unwrap(), prefix).unwrap());
    assert_eq!(decoded(&nets).unwrap(), [of_net(64), of_net(128)]);
    assert_eq!(decode_set(&further).unwrap(), None);
    assert_eq!(decoded(&further).unwrap(), [member("10.96.0.10", 17, 53)]);
}

#[test]
fn members_of_other_types_are_refused() {
    let mut only_address = MessageWriter::new();
    only_address.nested_attribute(data::IP, data::IPV4, &[10, 0, 0, 1]);
    for member in [only_address.bytes(), &[], &socket(&[10, 0, 0], 6, 1), &net(&[10, 0, 0, 0], 33)] {
        assert!(decoded(&message("S", None, 0, &[member])).is_err());
    }
    assert_eq!(decoded(&message("S", None, 0, &[])), Ok(vec![]));
}

#[test]
fn every_prefix_and_every_changed_byte_is_refused_or_decoded() {
    let decode_everything = |bytes: &[u8]| {
        for message in Messages::new(bytes).map_while(Result::ok) {
            let _ = (decode_set(message.payload), decoded(message.payload));
        }
        let _ = (decode_set(bytes), decoded(bytes));
    };
    for bytes in samples() {
        for end in 0..bytes.len() {
            decode_everything(&bytes[..end]);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(4)] {
                let mut changed = bytes.clone();
                changed[at] = value;
                decode_everything(&changed);
            }
        }
    }
    assert!(decode_set(&[0; 3]).is_err());
    assert!(decode_set(&[0; 4]).is_err(), "no name");
}

#[test]
fn names_that_are_none_are_not_sent() {
    for name in ["", &"x".repeat(32), "a\0b"] {
        assert_eq!(destroy(name).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(members(name).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(create_nets(name, Family::V4, &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        for (one, other) in [(name, "a"), ("a", name)] {
            assert_eq!(swap(one, other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}

#[test]
fn networks_that_no_set_can_have_are_not_sent() {
    for net in ["0.0.0.0/0", "fd00::/64"] {
        let error = create_nets("NETS", Family::V4, &[net.parse().unwrap()]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{net}");
    }
}

/// On a kernel without ipset: the error says that.
#[test]
fn sets_of_networks_are_created_listed_swapped_and_destroyed() {
    Namespace::new().unwrap().run(use_sets_of_networks).unwrap();
}

fn use_sets_of_networks() {
    let net = |number: u32| IpNet::new(Ipv4Addr::from_bits(number << 12).into(), 21).unwrap();
    let many: Vec<IpNet> = (1..=2500).map(net).collect();
    let v6 = ["2001:db8::1/128", "fd00::/8"].map(|net| net.parse().unwrap());
    if !has_nets(Family::V4).unwrap() {
        let error = create_nets("A", Family::V4, &many).unwrap_err();
        return assert!(ErrorClass::of(&error).lacks_subsystem(), "{error}");
    }
    assert!(has_nets(Family::V6).unwrap());
    let listed = |name: &str| {
        let mut nets = members(name).unwrap();
        nets.sort_unstable();
        nets
    };
    let nets = |nets: &[IpNet]| nets.iter().copied().map(Member::Net).collect::<Vec<_>>();
    create_nets("A", Family::V4, &[many.clone(), many.clone()].concat()).unwrap();
    create_nets("B", Family::V4, &[]).unwrap();
    create_nets("C", Family::V6, &v6).unwrap();
    let exists = create_nets("A", Family::V4, &[]).unwrap_err();
    assert_eq!(ErrorClass::of(&exists), ErrorClass::Exists);
    for (one, other) in [("A", "D"), ("D", "A")] {
        assert_eq!(ErrorClass::of(&swap(one, other).unwrap_err()), ErrorClass::Missing);
    }
    assert!(swap("A", "C").is_err(), "of another family");
    assert_eq!((listed("A"), listed("B"), listed("C")), (nets(&many), vec![], nets(&v6)));
    swap("A", "B").unwrap();
    assert_eq!((listed("A"), listed("B")), (vec![], nets(&many)));
    let mut all: Vec<_> = sets().unwrap().into_iter().map(|set| (set.name, set.family, set.elements)).collect();
    all.sort_unstable();
    let set = |name: &str, family, elements| (name.to_owned(), Some(family), Some(elements));
    assert_eq!(all, [set("A", Family::V4, 0), set("B", Family::V4, 2500), set("C", Family::V6, 2)]);
    let names = ["A", "missing", "B", "C"].map(str::to_owned);
    assert_eq!(destroy_all(names).unwrap(), Destroyed { count: 3, referred: None });
    assert_eq!(sets_if_any().unwrap(), []);
}

#[test]
fn error_codes_of_ipset_are_replaced() {
    let own = |number: i32, text: Option<&str>| {
        let error = io::Error::from_raw_os_error(number);
        translate(MessageError { sequence: 1, offset: None, error, text: text.map(str::to_owned) }.into())
    };
    for text in [None, Some("of the kernel")] {
        assert_eq!(ErrorClass::of(&own(code::BUSY, text)), ErrorClass::InUse);
        assert_eq!(ErrorClass::of(&own(code::PROTOCOL, text)), ErrorClass::Unsupported);
        assert_eq!(ErrorClass::of(&own(code::FIND_TYPE, text)), ErrorClass::Unsupported);
        assert_eq!(ErrorClass::of(&own(libc::ENOENT, text)), ErrorClass::Missing);
        assert_eq!(ErrorClass::of(&own(code::MISSING_2, text)), ErrorClass::Missing);
        assert_eq!(own(4102, text).to_string(), "ipset error 4102");
    }
}

#[test]
fn a_kernel_without_ipset_is_recognised() {
    let listed = Namespace::new().unwrap().run(|| (sets(), destroy("KUBE-CLUSTER-IP"))).unwrap();
    match listed {
        (Ok(sets), destroyed) => {
            assert_eq!(sets, []);
            assert_eq!(ErrorClass::of(&destroyed.unwrap_err()), ErrorClass::Missing);
        }
        (Err(error), destroyed) => {
            for error in [error, destroyed.unwrap_err()] {
                assert!(ErrorClass::of(&error).lacks_subsystem(), "{error}");
            }
        }
    }
}
