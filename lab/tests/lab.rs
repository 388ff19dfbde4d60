//! Tests of the lab without a proxy: probes observe plain routing.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferry_lab::lab::{client_address, far_node_address, node_addresses};
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::{Family, Lab, LabMachine, ProbeOutcome, Protocol, nft};

#[test]
fn probes_see_the_machines_as_they_are() {
    let start = Instant::now();
    let lab = Lab::new();
    let elapsed = start.elapsed();
    println!("the lab is up after {elapsed:?}");
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            for from in LabMachine::ALL {
                for (to, endpoint) in [(LabMachine::PodA, "pod-a:8080"), (LabMachine::Far, "far:8080")] {
                    if from == to {
                        continue;
                    }
                    let tally = lab.from(from).ask(protocol, SocketAddr::new(to.address(family), 8080), 2);
                    let what = format!("{family} {protocol} {from:?} to {to:?}: {tally}");
                    assert!(tally.all_answered(), "{what}");
                    assert_eq!(tally.endpoints().into_iter().collect::<Vec<_>>(), [(endpoint, 2)], "{what}");
                    if from != LabMachine::Node {
                        assert_eq!(tally.sources().into_iter().collect::<Vec<_>>(), [from.address(family)], "{what}");
                    }
                }
            }
        }
    }
    assert!(elapsed < Duration::from_secs(10), "the lab took {elapsed:?}");
}

#[test]
fn probes_tell_refusal_from_silence() {
    let lab = Lab::new();
    let pod = lab.from(LabMachine::PodA);
    for family in Family::ALL {
        let unserved = SocketAddr::new(LabMachine::PodB.address(family), 9999);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let tally = pod.ask(protocol, unserved, 3);
            assert!(tally.all(&ProbeOutcome::Refused), "{family} {protocol}: {tally}");
        }
        for protocol in Protocol::ALL {
            // no machine has a cluster IP here: the client receives the packets and drops them
            let tally = pod.silence(protocol, at_cluster_ip(family, 1));
            assert!(tally.all(&ProbeOutcome::Timeout), "{family} {protocol}: {tally}");
        }
    }
}

#[test]
fn every_address_is_there() {
    let lab = Lab::new();
    for family in Family::ALL {
        for address in node_addresses(family).into_iter().chain([far_node_address(family)]) {
            let tally = lab.from(LabMachine::Client).tcp(SocketAddr::new(address, 9090), 1);
            assert!(tally.all_answered(), "{address}: {tally}");
        }
        for number in [20, 27, 200] {
            let source = client_address(family, number);
            let at = SocketAddr::new(LabMachine::PodA.address(family), 8083);
            let tally = lab.from(LabMachine::Client).bound_to(source).tcp(at, 1);
            assert_eq!(tally.sources().into_iter().collect::<Vec<_>>(), [source], "{tally}");
        }
    }
}

#[test]
fn the_ruleset_is_the_namespaces_own_and_each_commit_counts() {
    let lab = Lab::new();
    let node = lab.host(LabMachine::Node);
    assert_eq!(nft::list(node), "");
    let before = nft::generation(node);
    assert_eq!(nft::generation(node), before);
    nft::load(node, "table ip strange {\nset s { type ipv4_addr; elements = { 10.0.0.1, 10.0.0.2 }\n}\n}\n");
    assert_ne!(nft::generation(node), before);
    assert_eq!(nft::Ruleset::of(node).get("ip strange", "set s").elements.len(), 2);
    assert_eq!(nft::list(lab.host(LabMachine::PodA)), "");
    assert!(nft::try_load(node, "flush table ip nobody\n").is_err());
}
