//! healthCheckNodePort: responses to load balancers about each service.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferry_lab::lab::node_addresses;
use ferry_lab::objects::{EndpointCondition, NAMESPACE, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::stage::ManifestDirectory;
use ferry_lab::{Endpoints, Family, Host, Lab, LabMachine, Manifests, Stage, TestService};

use crate::support::{EXECUTABLE, alone, folder, stage, stage_with};

const PORT: u16 = 31060;
const SOON: Duration = Duration::from_secs(3);

/// A LoadBalancer service with this health check node port.
pub(crate) fn edge(name: &str, number: u8, port: u16) -> TestService {
    TestService::new(name, number.into()).load_balancer(number).external_local().health_check(port)
}

pub(crate) fn one(service: &TestService, at: &[(LabMachine, EndpointCondition)]) -> Manifests {
    let endpoints =
        |endpoints: Endpoints, &(place, condition): &(LabMachine, EndpointCondition)| endpoints.and(place, condition);
    let endpoints = at.iter().fold(service.endpoints(8080, &[]), endpoints);
    Manifests::new().with_endpoints(service.clone(), endpoints)
}

/// The response to an outside client, without the Date line, whose presence is checked.
fn ask(lab: &Lab, at: SocketAddr) -> Option<String> {
    ask_as(lab, "GET", at, "/")
}

fn ask_as(lab: &Lab, method: &str, at: SocketAddr, path: &str) -> Option<String> {
    let answer = lab.from(LabMachine::Client).patience(Duration::from_secs(1)).http(method, at, path)?;
    let lines: Vec<_> = answer.split_inclusive("\r\n").collect();
    let kept: String = lines.iter().filter(|line| !line.starts_with("Date: ")).copied().collect();
    assert!(kept.len() < answer.len(), "no date: {answer}");
    Some(kept)
}

/// The expected response about a service.
fn told(name: &str, local_endpoints: u32, healthy: bool) -> String {
    let status = if local_endpoints > 0 && healthy { "200 OK" } else { "503 Service Unavailable" };
    let body = format!(
        "{{
	\"service\": {{
		\"namespace\": \"{NAMESPACE}\",
		\"name\": \"{name}\"
	}},
	\"localEndpoints\": {local_endpoints},
	\"serviceProxyHealthy\": {healthy}
}}"
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {local_endpoints}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Rules are in force a moment before the response changes.
#[track_caller]
pub(crate) fn is_told(lab: &Lab, at: SocketAddr, name: &str, local_endpoints: u32) {
    let wanted = Some(told(name, local_endpoints, true));
    let mut last = None;
    let start = Instant::now();
    while last != wanted {
        assert!(start.elapsed() < SOON, "{at}: {last:#?} instead of {wanted:#?}");
        last = ask(lab, at);
    }
}

#[track_caller]
fn nobody_tells(lab: &Lab, at: SocketAddr) {
    until(&format!("{at} is closed"), SOON, || ask(lab, at).is_none());
}

/// The node's listening addresses of a port.
fn listening(node: &Host, port: u16) -> BTreeSet<String> {
    let end = format!(":{port}");
    let list = node.sh("ss", &["-Hltn"]);
    let addresses = list.lines().filter_map(|line| line.split_whitespace().nth(3));
    addresses.filter_map(|address| address.strip_suffix(&end)).map(str::to_owned).collect()
}

#[test]
fn it_counts_ready_endpoints_of_the_node() {
    use EndpointCondition::{Ready, Terminating, Unready};
    let service = edge("edge", 60, PORT);
    let mut stage =
        stage(&one(&service, &[(LabMachine::PodA, Ready), (LabMachine::PodB, Terminating), (LabMachine::Far, Ready)]));
    for (endpoints, count) in [
        (&[(LabMachine::PodA, Ready), (LabMachine::PodB, Terminating), (LabMachine::Far, Ready)][..], 1),
        (&[(LabMachine::PodA, Ready), (LabMachine::PodB, Ready), (LabMachine::Far, Ready)], 2),
        // One that ends is served until then, and is no reason to send more.
        (&[(LabMachine::PodA, Terminating), (LabMachine::PodB, Unready), (LabMachine::Far, Ready)], 0),
        (&[(LabMachine::PodB, Ready)], 1),
        (&[(LabMachine::Far, Ready)], 0),
        (&[], 0),
    ] {
        stage.set(&one(&service, endpoints));
        for family in Family::ALL {
            is_told(stage.lab, at_node_port(family, PORT), "edge", count);
        }
    }
    // One address is one endpoint, however many ports it has.
    let both = service.clone().protocols(&[ferry_lab::Protocol::Tcp, ferry_lab::Protocol::Udp]);
    stage.set(&one(&both, &[(LabMachine::PodA, Ready), (LabMachine::PodB, Ready)]));
    for family in Family::ALL {
        is_told(stage.lab, at_node_port(family, PORT), "edge", 2);
    }
}

#[test]
fn each_family_counts_its_own() {
    let service = edge("edge", 60, PORT);
    let [v4, v6] = Family::ALL;
    let endpoints = service.endpoints(8080, &[LabMachine::PodA]).and_at(
        LabMachine::PodB.address(v6),
        LabMachine::PodB.node_name(),
        EndpointCondition::Ready,
    );
    let mut stage = stage(&Manifests::new().with_endpoints(service.clone(), endpoints));
    is_told(stage.lab, at_node_port(v4, PORT), "edge", 1);
    is_told(stage.lab, at_node_port(v6, PORT), "edge", 2);
    stage.set(&Manifests::new().with(service.only(v6), &[LabMachine::PodA]));
    nobody_tells(stage.lab, at_node_port(v4, PORT));
    is_told(stage.lab, at_node_port(v6, PORT), "edge", 1);
}

#[test]
fn any_path_and_method_is_answered() {
    let stage = stage(&Manifests::new().with(edge("edge", 60, PORT), &[LabMachine::PodA]));
    let at = at_node_port(Family::V4, PORT);
    is_told(stage.lab, at, "edge", 1);
    let whole = told("edge", 1, true);
    for (method, path) in [("GET", "/healthz"), ("POST", "/a/b?c=d"), ("DELETE", "/"), ("PURGE", "/%20")] {
        assert_eq!(ask_as(stage.lab, method, at, path).as_ref(), Some(&whole), "{method} {path}");
    }
    let (head, _) = whole.split_once("\r\n\r\n").expect("it has a body");
    assert_eq!(ask_as(stage.lab, "HEAD", at, "/"), Some(format!("{head}\r\n\r\n")));
}

#[test]
fn ports_open_and_close_with_the_service() {
    let service = |port| Manifests::new().with(edge("edge", 60, port), &[LabMachine::PodA]);
    let mut stage = stage(&service(PORT));
    let lab = stage.lab;
    let at = |port| Family::ALL.map(|family| at_node_port(family, port));
    let cluster = TestService::new("edge", 60).load_balancer(60);
    for _ in 0..3 {
        at(PORT).into_iter().for_each(|at| is_told(lab, at, "edge", 1));
        stage.set(&Manifests::new().with(cluster.clone(), &[LabMachine::PodA]));
        at(PORT).into_iter().for_each(|at| nobody_tells(lab, at));
        stage.set(&service(PORT));
    }
    stage.set(&service(PORT + 1));
    at(PORT + 1).into_iter().for_each(|at| is_told(lab, at, "edge", 1));
    at(PORT).into_iter().for_each(|at| nobody_tells(lab, at));
    stage.set(&Manifests::new());
    at(PORT + 1).into_iter().for_each(|at| nobody_tells(lab, at));
    // A restart finds the rules as they are, and opens the port nevertheless.
    stage.set(&service(PORT));
    stage.restart();
    at(PORT).into_iter().for_each(|at| is_told(lab, at, "edge", 1));
}

#[test]
fn two_services_with_one_port_have_it_one_after_the_other() {
    let named = |names: &[(&str, u8)]| {
        let with =
            |all: Manifests, &(name, number): &(&str, u8)| all.with(edge(name, number, PORT), &[LabMachine::PodA]);
        names.iter().fold(Manifests::new(), with)
    };
    let mut stage = stage(&named(&[("late", 60)]));
    let at = at_node_port(Family::V4, PORT);
    is_told(stage.lab, at, "late", 1);
    stage.set(&named(&[("early", 61), ("late", 60)]));
    is_told(stage.lab, at, "late", 1);
    let complaint = "\"Service health checks can't be served, another service owns the port\" family=\"IPv4\" \
                     service=\"demo/early\" port=31060 owner=\"demo/late\"";
    stage.proxy.wait_for("complaint", |proxy| proxy.log().contains(complaint));
    stage.set(&named(&[("early", 61)]));
    is_told(stage.lab, at, "early", 1);
    assert_eq!(stage.proxy.log().matches(complaint).count(), 1);
}

#[test]
fn it_is_asked_where_node_ports_are() {
    let manifests = Manifests::new().with(edge("edge", 60, PORT), &[LabMachine::PodA]);
    let at = |address| SocketAddr::new(address, PORT);
    // By default that is the node's primary addresses.
    let stage = stage(&manifests);
    let node = stage.lab.host(LabMachine::Node);
    for family in Family::ALL {
        let [first, second] = node_addresses(family).map(at);
        is_told(stage.lab, first, "edge", 1);
        nobody_tells(stage.lab, second);
    }
    assert_eq!(listening(node, PORT), BTreeSet::from(["203.0.113.1".to_owned(), "[fd00:cc::1]".to_owned()]));
    drop(stage);
    let everywhere = stage_with(&ProxyConfig::with("nodePortAddresses: [0.0.0.0/0, \"::/0\"]"), &manifests);
    for address in Family::ALL.into_iter().flat_map(node_addresses) {
        is_told(everywhere.lab, at(address), "edge", 1);
    }
    assert_eq!(listening(node, PORT), BTreeSet::from(["0.0.0.0".to_owned(), "[::]".to_owned()]));
    drop(everywhere);
    // A family without a range of its own serves all.
    let mut ranges = stage_with(&ProxyConfig::with("nodePortAddresses: [192.168.0.0/16]"), &manifests);
    is_told(ranges.lab, at(node_addresses(Family::V4)[1]), "edge", 1);
    nobody_tells(ranges.lab, at(node_addresses(Family::V4)[0]));
    is_told(ranges.lab, at(node_addresses(Family::V6)[1]), "edge", 1);
    follows_addresses(&mut ranges);
}

/// Addresses are added and removed.
fn follows_addresses(stage: &mut Stage<'_>) {
    let node = stage.node();
    let late = IpAddr::from([192, 168, 9, 77]);
    for _ in 0..2 {
        node.sh("ip", &["addr", "add", "192.168.9.77/24", "dev", "vfar"]);
        is_told(stage.lab, SocketAddr::new(late, PORT), "edge", 1);
        node.sh("ip", &["addr", "del", "192.168.9.77/24", "dev", "vfar"]);
        until("nobody listens at an address that is gone", SOON, || {
            listening(node, PORT) == BTreeSet::from(["192.168.9.1".to_owned(), "[::]".to_owned()])
        });
    }
}

#[test]
fn a_foreign_listener_is_outlived_and_harms_one_service_only() {
    let mut stage = stage(&Manifests::new());
    let node = stage.lab.host(LabMachine::Node);
    let at = at_node_port(Family::V4, PORT);
    let foreign = node.run(move || TcpListener::bind(at)).expect("nobody has the port");
    stage.set(
        &Manifests::new()
            .with(edge("edge", 60, PORT), &[LabMachine::PodA])
            .with(edge("other", 61, PORT + 1), &[LabMachine::PodA, LabMachine::PodB]),
    );
    is_told(stage.lab, at_node_port(Family::V6, PORT), "edge", 1);
    is_told(stage.lab, at_node_port(Family::V4, PORT + 1), "other", 2);
    let complaint = "\"Service health checks can't be served, retrying every 5 s\" service=\"demo/edge\" \
                     address=\"203.0.113.1:31060\" err=\"listen on 203.0.113.1:31060: Address already in use";
    stage.proxy.wait_for("complaint", |proxy| proxy.log().contains(complaint));
    drop(foreign);
    let elapsed = until("the port is ours", Duration::from_secs(7), || {
        sleep(Duration::from_millis(20));
        ask(stage.lab, at).is_some()
    });
    println!("a port that another process had is served {elapsed:?} after its end");
    is_told(stage.lab, at, "edge", 1);
    assert_eq!(stage.proxy.log().matches(complaint).count(), 1);
    assert!(stage.proxy.log().contains("\"Service health checks are served\" service=\"demo/edge\""));
}

#[test]
fn an_unhealthy_proxy_is_not_for_load_balancers() {
    let service = edge("edge", 60, PORT);
    let manifests = |places: &[LabMachine]| Manifests::new().with(service.clone(), places);
    let config = ProxyConfig::with("nftables: {minSyncPeriod: 1ms, syncPeriod: 1s}");
    let mut stage = stage_with(&config, &manifests(&[LabMachine::PodA]));
    let node = stage.node();
    is_told(stage.lab, at_node_port(Family::V4, PORT), "edge", 1);
    // A table that belongs to another process can't be touched by anybody else.
    let mut owner = node.spawn("nft", &["-i".to_owned()], |command| {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    });
    let mut input = owner.stdin.take().expect("piped");
    let take = b"delete table ip6 kube-proxy; add table ip6 kube-proxy { flags owner; }\n";
    std::io::Write::write_all(&mut input, take).expect("feeding nft");
    std::io::Write::flush(&mut input).expect("feeding nft");
    until("the table is another's", SOON, || ferry_lab::nft::list(node).contains("flags owner"));
    stage.replace(&manifests(&[LabMachine::PodA, LabMachine::PodB]));
    // IPv4 works and counts, but the proxy as a whole is judged; IPv6 has what was in force.
    for (family, count) in Family::ALL.into_iter().zip([2, 1]) {
        let wanted = Some(told("edge", count, false));
        until("503", Duration::from_secs(10), || ask(stage.lab, at_node_port(family, PORT)) == wanted);
    }
    drop(input);
    owner.wait().expect("waiting for nft");
    for family in Family::ALL {
        let wanted = Some(told("edge", 2, true));
        until("200", Duration::from_secs(20), || ask(stage.lab, at_node_port(family, PORT)) == wanted);
    }
}

/// Starts a proxy with these soft and hard limits of open files.
fn limited<'a>(lab: &'a Lab, name: &str, soft: u32, hard: u32, manifests: &Manifests) -> Stage<'a> {
    let folder = folder(name);
    // The folder of a stage is emptied.
    let script = folder.with_extension("sh");
    ManifestDirectory::new(&folder);
    let text = format!("#!/bin/sh\nulimit -Sn {soft} && ulimit -Hn {hard} && exec {EXECUTABLE} \"$@\"\n");
    std::fs::write(&script, text).expect("writing a script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("making it executable");
    let script: &'static str = Box::leak(script.display().to_string().into_boxed_str());
    Stage::new(lab, script, &folder, ProxyConfig::default(), manifests)
}

#[test]
fn a_thousand_services_are_answered() {
    const SERVICES: u16 = 1000;
    let service = |number: u16| {
        let service = TestService::new(&format!("edge-{number}"), 1000 + number);
        service.load_balancer(u8::try_from(number % 200).expect("small")).port(2000 + number).external_local()
    };
    let with = |change: fn(TestService, u16) -> TestService| {
        (0..SERVICES)
            .fold(Manifests::new(), |all, number| all.with(change(service(number), number), &[LabMachine::PodA]))
    };
    let _turn = alone();
    let lab = Lab::new();
    // systemd's defaults for a unit: soft and hard limit.
    let mut stage = limited(&lab, "thousand", 1024, 20_000, &with(|service, _| service));
    let before = stage.proxy.memory();
    stage.set(&with(|service, number| service.health_check(20000 + number)));
    let last = 20000 + SERVICES - 1;
    let start = Instant::now();
    is_told(&lab, at_node_port(Family::V6, last), &format!("edge-{}", SERVICES - 1), 1);
    println!("the last of {SERVICES} services is answered {:?} after its rules", start.elapsed());
    for family in Family::ALL {
        for number in 0..SERVICES {
            is_told(&lab, at_node_port(family, 20000 + number), &format!("edge-{number}"), 1);
        }
    }
    println!("memory: {before} KiB, with the health checks of {SERVICES} services {} KiB", stage.proxy.memory());
    stage.set(&Manifests::new());
    for family in Family::ALL {
        nobody_tells(&lab, at_node_port(family, last));
    }
    assert!(!stage.proxy.log().contains("Service health checks can't be served"));
}

fn many(services: u16) -> Manifests {
    (0..services).fold(Manifests::new(), |all, number| {
        let service = TestService::new(&format!("edge-{number}"), 1000 + number).load_balancer(60).port(2000 + number);
        all.with(service.external_local().health_check(20000 + number), &[LabMachine::PodA])
    })
}

/// Clients of `/healthz` on the node that send nothing.
fn silent_clients(node: &Host, count: usize) -> Vec<TcpStream> {
    node.run(move || {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 10256));
        (0..count).map(|_| TcpStream::connect(at).expect("the kernel takes it")).collect()
    })
}

const ACCEPT_FAILS: &str = "\"Accepting a connection failed, retrying\"";

#[test]
fn health_checks_leave_files_for_the_rest() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = limited(&lab, "reserve", 256, 256, &many(200));
    // Some are answered, some are not; in spite of that, and of clients that take all connections, the proxy keeps working.
    stage.proxy.wait_for("complaint", |proxy| proxy.log().contains("Too many open files"));
    let first = || Family::ALL.into_iter().find_map(|family| ask(&lab, at_node_port(family, 20000)));
    until("the family that came first is answered", SOON, || first() == Some(told("edge-0", 1, true)));
    let clients = silent_clients(stage.node(), 200);
    stage.proxy.wait_until_healthy();
    stage.set(&many(199));
    stage.set(&many(10));
    for family in Family::ALL {
        is_told(&lab, at_node_port(family, 20009), "edge-9", 1);
    }
    drop(clients);
    assert!(!stage.proxy.log().contains(ACCEPT_FAILS));
}

#[test]
fn without_a_file_left_it_waits() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = limited(&lab, "files", 64, 64, &many(2));
    let clients = silent_clients(stage.node(), 60);
    stage.proxy.wait_for("complaint", |proxy| proxy.log().contains(ACCEPT_FAILS));
    let (start, before) = (Instant::now(), stage.proxy.cpu_time());
    sleep(Duration::from_secs(5));
    let share = (stage.proxy.cpu_time() - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    println!("processor use without a file left: {share:.2} %");
    assert!(share < 5.0, "{share} %");
    // Sometimes another server frees a file descriptor.
    assert!(stage.proxy.log().matches(ACCEPT_FAILS).count() < 10);
    drop(clients);
    stage.proxy.wait_until_healthy();
    for family in Family::ALL {
        is_told(&lab, at_node_port(family, 20001), "edge-1", 1);
    }
}
