//! The choice among the endpoints of each service port of one family, as the relay makes it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::object::Family;
use ferry_model::Scope;
use ferry_relay::{Balancer, DEFAULT_PENALTY};

use crate::port::{PortId, PortSpec, other};
use crate::shared::SharedRelay;

/// Service ports that are gone are looked through whenever their number has doubled since, from this number on.
const FIRST_SWEEP: usize = 64;

/// The balancers of one family's service ports. They end with this.
#[derive(Debug)]
pub(crate) struct Balancers {
    family: Family,
    shared: SharedRelay,
    of_ports: BTreeMap<PortId, Balanced>,
    gone: GonePorts,
}

/// The endpoints of service ports that are gone, while connections or the end of their grace period hold them: of a port that comes back
/// before, they keep their connections.
#[derive(Debug, Default)]
struct GonePorts {
    /// by the identity with scope [`Scope::Cluster`]: a port may come back with another scope
    of_ports: BTreeMap<PortId, Balancer>,
    next_sweep: usize,
}

/// A service port with its balancer.
#[derive(Debug)]
pub(crate) struct Balanced {
    pub(crate) spec: PortSpec,
    pub(crate) balancer: Arc<Balancer>,
}

// === impl Balancers ===

impl Balancers {
    pub(crate) fn new(family: Family, shared: SharedRelay) -> Self {
        Self { family, shared, of_ports: BTreeMap::new(), gone: GonePorts::default() }
    }

    /// Serves a service port with these endpoints.
    pub(crate) fn serve(&mut self, id: &PortId, spec: &PortSpec) -> &Arc<Balancer> {
        let affinity = spec.affinity_seconds.map(|seconds| Duration::from_secs(seconds.get().into()));
        let (shared, family, gone) = (&self.shared, self.family, &mut self.gone);
        let known = self.of_ports.entry(id.clone()).or_insert_with(|| {
            let balancer = Arc::new(Balancer::new(affinity, DEFAULT_PENALTY));
            gone.come_back(id, &balancer);
            shared.directory.insert_balancer(family, id, &balancer);
            Balanced { spec: spec.clone(), balancer }
        });
        known.balancer.set_affinity(affinity);
        known.spec = spec.clone();
        known.replace_endpoints(shared);
        &known.balancer
    }

    /// Connections of a scope that goes stay while their endpoints are those of the other one. The last one's have the grace of a
    /// removed endpoint.
    pub(crate) fn close(&mut self, id: &PortId) {
        let Some(closed) = self.of_ports.remove(id) else { return };
        self.shared.directory.remove_balancer(self.family, id);
        match self.of_ports.get(&PortId { scope: other(id.scope), ..id.clone() }) {
            Some(left) => {
                left.balancer.adopt(&closed.balancer);
                // Some of the endpoints may have left the slices with this change.
                left.replace_endpoints(&self.shared);
            }
            None => {
                self.shared.relay.replace_endpoints(&closed.balancer, &[], []);
                self.gone.insert(id, &closed.balancer);
            }
        }
    }

    pub(crate) fn get(&self, id: &PortId) -> Option<&Balanced> {
        self.of_ports.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&PortId, &Balanced)> {
        self.of_ports.iter()
    }
}

/// The counts of ports stay as long as their engine.
impl Drop for Balancers {
    fn drop(&mut self) {
        self.of_ports.keys().for_each(|id| self.shared.directory.remove_balancer(self.family, id));
    }
}

// === impl GonePorts ===

impl GonePorts {
    /// Records the endpoints of a service port that no scope serves any more.
    fn insert(&mut self, id: &PortId, closed: &Balancer) {
        if self.of_ports.len() >= self.next_sweep {
            self.of_ports.retain(|_, left| !left.known().is_empty());
            self.next_sweep = FIRST_SWEEP.max(2 * self.of_ports.len());
        }
        if !closed.known().is_empty() {
            // Without the closed one's records of clients.
            let left = || Balancer::new(None, DEFAULT_PENALTY);
            self.of_ports.entry(unscoped(id)).or_insert_with(left).adopt(closed);
        }
    }

    /// Has the balancer of a port that is served again follow the endpoints that it had before.
    fn come_back(&mut self, id: &PortId, balancer: &Balancer) {
        if let Some(left) = self.of_ports.remove(&unscoped(id)) {
            balancer.adopt(&left);
        }
    }
}

fn unscoped(id: &PortId) -> PortId {
    PortId { scope: Scope::Cluster, ..id.clone() }
}

// === impl Balanced ===

impl Balanced {
    /// Has the balancer choose among the endpoints of its specification.
    fn replace_endpoints(&self, shared: &SharedRelay) {
        let addresses: Vec<SocketAddr> = self.spec.addresses().collect();
        shared.relay.replace_endpoints(&self.balancer, &addresses, self.spec.kept());
    }
}

#[cfg(test)]
mod tests;
