//! The first packets of connections by which a Service is compared.
//!
//! To each of its frontends, and to the port beside it, they come from the node itself, from a pod of the node, from elsewhere, from
//! endpoints of the same port, and from both ends of each source range; over the port's protocol and another one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_model::{Frontend, FrontendAddr, LocalDetector, Packet, PortState, ServiceState, SourceRanges};

use crate::core::FamilyView;

/// Endpoints of a port from which packets come.
const ENDPOINTS: usize = 16;
/// Addresses for documentation, which no cluster has (RFC 5737, RFC 3849).
const ELSEWHERE: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(203, 0, 113, 250), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfa));
/// The name of an interface that matches no detector of local pods.
const SOME_INTERFACE: &str = "";

/// A source of packets; without an interface the node itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PacketSource {
    address: IpAddr,
    interface: Option<String>,
}

/// The packets of a Service on a node with these addresses.
pub(super) fn of(state: &ServiceState, in_family: &FamilyView<'_>, addresses: &[IpAddr]) -> Vec<Packet> {
    let local: Vec<IpAddr> =
        addresses.iter().copied().filter(|address| Family::of(*address) == in_family.family).collect();
    let common = common(in_family, &local);
    let mut packets = Vec::new();
    for port in &state.ports {
        for frontend in &port.frontends {
            let sources: Vec<PacketSource> = common
                .iter()
                .cloned()
                .chain(of_endpoints(port, in_family, &local))
                .chain(of_ranges(frontend))
                .collect();
            for (to, number) in destinations(frontend, &local) {
                let to_all = sources.iter().flat_map(|from| {
                    protocols(port.protocol).map(|protocol| packet(from, (to, number), protocol, &local))
                });
                packets.extend(to_all);
            }
        }
    }
    packets
}

fn packet(from: &PacketSource, (destination, port): (IpAddr, u16), protocol: Protocol, local: &[IpAddr]) -> Packet {
    let is_local = |address: IpAddr| address.is_loopback() || local.contains(&address);
    Packet {
        source: from.address,
        source_local: is_local(from.address),
        interface: from.interface.clone(),
        destination,
        destination_local: is_local(destination),
        protocol,
        port,
    }
}

/// The sources that are the same for every frontend.
fn common(in_family: &FamilyView<'_>, local: &[IpAddr]) -> Vec<PacketSource> {
    let (v4, v6) = ELSEWHERE;
    let elsewhere = match in_family.family {
        Family::V4 => v4.into(),
        Family::V6 => v6.into(),
    };
    let others = local.iter().copied().filter(|address| !address.is_loopback());
    let node = in_family.context.node_ip.into_iter().chain(others).find(|address| local.contains(address));
    let node = node.map(|address| PacketSource { address, interface: None });
    let pod = in_family.context.local.as_ref().map(|detector| match detector {
        LocalDetector::Cidr(range) => from_outside(range.broadcast()),
        LocalDetector::Bridge(name) => PacketSource { address: elsewhere, interface: Some(name.clone()) },
        LocalDetector::InterfacePrefix(prefix) => {
            PacketSource { address: elsewhere, interface: Some(format!("{prefix}0")) }
        }
    });
    node.into_iter().chain(pod).chain([from_outside(elsewhere)]).collect()
}

/// The sources that are endpoints of the port: a connection of an endpoint to itself (hairpin) is masqueraded.
fn of_endpoints(port: &PortState, in_family: &FamilyView<'_>, local: &[IpAddr]) -> Vec<PacketSource> {
    let interface = match &in_family.context.local {
        Some(LocalDetector::Bridge(name)) => name.clone(),
        Some(LocalDetector::InterfacePrefix(prefix)) => format!("{prefix}0"),
        Some(LocalDetector::Cidr(_)) | None => SOME_INTERFACE.to_owned(),
    };
    let mut addresses: Vec<IpAddr> = port.cluster.0.iter().chain(port.local.0.iter()).map(|to| to.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let source =
        |address: IpAddr| PacketSource { address, interface: (!local.contains(&address)).then(|| interface.clone()) };
    addresses.into_iter().take(ENDPOINTS).map(source).collect()
}

/// The first and the last address of each source range.
fn of_ranges(frontend: &Frontend) -> Vec<PacketSource> {
    let ends = |range: &IpNet| [range.network(), range.broadcast()].map(from_outside);
    match &frontend.sources {
        SourceRanges::Any => Vec::new(),
        SourceRanges::Only(ranges) => ranges.iter().flat_map(ends).collect(),
    }
}

fn from_outside(address: IpAddr) -> PacketSource {
    PacketSource { address, interface: Some(SOME_INTERFACE.to_owned()) }
}

/// The addresses and ports of a frontend, and the port beside it.
fn destinations(frontend: &Frontend, local: &[IpAddr]) -> Vec<(IpAddr, u16)> {
    match frontend.at {
        FrontendAddr::Vip(address, port) => vec![(address, port), (address, port ^ 1)],
        FrontendAddr::NodePort(port) => local.iter().map(|address| (*address, port)).collect(),
    }
}

/// The port's protocol, and another one.
fn protocols(own: Protocol) -> [Protocol; 2] {
    [own, if own == Protocol::Udp { Protocol::Tcp } else { Protocol::Udp }]
}
