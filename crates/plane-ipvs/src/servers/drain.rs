//! Graceful termination: an endpoint that has left its virtual server keeps its TCP connections, with weight 0, until they have
//! ended or a grace period is over. That begins when the endpoint leaves the slices of its Service: a Pod that terminates, and an
//! endpoint that a traffic policy or hints deselect, are listed there and may serve their connections as long as these last.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use ferry_api::object::Protocol;
use ferry_kernel::ipvs::{Connections, IpvsDestination, RefusalCause, RefusedCommand};
use ferry_model::Endpoint;

use super::convert::endpoint_of;
use crate::server::{Listed, ServerId};

/// The draining endpoints of one family.
#[derive(Debug)]
pub(crate) struct Draining {
    /// time after which an endpoint that has left the slices is deleted with its connections
    grace: Duration,
    servers: BTreeMap<ServerId, BTreeMap<Endpoint, DrainState>>,
}

/// The state of a draining endpoint.
#[derive(Clone, Copy, Debug)]
struct DrainState {
    /// the end of its grace period; `None` while it is listed
    end: Option<Instant>,
    /// the kernel refuses to delete it, which was logged
    is_refused: bool,
}

// === impl Draining ===

impl Draining {
    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, servers: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// True if endpoints of this server drain.
    pub(crate) fn has(&self, id: ServerId) -> bool {
        self.servers.contains_key(&id)
    }

    /// The servers with draining endpoints.
    pub(crate) fn servers(&self) -> Vec<ServerId> {
        self.servers.keys().copied().collect()
    }

    /// Sets the draining endpoints of a server. The state of those that drain already stays; the grace period of others begins,
    /// unless [`Draining::list`] follows.
    pub(crate) fn set(&mut self, id: ServerId, endpoints: &[Endpoint], now: Instant) {
        let before = self.servers.remove(&id).unwrap_or_default();
        let new = DrainState { end: Some(now + self.grace), is_refused: false };
        let state = |endpoint: &Endpoint| (*endpoint, before.get(endpoint).copied().unwrap_or(new));
        let after: BTreeMap<Endpoint, DrainState> = endpoints.iter().map(state).collect();
        if !after.is_empty() {
            self.servers.insert(id, after);
        }
    }

    /// Takes up what the kernel has of a server: an endpoint of weight 0 drains. So one that drained when the proxy ended is known
    /// at the next start, with a new grace period.
    pub(crate) fn found(&mut self, id: ServerId, destinations: &[(IpvsDestination, Connections)], now: Instant) {
        let idle = destinations.iter().filter(|(destination, _)| destination.weight == 0);
        let idle: Vec<Endpoint> = idle.map(|(destination, _)| endpoint_of(destination.address)).collect();
        self.set(id, &idle, now);
    }

    /// Takes up which endpoints are in the slices of the server's Service: the grace period of a draining one that is not begins
    /// now, unless it has begun.
    pub(crate) fn list(&mut self, id: ServerId, listed: &Listed, now: Instant) {
        for (endpoint, state) in self.servers.get_mut(&id).into_iter().flatten() {
            state.end = if listed.contains(endpoint) { None } else { state.end.or(Some(now + self.grace)) };
        }
    }

    /// The server is gone, with its endpoints.
    pub(crate) fn forget(&mut self, id: ServerId) {
        self.servers.remove(&id);
    }

    /// Of a server's draining endpoints, those to delete now: their connections have ended, or their grace period is over. They are
    /// known until [`Draining::deleted`]. Forgets those that the server doesn't have any more with weight 0.
    pub(crate) fn ended(
        &mut self,
        id: ServerId,
        destinations: &[(IpvsDestination, Connections)],
        now: Instant,
    ) -> Vec<Endpoint> {
        let Entry::Occupied(mut server) = self.servers.entry(id) else { return Vec::new() };
        let idle: BTreeMap<Endpoint, Connections> = destinations
            .iter()
            .filter(|(destination, _)| destination.weight == 0)
            .map(|(destination, connections)| (endpoint_of(destination.address), *connections))
            .collect();
        let mut ended = Vec::new();
        server.get_mut().retain(|endpoint, state| {
            let Some(connections) = idle.get(endpoint) else { return false };
            let is_unused = connections.active == 0 && connections.inactive == 0;
            let is_over = state.end.is_some_and(|end| end <= now);
            // Flows of UDP and SCTP don't end by themselves: an endpoint of weight 0 is another program's, or an earlier run's.
            if is_unused || is_over || id.protocol != Protocol::Tcp {
                ended.push(*endpoint);
            }
            true
        });
        if server.get().is_empty() {
            server.remove();
        }
        ended
    }

    /// Forgets endpoints that were deleted. Those whose deletion the kernel has refused stay; `refused` has their positions. Returns those
    /// that it has refused for the first time.
    pub(crate) fn deleted<'r>(
        &mut self,
        ended: &[(ServerId, Endpoint)],
        refused: &'r [RefusedCommand],
    ) -> Vec<&'r RefusedCommand> {
        let mut newly_refused = Vec::new();
        for (index, (id, endpoint)) in ended.iter().enumerate() {
            let Entry::Occupied(mut server) = self.servers.entry(*id) else { continue };
            match refused.iter().find(|failure| failure.index == index) {
                // One that is gone already is as wanted.
                None | Some(RefusedCommand { cause: RefusalCause::NoServer | RefusalCause::NoDestination, .. }) => {
                    server.get_mut().remove(endpoint);
                    if server.get().is_empty() {
                        server.remove();
                    }
                }
                Some(
                    failure @ RefusedCommand {
                        cause: RefusalCause::Exists | RefusalCause::NoScheduler(_) | RefusalCause::Other,
                        ..
                    },
                ) => {
                    if let Some(state) = server.get_mut().get_mut(endpoint)
                        && !std::mem::replace(&mut state.is_refused, true)
                    {
                        newly_refused.push(failure);
                    }
                }
            }
        }
        newly_refused
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Family;
    use ferry_conformance::states;
    use ferry_kernel::netlink::MessageError;
    use ferry_model::{Pool, PortState};

    use super::super::convert::destination;
    use super::*;

    const GRACE: Duration = Duration::from_secs(900);

    fn id() -> ServerId {
        ServerId { protocol: Protocol::Tcp, address: [10, 96, 0, 1].into(), port: 80 }
    }

    fn endpoint(last: u8) -> Endpoint {
        Endpoint { address: [10, 244, 0, last].into(), port: 8080 }
    }

    /// A port with these endpoints in its slices.
    fn listed(cluster: &[u8], lingering: &[u8]) -> Listed {
        let pool = |last| states::pool(Family::V4, last);
        let port = states::port(Protocol::Tcp, pool(cluster), Pool::default(), Vec::new());
        Listed::of(&PortState { lingering: pool(lingering), ..port })
    }

    fn at(last: u8, weight: u32, active: u32, inactive: u32) -> (IpvsDestination, Connections) {
        (destination(endpoint(last), weight), Connections { active, inactive, persistent: 0 })
    }

    #[test]
    fn an_endpoint_goes_when_its_connections_have_ended() {
        let (mut draining, now) = (Draining::new(GRACE), Instant::now());
        draining.set(id(), &[endpoint(1), endpoint(2)], now);
        draining.list(id(), &listed(&[], &[1]), now);
        assert_eq!(draining.ended(id(), &[at(1, 0, 1, 0), at(2, 0, 0, 1), at(3, 1, 0, 0)], now), []);
        assert_eq!(draining.ended(id(), &[at(1, 0, 0, 0), at(2, 0, 1, 0)], now), [endpoint(1)], "listed or not");
        draining.deleted(&[(id(), endpoint(1))], &[]);
        assert_eq!(draining.servers(), [id()]);
        assert_eq!(draining.ended(id(), &[at(2, 0, 0, 0)], now), [endpoint(2)]);
        draining.deleted(&[(id(), endpoint(2))], &[]);
        assert!(draining.is_empty());
    }

    #[test]
    fn an_endpoint_is_known_until_its_deletion_is_confirmed() {
        const ENOENT: i32 = 2;
        const ENOMEM: i32 = 12;
        let (mut draining, now) = (Draining::new(GRACE), Instant::now());
        draining.set(id(), &[endpoint(1), endpoint(2), endpoint(3)], now);
        let there = [at(1, 0, 0, 0), at(2, 0, 0, 0), at(3, 0, 0, 0)];
        let ended: Vec<_> = draining.ended(id(), &there, now).into_iter().map(|endpoint| (id(), endpoint)).collect();
        assert_eq!(ended.len(), 3);
        let refused = |index, cause, number| {
            let error = MessageError {
                sequence: 0,
                offset: None,
                error: std::io::Error::from_raw_os_error(number),
                text: None,
            };
            RefusedCommand { index, cause, error }
        };
        let failures = [refused(1, RefusalCause::Other, ENOMEM), refused(2, RefusalCause::NoDestination, ENOENT)];
        let first: Vec<usize> = draining.deleted(&ended, &failures).iter().map(|failure| failure.index).collect();
        assert_eq!(first, [1]);
        assert_eq!(draining.ended(id(), &there[1..2], now), [endpoint(2)], "it is tried again");
        assert!(
            draining.deleted(&ended[1..2], &[refused(0, RefusalCause::Other, ENOMEM)]).is_empty(),
            "it is reported once"
        );
        draining.deleted(&ended[1..2], &[refused(0, RefusalCause::NoServer, ENOENT)]);
        assert!(draining.is_empty());
    }

    #[test]
    fn the_grace_period_begins_when_the_endpoint_leaves_its_slices() {
        let (mut draining, start) = (Draining::new(GRACE), Instant::now());
        let there = [at(1, 0, 5, 0), at(2, 0, 5, 0)];
        draining.set(id(), &[endpoint(1), endpoint(2)], start);
        draining.list(id(), &listed(&[2, 3], &[1]), start);
        assert_eq!(draining.ended(id(), &there, start + GRACE * 9), [], "both are listed, in one pool or another");
        let left = start + GRACE * 9;
        // Another endpoint that drains, and a full read, change nothing.
        draining.set(id(), &[endpoint(1), endpoint(2), endpoint(4)], left);
        draining.found(id(), &there, left);
        draining.list(id(), &listed(&[3], &[2]), left);
        draining.list(id(), &listed(&[3], &[2]), left + GRACE / 2);
        assert_eq!(draining.ended(id(), &there, left + GRACE - Duration::from_secs(1)), []);
        assert_eq!(draining.ended(id(), &there, left + GRACE), [endpoint(1)]);
        // It is listed again, and leaves again.
        draining.list(id(), &listed(&[3], &[1, 2]), left + GRACE);
        assert_eq!(draining.ended(id(), &there, left + GRACE), []);
        draining.list(id(), &listed(&[3], &[2]), left + GRACE);
        assert_eq!(draining.ended(id(), &there, left + GRACE * 2 - Duration::from_secs(1)), []);
        assert_eq!(draining.ended(id(), &there, left + GRACE * 2), [endpoint(1)]);
    }

    #[test]
    fn endpoints_of_udp_and_sctp_never_drain() {
        for protocol in [Protocol::Udp, Protocol::Sctp] {
            let (mut draining, now) = (Draining::new(GRACE), Instant::now());
            let id = ServerId { protocol, ..id() };
            draining.found(id, &[at(1, 0, 7, 7), at(2, 1, 7, 7)], now);
            assert_eq!(draining.ended(id, &[at(1, 0, 7, 7), at(2, 1, 7, 7)], now), [endpoint(1)], "{protocol}");
        }
    }

    #[test]
    fn the_grace_period_begins_once() {
        let (mut draining, start) = (Draining::new(GRACE), Instant::now());
        draining.set(id(), &[endpoint(1)], start);
        draining.set(id(), &[endpoint(1), endpoint(2)], start + GRACE / 2);
        let there = [at(1, 0, 5, 0), at(2, 0, 5, 0)];
        assert_eq!(draining.ended(id(), &there, start + GRACE - Duration::from_secs(1)), []);
        assert_eq!(draining.ended(id(), &there, start + GRACE), [endpoint(1)]);
        draining.deleted(&[(id(), endpoint(1))], &[]);
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
        let there = [at(1, 1, 0, 0), at(2, 0, 3, 0), at(3, 0, 3, 0)];
        draining.found(id(), &there, now);
        draining.list(id(), &listed(&[1], &[3]), now);
        assert_eq!(draining.ended(id(), &there, now + GRACE), [endpoint(2)], "the other one is listed");
    }
    #[test]
    fn a_server_that_is_made_anew_knows_nothing_of_the_endpoints_that_drained_before() {
        let (mut draining, start) = (Draining::new(GRACE), Instant::now());
        draining.set(id(), &[endpoint(1)], start);
        assert!(draining.has(id()));
        draining.forget(id());
        assert!(!draining.has(id()));
        draining.set(id(), &[endpoint(1)], start + GRACE / 2);
        assert_eq!(draining.ended(id(), &[at(1, 0, 5, 0)], start + GRACE), []);
    }
}
