//! Fuzzes the decoders of rules of other programs in forward chains: the entries of `iptables-legacy`, and the matches of
//! `iptables-nft`.
//!
//! The first byte selects the family, the next eight are the offsets of chain `FORWARD` and of its policy, and the rest are the
//! entries, or the attributes of a match.
#![no_main]

use ferry_api::object::Family;
use ferry_kernel::forward::{Extension, ForwardChain, Traffic};
use ferry_kernel::iptables::legacy::Entries;
use ferry_kernel::netlink::MessageWriter;
use libfuzzer_sys::fuzz_target;

/// Numbers of the attributes of a match (linux/netfilter/nf_tables_compat.h).
const NAME: u16 = 1;
const REVISION: u16 = 2;
const INFO: u16 = 3;
/// `struct xt_conntrack_mtinfo3` up to the states, its last field that is read.
const CONNTRACK_BYTES: usize = 152;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[choice, a, b, c, d, e, f, g, h], rest)) = bytes.split_first_chunk() else { return };
    let family = if choice & 1 == 0 { Family::V4 } else { Family::V6 };
    let [forward, policy] = [[a, b, c, d], [e, f, g, h]].map(|offset| u32::from_le_bytes(offset) as usize);
    legacy(family, &Entries { bytes: rest.to_vec(), forward, forward_policy: policy });
    extension(rest);
    built(a, rest);
});

/// Decodes the entries of a table. A valid result depends on its chains alone, not on what follows them.
fn legacy(family: Family, entries: &Entries) {
    let Ok(chain) = ForwardChain::decode_legacy(family, entries) else { return };
    assert!(chain.place().covers(family));
    // Rules in tables of the legacy variant are never written, nor recognised as own ones.
    assert_eq!(chain.own_rules(), 0);
    let mut longer = entries.clone();
    longer.bytes.extend(&entries.bytes);
    let again = ForwardChain::decode_legacy(family, &longer).expect("what follows the table's end is not read");
    for traffic in [Traffic::Established, Traffic::Translated] {
        assert!(!chain.has_own_rule(traffic));
        assert_eq!(again.loses(traffic), chain.loses(traffic));
    }
}

/// Decodes the attributes of a match: its parts are parts of them, and states are those of the one match that has some.
fn extension(data: &[u8]) {
    let Ok(found) = Extension::decode(data) else { return };
    assert!(found.name.len() + found.info.len() <= data.len() && !found.name.contains(&0));
    if found.states().is_some() {
        assert_eq!((found.name, found.revision), (&b"conntrack"[..], 3));
        assert!(found.info.len() >= CONNTRACK_BYTES);
    }
}

/// A match with attributes of valid lengths decodes to the values that were written, whatever attribute precedes them.
fn built(name_bytes: u8, content: &[u8]) {
    let (name, info) = content.split_at(content.len().min(usize::from(name_bytes)));
    let revision = info.first_chunk().map_or(3, |bytes| u32::from_be_bytes(*bytes));
    // The length of an attribute has 16 bits.
    let info = &info[..info.len().min(1 << 15)];
    let mut writer = MessageWriter::new();
    writer.attribute(INFO + 1, info);
    writer.attribute(NAME, name);
    writer.be_u32(REVISION, revision);
    writer.attribute(INFO, info);
    let data = writer.into_bytes();
    let expected = Extension {
        name: name.split(|byte| *byte == 0).next().expect("there is one"),
        revision: u8::try_from(revision).unwrap_or(u8::MAX),
        info,
    };
    assert_eq!(Extension::decode(&data), Ok(expected));
}
