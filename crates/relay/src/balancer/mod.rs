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
    removed: Mutex<Vec<Weak<Endpoint>>>,
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
            removed: Mutex::default(),
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

    /// The endpoints in their order, and behind them those that were removed and that connections still hold.
    pub fn known(&self) -> Vec<Arc<Endpoint>> {
        let mut known = self.endpoints().to_vec();
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(removed.iter().filter_map(Weak::upgrade));
        known
    }

    /// Replaces the endpoints; one whose address stays keeps its counters and connections. Of those that are not among them any more,
    /// the ones that are `kept` [linger](Endpoint::set_aside). The others, and those that have lingered until now and are not kept any
    /// longer, are gone and returned: what becomes of their connections is the caller's decision.
    pub fn replace(&self, addresses: &[SocketAddr], kept: impl IntoIterator<Item = SocketAddr>) -> Vec<Arc<Endpoint>> {
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
        present.extend(kept);
        self.leave(before.into_values().collect(), &present)
    }

    /// Records endpoints that are not chosen any more. `listed` are the addresses of all whose connections stay. Returns those that are
    /// gone, of these and of the ones recorded before.
    fn leave(&self, left: Vec<Arc<Endpoint>>, listed: &HashSet<SocketAddr>) -> Vec<Arc<Endpoint>> {
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        removed.retain(|endpoint| {
            let Some(endpoint) = endpoint.upgrade() else { return false };
            match (endpoint.is_gone(), listed.contains(&endpoint.address())) {
                (false, false) => {
                    endpoint.remove();
                    gone.push(endpoint);
                }
                (true, true) => endpoint.set_aside(),
                (false, true) | (true, false) => {}
            }
            true
        });
        for endpoint in left {
            removed.push(Arc::downgrade(&endpoint));
            if listed.contains(&endpoint.address()) {
                endpoint.set_aside();
            } else {
                endpoint.remove();
                gone.push(endpoint);
            }
        }
        gone
    }

    /// Follows the endpoints of a balancer that is closed, so that their connections end when they have left this one's, too. The closed one
    /// goes on choosing, for connections that began before and are accepted afterwards.
    pub fn adopt(&self, closed: &Self) {
        let mut adopted = std::mem::take(&mut *closed.removed.lock().unwrap_or_else(PoisonError::into_inner));
        adopted.extend(closed.endpoints().iter().map(Arc::downgrade));
        self.removed.lock().unwrap_or_else(PoisonError::into_inner).append(&mut adopted);
    }

    /// The endpoint of this address that was removed, if connections still hold it.
    fn come_back(&self, address: SocketAddr) -> Option<Arc<Endpoint>> {
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it =
            |endpoint: &Weak<Endpoint>| endpoint.upgrade().is_some_and(|endpoint| endpoint.address() == address);
        let position = removed.iter().position(is_it)?;
        removed.swap_remove(position).upgrade().filter(|endpoint| endpoint.restore())
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
