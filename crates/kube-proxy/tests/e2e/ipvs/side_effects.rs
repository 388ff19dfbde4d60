//! Service addresses on the node's own device have no other effect than to serve.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ferry_lab::lab::{NODE_PORT, external_ip, node_addresses};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::{slowly, until};
use ferry_lab::probe::{Echo, ProbeServer};
use ferry_lab::{
    Checks, Family, Lab, LabMachine, Manifests, ProbeOutcome, ProbeTally, Protocol, SeenSource, TestService,
};

use crate::grace::Talk;
use crate::support::{LIMIT, ask_from_port, ipvs, servers, stage, stage_with};
use crate::tutorial::answers_ping;

/// A port of the host, at all its addresses.
const HOST_PORT: u16 = 7070;
/// A refusal is no timeout: TCP repeats its first packet after a second.
const AT_ONCE: Duration = Duration::from_millis(300);
/// The source port of a client whose UDP flow outlives what is served.
const FLOW_PORT: u16 = 5005;
/// The port of a health check.
const HEALTH_PORT: u16 = 32025;
/// The port of an echo server.
const ECHO: u16 = 8181;
/// Time limit of the repair of deleted virtual servers, which are looked for at least once a minute.
const REPAIRED: Duration = Duration::from_secs(12);
/// Where clients are.
const FROM: [LabMachine; 4] = [LabMachine::Node, LabMachine::PodB, LabMachine::Far, LabMachine::Client];

fn manifests() -> Manifests {
    Manifests::new()
        .with(TestService::new("web", 20).node_port(30020).external_ip(20), &[LabMachine::PodA])
        .with(TestService::new("away", 21).external_ip(21), &[LabMachine::Far])
        .without_endpoints(TestService::new("empty", 22).node_port(30022).external_ip(22))
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn host_services_are_not_reachable_by_a_service_address() {
    let stage = stage(&manifests());
    let everywhere = vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let _server = ProbeServer::start(stage.node(), everywhere, vec![HOST_PORT]);
    let mut checks = Checks::new();
    for family in Family::ALL {
        for from in FROM {
            let client = stage.lab.from(from);
            let own = SocketAddr::new(node_addresses(family)[0], HOST_PORT);
            checks.served(&format!("{from:?} {own}"), &client.tcp(own, 1), &["node:7070"], SeenSource::Any);
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

/// A Service with an external IP of `web`, at the host's port, which is served on the other node.
fn contested() -> TestService {
    TestService::new("contested", 26).external_ip(20).protocols(&Protocol::ALL).port(HOST_PORT)
}

/// A service of the host that listens at this external IP itself, so that its answers come from there over UDP, too.
fn host_service(lab: &Lab, number: u8, port: u16) -> ProbeServer {
    let (node, addresses) = (lab.host(LabMachine::Node), Family::ALL.map(|family| external_ip(family, number)));
    // New addresses come after the virtual servers, and so after the answer that says that the manifests are in force.
    until("the service's addresses", LIMIT, || {
        std::thread::sleep(Duration::from_millis(100));
        node.run(move || addresses.iter().all(|address| UdpSocket::bind((*address, 0)).is_ok()))
    });
    ProbeServer::start(node, addresses.to_vec(), vec![port])
}

/// One request over UDP, always from the same port.
fn of_flow(lab: &Lab, from: LabMachine, to: SocketAddr) -> ProbeTally {
    ask_from_port(lab, (from, FLOW_PORT), to, AT_ONCE)
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_missing_virtual_server_opens_no_service_of_the_host() {
    let talks = TestService::new("talks", 27).external_ip(20).port(ECHO);
    let echoes = talks.endpoints(ECHO, &[LabMachine::Far]);
    let checked = TestService::new("checked", 25).load_balancer(25).external_local().health_check(HEALTH_PORT);
    let all = manifests()
        .with(contested(), &[LabMachine::Far])
        .with_endpoints(talks, echoes)
        .with(checked, &[LabMachine::PodA]);
    let mut stage = stage(&all);
    let lab = stage.lab;
    let _host = [host_service(lab, 20, HOST_PORT), host_service(lab, 25, HEALTH_PORT)];
    let echo_at = |family| SocketAddr::new(LabMachine::Far.address(family), ECHO);
    let _echo = Echo::start(lab.host(LabMachine::Far), &Family::ALL.map(echo_at));
    let mut checks = Checks::new();
    let each = |check: &mut dyn FnMut(Family, LabMachine, SocketAddr)| {
        for family in Family::ALL {
            FROM.iter().for_each(|from| check(family, *from, SocketAddr::new(external_ip(family, 20), HOST_PORT)));
        }
    };
    let mut talks = Vec::new();
    each(&mut |family, from, _| {
        let mut talk = Talk::open(lab.host(from), SocketAddr::new(external_ip(family, 20), ECHO));
        talk.exchange().expect("it is served");
        talks.push((family, from, talk));
    });
    stage.proxy.suspend();
    stage.node().sh("ipvsadm", &["-C"]);
    each(&mut |family, from, to| {
        for protocol in Protocol::ALL {
            // A chain in postrouting, where the node's own packets are found, can't reject.
            let expected = if from == LabMachine::Node { ProbeOutcome::Timeout } else { ProbeOutcome::Refused };
            let tally = lab.from(from).silence(protocol, to);
            checks.that(tally.all(&expected), || format!("{from:?} {protocol} {to}: {tally} without its server"));
        }
        let tally = of_flow(lab, from, to);
        checks.that(tally.answers().count() == 0, || format!("{from:?} {to}: {tally}, a flow"));
        let health = SocketAddr::new(external_ip(family, 25), HEALTH_PORT);
        let tally = lab.from(from).tcp(health, 1);
        checks.served(&format!("{from:?} {health}, a health check"), &tally, &["node:32025"], SeenSource::Any);
        checks.that(answers_ping(lab.host(from), to.ip(), LIMIT), || format!("{from:?}: no ping of {}", to.ip()));
        let own = SocketAddr::new(node_addresses(family)[0], NODE_PORT);
        checks.served(&format!("{from:?} {own}"), &lab.from(from).tcp(own, 1), &["node:9090"], SeenSource::Any);
    });
    for (family, from, mut talk) in talks {
        let end = talk.exchange().map_err(|error| error.kind());
        checks.that(end == Err(ErrorKind::ConnectionReset), || format!("{family} {from:?}: a connection: {end:?}"));
    }
    stage.proxy.go_on();
    each(&mut |_, from, to| {
        until("the repair", REPAIRED, || lab.from(from).patience(slowly(AT_ONCE)).tcp(to, 1).all_answered());
        let what = format!("{from:?} {to}: served again");
        Protocol::ALL.iter().for_each(|protocol| {
            checks.served(&what, &lab.from(from).ask(*protocol, to, 1), &["far:8080"], SeenSource::Any);
        });
        checks.served(&what, &of_flow(lab, from, to), &["far:8080"], SeenSource::Any);
    });
    stage.set(&manifests());
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_port_that_comes_and_goes_is_never_the_host_s() {
    let mut stage = stage(&manifests());
    let lab = stage.lab;
    let _host = host_service(lab, 20, HOST_PORT);
    let mut checks = Checks::new();
    let at = |family| SocketAddr::new(external_ip(family, 20), HOST_PORT);
    for family in Family::ALL {
        let clients = FROM.iter().flat_map(|from| [(*from, Protocol::Tcp), (*from, Protocol::Udp)]);
        let hammers: Vec<_> = clients
            .map(|(from, protocol)| {
                (from, protocol, lab.from(from).patience(slowly(AT_ONCE) / 5).hammer(protocol, at(family)))
            })
            .collect();
        for _ in 0..10 {
            // A flow that was refused last is served, and the other way round, once the first packet of those that IPVS
            // still keeps has been dropped.
            for (manifests, is_there) in
                [(manifests().with(contested(), &[LabMachine::Far]), true), (manifests(), false)]
            {
                stage.set(&manifests);
                for from in FROM {
                    until(&format!("{from:?} {}: a flow, {is_there}", at(family)), LIMIT, || {
                        let tally = of_flow(lab, from, at(family));
                        if is_there {
                            tally.endpoints().contains_key("far:8080")
                        } else {
                            tally.all(&ProbeOutcome::Refused)
                        }
                    });
                }
            }
        }
        for (from, protocol, hammer) in hammers {
            let tally = ProbeTally(hammer.stop().into_iter().map(|(_, outcome)| outcome).collect());
            let what = format!("{from:?} {protocol} {}: {tally}", at(family));
            println!("{what}");
            let endpoints: Vec<_> = tally.endpoints().into_keys().collect();
            checks.that(endpoints == ["far:8080"], || what);
        }
    }
}

/// At an address of the host, its own services are reached where no Service has the port, and not while one has it.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_node_port_gives_way_to_the_host_s_own_service_when_it_goes() {
    const PORT: u16 = 30028;
    let mut stage = stage(&manifests());
    let lab = stage.lab;
    let addresses = Family::ALL.map(|family| node_addresses(family)[0]).to_vec();
    let _host = ProbeServer::start(lab.host(LabMachine::Node), addresses, vec![PORT]);
    let service = TestService::new("ported", 28).protocols(&Protocol::ALL).node_port(PORT);
    let mut checks = Checks::new();
    for _ in 0..3 {
        for (manifests, endpoint) in
            [(manifests(), "node:30028"), (manifests().with(service.clone(), &[LabMachine::Far]), "far:8080")]
        {
            stage.set(&manifests);
            for (family, from) in Family::ALL.into_iter().flat_map(|family| FROM.map(|from| (family, from))) {
                let to = at_node_port(family, PORT);
                for protocol in Protocol::ALL {
                    let tally = lab.from(from).ask(protocol, to, 2);
                    checks.served(&format!("{from:?} {protocol} {to}"), &tally, &[endpoint], SeenSource::Any);
                }
                // An entry that leads elsewhere is deleted (decision 23).
                until(&format!("{from:?} {to}: a flow to {endpoint}"), LIMIT, || {
                    of_flow(lab, from, to).endpoints().contains_key(endpoint)
                });
            }
        }
    }
    stage.set(&manifests());
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
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
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_node_address_is_not_taken_over() {
    let service = |of: fn(Family) -> IpAddr| {
        Family::ALL
            .into_iter()
            .fold(TestService::new("greedy", 23), |service, family| service.external_address(of(family)))
    };
    let greedy = service(|family| node_addresses(family)[0]);
    let mut stage = stage(&manifests());
    let node = stage.node();
    let addresses = |device: &str| node.sh("ip", &["-o", "addr", "show", "dev", device]);
    let own = addresses("vcli");
    stage.set(&manifests().with(greedy, &[LabMachine::PodA]));
    let bound = addresses("kube-ipvs0");
    let mut checks = Checks::new();
    for family in Family::ALL {
        let [address, _] = node_addresses(family);
        checks.that(!bound.contains(&format!(" {address}/")), || format!("{address}: {bound}"));
        let host = SocketAddr::new(address, NODE_PORT);
        checks.served("the host", &stage.lab.from(LabMachine::Client).tcp(host, 2), &["node:9090"], SeenSource::Any);
    }
    stage.set(&manifests());
    checks.that(addresses("vcli") == own, || addresses("vcli"));
    let left: Vec<_> = servers(node).into_iter().filter(|server| server.name.contains("203.0.113.1:80")).collect();
    checks.that(left.is_empty(), || format!("{left:?}"));
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_service_address_answers_pings_only_with_an_endpoint_if_so_configured() {
    let option = "---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nipvsPingOnlyWithEndpoints: true";
    // Of two Services one has an endpoint.
    let manifests = |first: bool| {
        let (served, empty) = if first { (23, 24) } else { (24, 23) };
        let name = |number| if number == 23 { "first" } else { "second" };
        Manifests::new()
            .with(TestService::new(name(served), served), &[LabMachine::PodA])
            .without_endpoints(TestService::new(name(empty), empty))
    };
    let mut stage = stage_with(&ipvs(option), &manifests(true));
    for first in [true, false] {
        stage.set(&manifests(first));
        for family in Family::ALL {
            for from in FROM {
                for (number, answers) in [(23, first), (24, !first)] {
                    let to = at_cluster_ip(family, number).ip();
                    let patience = if answers { LIMIT } else { Duration::from_millis(300) };
                    assert_eq!(answers_ping(stage.lab.host(from), to, patience), answers, "{from:?} {to}");
                }
            }
        }
    }
}
