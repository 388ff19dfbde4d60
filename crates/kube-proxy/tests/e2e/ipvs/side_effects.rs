//! Service addresses on the node's own device have no other effect than to serve.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use ferry_lab::lab::{NODE_PORT, external_ip, is_node_address, node_addresses};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::probe::Server;
use ferry_lab::stage::slowly;
use ferry_lab::{Checks, Family, Manifests, Place, Protocol, Service, Source};

use crate::support::{servers, stage};

/// A port of the host, at all its addresses.
const HOST_PORT: u16 = 7070;
/// A refusal is no timeout: TCP repeats its first packet after a second.
const AT_ONCE: Duration = Duration::from_millis(300);
/// Where clients are.
const FROM: [Place; 4] = [Place::Node, Place::PodB, Place::Far, Place::Client];

fn manifests() -> Manifests {
    Manifests::new()
        .with(Service::new("web", 20).node_port(30020).external_ip(20), &[Place::PodA])
        .with(Service::new("away", 21).external_ip(21), &[Place::Far])
        .without_endpoints(Service::new("empty", 22).node_port(30022).external_ip(22))
}

#[test]
#[ignore = "needs IPVS: runs in emulated machines"]
fn host_services_are_not_reachable_by_a_service_address() {
    let stage = stage(&manifests());
    let everywhere = vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let _server = Server::start(stage.node(), everywhere, vec![HOST_PORT]);
    let mut checks = Checks::new();
    for family in Family::ALL {
        for from in FROM {
            let client = stage.lab.from(from);
            let own = SocketAddr::new(node_addresses(family)[0], HOST_PORT);
            checks.served(&format!("{from:?} {own}"), &client.tcp(own, 1), &["node:7070"], Source::Any);
            for address in [at_cluster_ip(family, 20).ip(), external_ip(family, 20), external_ip(family, 22)] {
                for protocol in [Protocol::Tcp, Protocol::Udp] {
                    let to = SocketAddr::new(address, HOST_PORT);
                    let start = Instant::now();
                    checks.refused(&format!("{from:?} {protocol} {to}"), &client.ask(protocol, to, 1));
                    let took = start.elapsed();
                    checks.that(took < slowly(AT_ONCE), || format!("{from:?} {protocol} {to}: after {took:?}"));
                }
                // the proxy's own health check
                let health = SocketAddr::new(address, 10256);
                checks.refused(&format!("{from:?} {health}"), &client.tcp(health, 1));
            }
        }
    }
}

#[test]
#[ignore = "needs IPVS: runs in emulated machines"]
fn a_service_without_endpoints_is_refused_at_once() {
    let stage = stage(&manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for from in FROM {
            for to in [at_cluster_ip(family, 22), at_external_ip(family, 22), at_node_port(family, 30022)] {
                let start = Instant::now();
                checks.refused(&format!("{from:?} {to}"), &stage.lab.from(from).tcp(to, 1));
                let took = start.elapsed();
                checks.that(took < slowly(AT_ONCE), || format!("{from:?} {to}: after {took:?}"));
            }
        }
    }
}

#[test]
#[ignore = "needs IPVS: runs in emulated machines"]
fn a_service_address_is_no_source() {
    let stage = stage(&manifests());
    let node = stage.node();
    let mut checks = Checks::new();
    for family in Family::ALL {
        // the node's own connections, to any device
        for to in [
            SocketAddr::new(Place::Client.address(family), NODE_PORT),
            SocketAddr::new(Place::Far.address(family), 8080),
            SocketAddr::new(Place::PodA.address(family), 8080),
        ] {
            checks.source(&format!("{to}"), &stage.lab.from(Place::Node).tcp(to, 2), Source::Masqueraded);
            let route = node.sh("ip", &["route", "get", &to.ip().to_string()]);
            let source = route.split_once(" src ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
            checks.that(source.is_some_and(is_node_address), || route);
        }
        // masqueraded ones
        for (to, endpoint) in [(at_node_port(family, 30020), "pod-a:8080"), (at_external_ip(family, 21), "far:8080")] {
            for from in [Place::Client, Place::Node] {
                let tally = stage.lab.from(from).tcp(to, 3);
                checks.served(&format!("{from:?} {to}"), &tally, &[endpoint], Source::Masqueraded);
            }
        }
        // pods keep their own
        let tally = stage.lab.from(Place::PodB).tcp(at_cluster_ip(family, 21), 3);
        checks.served("a pod", &tally, &["far:8080"], Source::Kept(Place::PodB.address(family)));
    }
}

#[test]
#[ignore = "needs IPVS: runs in emulated machines"]
fn a_node_address_is_not_taken_over() {
    let service = |of: fn(Family) -> IpAddr| {
        Family::ALL.into_iter().fold(Service::new("greedy", 23), |service, family| service.external_address(of(family)))
    };
    let greedy = service(|family| node_addresses(family)[0]);
    let mut stage = stage(&manifests());
    let node = stage.node();
    let addresses = |device: &str| node.sh("ip", &["-o", "addr", "show", "dev", device]);
    let own = addresses("vcli");
    stage.set(&manifests().with(greedy, &[Place::PodA]));
    let bound = addresses("kube-ipvs0");
    let mut checks = Checks::new();
    for family in Family::ALL {
        let [address, _] = node_addresses(family);
        checks.that(!bound.contains(&format!(" {address}/")), || format!("{address}: {bound}"));
        let host = SocketAddr::new(address, NODE_PORT);
        checks.served("the host", &stage.lab.from(Place::Client).tcp(host, 2), &["node:9090"], Source::Any);
    }
    stage.set(&manifests());
    checks.that(addresses("vcli") == own, || addresses("vcli"));
    let left: Vec<_> = servers(node).into_iter().filter(|server| server.name.contains("203.0.113.1:80")).collect();
    checks.that(left.is_empty(), || format!("{left:?}"));
}
