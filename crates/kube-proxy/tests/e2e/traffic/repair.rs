//! Repair of foreign changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferry_lab::nft::{self, Ruleset};
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::patience::{until, within};
use ferry_lab::{Checks, Family, Host, LabMachine, Manifests, SeenSource, Stage, TestService};

use crate::support::stage;

const ALL_PODS: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];
/// Time limit of repairs.
const LIMIT: Duration = Duration::from_secs(1);
const TABLES: [(Family, &str); 2] = [(Family::V4, "ip kube-proxy"), (Family::V6, "ip6 kube-proxy")];
const REPAIRS: &str = "kubeproxy_engine_repairs_total";

fn manifests() -> Manifests {
    Manifests::new()
        .with(TestService::new("web", 70).node_port(30070), &ALL_PODS)
        .with(TestService::new("edge", 71).external_ip(71).external_local(), &ALL_PODS)
        .with(
            TestService::new("ranges", 72).load_balancer(172).source_ranges(&["203.0.113.0/24", "fd00:cc::/64"]),
            &[LabMachine::PodA],
        )
        .with(TestService::new("sticky", 73).affinity(600), &ALL_PODS)
        .without_endpoints(TestService::new("empty", 74))
}

/// The key of some element of a map or set.
fn key(ruleset: &Ruleset, table: &str, object: &str) -> String {
    let element = ruleset.get(table, object).elements.first().expect("it has elements");
    element.split_once(" : ").map_or(element.as_str(), |(key, _)| key).to_owned()
}

/// The handle of the first rule of a chain.
fn first_rule(node: &Host, table: &str, chain: &str) -> String {
    let arguments: Vec<_> = ["-a", "list", "chain"].into_iter().chain(table.split(' ')).chain([chain]).collect();
    let text = node.sh("nft", &arguments);
    let handles = text.lines().filter(|line| !line.contains('{')).filter_map(|line| line.split_once("# handle "));
    handles.map(|(_, handle)| handle.trim().to_owned()).next().expect("a chain with a rule")
}

/// Foreign changes of a table, as scripts.
fn damages(node: &Host, ruleset: &Ruleset, table: &str) -> Vec<(&'static str, String)> {
    let name = |object: &str| object.rsplit(' ').next().unwrap_or_default().to_owned();
    let delete =
        |object: &str| format!("delete element {table} {} {{ {} }}", name(object), key(ruleset, table, object));
    let of_table = ruleset.objects.keys().filter(|(own, _)| own == table).map(|(_, object)| object);
    let sources = of_table.into_iter().find(|object| object.starts_with("set sources-")).expect("source ranges");
    let service = key(ruleset, table, "map service-ips");
    let (stranger, stranger_source) = match table {
        "ip kube-proxy" => ("10.96.77.77 . tcp . 7777", "10.77.0.0/16"),
        _ => ("fd00:10:96::7777 . tcp . 7777", "fd00:77::/64"),
    };
    vec![
        ("the table deleted", format!("delete table {table}")),
        ("all rules of the table flushed", format!("flush table {table}")),
        ("an element of service-ips deleted", delete("map service-ips")),
        ("an element of endpoints deleted", delete("map endpoints")),
        ("an element of nodeport-endpoints deleted", delete("map nodeport-endpoints")),
        ("an element of cluster-ips deleted", delete("set cluster-ips")),
        ("an element of same-octet deleted", delete("set same-octet")),
        ("a source range deleted", delete(sources)),
        ("a source range added", format!("add element {table} {} {{ {stranger_source} }}", name(sources))),
        ("all source ranges flushed", format!("flush set {table} {}", name(sources))),
        ("all endpoints flushed", format!("flush map {table} endpoints")),
        (
            "an element changed",
            format!(
                "delete element {table} service-ips {{ {service} }}\nadd element {table} service-ips {{ {service} : drop }}"
            ),
        ),
        ("a strange element added", format!("add element {table} service-ips {{ {stranger} : drop }}")),
        ("a rule deleted", format!("delete rule {table} services handle {}", first_rule(node, table, "services"))),
        ("the rules of a chain flushed", format!("flush chain {table} nat-postrouting")),
        ("a strange rule inserted", format!("insert rule {table} services counter")),
        ("a base chain deleted", format!("flush chain {table} nat-output-late\ndelete chain {table} nat-output-late")),
        ("a set and its rules deleted", format!("flush chain {table} unknown\ndelete set {table} cluster-ips")),
    ]
}

#[test]
fn damage_is_mended_within_a_second_and_counted() {
    let mut stage = stage(&manifests());
    let intact = Ruleset::of(stage.node()).without_spares();
    let mut checks = Checks::new();
    let mut worst = (Duration::ZERO, "");
    let mut all: Vec<(&str, &str, String)> = vec![("both families", "flush", "flush ruleset".to_owned())];
    for (family, table) in TABLES {
        let name = if family == Family::V4 { "IPv4" } else { "IPv6" };
        // handles stay valid until the chain is written anew: those damages come from a fresh look below
        all.extend(damages(stage.node(), &intact, table).into_iter().map(|(what, script)| (name, what, script)));
    }
    for (family, what, script) in all {
        // a new process has no memory of earlier repairs, and so doesn't take this test for a second writer
        stage.restart();
        let script = fresh_handle(stage.node(), &script);
        let before = stage.proxy.metric(REPAIRS, &[]);
        nft::load(stage.node(), &script);
        let (start, mut now) = (Instant::now(), Ruleset::default());
        let mended = within(LIMIT, || {
            now = Ruleset::of(stage.node()).without_spares();
            now == intact
        });
        let elapsed = start.elapsed();
        checks.that(mended, || format!("{family}, {what}: not mended\n{}", intact.difference(&now)));
        if mended && elapsed > worst.0 {
            worst = (elapsed, what);
        }
        // the metric counts it only when the engine's sync pass ends, after the commit
        let counted = !mended || within(LIMIT, || stage.proxy.metric(REPAIRS, &[]) > before);
        checks.that(counted, || format!("{family}, {what}: mended, but not counted"));
    }
    println!("damage mended: worst {:?} ({})", worst.0, worst.1);
}

/// A rule's handle is another one after its chain was written anew.
fn fresh_handle(node: &Host, script: &str) -> String {
    match script.strip_prefix("delete rule ").and_then(|rest| rest.split_once(" services handle ")) {
        Some((table, _)) => {
            format!("delete rule {table} services handle {}", first_rule(node, table, "services"))
        }
        None => script.to_owned(),
    }
}

#[test]
fn traffic_is_back_within_a_second_after_a_flush() {
    let mut stage = stage(&manifests());
    stage.restart();
    nft::load(stage.node(), "flush ruleset");
    let start = Instant::now();
    for family in Family::ALL {
        let client = stage.lab.from(LabMachine::Client).patience(Duration::from_millis(50));
        until("a service answers again", LIMIT, || client.tcp(at_cluster_ip(family, 70), 1).all_answered());
    }
    println!("flush ruleset: served again in both families after {:?}", start.elapsed());
}

#[test]
fn a_second_writer_that_keeps_undoing_is_left_alone_and_named() {
    let mut stage = stage(&manifests());
    stage.restart();
    let victim = key(&Ruleset::of(stage.node()), "ip kube-proxy", "set cluster-ips");
    let script = format!("delete element ip kube-proxy cluster-ips {{ {victim} }}");
    let (stop, undone) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let writer = {
        let (stop, undone) = (Arc::clone(&stop), Arc::clone(&undone));
        stage.node().thread(move || {
            while !stop.load(Ordering::Relaxed) {
                let status =
                    std::process::Command::new("nft").arg(&script).stderr(std::process::Stdio::null()).status();
                if status.is_ok_and(|status| status.success()) {
                    undone.fetch_add(1, Ordering::Relaxed);
                }
                sleep(Duration::from_millis(20));
            }
        })
    };
    sleep(Duration::from_secs(6));
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("the writer ends");
    let undone = undone.load(Ordering::Relaxed);
    let contested = stage.proxy.metric("kubeproxy_engine_contested_total", &["ip_family=\"IPv4\""]);
    let repairs = stage.proxy.metric(REPAIRS, &["ip_family=\"IPv4\""]);
    let log = stage.proxy.log();
    println!("second writer: undid {undone} times in 6 s; repairs {repairs}, contested {contested}");
    let mut checks = Checks::new();
    checks.that(contested >= 1.0, || format!("not counted as contested\n{log}"));
    checks.that((3..10).contains(&undone), || format!("undone {undone} times: backed off too late, or at once"));
    let named = log.lines().any(|line| line.starts_with(['W', 'E']) && line.contains(&victim));
    checks.that(named, || format!("{victim} isn't named in the log:\n{log}"));
    // the rest is served and mended as ever
    for family in Family::ALL {
        let tally = stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, 70), 40);
        checks.served(&format!("{family}"), &tally, &["pod-a:8080", "pod-b:8080", "far:8080"], SeenSource::Masqueraded);
    }
    restore(&mut stage);
}

/// The next group starts from an undamaged table.
fn restore(stage: &mut Stage<'_>) {
    stage.restart();
}
