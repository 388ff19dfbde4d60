//! Traces what the core receives and what it hands over: object by object from `-v=4`, decision by decision from `-v=6`.

use std::fmt;

use ferry_api::object::{Family, ObjectName};
use ferry_model::store::Event;
use ferry_model::{Pool, PortState, ServiceState};
use ferry_plane::{Delta, Unit};

use crate::logging::V6;

/// A pool of which a line names the first endpoints only.
struct First<'a>(&'a Pool);

/// Most endpoints of a pool that one line names.
const NAMED: usize = 64;

/// Traces an event of the source.
pub(super) fn received(event: &Event) {
    match event {
        Event::Upsert(object) => tracing::trace!(kind = %object.kind(), object = %object.name(), "Received object"),
        Event::Delete(kind, object) => tracing::trace!(%kind, %object, "Object was deleted"),
        Event::Unreadable(kind, object) => tracing::trace!(%kind, %object, "Received malformed object"),
        Event::Restart(kind) => tracing::trace!(%kind, "Initial list begins"),
        Event::Synced(kind) => tracing::trace!(%kind, "Initial list is complete"),
    }
}

/// Traces what an engine gets.
pub(super) fn handed_over(family: Family, delta: &Delta) {
    if delta.context.is_some() {
        tracing::trace!(%family, "Facts about the node changed, renewing all rules");
    }
    for (id, unit) in &delta.units {
        match unit.as_deref() {
            None => tracing::trace!(%family, unit = %id, "Removing rules"),
            Some(Unit::Base(base)) => {
                let ranges = base.service_cidrs.len();
                tracing::trace!(%family, unit = %id, node_ports = %base.node_ports, service_cidrs = ranges, "Writing rules");
            }
            Some(Unit::Service(state)) => service(family, state),
        }
    }
}

fn service(family: Family, state: &ServiceState) {
    let ServiceState { name, ports, health_check } = state;
    let frontends: usize = ports.iter().map(|port| port.frontends.len()).sum();
    let health_check = health_check.map(|check| check.port.get());
    tracing::trace!(%family, service = %name, ports = ports.len(), frontends, health_check, "Writing rules");
    ports.iter().for_each(|port| decided(family, name, port));
}

/// Traces the chosen endpoints of a port, and the treatment of each of its frontends.
fn decided(family: Family, service: &ObjectName, port: &PortState) {
    let PortState { name, protocol, affinity, cluster, local, lingering, frontends, shadowed, .. } = port;
    tracing::trace!(
        target: V6,
        %family,
        %service,
        port = &**name,
        %protocol,
        cluster = %First(cluster),
        local = %First(local),
        lingering = %First(lingering),
        affinity_seconds = affinity.map(|affinity| affinity.timeout_seconds.get()),
        "Chose endpoints"
    );
    for frontend in frontends {
        tracing::trace!(target: V6, %family, %service, port = &**name, %protocol, treatment = %frontend, "Decided treatment");
    }
    for address in shadowed.iter().flat_map(|shadowed| &shadowed.addresses) {
        tracing::trace!(
            target: V6,
            %family,
            %service,
            port = &**name,
            %address,
            "Another frontend serves this address of the node port"
        );
    }
}

impl fmt::Display for First<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pool(endpoints) = self.0;
        f.write_str("[")?;
        for (at, endpoint) in endpoints.iter().take(NAMED).enumerate() {
            write!(f, "{}{endpoint}", if at == 0 { "" } else { " " })?;
        }
        match endpoints.len().checked_sub(NAMED) {
            None | Some(0) => f.write_str("]"),
            Some(others) => write!(f, " and {others} more]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_model::Endpoint;

    use super::*;

    #[test]
    fn long_pools_are_cut() {
        let pool = |number: u16| {
            let endpoint = |port| Endpoint { address: [10, 0, 0, 1].into(), port };
            Pool::new((1..=number).map(endpoint).collect::<Vec<_>>())
        };
        assert_eq!(First(&pool(0)).to_string(), "[]");
        assert_eq!(First(&pool(2)).to_string(), "[10.0.0.1:1 10.0.0.1:2]");
        assert!(First(&pool(64)).to_string().ends_with(" 10.0.0.1:64]"));
        assert!(First(&pool(67)).to_string().ends_with(" 10.0.0.1:64 and 3 more]"));
    }
}
