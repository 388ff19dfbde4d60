//! Retains the last known addresses and pod ranges of the Node: rules that depend on them stay right for running pods, and
//! without them node ports would open on addresses that the configuration excludes.

use ferry_api::object::{AddressKind, Family, IpNet, Node, NodeAddress};

use crate::context::PerFamily;

/// Facts retained from earlier versions of the Node, by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// its addresses of a family
    pub addresses: PerFamily<bool>,
    /// its pod range of a family
    pub pod_ranges: PerFamily<bool>,
}

/// Fills in the primary address and the pod range of each family that the Node has lost since `before`, which may have been
/// completed itself.
pub(crate) fn complete(node: &mut Node, before: Option<&Node>) -> Retained {
    let Some(before) = before else { return Retained::default() };
    let addresses =
        PerFamily::from_fn(|family| lost(node, before, family, |node, family| primary(node, family).cloned()));
    let pod_ranges = PerFamily::from_fn(|family| lost(node, before, family, pod_range));
    for family in Family::ALL {
        let address = addresses.of(family).clone().into_iter();
        node.addresses = std::mem::take(&mut node.addresses).into_iter().chain(address).collect();
        let range = pod_ranges.of(family).map(Ok);
        node.pod_cidrs = std::mem::take(&mut node.pod_cidrs).into_iter().chain(range).collect();
    }
    Retained {
        addresses: PerFamily::from_fn(|family| addresses.of(family).is_some()),
        pod_ranges: PerFamily::from_fn(|family| pod_ranges.of(family).is_some()),
    }
}

fn lost<T>(node: &Node, before: &Node, family: Family, fact: impl Fn(&Node, Family) -> Option<T>) -> Option<T> {
    if fact(node, family).is_some() { None } else { fact(before, family) }
}

/// The first InternalIP of the family, else its first ExternalIP.
pub(crate) fn primary(node: &Node, family: Family) -> Option<&NodeAddress> {
    let of = |kind| {
        let is_of = move |entry: &&NodeAddress| {
            entry.kind == kind && entry.address.as_ref().is_ok_and(|address| Family::of(*address) == family)
        };
        node.addresses.iter().find(is_of)
    };
    of(AddressKind::Internal).or_else(|| of(AddressKind::External))
}

/// The first pod range of the family.
pub(crate) fn pod_range(node: &Node, family: Family) -> Option<IpNet> {
    node.pod_cidrs.iter().flatten().copied().find(|range| Family::of_net(*range) == family)
}

#[cfg(test)]
mod tests {
    use ferry_api::object::ObjectName;

    use super::*;
    use crate::testing::ip;

    fn node(addresses: &[(AddressKind, &str)], ranges: &[&str]) -> Node {
        Node {
            name: ObjectName::cluster_wide("here"),
            zone: None,
            addresses: addresses
                .iter()
                .map(|(kind, text)| NodeAddress { kind: *kind, address: Ok(ip(text)) })
                .collect(),
            pod_cidrs: ranges.iter().map(|text| Ok(text.parse().unwrap())).collect(),
            deleting: false,
            to_be_deleted: false,
        }
    }

    fn facts(node: &Node) -> [Vec<String>; 2] {
        let address = |family| Some(primary(node, family)?.address.as_ref().unwrap().to_string());
        let range = |family| Some(pod_range(node, family)?.to_string());
        [Family::ALL.into_iter().filter_map(address).collect(), Family::ALL.into_iter().filter_map(range).collect()]
    }

    #[test]
    fn what_a_node_has_lost_stays_until_it_has_another() {
        use AddressKind::{External, Internal};
        let whole = node(
            &[(Internal, "192.0.2.10"), (Internal, "2001:db8::10"), (External, "2001:db8:f::1")],
            &["10.244.1.0/24", "fd00:10:244:1::/64"],
        );
        let mut now = whole.clone();
        assert_eq!(complete(&mut now, None), Retained::default());
        assert_eq!(complete(&mut now, Some(&whole)), Retained::default());
        assert_eq!(now, whole, "nothing is missing");
        // one family of both goes
        let mut less = node(&[(Internal, "192.0.2.11")], &["fd00:10:244:2::/64"]);
        let retained = complete(&mut less, Some(&now));
        assert_eq!(
            (retained.addresses, retained.pod_ranges),
            (PerFamily { v4: false, v6: true }, PerFamily { v4: true, v6: false })
        );
        assert_eq!(facts(&less), [["192.0.2.11", "2001:db8::10"], ["10.244.1.0/24", "fd00:10:244:2::/64"]]);
        // then all, and it stays over any number of updates of the Node
        for _ in 0..3 {
            let mut bare = node(&[], &[]);
            let retained = complete(&mut bare, Some(&less));
            assert_eq!(retained.addresses, PerFamily { v4: true, v6: true });
            assert_eq!(facts(&bare), facts(&less));
            less = bare;
        }
        let mut renewed = node(&[(External, "2001:db8:f::1")], &["10.244.7.0/24"]);
        let retained = complete(&mut renewed, Some(&less));
        assert_eq!(retained.addresses, PerFamily { v4: true, v6: false });
        assert_eq!(facts(&renewed), [["192.0.2.11", "2001:db8:f::1"], ["10.244.7.0/24", "fd00:10:244:2::/64"]]);
    }
}
