//! Session affinity: the last endpoint of each client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;

/// The most clients of a port that are recorded. Others are served without affinity, so that clients cannot fill the memory.
const MAX_CLIENTS: usize = 100_000;
/// Expired records are removed whenever their number has doubled since, from this number on.
const FIRST_SWEEP: usize = 1024;
/// Sweeps within a timeout, at most.
const SWEEPS_PER_TIMEOUT: u32 = 8;

/// Records of clients, each with a timeout that a new connection renews.
#[derive(Debug)]
pub(super) struct AffinityMap {
    timeout: Duration,
    clients: Mutex<Clients>,
}

#[derive(Debug)]
struct Clients {
    records: HashMap<IpAddr, AffinityRecord>,
    next_sweep: usize,
    /// no sweep before this time: where nothing expires, one for each new client would take the most time
    rests_until: Option<Instant>,
}

#[derive(Debug)]
struct AffinityRecord {
    endpoint: Arc<Endpoint>,
    used: Instant,
}

// === impl AffinityMap ===

impl AffinityMap {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            clients: Mutex::new(Clients { records: HashMap::new(), next_sweep: FIRST_SWEEP, rests_until: None }),
        }
    }

    /// The client's endpoint, unless the record has expired or the endpoint was removed.
    pub(super) fn endpoint(&self, client: IpAddr, now: Instant) -> Option<Arc<Endpoint>> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let record = clients.records.get(&client)?;
        record.serves(now, self.timeout).then(|| Arc::clone(&record.endpoint))
    }

    /// Records the client's endpoint, or renews the record.
    pub(super) fn record(&self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let record = AffinityRecord { endpoint: Arc::clone(endpoint), used: now };
        if let Some(known) = clients.records.get_mut(&client) {
            *known = record;
            return;
        }
        let rests = clients.rests_until.is_some_and(|until| now < until);
        if clients.records.len() >= clients.next_sweep && !rests {
            clients.records.retain(|_, record| record.serves(now, self.timeout));
            clients.next_sweep = FIRST_SWEEP.max(2 * clients.records.len()).min(MAX_CLIENTS);
            clients.rests_until = now.checked_add(self.timeout / SWEEPS_PER_TIMEOUT);
        }
        if clients.records.len() < MAX_CLIENTS {
            clients.records.insert(client, record);
        }
    }

    /// Forgets the client if it is recorded with this endpoint.
    pub(super) fn forget(&self, client: IpAddr, endpoint: &Arc<Endpoint>) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.records.get(&client).is_some_and(|record| Arc::ptr_eq(&record.endpoint, endpoint)) {
            clients.records.remove(&client);
        }
    }
}

// === impl AffinityRecord ===

impl AffinityRecord {
    fn serves(&self, now: Instant, timeout: Duration) -> bool {
        now.saturating_duration_since(self.used) < timeout && !self.endpoint.is_removed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_do_not_fill_the_memory() {
        let map = AffinityMap::new(Duration::from_secs(10));
        let endpoint = Arc::new(Endpoint::new(([192, 0, 2, 1], 80).into()));
        let (start, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let count = |map: &AffinityMap| map.clients.lock().unwrap().records.len();
        for client in 0..u32::try_from(MAX_CLIENTS + 10).unwrap() {
            map.record(IpAddr::V4(client.into()), &endpoint, start);
        }
        assert_eq!(count(&map), MAX_CLIENTS);
        map.record(IpAddr::V4(u32::MAX.into()), &endpoint, later);
        assert_eq!(count(&map), 1, "the expired ones are gone");
    }
}
