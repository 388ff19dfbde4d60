//! Events of objects, as `kubectl describe` shows them.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::time::Duration;

use ferry_lab::kubernetes::service_path;
use ferry_lab::lab::NODE_NAME;
use ferry_lab::objects::{NAMESPACE, at_external_ip};
use ferry_lab::{Family, LabMachine, ProxyProcess, TestService};
use serde_json::{Value, json};

use crate::support::{Cluster, cluster, wait};

/// Path of a namespace's Events, in the API group that writes them.
fn events_path(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
}

/// A field as text; blank if it is missing.
fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn uid(cluster: &Cluster, service: &str) -> String {
    text(&cluster.api.get(&service_path(service)), "/metadata/uid").to_owned()
}

/// The Events that `kubectl describe` would show for the Service with this uid, only those of a proxy: the API server writes
/// Events of its own.
fn described(cluster: &Cluster, uid: &str) -> Vec<Value> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.uid%3D{uid}");
    let list = cluster.api.get(&path);
    let all = list.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    all.into_iter().filter(|event| text(event, "/reportingComponent") == "kube-proxy").collect()
}

/// No Events of earlier tests.
fn prepared() -> std::sync::MutexGuard<'static, Cluster> {
    let cluster = cluster();
    cluster.api.create_node();
    for namespace in ["default", NAMESPACE] {
        cluster.api.delete(&events_path(namespace));
    }
    cluster
}

/// Waits until exactly this endpoint answers at an external IP.
fn wait_for_external(cluster: &Cluster, proxy: &mut ProxyProcess<'_>, number: u8, endpoint: &str) {
    wait(proxy, &format!("{endpoint} at external IP {number}"), |_| {
        Family::ALL.into_iter().all(|family| {
            let client = cluster.lab.from(LabMachine::Client).patience(Duration::from_millis(300));
            let tally = client.tcp(at_external_ip(family, number), 4);
            tally.all_answered() && tally.endpoints().into_keys().eq([endpoint])
        })
    });
}

#[test]
fn the_start_is_an_event_of_the_node() {
    let cluster = prepared();
    let mut proxy = cluster.start("starting");
    let starting = || {
        let list = cluster.api.get(&events_path("default"));
        let all = list.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        all.into_iter().filter(|event| text(event, "/reason") == "Starting").collect::<Vec<_>>()
    };
    wait(&mut proxy, "an Event", |_| !starting().is_empty());
    let all = starting();
    let [event] = &all[..] else { panic!("{all:?}") };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    for (path, wanted) in [
        ("/type", "Normal"),
        ("/action", "StartKubeProxy"),
        ("/note", ""),
        ("/reportingController", "kube-proxy"),
        ("/reportingInstance", &format!("kube-proxy-{}", host.trim())),
        ("/regarding/kind", "Node"),
        ("/regarding/name", NODE_NAME),
        ("/regarding/apiVersion", "v1"),
        ("/regarding/uid", ""),
        ("/regarding/namespace", ""),
        ("/metadata/namespace", "default"),
    ] {
        assert_eq!(text(event, path), wanted, "{path}: {event}");
    }
    assert!(text(event, "/metadata/name").starts_with(&format!("{NODE_NAME}.")), "{event}");
    // micro precision: 2024-05-01T10:00:00.123456Z
    assert_eq!(text(event, "/eventTime").len(), 27, "{event}");
    // the server shows it before its answer has come
    wait(&mut proxy, "the answer", |proxy| {
        proxy.metric("rest_client_requests_total", &["code=\"201\"", "method=\"POST\""]) == 1.0
    });
    assert_eq!(proxy.metric("rest_client_requests_total", &["code=\"4"]), 0.0);
}

/// Two Services claim one external IP: the older one owns it, the other one gets an Event, and takes over when the older one is
/// deleted.
#[test]
fn who_loses_an_address_finds_out_why() {
    const EXTERNAL: u8 = 77;
    let cluster = prepared();
    // sorted the other way round, so that the name doesn't decide
    let (old, young) = (TestService::new("z-old", 70), TestService::new("a-young", 71));
    let (old, young) = (old.external_ip(EXTERNAL), young.external_ip(EXTERNAL));
    cluster.create(&old, &[LabMachine::PodA]);
    let mut proxy = cluster.start("conflict");
    wait_for_external(&cluster, &mut proxy, EXTERNAL, "pod-a:8080");
    // an API server's clock has whole seconds
    std::thread::sleep(Duration::from_millis(1100));
    cluster.create(&young, &[LabMachine::Far]);
    cluster.wait(&mut proxy, 71, &["far:8080"]);
    let [winner, loser] = ["z-old", "a-young"].map(|name| uid(&cluster, name));
    // one for each family's address
    wait(&mut proxy, "Events of the loser", |_| described(&cluster, &loser).len() == 2);
    assert_eq!(described(&cluster, &winner), Vec::<Value>::new());
    for event in described(&cluster, &loser) {
        for (path, wanted) in [
            ("/type", "Warning"),
            ("/reason", "FrontendConflict"),
            ("/action", "Serve"),
            ("/reportingComponent", "kube-proxy"),
            ("/involvedObject/kind", "Service"),
            ("/involvedObject/name", "a-young"),
            ("/involvedObject/namespace", NAMESPACE),
            ("/involvedObject/apiVersion", "v1"),
        ] {
            assert_eq!(text(&event, path), wanted, "{path}: {event}");
        }
        let note = text(&event, "/message");
        assert!(note.starts_with("spec.externalIPs[") && !note.contains("z-old"), "{note}");
    }
    wait_for_external(&cluster, &mut proxy, EXTERNAL, "pod-a:8080");

    // the claim is removed and added: the same event again
    let ips = cluster.api.get(&service_path("a-young")).pointer("/spec/externalIPs").cloned().expect("external IPs");
    let give_up = json!({"spec": {"externalIPs": null}});
    let changes = |proxy: &ProxyProcess<'_>| proxy.metric("kubeproxy_sync_proxy_rules_service_changes_total", &[]);
    let before = changes(&proxy);
    cluster.api.patch(&service_path("a-young"), &give_up);
    wait(&mut proxy, "the change", |proxy| changes(proxy) > before);
    cluster.api.patch(&service_path("a-young"), &json!({"spec": {"externalIPs": ips}}));
    let counts = || -> Vec<u64> {
        let count = |event: &Value| event.pointer("/series/count").and_then(Value::as_u64).unwrap_or(1);
        described(&cluster, &loser).iter().map(count).collect()
    };
    wait(&mut proxy, "a series", |_| counts() == [2, 2]);

    // the winner goes
    cluster.api.delete(&service_path("z-old"));
    wait_for_external(&cluster, &mut proxy, EXTERNAL, "far:8080");
    assert_eq!(counts(), [2, 2], "that is no news");
    let log = proxy.log();
    assert!(!log.contains("Writing an Event failed") && !log.contains("rejected an Event"), "{log}");
}

#[test]
fn a_health_check_that_cant_be_answered_is_an_event() {
    let cluster = prepared();
    let web = TestService::new("web", 72).load_balancer(78).external_local();
    cluster.create(&web, &[LabMachine::PodA]);
    let object = cluster.api.get(&service_path("web"));
    let port = object.pointer("/spec/healthCheckNodePort").and_then(Value::as_u64).expect("the API server gives one");
    let port = u16::try_from(port).expect("a port");
    let _in_use = cluster.node().run(move || {
        let v4 = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("a free port");
        (v4, TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)))
    });
    let mut proxy = cluster.start("health-check");
    let uid = text(&object, "/metadata/uid");
    wait(&mut proxy, "an Event", |_| !described(&cluster, uid).is_empty());
    let event = described(&cluster, uid).remove(0);
    let found = ["/reason", "/action", "/type", "/involvedObject/name"].map(|path| text(&event, path));
    assert_eq!(found, ["FailedToStartServiceHealthcheck", "Listen", "Warning", "web"]);
    let note = format!("node {NODE_NAME} failed to start healthcheck \"{NAMESPACE}/web\" on port {port}: ");
    assert!(text(&event, "/message").starts_with(&note), "{event}");
}
