//! Round robin over the endpoints of a service port, with session affinity. An endpoint that fails stands behind the others for a
//! while.

mod affinity;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
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
    next: AtomicUsize,
    affinity: Option<AffinityMap>,
    penalty: Duration,
}

// === impl Balancer ===

impl Balancer {
    /// A balancer without endpoints. `affinity` is the timeout of session affinity by client address, if the port has it;
    /// `penalty` is how long an endpoint that failed stands behind the others.
    pub fn new(affinity: Option<Duration>, penalty: Duration) -> Self {
        Self {
            endpoints: RwLock::new(Arc::new([])),
            next: AtomicUsize::new(0),
            affinity: affinity.map(AffinityMap::new),
            penalty,
        }
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
                after.push(before.remove(&address).unwrap_or_else(|| Arc::new(Endpoint::new(address))));
            }
        }
        *current = after.into();
        for endpoint in before.values() {
            endpoint.remove();
        }
        before.into_values().collect()
    }
}

impl Choose for Balancer {
    fn choose(&self, client: IpAddr, now: Instant) -> Choice {
        let endpoints = self.endpoints();
        let mut choice = Choice::default();
        let recorded = self.affinity.as_ref().and_then(|map| map.endpoint(client, now));
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

    fn endpoints(&self) -> Arc<[Arc<Endpoint>]> {
        self.endpoints()
    }

    fn connected(&self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant) {
        if let Some(map) = &self.affinity {
            map.record(client, endpoint, now);
        }
    }

    fn failed(&self, client: IpAddr, endpoint: &Arc<Endpoint>, now: Instant) {
        endpoint.put_behind(now, self.penalty);
        if let Some(map) = &self.affinity {
            map.forget(client, endpoint);
        }
    }
}
