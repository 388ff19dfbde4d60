//! Changes while clients connect.

use std::time::{Duration, Instant};

use ferry_lab::objects::{EndpointCondition, at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::probe::Hammer;
use ferry_lab::{Checks, Endpoints, Family, LabMachine, Manifests, ProbeOutcome, Protocol, TestService};

use crate::support::stage;

/// Below TCP's retransmission timeout of 1 s, so that a lost packet is detected.
const NO_RETRY: Duration = Duration::from_millis(900);

#[test]
fn a_replaced_endpoint_takes_over_at_once() {
    let service = TestService::new("live", 40);
    let at_pod = |place| Manifests::new().with(service.clone(), &[place]);
    let mut stage = stage(&at_pod(LabMachine::PodA));
    let mut worst = Duration::ZERO;
    for round in 0..10 {
        let (place, endpoint) =
            if round % 2 == 0 { (LabMachine::PodB, "pod-b:8080") } else { (LabMachine::PodA, "pod-a:8080") };
        stage.replace(&at_pod(place));
        let start = Instant::now();
        for family in Family::ALL {
            let client = stage.lab.from(LabMachine::Client);
            ferry_lab::patience::until("the new endpoint answers", Duration::from_secs(2), || {
                let tally = client.tcp(at_cluster_ip(family, 40), 1);
                assert!(tally.all_answered(), "round {round}, {family}: {tally}");
                tally.endpoints().contains_key(endpoint)
            });
        }
        worst = worst.max(start.elapsed());
        // from then on only the new one
        for family in Family::ALL {
            let tally = stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, 40), 20);
            assert_eq!(tally.endpoints().into_iter().collect::<Vec<_>>(), [(endpoint, 20)], "{family}: {tally}");
        }
    }
    println!("endpoint replaced: manifest renamed to first connection in both families, worst of 10: {worst:?}");
    assert!(worst < Duration::from_secs(1), "{worst:?}");
}

#[test]
fn a_frontend_that_changes_hands_is_never_unserved() {
    let owner = |name, number: u16| {
        TestService::new(name, number).protocols(&[Protocol::Tcp, Protocol::Udp]).node_port(30041).external_ip(41)
    };
    let bare = |name, number: u16| TestService::new(name, number).protocols(&[Protocol::Tcp, Protocol::Udp]);
    let one = Manifests::new()
        .with(owner("one", 41), &[LabMachine::PodA])
        .with(bare("two", 42), &[LabMachine::PodB, LabMachine::Far]);
    let two = Manifests::new()
        .with(bare("one", 41), &[LabMachine::PodA])
        .with(owner("two", 42), &[LabMachine::PodB, LabMachine::Far]);
    let mut stage = stage(&one);
    let hammers: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            let client = stage.lab.from(LabMachine::Client).patience(NO_RETRY);
            [
                ("node port", client.hammer(Protocol::Tcp, at_node_port(family, 30041))),
                ("external IP", client.hammer(Protocol::Tcp, at_external_ip(family, 41))),
                ("node port over UDP", client.hammer(Protocol::Udp, at_node_port(family, 30041))),
            ]
        })
        .collect();
    for round in 0..30 {
        stage.set(if round % 2 == 0 { &two } else { &one });
    }
    let mut checks = Checks::new();
    for (kind, hammer) in hammers {
        unharmed(&mut checks, kind, hammer, &["far:8080", "pod-a:8080", "pod-b:8080"]);
    }
}

#[test]
fn churn_harms_no_connection_to_a_healthy_endpoint() {
    let busy = TestService::new("busy", 43).protocols(&[Protocol::Tcp, Protocol::Udp]).node_port(30043);
    let with = |endpoints: Endpoints, others: u16| {
        let mut manifests = Manifests::new().with_endpoints(busy.clone(), endpoints);
        for number in 0..others {
            manifests = manifests.with(TestService::new(&format!("other-{number}"), 300 + number), &[LabMachine::PodA]);
        }
        manifests
    };
    let states = [
        with(busy.endpoints(8080, &[LabMachine::PodA]), 0),
        with(busy.endpoints(8080, &[LabMachine::PodA, LabMachine::PodB, LabMachine::Far]), 20),
        with(
            busy.endpoints(8080, &[LabMachine::Far, LabMachine::PodA])
                .and(LabMachine::PodB, EndpointCondition::Terminating),
            3,
        ),
        with(busy.endpoints(8080, &[LabMachine::PodB]), 10),
        with(
            busy.endpoints(8080, &[LabMachine::PodB, LabMachine::Far])
                .and(LabMachine::PodA, EndpointCondition::Unready),
            40,
        ),
        with(busy.endpoints(8081, &[LabMachine::Far]), 1),
    ];
    let mut stage = stage(&states[0]);
    let hammers: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            let client = |place| stage.lab.from(place).patience(NO_RETRY);
            [
                ("cluster IP from a pod", client(LabMachine::PodB).hammer(Protocol::Tcp, at_cluster_ip(family, 43))),
                (
                    "node port from outside",
                    client(LabMachine::Client).hammer(Protocol::Tcp, at_node_port(family, 30043)),
                ),
                ("cluster IP over UDP", client(LabMachine::Client).hammer(Protocol::Udp, at_cluster_ip(family, 43))),
            ]
        })
        .collect();
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(10) {
        stage.set(&states[rounds % states.len()]);
        rounds += 1;
    }
    println!("churn: {rounds} states in {:?}", start.elapsed());
    let mut checks = Checks::new();
    for (kind, hammer) in hammers {
        unharmed(&mut checks, kind, hammer, &["far:8080", "far:8081", "pod-a:8080", "pod-b:8080"]);
    }
}

/// Checks that every connection was answered, and all these endpoints were reached.
fn unharmed(checks: &mut Checks, kind: &str, hammer: Hammer, endpoints: &[&str]) {
    let tally =
        ferry_lab::ProbeTally(hammer.stop().into_iter().map(|(_, outcome)| outcome).collect::<Vec<ProbeOutcome>>());
    println!("{kind}: {tally}");
    checks.served(kind, &tally, endpoints, ferry_lab::SeenSource::Any);
}
