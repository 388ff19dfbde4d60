//! Removal of endpoints, services and frontends while clients keep sending.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ferry_lab::objects::{EndpointCondition, at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::proxy::USERSPACE;
use ferry_lab::{Family, Lab, LabMachine, Manifests, Mode, ProbeOutcome, Protocol, TestService};

use crate::support::{Asker, EndedFlows, LIMIT, removed, rest, spread, stage, stage_in, sweeps};

/// Port of endpoints that receive and never answer.
const SINK: u16 = 9999;
/// Port of endpoints that answer when the test makes them.
const LATE: u16 = 9998;

/// A service with frontends of every kind. Each test has a number of its own, so that conntrack entries of one don't affect
/// another.
fn service(protocol: Protocol, number: u8) -> TestService {
    let number16 = u16::from(number);
    TestService::new("dns", number16).protocols(&[protocol]).node_port(30000 + number16).external_ip(number)
}

fn at(protocol: Protocol, number: u8, places: &[LabMachine]) -> Manifests {
    Manifests::new().with(service(protocol, number), places)
}

fn askers<'a>(lab: &'a Lab, family: Family, protocol: Protocol, number: u8) -> [Asker<'a>; 4] {
    [
        (LabMachine::Client, at_cluster_ip(family, number.into())),
        (LabMachine::PodB, at_cluster_ip(family, number.into())),
        (LabMachine::Client, at_node_port(family, 30000 + u16::from(number))),
        (LabMachine::Client, at_external_ip(family, number)),
    ]
    .map(|(place, to)| Asker::new(lab, place, protocol, to))
}

fn all_askers(lab: &Lab, protocol: Protocol, number: u8) -> Vec<Asker<'_>> {
    Family::ALL.into_iter().flat_map(|family| askers(lab, family, protocol, number)).collect()
}

/// Every flow follows the endpoints through all changes, and no endpoint answers in place of a removed one.
fn flows_follow(mode: Mode, protocol: Protocol, number: u8) {
    let mut stage = stage_in(mode, &at(protocol, number, &[LabMachine::PodA]));
    let askers = all_askers(stage.lab, protocol, number);
    for asker in &askers {
        assert_eq!(asker.answer(), "pod-a:8080", "{}", asker.to);
    }
    // flows of the last group have expired
    rest(&stage);
    let before = removed(&stage);
    let mut times = Vec::new();
    let rounds = 6;
    for round in 0..rounds {
        let (place, endpoint) =
            if round % 2 == 0 { (LabMachine::Far, "far:8080") } else { (LabMachine::PodA, "pod-a:8080") };
        let start = Instant::now();
        stage.replace(&at(protocol, number, &[place]));
        for asker in &askers {
            until(&format!("{protocol} {} is led to {endpoint}", asker.to), LIMIT, || {
                asker.endpoint().as_deref() == Some(endpoint)
            });
            times.push(start.elapsed());
        }
    }
    let sweeps = sweeps(&stage);
    let seconds = stage.proxy.metric("kubeproxy_conntrack_reconciler_sync_duration_seconds_sum", &[]);
    println!("{sweeps} sweeps of {:.1} ms on average so far", seconds / sweeps * 1e3);
    println!(
        "{protocol}: manifest renamed to the first answer of the new endpoint on an old flow, {} flows one after another: {}",
        times.len(),
        spread(times)
    );
    // In mode userspace the entries lead to the proxy's listeners, which stay.
    let changes = if mode.name == USERSPACE { 0.0 } else { f64::from(rounds) * askers.len() as f64 };
    if protocol == Protocol::Udp {
        // an association that is only begun is forgotten after seconds
        until("they are counted", LIMIT, || removed(&stage) - before >= changes);
        assert!(removed(&stage) - before < changes + 1.0, "each flow is removed once for each change");
    }
}

#[test]
fn udp_flows_follow_the_endpoints() {
    flows_follow(Mode::NFTABLES, Protocol::Udp, 51);
}

#[test]
fn udp_flows_follow_the_endpoints_in_mode_userspace_too() {
    flows_follow(Mode::USERSPACE, Protocol::Udp, 66);
}

/// The endpoint stays, and in mode userspace the listener that the flow leads to doesn't.
fn flows_survive_a_change_of_policy(mode: Mode, number: u8) {
    let by_policy = |is_local: bool| {
        let service = service(Protocol::Udp, number);
        Manifests::new().with(if is_local { service.external_local() } else { service }, &[LabMachine::PodA])
    };
    let mut stage = stage_in(mode, &by_policy(true));
    let outside = |family| {
        [at_node_port(family, 30000 + u16::from(number)), at_external_ip(family, number)]
            .map(|to| Asker::new(stage.lab, LabMachine::Client, Protocol::Udp, to))
    };
    let askers: Vec<_> = Family::ALL.into_iter().flat_map(outside).collect();
    askers.iter().for_each(|asker| assert_eq!(asker.answer(), "pod-a:8080", "{}", asker.to));
    let mut counted: f64 = 0.0;
    for is_local in [false, true, false] {
        stage.replace(&by_policy(is_local));
        for asker in &askers {
            // A client that goes on sending keeps its entry alive.
            assert_eq!(asker.answer(), "pod-a:8080", "{} {is_local}", asker.to);
        }
        if mode.name == USERSPACE {
            let now = stage.proxy.metric("kubeproxy_userspace_connections_total", &["service=\"dns\""]);
            assert!(now >= counted.max(askers.len() as f64), "a counter never falls: {counted}, then {now}");
            counted = now;
        }
    }
}

#[test]
fn udp_flows_survive_a_change_of_policy() {
    flows_survive_a_change_of_policy(Mode::NFTABLES, 67);
}

#[test]
fn udp_flows_survive_a_change_of_policy_in_mode_userspace_too() {
    flows_survive_a_change_of_policy(Mode::USERSPACE, 68);
}

#[test]
fn sctp_flows_follow_the_endpoints() {
    flows_follow(Mode::NFTABLES, Protocol::Sctp, 52);
}

/// How long after the rules are in force: another service of the same change answers.
#[test]
fn the_first_look_is_at_once() {
    let with = |place| at(Protocol::Udp, 53, &[place]).with(TestService::new("clock", 153), &[place]);
    let mut stage = stage(&with(LabMachine::PodA));
    let asker = Asker::new(stage.lab, LabMachine::Client, Protocol::Udp, at_cluster_ip(Family::V4, 53));
    let clock = stage.lab.from(LabMachine::Client).patience(Duration::from_millis(200));
    let (mut times, mut early) = (Vec::new(), 0);
    for round in 0..6 {
        let (place, endpoint) =
            if round % 2 == 0 { (LabMachine::Far, "far:8080") } else { (LabMachine::PodA, "pod-a:8080") };
        until("it is led to one", LIMIT, || asker.endpoint().is_some_and(|now| now != endpoint));
        rest(&stage);
        let before = sweeps(&stage);
        stage.replace(&with(place));
        until("the rules are in force", LIMIT, || {
            clock.tcp(at_cluster_ip(Family::V4, 153), 1).endpoints().contains_key(endpoint)
        });
        let in_force = Instant::now();
        until("the flow is led there", LIMIT, || asker.endpoint().as_deref() == Some(endpoint));
        times.push(in_force.elapsed());
        early += u32::from(sweeps(&stage) <= before + 2.0);
    }
    assert!(early > 0, "only the second sweep of a family has led it there: {times:?}");
    println!("rules seen in force to the answer of the new endpoint: {}", spread(times));
}

/// Clients that expect no answer, such as those that send metrics. The second check of the frontend would move them, too.
#[test]
fn a_client_that_is_never_answered_follows_before_the_second_check() {
    let service = TestService::new("metrics", 58).protocols(&[Protocol::Udp]);
    let to = |place| Manifests::new().with_endpoints(service.clone(), service.endpoints(SINK, &[place]));
    let mut stage = stage(&to(LabMachine::PodA));
    for family in Family::ALL {
        let sinks = [LabMachine::PodA, LabMachine::Far].map(|place| {
            let sink = socket(stage.lab, place, family, SINK);
            sink.set_nonblocking(true).expect("a socket");
            sink
        });
        let client = socket(stage.lab, LabMachine::Client, family, 0);
        client.connect(at_cluster_ip(family, 58)).expect("a route");
        let (mut early, mut times) = (0, Vec::new());
        for round in 0..2 {
            let (place, sink) =
                if round % 2 == 0 { (LabMachine::Far, &sinks[1]) } else { (LabMachine::PodA, &sinks[0]) };
            rest(&stage);
            client.send(b"1").expect("a datagram");
            let before = sweeps(&stage);
            while sink.recv(&mut [0; 8]).is_ok() {}
            stage.replace(&to(place));
            let start = Instant::now();
            until("the client reaches the new endpoint", LIMIT, || {
                std::thread::sleep(Duration::from_millis(2));
                client.send(b"2").expect("a datagram");
                sink.recv(&mut [0; 8]).is_ok()
            });
            times.push(start.elapsed());
            // One check in each family.
            early += u32::from(sweeps(&stage) <= before + 2.0);
        }
        println!("{family}, change to the first datagram at the new endpoint: {}", spread(times));
        assert!(early > 0, "it is the second check that moves the flows");
    }
}

/// A client and the endpoint that it reaches, which answers when the test makes it.
struct LateAnswer {
    to: SocketAddr,
    client: UdpSocket,
    endpoint: UdpSocket,
    /// the client, as the endpoint sees it
    seen: SocketAddr,
    /// number of the last request
    requests: u8,
}

// === impl LateAnswer ===

impl LateAnswer {
    fn new(lab: &Lab, place: LabMachine, to: SocketAddr, endpoint: &UdpSocket) -> Self {
        let client = socket(lab, place, Family::of(to.ip()), 0);
        let endpoint = endpoint.try_clone().expect("a second handle");
        let mut flow = Self { to, client, endpoint, seen: to, requests: 0 };
        flow.exchange();
        flow
    }

    /// True if a request is answered.
    fn is_answered(&mut self) -> bool {
        self.requests += 1;
        self.client.send_to(&[self.requests], self.to).expect("a datagram");
        let Ok((_, seen)) = self.endpoint.recv_from(&mut [0]) else { return false };
        self.seen = seen;
        self.answer();
        // The late answer may come first.
        let mut answer = [0];
        while self.client.recv(&mut answer).is_ok() {
            if answer == [self.requests] {
                return true;
            }
        }
        false
    }

    fn exchange(&mut self) {
        until(&format!("{} is answered", self.to), LIMIT, || self.is_answered());
    }

    fn answer(&self) {
        self.endpoint.send_to(&[self.requests], self.seen).expect("a datagram");
    }
}

/// A socket with this port, or any for 0, at a place.
fn socket(lab: &Lab, place: LabMachine, family: Family, port: u16) -> UdpSocket {
    lab.host(place).run(move || {
        let socket = UdpSocket::bind(SocketAddr::new(place.address(family), port)).expect("a free port");
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a time limit");
        socket
    })
}

/// The entry that such an answer makes leads from the endpoint to the client. As long as it lives, it would drop the client's packets to
/// that endpoint where these keep the client's port.
fn a_late_answer_blocks_nothing(mode: Mode) {
    let service = TestService::new("late", 59).protocols(&[Protocol::Udp]).node_port(30059);
    let with = Manifests::new().with_endpoints(service.clone(), service.endpoints(LATE, &[LabMachine::PodA]));
    let mut stage = stage_in(mode, &with);
    let lab = stage.lab;
    // The entries outlive the test's patience on a slow machine; the default is 30 s.
    lab.host(LabMachine::Node).sysctl("net/netfilter/nf_conntrack_udp_timeout", "600");
    let mut flows = Vec::new();
    for family in Family::ALL {
        let endpoint = socket(lab, LabMachine::PodA, family, LATE);
        for (place, to) in
            [(LabMachine::PodB, at_cluster_ip(family, 59)), (LabMachine::Client, at_node_port(family, 30059))]
        {
            flows.push(LateAnswer::new(lab, place, to, &endpoint));
        }
    }
    stage.set(&Manifests::new().without_endpoints(service));
    rest(&stage);
    flows.iter().for_each(LateAnswer::answer);
    stage.set(&with);
    flows.iter_mut().for_each(LateAnswer::exchange);
}

#[test]
fn a_late_answer_blocks_no_flow_to_an_endpoint_that_returns() {
    a_late_answer_blocks_nothing(Mode::NFTABLES);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_late_answer_blocks_no_flow_to_an_endpoint_that_returns_by_ipvs() {
    a_late_answer_blocks_nothing(Mode::IPVS);
}

#[test]
fn without_endpoints_a_flow_is_refused_until_they_return() {
    for (protocol, number) in [(Protocol::Udp, 54), (Protocol::Sctp, 55)] {
        let mut stage = stage(&at(protocol, number, &[LabMachine::PodA]));
        let askers = all_askers(stage.lab, protocol, number);
        for asker in &askers {
            assert_eq!(asker.answer(), "pod-a:8080", "{protocol} {}", asker.to);
        }
        stage.set(&Manifests::new().without_endpoints(service(protocol, number)));
        for asker in &askers {
            until(&format!("{protocol} {} is refused", asker.to), LIMIT, || asker.ask() == ProbeOutcome::Refused);
        }
        stage.set(&at(protocol, number, &[LabMachine::Far]));
        for asker in &askers {
            until(&format!("{protocol} {} is answered again", asker.to), LIMIT, || {
                asker.endpoint().as_deref() == Some("far:8080")
            });
        }
    }
}

#[test]
fn who_keeps_sending_to_a_service_that_is_gone_reaches_nobody() {
    let bare = TestService::new("dns", 56).protocols(&[Protocol::Udp]);
    let mut stage = stage(&at(Protocol::Udp, 56, &[LabMachine::PodA]));
    for family in Family::ALL {
        stage.set(&at(Protocol::Udp, 56, &[LabMachine::PodA]));
        let askers = askers(stage.lab, family, Protocol::Udp, 56);
        for asker in &askers {
            assert_eq!(asker.answer(), "pod-a:8080", "{}", asker.to);
        }
        let [cluster_ip, from_pod, node_port, external_ip] = &askers;
        // first only the frontends for others
        stage.set(&Manifests::new().with(bare.clone(), &[LabMachine::PodA]));
        for asker in [node_port, external_ip] {
            asker.gets_lost(stage.lab);
        }
        for asker in [cluster_ip, from_pod] {
            assert_eq!(asker.answer(), "pod-a:8080", "{}", asker.to);
        }
        stage.set(&Manifests::new());
        for asker in [cluster_ip, from_pod] {
            asker.gets_lost(stage.lab);
        }
    }
}

/// Flows of a frontend follow it to another service.
#[test]
fn a_frontend_that_changes_hands_takes_its_flows_along() {
    let owner = |name: &str, number: u16| TestService::new(name, number).protocols(&[Protocol::Udp]).external_ip(57);
    let bare = |name: &str, number: u16| TestService::new(name, number).protocols(&[Protocol::Udp]);
    let one = Manifests::new().with(owner("one", 57), &[LabMachine::PodA]).with(bare("two", 157), &[LabMachine::Far]);
    let two = Manifests::new().with(bare("one", 57), &[LabMachine::PodA]).with(owner("two", 157), &[LabMachine::Far]);
    let mut stage = stage(&one);
    let askers = Family::ALL.map(|f| Asker::new(stage.lab, LabMachine::Client, Protocol::Udp, at_external_ip(f, 57)));
    for (manifests, endpoint) in [(&one, "pod-a:8080"), (&two, "far:8080"), (&one, "pod-a:8080")] {
        stage.set(manifests);
        for asker in &askers {
            until(&format!("{} is led to {endpoint}", asker.to), LIMIT, || {
                asker.endpoint().as_deref() == Some(endpoint)
            });
        }
    }
}

#[test]
fn an_endpoint_that_terminates_but_serves_keeps_its_flows() {
    let service = service(Protocol::Udp, 58);
    let both = at(Protocol::Udp, 58, &[LabMachine::PodA, LabMachine::PodB]);
    let ending = service.endpoints(8080, &[LabMachine::PodA]).and(LabMachine::PodB, EndpointCondition::Terminating);
    let ending = Manifests::new().with_endpoints(service.clone(), ending);
    let mut stage = stage(&at(Protocol::Udp, 58, &[LabMachine::PodB]));
    let ended_flows = EndedFlows::new(stage.lab);
    for family in Family::ALL {
        stage.set(&at(Protocol::Udp, 58, &[LabMachine::PodB]));
        let askers = askers(stage.lab, family, Protocol::Udp, 58);
        for asker in &askers {
            assert_eq!(asker.answer(), "pod-b:8080", "{}", asker.to);
        }
        let entries: Vec<_> = askers.iter().map(|asker| asker.entry(stage.lab).expect("a flow").id).collect();
        stage.set(&both);
        stage.set(&ending);
        rest(&stage);
        for asker in &askers {
            assert_eq!(asker.answer(), "pod-b:8080", "{}", asker.to);
        }
        let now: Vec<_> = askers.iter().map(|asker| asker.entry(stage.lab).expect("a flow").id).collect();
        assert_eq!(now, entries);
        let all: Vec<_> = askers.iter().collect();
        assert_eq!(ended_flows.ended(&all), <[&SocketAddr; 0]>::default());
        stage.set(&at(Protocol::Udp, 58, &[LabMachine::PodA]));
        for asker in &askers {
            until(&format!("{} is led elsewhere", asker.to), LIMIT, || {
                asker.endpoint().as_deref() == Some("pod-a:8080")
            });
        }
        assert_eq!(ended_flows.ended(&all).len(), all.len());
    }
}
