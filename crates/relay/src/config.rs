//! The settings of a relay.

use std::time::Duration;

use crate::choose::MAX_TRIES;

/// Settings of a relay. The defaults are those of upstream's mode userspace where it had any.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// The number of threads that relay; at least one.
    pub workers: usize,
    /// The time limits of the tries of one connection, against one endpoint after another.
    pub dial_limits: [Duration; MAX_TRIES],
    /// The fate of the TCP connections of an endpoint that is removed. UDP clients get another endpoint with their next
    /// datagram.
    pub removal: Removal,
    /// Time without a datagram either way after which a UDP association ends.
    pub udp_idle: Duration,
    /// The most open TCP connections of all ports.
    pub max_connections: usize,
    /// The most UDP associations of all ports.
    pub max_associations: usize,
    /// The mark of packets to endpoints (`SO_MARK`, which takes `CAP_NET_ADMIN`), by which rules tell them from those of clients: an
    /// endpoint may be at an address and port that rules lead to the relay.
    pub mark: Option<u32>,
    /// TCP keepalive on both sides of a connection.
    pub keepalive: Keepalive,
    /// Copies large streams in the kernel (`splice(2)`), where the system can. Otherwise all bytes pass through this process.
    pub splice: bool,
}

/// The fate of the established connections of a removed endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// They live until they end.
    Keep,
    /// They are reset if they still exist after this time.
    Grace(Duration),
    /// They are reset at once.
    Cut,
}

/// TCP keepalive: a connection whose peer has vanished ends after `idle + interval * probes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Time without a byte before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes without an answer.
    pub probes: u32,
}

/// The least number of descriptors that [`RelayConfig::fit`] leaves to pipes, the rest of the program and listeners, of which each port of UDP
/// has one; of few descriptors, half.
const RESERVED: u64 = 1024;
/// The part of many descriptors that it leaves, as a divisor.
const RESERVED_PART: u64 = 8;

// === impl RelayConfig ===

impl RelayConfig {
    /// The number of descriptors with which [`RelayConfig::fit`] lowers nothing.
    pub fn descriptors(&self) -> u64 {
        let of_both = (4 * self.max_connections).max(2 * self.max_associations);
        let with_part = |used: u64| used.saturating_mul(RESERVED_PART).div_ceil(RESERVED_PART - 1);
        u64::try_from(of_both).map_or(u64::MAX, |used| with_part(used).max(used.saturating_add(RESERVED)))
    }

    /// Lowers the limits of connections and associations to what so many descriptors allow, so that clients are refused and
    /// counted before descriptors are exhausted: a connection takes two, an association one. Each kind may use half of them.
    pub fn fit(&mut self, descriptors: u64) {
        let reserved = RESERVED.max(descriptors / RESERVED_PART).min(descriptors / 2);
        let available = usize::try_from(descriptors - reserved).unwrap_or(usize::MAX);
        self.max_connections = self.max_connections.min(available / 4);
        self.max_associations = self.max_associations.min(available / 2);
    }
}

impl Default for RelayConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            workers: cores.min(4),
            dial_limits: [250, 500, 1000, 2000].map(Duration::from_millis),
            removal: Removal::Keep,
            udp_idle: Duration::from_millis(250),
            max_connections: 100_000,
            max_associations: 50_000,
            mark: None,
            keepalive: Keepalive { idle: Duration::from_secs(60), interval: Duration::from_secs(15), probes: 5 },
            splice: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_upstreams() {
        let config = RelayConfig::default();
        assert_eq!(config.dial_limits.map(|limit| limit.as_millis()), [250, 500, 1000, 2000]);
        assert_eq!(config.udp_idle.as_millis(), 250);
        let Keepalive { idle, interval, probes } = config.keepalive;
        assert_eq!((idle.as_secs(), interval.as_secs(), probes), (60, 15, 5), "a lost peer is found after 135 s");
    }

    #[test]
    fn limits_fit_the_descriptors() {
        let limits = |descriptors| {
            let mut config = RelayConfig::default();
            config.fit(descriptors);
            (config.max_connections, config.max_associations)
        };
        assert_eq!(limits(u64::MAX), (100_000, 50_000));
        assert_eq!(limits(64_000), (14_000, 28_000));
        assert_eq!(limits(5_024), (1_000, 2_000));
        assert_eq!(limits(1_024), (128, 256));
        assert_eq!(limits(0), (0, 0));
        let config = RelayConfig::default();
        assert_eq!(limits(config.descriptors()), (config.max_connections, config.max_associations));
        assert!(limits(config.descriptors() - 2 * RESERVED) < (config.max_connections, config.max_associations));
    }
}
