//! loadBalancerSourceRanges: the sources that a load balancer address admits.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferry_api::object::{Family, IpNet, Service};

use crate::context::Context;
use crate::state::SourceRanges;
use crate::visible::Visible;

/// The ranges of the service that count in its family; `vips` are its load balancer addresses of the family.
///
/// Without a range of the family, or with one that holds every address, all sources are admitted; but where an unreadable range
/// may have been meant for the family, and there is no other, none is. If the node itself is in a range, the
/// VIPs become allowed sources: a VIP that is bound on the node is the source of the node's own connections to it.
pub(crate) fn source_ranges(visible: &Visible<'_>, vips: &BTreeSet<IpAddr>, context: &Context) -> SourceRanges {
    let of_family = |net: &&IpNet| Family::of_net(**net) == visible.family;
    let mut ranges: Vec<IpNet> = visible.service.source_ranges.iter().flatten().filter(of_family).copied().collect();
    if ranges.is_empty() {
        let closed = unreadable(visible.service).any(|(_, text)| may_concern(text, visible.family));
        return if closed { SourceRanges::Only([].into()) } else { SourceRanges::Any };
    }
    if ranges.iter().any(|range| range.prefix_len() == 0) {
        return SourceRanges::Any;
    }
    if let Some(node) = context.node_ip
        && ranges.iter().any(|range| range.contains(&node))
    {
        ranges.extend(vips.iter().map(|vip| IpNet::from(*vip)));
    }
    SourceRanges::Only(disjoint(ranges).into())
}

/// Unreadable ranges with their index.
pub(crate) fn unreadable(service: &Service) -> impl Iterator<Item = (usize, &str)> {
    let ranges = service.source_ranges.iter().enumerate();
    ranges.filter_map(|(index, range)| Some((index, &**range.as_ref().err()?)))
}

/// True if a text that is no range may have been meant as one of the family: all but those that are clearly of the other.
fn may_concern(text: &str, family: Family) -> bool {
    let (dotted, colons) = (text.contains('.'), text.contains(':'));
    let is_v4 = dotted && !colons && !text.contains(char::is_alphabetic);
    // An IPv4-mapped range is one of IPv4.
    let mapped = dotted || text.to_ascii_lowercase().contains("ffff:");
    let is_v6 = colons && !mapped && text.chars().filter(|c| c.is_alphabetic()).all(|c| c.is_ascii_hexdigit());
    match family {
        Family::V4 => !is_v6,
        Family::V6 => !is_v4,
    }
}

/// The same set of addresses as sorted ranges of which none holds another, without host bits.
pub(crate) fn disjoint(mut ranges: Vec<IpNet>) -> Vec<IpNet> {
    for range in &mut ranges {
        *range = range.trunc();
    }
    // By first address, the wider first: what a range holds follows it directly. Ranges of this form can't overlap
    // otherwise.
    ranges.sort_unstable_by_key(|range| (range.addr(), range.prefix_len()));
    ranges.dedup_by(|next, kept| kept.contains(&*next));
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn which_family_a_text_may_have_meant() {
        for (text, v4, v6) in [
            ("10.0.0.0/33", true, false),
            ("10.0.0.0/8, 10.1.0.0/16", true, false),
            ("10.0.0.0-10.0.0.9", true, false),
            ("fd00::/129", false, true),
            ("FD00::1::2", false, true),
            ("::ffff:10.0.0.0/200", true, true),
            ("::ffff:a00:0/200", true, true),
            ("office.example.com", true, true),
            ("office:v6", true, true),
            ("10/8", true, true),
            ("", true, true),
        ] {
            let got = Family::ALL.map(|family| may_concern(text, family));
            assert_eq!(got, [v4, v6], "{text:?}");
        }
    }

    #[test]
    fn nested_and_equal_ranges_become_one() {
        let got = disjoint(nets(&["10.1.0.0/16", "10.0.0.0/8", "192.0.2.1/32", "10.0.0.7/8", "192.0.2.0/31"]));
        assert_eq!(got, nets(&["10.0.0.0/8", "192.0.2.0/31"]));
    }

    #[test]
    fn neighbours_stay_apart() {
        let list = nets(&["10.0.0.0/25", "10.0.0.128/25"]);
        assert_eq!(disjoint(list.clone()), list);
    }

    proptest! {
        #[test]
        fn disjoint_sorted_and_the_same_set(
            list in prop::collection::vec((0u32..64, 24u8..=32), 0..12),
            probe in 0u32..64,
        ) {
            // Few addresses, so that ranges often meet.
            let address = |low: u32| IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + low * 5));
            let before: Vec<IpNet> = list.iter().map(|(low, len)| IpNet::new(address(*low), *len).unwrap()).collect();
            let after = disjoint(before.clone());
            let probe = address(probe);
            prop_assert_eq!(
                before.iter().any(|net| net.contains(&probe)),
                after.iter().any(|net| net.contains(&probe))
            );
            for pair in after.windows(2) {
                prop_assert!(pair[0].broadcast() < pair[1].network(), "{} {}", pair[0], pair[1]);
            }
            prop_assert!(after.iter().all(|net| *net == net.trunc()));
        }
    }
}
