//! No byte sequence makes a decoder panic; truncated messages are refused or decoded as far as possible.

use super::wire::msg;
use super::*;
use crate::netlink::{self, MessageWriter, Messages, nfnetlink};

fn decode_everything(bytes: &[u8]) {
    for message in Messages::new(bytes).map_while(Result::ok) {
        let _ = decode_entry(message.payload);
    }
    let _ = decode_entry(bytes);
}

/// A message about an entry in the kernel's format.
fn message(entry: &Entry) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    let mark = writer.message(wire::kind(msg::NEW), 0, 7);
    nfnetlink::header(&mut writer, entry.original.family().number());
    entry.original.encode(&mut writer, wire::TUPLE_ORIGINAL, entry.protocol);
    entry.reply.encode(&mut writer, wire::TUPLE_REPLY, entry.protocol);
    writer.be_u32(wire::STATUS, entry.status.0);
    writer.be_u32(wire::ID, entry.id);
    writer.attribute(wire::ZONE, &entry.zone.to_be_bytes());
    writer.end_message(mark);
    writer.into_bytes()
}

fn samples() -> [Entry; 2] {
    let [v4, v6] = [
        flow(UDP, "10.0.0.1:1000", "10.96.0.1:53", "10.1.0.1:5353"),
        flow(SCTP, "[fd00::1]:1000", "[fd00:96::1]:53", "[fd00:1::1]:5353"),
    ];
    [Entry { id: 5, status: FlowStatus::SEEN_REPLY, ..v4 }, Entry { id: u32::MAX, zone: 9, ..v6 }]
}

#[test]
fn written_entries_are_decoded() {
    for sample in samples() {
        let bytes = message(&sample);
        let read = Messages::new(&bytes).next().unwrap().unwrap();
        assert_eq!(decode_entry(read.payload), Ok(Some(sample)));
    }
}

#[test]
fn every_prefix_is_refused_or_decoded() {
    for sample in samples() {
        let bytes = message(&sample);
        for end in 0..bytes.len() {
            decode_everything(&bytes[..end]);
        }
        let payload = &bytes[netlink::HEADER_LEN..];
        assert!(decode_entry(&payload[..3]).is_err());
        assert!(decode_entry(&payload[..4]).is_err(), "no protocol");
    }
}

#[test]
fn every_changed_byte_is_refused_or_decoded() {
    for sample in samples() {
        let bytes = message(&sample);
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at].wrapping_add(4)] {
                let mut changed = bytes.clone();
                changed[at] = value;
                decode_everything(&changed);
            }
        }
    }
}

#[test]
fn an_entry_without_ports_is_none_and_one_without_an_id_malformed() {
    let mut writer = MessageWriter::new();
    writer.raw(&[2, 0, 0, 0]);
    let nest = writer.nest(wire::TUPLE_ORIGINAL);
    writer.nested_attribute(wire::tuple::PROTO, wire::tuple::PROTOCOL, &[1]);
    writer.end_nest(nest);
    assert_eq!(decode_entry(writer.bytes()), Ok(None));

    let mut writer = MessageWriter::new();
    writer.raw(&[2, 0, 0, 0]);
    let [sample, _] = samples();
    sample.original.encode(&mut writer, wire::TUPLE_ORIGINAL, UDP);
    sample.reply.encode(&mut writer, wire::TUPLE_REPLY, UDP);
    assert!(decode_entry(writer.bytes()).is_err());
}
