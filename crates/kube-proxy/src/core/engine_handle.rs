//! The core's end of one family's engine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ferry_api::object::{Family, ObjectName};
use ferry_model::store::ServiceObjects;
use ferry_model::{BaseState, Context, ServiceState, may_serve};
use ferry_plane::Delta;
use ferry_plane::mailbox::Sender;

use super::object_log;
use crate::health::Pulse;
use crate::report::ChangeReporter;

/// The core's end of one family's engine: its mailbox, its health, and what it was sent last.
#[derive(Debug)]
pub struct EngineHandle {
    pub(super) family: Family,
    mailbox: Sender,
    pub(super) pulse: Arc<Pulse>,
    /// context and base as they were last sent; `None` before the first time
    pub(super) context: Option<Arc<Context>>,
    pub(super) base: Option<BaseState>,
    /// services with internal, external policy Local that have endpoints, none of them here
    without_local: [BTreeSet<ObjectName>; 2],
}

/// The values of the label traffic_policy.
const POLICIES: [&str; 2] = ["internal", "external"];

// === impl EngineHandle ===

impl EngineHandle {
    /// A handle of the engine that reads this mailbox.
    pub fn new(family: Family, mailbox: Sender, pulse: Arc<Pulse>) -> Self {
        Self { family, mailbox, pulse, context: None, base: None, without_local: Default::default() }
    }

    /// Counts a change as queued.
    pub(super) fn queue(&self, changes: &ChangeReporter) {
        self.pulse.queue(Instant::now());
        changes.queued(self.family);
    }

    /// Sends a change to the engine.
    pub(super) fn put(&self, delta: Delta, changes: &ChangeReporter) {
        object_log::handed_over(self.family, &delta);
        self.queue(changes);
        self.mailbox.put(delta);
        for (policy, services) in POLICIES.iter().zip(&self.without_local) {
            changes.without_local_endpoints(self.family, policy, services.len());
        }
    }

    /// Keeps the sets of services with policy Local and endpoints elsewhere only.
    pub(super) fn count_local(&mut self, name: &ObjectName, objects: &ServiceObjects<'_>, state: &ServiceState) {
        let lacking = local_policies(objects).map(|policy| policy && lacks_local(objects, state, self.family));
        for (services, lacking) in self.without_local.iter_mut().zip(lacking) {
            if !lacking {
                services.remove(name);
            } else if !services.contains(name) {
                services.insert(name.clone());
            }
        }
    }
}

/// True for the internal, and for the external policy of the service if it is Local and applies.
fn local_policies(objects: &ServiceObjects<'_>) -> [bool; 2] {
    use ferry_api::object::{ServiceType, TrafficPolicy};
    let Some(service) = objects.service else { return [false; 2] };
    let external =
        matches!(service.kind, ServiceType::NodePort | ServiceType::LoadBalancer) || !service.external_ips.is_empty();
    [service.internal_policy == TrafficPolicy::Local, external && service.external_policy == TrafficPolicy::Local]
}

/// True if some port has no usable endpoint on this node, though the service has endpoints.
fn lacks_local(objects: &ServiceObjects<'_>, state: &ServiceState, family: Family) -> bool {
    let usable = objects.slices.iter().flat_map(|slice| &*slice.endpoints).any(|endpoint| {
        let conditions = endpoint.conditions;
        may_serve(endpoint, family) && (conditions.ready || (conditions.serving && conditions.terminating))
    });
    usable && state.ports.iter().any(|port| port.local.is_empty())
}
