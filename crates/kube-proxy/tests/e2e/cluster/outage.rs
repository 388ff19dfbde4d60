//! Outages of the API server or of etcd.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferry_lab::kubernetes::{ClusterUser, ServerKind, service_path};
use ferry_lab::objects::at_node_port;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, LabMachine, ProxyProcess, TestService};
use serde_json::Value;

use crate::support::{Cluster, HEALTHZ, assert_unharmed, cluster, connection, folder, hammer, status, wait};

/// Stops a server in this way.
fn go_away(cluster: &mut Cluster, server: ServerKind, how: &str) {
    match how {
        "stopped" => cluster.api.stop(server),
        _ => cluster.api.kill(server),
    }
}

/// True if a load balancer's probe of this port finds so many endpoints on the node.
fn has_local(cluster: &Cluster, port: u16, endpoints: usize) -> bool {
    let client = cluster.lab.from(LabMachine::Client).patience(Duration::from_secs(1));
    let answer = client.http("GET", at_node_port(Family::V4, port), "/").unwrap_or_default();
    answer.contains(&format!("\"localEndpoints\": {endpoints},"))
}

#[test]
fn a_changed_configuration_during_an_outage_costs_no_health() {
    let mut cluster = cluster();
    cluster.api.create_node();
    let web = TestService::new("web", 33).load_balancer(33).external_local();
    cluster.create(&web, &[LabMachine::PodA]);
    let object = cluster.api.get(&service_path("web"));
    let port = object.pointer("/spec/healthCheckNodePort").and_then(Value::as_u64).expect("the API server gives one");
    let port = u16::try_from(port).expect("a port");
    let mut proxy = cluster.start("reloaded");
    cluster.wait(&mut proxy, 33, &["pod-a:8080"]);
    wait(&mut proxy, "an answer to a load balancer", |_| has_local(&cluster, port, 1));
    cluster.api.stop(ServerKind::Api);
    let (before, hammers) = (cluster.rules(), hammer(&cluster, 33));
    let more = format!(
        "{}\nnftables: {{masqueradeAll: true}}\n",
        connection(&cluster.api.kubeconfig(ClusterUser::Certificate))
    );
    ProxyConfig::with(&more).write(&folder("reloaded").join("config.yaml"));
    wait(&mut proxy, "a second run", |proxy| proxy.log().matches("Starting kube-proxy").count() == 2);
    wait(&mut proxy, "the health of the second run", |proxy| status(proxy, "/healthz") == 200);
    wait(&mut proxy, "an answer to a load balancer", |_| has_local(&cluster, port, 1));
    wait(&mut proxy, "the changed rules", |_| cluster.rules() != before);
    let page = proxy.get(HEALTHZ, "/healthz").unwrap_or_default();
    assert!(page.contains("\"snapshot\":{\"confirmed\""), "it says how old the objects are: {page}");
    assert_unharmed("a changed configuration", hammers);
    cluster.api.resume(ServerKind::Api);
    cluster.move_to(&web, &[LabMachine::PodA, LabMachine::PodB]);
    wait(&mut proxy, "a change after the outage", |_| has_local(&cluster, port, 2));
}

/// Services are served during an outage, nothing is written because of it, and later changes arrive.
fn outlast(cluster: &mut Cluster, proxy: &mut ProxyProcess<'_>, web: &TestService, server: ServerKind, how: &str) {
    let what = format!("{server:?} {how}");
    cluster.move_to(web, &[LabMachine::PodA]);
    cluster.wait(proxy, 30, &["pod-a:8080"]);
    let hammers = hammer(cluster, 30);
    let generation = cluster.settled_generation();
    go_away(cluster, server, how);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!((status(proxy, "/livez"), status(proxy, "/healthz")), (200, 200), "{what}\n{}", proxy.log());
    let before = Instant::now();
    cluster.api.resume(server);
    println!("{what}: back after {:?}", before.elapsed());
    // what a reconnection finds is what was there
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(cluster.generation(), generation, "{what}: something was committed\n{}", proxy.log());
    assert!(proxy.is_running(), "{}", proxy.log());
    cluster.move_to(web, &[LabMachine::Far]);
    let took = cluster.wait(proxy, 30, &["far:8080"]);
    println!("{what}: a change afterwards took {took:?}");
    assert!(took < Duration::from_secs(3), "{what}: a change took {took:?}\n{}", proxy.log());
    assert_unharmed(&what, hammers);
}

#[test]
fn services_go_on_without_the_api_server_and_nothing_is_rewritten() {
    let mut cluster = cluster();
    cluster.api.create_node();
    let web = TestService::new("web", 30).node_port(30030);
    cluster.create(&web, &[LabMachine::PodA]);
    let mut proxy = cluster.start("outage");
    cluster.wait(&mut proxy, 30, &["pod-a:8080"]);
    outlast(&mut cluster, &mut proxy, &web, ServerKind::Api, "stopped");
    outlast(&mut cluster, &mut proxy, &web, ServerKind::Api, "killed");
    let log = proxy.log();
    let works = log.lines().filter(|line| line.contains("\"Requests to the API server succeed again\"")).count();
    // After the second start the versions of the first are too old; the second time within a minute that is logged.
    assert!((1..=12).contains(&works), "once for each kind, outage and lost version\n{log}");
    assert!(log.lines().count() < 200, "an outage is no reason to talk\n{log}");
}

#[test]
fn services_go_on_without_the_store() {
    let mut cluster = cluster();
    cluster.api.create_node();
    let web = TestService::new("web", 30);
    cluster.create(&web, &[LabMachine::PodA]);
    let mut proxy = cluster.start("store");
    cluster.wait(&mut proxy, 30, &["pod-a:8080"]);
    outlast(&mut cluster, &mut proxy, &web, ServerKind::Store, "stopped");
    outlast(&mut cluster, &mut proxy, &web, ServerKind::Store, "killed");
}

#[test]
fn changes_of_an_outage_arrive_after_it() {
    let mut cluster = cluster();
    cluster.api.create_node();
    let (web, gone) = (TestService::new("web", 30), TestService::new("gone", 31));
    cluster.create(&web, &[LabMachine::PodA]);
    cluster.create(&gone, &[LabMachine::PodA]);
    let mut proxy = cluster.start("missed");
    cluster.wait(&mut proxy, 31, &["pod-a:8080"]);
    let hammers = hammer(&cluster, 30);
    // all of this while the proxy sleeps, and then its connections are gone
    proxy.suspend();
    cluster.api.delete(&service_path("gone"));
    cluster.move_to(&web, &[LabMachine::PodA, LabMachine::PodB]);
    cluster.create(&TestService::new("new", 32), &[LabMachine::Far]);
    cluster.api.kill(ServerKind::Api);
    cluster.api.resume(ServerKind::Api);
    proxy.go_on();
    cluster.wait(&mut proxy, 30, &["pod-a:8080", "pod-b:8080"]);
    cluster.wait(&mut proxy, 32, &["far:8080"]);
    wait(&mut proxy, "the deleted service", |_| {
        Family::ALL.into_iter().all(|family| !cluster.ask(family, 31, 1).all_answered())
    });
    assert_unharmed("missed changes", hammers);
}

#[test]
fn a_start_without_the_api_server_touches_nothing_until_it_comes() {
    let mut cluster = cluster();
    cluster.api.create_node();
    let web = TestService::new("web", 30);
    cluster.create(&web, &[LabMachine::PodA]);
    let mut proxy = cluster.start("absent");
    cluster.wait(&mut proxy, 30, &["pod-a:8080"]);
    // changes for the next proxy
    proxy.terminate();
    cluster.move_to(&web, &[LabMachine::Far]);
    cluster.api.stop(ServerKind::Api);
    let generation = cluster.settled_generation();
    let before = cluster.rules();
    let hammers = hammer(&cluster, 30);
    let mut proxy = cluster.start("absent");
    wait(&mut proxy, "/livez", |proxy| status(proxy, "/livez") == 200);
    std::thread::sleep(Duration::from_secs(2));
    assert!(proxy.is_running(), "{}", proxy.log());
    assert_eq!(status(&proxy, "/healthz"), 503, "nobody knows this node yet");
    assert_eq!(cluster.generation(), generation, "something was committed\n{}", proxy.log());
    assert!(cluster.rules() == before);
    let log = proxy.log();
    let complaint = log.lines().find(|line| line.contains("Request to the API server failed"));
    assert!(complaint.is_some_and(|line| line.contains(&cluster.api.url())), "{log}");
    cluster.api.resume(ServerKind::Api);
    let took = cluster.wait(&mut proxy, 30, &["far:8080"]);
    println!("programmed {took:?} after the API server said that it was ready");
    // a server that has just started rejects everything for a moment; ServiceCIDRs must survive that
    let [range, _] = ferry_lab::lab::SERVICE_RANGES;
    wait(&mut proxy, "the ranges of cluster IPs", |_| ferry_lab::nft::list(cluster.node()).contains(range));
    assert!(took < Duration::from_secs(3), "it took {took:?}\n{}", proxy.log());
    assert_eq!(status(&proxy, "/healthz"), 200);
    assert_unharmed("a start without the API server", hammers);
}

/// Requests to the API server that had an answer, and how long it rejected some of them.
#[derive(Debug, Default)]
struct Cost {
    requests: f64,
    /// from the last sample without a rejection to the sample with the last one
    rejecting: Duration,
}

/// Requests to the API server so far that had an answer, and those among them that it rejected; `None` if the proxy doesn't answer.
fn requests(proxy: &ProxyProcess<'_>) -> Option<(f64, f64)> {
    let count = |code: &str| proxy.samples("rest_client_requests_total", &[code]);
    // In this order: a request that ends meanwhile never counts as rejected.
    let (all, accepted, unanswered) = (count("")?, count("code=\"2")?, count("code=\"<error>\"")?);
    Some((all - unanswered, all - unanswered - accepted))
}

/// Counts requests, sample by sample, until this flag is set.
fn cost(proxy: &ProxyProcess<'_>, is_over: &AtomicBool) -> Cost {
    let (before, rejected_before) = requests(proxy).expect("the proxy answers");
    let (mut cost, mut rejected, mut calm) = (Cost::default(), rejected_before, Instant::now());
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
        let begun = Instant::now();
        let Some((answered, rejected_now)) = requests(proxy) else { continue };
        if rejected_now > rejected {
            cost.rejecting = calm.elapsed();
            rejected = rejected_now;
        } else if rejected <= rejected_before {
            calm = begun;
        }
        cost.requests = answered - before;
    }
    cost
}

/// Upstream's proxy needs eight requests: a rejected watch of each of the four kinds, since the server hasn't loaded its roles
/// yet, and a list of each, since its watch cache begins with its start. Sixteen if each kind retries by itself; six to eight if
/// one does, and one more for each further rejection, or kind whose version is new enough for a check and a watch. A slow server
/// rejects for longer: the kind that asks for all is rejected three times in 300 ms, and then the three others once; four times
/// as many if each kind retries by itself.
#[test]
fn after_a_restart_of_the_api_server_one_kind_asks_for_all() {
    const REQUESTS: f64 = 10.0;
    const REQUESTS_PER_SECOND: f64 = 16.0;
    let mut cluster = cluster();
    cluster.api.create_node();
    let web = TestService::new("web", 30);
    cluster.create(&web, &[LabMachine::PodA]);
    let mut proxy = cluster.start("requests");
    let mut places = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far].into_iter().cycle();
    for _ in 0..3 {
        let place = places.next().expect("it has no end");
        let endpoint = [format!("{}:8080", place.name())];
        let endpoint = [endpoint[0].as_str()];
        cluster.move_to(&web, &[place]);
        cluster.wait(&mut proxy, 30, &endpoint);
        let failed = proxy.metric("kubeproxy_source_connections_total", &["result=\"unreachable\""]);
        cluster.api.kill(ServerKind::Api);
        wait(&mut proxy, "attempts to connect", |proxy| {
            proxy.metric("kubeproxy_source_connections_total", &["result=\"unreachable\""]) >= failed + 3.0
        });
        let is_over = AtomicBool::new(false);
        let cost = std::thread::scope(|scope| {
            let cost = scope.spawn(|| cost(&proxy, &is_over));
            cluster.api.resume(ServerKind::Api);
            // The last kind has sent its requests by then: no pause is longer.
            std::thread::sleep(Duration::from_secs(6));
            is_over.store(true, Ordering::Relaxed);
            cost.join().expect("it reads samples")
        });
        println!("a restart cost {cost:?}");
        let bound = REQUESTS + REQUESTS_PER_SECOND * cost.rejecting.as_secs_f64();
        assert!(cost.requests <= bound, "{cost:?}\n{}", proxy.log());
        let place = places.next().expect("it has no end");
        cluster.move_to(&web, &[place]);
        cluster.wait(&mut proxy, 30, &[&format!("{}:8080", place.name())]);
    }
}
