//! Every case of the corpus, and random clusters, in real packets: for each connection of a situation's matrix, what
//! becomes of it between network namespaces is what the model decides.
//!
//! `FERRY_CASES=source-ranges cargo test -p ferry-kube-proxy --test cases -- --nocapture` tries those whose names
//! contain the text, and says how each went.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panic, and prints what it measured"
)]

#[expect(dead_code, reason = "the lab has addresses of its own, and reads a configuration for its mode")]
#[path = "../../../model/tests/case/mod.rs"]
mod case;
#[path = "../../../model/tests/cluster/changes.rs"]
mod changes;
#[path = "../../../model/tests/cluster/mod.rs"]
mod cluster;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use case::Case;
use changes::happens;
use cluster::{Cluster, Random};
use ferry_model::Profile;
use ferry_testkit::corpus::{Corpus, Findings, Mode, Situation, Terrain};

/// The program under test.
const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");
/// Cases that can't be tried, and why.
const LEFT_OUT: [(&str, &str); 0] = [];
/// The seeds of the random clusters.
const SEEDS: std::ops::Range<u64> = 0..20;
/// So often each of them is tried, with so many changes in between.
const MOMENTS: usize = 2;
const CHANGES: usize = 8;

/// The machines, built once, with the proxy of the nftables mode; tests take turns.
fn corpus() -> MutexGuard<'static, Corpus<'static>> {
    static CORPUS: OnceLock<Mutex<Corpus<'static>>> = OnceLock::new();
    let corpus = CORPUS.get_or_init(|| {
        let terrain: &Terrain = Box::leak(Box::new(Terrain::new()));
        Mutex::new(Corpus::new(terrain, EXECUTABLE, &folder(), Mode::NFTABLES))
    });
    corpus.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder of this process, since a proxy serves whatever somebody writes there. Those of processes that are gone go.
fn folder() -> PathBuf {
    let all = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cases");
    for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
        if !Path::new("/proc").join(entry.file_name()).exists() {
            // another process may be at it too
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    all.join(std::process::id().to_string())
}

#[test]
fn real_connections_meet_what_each_case_wants() {
    let cases = Case::all().into_iter().filter(|case| LEFT_OUT.iter().all(|(name, _)| *name != case.name));
    try_all("cases", cases.map(of_case).collect());
}

#[test]
fn real_connections_meet_what_is_decided_in_any_cluster() {
    try_all("clusters", SEEDS.flat_map(moments).collect());
}

/// A cluster as it is first, and what has become of it a few changes later.
fn moments(seed: u64) -> Vec<Situation> {
    let mut random = Random::new(seed);
    let mut cluster = Cluster::random(seed);
    let moments = (0..MOMENTS).map(|moment| {
        if moment > 0 {
            (0..CHANGES).for_each(|_| drop(happens(&mut cluster, &mut random)));
        }
        let name = format!("cluster {seed} moment {moment}");
        let (config, manifest) = (cluster.config.clone(), cluster.manifest());
        let case = Case::of(&name, &config, std::slice::from_ref(&manifest));
        Situation { name, config, manifest, store: case.store }
    });
    moments.collect()
}

#[test]
fn a_decision_that_is_not_what_the_rules_do_is_noticed() {
    let right = Profile::NFTABLES;
    let wrong = [
        ("external-local-node-port", Profile { short_circuit: false, ..right }),
        ("external-local-load-balancer", Profile { masquerades_host_on_local: false, ..right }),
        ("source-ranges-no-endpoints", Profile { filters_sources_before_reject: false, ..right }),
    ];
    let mut corpus = corpus();
    for (name, profile) in wrong {
        let find = || of_case(Case::all().into_iter().find(|case| case.name == name).unwrap());
        assert_eq!(corpus.try_one(find()).faults, [""; 0], "{name}");
        corpus.set_profile(profile);
        let findings = corpus.try_one(find());
        corpus.set_profile(right);
        assert!(!findings.faults.is_empty(), "{name}: {} connections met a wrong decision", findings.connections);
    }
}

/// Tries them one after another; prints how long it took, and complains of all that went wrong.
fn try_all(what: &str, mut situations: Vec<Situation>) {
    let wanted = std::env::var("FERRY_CASES").ok();
    situations.retain(|situation| wanted.as_ref().is_none_or(|wanted| situation.name.contains(wanted)));
    // one proxy for all that have one configuration
    situations.sort_by(|one, other| (&one.config, &one.name).cmp(&(&other.config, &other.name)));
    let mut corpus = corpus();
    let (start, number) = (Instant::now(), situations.len());
    let mut all = Findings::default();
    for situation in situations {
        let (name, begun) = (situation.name.clone(), Instant::now());
        let Findings { connections, faults } = corpus.try_one(situation);
        if wanted.is_some() {
            report(&name, connections, begun.elapsed(), &faults);
        }
        all.connections += connections;
        all.faults.extend(faults);
    }
    println!("{number} {what}, {} connections in {:.1?}", all.connections, start.elapsed());
    assert!(all.faults.is_empty(), "{} of {number} {what}:\n{}", all.faults.len(), all.faults.join("\n"));
}

fn report(name: &str, connections: usize, took: Duration, faults: &[String]) {
    println!("{name}: {connections} connections, {took:.2?}");
    faults.iter().for_each(|fault| println!("{fault}"));
}

fn of_case(case: Case) -> Situation {
    let text = |file: &str| fs::read_to_string(case.folder.join(file)).unwrap_or_default();
    let manifest = format!("{}\n---\n{}", text("objects.yaml"), text("node.yaml"));
    let config = text("config.yaml");
    Situation { name: case.name, config, manifest, store: case.store }
}
