//! The model's answer for one connection: what any plane of an nftables-like mode has to do with it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::context::{Context, LocalDetector};
use crate::packet::{Packet, Verdict};
use crate::state::{
    Action, BaseState, Frontend, FrontendAddr, FrontendKind, NodePortAddresses, PortState, ServiceState, Snat,
    SourceRanges,
};
use ferry_api::object::Family;

/// What becomes of the first packet of a connection. `states` and `base` are those of the packet's family.
///
/// A VIP is looked up first, then a nodePort; what is neither, but goes to a cluster IP or into the ranges of cluster
/// IPs, is rejected or dropped. To an address that this node has (such as that of a DNS cache bound to a cluster IP), only
/// what the node itself sends to a cluster IP is. An endpoint that reaches itself is masqueraded.
pub fn decide<'a>(
    states: impl IntoIterator<Item = &'a ServiceState>,
    base: &BaseState,
    packet: &Packet,
    context: &Context,
) -> Verdict {
    let vip = FrontendAddr::Vip(packet.destination, packet.port);
    let node_port = serves_node_ports(base, packet).then_some(FrontendAddr::NodePort(packet.port));
    let (mut by_vip, mut by_node_port, mut is_cluster_ip) = (None, None, false);
    for port in states.into_iter().flat_map(|state| &state.ports) {
        for frontend in &port.frontends {
            is_cluster_ip |= frontend.kind == FrontendKind::ClusterIp && is_at(frontend, packet.destination);
            if port.protocol == packet.protocol {
                if frontend.at == vip {
                    by_vip = Some((port, frontend));
                } else if Some(frontend.at) == node_port {
                    by_node_port = Some((port, frontend));
                }
            }
        }
    }
    let sent_here = packet.interface.is_none();
    match by_vip.or(by_node_port) {
        Some((port, frontend)) => at_frontend(port, frontend, packet, context),
        None if packet.destination_local && !sent_here => Verdict::Pass,
        None if is_cluster_ip => Verdict::Reject,
        None if packet.destination_local => Verdict::Pass,
        None if base.service_cidrs.iter().any(|cidr| cidr.contains(&packet.destination)) => Verdict::Drop,
        None => Verdict::Pass,
    }
}

fn serves_node_ports(base: &BaseState, packet: &Packet) -> bool {
    !packet.destination.is_loopback()
        && match &base.node_ports {
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
    if let SourceRanges::Only(ranges) = &frontend.sources
        && !ranges.iter().any(|range| range.contains(&packet.source))
    {
        return Verdict::Drop;
    }
    let treatment = &frontend.treatment;
    let action = if is_from_pod(packet, context) {
        treatment.pod
    } else if packet.source_local {
        treatment.host
    } else {
        treatment.other
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

/// Whether the connection comes from a pod of this node, as far as can be told.
fn is_from_pod(packet: &Packet, context: &Context) -> bool {
    match context.local.of(Family::of(packet.destination)) {
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
