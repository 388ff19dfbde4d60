//! Source ranges of load balancers: networks merged into the intervals of a set, and the id of their content.
//!
//! The set of an id is immutable: changed ranges are another set. So a packet sees all of the old ranges or all of the new ones,
//! and Services with the same ranges share a set.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ferry_api::object::{Family, IpNet};
use ferry_kernel::nft::{Element, OwnedData};
use ferry_model::SourceRanges;
use sha2::{Digest, Sha256};

use crate::fields;
use crate::id::HashId;

/// Identifies a set of source ranges and what checks it: the hash of the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourcesId(HashId);

/// An inclusive range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    /// the first address
    pub first: IpAddr,
    /// the last address, of the same family
    pub last: IpAddr,
}

/// Address ranges of one family: ascending, neither overlapping nor adjacent. Compared by content, or by pointer if they share
/// an allocation.
#[derive(Clone, Debug, Eq)]
pub struct Ranges(Arc<[AddressRange]>);

// === impl SourcesId ===

impl SourcesId {
    /// The id of the ranges with this SHA-256.
    pub fn of_digest(digest: &[u8]) -> Self {
        Self(HashId::of_digest(digest))
    }

    /// The id of a frontend's source ranges; `None` if all sources are admitted.
    pub fn of(sources: &SourceRanges) -> Option<Self> {
        match sources {
            SourceRanges::Any => None,
            SourceRanges::Only(networks) => Some(Ranges::new(networks).id()),
        }
    }

    /// Reads the id in a name; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        HashId::parse(text).map(Self)
    }
}

impl fmt::Display for SourcesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl AddressRange ===

impl AddressRange {
    /// The range as a network, if it is one: the `nft` tool prints it as such.
    fn network(&self) -> Option<IpNet> {
        let width = match self.first {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        let host_bits = 128 - (bits(self.first) ^ bits(self.last)).leading_zeros();
        let net = IpNet::new(self.first, u8::try_from(width - host_bits).ok()?).ok()?;
        (net.network() == self.first && net.broadcast() == self.last).then_some(net)
    }
}

impl From<&IpNet> for AddressRange {
    fn from(net: &IpNet) -> Self {
        Self { first: net.network(), last: net.broadcast() }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            _ if self.first == self.last => write!(f, "{}", self.first),
            Some(net) => write!(f, "{net}"),
            None => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

// === impl Ranges ===

impl Ranges {
    /// The addresses of these networks, which are sorted.
    pub fn new(networks: &[IpNet]) -> Self {
        Self::merged(networks.iter().map(AddressRange::from))
    }

    /// Joins ranges, sorted by their first address, where they overlap or adjoin.
    fn merged(ranges: impl Iterator<Item = AddressRange>) -> Self {
        let mut merged: Vec<AddressRange> = Vec::with_capacity(ranges.size_hint().0);
        for range in ranges {
            match merged.last_mut() {
                Some(before) if after(before.last).is_none_or(|next| range.first <= next) => {
                    before.last = before.last.max(range.last);
                }
                Some(_) | None => merged.push(range),
            }
        }
        Self(merged.into())
    }

    /// Decodes the elements of a set; `None` if one of them is none that this crate writes.
    ///
    /// An address is in the set if the greatest key up to it begins a range. A key without effect on that, such as the end before
    /// the first range that the `nft` tool adds, makes no difference.
    pub fn read(family: Family, elements: &[Element]) -> Option<Self> {
        // If one range ends and the next begins at the same key, the key is in the set.
        let mut begins = BTreeMap::new();
        for element in elements {
            let plain = element.data == OwnedData::None && element.key_end.is_none();
            let key = fields::address(family, &element.key).filter(|_| plain)?;
            *begins.entry(key).or_insert(false) |= !element.interval_end;
        }
        let mut ranges = Vec::new();
        let mut open = None;
        for (key, begins) in begins {
            match (open, begins) {
                (None, true) => open = Some(key),
                (Some(first), false) => {
                    ranges.extend(before(key).map(|last| AddressRange { first, last }));
                    open = None;
                }
                (None, false) | (Some(_), true) => {}
            }
        }
        ranges.extend(open.map(|first| AddressRange { first, last: highest(family) }));
        Some(Self::merged(ranges.into_iter()))
    }

    /// The keys of the set's elements, ascending: the begin of each range and the first address after it. A range that ends with
    /// the highest address has no end.
    pub fn keys(&self) -> impl Iterator<Item = (IpAddr, Option<IpAddr>)> {
        self.0.iter().map(|range| (range.first, after(range.last)))
    }

    /// The ranges.
    pub fn as_slice(&self) -> &[AddressRange] {
        &self.0
    }

    /// The id of the content.
    pub fn id(&self) -> SourcesId {
        let mut hash = Sha256::new();
        for address in self.0.iter().flat_map(|range| [range.first, range.last]) {
            match address {
                IpAddr::V4(address) => hash.update(address.octets()),
                IpAddr::V6(address) => hash.update(address.octets()),
            }
        }
        SourcesId::of_digest(&hash.finalize())
    }
}

/// The ranges with a comma between two.
impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl PartialEq for Ranges {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Ord for Ranges {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { std::cmp::Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for Ranges {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_add(1).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(address) => address.to_bits().checked_add(1).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

fn before(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_sub(1).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(address) => address.to_bits().checked_sub(1).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

fn highest(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::BROADCAST.into(),
        Family::V6 => Ipv6Addr::from_bits(u128::MAX).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use ferry_kernel::nft::Octets;
    use proptest::prelude::*;

    use super::*;
    use crate::rules::octets;

    fn ranges(networks: &[&str]) -> Ranges {
        Ranges::new(&networks.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>())
    }

    fn text(ranges: &Ranges) -> Vec<String> {
        ranges.as_slice().iter().map(ToString::to_string).collect()
    }

    fn element(address: IpAddr, interval_end: bool) -> Element {
        Element { key: Octets::new(&octets(address)).unwrap(), key_end: None, data: OwnedData::None, interval_end }
    }

    /// The set's elements as the kernel returns them: in no order.
    fn elements(ranges: &Ranges) -> Vec<Element> {
        let ends = ranges.keys().filter_map(|(_, end)| Some(element(end?, true)));
        let mut elements: Vec<Element> = ends.collect();
        elements.extend(ranges.keys().map(|(begin, _)| element(begin, false)));
        elements
    }

    #[test]
    fn ranges_are_printed_in_a_row_and_sorted() {
        let (one, two) = (ranges(&["10.0.0.0/8"]), ranges(&["10.0.0.0/8", "192.0.2.7/32"]));
        assert_eq!([&one, &two].map(ToString::to_string), ["10.0.0.0/8", "10.0.0.0/8, 192.0.2.7"]);
        assert_eq!([&one, &two].map(|other| one.partial_cmp(other)), [Some(Ordering::Equal), Some(Ordering::Less)]);
    }

    #[test]
    fn what_overlaps_or_adjoins_is_one_range() {
        let all =
            ranges(&["10.0.0.0/25", "10.0.0.128/25", "10.0.1.0/25", "10.9.0.0/16", "10.9.1.0/24", "192.0.2.7/32"]);
        assert_eq!(text(&all), ["10.0.0.0-10.0.1.127", "10.9.0.0/16", "192.0.2.7"]);
        assert_eq!(text(&ranges(&["0.0.0.0/1", "128.0.0.0/1"])), ["0.0.0.0/0"]);
        assert_eq!(text(&ranges(&["fd00::/64", "fd00:0:0:1::/64"])), ["fd00::/63"]);
        // Ends where a network ends, but begins within it; and the other way round.
        assert_eq!(text(&ranges(&["10.0.0.128/25", "10.0.1.0/24"])), ["10.0.0.128-10.0.1.255"]);
        assert_eq!(text(&ranges(&["10.0.0.0/24", "10.0.1.0/25"])), ["10.0.0.0-10.0.1.127"]);
    }

    #[test]
    fn the_highest_address_has_no_end() {
        let all = ranges(&["10.0.0.0/8", "255.255.255.0/24"]);
        let keys: Vec<String> = all.keys().map(|(begin, end)| format!("{begin} {end:?}")).collect();
        assert_eq!(keys, ["10.0.0.0 Some(11.0.0.0)", "255.255.255.0 None"]);
        assert_eq!(Ranges::read(Family::V4, &elements(&all)), Some(all));
    }

    #[test]
    fn damage_is_a_difference_and_what_changes_nothing_is_none() {
        let all = ranges(&["10.0.0.0/8", "192.0.2.0/24"]);
        let whole = elements(&all);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for lost in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged.remove(lost);
            assert_ne!(Ranges::read(Family::V4, &damaged), Some(all.clone()), "{:?}", whole[lost]);
        }
        // The nft tool begins a set that way; another end in a gap has no effect.
        let harmless = [whole.clone(), vec![element(ip("0.0.0.0"), true), element(ip("172.16.0.0"), true)]].concat();
        assert_eq!(Ranges::read(Family::V4, &harmless), Some(all));
        let strange = [whole, vec![Element { data: OwnedData::Other, ..element(ip("10.0.0.0"), false) }]].concat();
        assert_eq!(Ranges::read(Family::V4, &strange), None);
    }

    #[test]
    fn an_id_is_of_the_addresses_alone() {
        let id = ranges(&["10.0.0.0/8"]).id();
        assert_eq!(id, ranges(&["10.0.0.0/9", "10.128.0.0/9"]).id());
        assert_ne!(id, ranges(&["10.0.0.0/9"]).id());
        // printf '\12\0\0\0\12\377\377\377' | sha256sum | cut -c1-32
        assert_eq!(id.to_string(), "9689a4055750e8e5c95ffa2b032a64ce");
    }

    proptest! {
        #[test]
        fn read_back_is_what_was_written(list in prop::collection::vec((0u32..64, 24u8..=32), 0..12)) {
            let address = |low: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + low * 5));
            let mut nets: Vec<IpNet> =
                list.iter().map(|(low, len)| IpNet::new(address(*low), *len).unwrap().trunc()).collect();
            nets.sort();
            let all = Ranges::new(&nets);
            for probe in (0..330).map(|low| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + low))) {
                let within = all.as_slice().iter().any(|range| (range.first..=range.last).contains(&probe));
                prop_assert_eq!(within, nets.iter().any(|net| net.contains(&probe)), "{}", probe);
            }
            prop_assert!(all.as_slice().windows(2).all(|pair| after(pair[0].last) < Some(pair[1].first)));
            prop_assert_eq!(Ranges::read(Family::V4, &elements(&all)), Some(all));
        }
    }
}
