//! The addresses of a test of the data path.

use std::net::{IpAddr, SocketAddr};

use ferry_api::object::Family;
use ipnet::IpNet;

/// The addresses of one family that a test uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestAddresses {
    /// the Service's
    pub service: IpAddr,
    /// the client's, in its namespace
    pub client: IpAddr,
    /// the endpoint's, in its namespace
    pub endpoint: IpAddr,
}

/// The port of the Service and of its endpoint.
pub const TEST_PORT: u16 = 80;

// === impl TestAddresses ===

impl TestAddresses {
    /// Those of a range: its second to fourth addresses.
    pub fn of(range: IpNet) -> Option<Self> {
        let at = |number: u8| match range.network() {
            IpAddr::V4(first) => Some(IpAddr::from(first.to_bits().checked_add(number.into())?.to_be_bytes())),
            IpAddr::V6(first) => Some(IpAddr::from(first.to_bits().checked_add(number.into())?.to_be_bytes())),
        };
        Some(Self { service: at(1)?, client: at(2)?, endpoint: at(3)? })
    }

    /// The family of all three.
    pub fn family(&self) -> Family {
        Family::of(self.service)
    }

    /// Where the client connects to.
    pub fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.service, TEST_PORT)
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::config::SELF_TEST_RANGES;
    use ferry_api::wire::address::parse_cidr;

    use super::*;

    #[test]
    fn a_range_has_three_addresses() {
        let of = |text: &str| {
            let addresses = TestAddresses::of(parse_cidr(text).unwrap()).unwrap();
            [addresses.service, addresses.client, addresses.endpoint].map(|address| address.to_string())
        };
        assert_eq!(of("10.99.0.7/29"), ["10.99.0.1", "10.99.0.2", "10.99.0.3"]);
        assert_eq!(of("fd00:99::/126"), ["fd00:99::1", "fd00:99::2", "fd00:99::3"]);
        assert_eq!(SELF_TEST_RANGES.map(of)[0], ["192.0.2.249", "192.0.2.250", "192.0.2.251"]);
    }
}
