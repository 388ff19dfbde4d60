//! The IP family, shared by the crates that describe Kubernetes objects and the crate that talks to the kernel, so that no
//! border needs a conversion. Pure.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// An IP family; the proxy runs one independent instance of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

// === impl Family ===

impl Family {
    /// Both, IPv4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The family of a network.
    pub fn of_net(net: IpNet) -> Self {
        Self::of(net.addr())
    }

    /// Linux's number: `AF_INET` or `AF_INET6` (linux/socket.h), which netfilter calls `NFPROTO_IPV4` and `NFPROTO_IPV6`.
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// The family of this number; `None` for all others, such as `NFPROTO_INET`.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            2 => Some(Self::V4),
            10 => Some(Self::V6),
            _ => None,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_linux() {
        assert_eq!(Family::ALL.map(Family::number), [2, 10]);
        let known: Vec<_> = (0..=u8::MAX).filter_map(|n| Family::from_number(n).map(|family| (n, family))).collect();
        assert_eq!(known, [(2, Family::V4), (10, Family::V6)]);
    }

    #[test]
    fn addresses_and_networks_have_a_family() {
        for (address, family, name) in [("192.0.2.1", Family::V4, "IPv4"), ("::ffff:192.0.2.1", Family::V6, "IPv6")] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!((Family::of(address), Family::of_net(address.into())), (family, family));
            assert_eq!(family.to_string(), name);
        }
    }
}
