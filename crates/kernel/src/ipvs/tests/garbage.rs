//! No byte sequence makes a decoder panic; truncated messages are refused or decoded as far as possible.

use proptest::prelude::*;

use super::*;

const SAMPLES: [&str; 6] = [V4_SERVER, V6_SERVER, MARK, V4_DESTINATION, V6_DESTINATION, TIMEOUTS];

fn decode_everything(payload: &[u8]) {
    let _ = decode_server(payload);
    let _ = decode_statistics(payload);
    let _ = decode_destination(payload);
    let _ = decode_timeouts(payload);
}

#[test]
fn every_prefix_and_every_changed_byte_is_refused_or_decoded() {
    for sample in SAMPLES.map(bytes) {
        for end in 0..sample.len() {
            decode_everything(&sample[..end]);
        }
        for at in 0..sample.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, sample[at] ^ 1, sample[at].wrapping_add(4)] {
                let mut changed = sample.clone();
                changed[at] = value;
                decode_everything(&changed);
            }
        }
    }
}

/// Every setting is needed: an answer without one of its attributes is malformed.
#[test]
fn incomplete_objects_are_malformed() {
    for (sample, optional) in [(V6_SERVER, &[1, 2][..]), (V6_DESTINATION, &[7, 8, 9, 13, 14, 15])] {
        let sample = bytes(sample);
        let mut at = 8;
        while at < sample.len() {
            let (length, kind) = (usize::from(sample[at]), sample[at + 2]);
            let mut without = sample.clone();
            without[at + 3] = 0x3f; // an attribute that nobody knows
            let decoded = [decode_server(&without).is_ok(), decode_destination(&without).is_ok()];
            assert_eq!(decoded.contains(&true), optional.contains(&kind), "attribute {kind}");
            at += length.next_multiple_of(4);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_decoded(payload in prop::collection::vec(any::<u8>(), 0..400)) {
        decode_everything(&payload);
    }

    #[test]
    fn any_attributes_are_refused_or_decoded(
        command in 0_u8..16,
        outer in 1_u16..4,
        attributes in prop::collection::vec((0_u16..16, prop::collection::vec(any::<u8>(), 0..20)), 0..16),
    ) {
        let mut writer = crate::netlink::MessageWriter::new();
        wire::header(&mut writer, command);
        let nest = writer.nest(outer);
        attributes.iter().for_each(|(kind, value)| writer.attribute(*kind, value));
        writer.end_nest(nest);
        decode_everything(writer.bytes());
    }
}
