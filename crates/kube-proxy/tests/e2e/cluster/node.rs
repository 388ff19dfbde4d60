//! Changes of the Node object.

use std::time::Duration;

use ferry_lab::kubernetes::{node_path, slice_path};
use ferry_lab::lab::NODE_NAME;
use ferry_lab::nft::list;
use ferry_lab::objects::{at_cluster_ip, at_node_port};
use ferry_lab::{Checks, Family, LabMachine, SeenSource, TestService};
use serde_json::{Value, json};

use crate::support::{cluster, status, wait};

/// A Node without anything.
fn bare() -> String {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}}).to_string()
}

fn addresses() -> [String; 2] {
    Family::ALL.map(|family| LabMachine::Node.address(family).to_string())
}

#[test]
fn an_address_that_comes_late_is_waited_for() {
    let cluster = cluster();
    let web = TestService::new("web", 50).node_port(30050);
    cluster.create(&web, &[LabMachine::PodA]);
    let mut proxy = cluster.start_with("address", "nodePortAddresses: [primary]");
    wait(&mut proxy, "/livez", |proxy| status(proxy, "/livez") == 200);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(list(cluster.node()), "", "without a Node\n{}", proxy.log());
    cluster.api.create(&bare());
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(list(cluster.node()), "", "without an address\n{}", proxy.log());
    cluster.api.set_node_addresses(&addresses());
    let took = cluster.wait(&mut proxy, 50, &["pod-a:8080"]);
    println!("serves {took:?} after the address");
    for family in Family::ALL {
        let tally = cluster.lab.from(LabMachine::Client).tcp(at_node_port(family, 30050), 2);
        assert!(tally.all_answered(), "{family}: {tally}");
    }
    assert_eq!(status(&proxy, "/healthz"), 200);
}

#[test]
fn a_pod_range_that_comes_late_is_waited_for() {
    let cluster = cluster();
    cluster.create(&TestService::new("web", 51), &[LabMachine::PodA]);
    cluster.api.create(&bare());
    cluster.api.set_node_addresses(&addresses());
    let mut proxy = cluster.start_with("pod-range", "detectLocalMode: NodeCIDR");
    wait(&mut proxy, "/livez", |proxy| status(proxy, "/livez") == 200);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(list(cluster.node()), "", "without a pod range\n{}", proxy.log());
    let ranges = json!({"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00:10:244::/80"]});
    cluster.api.patch(&node_path(), &json!({"spec": ranges}));
    cluster.wait(&mut proxy, 51, &["pod-a:8080"]);
    let mut checks = Checks::new();
    for family in Family::ALL {
        let at = at_cluster_ip(family, 51);
        let (own, client) =
            (cluster.lab.from(LabMachine::PodB).tcp(at, 3), cluster.lab.from(LabMachine::Client).tcp(at, 3));
        let kept = SeenSource::Kept(LabMachine::PodB.address(family));
        checks.served(&format!("{family} from a pod of the node"), &own, &["pod-a:8080"], kept);
        checks.served(&format!("{family} from outside"), &client, &["pod-a:8080"], SeenSource::Masqueraded);
    }
}

/// Gives the endpoints of a service's slices hints for a zone each: pod-a is in `a`, the other node's in `b`.
fn hint(cluster: &crate::support::Cluster, service: &str) {
    for family in Family::ALL {
        let path = slice_path(service, family);
        let slice = cluster.api.get(&path);
        let endpoints = slice.get("endpoints").and_then(Value::as_array).expect("endpoints").iter().map(|endpoint| {
            let zone = if endpoint.get("nodeName") == Some(&json!(NODE_NAME)) { "a" } else { "b" };
            let mut endpoint = endpoint.clone();
            let hints = json!({"forZones": [{"name": zone}]});
            endpoint.as_object_mut().expect("an endpoint").insert("hints".to_owned(), hints);
            endpoint
        });
        cluster.api.patch(&path, &json!({"endpoints": endpoints.collect::<Value>()}));
    }
}

#[test]
fn the_zone_is_followed() {
    let cluster = cluster();
    cluster.api.create_node();
    let zone = |zone: Value| {
        let labels = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
        cluster.api.patch(&node_path(), &labels);
    };
    zone(json!("a"));
    cluster.create(&TestService::new("web", 52), &[LabMachine::PodA, LabMachine::Far]);
    hint(&cluster, "web");
    let mut proxy = cluster.start("zone");
    cluster.wait(&mut proxy, 52, &["pod-a:8080"]);
    zone(json!("b"));
    cluster.wait(&mut proxy, 52, &["far:8080"]);
    zone(json!(null));
    cluster.wait(&mut proxy, 52, &["far:8080", "pod-a:8080"]);
    // what the kubelet writes every few seconds changes nothing
    let generation = cluster.settled_generation();
    for beat in 0..5 {
        let condition = json!({"type": "Ready", "status": "True", "reason": format!("beat-{beat}")});
        cluster.api.patch(&format!("{}/status", node_path()), &json!({"status": {"conditions": [condition]}}));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(cluster.generation(), generation, "{}", proxy.log());
}

#[test]
fn an_address_that_changes_is_followed() {
    let cluster = cluster();
    cluster.api.create_node();
    cluster.create(&TestService::new("web", 53).node_port(30053), &[LabMachine::PodA]);
    let mut proxy = cluster.start_with("readdressed", "nodePortAddresses: [primary]");
    cluster.wait(&mut proxy, 53, &["pod-a:8080"]);
    let [first, second] = [0, 1].map(|at: usize| {
        Family::ALL.map(|family| ferry_lab::lab::node_addresses(family).get(at).copied().expect("two addresses"))
    });
    let answers = |addresses: [std::net::IpAddr; 2]| {
        addresses.into_iter().all(|address| {
            let at = std::net::SocketAddr::new(address, 30053);
            cluster.lab.from(LabMachine::Far).patience(Duration::from_millis(300)).tcp(at, 1).all_answered()
        })
    };
    assert!(answers(first) && !answers(second));
    cluster.api.set_node_addresses(&second.map(|address| address.to_string()));
    wait(&mut proxy, "node ports at the new address", |_| answers(second) && !answers(first));
}

#[test]
fn a_node_that_shall_go_takes_no_load() {
    let cluster = cluster();
    cluster.api.create_node();
    cluster.create(&TestService::new("web", 54), &[LabMachine::PodA]);
    let mut proxy = cluster.start("eligible");
    cluster.wait(&mut proxy, 54, &["pod-a:8080"]);
    wait(&mut proxy, "health", |proxy| status(proxy, "/healthz") == 200);
    let generation = cluster.settled_generation();

    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    cluster.api.patch(&node_path(), &json!({"spec": {"taints": taint}}));
    wait(&mut proxy, "503 with the taint", |proxy| status(proxy, "/healthz") == 503);
    assert_eq!(status(&proxy, "/livez"), 200);
    cluster.api.patch(&node_path(), &json!({"spec": {"taints": null}}));
    wait(&mut proxy, "200 without the taint", |proxy| status(proxy, "/healthz") == 200);

    // about to be deleted, held by a finalizer
    cluster.api.patch(&node_path(), &json!({"metadata": {"finalizers": ["example.com/held"]}}));
    cluster.api.delete(&node_path());
    wait(&mut proxy, "503 while it is deleted", |proxy| status(proxy, "/healthz") == 503);
    assert_eq!(status(&proxy, "/livez"), 200);
    cluster.api.patch(&node_path(), &json!({"metadata": {"finalizers": null}}));
    // deleted: its last known state stays, and services are served
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(status(&proxy, "/livez"), 200);
    assert!(cluster.serves(54, &["pod-a:8080"]));
    assert_eq!(cluster.generation(), generation, "{}", proxy.log());
    // the same name again
    cluster.api.create_node();
    wait(&mut proxy, "200 with the new node", |proxy| status(proxy, "/healthz") == 200);
    assert_eq!(cluster.generation(), generation, "{}", proxy.log());
}

/// Addresses and pod ranges arrive a while after the Node: until then those of its predecessor apply.
#[test]
fn a_node_that_is_made_anew_takes_nothing_away() {
    let cluster = cluster();
    let ranges = || json!({"spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00:10:244::/80"]}});
    cluster.create(&TestService::new("web", 55).node_port(30055), &[LabMachine::PodA]);
    cluster.api.create(&bare());
    cluster.api.set_node_addresses(&addresses());
    cluster.api.patch(&node_path(), &ranges());
    let mut proxy = cluster.start_with("anew", "detectLocalMode: NodeCIDR\nnodePortAddresses: [primary]");
    cluster.wait(&mut proxy, 55, &["pod-a:8080"]);
    let generation = cluster.settled_generation();
    cluster.api.delete(&node_path());
    cluster.api.create(&bare());
    wait(&mut proxy, "a word about it", |proxy| proxy.log().contains("its last one stays in force"));
    std::thread::sleep(Duration::from_millis(500));
    for family in Family::ALL {
        let tally = cluster.lab.from(LabMachine::Client).tcp(at_node_port(family, 30055), 2);
        assert!(tally.all_answered(), "{family}: {tally}");
    }
    cluster.api.set_node_addresses(&addresses());
    cluster.api.patch(&node_path(), &ranges());
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(cluster.generation(), generation, "{}", proxy.log());
}
