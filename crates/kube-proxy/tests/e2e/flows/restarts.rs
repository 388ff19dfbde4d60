//! Restarts and take-overs: valid flows stay, and entries that became stale while no proxy ran are deleted.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ferry_lab::lab::node_addresses;
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::proxy::IPVS;
use ferry_lab::{Family, Lab, LabMachine, Manifests, Mode, ProbeOutcome, Protocol, TestService};

use crate::support::{Asker, EndedFlows, LIMIT, removed, rest, stage_in, stage_with, sweeps, switch};

/// A client that sends requests from one port, one after another.
struct Talker {
    stop: Arc<AtomicBool>,
    /// number of requests, and of those without an answer
    thread: JoinHandle<(usize, usize)>,
}

impl Talker {
    fn start(lab: &Lab, place: LabMachine, to: SocketAddr) -> Self {
        let (stop, from) = (Arc::new(AtomicBool::new(false)), SocketAddr::new(place.address(Family::of(to.ip())), 0));
        let stopped = Arc::clone(&stop);
        let thread = lab.host(place).thread(move || {
            let socket = UdpSocket::bind(from).expect("a port");
            socket.connect(to).expect("a route");
            socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a time limit");
            let (mut asked, mut lost) = (0, 0);
            while !stopped.load(Ordering::Relaxed) {
                asked += 1;
                lost += usize::from(socket.send(b"?").is_err() || socket.recv(&mut [0; 128]).is_err());
                std::thread::sleep(Duration::from_millis(1));
            }
            (asked, lost)
        });
        Self { stop, thread }
    }

    fn finish(self) -> (usize, usize) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it doesn't panic")
    }
}

fn service(name: &str, number: u8, protocol: Protocol) -> TestService {
    let number16 = u16::from(number);
    TestService::new(name, number16).protocols(&[protocol]).node_port(30000 + number16).external_ip(number)
}

fn frontends(family: Family, number: u8) -> [(LabMachine, SocketAddr); 4] {
    [
        (LabMachine::Client, at_cluster_ip(family, number.into())),
        (LabMachine::PodB, at_cluster_ip(family, number.into())),
        (LabMachine::Client, at_node_port(family, 30000 + u16::from(number))),
        (LabMachine::Client, at_external_ip(family, number)),
    ]
}

/// Clients of all frontends of a service, whose flows go to the first pod.
fn askers(lab: &Lab, protocol: Protocol, number: u8) -> Vec<Asker<'_>> {
    let all = Family::ALL.into_iter().flat_map(|family| frontends(family, number));
    let askers: Vec<_> = all.map(|(place, to)| Asker::new(lab, place, protocol, to)).collect();
    for asker in &askers {
        assert_eq!(asker.answer(), "pod-a:8080", "{protocol} {}", asker.to);
    }
    askers
}

fn right_flows_stay(mode: Mode) {
    let manifests = Manifests::new()
        .with(service("busy", 70, Protocol::Udp), &[LabMachine::PodA, LabMachine::Far])
        .with(service("quiet", 71, Protocol::Udp), &[LabMachine::PodA]);
    let mut stage = stage_in(mode, &manifests);
    // Entries of quiet clients outlive twenty restarts of a busy machine; the default is 30 s.
    stage.lab.host(LabMachine::Node).sysctl("net/netfilter/nf_conntrack_udp_timeout", "600");
    rest(&stage);
    let ended_flows = EndedFlows::new(stage.lab);
    let mut quiet = Vec::new();
    let mut talkers = Vec::new();
    for family in Family::ALL {
        for to in [at_cluster_ip(family, 70), at_node_port(family, 30070), at_external_ip(family, 71)] {
            talkers.push(Talker::start(stage.lab, LabMachine::Client, to));
            let asker = Asker::new(stage.lab, LabMachine::Client, Protocol::Udp, to);
            assert!(!asker.answer().is_empty(), "{to}");
            quiet.push(asker);
        }
        // unanswered traffic to an address without a service
        let asker = Asker::new(stage.lab, LabMachine::PodB, Protocol::Udp, at_external_ip(family, 99));
        assert_eq!(asker.endpoint(), None);
        quiet.push(asker);
    }
    let entries: Vec<_> = quiet.iter().map(|asker| asker.entry(stage.lab).expect("a flow")).collect();
    for round in 0..20 {
        stage.restart();
        // the second check of each protocol and family
        until("two checks", LIMIT, || sweeps(&stage) >= 4.0);
        assert_eq!(removed(&stage), 0.0, "restart {round}");
    }
    rest(&stage);
    let (mut asked, mut lost) = (0, 0);
    for talker in talkers {
        let one = talker.finish();
        (asked, lost) = (asked + one.0, lost + one.1);
    }
    println!("{mode}: 20 restarts, {asked} questions, {lost} not answered");
    assert_eq!(lost, 0);
    let all: Vec<_> = quiet.iter().collect();
    assert_eq!(ended_flows.ended(&all), <[&SocketAddr; 0]>::default());
    for (asker, before) in quiet.iter().zip(entries) {
        assert_eq!(asker.entry(stage.lab).map(|entry| entry.id), Some(before.id), "{}", asker.to);
    }
}

#[test]
fn right_flows_stay_over_twenty_restarts() {
    right_flows_stay(Mode::NFTABLES);
}

#[test]
fn right_flows_stay_over_twenty_restarts_in_iptables_mode_too() {
    right_flows_stay(Mode::IPTABLES);
}

#[test]
fn right_flows_stay_over_twenty_restarts_by_the_legacy_tool_too() {
    right_flows_stay(Mode::IPTABLES_LEGACY);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn right_flows_stay_over_twenty_restarts_by_ipvs() {
    right_flows_stay(Mode::IPVS);
}

/// Endpoints, frontends and whole services are removed while no proxy runs, and clients keep sending. The next proxy is of this
/// mode. Entries that are right in both modes stay.
fn what_went_meanwhile_is_followed(before: Mode, after: Mode, protocol: Protocol) {
    println!("{before} to {after}, {protocol}");
    let [moved, bare, gone, empty] = [("moved", 72), ("bare", 73), ("gone", 74), ("empty", 75)]
        .map(|(name, number)| service(name, number, protocol));
    let all = [&moved, &bare, &gone, &empty];
    let first = all.into_iter().fold(Manifests::new(), |all, service| all.with(service.clone(), &[LabMachine::PodA]));
    let mut stage = stage_in(before, &first);
    let lab = stage.lab;
    let [to_moved, to_bare, to_gone, to_empty] = [72, 73, 74, 75].map(|number| askers(lab, protocol, number));
    let of_bare: Vec<_> = to_bare.iter().map(|asker| asker.entry(lab).map(|entry| entry.id)).collect();
    // A flow through the proxy, or through a virtual server, is another one in another mode. An entry of SCTP, whose clients never finish
    // their handshake, lives for three seconds (`nf_conntrack_sctp_timeout_cookie_wait`).
    let translates = |mode: &Mode| !mode.profile.relays() && mode.name != IPVS;
    let is_kept = protocol == Protocol::Udp && (before == after || [before, after].iter().all(translates));
    stage.kill();
    let then = Manifests::new()
        .with(moved, &[LabMachine::Far])
        .with(TestService::new("bare", 73).protocols(&[protocol]), &[LabMachine::PodA])
        .without_endpoints(empty);
    switch(&mut stage, after, "", &then);
    for asker in &to_moved {
        until(&format!("{protocol} {} follows", asker.to), LIMIT, || asker.endpoint().as_deref() == Some("far:8080"));
    }
    for (asker, id) in to_bare.iter().zip(of_bare) {
        if !Family::ALL.iter().any(|family| asker.to == at_cluster_ip(*family, 73)) {
            asker.gets_lost(lab);
            continue;
        }
        assert_eq!(asker.answer(), "pod-a:8080", "{}", asker.to);
        if is_kept {
            let kept = id.is_some() && asker.entry(lab).map(|entry| entry.id) == id;
            assert!(kept, "{} has a new flow", asker.to);
        }
    }
    to_gone.iter().for_each(|asker| asker.gets_lost(lab));
    for asker in &to_empty {
        until(&format!("{protocol} {} is refused", asker.to), LIMIT, || asker.ask() == ProbeOutcome::Refused);
    }
}

/// The same mode before and after.
fn what_went_while_the_proxy_was_away_is_followed_in(mode: Mode) {
    for protocol in protocols(mode) {
        what_went_meanwhile_is_followed(mode, mode, *protocol);
    }
}

/// Hand-overs between a mode and others, in both directions.
fn what_went_before_a_change_of_mode_is_followed_between(mode: Mode, others: &[Mode]) {
    for other in others {
        for protocol in protocols(mode).iter().filter(|protocol| protocols(*other).contains(protocol)) {
            what_went_meanwhile_is_followed(*other, mode, *protocol);
            what_went_meanwhile_is_followed(mode, *other, *protocol);
        }
    }
}

#[test]
fn what_went_while_the_proxy_was_away_is_followed() {
    what_went_while_the_proxy_was_away_is_followed_in(Mode::NFTABLES);
}

#[test]
fn what_went_while_the_proxy_was_away_is_followed_in_iptables_mode_too() {
    what_went_while_the_proxy_was_away_is_followed_in(Mode::IPTABLES);
}

#[test]
fn what_went_while_the_proxy_was_away_is_followed_by_the_legacy_tool_too() {
    what_went_while_the_proxy_was_away_is_followed_in(Mode::IPTABLES_LEGACY);
}

#[test]
fn what_went_while_the_proxy_was_away_is_followed_in_mode_userspace_too() {
    what_went_while_the_proxy_was_away_is_followed_in(Mode::USERSPACE);
}

#[test]
fn what_went_before_a_change_of_mode_is_followed() {
    what_went_before_a_change_of_mode_is_followed_between(Mode::NFTABLES, &[Mode::IPTABLES]);
}

#[test]
fn what_went_before_a_change_from_and_to_mode_userspace_is_followed() {
    what_went_before_a_change_of_mode_is_followed_between(Mode::USERSPACE, &[Mode::NFTABLES, Mode::IPTABLES]);
}

#[test]
fn what_went_before_a_change_from_and_to_the_legacy_tool_is_followed() {
    let others = [Mode::NFTABLES, Mode::IPTABLES, Mode::USERSPACE];
    what_went_before_a_change_of_mode_is_followed_between(Mode::IPTABLES_LEGACY, &others);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn what_went_while_the_proxy_was_away_is_followed_by_ipvs() {
    what_went_while_the_proxy_was_away_is_followed_in(Mode::IPVS);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn what_went_before_a_change_from_and_to_mode_ipvs_is_followed() {
    let others = [Mode::NFTABLES, Mode::IPTABLES, Mode::IPTABLES_LEGACY, Mode::USERSPACE];
    what_went_before_a_change_of_mode_is_followed_between(Mode::IPVS, &others);
}

/// Which of the node's addresses serve node ports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serving {
    /// every local one
    All,
    /// the list of both
    Both,
    /// the second
    Second,
}

/// Another configuration removes a node port from an address.
fn node_ports_leave_an_address((from, before): (Mode, Serving), mode: Mode, protocol: Protocol) {
    let manifests = Manifests::new().with(service("ported", 76, protocol), &[LabMachine::PodA]);
    let more = |serving: Serving| {
        let ranges = Family::ALL.map(|family| {
            let bits = if family == Family::V4 { 32 } else { 128 };
            node_addresses(family).map(|address| format!("\"{address}/{bits}\""))
        });
        let wanted =
            ranges.iter().flatten().enumerate().filter(|(index, _)| serving == Serving::Both || index % 2 == 1);
        let wanted: Vec<_> = wanted.map(|(_, range)| range.as_str()).collect();
        match serving {
            Serving::All => "nodePortAddresses: [\"0.0.0.0/0\", \"::/0\"]\n".to_owned(),
            Serving::Both | Serving::Second => format!("nodePortAddresses: [{}]\n", wanted.join(", ")),
        }
    };
    let mut stage = stage_with(from, &more(before), &manifests);
    let clients = Family::ALL.map(|family| {
        node_addresses(family).map(|address| {
            let asker = Asker::new(stage.lab, LabMachine::Client, protocol, SocketAddr::new(address, 30076));
            assert_eq!(asker.answer(), "pod-a:8080", "{}", asker.to);
            asker
        })
    });
    switch(&mut stage, mode, &more(Serving::Second), &manifests);
    for [first, second] in &clients {
        first.gets_lost(stage.lab);
        assert_eq!(second.answer(), "pod-a:8080", "{}", second.to);
    }
}

/// The modes that every kernel has, with both variants of the tool; mode userspace by the way that has conntrack entries.
const MODES: [Mode; 4] = [Mode::NFTABLES, Mode::IPTABLES, Mode::IPTABLES_LEGACY, Mode::USERSPACE];

/// The connectionless protocols that a mode serves.
fn protocols(mode: Mode) -> &'static [Protocol] {
    if mode.profile.relays() { &[Protocol::Udp] } else { &[Protocol::Udp, Protocol::Sctp] }
}

#[test]
fn a_node_port_that_leaves_an_address_leaves_its_flows() {
    for mode in MODES {
        node_ports_leave_an_address((mode, Serving::Both), mode, Protocol::Udp);
    }
}

#[test]
fn node_ports_that_every_address_served_leave_their_flows() {
    for mode in MODES {
        for protocol in protocols(mode) {
            node_ports_leave_an_address((mode, Serving::All), mode, *protocol);
        }
    }
}

#[test]
fn node_ports_that_every_address_served_leave_their_flows_after_a_change_of_mode() {
    for before in MODES {
        for after in MODES.into_iter().filter(|after| *after != before) {
            node_ports_leave_an_address((before, Serving::All), after, Protocol::Udp);
        }
    }
}
