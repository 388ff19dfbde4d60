//! Special addresses (loopback, link-local, multicast …), which are refused for Services and endpoints.

use std::net::IpAddr;

/// The kind of a special address, which no Service and no endpoint may have; `None` for all others. The list of the API
/// server's `ValidateNonSpecialIP`, all of multicast, and broadcast. An IPv4-mapped address counts as the one it holds.
///
/// With `route_localnet` set, DNAT to 127.0.0.1 would expose the node's loopback-only services to clients, and a frontend
/// there would take the node's own connections.
pub(crate) fn special(address: IpAddr) -> Option<&'static str> {
    let of = |unspecified, loopback, link_local, multicast, broadcast| match () {
        () if unspecified => Some("the unspecified address"),
        () if loopback => Some("a loopback address"),
        () if link_local => Some("a link-local address"),
        () if multicast => Some("a multicast address"),
        () if broadcast => Some("the broadcast address"),
        () => None,
    };
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            of(v4.is_unspecified(), v4.is_loopback(), v4.is_link_local(), v4.is_multicast(), v4.is_broadcast())
        }
        IpAddr::V6(v6) => {
            of(v6.is_unspecified(), v6.is_loopback(), v6.is_unicast_link_local(), v6.is_multicast(), false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ip;

    #[test]
    fn the_edges_of_what_is_special() {
        for (text, wanted) in [
            ("0.0.0.0", Some("the unspecified address")),
            ("::", Some("the unspecified address")),
            ("::ffff:0.0.0.0", Some("the unspecified address")),
            ("126.255.255.255", None),
            ("127.0.0.0", Some("a loopback address")),
            ("127.255.255.255", Some("a loopback address")),
            ("128.0.0.0", None),
            ("::1", Some("a loopback address")),
            ("::2", None),
            ("::ffff:127.0.0.1", Some("a loopback address")),
            ("169.253.255.255", None),
            ("169.254.0.0", Some("a link-local address")),
            ("169.254.255.255", Some("a link-local address")),
            ("169.255.0.0", None),
            ("fe7f::1", None),
            ("fe80::", Some("a link-local address")),
            ("febf:ffff::1", Some("a link-local address")),
            ("fec0::1", None),
            ("223.255.255.255", None),
            ("224.0.0.1", Some("a multicast address")),
            ("239.255.255.255", Some("a multicast address")),
            ("::ffff:224.0.0.1", Some("a multicast address")),
            ("240.0.0.0", None),
            ("feff::1", None),
            ("ff00::", Some("a multicast address")),
            ("ff02::1", Some("a multicast address")),
            ("ff0e::1", Some("a multicast address")),
            ("255.255.255.254", None),
            ("255.255.255.255", Some("the broadcast address")),
            ("::ffff:255.255.255.255", Some("the broadcast address")),
            ("10.0.0.1", None),
            ("fd00::1", None),
        ] {
            assert_eq!(special(ip(text)), wanted, "{text}");
        }
    }
}
