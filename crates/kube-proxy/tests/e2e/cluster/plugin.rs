//! `kubectl ferry` with a real kubectl, by the API server's node proxy.

use std::path::PathBuf;

use ferry_lab::kubernetes::{self, User};
use ferry_lab::lab::NODE_NAME;
use ferry_lab::{Place, Service};
use serde_json::json;

use crate::support::{Cluster, cluster, folder, wait};

/// The plugin under test.
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-ferry");
/// A Node that comes before the other one by name, and has no address.
const FIRST: &str = "node-0";
const PODS: &str = "/api/v1/namespaces/demo/pods";

/// The settings that the node proxy needs.
const EVERYONE: &str = "metricsBindAddress: 0.0.0.0:10249\n---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n\
                        statusPage: everyone\ncontrolSocket: \"\"\n";

/// Runs the plugin as this user: its standard output, or its exit status and standard error.
fn ask(cluster: &Cluster, user: User, arguments: &[&str]) -> Result<String, String> {
    let home: PathBuf = folder("plugin");
    let (home, kubectl) = (format!("HOME={}", home.display()), format!("KUBECTL={}", kubernetes::kubectl()));
    let kubeconfig = format!("--kubeconfig={}", cluster.api.kubeconfig(user).display());
    let command = [&[home.as_str(), &kubectl, PLUGIN], arguments, &["--via=node-proxy", &kubeconfig]].concat();
    cluster.node().feed("env", &command, "")
}

/// A pod on this node with this address.
fn create_pod(cluster: &Cluster, name: &str, node: &str, address: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "demo"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "example.invalid/c"}]},
    });
    cluster.api.create(&pod.to_string());
    let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]});
    cluster.api.patch(&format!("{PODS}/{name}/status"), &json!({"status": status}));
}

#[test]
fn the_node_proxy_leads_to_the_page() {
    let cluster = cluster();
    cluster.api.create_node();
    cluster.create(&Service::new("web", 90), &[Place::PodA]);
    let mut proxy = cluster.start_with("plugin", EVERYONE);
    cluster.wait(&mut proxy, 90, &["pod-a:8080"]);
    let admin = |arguments: &[&str]| ask(&cluster, User::Admin, arguments);

    let explained = admin(&["explain", "svc", "demo/web"]).expect("an answer");
    assert!(
        explained.contains("pod-a")
            || explained.contains(&format!("{}:8080", Place::PodA.address(ferry_lab::Family::V4))),
        "{explained}"
    );
    let table = admin(&["status"]).expect("all answer");
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("node-a   nftables   healthy   yes ")), "{table}");
    // Errors of a question come with their text, which kubectl would not show of an answer with status 400.
    let refused = admin(&["explain", "svc", "demo/other"]).expect_err("there is none");
    assert!(refused.contains("Error: ") && refused.contains("demo/other"), "{refused}");
    let refused = admin(&["trace", "10.0.0.1 -> 10.96.0.90:80", "--node=node-a"]).expect_err("there is no socket");
    assert!(refused.starts_with("exit status: 1") && refused.contains("controlSocket is empty"), "{refused}");

    // Another node comes first by name; the client's node is asked nevertheless.
    cluster.api.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": FIRST}}).to_string());
    create_pod(&cluster, "client", NODE_NAME, "10.244.0.99");
    let explained = admin(&["explain", "10.244.0.99 -> 10.96.0.90:80"]);
    cluster.api.delete(&format!("{PODS}/client?gracePeriodSeconds=0"));
    let explained = explained.expect("the client's node answers");
    assert!(explained.contains("10.244.0.99"), "{explained}");
    let unreachable = admin(&["explain", "svc", "demo/web"]).expect_err("the first node has no address");
    assert!(unreachable.contains(FIRST) && unreachable.contains("statusPage: everyone"), "{unreachable}");
    let partly = admin(&["status"]).expect_err("one node has no address");
    assert!(partly.starts_with("exit status: 1"), "{partly}");
    let unknown = admin(&["status", "--node=node-z"]).expect_err("there is none");
    assert!(unknown.contains("nodes \"node-z\" not found"), "{unknown}");

    // A kube-proxy's own permissions don't include it.
    let forbidden = ask(&cluster, User::Certificate, &["status", "--node=node-a"]).expect_err("no permission");
    assert!(forbidden.contains("Forbidden") && forbidden.contains("permission for nodes/proxy"), "{forbidden}");
}

#[test]
fn a_page_for_loopback_alone_says_what_is_needed() {
    let cluster = cluster();
    cluster.api.create_node();
    cluster.create(&Service::new("web", 91), &[Place::PodA]);
    let mut proxy = cluster.start_with("plugin", "metricsBindAddress: 0.0.0.0:10249");
    cluster.wait(&mut proxy, 91, &["pod-a:8080"]);
    wait(&mut proxy, "metrics", |proxy| proxy.get(10249, "/proxyMode").is_some());
    let refused =
        ask(&cluster, User::Admin, &["explain", "svc", "demo/web", "--node=node-a"]).expect_err("it is refused");
    assert!(refused.contains("forward a port, or set FerryConfiguration.statusPage: everyone"), "{refused}");
}
