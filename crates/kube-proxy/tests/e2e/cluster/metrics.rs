//! Metrics of changes.

use std::time::Duration;

use ferry_lab::kubernetes::{ServerKind, service_path, slice_path};
use ferry_lab::{Family, LabMachine, ProxyProcess, TestService};
use serde_json::json;

use crate::support::{HEALTHZ, cluster, wait};

const QUEUED: &str = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds";
const SYNCED: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
const PROGRAMMED: &str = "kubeproxy_network_programming_duration_seconds_count";

fn label(family: Family) -> String {
    format!("ip_family=\"{family}\"")
}

/// Times of the last queued change and of the last successful sync, of both families.
fn moments(proxy: &ProxyProcess<'_>) -> [(f64, f64); 2] {
    Family::ALL.map(|family| (proxy.metric(QUEUED, &[&label(family)]), proxy.metric(SYNCED, &[&label(family)])))
}

fn are_even(moments: &[(f64, f64)]) -> bool {
    moments.iter().all(|(queued, synced)| *queued > 0.0 && queued <= synced)
}

#[test]
fn changes_are_timed_and_what_changes_nothing_leaves_no_debt() {
    let cluster = cluster();
    cluster.api.create_node();
    let web = TestService::new("web", 70);
    cluster.create(&web, &[LabMachine::PodA]);
    let mut proxy = cluster.start("metrics");
    cluster.wait(&mut proxy, 70, &["pod-a:8080"]);
    wait(&mut proxy, "queued and synced", |proxy| are_even(&moments(proxy)));

    let generation = cluster.settled_generation();
    let note = |path: &str, value: usize| {
        cluster.api.patch(path, &json!({"metadata": {"annotations": {"example.com/note": value.to_string()}}}));
    };
    for value in 0..3 {
        note(&service_path("web"), value);
        Family::ALL.into_iter().for_each(|family| note(&slice_path("web", family), value));
    }
    std::thread::sleep(Duration::from_millis(500));
    let before = moments(&proxy);
    assert!(are_even(&before), "{before:?}");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(moments(&proxy), before, "nothing goes on behind it");
    assert_eq!(cluster.generation(), generation, "{}", proxy.log());
    for pending in ["endpoint", "service"] {
        let name = format!("kubeproxy_sync_proxy_rules_{pending}_changes_pending");
        assert_eq!(proxy.metric(&name, &[]), 0.0, "{name}");
    }

    // a change does both, and its slices' trigger times are looked at
    let counts = |proxy: &ProxyProcess<'_>| Family::ALL.map(|family| proxy.metric(PROGRAMMED, &[&label(family)]));
    let counted = counts(&proxy);
    for family in Family::ALL {
        let slice = web.endpoints(8080, &[LabMachine::Far]).slice(family).expect("endpoints of both families");
        let annotation = format!("annotations: {{endpoints.kubernetes.io/last-change-trigger-time: \"{}\"}}", now());
        cluster.api.replace(&slice.replace("metadata:\n", &format!("metadata:\n  {annotation}\n")));
    }
    cluster.wait(&mut proxy, 70, &["far:8080"]);
    wait(&mut proxy, "both families timed", |proxy| {
        counts(proxy).iter().zip(&counted).all(|(now, before)| now > before) && are_even(&moments(proxy))
    });
    let after = moments(&proxy);
    assert!(after.iter().zip(&before).all(|(after, before)| after.0 > before.0 && after.1 > before.1));
    let slow = proxy.metric("kubeproxy_network_programming_duration_seconds_sum", &[]);
    println!("programmed in {slow} s in all");
    assert!(slow < 10.0, "{slow}");
}

/// Now, as RFC 3339.
fn now() -> String {
    let output = std::process::Command::new("date").args(["-u", "+%FT%T.%NZ"]).output().expect("running date");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

#[test]
fn requests_are_counted_and_health_tells_how_fresh_objects_are() {
    let cluster = cluster();
    cluster.api.create_node();
    cluster.create(&TestService::new("web", 71), &[LabMachine::PodA]);
    let mut proxy = cluster.start("requests");
    cluster.wait(&mut proxy, 71, &["pod-a:8080"]);
    let host = cluster.api.url().trim_start_matches("https://").to_owned();
    let host = format!("host=\"{host}\"");
    wait(&mut proxy, "requests", |proxy| {
        proxy.metric("rest_client_requests_total", &["code=\"200\"", "method=\"GET\"", &host]) >= 4.0
    });
    assert_eq!(proxy.metric("rest_client_requests_total", &["code=\"<error>\""]), 0.0);
    wait(&mut proxy, "all kinds synced", |proxy| {
        let answer = proxy.get(HEALTHZ, "/healthz").unwrap_or_default();
        answer.matches("\"synced\":true,\"connected\":true").count() == 4
    });
}

/// Real lists and watches of all kinds, and an Event, over HTTP/2; also after outages, each of which costs one more.
#[test]
fn one_connection_carries_everything() {
    let mut cluster = cluster();
    cluster.api.create_node();
    let web = TestService::new("web", 72);
    cluster.create(&web, &[LabMachine::PodA]);
    let mut proxy = cluster.start("connection");
    cluster.wait(&mut proxy, 72, &["pod-a:8080"]);
    let posted = ["code=\"201\"", "method=\"POST\""];
    wait(&mut proxy, "an Event", |proxy| proxy.metric("rest_client_requests_total", &posted) >= 1.0);
    let connected = |proxy: &ProxyProcess<'_>, how: &str| {
        proxy.metric("kubeproxy_source_connections_total", &[&format!("result=\"{how}\"")])
    };
    for round in 1..=2 {
        wait(&mut proxy, "all kinds", |proxy| {
            let answer = proxy.get(HEALTHZ, "/healthz").unwrap_or_default();
            answer.matches("\"synced\":true,\"connected\":true").count() == 4
        });
        assert_eq!((connected(&proxy, "h2"), connected(&proxy, "http/1.1")), (f64::from(round), 0.0));
        let port = cluster.api.url().rsplit(':').next().expect("a port").to_owned();
        let sockets = cluster.node().sh("ss", &["-tnpH", "state", "established", "dport", "=", &format!(":{port}")]);
        assert_eq!(sockets.matches("\"kube-proxy\"").count(), 1, "{sockets}");
        cluster.api.kill(ServerKind::Api);
        wait(&mut proxy, "an attempt", |proxy| connected(proxy, "unreachable") >= f64::from(round));
        cluster.api.resume(ServerKind::Api);
        let place = if round == 1 { LabMachine::Far } else { LabMachine::PodB };
        cluster.move_to(&web, &[place]);
        cluster.wait(&mut proxy, 72, &[if round == 1 { "far:8080" } else { "pod-b:8080" }]);
    }
}
