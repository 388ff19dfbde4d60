//! Conformance with the model, in real packets: every case of the corpus, and random clusters. Each connection of a situation's
//! matrix must end between network namespaces as the model decides. After a part of the cases the executable's `plan`
//! compares the desired state, which `render` prints, with the kernel's objects, and must find nothing to change.
//!
//! `FERRY_CASES=hints,=source-ranges cargo test -p ferry-kube-proxy --test cases -- --nocapture` runs the cases whose names contain
//! one of the texts, or are one after `=`, with a plan after each case, and prints each result.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a test fails by panic, and prints what it measured"
)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferry_conformance::cluster::happens;
use ferry_conformance::{Case, Cluster, Random};
use ferry_lab::corpus::{Corpus, Situation, SituationResult, Terrain};
use ferry_lab::proxy::USERSPACE;
use ferry_lab::{Mode, kubernetes};
use ferry_model::Profile;

/// The program under test.
const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");
/// Cases that can't be run where the proxy itself listens at the addresses of Services, with the reason.
const LEFT_OUT_OF_LISTENING: [(&str, &str); 1] =
    [("host-network-same-port", "its endpoint in the network of the host has the number of the node port")];
/// Cases in which upstream differs: it has no order among Services, ports or slices with the same claim, and none among kinds of
/// addresses; objects that an API server would have rejected (special addresses, too) make it fail as a whole, are served as they
/// are, or admit every source; it doesn't start without the Node's pod ranges; and for an address that is both an external IP and
/// a load balancer's, it checks source ranges for neither.
const DIFFERS: [&str; 15] = [
    "contested",
    "slices-duplicates",
    "duplicate-frontends",
    "malformed",
    "affinity-timeout-zero",
    "hints-zone-empty-label",
    "slices-address-types-mixed",
    "node-without-addresses",
    "detector-node-cidr-late",
    "detector-node-cidr-one-family",
    "source-ranges-external-ip-is-vip",
    "source-ranges-bare-address",
    "source-ranges-unreadable",
    "special-",
    "external-ip-is-node-address",
];
/// Further cases in which upstream differs in mode ipvs, with the reason.
const DIFFERS_IN_IPVS: [(&str, &str); 4] = [
    ("host-network-same-port", NUMBERS),
    ("node-port-and-vip-number", NUMBERS),
    ("port-numbers-extreme", NUMBERS),
    (
        "balancing-configured",
        "its sh has no fallback: clients that hash to an endpoint which drains since the case before are refused",
    ),
];
/// Its chain of node ports matches every address of the node, those of Services on its device, too.
const NUMBERS: &str = "a port of a service address that is a node port's number, too, is masqueraded as that";
/// Each mode plans one of so many cases, evenly spread: some 90, since a start of the unoptimised executable takes some
/// 50 ms. The rows of the modes begin with different cases, so that each case is planned in some mode, a third of them
/// in mode ipvs alone.
const PLANNED: usize = 3;
/// Situations between two lines that say how far a test is.
const PROGRESS: usize = 20;
/// The seeds of the random clusters.
const SEEDS: std::ops::Range<u64> = 0..20;
/// Moments of each random cluster that are tested, with changes in between.
const MOMENTS: usize = 2;
const CHANGES: usize = 8;

/// The lab of a mode, built once, with its proxy; tests take turns.
fn corpus(mode: Mode) -> MutexGuard<'static, Corpus<'static>> {
    static CORPORA: [OnceLock<Mutex<Corpus<'static>>>; Mode::ALL.len()] = [const { OnceLock::new() }; Mode::ALL.len()];
    let corpus = CORPORA[row(mode)].get_or_init(|| {
        let terrain: &Terrain = Box::leak(Box::new(Terrain::new()));
        Mutex::new(Corpus::new(terrain, EXECUTABLE, &folder(mode.word), mode))
    });
    corpus.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The row of a mode among all.
fn row(mode: Mode) -> usize {
    Mode::ALL.iter().position(|row| *row == mode).unwrap()
}

/// A folder of this process, since a proxy serves any manifest in it. Folders of ended processes are removed.
fn folder(name: &str) -> PathBuf {
    let all = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cases");
    for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
        if !Path::new("/proc").join(entry.file_name()).exists() {
            // another process may remove it at the same time
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    all.join(std::process::id().to_string()).join(name)
}

/// A module of tests for each row of the modes, and a test that none is missing.
macro_rules! every_mode {
    ($($(#[$condition:meta])? $name:ident: $mode:expr),+ $(,)?) => {
        const TRIED: &[Mode] = &[$($mode),+];

        $(mod $name {
            use super::*;

            #[test]
            $(#[$condition])?
            fn real_connections_meet_what_each_case_wants() {
                try_all(&mut corpus($mode), "cases", cases_of($mode), first_planned($mode));
            }

            #[test]
            $(#[$condition])?
            fn real_connections_meet_what_is_decided_in_any_cluster() {
                try_all(&mut corpus($mode), "clusters", clusters(), None);
            }
        })+
    };
}

every_mode! {
    iptables: Mode::IPTABLES,
    iptables_legacy: Mode::IPTABLES_LEGACY,
    #[ignore = "needs IPVS: runs in virtual machines"]
    ipvs: Mode::IPVS,
    nftables: Mode::NFTABLES,
    userspace: Mode::USERSPACE,
    userspace_bind: Mode::USERSPACE_BIND,
}

/// The way without netfilter works where a process has no rights but those over a network namespace of its own.
#[test]
fn in_an_unprivileged_user_namespace_way_bind_meets_what_each_case_wants() {
    let output = Command::new("setpriv")
        // Without CAP_SETFCAP no process may map user 0 (user_namespaces(7)).
        .args(["--bounding-set=-all,+setfcap", "--inh-caps=-all,+setfcap", "--no-new-privs", "--"])
        .args(["unshare", "--user", "--map-root-user", "--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "userspace_bind::real_connections_meet_what_each_case_wants"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn every_mode_is_tried() {
    assert_eq!(TRIED, Mode::ALL);
}

/// The model is right about the mode, whichever proxy writes the rules. It takes longest: its name makes it begin early.
#[test]
fn all_that_is_decided_of_iptables_is_what_upstream_does() {
    what_is_decided_is_what_upstream_does(Mode::IPTABLES, &[]);
}

#[test]
#[ignore = "needs IPVS, and hours: runs by its name in virtual machines"]
fn all_that_is_decided_of_ipvs_is_what_upstream_does() {
    what_is_decided_is_what_upstream_does(Mode::IPVS, &DIFFERS_IN_IPVS);
}

fn what_is_decided_is_what_upstream_does(mode: Mode, differs: &[(&str, &str)]) {
    kubernetes::build();
    let (terrain, upstream) = (Terrain::new(), kubernetes::upstream());
    let mut corpus = Corpus::of_upstream(&terrain, &upstream, &folder("upstream"), mode);
    let known: Vec<&str> = DIFFERS.iter().copied().chain(differs.iter().map(|(part, _)| *part)).collect();
    let is_same = |situation: &Situation| !known.iter().any(|part| situation.name.contains(part));
    let cases = cases().into_iter().filter(is_same).collect();
    // Upstream's executable has no `plan`.
    try_all(&mut corpus, "cases of upstream", cases, None);
}

fn cases() -> Vec<Situation> {
    Case::all().into_iter().map(of_case).collect()
}

fn cases_of(mode: Mode) -> Vec<Situation> {
    let is_run =
        |case: &Situation| !mode.profile.listens || LEFT_OUT_OF_LISTENING.iter().all(|(name, _)| *name != case.name);
    cases().into_iter().filter(is_run).collect()
}

/// The number of the first case that is planned in a mode, below [`PLANNED`]. `None` in mode userspace: its objects are
/// in the process that runs, another one can't read them, and `plan` fails with a message.
fn first_planned(mode: Mode) -> Option<usize> {
    (mode.name != USERSPACE).then(|| row(mode) % PLANNED)
}

fn clusters() -> Vec<Situation> {
    SEEDS.flat_map(moments).collect()
}

/// A cluster at first, and after a few changes.
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
    notices(
        &mut corpus(Mode::NFTABLES),
        right,
        &[
            ("external-local-node-port", Profile { short_circuit: false, ..right }),
            ("external-local-load-balancer", Profile { masquerades_host_on_local: false, ..right }),
            ("source-ranges-no-endpoints", Profile { filters_sources_before_reject: false, ..right }),
        ],
    );
}

#[test]
fn a_decision_that_is_not_what_the_rules_of_iptables_do_is_noticed() {
    let right = Profile::IPTABLES;
    notices(
        &mut corpus(Mode::IPTABLES),
        right,
        &[
            ("external-local-node-port", Profile { short_circuit: false, ..right }),
            (
                "external-local-no-endpoints",
                Profile { rejects_host_to_external: true, refuses_by_hook: false, ..right },
            ),
            ("source-ranges-no-endpoints", Profile { filters_sources_before_reject: true, ..right }),
            ("node-port-localhost", Profile { serves_localhost: false, ..right }),
            ("cluster-ip", Profile { rejects_unknown_ports: true, refuses_by_hook: false, ..right }),
        ],
    );
}

/// Each of these cases fails with a wrong profile.
fn notices(corpus: &mut Corpus<'_>, right: Profile, wrong: &[(&str, Profile)]) {
    for (name, profile) in wrong {
        let find = || of_case(Case::all().into_iter().find(|case| case.name == *name).unwrap());
        assert_eq!(corpus.try_one(find()).faults, [""; 0], "{name}");
        corpus.set_profile(*profile);
        let findings = corpus.try_one(find());
        corpus.set_profile(right);
        assert!(!findings.faults.is_empty(), "{name}: {} connections met a wrong decision", findings.connections);
    }
}

/// Runs the situations one after another; prints the time, and panics with all failures. After that with the number
/// `planned` and every [`PLANNED`]th behind it a plan is made, too; after each one if they are selected by name.
fn try_all(corpus: &mut Corpus<'_>, what: &str, mut situations: Vec<Situation>, planned: Option<usize>) {
    let wanted = std::env::var("FERRY_CASES").ok();
    let fits =
        |name: &str, part: &str| part.strip_prefix('=').map_or_else(|| name.contains(part), |whole| name == whole);
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|parts| parts.split(',').any(|part| fits(name, part)));
    situations.retain(|situation| is_wanted(&situation.name));
    // one proxy for all situations with the same configuration
    situations.sort_by(|one, other| (&one.config, &one.name).cmp(&(&other.config, &other.name)));
    let (start, number) = (Instant::now(), situations.len());
    let mut all = SituationResult::default();
    for (done, situation) in situations.into_iter().enumerate() {
        if done % PROGRESS == 0 {
            println!("{what}: {done} of {number} in {:.0?}", start.elapsed());
        }
        let (name, begun) = (situation.name.clone(), Instant::now());
        let is_planned = planned.is_some_and(|first| wanted.is_some() || done % PLANNED == first);
        let tried = catch_unwind(AssertUnwindSafe(|| {
            let mut findings = corpus.try_one(situation);
            let changes = if is_planned { corpus.planned_changes() } else { None };
            findings.faults.extend(changes.map(|text| format!("{name}, {text}")));
            findings
        }));
        let SituationResult { connections, faults } = tried.unwrap_or_else(|panic| {
            corpus.end_proxy();
            let text = panic.downcast_ref::<String>().map_or("it panicked", String::as_str);
            SituationResult { connections: 0, faults: vec![format!("{name}: {text}")] }
        });
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
