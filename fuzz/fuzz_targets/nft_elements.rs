//! Fuzzes the decoders of nf_tables elements and names: an element recognised as ours encodes to the same bytes.
#![no_main]

use ferry_api::object::Family;
use ferry_kernel::nft::{Element, Octets, OwnedData, Verdict};
use ferry_plane_nftables::NftObject;
use ferry_plane_nftables::names::{ChainName, FixedSet, SetName};
use libfuzzer_sys::{arbitrary, fuzz_target};

#[derive(Debug, arbitrary::Arbitrary)]
struct Input<'a> {
    set: u8,
    v6: bool,
    key: &'a [u8],
    key_end: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    name: &'a str,
}

fuzz_target!(|input: Input<'_>| {
    if let Some(chain) = ChainName::parse(input.name) {
        assert_eq!(chain.to_string(), input.name);
    }
    let named = SetName::parse(input.name);
    if let Some(set) = named {
        assert_eq!(set.to_string(), input.name);
    }
    let fixed = FixedSet::ALL[usize::from(input.set) % FixedSet::ALL.len()];
    let set = named.unwrap_or(SetName::Fixed(fixed));
    let family = if input.v6 { Family::V6 } else { Family::V4 };
    let (Some(key), key_end) = (Octets::new(input.key), input.key_end.map(Octets::new)) else { return };
    let data = match input.value.map(Octets::new) {
        None => OwnedData::Verdict(Verdict::Goto(input.name.to_owned())),
        Some(None) => OwnedData::Other,
        Some(Some(value)) => OwnedData::Value(value),
    };
    let element = Element { key, key_end: key_end.flatten(), data, interval_end: false };
    if let Some(NftObject::Element(read, _)) = NftObject::from_element(set, family, &element) {
        assert_eq!(read.set(), set);
        let again = Element { key: Octets::new(&read.octets()).unwrap(), ..element };
        assert!(
            matches!(NftObject::from_element(set, family, &again), Some(NftObject::Element(key, _)) if key == read)
        );
    }
});
