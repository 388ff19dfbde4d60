//! Flows whose first packets preceded their rule.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::{Family, LabMachine, Manifests, Mode, ProbeOutcome, Protocol, TestService};

use crate::support::{Asker, EXECUTABLE, LIMIT, stage, stage_in};

/// Without ServiceCIDRs, packets to an unused cluster IP are routed by the default route.
fn nothing() -> Manifests {
    Manifests { service_cidrs: false, ..Manifests::new() }
}

fn service(protocol: Protocol) -> TestService {
    TestService::new("late", 60).protocols(&[protocol]).node_port(30060).external_ip(60)
}

fn frontends(family: Family) -> [(LabMachine, SocketAddr); 4] {
    [
        (LabMachine::Client, at_cluster_ip(family, 60)),
        (LabMachine::PodB, at_cluster_ip(family, 60)),
        (LabMachine::Client, at_node_port(family, 30060)),
        (LabMachine::PodB, at_external_ip(family, 60)),
    ]
}

/// A node's first proxy finds clients that have been sending since the machine started.
#[test]
fn the_first_start_on_a_node_is_a_change() {
    the_first_start_is_a_change(Mode::NFTABLES);
}

#[test]
fn the_first_start_on_a_node_is_a_change_in_iptables_mode_too() {
    the_first_start_is_a_change(Mode::IPTABLES);
}

fn the_first_start_is_a_change(mode: Mode) {
    let manifests = nothing().with(service(Protocol::Udp), &[LabMachine::PodA]);
    let mut stage = stage_in(mode, &manifests);
    stage.kill();
    stage.node().sh(EXECUTABLE, &["--cleanup"]);
    // a conntrack entry keeps its translation, so these clients are new
    let askers: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(frontends)
        .map(|(place, to)| Asker::new(stage.lab, place, Protocol::Udp, to))
        .collect();
    for asker in &askers {
        assert_eq!(asker.endpoint(), None, "{}", asker.to);
    }
    stage.start();
    stage.wait();
    for asker in &askers {
        until(&format!("{} is answered", asker.to), LIMIT, || asker.endpoint().as_deref() == Some("pod-a:8080"));
    }
}

fn flows_that_came_too_early_are_answered(mode: Mode, protocol: Protocol) {
    let mut stage = stage_in(mode, &nothing());
    for family in Family::ALL {
        stage.set(&nothing());
        let askers = frontends(family).map(|(place, to)| Asker::new(stage.lab, place, protocol, to));
        for asker in &askers {
            assert_eq!(asker.endpoint(), None, "{protocol} {}", asker.to);
            let entry = asker.entry(stage.lab).expect("the node remembers what it has routed away");
            assert_eq!(entry.reply.from(), entry.original.to(), "nobody has translated it");
        }
        let start = Instant::now();
        stage.set(&nothing().with(service(protocol), &[LabMachine::PodA]));
        for asker in &askers {
            until(&format!("{protocol} {} is answered", asker.to), LIMIT, || {
                asker.endpoint().as_deref() == Some("pod-a:8080")
            });
        }
        println!("{protocol}, {family}: four flows that came too early answered after {:?}", start.elapsed());
    }
}

#[test]
fn udp_flows_that_came_too_early_are_answered() {
    flows_that_came_too_early_are_answered(Mode::NFTABLES, Protocol::Udp);
}

#[test]
fn udp_flows_that_came_too_early_are_answered_in_iptables_mode_too() {
    flows_that_came_too_early_are_answered(Mode::IPTABLES, Protocol::Udp);
}

#[test]
fn sctp_flows_that_came_too_early_are_answered() {
    flows_that_came_too_early_are_answered(Mode::NFTABLES, Protocol::Sctp);
}

/// The client retries after a second; the first packet's conntrack entry must be deleted by then.
#[test]
fn a_tcp_connection_that_was_asked_for_too_early_comes_about() {
    let mut stage = stage(&nothing());
    for family in Family::ALL {
        stage.set(&nothing());
        let client = |place| stage.lab.from(place).patience(Duration::from_secs(10));
        let asked = [
            client(LabMachine::Client).hammer(Protocol::Tcp, at_cluster_ip(family, 60)),
            client(LabMachine::PodB).hammer(Protocol::Tcp, at_external_ip(family, 60)),
        ];
        std::thread::sleep(Duration::from_millis(300));
        stage.set(&nothing().with(service(Protocol::Tcp), &[LabMachine::PodA]));
        for hammer in asked {
            // ends with the first connection, which has been under way since before
            let (asked, first) = hammer.stop().swap_remove(0);
            let took = asked.elapsed();
            println!("{family}: asked before there was a rule, connected after {took:?} at the latest");
            assert!(matches!(&first, ProbeOutcome::Answered(answer) if answer.endpoint == "pod-a:8080"), "{first:?}");
            assert!(took < Duration::from_secs(4), "TCP asks again after one second, and after three: {took:?}");
        }
    }
}
