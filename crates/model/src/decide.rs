//! Decides the verdict on the first packet of a connection from the desired state: the reference for the compiled rules of every
//! mode.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::context::{Context, LocalDetector};
use crate::packet::{Packet, Verdict};
use crate::profile::Profile;
use crate::state::{
    Action, BaseState, Frontend, FrontendAddr, FrontendKind, NodePortAddresses, PortState, ServiceState, Snat,
};
use ferry_api::object::Protocol;

/// Decides the verdict on the first packet of a connection. `states` and `base` are those of the packet's family, resolved
/// with this profile.
///
/// A VIP is looked up first, then a nodePort. A packet that matches neither, but goes to a cluster IP or into the ranges of
/// cluster IPs, is rejected or dropped if the mode can. If its destination is an address of this node (such as that of a DNS
/// cache bound to a cluster IP), that applies only to packets of the node itself to a cluster IP. A mode that binds addresses
/// rejects what matches neither at every address that it has bound, but for health checks. An endpoint that reaches itself is
/// masqueraded.
pub fn decide<'a>(
    states: impl IntoIterator<Item = &'a ServiceState>,
    base: &BaseState,
    packet: &Packet,
    context: &Context,
    profile: &Profile,
) -> Verdict {
    let asked = Asked::find(states, packet);
    let by_node_port = asked.served_node_port(base, packet, profile);
    if profile.refuses_by_hook {
        let found = [asked.by_vip, by_node_port].into_iter().flatten();
        let mut verdicts = found.map(|(port, frontend)| at_frontend(port, frontend, packet, context));
        let forwarded = verdicts.find(|verdict| matches!(verdict, Verdict::Forward(_)));
        let refused = || if is_guarded(base, packet) { Verdict::Drop } else { asked.refused_by_hook(packet) };
        return forwarded.unwrap_or_else(refused);
    }
    if profile.listens {
        return asked.at_listener(asked.by_vip.or(by_node_port), packet, context);
    }
    match asked.by_vip.or(by_node_port) {
        Some((port, frontend)) => at_frontend(port, frontend, packet, context),
        None if profile.binds_addresses && asked.is_vip => asked.at_vip(packet, context, profile),
        None => asked.at_no_vip(base, packet, profile),
    }
}

/// The frontends that match a packet: the one at its destination, before the node port where the node serves it.
pub(crate) fn matching_frontends(
    states: &[ServiceState],
    base: &BaseState,
    packet: &Packet,
    profile: &Profile,
) -> [Option<FrontendAddr>; 2] {
    let asked = Asked::find(states, packet);
    [asked.by_vip, asked.served_node_port(base, packet, profile)].map(|found| found.map(|(_, frontend)| frontend.at))
}

/// Where a connection comes from, by which its treatment is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// a pod of this node, by the local detector
    Pod,
    /// this node itself
    Host,
    /// anything else; a pod of this node, too, without a local detector
    Other,
}

/// Where a packet comes from.
pub fn origin(packet: &Packet, context: &Context) -> Origin {
    match (is_from_pod(packet, context), packet.source_local) {
        (true, _) => Origin::Pod,
        (false, true) => Origin::Host,
        (false, false) => Origin::Other,
    }
}

/// The frontends that match a packet's destination.
#[derive(Default)]
struct Asked<'a> {
    by_vip: Option<(&'a PortState, &'a Frontend)>,
    /// by its port alone
    by_node_port: Option<(&'a PortState, &'a Frontend)>,
    /// it goes to the address of a frontend
    is_vip: bool,
    /// and to that of a cluster IP
    is_cluster_ip: bool,
    /// it goes to the port of some Service's health checks
    is_health_check: bool,
}

impl<'a> Asked<'a> {
    fn find(states: impl IntoIterator<Item = &'a ServiceState>, packet: &Packet) -> Self {
        let vip = FrontendAddr::Vip(packet.destination, packet.port);
        let node_port = FrontendAddr::NodePort(packet.port);
        let mut asked = Self::default();
        for state in states {
            let checked = state.health_check.filter(|_| !state.ports.is_empty()).map(|check| check.port.get());
            asked.is_health_check |= checked == Some(packet.port) && packet.protocol == Protocol::Tcp;
            asked.look_at(state, packet, [vip, node_port]);
        }
        asked
    }

    /// The node port, if the node serves it at the packet's destination.
    fn served_node_port(
        &self,
        base: &BaseState,
        packet: &Packet,
        profile: &Profile,
    ) -> Option<(&'a PortState, &'a Frontend)> {
        // A relay is reached at loopback from there only.
        let is_spoofed = profile.relays() && packet.destination.is_loopback() && packet.interface.is_some();
        let serves_here = |port: &PortState| {
            serves_node_ports(base, packet) && port.serves_node_port_at(packet.destination) && !is_spoofed
        };
        self.by_node_port.filter(|(port, _)| serves_here(port))
    }

    fn look_at(&mut self, state: &'a ServiceState, packet: &Packet, [vip, node_port]: [FrontendAddr; 2]) {
        for port in &state.ports {
            for frontend in &port.frontends {
                let is_here = is_at(frontend, packet.destination);
                self.is_vip |= is_here;
                self.is_cluster_ip |= is_here && frontend.kind == FrontendKind::ClusterIp;
                if port.protocol == packet.protocol {
                    if frontend.at == vip {
                        self.by_vip = Some((port, frontend));
                    } else if frontend.at == node_port {
                        self.by_node_port = Some((port, frontend));
                    }
                }
            }
        }
    }

    /// The verdict on a packet to an undefined port of a frontend's address, in a mode that binds these: all of them but those
    /// that another interface has.
    fn at_vip(&self, packet: &Packet, context: &Context, profile: &Profile) -> Verdict {
        let is_bound = context.local_addresses.binary_search(&packet.destination).is_err();
        let refused = is_bound && profile.rejects_unknown_ports && !self.is_health_check;
        if refused { Verdict::Reject } else { Verdict::Pass }
    }

    /// The verdict where the proxy listens itself. Without a listener the kernel refuses what goes to an address that was bound for a
    /// Service, and whatever else is this machine's answers elsewhere.
    fn at_listener(&self, found: Option<(&PortState, &Frontend)>, packet: &Packet, context: &Context) -> Verdict {
        match found.filter(|(_, frontend)| frontend.has_listener()) {
            Some((port, frontend)) => match at_frontend(port, frontend, packet, context) {
                Verdict::Forward(endpoints) => Verdict::Forward(endpoints),
                _ if packet.protocol == Protocol::Udp => Verdict::Drop,
                _ => Verdict::Reject,
            },
            None if self.is_vip && context.local_addresses.binary_search(&packet.destination).is_err() => {
                Verdict::Reject
            }
            None => Verdict::Pass,
        }
    }

    /// The verdict on a packet that no frontend matches.
    fn at_no_vip(&self, base: &BaseState, packet: &Packet, profile: &Profile) -> Verdict {
        let sent_here = packet.interface.is_none();
        let unassigned = || base.service_cidrs.iter().any(|cidr| cidr.contains(&packet.destination));
        if packet.destination_local && !sent_here {
            Verdict::Pass
        } else if self.is_cluster_ip && profile.rejects_unknown_ports {
            Verdict::Reject
        } else if profile.drops_unassigned_cluster_ips && !packet.destination_local && unassigned() {
            Verdict::Drop
        } else {
            Verdict::Pass
        }
    }

    /// The verdict on an untranslated packet in the hooks that it passes: a frontend refuses it there by its treatment of
    /// sources that are neither pods nor the node. Health checks are accepted at the node before that.
    fn refused_by_hook(&self, packet: &Packet) -> Verdict {
        let (input, output) = (packet.destination_local, packet.interface.is_none());
        let refusal = |(_, frontend): (&PortState, &Frontend)| {
            let passes = match frontend.kind {
                FrontendKind::ClusterIp => output || !input,
                FrontendKind::ExternalIp | FrontendKind::LoadBalancer if input => !self.is_health_check,
                FrontendKind::ExternalIp | FrontendKind::LoadBalancer => !output,
                FrontendKind::NodePort => input && !self.is_health_check,
            };
            let source_denied = !frontend.admits(packet.source);
            let verdict = match frontend.treatment.other {
                Action::Drop => Verdict::Drop,
                Action::Reject => Verdict::Reject,
                Action::Forward { .. } | Action::Pass => Verdict::Pass,
            };
            match (source_denied, passes) {
                (true, _) => Verdict::Drop,
                (false, true) => verdict,
                (false, false) => Verdict::Pass,
            }
        };
        let refusals = [self.by_vip, self.by_node_port].into_iter().flatten().map(refusal);
        refusals.fold(Verdict::Pass, |first, next| if first == Verdict::Pass { next } else { first })
    }
}

/// With node ports on loopback (`route_localnet`), neighbours could reach every listener on 127.0.0.1: untranslated packets
/// from elsewhere are dropped before anything else.
fn is_guarded(base: &BaseState, packet: &Packet) -> bool {
    let passes_a_guard = packet.destination_local || packet.interface.is_none();
    base.localhost && passes_a_guard && packet.destination.is_loopback() && !packet.source.is_loopback()
}

fn serves_node_ports(base: &BaseState, packet: &Packet) -> bool {
    if packet.destination.is_loopback() && !base.localhost {
        return false;
    }
    match &base.node_ports {
        NodePortAddresses::All => packet.destination_local,
        NodePortAddresses::Only(addresses) => addresses.contains(&packet.destination),
    }
}

fn is_at(frontend: &Frontend, address: IpAddr) -> bool {
    match frontend.at {
        FrontendAddr::Vip(vip, _) => vip == address,
        FrontendAddr::NodePort(_) => false,
    }
}

fn at_frontend(port: &PortState, frontend: &Frontend, packet: &Packet, context: &Context) -> Verdict {
    if !frontend.admits(packet.source) {
        return Verdict::Drop;
    }
    let treatment = &frontend.treatment;
    let action = match origin(packet, context) {
        Origin::Pod => treatment.pod,
        Origin::Host => treatment.host,
        Origin::Other => treatment.other,
    };
    match action {
        Action::Drop => Verdict::Drop,
        Action::Reject => Verdict::Reject,
        Action::Pass => Verdict::Pass,
        Action::Forward { to, snat } => {
            let endpoints = port.pool(to).0.iter();
            let snat_of = |address| if address == packet.source { Snat::Masquerade } else { snat };
            Verdict::Forward(
                endpoints.map(|endpoint| (*endpoint, snat_of(endpoint.address))).collect::<BTreeMap<_, _>>(),
            )
        }
    }
}

/// True if the local detector attributes the connection to a pod of this node.
fn is_from_pod(packet: &Packet, context: &Context) -> bool {
    match &context.local {
        None => false,
        Some(LocalDetector::Cidr(cidr)) => cidr.contains(&packet.source),
        Some(LocalDetector::Bridge(name)) => packet.interface.as_ref() == Some(name),
        Some(LocalDetector::InterfacePrefix(prefix)) => {
            packet.interface.as_ref().is_some_and(|interface| interface.starts_with(prefix))
        }
    }
}

#[cfg(test)]
mod tests;
