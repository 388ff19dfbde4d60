//! Requests and notifications, byte by byte.

use super::super::monitor::Followed;
use super::*;

const V4: [u8; 24] = [
    2, 32, 0, 254, 9, 0, 0, 0, // family, prefix length, flags, scope, device
    8, 0, 2, 0, 10, 96, 0, 1, // local
    8, 0, 1, 0, 10, 96, 0, 1, // address
];

#[rustfmt::skip]
const V6: [u8; 76] = [
    10, 128, 0, 254, 9, 0, 0, 0,
    20, 0, 2, 0, 0xfd, 0, 0, 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    20, 0, 1, 0, 0xfd, 0, 0, 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    8, 0, 8, 0, 2, 0, 0, 0, // no duplicate address detection
    // preferred, valid, and two times that the kernel sets
    20, 0, 6, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
#[cfg(target_endian = "little")]
fn service_addresses_are_written_and_read() {
    assert_eq!(address(9, "10.96.0.1"), V4);
    assert_eq!(address(9, "fd00:96::1")[..], V6[..]);
    let v4 = decode_address(&V4).unwrap().unwrap();
    let v6 = decode_address(&V6).unwrap().unwrap();
    let common = DeviceAddress { device: 9, network: ip("10.96.0.1").into(), scope: 254, flags: 0, preferred: None };
    assert_eq!(v4, common);
    let network = ip("fd00:96::1").into();
    assert_eq!(v6, DeviceAddress { network, flags: 2, preferred: Some(Duration::ZERO), ..common });
    assert!(!v4.is_source() && !v6.is_source());
    assert!(DeviceAddress { scope: 0, ..v4 }.is_source() && DeviceAddress { scope: 253, ..v4 }.is_source());
    assert!(DeviceAddress { preferred: None, ..v6 }.is_source());
    assert!(!DeviceAddress { preferred: None, flags: 0x20, ..v6 }.is_source());
}

#[test]
fn the_local_address_counts_and_the_long_flags() {
    let mut writer = MessageWriter::new();
    writer.raw(&[2, 24, 0x80, 0, 1, 0, 0, 0]);
    writer.attribute(wire::address::ADDRESS, &[192, 0, 2, 2]);
    let peer = decode_address(writer.bytes()).unwrap().unwrap();
    assert_eq!((peer.network.to_string().as_str(), peer.flags), ("192.0.2.2/24", 0x80));
    writer.attribute(wire::address::LOCAL, &[192, 0, 2, 1]);
    writer.attribute(wire::address::FLAGS, &0x280_u32.to_ne_bytes());
    writer.attribute(wire::address::CACHE_INFO, &[[9, 0, 0, 0]; 4].concat());
    let own = decode_address(writer.bytes()).unwrap().unwrap();
    assert_eq!((own.network.to_string().as_str(), own.flags), ("192.0.2.1/24", 0x280));
    assert_eq!(own.preferred, Some(Duration::from_secs(u32::from_ne_bytes([9, 0, 0, 0]).into())));
    assert_eq!(decode_address(&[2, 24, 0, 0, 1, 0, 0, 0]), Ok(None), "no address");
    let mut long = V4;
    long[1] = 33;
    assert!(decode_address(&long).is_err());
}

#[test]
fn devices_are_read_with_their_kind() {
    let wanted = Device { index: 9, name: NAME.to_owned(), kind: Some("dummy".to_owned()), is_up: false };
    let found = |payload: &[u8]| decode_device(payload).unwrap().unwrap();
    assert_eq!(found(&device(0, 9, 0x82, NAME, Some("dummy"))), wanted);
    assert!(wanted.is_dummy());
    let bridge = found(&device(0, 9, 0x83, NAME, Some("bridge\0")));
    assert_eq!(bridge, Device { kind: Some("bridge".to_owned()), is_up: true, ..wanted.clone() });
    let hardware = found(&device(0, 9, 0x82, NAME, None));
    assert_eq!(hardware, Device { kind: None, ..wanted });
    assert!(!bridge.is_dummy() && !hardware.is_dummy());
    assert_eq!(decode_device(&device(7, 9, 0x82, NAME, None)), Ok(None), "about the port of a bridge");
    assert!(decode_device(&[0; 16]).is_err(), "no name");
    let mut writer = MessageWriter::new();
    device::encode_dummy(&mut writer, NAME);
    assert_eq!(found(writer.bytes()).kind.as_deref(), Some("dummy"));
}

#[test]
fn a_device_is_followed_by_its_name() {
    use wire::msg::{DELETE_ADDRESS, DELETE_LINK, NEW_ADDRESS, NEW_LINK};
    let dummy = |index, name: &str| device(0, index, 0, name, Some("dummy"));
    let mut followed = Followed { name: NAME.to_owned(), index: None };
    let mut read = |kind, payload: &[u8]| {
        let mut events = Vec::new();
        followed.decode(&datagram(kind, 77, payload), &mut |event| events.push(event)).unwrap();
        assert!(events.iter().all(|event| event.port_id == 77));
        events.into_iter().map(|event| event.change).collect::<Vec<_>>()
    };
    let of_device = |payload: &[u8]| vec![DeviceChange::Device(decode_device(payload).unwrap().unwrap())];
    let of_address = |index| decode_address(&address(index, "fd00:96::1")).unwrap().unwrap();

    assert_eq!(read(NEW_ADDRESS, &address(9, "fd00:96::1")), []);
    assert_eq!(read(NEW_LINK, &dummy(8, "dummy0")), []);
    assert_eq!(read(NEW_LINK, &dummy(9, NAME)), of_device(&dummy(9, NAME)));
    assert_eq!(read(NEW_ADDRESS, &address(9, "fd00:96::1")), [DeviceChange::Added(of_address(9))]);
    assert_eq!(read(DELETE_ADDRESS, &address(9, "fd00:96::1")), [DeviceChange::Removed(of_address(9))]);
    assert_eq!(read(NEW_ADDRESS, &address(8, "fd00:96::1")), [], "another device");
    assert_eq!(read(DELETE_LINK, &dummy(8, "dummy0")), []);
    assert_eq!(read(DELETE_LINK, &device(7, 9, 0, NAME, None)), [], "it was a bridge's port");
    assert_eq!(read(DELETE_LINK, &dummy(9, NAME)), [DeviceChange::DeviceGone]);
    assert_eq!(read(DELETE_LINK, &dummy(9, NAME)), []);
    assert_eq!(read(NEW_LINK, &dummy(10, NAME)), of_device(&dummy(10, NAME)));
    assert_eq!(read(NEW_ADDRESS, &address(9, "fd00:96::1")), [], "the earlier device of this name");
    assert_eq!(read(NEW_LINK, &dummy(10, "renamed")), [DeviceChange::DeviceGone]);
    assert_eq!(read(wire::msg::GET_LINK, &[]), []);
}
