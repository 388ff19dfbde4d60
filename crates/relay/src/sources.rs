//! Source ranges: the clients that a port admits.

use std::net::IpAddr;

use ipnet::IpNet;

/// Ranges of addresses, sorted and merged, so that a lookup is a binary search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceRanges {
    ipv4: Vec<(u128, u128)>,
    ipv6: Vec<(u128, u128)>,
}

// === impl SourceRanges ===

impl SourceRanges {
    /// Ranges from networks of any order and overlap. Without a network no client is admitted.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        let mut ranges = Self::default();
        for network in networks {
            let range = (number(network.network()), number(network.broadcast()));
            if network.addr().is_ipv4() { &mut ranges.ipv4 } else { &mut ranges.ipv6 }.push(range);
        }
        merge(&mut ranges.ipv4);
        merge(&mut ranges.ipv6);
        ranges
    }

    /// True if a range contains the client. An IPv4 address that is mapped into IPv6 is judged as IPv4.
    pub fn admit(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let ranges = if client.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        let number = number(client);
        let behind = ranges.partition_point(|&(first, _)| first <= number);
        behind.checked_sub(1).and_then(|position| ranges.get(position)).is_some_and(|&(_, last)| number <= last)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// Sorts ranges and joins those that overlap.
fn merge(ranges: &mut Vec<(u128, u128)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let overlap = next.0 <= before.1;
        if overlap {
            before.1 = before.1.max(next.1);
        }
        overlap
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn networks(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn ranges_overlap_nest_and_belong_to_a_family() {
        let ranges = SourceRanges::new(networks(&["10.0.0.0/8", "10.1.0.0/16", "192.0.2.7/32", "2001:db8::/64"]));
        for (client, admitted) in [
            ("9.255.255.255", false),
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("::ffff:192.0.2.7", true),
            ("2001:db8::1", true),
            ("2001:db8:0:1::", false),
            ("::a00:1", false),
        ] {
            assert_eq!(ranges.admit(client.parse().unwrap()), admitted, "{client}");
        }
        assert!(!SourceRanges::default().admit("10.0.0.1".parse().unwrap()));
        assert!(SourceRanges::new(networks(&["0.0.0.0/0"])).admit("255.255.255.255".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn they_contain_what_any_network_contains(
            networks in prop::collection::vec((0u32..64, 26u8..=32), 0..6),
            client in 0u32..80,
        ) {
            let networks: Vec<IpNet> = networks.into_iter()
                .map(|(host, length)| IpNet::new(IpAddr::V4(host.into()), length).unwrap().trunc()).collect();
            let client = IpAddr::V4(client.into());
            let contained = networks.iter().any(|network| network.contains(&client));
            prop_assert_eq!(SourceRanges::new(networks).admit(client), contained);
        }
    }
}
