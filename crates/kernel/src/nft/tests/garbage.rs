//! No byte sequence makes a decoder panic; truncated messages are refused or decoded as far as possible.

use super::ruleset::{V4, V6};
use super::*;
use crate::netlink::{Messages, decode_reply};

/// Runs every decoder on the same bytes.
fn decode_everything(bytes: &[u8]) {
    for message in Messages::new(bytes).map_while(Result::ok) {
        let _ = decode_reply(&message);
        decode_payload(message.payload);
    }
    decode_payload(bytes);
    let _ = decode_events(bytes, &mut |_| {});
}

fn decode_payload(payload: &[u8]) {
    let _ = decode_table(payload);
    let _ = decode_chain(payload);
    let _ = decode_base_chain(payload);
    let _ = decode_set(payload);
    let _ = decode_rule(payload);
    let _ = decode_elements(payload, &mut |_| {});
    let _ = decode_generation(payload);
    let _ = decode_expression(payload);
    let _ = userdata::table_comment(payload);
}

/// Real messages, small enough to be truncated at each byte.
fn samples() -> Vec<Vec<u8>> {
    [V4, V6]
        .into_iter()
        .map(|layout| {
            let mut batch = NftBatch::new(layout.family, TABLE);
            batch.add_table(Some("comment"));
            write(&mut batch, &layout.ruleset());
            batch.add_rule("learn", &layout.update_rule());
            batch.close().ok().unwrap().bytes
        })
        .collect()
}

/// Encoded requests decode to the objects that were encoded, without a kernel in between.
#[test]
fn requests_decode_as_answers() {
    let ruleset = V4.ruleset();
    let mut batch = NftBatch::new(Family::V4, TABLE);
    batch.add_table(Some("comment"));
    write(&mut batch, &ruleset);
    let count = batch.messages();
    let bytes = batch.close().ok().unwrap().bytes;
    let messages: Vec<_> = Messages::new(&bytes).map(Result::unwrap).collect();
    assert_eq!(messages.len(), count + 2, "the begin and the end of the batch");
    let wanted = expected(&ruleset);
    let sets: BTreeSet<Set> = messages
        .iter()
        .filter(|message| message.kind == wire::kind(wire::msg::NEW_SET))
        .map(|message| decode_set(message.payload).unwrap().unwrap().1)
        .map(|set| match set.data {
            Some(SetData::Value { data_type: data_type::VERDICT, .. }) => Set { data: Some(SetData::Verdict), ..set },
            _ => set,
        })
        .collect();
    assert_eq!(sets, wanted.sets);
    let mut rules: BTreeMap<String, Vec<Rule>> = BTreeMap::new();
    for message in messages.iter().filter(|message| message.kind == wire::kind(wire::msg::NEW_RULE)) {
        let (table, chain, rule) = decode_rule(message.payload).unwrap();
        assert_eq!(table, TABLE);
        rules.entry(chain).or_default().push(rule);
    }
    assert_eq!(rules, wanted.rules);
}

#[test]
fn truncated_at_every_byte() {
    for sample in samples() {
        for message in Messages::new(&sample).map(Result::unwrap) {
            (0..message.payload.len()).for_each(|end| decode_payload(&message.payload[..end]));
        }
        (0..sample.len()).step_by(7).for_each(|end| {
            let _ = decode_events(&sample[..end], &mut |_| {});
        });
    }
}

#[test]
fn every_byte_changed() {
    for sample in samples() {
        for message in Messages::new(&sample).map(Result::unwrap) {
            for at in 0..message.payload.len() {
                for value in [0, 1, 3, 0x7f, 0xff] {
                    let mut changed = message.payload.to_vec();
                    changed[at] = value;
                    decode_payload(&changed);
                }
            }
        }
    }
}

#[test]
fn noise() {
    // a linear congruential generator: the same noise each time
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    for length in (0..200).cycle().take(20_000) {
        let noise: Vec<u8> = (0..length).map(|_| if next() % 3 == 0 { next() } else { 0 }).collect();
        decode_everything(&noise);
    }
}

#[test]
fn invalid_lengths_are_errors() {
    let family_header = [2, 0, 0, 0];
    let with = |attributes: &[u8]| [&family_header[..], attributes].concat();
    assert!(decode_table(&[2, 0]).is_err());
    assert!(decode_table(&with(&[])).is_err(), "no name");
    assert!(decode_table(&with(&[3, 0, 1, 0])).is_err(), "an attribute shorter than its header");
    assert!(decode_table(&with(&[9, 0, 1, 0, b'a', 0])).is_err(), "an attribute longer than the message");
    assert!(decode_table(&with(&[6, 0, 1, 0, b'a', 0])).is_ok(), "the last padding may be missing");
    assert!(decode_table(&with(&[6, 0, 1, 0, b'a', 0, 0, 0, 6, 0, 2, 0, 0, 1])).is_err(), "flags of two bytes");
}
