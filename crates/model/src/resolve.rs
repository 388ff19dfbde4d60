//! Objects in, decision out: the one pure function that says what the kernel must do for a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferry_api::object::{
    DEFAULT_AFFINITY_SECONDS, Family, Kind, MAX_AFFINITY_SECONDS, ObjectName, OddField, OddValue, Parsed, Protocol,
    Service, TrafficPolicy,
};

use crate::claims::{Claims, Standing};
use crate::context::Context;
use crate::diagnostic::{Cause, Diagnostic};
use crate::profile::Profile;
use crate::select::{Selection, Uses, lingering, select};
use crate::slices::{PortIndex, Row};
use crate::sources::source_ranges;
use crate::state::{
    Frontend, FrontendAddr, FrontendKind, HealthCheck, MAX_COPIES, MAX_ENDPOINTS, PortState, ServiceState, SourceRanges,
};
use crate::store::ServiceObjects;
use crate::treatment::Matrix;
use crate::visible::{
    Address, Frontends, MAX_FRONTENDS, Problem, ValidPort, Visible, affinity, cluster_ip_problem, health_check_port,
    is_external_local, is_proxied, valid_ports,
};

/// Decides about one Service in one IP family, and says what of it is not served as written.
///
/// Total: a malformed value costs itself only. A service that the family doesn't see gives a state without ports. The
/// same objects, claims and context give the same state.
pub fn resolve(
    objects: &ServiceObjects<'_>,
    claims: &Claims,
    context: &Context,
    profile: &Profile,
    family: Family,
) -> (ServiceState, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let Some(service) = objects.service else {
        // Without the Service its slices still know its name.
        let name = objects.slices.iter().find_map(|slice| slice.service.clone());
        let name = name.unwrap_or_else(|| ObjectName::cluster_wide(""));
        return (ServiceState { name, ports: Vec::new(), health_check: None }, diagnostics);
    };
    let mut state = ServiceState { name: service.name.clone(), ports: Vec::new(), health_check: None };
    if !is_proxied(service) {
        return (state, diagnostics);
    }
    let mut report = |problem: Problem| diagnostics.push(of_service(service, problem));
    service.odd.iter().map(odd_problem).for_each(&mut report);
    cluster_ip_problem(service, family).into_iter().for_each(&mut report);
    check_addresses(service, &mut report);
    let ports = valid_ports(service, &mut report);
    if let Some(visible) = Visible::of(service, family) {
        let index = PortIndex::new(&objects.slices, family, &mut diagnostics);
        let mut resolver = Resolver::new(visible, claims, context, profile, diagnostics);
        let mut rows = Vec::new();
        let mut ready_here = health_check_port(service).map(|port| (port, BTreeSet::new()));
        state.ports.reserve_exact(ports.len().min(MAX_FRONTENDS));
        for port in &ports {
            let endpoints = index.endpoints(port.name, port.protocol, resolver.room.unwrap_or(0), &mut rows);
            let Some(addresses) = resolver.fits(port, endpoints) else {
                if state.ports.is_empty() {
                    // A service that is served has a port.
                    state.ports.push(resolver.port(port, &[], &[]));
                }
                break;
            };
            state.ports.push(resolver.port(port, &addresses, &rows));
            if let Some((_, addresses)) = &mut ready_here {
                let ready = rows.iter().filter(|row| row.conditions.ready && row.is_on(&context.node_name));
                addresses.extend(ready.map(|row| row.endpoint.address));
            }
        }
        state.health_check = ready_here
            .and_then(|(port, addresses)| HealthCheck::new(port, u32::try_from(addresses.len()).unwrap_or(u32::MAX)));
        diagnostics = resolver.diagnostics();
    }
    (state, diagnostics)
}

/// So much a Service weighs at most in one family: its endpoints, its frontends, and for each frontend its source ranges and,
/// for up to [`MAX_COPIES`] frontends of a port, its endpoints again.
const MAX_WEIGHT: usize = 1 << 20;

/// So many frontends that aren't served are told one by one. If all were, a Service of a few kilobytes, whose ports and
/// addresses are another's, would be told of in megabytes, which are kept and logged.
const TOLD: usize = 64;

/// What all ports of a service share.
struct Resolver<'a> {
    visible: Visible<'a>,
    claims: &'a Claims,
    context: &'a Context,
    matrix: Matrix<'a>,
    load_balancer_ips: BTreeSet<IpAddr>,
    has_external_ips: bool,
    sources: SourceRanges,
    frontends: Frontends,
    /// what is left of [`MAX_WEIGHT`]; `None` once something didn't fit in
    room: Option<usize>,
    /// frontends of this service so far
    taken: BTreeSet<(FrontendAddr, Protocol)>,
    /// frontends that others have, or this service already
    unserved: usize,
    diagnostics: Vec<Diagnostic>,
}

// === impl Resolver ===

impl<'a> Resolver<'a> {
    fn new(
        visible: Visible<'a>,
        claims: &'a Claims,
        context: &'a Context,
        profile: &'a Profile,
        diagnostics: Vec<Diagnostic>,
    ) -> Self {
        let service = visible.service;
        let load_balancer_ips: BTreeSet<IpAddr> = visible.load_balancer_ips().map(|(_, address)| address).collect();
        let sources = if load_balancer_ips.is_empty() {
            SourceRanges::Any
        } else {
            source_ranges(&visible, &load_balancer_ips, context)
        };
        let matrix = Matrix {
            profile,
            internal_local: service.internal_policy == TrafficPolicy::Local,
            external_local: is_external_local(service),
            detects_pods: context.local.of(visible.family).is_some(),
            masquerade_all: context.masquerade_all,
            any: false,
            has_cluster: false,
            has_local: false,
        };
        Self {
            claims,
            context,
            matrix,
            load_balancer_ips,
            has_external_ips: visible.external_ips().next().is_some(),
            sources,
            frontends: visible.frontends(),
            visible,
            room: Some(MAX_WEIGHT),
            taken: BTreeSet::new(),
            unserved: 0,
            diagnostics,
        }
    }

    /// All that was found.
    fn diagnostics(mut self) -> Vec<Diagnostic> {
        let untold = self.unserved.saturating_sub(TOLD);
        if untold > 0 {
            let message = format!("{untold} more addresses and ports are another's, or there twice: not served either");
            let problem = Problem { field: "spec.ports".to_owned(), message };
            self.diagnostics.push(of_service(self.visible.service, problem));
        }
        self.diagnostics
    }

    /// The addresses of the next port; `None` if it is too much, with its endpoints, for what is left of the room. So that
    /// a service ends where its room does, whatever comes after.
    fn fits(&mut self, port: &ValidPort<'_>, endpoints: usize) -> Option<Vec<Address>> {
        let room = self.room?;
        let (addresses, complete) = self.frontends.of_port(port);
        let ranges = match &self.sources {
            SourceRanges::Any => 0,
            SourceRanges::Only(ranges) => ranges.len(),
        };
        let copies = addresses.len().min(MAX_COPIES);
        let weight = endpoints + addresses.len() * (1 + ranges) + copies * endpoints.min(MAX_ENDPOINTS);
        let fits = weight <= room && !addresses.is_empty();
        self.room = room.checked_sub(weight).filter(|_| fits && complete);
        if self.room.is_none() {
            let message = format!(
                "the service has more than {MAX_FRONTENDS} frontends, or together with their endpoints and source ranges \
                 more than {MAX_WEIGHT} parts: what doesn't fit in, of this port and the ports after it, is not served"
            );
            let problem = Problem { field: format!("spec.ports[{}]", port.index), message };
            self.diagnostics.push(of_service(self.visible.service, problem));
        }
        fits.then_some(addresses)
    }

    fn port(&mut self, port: &ValidPort<'_>, addresses: &[Address], rows: &[Row<'_>]) -> PortState {
        let external = port.node_port.is_some() || self.has_external_ips || !self.load_balancer_ips.is_empty();
        let Matrix { internal_local, external_local, .. } = self.matrix;
        let uses = Uses { cluster: !internal_local || external, local: internal_local || (external_local && external) };
        let selection = select(rows, uses, self.context);
        if selection.beyond > 0 {
            let count = MAX_ENDPOINTS + selection.beyond;
            let message = format!(
                "{count} endpoints, but there is room for {MAX_ENDPOINTS}: the last {} are not used",
                selection.beyond
            );
            let problem = Problem { field: format!("spec.ports[{}]", port.index), message };
            self.diagnostics.push(of_service(self.visible.service, problem));
        }
        let matrix = self.matrix.with(&selection);
        let visible = self.visible;
        let mut frontends = Vec::with_capacity(addresses.len());
        for address in addresses {
            if self.owns(address, port.protocol) {
                let sources = self.sources_of(address.kind, &selection);
                let treatment = matrix.treatment(address.kind);
                frontends.push(Frontend { kind: address.kind, at: address.at, sources, treatment });
            }
        }
        let lingering = lingering(rows, &selection, port.protocol);
        PortState {
            name: port.name.into(),
            protocol: port.protocol,
            affinity: affinity(visible.service),
            cluster: selection.cluster,
            local: selection.local,
            lingering,
            frontends: frontends.into(),
        }
    }

    /// Whether this address is ours to serve, and not served already.
    fn owns(&mut self, address: &Address, protocol: Protocol) -> bool {
        let service = self.visible.service;
        let at = address.at;
        let (message, cause) = if self.is_load_balancer_too(address) {
            // As a load balancer address it may have source ranges, and otherwise the treatment is the same.
            ("a load balancer address of this service too: served as that".to_owned(), Cause::Object)
        } else {
            match self.claims.standing(&service.name, self.visible.family, at, protocol) {
                Standing::LosesTo(owner) => {
                    let owner = format!("service {owner}, which comes first");
                    (format!("{at} {protocol} belongs to {owner}: not served for this one"), Cause::Contest)
                }
                Standing::Loses => {
                    let owner = "one of many services that come first";
                    (format!("{at} {protocol} belongs to {owner}: not served for this one"), Cause::Contest)
                }
                Standing::Owner if !self.taken.insert((at, protocol)) => {
                    (format!("this service has {at} {protocol} already: not served again"), Cause::Object)
                }
                Standing::Owner => return true,
            }
        };
        self.unserved += 1;
        if self.unserved <= TOLD {
            let problem = Problem { field: address.field(), message };
            self.diagnostics.push(Diagnostic { cause, ..of_service(service, problem) });
        }
        false
    }

    fn is_load_balancer_too(&self, address: &Address) -> bool {
        match address.at {
            FrontendAddr::Vip(vip, _) => {
                address.kind == FrontendKind::ExternalIp && self.load_balancer_ips.contains(&vip)
            }
            FrontendAddr::NodePort(_) => false,
        }
    }

    /// Source ranges guard load balancer addresses only.
    fn sources_of(&self, kind: FrontendKind, selection: &Selection) -> SourceRanges {
        let looked_at = selection.any || self.matrix.profile.filters_sources_before_reject;
        if kind == FrontendKind::LoadBalancer && looked_at { self.sources.clone() } else { SourceRanges::Any }
    }
}

/// What stands for a value that an API server would refuse.
fn odd_problem(odd: &OddValue) -> Problem {
    let text = &odd.text;
    let timeout = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    let (field, message) = match odd.field {
        OddField::Type => ("spec.type", format!("{text:?} is no type: taken for ClusterIP")),
        OddField::SessionAffinity => {
            ("spec.sessionAffinity", format!("{text:?} is no session affinity: taken for None"))
        }
        OddField::NegativeTimeout => {
            (timeout, format!("{text} is no timeout: {DEFAULT_AFFINITY_SECONDS} seconds are taken"))
        }
        OddField::LongTimeout => {
            (timeout, format!("{text} is too long a timeout: {MAX_AFFINITY_SECONDS} seconds are taken"))
        }
        OddField::InternalTrafficPolicy => {
            ("spec.internalTrafficPolicy", format!("{text:?} is no policy: taken for Cluster"))
        }
        OddField::ExternalTrafficPolicy => {
            ("spec.externalTrafficPolicy", format!("{text:?} is no policy: taken for Cluster"))
        }
        OddField::HealthCheckNodePort => {
            ("spec.healthCheckNodePort", format!("{text} is no port: the service has no health check port"))
        }
    };
    Problem { field: field.to_owned(), message }
}

/// What is wrong with the fields that both families read, apart from cluster IPs and ports.
fn check_addresses(service: &Service, report: &mut impl FnMut(Problem)) {
    for (index, text) in malformed(&service.external_ips) {
        let message = format!("{text:?} is no address: not served");
        report(Problem { field: format!("spec.externalIPs[{index}]"), message });
    }
    for (index, ingress) in service.ingress.iter().enumerate() {
        if let Err(text) = &ingress.ip {
            let message = format!("{text:?} is no address: not served");
            report(Problem { field: format!("status.loadBalancer.ingress[{index}].ip"), message });
        }
    }
    let has_range = |family| service.source_ranges.iter().flatten().any(|range| Family::of_net(*range) == family);
    let is_open = |family| Visible::of(service, family).is_some() && !has_range(family);
    let consequence = if service.source_ranges.iter().all(Result::is_err) {
        "no range is left, so everybody is let in"
    } else if Family::ALL.into_iter().any(is_open) {
        "it lets nobody in, but a family without a range lets everybody in"
    } else {
        "it lets nobody in"
    };
    for (index, text) in malformed(&service.source_ranges) {
        let message = format!("{text:?} is no range: {consequence}");
        report(Problem { field: format!("spec.loadBalancerSourceRanges[{index}]"), message });
    }
    if service.affinity_seconds == Some(0) {
        let message = "a memory of 0 seconds: session affinity is off".to_owned();
        report(Problem { field: "spec.sessionAffinityConfig.clientIP.timeoutSeconds".to_owned(), message });
    }
}

fn malformed<T>(values: &[Parsed<T>]) -> impl Iterator<Item = (usize, &str)> {
    values.iter().enumerate().filter_map(|(index, value)| Some((index, &**value.as_ref().err()?)))
}

fn of_service(service: &Service, Problem { field, message }: Problem) -> Diagnostic {
    Diagnostic { kind: Kind::Service, name: service.name.clone(), field, message, cause: Cause::Object }
}

#[cfg(test)]
mod tests;
