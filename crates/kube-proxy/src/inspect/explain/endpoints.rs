//! Lists the endpoints of a port, those that are not used with the reason.

use std::net::SocketAddr;

use ferry_api::object::{ObjectName, Protocol};
use ferry_model::{Action, EndpointReasons, PortReasons, PortState, Scope, Unused};

use super::known::KnownState;
use super::tree::{Explanation, Fact};
use crate::core::FamilyView;

/// Endpoints that are listed; a Service may have thousands.
const LISTED: usize = 50;

/// The endpoints of a port, below one fact; `used`: the scopes to which some frontend leads.
pub(super) fn explain(port: &PortReasons<'_>, used: &[Scope], known: &FamilyView<'_>) -> Fact {
    let count =
        |chosen: fn(&EndpointReasons<'_>) -> bool| port.endpoints.iter().filter(|reasons| chosen(reasons)).count();
    let (cluster, local) = (count(|reasons| reasons.cluster.is_ok()), count(|reasons| reasons.local.is_ok()));
    let here =
        if used.contains(&Scope::Local) { format!(", {local} on this node by policy Local") } else { String::new() };
    let text =
        format!("endpoints: {} in its EndpointSlices, {cluster} used by policy Cluster{here}", port.endpoints.len());
    let mut children: Vec<Fact> =
        port.endpoints.iter().take(LISTED).map(|reasons| Fact::leaf(line(reasons, used, known))).collect();
    if let Some(more) = port.endpoints.len().checked_sub(LISTED).filter(|more| *more > 0) {
        children.push(Fact::leaf(format!("and {more} more")));
    }
    Fact::with(text, children)
}

/// One endpoint, with what becomes of it.
pub(super) fn line(reasons: &EndpointReasons<'_>, used: &[Scope], known: &FamilyView<'_>) -> String {
    let EndpointReasons { endpoint, slice, node, .. } = reasons;
    let at = SocketAddr::new(endpoint.address, endpoint.port);
    let node = node.map_or_else(|| "no node".to_owned(), |node| format!("node {node}"));
    let of = |scope| match scope {
        Scope::Cluster => reasons.cluster,
        Scope::Local => reasons.local,
    };
    let chosen = |scope: &&Scope| of(**scope).is_ok();
    let words: Vec<&str> = used.iter().filter(chosen).map(|scope| policy(*scope)).collect();
    let verdict = match words[..] {
        [] => "not used".to_owned(),
        _ => format!("used by policy {}", words.join(" and ")),
    };
    let refused = used.iter().filter_map(|scope| Some((*scope, of(*scope).err()?)));
    let mut why: Vec<String> = refused.map(|(scope, unused)| reason(scope, unused, reasons, known)).collect();
    why.dedup();
    let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
    format!("{at} ({node}, EndpointSlice {slice}): {verdict}{why}")
}

const fn policy(scope: Scope) -> &'static str {
    match scope {
        Scope::Cluster => "Cluster",
        Scope::Local => "Local",
    }
}

/// The policies under which some frontend of the port leads, or would lead, to endpoints.
pub(super) fn scopes(port: &PortState) -> Vec<Scope> {
    let mut scopes: Vec<Scope> = Vec::new();
    let actions = port.frontends.iter().flat_map(|frontend| {
        let treatment = frontend.treatment;
        [treatment.pod, treatment.host, treatment.other]
    });
    for action in actions {
        let scope = match action {
            Action::Forward { to, .. } => to,
            // The port has endpoints, but none here.
            Action::Drop => Scope::Local,
            Action::Reject | Action::Pass => continue,
        };
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    scopes.sort_unstable_by_key(|scope| *scope == Scope::Local);
    scopes
}

/// Why a policy doesn't choose an endpoint, by the field of its slice.
fn reason(scope: Scope, unused: Unused, reasons: &EndpointReasons<'_>, known: &FamilyView<'_>) -> String {
    let context = &known.context;
    let zone = context.zone.as_deref().unwrap_or("unknown");
    match unused {
        Unused::NotReady if reasons.conditions.terminating => {
            "conditions.terminating is true and conditions.serving false".to_owned()
        }
        Unused::NotReady => "conditions.ready is false".to_owned(),
        Unused::Terminating => "conditions.terminating is true, and others are ready".to_owned(),
        Unused::OtherNode => match reasons.node {
            Some(node) => {
                format!("policy {} needs this node, {}, and its nodeName is {node}", policy(scope), context.node_name)
            }
            None => format!("policy {} needs this node, {}, and it has no nodeName", policy(scope), context.node_name),
        },
        Unused::HintedToOtherNodes => {
            format!("hints.forNodes doesn't name this node, {}, as others do", context.node_name)
        }
        Unused::HintedToOtherZones => format!("hints.forZones doesn't name this node's zone, {zone}, as others do"),
    }
}

/// Why a port has no usable endpoint, or none for traffic under policy Local.
pub(super) fn problems(
    known: &KnownState<'_>,
    in_family: &FamilyView<'_>,
    (service, port, state): (&ObjectName, &PortReasons<'_>, &PortState),
    answer: &mut Explanation,
) {
    let what = format!("{service} {} {}", port_name(port), in_family.family);
    let (cluster, local) = (port.endpoints.iter().any(|reasons| reasons.cluster.is_ok()), !state.local.is_empty());
    if port.of_slices.is_empty() {
        answer.problem(format!("{what} has no endpoint: {}", without_slice(known, service)));
    } else if port.endpoints.is_empty() {
        answer.problem(format!("{what} has no endpoint: {}", without_port(port)));
    } else if !cluster {
        let example =
            port.endpoints.first().map_or_else(String::new, |reasons| line(reasons, &[Scope::Cluster], in_family));
        answer.problem(format!("{what} has no usable endpoint among {}: {example}", port.endpoints.len()));
    } else if !local && scopes(state).contains(&Scope::Local) {
        let count = port.endpoints.len();
        let node = &in_family.context.node_name;
        answer.problem(format!(
            "{what} has no endpoint on this node, {node}, among {count}: traffic under policy Local is dropped"
        ));
    }
}

/// The name and number of a port.
pub(super) fn port_name(port: &PortReasons<'_>) -> String {
    let name = if port.name.is_empty() { String::new() } else { format!("{} ", port.name) };
    format!("port {name}{}/{}", port.port, port.protocol)
}

/// No slice of the family has the label with the Service's name, or has ports.
fn without_slice(known: &KnownState<'_>, service: &ObjectName) -> String {
    let label = format!("no EndpointSlice with ports has the label kubernetes.io/service-name={}", service.name());
    let prefix = format!("{}-", service.name());
    let mut others = known.store().slices_without_service();
    let other = others.find(|(slice, _)| slice.namespace() == service.namespace() && slice.name().starts_with(&prefix));
    match other {
        None => label,
        Some((slice, None)) => format!("{label}; EndpointSlice {slice} has none"),
        Some((slice, Some(owner))) => format!("{label}; EndpointSlice {slice} has {} there", owner.name()),
    }
}

/// The slices have other ports.
fn without_port(port: &PortReasons<'_>) -> String {
    let name = |(name, protocol): &(&str, Protocol)| {
        if name.is_empty() { format!("an unnamed one/{protocol}") } else { format!("{name}/{protocol}") }
    };
    let there: Vec<String> = port.of_slices.iter().map(name).collect();
    let (there, wanted) = (there.join(", "), name(&(port.name, port.protocol)));
    if port.of_slices.contains(&(port.name, port.protocol)) {
        return format!("the ports {there} of its EndpointSlices have no endpoints of this family");
    }
    format!(
        "its EndpointSlices have the ports {there}, none called {wanted}: spec.ports[{}].targetPort may name no port of the pods",
        port.index
    )
}
