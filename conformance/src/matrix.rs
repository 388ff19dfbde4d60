//! Enumerates the packets that every case is tried with.

use std::net::IpAddr;

use ferry_api::object::{Family, Protocol};
use ferry_lab::corpus::{edges, written};
use ferry_model::{BaseState, FrontendAddr, Packet, ServiceState, SourceRanges};

use crate::case::Case;
use crate::decided::Decided;

/// A source of packets.
#[derive(Clone)]
struct From {
    address: IpAddr,
    local: bool,
    interface: Option<&'static str>,
}

/// Packets from every source to every destination with every protocol.
pub fn packets(case: &Case, decided: &Decided) -> Vec<Packet> {
    let Decided { family, base, states, .. } = decided;
    let family = *family;
    let local: Vec<IpAddr> =
        case.local_addresses.iter().copied().filter(|address| Family::of(*address) == family).collect();
    let sources = sources(family, states, &local);
    let mut packets = Vec::new();
    let mut destinations = destinations(family, states, base, &local);
    let written = written(&case.store).into_iter().map(|(at, _)| (at.ip(), at.port()));
    destinations.extend(written.filter(|(address, _)| Family::of(*address) == family));
    destinations.sort_unstable();
    destinations.dedup();
    for (destination, port) in destinations {
        for from in &sources {
            for protocol in Protocol::ALL {
                packets.push(Packet {
                    source: from.address,
                    source_local: from.local,
                    interface: from.interface.map(str::to_owned),
                    destination,
                    destination_local: local.contains(&destination),
                    protocol,
                    port,
                });
            }
        }
    }
    packets
}

fn sources(family: Family, states: &[ServiceState], local: &[IpAddr]) -> Vec<From> {
    let text = |v4: &str, v6: &str| match family {
        Family::V4 => v4.parse().unwrap(),
        Family::V6 => v6.parse().unwrap(),
    };
    let come = |address, interface| From { address, local: local.contains(&address), interface: Some(interface) };
    let mut sources = vec![
        come(text("10.244.1.99", "fd00:10:244:1::99"), "veth12"),
        come(text("10.244.1.98", "fd00:10:244:1::98"), "cni0"),
        come(text("10.244.9.9", "fd00:10:244:9::9"), "eth0"),
        come(text("203.0.113.9", "2001:db8:cc::9"), "eth0"),
        come(text("10.9.8.7", "fd00:9::7"), "eth0"),
    ];
    sources.extend(local.iter().map(|address| From { address: *address, local: true, interface: None }));
    for port in states.iter().flat_map(|state| &state.ports) {
        let endpoints = port.cluster.0.iter().chain(&*port.local.0);
        sources.extend(endpoints.map(|endpoint| come(endpoint.address, "veth12")));
        for frontend in &port.frontends {
            if let SourceRanges::Only(ranges) = &frontend.sources {
                sources.extend(ranges.iter().flat_map(edges).map(|address| come(address, "eth0")));
            }
        }
    }
    sources.sort_by_key(|from| (from.address, from.interface));
    sources.dedup_by_key(|from| (from.address, from.interface));
    sources
}

fn destinations(family: Family, states: &[ServiceState], base: &BaseState, local: &[IpAddr]) -> Vec<(IpAddr, u16)> {
    let elsewhere = match family {
        Family::V4 => "198.51.100.77",
        Family::V6 => "2001:db8:77::77",
    };
    let mut destinations = vec![(elsewhere.parse().unwrap(), 80)];
    // The last addresses of service ranges, which no case gives to a service.
    destinations.extend(base.service_cidrs.iter().map(|cidr| (cidr.broadcast(), 80)));
    let mut node_ports = Vec::new();
    for frontend in states.iter().flat_map(|state| &state.ports).flat_map(|port| &port.frontends) {
        match frontend.at {
            FrontendAddr::Vip(vip, port) => destinations.extend([(vip, port), (vip, port ^ 1)]),
            FrontendAddr::NodePort(port) => node_ports.extend([port, port ^ 1]),
        }
    }
    let vips: Vec<IpAddr> = destinations.iter().map(|(address, _)| *address).collect();
    for port in node_ports {
        destinations.extend(local.iter().chain(vips.first()).map(|address| (*address, port)));
    }
    destinations
}
