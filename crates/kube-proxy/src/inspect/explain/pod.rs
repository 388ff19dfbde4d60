//! A pod: the Services that have it as an endpoint.

use std::net::IpAddr;

use ferry_api::object::{EndpointSlice, Family};

use super::endpoints::{line, port_name, scopes};
use super::known::KnownState;
use super::tree::{Explanation, Fact};
use super::{refused_text, unserved};

/// Explains where an address is an endpoint, and why it is used there or not.
pub(super) fn explain(known: &KnownState<'_>, address: IpAddr, answer: &mut Explanation) {
    let family = Family::of(address);
    let Some(in_family) = &known.view.family(family) else {
        answer.problem(unserved(family));
        return;
    };
    for (name, objects) in known.store().services_after(None) {
        let has_it = |slice: &&EndpointSlice| slice.endpoints.iter().any(|endpoint| endpoint.address == address);
        if !objects.slices.iter().any(has_it) {
            continue;
        }
        let resolved = known.resolved(name, in_family);
        let mut children = Vec::new();
        for port in &resolved.ports {
            let of = resolved.state.ports.iter().find(|of| *of.name == *port.name && of.protocol == port.protocol);
            let used = of.map(scopes).unwrap_or_default();
            for reasons in port.endpoints.iter().filter(|reasons| reasons.endpoint.address == address) {
                let line = line(reasons, &used, in_family);
                if reasons.cluster.is_err() {
                    answer.problem(format!("{name} {}: {line}", port_name(port)));
                }
                children.push(Fact::leaf(format!("{}: {line}", port_name(port))));
            }
        }
        if !children.is_empty() {
            if let Some(one) = known.quarantined(name, in_family.family) {
                answer.problem(refused_text(&format!("the state of Service {name}"), one));
            }
            answer.facts.push(Fact::with(format!("endpoint of Service {name}"), children));
        }
    }
    if answer.facts.is_empty() {
        answer.problem(format!("no EndpointSlice of a served Service has the address {address}"));
    }
}
