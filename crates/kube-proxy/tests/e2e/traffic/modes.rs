//! Settings of the configuration: detection of pods, masquerading, addresses of node ports.

use std::net::SocketAddr;

use ferry_lab::lab::node_addresses;
use ferry_lab::objects::{at_cluster_ip, at_external_ip};
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Checks, Family, LabMachine, Manifests, SeenSource, TestService};

use crate::support::stage_with;

const PODS: [LabMachine; 2] = [LabMachine::PodA, LabMachine::PodB];

/// 50 is a plain one; 51 has policy Local with an endpoint here and one there.
fn manifests() -> Manifests {
    Manifests::new()
        .with(TestService::new("plain", 50).node_port(30050), &[LabMachine::Far])
        .with(TestService::new("edge", 51).external_ip(51).external_local(), &[LabMachine::Far, LabMachine::PodA])
        .with(TestService::new("pods", 52), &PODS)
}

fn without_cidr(more: &str) -> ProxyConfig {
    ProxyConfig { cluster_cidr: None, ..ProxyConfig::with(more) }
}

#[test]
fn masquerade_all_spares_nobody() {
    let stage = stage_with(&ProxyConfig::with("nftables: {masqueradeAll: true, minSyncPeriod: 1ms}"), &manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        for from in [LabMachine::PodB, LabMachine::Node, LabMachine::Client] {
            let tally = stage.lab.from(from).tcp(at_cluster_ip(family, 50), 5);
            checks.served(&format!("{family} from {from:?}"), &tally, &["far:8080"], SeenSource::Masqueraded);
        }
        // external policy Local still keeps an outsider's source
        let tally = stage.lab.from(LabMachine::Client).tcp(at_external_ip(family, 51), 10);
        let kept = SeenSource::Kept(LabMachine::Client.address(family));
        checks.served(&format!("{family} policy Local"), &tally, &["pod-a:8080"], kept);
    }
}

#[test]
fn without_a_detector_nothing_is_a_pod() {
    let stage = stage_with(&without_cidr(""), &manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        // the cluster IP never masquerades, but where an endpoint reaches itself
        for from in [LabMachine::PodB, LabMachine::Client] {
            let tally = stage.lab.from(from).tcp(at_cluster_ip(family, 50), 5);
            checks.served(
                &format!("{family} from {from:?}"),
                &tally,
                &["far:8080"],
                SeenSource::Kept(from.address(family)),
            );
        }
        // a pod is an outsider: its source is kept and only the local endpoint serves it; the node has the short way
        let pod = stage.lab.from(LabMachine::PodB).tcp(at_external_ip(family, 51), 30);
        let kept = SeenSource::Kept(LabMachine::PodB.address(family));
        checks.served(&format!("{family} policy Local, pod"), &pod, &["pod-a:8080"], kept);
        let node = stage.lab.from(LabMachine::Node).tcp(at_external_ip(family, 51), 30);
        checks.served(
            &format!("{family} policy Local, node"),
            &node,
            &["far:8080", "pod-a:8080"],
            SeenSource::Masqueraded,
        );
    }
}

#[test]
fn pods_are_known_by_the_prefix_of_their_interface() {
    let config = without_cidr("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: vpod}");
    let stage = stage_with(&config, &manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        let ask = |from: LabMachine, number| stage.lab.from(from).tcp(at_cluster_ip(family, number), 30);
        let kept = SeenSource::Kept(LabMachine::PodB.address(family));
        checks.served(&format!("{family} from a pod"), &ask(LabMachine::PodB, 50), &["far:8080"], kept);
        let elsewhere = ask(LabMachine::Far, 52);
        let both = ["pod-a:8080", "pod-b:8080"];
        checks.served(&format!("{family} from a pod elsewhere"), &elsewhere, &both, SeenSource::Masqueraded);
        checks.served(&format!("{family} from outside"), &ask(LabMachine::Client, 52), &both, SeenSource::Masqueraded);
        let short = stage.lab.from(LabMachine::PodB).tcp(at_external_ip(family, 51), 30);
        checks.served(&format!("{family} policy Local"), &short, &["far:8080", "pod-a:8080"], kept);
    }
}

#[test]
fn pods_are_known_by_their_bridge() {
    let config = without_cidr("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: vpoda}");
    let stage = stage_with(&config, &manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        let ask = |from: LabMachine| stage.lab.from(from).tcp(at_cluster_ip(family, 50), 5);
        let kept = SeenSource::Kept(LabMachine::PodA.address(family));
        checks.served(&format!("{family} through the bridge"), &ask(LabMachine::PodA), &["far:8080"], kept);
        checks.served(
            &format!("{family} past the bridge"),
            &ask(LabMachine::PodB),
            &["far:8080"],
            SeenSource::Masqueraded,
        );
    }
}

#[test]
fn node_ports_are_where_the_configuration_says() {
    let config = ProxyConfig::with("nodePortAddresses: [192.168.0.0/16, \"fd00:9::/64\"]");
    let stage = stage_with(&config, &manifests());
    let mut checks = Checks::new();
    for family in Family::ALL {
        let [first, second] = node_addresses(family).map(|address| SocketAddr::new(address, 30050));
        let client = stage.lab.from(LabMachine::Client);
        checks.served(&format!("{second}"), &client.tcp(second, 3), &["far:8080"], SeenSource::Masqueraded);
        checks.refused(&format!("{first}"), &client.tcp(first, 3));
    }
    drop(stage);
    let everywhere = stage_with(&ProxyConfig::with("nodePortAddresses: [0.0.0.0/0, \"::/0\"]"), &manifests());
    for family in Family::ALL {
        for address in node_addresses(family).map(|address| SocketAddr::new(address, 30050)) {
            let tally = everywhere.lab.from(LabMachine::Client).tcp(address, 3);
            checks.served(&format!("{address} of all"), &tally, &["far:8080"], SeenSource::Masqueraded);
        }
    }
}
