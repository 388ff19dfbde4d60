//! Resolves a Service: a pure function from API objects to the desired state of one Service in one IP family.

mod checks;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferry_api::object::{Family, Kind, ObjectName, Protocol, TrafficPolicy};

use self::checks::{check_addresses, check_odd, check_source_ranges};
use crate::balance::Balancing;
use crate::claims::{Claims, Standing};
use crate::context::Context;
use crate::diagnostic::{Cause, Diagnostic, FieldPath, Findings};
use crate::profile::Profile;
use crate::select::{Selection, Uses, lingering, select};
use crate::slices::{EndpointRow, PortIndex};
use crate::sources::source_ranges;
use crate::state::{
    Frontend, FrontendAddr, FrontendKind, HealthCheck, MAX_ENDPOINTS, PortState, ServiceState, Shadowed, SourceRanges,
};
use crate::store::ServiceObjects;
use crate::treatment::Matrix;
use crate::visible::{
    Frontends, MAX_FRONTENDS, ValidPort, Visible, VisibleAddress, affinity, check_cluster_ip, health_check_port,
    is_external_local, is_proxied, valid_ports,
};

/// Resolves one Service in one IP family, with diagnostics for everything that is not served as specified.
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
    let mut findings = Findings::of(Kind::Service, &service.name);
    service.odd.iter().for_each(|odd| check_odd(odd, &mut findings));
    check_cluster_ip(service, family, &mut |field, cause, message| findings.add(field, cause, message));
    check_addresses(service, &mut findings);
    check_source_ranges(service, &mut findings);
    let balancing = Balancing::of(service, context, profile, &mut findings);
    let ports = valid_ports(service, &mut |field, cause, message| findings.add(field, cause, message));
    if let Some(visible) = Visible::of(service, family) {
        let index = PortIndex::new(&objects.slices, family, &mut diagnostics);
        let mut resolver = Resolver::new(visible, claims, context, profile, balancing, findings);
        let mut rows = Vec::new();
        let mut ready_here = health_check_port(service).map(|port| (port, BTreeSet::new()));
        state.ports.reserve_exact(ports.len().min(MAX_FRONTENDS));
        for port in &ports {
            if !profile.serves(port.protocol) {
                let message = "SCTP can't be relayed: not served in this mode";
                resolver.findings.add(FieldPath::at("spec.ports", port.index, ".protocol"), Cause::Protocol, &message);
                continue;
            }
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
        findings = resolver.findings;
    }
    diagnostics.extend(findings.diagnostics());
    (state, diagnostics)
}

/// The most parts of a Service in one family: its endpoints, its frontends, for each port its source ranges, and its endpoints again for
/// each [copy](Profile::copies).
const MAX_PARTS: usize = 1 << 20;
/// The same in modes that copy them for every frontend: the widest Service that an API server admits, with 250 ports, 64 addresses and 64
/// endpoints, has 1,056,000 parts.
const MAX_PARTS_OF_ALL: usize = 5 << 18;

/// Inputs shared by all ports of a service.
struct Resolver<'a> {
    visible: Visible<'a>,
    claims: &'a Claims,
    context: &'a Context,
    matrix: Matrix<'a>,
    load_balancer_ips: BTreeSet<IpAddr>,
    has_external_ips: bool,
    sources: SourceRanges,
    balancing: Option<Balancing<'a>>,
    frontends: Frontends,
    /// the most parts
    most: usize,
    /// the rest of them; `None` once a part has exceeded it
    room: Option<usize>,
    /// frontends of this service so far
    taken: BTreeSet<(FrontendAddr, Protocol)>,
    findings: Findings<'a>,
}

// === impl Resolver ===

impl<'a> Resolver<'a> {
    fn new(
        visible: Visible<'a>,
        claims: &'a Claims,
        context: &'a Context,
        profile: &'a Profile,
        balancing: Option<Balancing<'a>>,
        findings: Findings<'a>,
    ) -> Self {
        let service = visible.service;
        let most = if profile.balances { MAX_PARTS_OF_ALL } else { MAX_PARTS };
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
            detects_pods: context.local.is_some(),
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
            balancing,
            frontends: visible.frontends(),
            visible,
            most,
            room: Some(most),
            taken: BTreeSet::new(),
            findings,
        }
    }

    /// The addresses of the next port; `None` if it is too much, with its endpoints, for what is left of the room. So that
    /// a service ends where its room does, whatever comes after.
    fn fits(&mut self, port: &ValidPort<'_>, endpoints: usize) -> Option<Vec<VisibleAddress>> {
        let room = self.room?;
        let (addresses, complete) = self.frontends.of_port(port);
        let ranges = match &self.sources {
            SourceRanges::Any => 0,
            SourceRanges::Only(ranges) => ranges.len(),
        };
        let (copies, most) = (self.matrix.profile.copies(addresses.len()), self.most);
        let weight = endpoints + addresses.len() + ranges + copies * endpoints.min(MAX_ENDPOINTS);
        let fits = weight <= room && !addresses.is_empty();
        self.room = room.checked_sub(weight).filter(|_| fits && complete);
        if self.room.is_none() {
            let message = format_args!(
                "the service has more than {MAX_FRONTENDS} frontends, or together with their endpoints and source ranges \
                 more than {most} parts: what doesn't fit in, of this port and the ports after it, is not served"
            );
            self.findings.add(FieldPath::at("spec.ports", port.index, ""), Cause::Excess, &message);
        }
        fits.then_some(addresses)
    }

    fn port(&mut self, port: &ValidPort<'_>, addresses: &[VisibleAddress], rows: &[EndpointRow<'_>]) -> PortState {
        let external = port.node_port.is_some() || self.has_external_ips || !self.load_balancer_ips.is_empty();
        let Matrix { internal_local, external_local, .. } = self.matrix;
        let uses = Uses { cluster: !internal_local || external, local: internal_local || (external_local && external) };
        let selection = select(rows, uses, self.context);
        if selection.beyond > 0 {
            let count = MAX_ENDPOINTS + selection.beyond;
            let message = format_args!(
                "{count} endpoints, but there is room for {MAX_ENDPOINTS}: the last {} are not used",
                selection.beyond
            );
            self.findings.add(FieldPath::at("spec.ports", port.index, ""), Cause::Object, &message);
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
        let balance = self.balancing.as_ref().and_then(|balancing| balancing.of_port(rows, &selection, self.context));
        let node_port = frontends.iter().find_map(|frontend| frontend.at.node_port());
        let shadowed = node_port.and_then(|node_port| self.shadowed(node_port, port.protocol));
        let lingering = lingering(rows, &selection, port.protocol, self.matrix.profile);
        PortState {
            name: port.name.into(),
            protocol: port.protocol,
            affinity: affinity(visible.service),
            cluster: selection.cluster,
            local: selection.local,
            lingering,
            frontends: frontends.into(),
            balance,
            shadowed,
        }
    }

    /// True if the service owns the frontend and this address has not been served yet.
    fn owns(&mut self, address: &VisibleAddress, protocol: Protocol) -> bool {
        if self.is_load_balancer_too(address) {
            // As a load balancer address it may have source ranges, and otherwise the treatment is the same.
            let message = "a load balancer address of this service too: served as that";
            self.findings.add(address.field(), Cause::Twice, &message);
            return false;
        }
        let (name, family, at) = (&self.visible.service.name, self.visible.family, address.at);
        let winner = match self.claims.standing(name, family, at, protocol) {
            Standing::Owner if self.taken.insert((at, protocol)) => {
                self.check_shadow(address, protocol);
                return true;
            }
            Standing::Owner => {
                let message = format_args!("this service has {at} {protocol} already: not served again");
                self.findings.add(address.field(), Cause::Twice, &message);
                return false;
            }
            Standing::NodePortToo => {
                let message = "an address of this node and a node port of this service too: served as that";
                self.findings.add(address.field(), Cause::Twice, &message);
                return false;
            }
            Standing::LosesTo(winner) => Some(winner),
            Standing::Loses => None,
        };
        let message =
            format_args!("{at} {protocol} belongs to another Service, which comes first: not served for this one");
        self.findings.add_contest(address.field(), Cause::Contest, &message, winner);
        false
    }

    /// Reports the addresses at which a node port belongs to another Service: an address of this node may be a cluster IP or a
    /// load balancer address.
    fn check_shadow(&mut self, address: &VisibleAddress, protocol: Protocol) {
        let (FrontendAddr::NodePort(port), service) = (address.at, self.visible.service) else { return };
        if let Some((at, winner)) = self.claims.shadow(&service.name, self.visible.family, port, protocol) {
            let at = FrontendAddr::Vip(at, port);
            let message =
                format_args!("{at} {protocol} belongs to another Service, which comes first: not served there");
            self.findings.add_contest(address.field(), Cause::Contest, &message, Some(winner));
        }
    }

    /// The node addresses at which another frontend serves in place of a node port, for a mode with an object for each.
    fn shadowed(&self, node_port: u16, protocol: Protocol) -> Option<Box<Shadowed>> {
        if !self.matrix.profile.lists_node_addresses {
            return None;
        }
        let addresses: Box<[IpAddr]> =
            self.claims.shadows(self.visible.family, node_port, protocol).map(|(address, _)| address).collect();
        (!addresses.is_empty()).then(|| Box::new(Shadowed { addresses }))
    }

    fn is_load_balancer_too(&self, address: &VisibleAddress) -> bool {
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

#[cfg(test)]
mod tests;
