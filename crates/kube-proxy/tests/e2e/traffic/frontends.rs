//! Every kind of frontend, from every place: the answering endpoint, and the source address that it sees.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferry_lab::lab::{cluster_ip, node_addresses};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::{Checks, Family, LabMachine, Manifests, Protocol, SeenSource, TestService};

use crate::support::stage;

/// Connections that reach each of three endpoints: one is missed once in four million times.
const OFTEN: usize = 40;
const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
const CLIENTS: [LabMachine; 3] = [LabMachine::PodB, LabMachine::Node, LabMachine::Client];
const ALL_PODS: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
const ALL_ENDPOINTS: [&str; 3] = ["pod-a:8080", "pod-b:8080", "far:8080"];

fn manifests() -> Manifests {
    let everywhere = |name, number: u8| {
        TestService::new(name, number.into())
            .protocols(&Protocol::ALL)
            .node_port(30000 + u16::from(number))
            .external_ip(number)
            .load_balancer(100 + number)
    };
    let host = TestService::new("host", 8).node_port(30008);
    let host_endpoints = host.endpoints(9090, &[LabMachine::Node]);
    Manifests::new()
        .with(everywhere("web", 1), &ALL_PODS)
        .with(everywhere("self", 2), &[LabMachine::PodA])
        .without_endpoints(everywhere("empty", 3))
        .with_endpoints(host, host_endpoints)
}

/// The four frontends of a service by its number, and true if a pod keeps its source address there.
fn frontends(family: Family, number: u8) -> [(&'static str, SocketAddr, bool); 4] {
    [
        ("cluster IP", at_cluster_ip(family, number.into()), true),
        ("node port", at_node_port(family, 30000 + u16::from(number)), false),
        ("external IP", at_external_ip(family, number), false),
        ("load balancer", at_external_ip(family, 100 + number), false),
    ]
}

#[test]
fn each_kind_of_frontend_serves_everybody() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for protocol in BOTH {
            for (kind, at, keeps) in frontends(family, 1) {
                for from in CLIENTS {
                    let what = format!("{family} {protocol} {kind} from {from:?}");
                    let tally = stage.lab.from(from).ask(protocol, at, OFTEN);
                    checks.served(&what, &tally, &ALL_ENDPOINTS, SeenSource::Any);
                    for answer in tally.answers() {
                        let hairpin = answer.endpoint.starts_with(from.name());
                        let kept = keeps && from == LabMachine::PodB && !hairpin;
                        let source =
                            if kept { SeenSource::Kept(from.address(family)) } else { SeenSource::Masqueraded };
                        let one = ferry_lab::ProbeTally(vec![ferry_lab::ProbeOutcome::Answered(answer.clone())]);
                        checks.source(&what, &one, source);
                    }
                }
            }
        }
    }
}

#[test]
fn connections_are_spread_evenly() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for (kind, at, _) in frontends(family, 1) {
            let tally = stage.lab.from(LabMachine::Client).tcp(at, 600);
            checks.even(&format!("{family} {kind}"), &tally, 3);
        }
        let tally = stage.lab.from(LabMachine::PodB).ask(Protocol::Udp, at_cluster_ip(family, 1), 600);
        checks.even(&format!("{family} UDP"), &tally, 3);
    }
}

#[test]
fn sctp_is_spread_too() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for (kind, at, _) in frontends(family, 1) {
            for from in CLIENTS {
                let tally = stage.lab.from(from).ask(Protocol::Sctp, at, OFTEN);
                checks.served(&format!("{family} SCTP {kind} from {from:?}"), &tally, &ALL_ENDPOINTS, SeenSource::Any);
            }
        }
    }
}

#[test]
fn a_pod_reaches_itself() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for protocol in BOTH {
            for (kind, at, _) in frontends(family, 2) {
                let tally = stage.lab.from(LabMachine::PodA).ask(protocol, at, 3);
                let what = format!("{family} {protocol} {kind}, hairpin");
                checks.served(&what, &tally, &["pod-a:8080"], SeenSource::Masqueraded);
            }
        }
    }
}

#[test]
fn a_service_without_endpoints_refuses_at_once() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for protocol in BOTH {
            for (kind, at, _) in frontends(family, 3) {
                for from in CLIENTS {
                    let tally = stage.lab.from(from).ask(protocol, at, 2);
                    checks.refused(&format!("{family} {protocol} {kind} from {from:?}"), &tally);
                }
            }
        }
    }
}

#[test]
fn an_undefined_port_is_refused_and_an_unallocated_address_is_silent() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for protocol in BOTH {
            for from in CLIENTS {
                let what = format!("{family} {protocol} from {from:?}");
                let undefined = SocketAddr::new(cluster_ip(family, 1), 81);
                checks.refused(&what, &stage.lab.from(from).ask(protocol, undefined, 2));
                checks.silent(&what, &stage.lab.from(from).silence(protocol, at_cluster_ip(family, 200)));
            }
        }
    }
}

#[test]
fn node_ports_are_served_at_the_primary_address_only_and_never_on_loopback() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        let loopback: IpAddr = match family {
            Family::V4 => Ipv4Addr::LOCALHOST.into(),
            Family::V6 => Ipv6Addr::LOCALHOST.into(),
        };
        let [_, second] = node_addresses(family);
        let node = stage.lab.from(LabMachine::Node);
        checks.refused(&format!("{family} loopback"), &node.tcp(SocketAddr::new(loopback, 30001), 2));
        for from in [LabMachine::Node, LabMachine::PodB, LabMachine::Far] {
            let tally = stage.lab.from(from).tcp(SocketAddr::new(second, 30001), 2);
            checks.refused(&format!("{family} second address from {from:?}"), &tally);
        }
    }
}

#[test]
fn an_endpoint_in_the_host_network_is_served_and_left_alone_otherwise() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for from in CLIENTS {
            for at in [at_cluster_ip(family, 8), at_node_port(family, 30008)] {
                let tally = stage.lab.from(from).tcp(at, 3);
                checks.served(&format!("{family} {at} from {from:?}"), &tally, &["node:9090"], SeenSource::Any);
            }
        }
        // the node to its own address: no service is involved, so its source stays, and the port too
        for (address, port) in node_addresses(family).into_iter().zip(45001..) {
            let own = SocketAddr::new(address, port);
            let tally = stage.lab.from(LabMachine::Node).bound_to_port(own).tcp(SocketAddr::new(address, 9090), 1);
            let seen: Vec<_> = tally.answers().map(|answer| answer.seen).collect();
            checks.that(seen == [own], || format!("{family} {own} to itself: {tally}, seen as {seen:?}"));
        }
    }
}
