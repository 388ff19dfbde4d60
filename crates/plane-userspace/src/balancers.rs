//! The choice among the endpoints of each service port of one family, as the relay makes it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::object::Family;
use ferry_relay::{Balancer, DEFAULT_PENALTY};

use crate::port::{PortId, PortSpec, other};
use crate::shared::SharedRelay;

/// The balancers of one family's service ports. They end with this.
#[derive(Debug)]
pub(crate) struct Balancers {
    family: Family,
    shared: SharedRelay,
    of_ports: BTreeMap<PortId, Balanced>,
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
        Self { family, shared, of_ports: BTreeMap::new() }
    }

    /// Serves a service port with these endpoints.
    pub(crate) fn serve(&mut self, id: &PortId, spec: &PortSpec) -> &Arc<Balancer> {
        let affinity = spec.affinity_seconds.map(|seconds| Duration::from_secs(seconds.get().into()));
        let (shared, family) = (&self.shared, self.family);
        let known = self.of_ports.entry(id.clone()).or_insert_with(|| {
            let balancer = Arc::new(Balancer::new(affinity, DEFAULT_PENALTY));
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
            None => self.shared.relay.replace_endpoints(&closed.balancer, &[], []),
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

// === impl Balanced ===

impl Balanced {
    /// Has the balancer choose among the endpoints of its specification.
    fn replace_endpoints(&self, shared: &SharedRelay) {
        let addresses: Vec<SocketAddr> = self.spec.addresses().collect();
        shared.relay.replace_endpoints(&self.balancer, &addresses, self.spec.kept());
    }
}
