//! A Service: its ports, frontends and endpoints in each family.

use anyhow::{Context as _, bail};
use ferry_api::object::{Family, ObjectName, Service, ServicePort, ServiceType, TrafficPolicy};
use ferry_model::{
    Action, Frontend, FrontendKind, NodePortAddresses, PortReasons, PortState, Scope, Snat, SourceRanges,
};

use super::endpoints::{self, port_name, scopes};
use super::known::{KnownState, Resolved};
use super::refused_text;
use super::tree::{Explanation, Fact};
use crate::core::FamilyView;

/// The effect of a missing local detector, and the remedy.
const UNDETECTED: &str = "set clusterCIDR, or another detectLocalMode, in the configuration; until then no connection to a cluster IP is \
                          masqueraded, and replies to clients outside of the pod network may not return through this node";

/// Explains a Service, or one of its ports, by name or number.
///
/// # Errors
/// If there is no such Service or port.
pub(super) fn explain(
    known: &KnownState<'_>,
    name: &ObjectName,
    port: Option<&str>,
    answer: &mut Explanation,
) -> anyhow::Result<()> {
    let missing = || {
        let refused = Family::ALL.into_iter().find_map(|family| known.quarantined(name, family));
        let still = refused.map(|one| format!("; {}", refused_text("its removal", one))).unwrap_or_default();
        format!("no Service {name} among the objects: name it NAMESPACE/NAME{still}")
    };
    let service = known.store().objects(name).service.with_context(missing)?;
    if let Some(port) =
        port.filter(|port| !service.ports.iter().any(|of| is_called(port, &of.name, of.port.as_ref().ok().copied())))
    {
        bail!("Service {name} has no port {port}: its ports are {}", port_names(service));
    }
    for in_family in known.view.families() {
        let wanted = |of: &PortReasons<'_>| port.is_none_or(|port| is_called(port, of.name, Some(of.port)));
        let tree = in_one_family(known, &in_family, service, &wanted, answer);
        answer.facts.push(tree);
    }
    Ok(())
}

fn is_called(asked: &str, name: &str, number: Option<u16>) -> bool {
    asked == name || number.is_some_and(|number| asked == number.to_string())
}

/// The ports as the object has them, also malformed ones.
pub(super) fn port_names(service: &Service) -> String {
    let name = |port: &ServicePort| match &port.port {
        Ok(number) => format!("{} {number}", port.name),
        Err(text) => format!("{} {text:?}", port.name),
    };
    let names: Vec<String> = service.ports.iter().map(|port| name(port).trim_start().to_owned()).collect();
    names.join(", ")
}

/// The ports of a Service that are asked about.
pub(super) fn in_one_family(
    known: &KnownState<'_>,
    in_family: &FamilyView<'_>,
    service: &Service,
    wanted: &dyn Fn(&PortReasons<'_>) -> bool,
    answer: &mut Explanation,
) -> Fact {
    let (name, family) = (&service.name, in_family.family);
    let Resolved { state, diagnostics, ports } = known.resolved(name, in_family);
    if let Some(one) = known.quarantined(name, family) {
        answer.problem(refused_text(&format!("the state of Service {name}"), one));
    }
    diagnostics.iter().for_each(|diagnostic| answer.problem(diagnostic.to_string()));
    if ports.is_empty() {
        return Fact::leaf(format!("Service {name} in {family}: not served: {}", why_not(service)));
    }
    let mut children = Vec::new();
    for port in ports.iter().filter(|port| wanted(port)) {
        let of = state.ports.iter().find(|of| *of.name == *port.name && of.protocol == port.protocol);
        let Some(of) = of else {
            children.push(Fact::leaf(format!("{}: not served, see the problems", port_name(port))));
            continue;
        };
        endpoints::problems(known, in_family, (name, port, of), answer);
        children.push(port_tree(service, in_family, (port, of)));
    }
    let context = in_family.context;
    if context.local.is_none() && !context.masquerade_all && !known.view.profile.relays() {
        answer.problem(format!("pods of this node are not distinguished from other clients: {UNDETECTED}"));
    }
    if let Some(check) = state.health_check {
        children.push(Fact::leaf(format!(
            "health checks of load balancers at port {}: {} local endpoints (spec.healthCheckNodePort)",
            check.port, check.local_endpoints
        )));
    }
    Fact::with(format!("Service {name} in {family}"), children)
}

fn port_tree(service: &Service, in_family: &FamilyView<'_>, (port, of): (&PortReasons<'_>, &PortState)) -> Fact {
    let mut children: Vec<Fact> =
        of.frontends.iter().map(|frontend| frontend_tree(service, in_family, frontend)).collect();
    if children.is_empty() {
        children.push(Fact::leaf("no address: all of them belong to other Services, see the problems"));
    }
    if let Some(affinity) = of.affinity {
        children.push(Fact::leaf(format!(
            "session affinity: a client keeps its endpoint for {} s (spec.sessionAffinity: ClientIP, \
             spec.sessionAffinityConfig.clientIP.timeoutSeconds)",
            affinity.timeout_seconds
        )));
    }
    let used = scopes(of);
    let used = if used.is_empty() { vec![Scope::Cluster] } else { used };
    children.push(endpoints::explain(port, &used, in_family));
    Fact::with(port_name(port), children)
}

/// An address, and what happens to connections from each origin.
pub(super) fn frontend_tree(service: &Service, in_family: &FamilyView<'_>, frontend: &Frontend) -> Fact {
    let at = match (frontend.kind, &in_family.base.node_ports) {
        (FrontendKind::NodePort, NodePortAddresses::All) => format!("{} at every address of the node", frontend.at),
        (FrontendKind::NodePort, NodePortAddresses::Only(addresses)) => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let all = if addresses.is_empty() { "no address".to_owned() } else { addresses.join(", ") };
            format!("{} at {all} (nodePortAddresses)", frontend.at)
        }
        _ => frontend.at.to_string(),
    };
    let mut children = Vec::new();
    if let SourceRanges::Only(ranges) = &frontend.sources {
        let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let ranges = if ranges.is_empty() { "nobody".to_owned() } else { ranges.join(", ") };
        children.push(Fact::leaf(format!("from {ranges} only (spec.loadBalancerSourceRanges); others are dropped")));
    }
    let treatment = frontend.treatment;
    let pods = match &in_family.context.local {
        Some(detector) => format!("from pods of this node ({detector})"),
        None => "from pods of this node, as from elsewhere".to_owned(),
    };
    let policy = policy_field(service, frontend.kind);
    for (from, action) in
        [(pods.as_str(), treatment.pod), ("from this node", treatment.host), ("from elsewhere", treatment.other)]
    {
        children.push(Fact::leaf(format!("{from}: {}", action_text(action, policy))));
    }
    Fact::with(format!("{} {at}", kind_text(frontend.kind)), children)
}

pub(super) const fn kind_text(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "cluster IP",
        FrontendKind::ExternalIp => "external IP",
        FrontendKind::LoadBalancer => "load balancer address",
        FrontendKind::NodePort => "node port",
    }
}

/// The field of the traffic policy of a frontend, with its value.
pub(super) fn policy_field(service: &Service, kind: FrontendKind) -> &'static str {
    let (policy, cluster, local) = match kind {
        FrontendKind::ClusterIp => {
            (service.internal_policy, "spec.internalTrafficPolicy: Cluster", "spec.internalTrafficPolicy: Local")
        }
        FrontendKind::ExternalIp | FrontendKind::LoadBalancer | FrontendKind::NodePort => {
            (service.external_policy, "spec.externalTrafficPolicy: Cluster", "spec.externalTrafficPolicy: Local")
        }
    };
    if policy == TrafficPolicy::Local { local } else { cluster }
}

/// An action as text, with the traffic policy that leads to it.
pub(super) fn action_text(action: Action, policy: &str) -> String {
    match action {
        Action::Forward { to, snat } => {
            let to = match to {
                Scope::Cluster => "to any endpoint",
                Scope::Local => "to an endpoint of this node",
            };
            let seen = match snat {
                Snat::Keep => "which sees the client's address",
                Snat::Masquerade => "which sees this node's address",
            };
            format!("{to}, {seen} ({policy})")
        }
        Action::Drop => format!("dropped: no endpoint on this node ({policy})"),
        Action::Reject => "refused: no endpoint".to_owned(),
        Action::Pass => "not handled: no endpoint".to_owned(),
    }
}

/// Why no family, or not this one, serves a Service.
fn why_not(service: &Service) -> &'static str {
    if service.foreign_proxy {
        "the label service.kubernetes.io/service-proxy-name gives it to another proxy"
    } else if service.kind == ServiceType::ExternalName {
        "spec.type is ExternalName, which is DNS alone"
    } else if service.cluster_ip.is_none() {
        "it has no spec.clusterIP (a headless Service is DNS alone)"
    } else if service.ports.is_empty() {
        "it has no spec.ports"
    } else {
        "spec.clusterIPs has no address of this family, or no port can be served"
    }
}
