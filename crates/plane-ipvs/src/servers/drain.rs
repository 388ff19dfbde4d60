//! Graceful termination: an endpoint that has left its virtual server keeps its TCP connections, with weight 0, until they have
//! ended or the grace period is over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferry_kernel::ipvs::{Connections, Destination};
use ferry_model::Endpoint;

use super::convert::endpoint_of;
use crate::server::ServerId;

/// The draining endpoints of one family.
#[derive(Debug)]
pub(crate) struct Draining {
    /// time after which an endpoint is deleted with its connections
    grace: Duration,
    /// the ends of the grace periods
    until: BTreeMap<ServerId, BTreeMap<Endpoint, Instant>>,
}

// === impl Draining ===

impl Draining {
    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, until: BTreeMap::new() }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.until.is_empty()
    }

    /// The servers with draining endpoints.
    pub(crate) fn servers(&self) -> Vec<ServerId> {
        self.until.keys().copied().collect()
    }

    /// Sets the draining endpoints of a server. Those that drain already keep the end of their grace period.
    pub(crate) fn set(&mut self, id: ServerId, endpoints: &[Endpoint], now: Instant) {
        let before = self.until.remove(&id).unwrap_or_default();
        let end = |endpoint: &Endpoint| before.get(endpoint).copied().unwrap_or(now + self.grace);
        let after: BTreeMap<Endpoint, Instant> = endpoints.iter().map(|endpoint| (*endpoint, end(endpoint))).collect();
        if !after.is_empty() {
            self.until.insert(id, after);
        }
    }

    /// Takes up what the kernel has of a server: an endpoint of weight 0 drains. So one that drained when the proxy ended is known
    /// at the next start, with a new grace period.
    pub(crate) fn found(&mut self, id: ServerId, destinations: &[(Destination, Connections)], now: Instant) {
        let idle = destinations.iter().filter(|(destination, _)| destination.weight == 0);
        let idle: Vec<Endpoint> = idle.map(|(destination, _)| endpoint_of(destination.address)).collect();
        self.set(id, &idle, now);
    }

    /// The server is gone, with its endpoints.
    pub(crate) fn forget(&mut self, id: ServerId) {
        self.until.remove(&id);
    }

    /// Of a server's draining endpoints, those to delete now: their connections have ended, or their grace period is over.
    /// Forgets these, and those that the server doesn't have any more with weight 0.
    pub(crate) fn ended(
        &mut self,
        id: ServerId,
        destinations: &[(Destination, Connections)],
        now: Instant,
    ) -> Vec<Endpoint> {
        let Some(until) = self.until.get_mut(&id) else { return Vec::new() };
        let idle: BTreeMap<Endpoint, Connections> = destinations
            .iter()
            .filter(|(destination, _)| destination.weight == 0)
            .map(|(destination, connections)| (endpoint_of(destination.address), *connections))
            .collect();
        let mut ended = Vec::new();
        until.retain(|endpoint, end| {
            let Some(connections) = idle.get(endpoint) else { return false };
            let has_ended = connections.active == 0 && connections.inactive == 0;
            let is_over = has_ended || *end <= now;
            if is_over {
                ended.push(*endpoint);
            }
            !is_over
        });
        if until.is_empty() {
            self.until.remove(&id);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;

    use super::super::convert::destination;
    use super::*;

    const GRACE: Duration = Duration::from_secs(900);

    fn id() -> ServerId {
        ServerId { protocol: Protocol::Tcp, address: [10, 96, 0, 1].into(), port: 80 }
    }

    fn endpoint(last: u8) -> Endpoint {
        Endpoint { address: [10, 244, 0, last].into(), port: 8080 }
    }

    fn at(last: u8, weight: u32, active: u32, inactive: u32) -> (Destination, Connections) {
        (destination(endpoint(last), weight), Connections { active, inactive, persistent: 0 })
    }

    #[test]
    fn an_endpoint_goes_when_its_connections_have_ended() {
        let (mut draining, now) = (Draining::new(GRACE), Instant::now());
        draining.set(id(), &[endpoint(1), endpoint(2)], now);
        assert_eq!(draining.ended(id(), &[at(1, 0, 1, 0), at(2, 0, 0, 1), at(3, 1, 0, 0)], now), []);
        assert_eq!(draining.ended(id(), &[at(1, 0, 0, 0), at(2, 0, 1, 0)], now), [endpoint(1)]);
        assert_eq!(draining.servers(), [id()]);
        assert_eq!(draining.ended(id(), &[at(2, 0, 0, 0)], now), [endpoint(2)]);
        assert!(draining.is_empty());
    }

    #[test]
    fn the_grace_period_begins_once() {
        let (mut draining, start) = (Draining::new(GRACE), Instant::now());
        draining.set(id(), &[endpoint(1)], start);
        draining.set(id(), &[endpoint(1), endpoint(2)], start + GRACE / 2);
        let there = [at(1, 0, 5, 0), at(2, 0, 5, 0)];
        assert_eq!(draining.ended(id(), &there, start + GRACE - Duration::from_secs(1)), []);
        assert_eq!(draining.ended(id(), &there, start + GRACE), [endpoint(1)]);
        assert_eq!(draining.ended(id(), &there[1..], start + GRACE * 2), [endpoint(2)]);
    }

    #[test]
    fn an_endpoint_that_is_back_or_gone_drains_no_longer() {
        let (mut draining, now) = (Draining::new(GRACE), Instant::now());
        draining.set(id(), &[endpoint(1), endpoint(2)], now);
        assert_eq!(draining.ended(id(), &[at(1, 1, 0, 0)], now), []);
        assert!(draining.is_empty());
        draining.set(id(), &[endpoint(1)], now);
        draining.set(id(), &[], now);
        assert!(draining.is_empty());
    }

    #[test]
    fn what_drained_at_the_end_of_a_run_drains_at_the_next_start() {
        let (mut draining, now) = (Draining::new(GRACE), Instant::now());
        draining.found(id(), &[at(1, 1, 0, 0), at(2, 0, 3, 0)], now);
        assert_eq!(draining.ended(id(), &[at(2, 0, 3, 0)], now + GRACE), [endpoint(2)]);
    }
}
