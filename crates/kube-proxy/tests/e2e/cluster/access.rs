//! Authentication and authorization at the API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ferry_lab::kubernetes::ClusterUser;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, LabMachine, ProxyProcess, TestService};
use serde_json::json;

use crate::support::{Cluster, cluster, connection, folder, start, status, wait};

/// Writes a file for a proxy of this name.
fn write(name: &str, file: &str, text: &str) -> PathBuf {
    let folder = folder(name);
    std::fs::create_dir_all(&folder).expect("making a folder");
    let path = folder.join(file);
    std::fs::write(&path, text).expect("writing a file");
    path
}

/// A kubeconfig with the fields of one user, and another context without a reachable server.
fn kubeconfig(cluster: &Cluster, user: &str, context: &str) -> String {
    let (url, ca) = (cluster.api.url(), cluster.api.ca());
    format!(
        "apiVersion: v1
kind: Config
clusters:
- {{name: nowhere, cluster: {{server: \"https://127.0.0.1:1\"}}}}
- {{name: here, cluster: {{server: \"{url}\", certificate-authority: {ca}}}}}
users:
- {{name: nobody, user: {{}}}}
- {{name: proxy, user: {{{user}}}}}
contexts:
- {{name: away, context: {{cluster: nowhere, user: nobody}}}}
- {{name: home, context: {{cluster: here, user: proxy}}}}
current-context: {context}
",
        ca = ca.display()
    )
}

fn prepared() -> std::sync::MutexGuard<'static, Cluster> {
    let cluster = cluster();
    cluster.api.create_node();
    cluster.create(&TestService::new("web", 40), &[LabMachine::PodA]);
    cluster
}

/// Waits until a proxy serves, ends it, and removes its rules.
fn serves(cluster: &Cluster, what: &str, mut proxy: ProxyProcess<'_>) {
    let took = cluster.wait(&mut proxy, 40, &["pod-a:8080"]);
    println!("{what}: serves after {took:?}");
    proxy.terminate();
    ferry_lab::nft::load(cluster.node(), "flush ruleset");
}

#[test]
fn every_way_of_saying_who_one_is() {
    let cluster = prepared();
    for user in [ClusterUser::Certificate, ClusterUser::Files, ClusterUser::Token] {
        let config = ProxyConfig::with(&connection(&cluster.api.kubeconfig(user)));
        serves(&cluster, &format!("{user:?}"), start(cluster.node(), "who", &config, &[]));
    }
    let token = cluster.api.token();
    let token_file = write("who", "token", &format!("{token}\n"));
    let by_file = format!("tokenFile: {}", token_file.display());
    for (what, text) in [
        ("a context", kubeconfig(&cluster, &format!("token: {token}"), "home")),
        ("a file with a token", kubeconfig(&cluster, &by_file, "home")),
    ] {
        let config = ProxyConfig::with(&connection(&write("who", "conf", &text)));
        serves(&cluster, what, start(cluster.node(), "who", &config, &[]));
    }
}

#[test]
fn master_goes_before_the_kubeconfigs_server() {
    let cluster = prepared();
    let master = format!("--master={}", cluster.api.url());
    // the server of this context is unreachable; its authorities and user are used
    let text = kubeconfig(&cluster, &format!("token: {}", cluster.api.token()), "home");
    let text = text.replace(&cluster.api.url(), "https://127.0.0.1:1");
    let file = write("master", "conf", &text);
    serves(&cluster, "master", start(cluster.node(), "master", &ProxyConfig::with(&connection(&file)), &[&master]));
    // and by flags alone
    let kubeconfig = format!("--kubeconfig={}", file.display());
    let arguments = [
        master.as_str(),
        &kubeconfig,
        "--proxy-mode=nftables",
        "--hostname-override=node-a",
        "--detect-local-mode=ClusterCIDR",
        "--kube-api-content-type=application/json",
    ];
    let proxy = ProxyProcess::start_with(cluster.node(), crate::support::EXECUTABLE, &folder("master"), &arguments);
    serves(&cluster, "flags", proxy);
}

#[test]
fn json_when_the_configuration_says_so() {
    let cluster = prepared();
    let file = cluster.api.kubeconfig(ClusterUser::Certificate);
    for encoding in ["application/json", "application/vnd.kubernetes.protobuf"] {
        let more = format!("clientConnection: {{kubeconfig: {}, contentType: {encoding}}}", file.display());
        let mut proxy = start(cluster.node(), "json", &ProxyConfig::with(&more), &[]);
        let name = format!("{} of {encoding}", "web");
        cluster.wait(&mut proxy, 40, &["pod-a:8080"]);
        // changes come in the same encoding
        cluster.move_to(&TestService::new("web", 40), &[LabMachine::Far]);
        cluster.wait(&mut proxy, 40, &["far:8080"]);
        cluster.move_to(&TestService::new("web", 40), &[LabMachine::PodA]);
        serves(&cluster, &name, proxy);
    }
    // a few requests at once is all it takes
    let more = format!("clientConnection: {{kubeconfig: {}, qps: 0.5, burst: 4}}", file.display());
    serves(&cluster, "few requests", start(cluster.node(), "json", &ProxyConfig::with(&more), &[]));
}

/// The proxy's log lines about access.
fn refusals(log: &str) -> Vec<String> {
    let refused = log.lines().filter(|line| line.contains("\"API server refuses access, retrying\""));
    refused.map(str::to_owned).collect()
}

fn names(lines: &[String], parts: &[&str]) -> bool {
    lines.iter().any(|line| line.starts_with('E') && parts.iter().all(|part| line.contains(part)))
}

#[test]
fn whoever_may_not_is_told_what_and_goes_on() {
    let cluster = prepared();
    // the rules of an earlier run stay meanwhile
    let mut earlier = cluster.start("earlier");
    cluster.wait(&mut earlier, 40, &["pod-a:8080"]);
    earlier.terminate();
    cluster.move_to(&TestService::new("web", 40), &[LabMachine::Far]);
    let generation = cluster.settled_generation();

    cluster.api.allow_stranger(&json!([]));
    let config = ProxyConfig::with(&connection(&cluster.api.kubeconfig(ClusterUser::Stranger)));
    let mut proxy = start(cluster.node(), "stranger", &config, &[]);
    for resource in ["services", "endpointslices", "nodes"] {
        wait(&mut proxy, &format!("a word about {resource}"), |proxy| {
            names(&refusals(&proxy.log()), &["403", resource, "stranger", "watch"])
        });
    }
    wait(&mut proxy, "/livez", |proxy| status(proxy, "/livez") == 200);
    assert_eq!(cluster.generation(), generation, "{}", proxy.log());
    assert!(cluster.serves(40, &["pod-a:8080"]), "an earlier run's rules serve");

    // exactly the required permissions; ServiceCIDRs are optional
    cluster.api.allow_stranger(&json!([
        {"apiGroups": [""], "resources": ["services", "nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]));
    let took = cluster.wait(&mut proxy, 40, &["far:8080"]);
    println!("allowed, it serves after {took:?}");
    let log = proxy.log();
    assert!(log.lines().any(|line| line.starts_with('I') && line.contains("servicecidrs")), "{log}");
    assert!(!names(&refusals(&log), &["servicecidrs"]), "{log}");
    assert!(log.contains("\"Requests to the API server succeed again\""), "{log}");
    assert!(refusals(&log).len() < 20, "{log}");

    // without permissions the known state stays, and watches continue or are retried
    cluster.api.allow_stranger(&json!([]));
    cluster.assert_quiet("without permission", &proxy, Duration::from_secs(1));
    assert!(cluster.serves(40, &["far:8080"]));
}

#[test]
fn a_wrong_token_is_told_and_a_right_one_taken() {
    let cluster = prepared();
    let token_file = write("token", "token", "not-a-token");
    let text = kubeconfig(&cluster, &format!("tokenFile: {}", token_file.display()), "home");
    let mut proxy =
        start(cluster.node(), "token", &ProxyConfig::with(&connection(&write("token", "conf", &text))), &[]);
    wait(&mut proxy, "a word about the token", |proxy| {
        let said = refusals(&proxy.log());
        ["services", "endpointslices", "nodes"].iter().all(|resource| names(&said, &["401", resource, "watch"]))
    });
    let replacement = write("token", "new", &cluster.api.token());
    std::fs::rename(replacement, token_file).expect("replacing the token");
    let took = cluster.wait(&mut proxy, 40, &["pod-a:8080"]);
    println!("with a token it serves after {took:?}");
}

#[test]
fn nothing_beyond_the_role_of_a_proxy_is_needed() {
    let cluster = prepared();
    let mut proxy = cluster.start("role");
    cluster.wait(&mut proxy, 40, &["pod-a:8080"]);
    proxy.wait_until_synced(&Family::ALL);
    assert_eq!(proxy.metric("rest_client_requests_total", &["code=\"4"]), 0.0);
    assert!(proxy.metric("rest_client_requests_total", &["code=\"200\"", "method=\"GET\""]) >= 4.0);
    assert!(!proxy.log().lines().any(|line| line.starts_with('E')), "{}", proxy.log());
}

#[test]
fn a_kubeconfig_that_cant_be_used_ends_the_start() {
    let cluster = cluster();
    let missing = Path::new("/no/such/kubeconfig");
    let mut proxy = start(cluster.node(), "unusable", &ProxyConfig::with(&connection(missing)), &[]);
    assert_eq!(proxy.wait().code(), Some(1));
    assert!(proxy.log().contains("stat /no/such/kubeconfig: no such file or directory"), "{}", proxy.log());
}

/// The context of the kubeconfig is switched while the proxy runs, as when a node moves to another endpoint of its API server.
#[test]
fn a_changed_kubeconfig_is_used_without_a_restart() {
    let cluster = prepared();
    let text = |context| kubeconfig(&cluster, &format!("token: {}", cluster.api.token()), context);
    let file = write("changed", "conf", &text("away"));
    let mut proxy = start(cluster.node(), "changed", &ProxyConfig::with(&connection(&file)), &[]);
    let runs = |proxy: &ProxyProcess<'_>| proxy.log().matches("Starting kube-proxy").count();
    wait(&mut proxy, "no connection", |proxy| proxy.log().contains("https://127.0.0.1:1"));
    write("changed", "conf", "clusters: [");
    wait(&mut proxy, "a refusal", |proxy| proxy.log().contains("can't be used, keeping the running one"));
    assert_eq!(runs(&proxy), 1);
    write("changed", "conf", &text("home"));
    wait(&mut proxy, "a new run", |proxy| runs(proxy) == 2);
    assert!(proxy.log().contains("changed=\"the kubeconfig's content\""), "{}", proxy.log());
    serves(&cluster, "a changed kubeconfig", proxy);
}
