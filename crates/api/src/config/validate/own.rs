//! Validates Ferry's own settings.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{ErrorCollector, MODES};
use crate::config::GoDuration;
use crate::config::port_range::PortRange;
use crate::config::types::{
    CONTROL_SOCKET, KubeProxyConfiguration, MODE_USERSPACE, PAGE_EVERYONE, PAGE_LOOPBACK, PAGE_NOBODY, SelfTest,
    WAY_BIND, WAY_REDIRECT,
};
use crate::object::Family;
use crate::wire::address::parse_cidr;

/// The longest path of a socket: the 108 bytes of `sockaddr_un`, less the end of its name while it is made.
const LONGEST_SOCKET: usize = 90;
/// The shortest period of the self-test: one test may take as long.
const SHORTEST_TEST_PERIOD: GoDuration = GoDuration::from_secs(1);
/// Bits of an address that a range of the self-test leaves free at least.
const TEST_BITS: u8 = 2;

impl KubeProxyConfiguration {
    /// Checks the settings of the FerryConfiguration.
    pub(super) fn validate_ferry(&self, found: &mut ErrorCollector) {
        let fallbacks = &self.ferry.proxy_mode_fallback;
        for (i, mode) in fallbacks.iter().enumerate() {
            let path = format!("FerryConfiguration.proxyModeFallback[{i}]");
            if !MODES.contains(&mode.as_str()) {
                found.invalid_text(&path, mode, "must be iptables, ipvs, nftables or userspace: correct or remove it");
            } else if fallbacks.iter().take(i).any(|earlier| earlier == mode) {
                found.invalid_text(&path, mode, "stands in the list already: remove it");
            } else if mode != self.configured_mode() {
                self.validate_fallback(mode, &path, found);
            }
        }
        if self.ferry.ipvs_termination_grace_period <= GoDuration::ZERO {
            let value = self.ferry.ipvs_termination_grace_period.to_string();
            let why = "must be greater than 0: remove it for the default, 15m";
            found.invalid_text("FerryConfiguration.ipvsTerminationGracePeriod", &value, why);
        }
        self.validate_snapshot(found);
        self.validate_control_socket(found);
        self.validate_status_page(found);
        self.validate_self_test(found);
        self.validate_userspace(found);
    }

    fn validate_userspace(&self, found: &mut ErrorCollector) {
        let userspace = &self.ferry.userspace;
        let way = userspace.way.as_str();
        if !["", WAY_REDIRECT, WAY_BIND].contains(&way) {
            let why = "must be redirect, bind or empty (empty: redirect, or bind where that can't be used)";
            found.invalid_text("FerryConfiguration.userspaceWay", way, why);
        }
        let durations = [
            ("UDPTimeout", userspace.udp_timeout, true, "250ms"),
            ("TerminationGracePeriod", userspace.termination_grace_period, false, "15m"),
            ("DrainTimeout", userspace.drain_timeout, false, "2s"),
        ];
        for (name, value, positive, default) in durations {
            let (fails, least) = match positive {
                true => (value <= GoDuration::ZERO, "be greater than 0"),
                false => (value < GoDuration::ZERO, "not be negative"),
            };
            if fails {
                let why = format!("must {least}: remove it for the default, {default}");
                found.invalid_text(&format!("FerryConfiguration.userspace{name}"), &value.to_string(), &why);
            }
        }
        let numbers = [
            ("MaxConnections", userspace.max_connections, 1),
            ("MaxConnectionsPerPort", userspace.max_connections_per_port, 0),
            ("MaxAssociations", userspace.max_associations, 1),
        ];
        for (name, value, least) in numbers {
            if value < least {
                found.invalid(
                    &format!("FerryConfiguration.userspace{name}"),
                    value,
                    &format!("must be at least {least}"),
                );
            }
        }
        // In other modes it has no effect, as with upstream.
        let uses_ports = self.modes_to_try().contains(&MODE_USERSPACE);
        if uses_ports && let Err(why) = PortRange::parse(&self.port_range) {
            found.invalid_text("KubeProxyConfiguration.PortRange", &self.port_range, &why);
        }
    }

    fn validate_control_socket(&self, found: &mut ErrorCollector) {
        let path = &self.ferry.control_socket;
        if !path.is_empty() && (!path.starts_with('/') || path.ends_with('/') || path.len() > LONGEST_SOCKET) {
            let why = format!(
                "must be the absolute path of a socket of at most {LONGEST_SOCKET} bytes, such as {CONTROL_SOCKET}, or empty for none"
            );
            found.invalid_text("FerryConfiguration.controlSocket", path, &why);
        }
    }

    fn validate_status_page(&self, found: &mut ErrorCollector) {
        let page = self.ferry.status_page.as_str();
        if ![PAGE_LOOPBACK, PAGE_EVERYONE, PAGE_NOBODY].contains(&page) {
            let why = format!("must be {PAGE_LOOPBACK}, {PAGE_EVERYONE} or {PAGE_NOBODY}");
            found.invalid_text("FerryConfiguration.statusPage", page, &why);
        }
    }

    fn validate_self_test(&self, found: &mut ErrorCollector) {
        let SelfTest { period, ranges } = &self.ferry.self_test;
        if *period != GoDuration::ZERO && *period < SHORTEST_TEST_PERIOD {
            let why = format!("must be at least {SHORTEST_TEST_PERIOD}, or 0s for no tests");
            found.invalid_text("FerryConfiguration.selfTestPeriod", &period.to_string(), &why);
        }
        let mut families = BTreeSet::new();
        for (i, text) in ranges.iter().enumerate() {
            let path = format!("FerryConfiguration.selfTestRanges[{i}]");
            match parse_cidr(text) {
                None => found.invalid_text(&path, text, "must be an IP range in CIDR notation, such as 10.99.0.0/29"),
                Some(range) if range.max_prefix_len() - range.prefix_len() < TEST_BITS => {
                    found.invalid_text(&path, text, "must have at least four addresses");
                }
                Some(range) if is_confined(range.addr()) => {
                    found.invalid_text(&path, text, "must not be loopback, link-local, multicast or unspecified");
                }
                Some(range) if !families.insert(Family::of(range.addr())) => {
                    found.invalid_text(
                        &path,
                        text,
                        "must not be of the same family as another one: remove one of them",
                    );
                }
                Some(_) => {}
            }
        }
    }

    fn validate_snapshot(&self, found: &mut ErrorCollector) {
        let (path, max_age) = (&self.ferry.snapshot, self.ferry.snapshot_max_age);
        if !path.is_empty() && (!path.starts_with('/') || path.ends_with('/')) {
            let why = "must be the absolute path of a file that survives a restart of the machine, such as \
                       /var/lib/ferry/snapshot";
            found.invalid_text("FerryConfiguration.snapshot", path, why);
        }
        if max_age < GoDuration::ZERO {
            let why = "must not be negative: remove it for the default, 24h, or write 0s for no limit";
            found.invalid_text("FerryConfiguration.snapshotMaxAge", &max_age.to_string(), why);
        }
    }
}

/// True for addresses that no Service can have.
fn is_confined(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified()
}
