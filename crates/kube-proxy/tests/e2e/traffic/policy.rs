//! Traffic policies, and the selection of endpoints.

use ferry_lab::objects::{EndpointCondition, at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::{Checks, Family, LabMachine, Manifests, Protocol, SeenSource, TestService};

use crate::support::stage;

const OFTEN: usize = 30;
const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

fn external(name: &str, number: u8) -> TestService {
    TestService::new(name, number.into())
        .protocols(&BOTH)
        .node_port(30000 + u16::from(number))
        .external_ip(number)
        .load_balancer(100 + number)
        .external_local()
}

fn external_frontends(family: Family, number: u8) -> [(&'static str, std::net::SocketAddr); 3] {
    [
        ("node port", at_node_port(family, 30000 + u16::from(number))),
        ("external IP", at_external_ip(family, number)),
        ("load balancer", at_external_ip(family, 100 + number)),
    ]
}

#[test]
fn internal_policy_local_keeps_connections_on_the_node() {
    let internal = |name, number| TestService::new(name, number).protocols(&BOTH).internal_local();
    let manifests = Manifests::new()
        .with(internal("here", 4), &[LabMachine::PodA, LabMachine::Far])
        .with(internal("there", 5), &[LabMachine::Far])
        .without_endpoints(internal("nowhere", 6));
    let stage = stage(&manifests);
    let mut checks = Checks::new();
    for family in Family::ALL {
        for protocol in BOTH {
            for (from, source) in [
                (LabMachine::PodB, SeenSource::Kept(LabMachine::PodB.address(family))),
                (LabMachine::Node, SeenSource::Masqueraded),
                (LabMachine::Client, SeenSource::Masqueraded),
            ] {
                let what = format!("{family} {protocol} from {from:?}");
                let client = stage.lab.from(from);
                let tally = client.ask(protocol, at_cluster_ip(family, 4), OFTEN);
                checks.served(&what, &tally, &["pod-a:8080"], source);
                checks.silent(&what, &client.silence(protocol, at_cluster_ip(family, 5)));
                checks.refused(&what, &client.ask(protocol, at_cluster_ip(family, 6), 2));
            }
        }
    }
}

#[test]
fn external_policy_local_keeps_the_source_of_outsiders_and_serves_insiders_everywhere() {
    let manifests = Manifests::new()
        .with(external("edge", 6), &[LabMachine::PodA, LabMachine::Far])
        .with(external("edge-away", 7), &[LabMachine::Far])
        .without_endpoints(external("edge-empty", 11));
    let stage = stage(&manifests);
    let mut checks = Checks::new();
    for family in Family::ALL {
        let kept = |place: LabMachine| SeenSource::Kept(place.address(family));
        for protocol in BOTH {
            for (kind, at) in external_frontends(family, 6) {
                let what = |from: &str| format!("{family} {protocol} {kind} from {from}");
                let ask = |from| stage.lab.from(from).ask(protocol, at, OFTEN);
                checks.served(&what("outside"), &ask(LabMachine::Client), &["pod-a:8080"], kept(LabMachine::Client));
                checks.served(
                    &what("a pod"),
                    &ask(LabMachine::PodB),
                    &["far:8080", "pod-a:8080"],
                    kept(LabMachine::PodB),
                );
                checks.served(
                    &what("the node"),
                    &ask(LabMachine::Node),
                    &["far:8080", "pod-a:8080"],
                    SeenSource::Masqueraded,
                );
            }
            for (kind, at) in external_frontends(family, 7) {
                let what = |from: &str| format!("{family} {protocol} {kind}, none local, from {from}");
                let client = stage.lab.from(LabMachine::Client);
                checks.silent(&what("outside"), &client.silence(protocol, at));
                let ask = |from| stage.lab.from(from).ask(protocol, at, 3);
                checks.served(&what("a pod"), &ask(LabMachine::PodB), &["far:8080"], kept(LabMachine::PodB));
                checks.served(&what("the node"), &ask(LabMachine::Node), &["far:8080"], SeenSource::Masqueraded);
            }
            for (kind, at) in external_frontends(family, 11) {
                for from in [LabMachine::Client, LabMachine::PodB, LabMachine::Node] {
                    let what = format!("{family} {protocol} {kind}, no endpoints, from {from:?}");
                    checks.refused(&what, &stage.lab.from(from).ask(protocol, at, 2));
                }
            }
            // the external policy doesn't apply to the cluster IP
            let tally = stage.lab.from(LabMachine::Client).ask(protocol, at_cluster_ip(family, 6), OFTEN);
            checks.served(
                &format!("{family} {protocol} cluster IP"),
                &tally,
                &["far:8080", "pod-a:8080"],
                SeenSource::Masqueraded,
            );
        }
    }
}

#[test]
fn unready_endpoints_are_left_out_and_terminating_ones_are_the_last_resort() {
    let some = TestService::new("some", 9);
    let some_endpoints = some.endpoints(8080, &[LabMachine::PodB]).and(LabMachine::PodA, EndpointCondition::Unready);
    let leaving = TestService::new("leaving", 10);
    let leaving_endpoints =
        leaving.endpoints(8080, &[LabMachine::PodB]).and(LabMachine::PodA, EndpointCondition::Terminating);
    let last = TestService::new("last", 12);
    let last_endpoints = last.endpoints(8080, &[]).and(LabMachine::PodA, EndpointCondition::Terminating);
    let none = TestService::new("none", 13);
    let none_endpoints = none.endpoints(8080, &[]).and(LabMachine::PodA, EndpointCondition::Unready);
    let manifests = Manifests::new()
        .with_endpoints(some, some_endpoints)
        .with_endpoints(leaving, leaving_endpoints)
        .with_endpoints(last, last_endpoints)
        .with_endpoints(none, none_endpoints);
    let stage = stage(&manifests);
    let mut checks = Checks::new();
    for family in Family::ALL {
        let ask = |number| stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, number), OFTEN);
        checks.served("one unready", &ask(9), &["pod-b:8080"], SeenSource::Masqueraded);
        checks.served("one terminating", &ask(10), &["pod-b:8080"], SeenSource::Masqueraded);
        checks.served("only a terminating one", &ask(12), &["pod-a:8080"], SeenSource::Masqueraded);
        checks.refused("only an unready one", &ask(13));
    }
}
