//! Read access to the core's objects and desired state, for explanations.

use std::net::IpAddr;

use ferry_api::object::{Family, ObjectName, Service};
use ferry_model::{BaseState, Context, Diagnostic, Packet, Profile, ServiceState, Store, resolve};

use super::diagnostic_log::DiagnosticLog;
use super::{Core, EngineHandle};

/// The objects, and the desired state that the engines received last.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// all objects
    pub store: &'a Store,
    /// the mode's capabilities
    pub profile: &'a Profile,
    /// the addresses of the machine's interfaces
    pub addresses: &'a [IpAddr],
    engines: &'a [EngineHandle],
    diagnostics: &'a DiagnosticLog,
}

/// One family.
#[derive(Clone, Copy, Debug)]
pub struct FamilyView<'a> {
    /// the family
    pub family: Family,
    /// the context in which its Services are resolved
    pub context: &'a Context,
    /// the base state, outside of Services
    pub base: &'a BaseState,
}

// === impl Core ===

impl Core {
    /// The state by reference.
    pub fn view(&self) -> View<'_> {
        View {
            store: &self.store,
            profile: &self.profile,
            addresses: &self.addresses,
            engines: &self.engines,
            diagnostics: &self.diagnostic_log,
        }
    }
}

// === impl View ===

impl<'a> View<'a> {
    /// A family; `None` for one that isn't served, and before the first hand-over.
    pub fn family(&self, wanted: Family) -> Option<FamilyView<'a>> {
        let engine = self.engines.iter().find(|engine| engine.family == wanted)?;
        Some(FamilyView { family: wanted, context: engine.context.as_deref()?, base: engine.base.as_ref()? })
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = FamilyView<'a>> {
        let view = *self;
        Family::ALL.into_iter().filter_map(move |family| view.family(family))
    }

    /// The present problems of all objects, those that concern all Services first.
    pub fn diagnostics(&self) -> impl Iterator<Item = &'a Diagnostic> {
        self.diagnostics.all()
    }

    /// Resolves a Service for a family; returns its diagnostics, too.
    pub fn resolved(&self, name: &ObjectName, of: &FamilyView<'_>) -> (ServiceState, Vec<Diagnostic>) {
        resolve(&self.store.objects(name), self.store.claims(), of.context, self.profile, of.family)
    }

    /// Resolves the Services on which the verdict on a packet depends: those with its destination among their addresses, and those with its
    /// port as a node port or port of health checks.
    pub fn concerned(&self, packet: &Packet, of: &FamilyView<'_>) -> Vec<ServiceState> {
        let port = packet.port;
        let has_port = |service: &Service| {
            service.health_check_node_port == port
                || service.ports.iter().any(|of| of.node_port.as_ref().is_ok_and(|number| *number == port))
        };
        let names = self.store.service_names();
        let concerned = names.filter(|name| {
            let service = self.store.objects(name).service;
            service.is_some_and(|service| has_address(service, packet.destination) || has_port(service))
        });
        concerned.map(|name| self.resolved(name, of).0).collect()
    }
}

/// True if a Service names an address, served there or not.
pub fn has_address(service: &Service, address: IpAddr) -> bool {
    let is_it = |text: &Result<IpAddr, Box<str>>| text.as_ref().is_ok_and(|ip| *ip == address);
    let ingress = service.ingress.iter().map(|ingress| &ingress.ip);
    service.cluster_ips.iter().chain(&service.cluster_ip).chain(&service.external_ips).chain(ingress).any(is_it)
}
