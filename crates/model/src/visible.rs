//! The view of a Service in one IP family: its cluster IP, other addresses and ports, without malformed ones.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferry_api::object::{Family, Parsed, Protocol, Service, ServicePort, ServiceType, TrafficPolicy, is_dns_label};

use crate::diagnostic::{Cause, FieldPath, Report};
use crate::profile::Profile;
use crate::special::special;
use crate::state::{Affinity, FrontendAddr, FrontendKind};

/// A Service that one family serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visible<'a> {
    pub(crate) service: &'a Service,
    pub(crate) family: Family,
    pub(crate) cluster_ip: IpAddr,
}

/// A port of a Service with a known protocol, a number, and a name and protocol of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValidPort<'a> {
    /// its index in spec.ports
    pub(crate) index: usize,
    pub(crate) name: &'a str,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    pub(crate) node_port: Option<u16>,
}

/// Most frontends of a Service in one family: each port has each address, and an object of a megabyte could name ten
/// thousand of both.
pub(crate) const MAX_FRONTENDS: usize = 16_384;

/// The frontends of a Service in one family.
#[derive(Clone, Debug)]
pub(crate) struct Frontends {
    /// kind, index in the list that the kind names, address
    vips: Vec<(FrontendKind, usize, IpAddr)>,
    /// number of frontends until the limit
    room: usize,
}

/// An address of a Service, and its field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisibleAddress {
    pub(crate) kind: FrontendKind,
    /// index in the list that `kind` names
    pub(crate) index: usize,
    pub(crate) at: FrontendAddr,
}

/// True if a service proxy serves this Service: it has a cluster IP, is no ExternalName, and isn't labelled for another proxy.
pub(crate) fn is_proxied(service: &Service) -> bool {
    !service.foreign_proxy && service.kind != ServiceType::ExternalName && service.cluster_ip.is_some()
}

/// Session affinity of all ports of a Service. A timeout of zero would be no timeout to the kernel: off.
pub(crate) fn affinity(service: &Service) -> Option<Affinity> {
    service.affinity_seconds.and_then(Affinity::new)
}

/// True if this family serves the Service: [`resolve`](crate::resolve()) gives it ports then, whatever its endpoints are.
pub fn serves(service: &Service, profile: &Profile, family: Family) -> bool {
    is_proxied(service)
        && Visible::of(service, family).is_some()
        && valid_ports(service, &mut |_, _, _| {}).iter().any(|port| profile.serves(port.protocol))
}

/// True if this family serves the Service with session affinity.
pub(crate) fn has_affinity(service: &Service, family: Family) -> bool {
    affinity(service).is_some() && Visible::of(service, family).is_some()
}

/// True if externalTrafficPolicy Local applies: only to Services with external addresses by their type, or by externalIPs of
/// either family.
pub(crate) fn is_external_local(service: &Service) -> bool {
    service.external_policy == TrafficPolicy::Local
        && match service.kind {
            ServiceType::LoadBalancer | ServiceType::NodePort => true,
            ServiceType::ClusterIp => !service.external_ips.is_empty(),
            ServiceType::ExternalName => false,
        }
}

/// The port on which load balancers check if this node has endpoints of the Service.
pub(crate) fn health_check_port(service: &Service) -> Option<u16> {
    let is_checked = service.kind == ServiceType::LoadBalancer && is_external_local(service);
    Some(service.health_check_node_port).filter(|port| is_checked && *port != 0)
}

/// The ports that can be served, in order; the others go to `report`.
pub(crate) fn valid_ports<'a>(service: &'a Service, report: &mut Report<'_>) -> Vec<ValidPort<'a>> {
    let mut ports = Vec::with_capacity(service.ports.len());
    let mut seen = BTreeSet::new();
    let mut is_new = |port: &ValidPort<'a>| service.ports.len() == 1 || seen.insert((port.name, port.protocol));
    for (index, port) in service.ports.iter().enumerate() {
        match valid_port(index, port, report) {
            Some(valid) if is_new(&valid) => ports.push(valid),
            Some(ValidPort { name, protocol, .. }) => report(
                FieldPath::at("spec.ports", index, ".name"),
                Cause::Twice,
                &format_args!(
                    "an earlier port has the name {name:?} and protocol {protocol} too: this port is not served"
                ),
            ),
            None => {}
        }
    }
    ports
}

fn valid_port<'a>(index: usize, port: &'a ServicePort, report: &mut Report<'_>) -> Option<ValidPort<'a>> {
    let at = |field| FieldPath::at("spec.ports", index, field);
    if !port.name.is_empty() && !is_dns_label(&port.name) {
        let message =
            format_args!("{:?} is no name of a port, which is a DNS label: this port is not served", port.name);
        report(at(".name"), Cause::Object, &message);
        return None;
    }
    let protocol = match &port.protocol {
        Ok(protocol) => *protocol,
        Err(text) => {
            let message = format_args!("{text:?} is no known protocol: this port is not served");
            report(at(".protocol"), Cause::Object, &message);
            return None;
        }
    };
    let number = match &port.port {
        Ok(number) if *number != 0 => *number,
        Ok(_) => {
            report(at(".port"), Cause::Object, &"0 is no port: this port is not served");
            return None;
        }
        Err(text) => {
            report(at(".port"), Cause::Object, &format_args!("{text:?} is no port: this port is not served"));
            return None;
        }
    };
    let node_port = match &port.node_port {
        Ok(0) => None,
        Ok(node_port) => Some(*node_port),
        Err(text) => {
            let message = format_args!("{text:?} is no port: it is not served as a node port");
            report(at(".nodePort"), Cause::Object, &message);
            None
        }
    };
    Some(ValidPort { index, name: &port.name, protocol, port: number, node_port })
}

/// The cluster IP of a family, with its field; not validated yet.
fn cluster_ip(service: &Service, family: Family) -> Option<(Option<usize>, &Parsed<IpAddr>)> {
    if service.families.is_empty() {
        let address = service.cluster_ip.as_ref()?;
        let ours = address.as_ref().map_or(true, |address| Family::of(*address) == family);
        return ours.then_some((None, address));
    }
    let index = service.families.iter().position(|known| *known == family)?;
    Some((Some(index), service.cluster_ips.get(index)?))
}

/// Reports a malformed cluster IP of a family.
pub(crate) fn check_cluster_ip(service: &Service, family: Family, report: &mut Report<'_>) {
    let Some((index, address)) = cluster_ip(service, family) else { return };
    let field = index.map_or(FieldPath::plain("spec.clusterIP"), |index| FieldPath::at("spec.clusterIPs", index, ""));
    let consequence = format_args!("the service is not served in {family}");
    match address {
        Ok(address) if Family::of(*address) != family => {
            report(field, Cause::Object, &format_args!("{address} is no {family} address: {consequence}"));
        }
        Ok(address) => {
            if let Some(what) = special(*address) {
                report(field, Cause::Special, &format_args!("{address} is {what}: {consequence}"));
            }
        }
        Err(text) => report(field, Cause::Object, &format_args!("{text:?} is no address: {consequence}")),
    }
}

/// An address of the family that a Service may have.
fn servable(address: &Parsed<IpAddr>, family: Family) -> Option<IpAddr> {
    let address = *address.as_ref().ok()?;
    (Family::of(address) == family && special(address).is_none()).then_some(address)
}

// === impl Visible ===

impl<'a> Visible<'a> {
    /// The Service's view in this family; `None` if the family doesn't serve it.
    pub(crate) fn of(service: &'a Service, family: Family) -> Option<Self> {
        if !is_proxied(service) {
            return None;
        }
        let (_, address) = cluster_ip(service, family)?;
        let cluster_ip = servable(address, family)?;
        Some(Self { service, family, cluster_ip })
    }

    /// externalIPs of the family, with their index.
    pub(crate) fn external_ips(&self) -> impl Iterator<Item = (usize, IpAddr)> {
        let family = self.family;
        let addresses = self.service.external_ips.iter().enumerate();
        addresses.filter_map(move |(index, address)| Some((index, servable(address, family)?)))
    }

    /// Load balancer addresses of the family that we serve, with their index.
    pub(crate) fn load_balancer_ips(&self) -> impl Iterator<Item = (usize, IpAddr)> {
        let family = self.family;
        (self.service.ingress.iter().enumerate())
            .filter(|(_, ingress)| !ingress.proxy_mode)
            .filter_map(move |(index, ingress)| Some((index, servable(&ingress.ip, family)?)))
    }

    /// Its frontends, to be taken port by port.
    pub(crate) fn frontends(&self) -> Frontends {
        let vip = |kind| move |(index, address)| (kind, index, address);
        let vips = std::iter::once((FrontendKind::ClusterIp, 0, self.cluster_ip))
            .chain(self.external_ips().map(vip(FrontendKind::ExternalIp)))
            .chain(self.load_balancer_ips().map(vip(FrontendKind::LoadBalancer)))
            .collect();
        Frontends { vips, room: MAX_FRONTENDS }
    }
}

// === impl Frontends ===

impl Frontends {
    /// The addresses of the next port, in the order cluster IP, externalIPs, load balancer addresses, nodePort, up to the limit;
    /// and true if these are all.
    pub(crate) fn of_port(&mut self, port: &ValidPort<'_>) -> (Vec<VisibleAddress>, bool) {
        let number = port.port;
        let vip = |(kind, index, address): &(FrontendKind, usize, IpAddr)| VisibleAddress {
            kind: *kind,
            index: *index,
            at: FrontendAddr::Vip(*address, number),
        };
        let node_port = port.node_port.map(|node_port| VisibleAddress {
            kind: FrontendKind::NodePort,
            index: port.index,
            at: FrontendAddr::NodePort(node_port),
        });
        let wanted = self.vips.len() + usize::from(node_port.is_some());
        let addresses: Vec<VisibleAddress> = self.vips.iter().map(vip).chain(node_port).take(self.room).collect();
        self.room -= addresses.len();
        let complete = addresses.len() == wanted;
        (addresses, complete)
    }
}

// === impl VisibleAddress ===

impl VisibleAddress {
    /// The field of the Service that holds it.
    pub(crate) fn field(&self) -> FieldPath {
        let index = self.index;
        match self.kind {
            FrontendKind::ClusterIp => FieldPath::plain("spec.clusterIP"),
            FrontendKind::ExternalIp => FieldPath::at("spec.externalIPs", index, ""),
            FrontendKind::LoadBalancer => FieldPath::at("status.loadBalancer.ingress", index, ".ip"),
            FrontendKind::NodePort => FieldPath::at("spec.ports", index, ".nodePort"),
        }
    }
}
