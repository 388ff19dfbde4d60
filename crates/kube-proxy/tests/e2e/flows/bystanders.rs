//! Valid flows survive all changes around them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::probe::ProbeServer;
use ferry_lab::{Family, LabMachine, Manifests, Protocol, TestService};

use crate::support::{Asker, EndedFlows, LIMIT, removed, rest, stage};

const NONE: [&SocketAddr; 0] = [];

fn busy() -> TestService {
    TestService::new("busy", 70).protocols(&[Protocol::Udp]).node_port(30070).external_ip(70)
}

fn quiet() -> TestService {
    TestService::new("quiet", 71).protocols(&[Protocol::Udp]).node_port(30071).external_ip(71)
}

fn manifests(endpoints: &[LabMachine]) -> Manifests {
    Manifests::new().with(busy(), endpoints).with(quiet(), &[LabMachine::PodA])
}

#[test]
fn only_flows_that_are_wrong_are_removed() {
    let mut stage = stage(&manifests(&[LabMachine::PodA]));
    // a server elsewhere that happens to have the number of the node port, and one in a pod
    let _servers: Vec<ProbeServer> = [LabMachine::Client, LabMachine::Far]
        .into_iter()
        .map(|place| {
            let addresses = Family::ALL.map(|family| place.address(family)).to_vec();
            ProbeServer::start(stage.lab.host(place), addresses, vec![30070, 80])
        })
        .collect();
    let ended_flows = EndedFlows::new(stage.lab);
    let mut right = Vec::new();
    let mut wrong = Vec::new();
    for family in Family::ALL {
        let to = |place: LabMachine, port| SocketAddr::new(place.address(family), port);
        for (place, to, endpoint) in [
            (LabMachine::Client, at_cluster_ip(family, 70), "pod-a:8080"),
            (LabMachine::PodB, at_cluster_ip(family, 70), "pod-a:8080"),
            (LabMachine::Client, at_node_port(family, 30070), "pod-a:8080"),
            (LabMachine::Client, at_external_ip(family, 70), "pod-a:8080"),
            (LabMachine::Client, at_cluster_ip(family, 71), "pod-a:8080"),
            (LabMachine::Client, at_node_port(family, 30071), "pod-a:8080"),
            (LabMachine::PodB, to(LabMachine::Client, 30070), "client:30070"),
            (LabMachine::PodB, to(LabMachine::Far, 30070), "far:30070"),
            (LabMachine::PodB, to(LabMachine::Far, 80), "far:80"),
            (LabMachine::Client, to(LabMachine::PodA, 8080), "pod-a:8080"),
        ] {
            let asker = Asker::new(stage.lab, place, Protocol::Udp, to);
            assert_eq!(asker.answer(), endpoint, "{}", asker.to);
            right.push((asker, endpoint));
        }
    }
    let both = |first: LabMachine, second: LabMachine| manifests(&[first, second]);
    // others of the same service come and go, with clients of their own
    for round in 0..6 {
        let place = if round % 2 == 0 { LabMachine::Far } else { LabMachine::PodB };
        stage.set(&both(LabMachine::PodA, place));
        for family in Family::ALL {
            let elsewhere = (0..64).find_map(|_| {
                let asker = Asker::new(stage.lab, LabMachine::Client, Protocol::Udp, at_cluster_ip(family, 70));
                (asker.endpoint()? != "pod-a:8080").then_some(asker)
            });
            wrong.push(elsewhere.expect("one of many is led to the new endpoint"));
        }
        stage.set(&manifests(&[LabMachine::PodA]));
        for asker in &wrong {
            until("who lost its endpoint gets another", LIMIT, || asker.endpoint().as_deref() == Some("pod-a:8080"));
        }
    }
    rest(&stage);
    assert!(removed(&stage) >= 12.0);
    let askers: Vec<_> = right.iter().map(|(asker, _)| asker).collect();
    assert_eq!(ended_flows.ended(&askers), NONE);
    for (asker, endpoint) in &right {
        assert_eq!(asker.answer(), *endpoint, "{}", asker.to);
    }
}

/// Endpoints are added while others are removed: a flow to a new endpoint must not count as stale.
#[test]
fn flows_to_endpoints_that_come_during_a_look_stay() {
    let mut stage = stage(&manifests(&[LabMachine::PodA, LabMachine::PodB]));
    let ended_flows = EndedFlows::new(stage.lab);
    rest(&stage);
    let before = removed(&stage);
    let start = Instant::now();
    let (mut rounds, mut kept) = (0, Vec::new());
    while start.elapsed() < Duration::from_secs(6) {
        // far comes, pod-b goes, far goes, pod-b comes: pod-a stays all the time
        for endpoints in [
            &[LabMachine::PodA, LabMachine::PodB, LabMachine::Far][..],
            &[LabMachine::PodA, LabMachine::Far],
            &[LabMachine::PodA],
            &[LabMachine::PodA, LabMachine::PodB],
        ] {
            stage.replace(&manifests(endpoints));
            for family in Family::ALL {
                let asker = Asker::new(stage.lab, LabMachine::Client, Protocol::Udp, at_cluster_ip(family, 70));
                if asker.endpoint().as_deref() == Some("pod-a:8080") {
                    kept.push(asker);
                }
            }
            rounds += 1;
        }
    }
    stage.wait();
    rest(&stage);
    let askers: Vec<_> = kept.iter().collect();
    println!(
        "{rounds} changes, {} flows to the endpoint that stayed, {} others removed",
        askers.len(),
        removed(&stage) - before
    );
    assert!(askers.len() >= 10);
    assert_eq!(ended_flows.ended(&askers), NONE);
}
