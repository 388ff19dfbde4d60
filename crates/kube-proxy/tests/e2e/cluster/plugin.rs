//! `kubectl ferry` with a real kubectl, by the API server's node proxy.

use std::path::PathBuf;

use ferry_lab::kubernetes::{self, ClusterUser};
use ferry_lab::lab::NODE_NAME;
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::{Family, LabMachine, TestService};
use serde_json::json;

use crate::support::{Cluster, EXECUTABLE, cluster, folder, wait};

/// The plugin under test.
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-ferry");
/// A Node that comes before the other one by name, and has no address.
const FIRST: &str = "node-0";
const PODS: &str = "/api/v1/namespaces/demo/pods";

/// The settings that the node proxy needs, with this control socket.
fn everyone(control_socket: &str) -> String {
    format!(
        "metricsBindAddress: 0.0.0.0:10249\n---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n\
         statusPage: everyone\ncontrolSocket: \"{control_socket}\"\n"
    )
}

/// Runs the plugin as this user: its standard output, or its exit status and standard error.
fn ask(cluster: &Cluster, user: ClusterUser, arguments: &[&str]) -> Result<String, String> {
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
    cluster.create(&TestService::new("web", 90), &[LabMachine::PodA]);
    let mut proxy = cluster.start_with("plugin", &everyone(""));
    cluster.wait(&mut proxy, 90, &["pod-a:8080"]);
    let admin = |arguments: &[&str]| ask(&cluster, ClusterUser::Admin, arguments);

    let explained = admin(&["explain", "svc", "demo/web"]).expect("an answer");
    assert!(
        explained.contains("pod-a") || explained.contains(&format!("{}:8080", LabMachine::PodA.address(Family::V4))),
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
    let forbidden = ask(&cluster, ClusterUser::Certificate, &["status", "--node=node-a"]).expect_err("no permission");
    assert!(forbidden.contains("Forbidden") && forbidden.contains("permission for nodes/proxy"), "{forbidden}");
}

#[test]
fn a_trace_comes_through_the_node_proxy_and_the_data_path_is_tested() {
    let cluster = cluster();
    cluster.api.create_node();
    cluster.create(&TestService::new("web", 92), &[LabMachine::PodA]);
    // A short path, as those of sockets must be.
    let socket = std::env::temp_dir().join(format!("ferry-traced-{}.sock", std::process::id())).display().to_string();
    let mut proxy = cluster.start_with("traced", &everyone(&socket));
    cluster.wait(&mut proxy, 92, &["pod-a:8080"]);
    for family in Family::ALL {
        let connection = format!("{} -> {}/TCP", LabMachine::Far.address(family), at_cluster_ip(family, 92));
        let traced = ask(&cluster, ClusterUser::Admin, &["trace", &connection, "--node=node-a"]).expect("a trace");
        let lines: Vec<&str> = traced.lines().collect();
        let forwarded = format!("{family} in mode nftables: {connection}: forward to ");
        let endpoint = LabMachine::PodA.address(family).to_string();
        assert!(lines[0].starts_with(&forwarded) && lines[0].contains(&endpoint), "{forwarded}: {traced}");
        assert_eq!(lines[1], "the model decides the same", "{traced}");
        assert!(traced.contains("hook prerouting, chain nat-prerouting "), "{traced}");
        assert!(lines.iter().any(|line| line.trim().starts_with("=> forward to ")), "{traced}");
    }

    // `sh` panics unless the exit code is 0.
    let tested = cluster.node().sh(EXECUTABLE, &["verify", "--connect", "--control-socket", &socket]);
    for reached in [
        "IPv4: 192.0.2.250 -> 192.0.2.249:80/TCP reaches 192.0.2.251, and its answer comes back: ",
        "IPv6: 2001:db8:7e57::2 -> [2001:db8:7e57::1]:80/TCP reaches 2001:db8:7e57::3, and its answer comes back: ",
    ] {
        assert!(tested.lines().any(|line| line.starts_with(reached)), "{reached}: {tested}");
    }
}

#[test]
fn a_page_for_loopback_alone_says_what_is_needed() {
    let cluster = cluster();
    cluster.api.create_node();
    cluster.create(&TestService::new("web", 91), &[LabMachine::PodA]);
    let mut proxy = cluster.start_with("plugin", "metricsBindAddress: 0.0.0.0:10249");
    cluster.wait(&mut proxy, 91, &["pod-a:8080"]);
    wait(&mut proxy, "metrics", |proxy| proxy.get(10249, "/proxyMode").is_some());
    let refused =
        ask(&cluster, ClusterUser::Admin, &["explain", "svc", "demo/web", "--node=node-a"]).expect_err("it is refused");
    assert!(refused.contains("forward a port, or set FerryConfiguration.statusPage: everyone"), "{refused}");
}
