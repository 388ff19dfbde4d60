//! What an explanation is made of: what the core knows, and what the kernel refuses.

use std::net::IpAddr;

use ferry_api::object::{Family, ObjectName, Service};
use ferry_model::{Diagnostic, Packet, PortReasons, ServiceState, Store, reasons};

use crate::control::Quarantined;
use crate::core::{FamilyView, View};

/// Everything that answers are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) view: View<'a>,
    /// units that the kernel refuses
    quarantined: &'a [Quarantined],
}

/// A Service in one family.
#[derive(Debug)]
pub(super) struct Resolved<'a> {
    pub(super) state: ServiceState,
    pub(super) diagnostics: Vec<Diagnostic>,
    pub(super) ports: Vec<PortReasons<'a>>,
}

// === impl Known ===

impl<'a> Known<'a> {
    pub(super) fn new(view: View<'a>, quarantined: &'a [Quarantined]) -> Self {
        Self { view, quarantined }
    }

    pub(super) fn store(&self) -> &'a Store {
        self.view.store
    }

    /// A Service as the model resolves it, with its reasons.
    pub(super) fn resolved(&self, name: &ObjectName, of: &FamilyView<'_>) -> Resolved<'a> {
        let (state, diagnostics) = self.view.resolved(name, of);
        Resolved { state, diagnostics, ports: reasons(&self.store().objects(name), of.context, of.family) }
    }

    /// The Services that a packet can concern: those with its destination among their addresses, and those with its port as a node port
    /// or that of their health checks.
    pub(super) fn concerned(&self, packet: &Packet, of: &FamilyView<'_>) -> Vec<ServiceState> {
        let port = packet.port;
        let has_port = |service: &Service| {
            service.health_check_node_port == port
                || service.ports.iter().any(|of| of.node_port.as_ref().is_ok_and(|number| *number == port))
        };
        let names = self.store().service_names();
        let concerned = names.filter(|name| {
            let service = self.store().objects(name).service;
            service.is_some_and(|service| has_address(service, packet.destination) || has_port(service))
        });
        concerned.map(|name| self.view.resolved(name, of).0).collect()
    }

    /// The state of a Service in a family that the kernel refuses.
    pub(super) fn quarantined(&self, name: &ObjectName, family: Family) -> Option<&'a Quarantined> {
        let name = name.to_string();
        self.quarantined.iter().find(|one| one.is_of(family) && one.service.as_ref() == Some(&name))
    }

    /// What all Services share, in each family in which the kernel refuses it.
    pub(super) fn quarantined_base(&self) -> impl Iterator<Item = &'a Quarantined> {
        self.quarantined.iter().filter(|one| one.service.is_none())
    }
}

/// True if an address stands in a Service, whether it is served there or not.
pub(super) fn has_address(service: &Service, address: IpAddr) -> bool {
    let is_it = |text: &Result<IpAddr, Box<str>>| text.as_ref().is_ok_and(|ip| *ip == address);
    let ingress = service.ingress.iter().map(|ingress| &ingress.ip);
    service.cluster_ips.iter().chain(&service.cluster_ip).chain(&service.external_ips).chain(ingress).any(is_it)
}
