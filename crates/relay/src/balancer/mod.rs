//! Round robin over the endpoints of a service port, with session affinity. An endpoint that fails stands behind the others for a
//! while.

mod affinity;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use crate::choose::{Choice, Choose, MAX_TRIES};
use crate::endpoint::Endpoint;
use affinity::AffinityMap;

/// Default time for which an endpoint that failed stands behind the others.
pub const DEFAULT_PENALTY: Duration = Duration::from_secs(10);

/// The endpoints of a service port and the turn among them.
#[derive(Debug)]
pub struct Balancer {
    endpoints: RwLock<Arc<[Arc<Endpoint>]>>,
    /// Endpoints that were removed, while connections hold them: one that comes back is the same.
    gone: Mutex<HashMap<SocketAddr, Weak<Endpoint>>>,
    next: AtomicUsize,
    affinity: RwLock<Option<(Duration, Arc<AffinityMap>)>>,
    penalty: Duration,
}

// === impl Balancer ===

impl Balancer {
    /// A balancer without endpoints. `affinity` is the timeout of session affinity by client address, if the port has it;
    /// `penalty` is how long an endpoint that failed stands behind the others.
    pub fn new(affinity: Option<Duration>, penalty: Duration) -> Self {
        Self {
            endpoints: RwLock::new(Arc::new([])),
            gone: Mutex::default(),
            next: AtomicUsize::new(0),
            affinity: RwLock::new(affinity.map(|timeout| (timeout, Arc::new(AffinityMap::new(timeout))))),
            penalty,
        }
    }

    /// Replaces the timeout of session affinity. Records of clients begin anew with another one.
    pub fn set_affinity(&self, timeout: Option<Duration>) {
        let mut affinity = self.affinity.write().unwrap_or_else(PoisonError::into_inner);
        if affinity.as_ref().map(|(timeout, _)| *timeout) != timeout {
            *affinity = timeout.map(|timeout| (timeout, Arc::new(AffinityMap::new(timeout))));
        }
    }

    fn affinity(&self) -> Option<Arc<AffinityMap>> {
        let affinity = self.affinity.read().unwrap_or_else(PoisonError::into_inner);
        affinity.as_ref().map(|(_, map)| Arc::clone(map))
    }

    /// The endpoints in their order.
    pub fn endpoints(&self) -> Arc<[Arc<Endpoint>]> {
        Arc::clone(&self.endpoints.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the endpoints; one whose address stays keeps its counters and connections. Those that are gone are marked as
    /// removed and returned: what becomes of their connections is the caller's decision.
    pub fn replace(&self, addresses: &[SocketAddr]) -> Vec<Arc<Endpoint>> {
        let mut current = self.endpoints.write().unwrap_or_else(PoisonError::into_inner);
        let mut before: HashMap<SocketAddr, Arc<Endpoint>> =
            current.iter().map(|endpoint| (endpoint.address(), Arc::clone(endpoint))).collect();
        let mut after = Vec::with_capacity(addresses.len());
        let mut present = HashSet::with_capacity(addresses.len());
        for &address in addresses {
            if present.insert(address) {
                let known = before.remove(&address).or_else(|| self.come_back(address));
                after.push(known.unwrap_or_else(|| Arc::new(Endpoint::new(address))));
            }
        }
        *current = after.into();
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.retain(|_, endpoint| endpoint.strong_count() > 0);
        for (address, endpoint) in &before {
            endpoint.remove();
            gone.insert(*address, Arc::downgrade(endpoint));
        }
        drop(gone);
        before.into_values().collect()
    }

    /// The endpoint of this address that was removed, if connections still hold it.
    fn come_back(&self, address: SocketAddr) -> Option<Arc<Endpoint>> {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner).remove(&address)?;
        gone.upgrade().filter(|endpoint| endpoint.restore())
    }
}

impl Choose for Balancer {
    fn choose(&self, client: IpAddr, now: Instant) -> Choice {
        let endpoints = self.endpoints();
        let mut choice = Choice::default();
        let recorded = self.affinity().and_then(|map| map.endpoint(client, now));
        // A client with a record takes no turn from the others.
        let turn = match recorded.filter(|endpoint| !endpoint.is_behind(now)) {
            Some(endpoint) => {
                choice.push(&endpoint);
                self.next.load(Ordering::Relaxed)
            }
            None => self.next.fetch_add(1, Ordering::Relaxed),
        };
        let Some(start) = turn.checked_rem(endpoints.len()) else { return Choice::default() };
        let (later, first) = endpoints.split_at_checked(start).unwrap_or_default();
        let mut behind = Vec::new();
        for endpoint in first.iter().chain(later) {
            if !endpoint.is_behind(now) {
                choice.push(endpoint);
            } else if behind.len() < MAX_TRIES {
                behind.push(endpoint);
            }
            if choice.is_full() {
                break;
            }
        }
        for endpoint in behind {
            choice.push(endpoint);
        }
        choice
    }

    fn connected(&self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant) {
        if let Some(map) = self.affinity() {
            map.record(client, endpoint, now);
        }
    }

    fn failed(&self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant) {
        endpoint.put_behind(now, self.penalty);
        if let Some(map) = self.affinity() {
            map.forget(client, endpoint);
        }
    }
}
