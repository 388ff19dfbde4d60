//! Two proxies for the same node at once, as during a rolling update.

use std::time::{Duration, Instant};

use ferry_lab::kubernetes::{ApiRequest, ClusterUser};
use ferry_lab::nft;
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::probe::Hammer;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Checks, Family, LabMachine, ProbeTally, Protocol, ProxyProcess, SeenSource, TestService};

use crate::support::{Cluster, cluster, connection, start};

/// Services that change; one more is left alone.
const CHANGING: u16 = 20;
const CHANGES: usize = 200;
const PLACES: [&[LabMachine]; 4] = [
    &[LabMachine::PodA],
    &[LabMachine::PodA, LabMachine::Far],
    &[LabMachine::Far],
    &[LabMachine::PodB, LabMachine::Far],
];

fn service(number: u16) -> TestService {
    TestService::new(&format!("twin-{number}"), 600 + number).node_port(31000 + number)
}

/// The second one's ports, which the first one has.
fn second(cluster: &Cluster) -> ProxyConfig {
    let kubeconfig = connection(&cluster.api.kubeconfig(ClusterUser::Certificate));
    ProxyConfig::with(&format!(
        "{kubeconfig}\nhealthzBindAddress: 127.0.0.1:20256\nmetricsBindAddress: 127.0.0.1:20249"
    ))
}

/// A metric of the second one, summed up.
fn metric_of_second(proxy: &ProxyProcess<'_>, name: &str) -> f64 {
    let page = proxy.get(20249, "/metrics").expect("an answer");
    let own = page.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
    own.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// True if the second proxy has finished its first sync in both families. It answers before that.
fn has_synced(proxy: &ProxyProcess<'_>) -> bool {
    let name = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{";
    let page = proxy.get(20249, "/metrics").unwrap_or_default();
    page.lines().filter(|line| line.starts_with(name) && !line.ends_with(" 0")).count() == Family::ALL.len()
}

/// Waits until no process has committed for a second; returns the time it took.
fn until_quiet(cluster: &Cluster, logs: impl Fn() -> String) -> Duration {
    let start = Instant::now();
    let mut seen = (cluster.generation(), Instant::now());
    while seen.1.elapsed() < Duration::from_secs(1) {
        assert!(start.elapsed() < Duration::from_secs(30), "they don't come to rest\n{}", logs());
        std::thread::sleep(Duration::from_millis(20));
        let generation = cluster.generation();
        if generation != seen.0 {
            seen = (generation, Instant::now());
        }
    }
    start.elapsed()
}

fn assert_unharmed(hammers: Vec<Hammer>) {
    let mut checks = Checks::new();
    for hammer in hammers {
        let tally = ProbeTally(hammer.stop().into_iter().map(|(_, outcome)| outcome).collect());
        println!("meanwhile: {tally}");
        checks.served("meanwhile", &tally, &["far:8080", "pod-a:8080"], SeenSource::Any);
    }
}

#[test]
fn two_proxies_at_once_agree_and_nobody_fights() {
    let cluster = cluster();
    cluster.api.create_node();
    for number in 0..=CHANGING {
        cluster.create(&service(number), &[LabMachine::PodA, LabMachine::Far]);
    }
    let mut first = cluster.start("first");
    cluster.wait(&mut first, 600 + CHANGING, &["far:8080", "pod-a:8080"]);
    let hammers: Vec<_> = Family::ALL
        .map(|family| {
            let client = cluster.lab.from(LabMachine::Client).patience(Duration::from_millis(900));
            client.hammer(Protocol::Tcp, at_cluster_ip(family, 600 + CHANGING))
        })
        .into();
    let mut twin = start(cluster.node(), "second", &second(&cluster), &[]);
    twin.wait_for("the second one's first sync", |twin| {
        metric_of_second_or_none(twin, "kubeproxy_sync_proxy_rules_last_timestamp_seconds") > 0.0
    });
    let before = cluster.generation();
    let start_of_changes = Instant::now();
    for change in 0..CHANGES {
        let number = u16::try_from(change).expect("few") % CHANGING;
        let places = PLACES.get(change / usize::from(CHANGING) % PLACES.len()).copied().unwrap_or_default();
        let endpoints = service(number).endpoints(8080, places);
        let slices = Family::ALL.into_iter().filter_map(|family| endpoints.slice(family));
        let requests: Vec<_> = slices.map(|slice| ApiRequest::replace(&slice)).collect();
        requests.iter().for_each(|request| drop(cluster.api.ask(request)));
    }
    let commits = cluster.generation().wrapping_sub(before);
    println!("{CHANGES} changes in {:?}, {commits} commits", start_of_changes.elapsed());
    let logs = || format!("--- first\n{}\n--- second\n{}", first.log(), twin.log());
    let quiet = until_quiet(&cluster, logs);
    println!("quiet after {quiet:?}, {} commits in all", cluster.generation().wrapping_sub(before));
    assert_unharmed(hammers);
    let contested = "kubeproxy_engine_contested_total";
    let fights = (first.metric(contested, &[]), metric_of_second(&twin, contested));
    let repairs = "kubeproxy_engine_repairs_total";
    println!("repairs: {} and {}", first.metric(repairs, &[]), metric_of_second(&twin, repairs));
    assert_eq!(fights, (0.0, 0.0), "{}", logs());
    let pending = "kubeproxy_engine_pending_units";
    assert_eq!((first.metric(pending, &[]), metric_of_second(&twin, pending)), (0.0, 0.0), "{}", logs());
    let last = PLACES.get((CHANGES - 1) / usize::from(CHANGING) % PLACES.len()).copied().unwrap_or_default();
    let mut names: Vec<String> = last.iter().map(|place| format!("{}:8080", place.name())).collect();
    names.sort();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for number in 0..CHANGING {
        assert!(cluster.serves(600 + number, &names), "service {number}\n{}", logs());
    }
    // the rules are those of a single proxy
    let shared = cluster.rules();
    first.terminate();
    twin.terminate();
    nft::load(cluster.node(), "flush ruleset");
    let mut alone = cluster.start("alone");
    alone.wait_until_synced(&Family::ALL);
    let own = cluster.rules();
    assert!(shared == own, "of two (-), of one (+):\n{}", shared.difference(&own));
}

fn metric_of_second_or_none(proxy: &ProxyProcess<'_>, name: &str) -> f64 {
    if proxy.get(20249, "/metrics").is_some() { metric_of_second(proxy, name) } else { 0.0 }
}

#[test]
fn two_proxies_that_saw_different_histories_agree() {
    let cluster = cluster();
    cluster.api.create_node();
    let web = service(40);
    cluster.create(&web, &[LabMachine::PodB, LabMachine::Far]);
    let mut first = cluster.start("first");
    cluster.wait(&mut first, 640, &["far:8080", "pod-b:8080"]);
    let mut twin = start(cluster.node(), "second", &second(&cluster), &[]);
    twin.wait_for("the second one's first sync", has_synced);
    // the first one goes step by step, the second one sleeps and then sees all of it at once: endpoints that stay keep
    // their places as far as they can, so the first one ends with (far, a), the second one with (a, far)
    twin.suspend();
    for (places, names) in [
        (&[LabMachine::Far][..], &["far:8080"][..]),
        (&[LabMachine::PodA, LabMachine::Far], &["far:8080", "pod-a:8080"]),
    ] {
        cluster.move_to(&web, places);
        cluster.wait(&mut first, 640, names);
    }
    let generation = cluster.generation();
    twin.go_on();
    let logs = || format!("--- first\n{}\n--- second\n{}", first.log(), twin.log());
    until_quiet(&cluster, logs);
    println!("{} commits for two right orders", cluster.generation().wrapping_sub(generation));
    let repairs = "kubeproxy_engine_repairs_total";
    assert_eq!((first.metric(repairs, &[]), metric_of_second(&twin, repairs)), (0.0, 0.0), "{}", logs());
    assert!(cluster.serves(640, &["far:8080", "pod-a:8080"]));
}

#[test]
fn one_of_two_ends_and_the_other_goes_on() {
    let cluster = cluster();
    cluster.api.create_node();
    let web = service(30);
    cluster.create(&web, &[LabMachine::PodA]);
    let mut first = cluster.start("first");
    cluster.wait(&mut first, 630, &["pod-a:8080"]);
    let mut twin = start(cluster.node(), "second", &second(&cluster), &[]);
    twin.wait_for("the second one's first sync", has_synced);
    first.terminate();
    cluster.move_to(&web, &[LabMachine::Far]);
    let took = cluster.wait(&mut twin, 630, &["far:8080"]);
    println!("the other one took {took:?}");
}
