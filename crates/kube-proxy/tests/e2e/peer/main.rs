//! Rollback: upstream's kube-proxy takes over from Ferry on the same node, with the tables that Ferry has left.
//!
//! Needs Go, openssl, curl and python3: `tests/lanes/kubernetes/kube-api` builds upstream's servers and proxy from their
//! modules, once, in some minutes; `KUBE_API_CACHE` names another place for them.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the helpers of a test fail as tests do, and print what they measured"
)]

mod described;
mod flows;
mod iptables;
mod matrix;
mod metrics;
mod written;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ferry_lab::kubernetes;
use ferry_lab::nft::{self, Ruleset};
use ferry_lab::patience::until;
use ferry_lab::proxy::{NFTABLES, ProxyConfig};
use ferry_lab::stage::ManifestDirectory;
use ferry_lab::{
    Checks, Family, Host, Kubernetes, Lab, LabMachine, Manifests, Protocol, ProxyProcess, SeenSource, Stage,
    TestService,
};

/// The program under test.
const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");
const TABLES: [&str; 2] = ["ip kube-proxy", "ip6 kube-proxy"];

/// Upstream 1.36's objects that don't depend on Services; those of a Service have a slash in their name.
const UPSTREAM: [&str; 22] = [
    "chain cluster-ips-check",
    "chain filter-forward",
    "chain filter-input",
    "chain filter-output",
    "chain filter-output-pre-dnat",
    "chain filter-prerouting-pre-dnat",
    "chain firewall-check",
    "chain masquerading",
    "chain nat-output",
    "chain nat-postrouting",
    "chain nat-prerouting",
    "chain nodeport-endpoints-check",
    "chain reject-chain",
    "chain service-endpoints-check",
    "chain services",
    "map firewall-ips",
    "map no-endpoint-nodeports",
    "map no-endpoint-services",
    "map service-ips",
    "map service-nodeports",
    "set cluster-ips",
    "set hairpin-connections",
];
const UPSTREAM_SOMETIMES: &str = "set nodeport-ips";

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("peer").join(name)
}

/// Objects in the tables that upstream doesn't have.
fn leftovers(lab: &Lab) -> BTreeSet<String> {
    let ruleset = Ruleset::of(lab.host(LabMachine::Node));
    let names = TABLES.into_iter().flat_map(|table| ruleset.names(table).collect::<Vec<_>>());
    let foreign = names.filter(|name| !name.contains('/') && !UPSTREAM.contains(name) && *name != UPSTREAM_SOMETIMES);
    foreign.map(str::to_owned).collect()
}

/// True if upstream has written the rules of this Service, in both families.
fn upstream_serves(lab: &Lab, service: &str) -> bool {
    let ruleset = Ruleset::of(lab.host(LabMachine::Node));
    let mark = format!("-demo/{service}/");
    TABLES.into_iter().all(|table| ruleset.names(table).any(|name| name.contains(&mark)))
}

/// Runs Ferry's executable on the node until it ends by itself.
fn ours(lab: &Lab, argument: &str) {
    let folder = folder("command");
    std::fs::create_dir_all(&folder).expect("making a folder");
    let mut proxy = ProxyProcess::start_with(lab.host(LabMachine::Node), EXECUTABLE, &folder, &[argument]);
    let status = proxy.wait();
    assert!(status.success(), "{argument}: {status}\n{}", proxy.log());
}

#[test]
fn upstream_takes_over_serves_and_our_leftovers_go_under_its_feet() {
    kubernetes::build();
    let lab = Lab::new();
    let manifests = matrix::manifests();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("ours"), ProxyConfig::default(), &manifests);
    matrix::check(&lab, "ours", Family::ALL.as_slice());
    stage.terminate();
    matrix::check(&lab, "ours, ended", Family::ALL.as_slice());

    let start = Instant::now();
    let api = Kubernetes::start(lab.host(LabMachine::Node), &folder("api"));
    println!("API server ready after {:?}", start.elapsed());
    api.create_node();
    api.create_all(&manifests);

    let hammers = matrix::hammer(&lab);
    let start = Instant::now();
    let mut upstream = api.start_proxy(&folder("upstream"), NFTABLES);
    upstream.wait_for("upstream's rules", |_| matrix::NAMES.iter().all(|name| upstream_serves(&lab, name)));
    println!("upstream has taken over after {:?}", start.elapsed());
    matrix::check(&lab, "upstream over our tables", &[Family::V4]);
    matrix::check_served(&lab, "upstream over our tables");
    println!("left of ours: {:?}", leftovers(&lab));

    // upstream goes on working: a new service, another endpoint
    let late = late(90);
    api.create_service(&late);
    api.create_endpoints(&late.endpoints(8080, &[LabMachine::Far]));
    served_late(&lab, 90, "a late service");

    let before = Instant::now();
    ours(&lab, "--cleanup-leftovers");
    println!("leftovers deleted in {:?}", before.elapsed());
    let left = leftovers(&lab);
    assert!(left.is_empty(), "left of ours: {left:?}");
    matrix::unharmed(hammers);
    matrix::check(&lab, "upstream alone", &[Family::V4]);
    matrix::check_served(&lab, "upstream alone");
    served_late(&lab, 90, "a late service, still");
    let (status, _) = upstream.terminate();
    println!("upstream ended: {status}");
}

/// A service that comes when others have been served for a while.
fn late(number: u16) -> TestService {
    TestService::new(&format!("late-{number}"), number).node_port(30000 + number)
}

/// It is served by its only endpoint, the far pod.
fn served_late(lab: &Lab, number: u16, what: &str) {
    let mut checks = Checks::new();
    for family in Family::ALL {
        let at = ferry_lab::objects::at_cluster_ip(family, number);
        let client = lab.from(LabMachine::PodB).patience(Duration::from_millis(200));
        until(what, Duration::from_secs(10), || client.tcp(at, 1).all_answered());
        let kept = SeenSource::Kept(LabMachine::PodB.address(family));
        checks.served(&format!("{what}, {family}"), &client.tcp(at, 3), &["far:8080"], kept);
        let node_port = ferry_lab::objects::at_node_port(family, 30000 + number);
        let tally = lab.from(LabMachine::Client).ask(Protocol::Tcp, node_port, 3);
        checks.served(&format!("{what}, {family} node port"), &tally, &["far:8080"], SeenSource::Masqueraded);
    }
}

#[test]
fn upstreams_cleanup_removes_our_tables() {
    kubernetes::build();
    let lab = Lab::new();
    let mut stage = Stage::new(&lab, EXECUTABLE, &folder("cleaned"), ProxyConfig::default(), &matrix::manifests());
    stage.terminate();
    assert!(!nft::list(stage.node()).is_empty());
    println!("upstream's cleanup: {}", Kubernetes::clean_up(lab.host(LabMachine::Node), &folder("upstream-cleanup")));
    let left = Ruleset::of(stage.node());
    assert!(left.objects.keys().all(|(table, _)| !TABLES.contains(&table.as_str())), "{left:?}");
}

#[test]
fn ours_takes_over_from_upstream_in_one_step() {
    kubernetes::build();
    let lab = Lab::new();
    let api = Kubernetes::start(lab.host(LabMachine::Node), &folder("api-first"));
    let manifests = matrix::manifests();
    api.create_node();
    api.create_all(&manifests);
    let mut upstream = api.start_proxy(&folder("upstream-first"), NFTABLES);
    upstream.wait_for("upstream's rules", |_| matrix::NAMES.iter().all(|name| upstream_serves(&lab, name)));
    matrix::check(&lab, "upstream", &[Family::V4]);
    let told = told_to_load_balancers(&lab);
    assert!(told.iter().all(|(head, _)| head.contains(&"HTTP/1.1 200 OK".to_owned())), "{told:?}");
    upstream.terminate();

    let hammers = matrix::hammer(&lab);
    let mut directory = ManifestDirectory::new(&folder("ours-second"));
    directory.write(&manifests);
    let node = lab.host(LabMachine::Node);
    assert_replacement_is_planned(node, &mut directory);
    let mut proxy = directory.start(node, EXECUTABLE, &ProxyConfig::default());
    proxy.wait_for("our tables", |_| {
        let ruleset = Ruleset::of(node);
        TABLES.into_iter().all(|table| ruleset.names(table).all(|name| !name.contains('/')))
    });
    matrix::unharmed(hammers);
    matrix::check(&lab, "ours over upstream's tables", Family::ALL.as_slice());
    assert_eq!(told_to_load_balancers(&lab), told);
    let ruleset = Ruleset::of(node);
    let theirs = |name: &str| name.contains("filter-") || name.contains('/');
    for table in TABLES {
        let left: Vec<_> = ruleset.names(table).filter(|name| theirs(name)).collect();
        assert!(left.is_empty(), "{table}: left of upstream's: {left:?}");
    }
}

/// Over upstream's table a plan replaces that as a whole and creates all other objects (docs/cli.md).
fn assert_replacement_is_planned(node: &Host, directory: &mut ManifestDirectory) {
    directory.configure(&ProxyConfig::default());
    let (manifests, log) = (directory.manifests(), folder("plan"));
    let config = manifests.with_file_name("config.yaml").display().to_string();
    std::fs::create_dir_all(&log).expect("making a folder");
    let arguments = ["plan", "--config", &config, "--manifests", &manifests.display().to_string()];
    let mut plan = ProxyProcess::start_with(node, EXECUTABLE, &log, &arguments);
    let (status, text) = (plan.wait(), plan.log());
    assert_eq!(status.code(), Some(2), "{text}");
    for family in Family::ALL {
        let begin = format!("{family} in mode nftables: ");
        let line = text.lines().find(|line| line.starts_with(&begin)).unwrap_or_default();
        assert!(line.contains(" changes: 0 Services equal, "), "{text}");
    }
    let base = |line: &&str| line.starts_with("  base: ") && line.ends_with(" to create, 1 to replace, 0 to delete");
    assert_eq!(text.lines().filter(base).count(), Family::ALL.len(), "{text}");
}

/// The running proxy's responses to health checks of a Service, in each family, by each method: the head's lines without order
/// and date, and the body.
fn told_to_load_balancers(lab: &Lab) -> Vec<(BTreeSet<String>, String)> {
    let client = lab.from(LabMachine::Client);
    let mut answers = Vec::new();
    for family in Family::ALL {
        let at = ferry_lab::objects::at_node_port(family, matrix::HEALTH_CHECK);
        until("health checks are answered", Duration::from_secs(10), || client.http("GET", at, "/").is_some());
        for (method, path) in [("GET", "/"), ("POST", "/a?b"), ("HEAD", "/healthz"), ("DELETE", "/c/")] {
            let answer = client.http(method, at, path).expect("it has just answered");
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
            let dated = |line: &str| if line.starts_with("Date: ") { "Date".to_owned() } else { line.to_owned() };
            answers.push((head.split("\r\n").map(dated).collect(), body.to_owned()));
        }
    }
    answers
}

/// All names, to detect a change of Ferry's that collides with upstream's.
#[test]
fn a_manifest_of_the_matrix_is_what_an_api_server_accepts() {
    let manifests: Manifests = matrix::manifests();
    let names: Vec<_> = manifests.services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, matrix::NAMES.iter().chain(&[matrix::EMPTY]).copied().collect::<Vec<_>>());
}
