//! Planted faults from the client's side: its connection is refused, dropped, or answered otherwise than meant, and one
//! of the first three lines of `kube-proxy explain` about this connection names the cause.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use ferry_lab::lab::is_node_address;
use ferry_lab::objects::{EndpointCondition, at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, Lab, LabMachine, Manifests, ProbeOutcome, Protocol, Stage, TestService};

use crate::support::{EXECUTABLE, alone, folder};

/// The guide whose table has the same symptoms and lines.
const GUIDE: &str = include_str!("../../../../../docs/guides/my-service-does-not-answer.md");
/// Time until the objects of another file are in force, which takes milliseconds.
const LIMIT: Duration = Duration::from_secs(10);
/// Connections by which an owner, or a source address, is known.
const SOME: usize = 10;

/// A connection that fails.
struct Fault {
    from: LabMachine,
    to: SocketAddr,
    sees: ProbeOutcome,
    /// the object that the line names
    object: &'static str,
    /// the fixed part of the line
    cause: &'static str,
}

/// Faults that builders make, and one sound Service.
fn manifests() -> Manifests {
    let unready = TestService::new("unready", 112);
    let endpoints = unready.endpoints(8080, &[]).and(LabMachine::PodB, EndpointCondition::Unready);
    let ranges = TestService::new("ranges", 114).load_balancer(114).source_ranges(&["198.18.0.0/15"]);
    Manifests::new()
        .with_endpoints(unready, endpoints)
        .with(TestService::new("local", 113).node_port(30113).external_local(), &[LabMachine::Far])
        .with(ranges, &[LabMachine::PodB])
        .with(TestService::new("first", 115), &[LabMachine::Far])
        .with(TestService::new("second", 115), &[LabMachine::PodB])
        .with(TestService::new("sound", 116), &[LabMachine::PodB])
}

/// Faults of slices: a port of another name than the Service's, and the label of another Service.
fn faulty_slices() -> String {
    let with = |service: &TestService, (from, to): (&str, &str)| {
        let slices = service.endpoints(8080, &[LabMachine::PodB]).to_string();
        assert!(slices.contains(from), "{slices}");
        format!("{service}{}", slices.replace(from, to))
    };
    let named = with(&TestService::new("named", 110), ("name: tcp,", "name: tpc,"));
    let labelled = with(&TestService::new("labelled", 111), ("service-name: labelled", "service-name: labeled"));
    format!("{named}---\n{labelled}")
}

/// Puts a file beside the stage's manifests.
fn add(stage: &Stage<'_>, text: &str) {
    let draft = stage.folder().join("draft-faults.yaml");
    fs::write(&draft, text).expect("writing manifests");
    fs::rename(draft, stage.folder().join("manifests").join("faults.yaml")).expect("putting manifests in place");
}

fn faults() -> [Fault; 5] {
    let (family, client) = (Family::V4, LabMachine::Client);
    let refused = |number, object, cause| Fault {
        from: LabMachine::PodA,
        to: at_cluster_ip(family, number),
        sees: ProbeOutcome::Refused,
        object,
        cause,
    };
    let dropped = |to, object, cause| Fault { from: client, to, sees: ProbeOutcome::Timeout, object, cause };
    [
        refused(110, "none called tcp/TCP", "spec.ports[0].targetPort may name no port of the pods"),
        refused(
            111,
            "EndpointSlice demo/labelled-ipv4 has labeled there",
            "no EndpointSlice with ports has the label kubernetes.io/service-name=",
        ),
        refused(112, "EndpointSlice demo/unready-ipv4", "not used: conditions.ready is false"),
        dropped(at_node_port(family, 30113), "demo/local", "traffic under policy Local is dropped"),
        dropped(
            at_external_ip(family, 114),
            "demo/ranges",
            "is in no range of spec.loadBalancerSourceRanges of Service",
        ),
    ]
}

/// One of the first three lines of the answer about a connection, and the guide, name the cause.
#[track_caller]
fn assert_named(stage: &Stage<'_>, (from, to): (LabMachine, SocketAddr), object: &str, cause: &str) {
    let [config, manifests] = ["config.yaml", "manifests"].map(|name| stage.folder().join(name).display().to_string());
    let connection = format!("{} -> {to}", from.address(Family::V4));
    let arguments = ["explain", "--config", &config, "--manifests", &manifests, &connection];
    let answer = stage.node().sh(EXECUTABLE, &arguments);
    let is_named = answer.lines().take(3).any(|line| line.contains(object) && line.contains(cause));
    assert!(is_named, "no {object:?} with {cause:?} in the first lines:\n{answer}");
    assert!(GUIDE.contains(cause), "the guide lacks {cause:?}");
}

#[test]
fn what_a_client_sees_is_explained_by_the_first_lines() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("symptoms"), ProxyConfig::default(), &manifests());
    add(&stage, &faulty_slices());
    for Fault { from, to, sees, object, cause } in faults() {
        let client = lab.from(from);
        until(&format!("{sees:?} of {to}"), LIMIT, || client.silence(Protocol::Tcp, to).all(&sees));
        assert_named(&stage, (from, to), object, cause);
    }

    let shared = at_cluster_ip(Family::V4, 115);
    let tally = lab.from(LabMachine::PodA).tcp(shared, SOME);
    assert!(tally.all_answered() && tally.endpoints().into_keys().eq(["far:8080"]), "{tally}");
    let loser = "belongs to Service demo/first, which comes first: not served for demo/second (spec.clusterIP)";
    assert_named(&stage, (LabMachine::PodA, shared), loser, "which comes first: not served for");

    let sound = at_cluster_ip(Family::V4, 116);
    let seen = || lab.from(LabMachine::Client).tcp(sound, SOME).sources();
    let usual = seen();
    assert!(!usual.is_empty() && usual.iter().all(|address| is_node_address(*address)), "{usual:?}");
    stage.reset(&ProxyConfig { cluster_cidr: None, ..ProxyConfig::default() }, &manifests());
    assert_eq!(seen(), BTreeSet::from([LabMachine::Client.address(Family::V4)]));
    let cause = "pods of this node are not distinguished from other clients: set clusterCIDR";
    assert_named(&stage, (LabMachine::Client, sound), "no connection to a cluster IP is masqueraded", cause);
}
