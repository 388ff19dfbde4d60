//! No byte sequence makes a decoder panic; truncated messages are refused or decoded as far as possible.

use super::super::monitor::Followed;
use super::*;
use crate::netlink::HEADER_LEN;

fn decode_everything(bytes: &[u8]) {
    let mut followed = Followed { name: NAME.to_owned(), index: Some(9) };
    let _ = followed.decode(bytes, &mut |_| {});
    for payload in [bytes, bytes.get(HEADER_LEN..).unwrap_or_default()] {
        let _ = decode_device(payload);
        let _ = decode_address(payload);
    }
}

fn samples() -> [Vec<u8>; 3] {
    [
        datagram(wire::msg::NEW_LINK, 0, &device(0, 9, 0, NAME, Some("dummy"))),
        datagram(wire::msg::NEW_ADDRESS, 0, &address(9, "10.96.0.1")),
        datagram(wire::msg::DELETE_ADDRESS, 0, &address(9, "fd00:96::1")),
    ]
}

#[test]
fn every_prefix_is_refused_or_decoded() {
    for bytes in samples() {
        for end in 0..bytes.len() {
            decode_everything(&bytes[..end]);
        }
    }
    assert!(decode_device(&[0; 15]).is_err());
    assert!(decode_address(&[0; 7]).is_err());
}

#[test]
fn every_changed_byte_is_refused_or_decoded() {
    for bytes in samples() {
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(4)] {
                let mut changed = bytes.clone();
                changed[at] = value;
                decode_everything(&changed);
            }
        }
    }
}
