//! Changes of the configuration of a running proxy while clients connect: the mode, other settings, and files that are invalid.

use std::time::{Duration, Instant};

use ferry_lab::objects::{at_cluster_ip, at_node_port};
use ferry_lab::probe::Hammer;
use ferry_lab::proxy::{Config, IPTABLES, NFTABLES};
use ferry_lab::{Family, Lab, Manifests, Outcome, Place, Protocol, Service, Stage};

use crate::support::{alone, fresh};

/// Below TCP's retransmission timeout of 1 s, so that a lost packet is detected.
const NO_RETRY: Duration = Duration::from_millis(900);
/// Changes of mode, and the rounds of other changes.
const CHANGES: usize = 20;
const SWAPS: usize = 100;
/// The pause between two swaps: many come before the proxy has started with one.
const PAUSE: Duration = Duration::from_millis(150);

fn manifests() -> Manifests {
    Manifests::new().with(Service::new("busy", 46).node_port(30046), &[Place::PodA, Place::Far])
}

fn hammers(stage: &Stage<'_>) -> Vec<Hammer> {
    let of = |family| {
        let client = |place| stage.lab.from(place).patience(NO_RETRY);
        [
            client(Place::PodB).hammer(Protocol::Tcp, at_cluster_ip(family, 46)),
            client(Place::Client).hammer(Protocol::Tcp, at_node_port(family, 30046)),
        ]
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

fn assert_unharmed(what: &str, hammers: Vec<Hammer>) {
    let outcomes: Vec<_> = hammers.into_iter().flat_map(Hammer::stop).collect();
    let is_answered = |outcome: &Outcome| matches!(outcome, Outcome::Answered(_));
    let failed: Vec<_> = outcomes.iter().filter(|(_, outcome)| !is_answered(outcome)).collect();
    println!("{what}: {} connections, {} failed", outcomes.len(), failed.len());
    assert!(outcomes.len() > 100 && failed.is_empty(), "{failed:?}");
}

/// The number of runs so far.
fn runs(stage: &Stage<'_>) -> usize {
    stage.proxy.log().matches("Starting kube-proxy").count()
}

#[test]
fn changes_of_mode_in_the_running_process_refuse_nothing() {
    // In a lab of its own: mode iptables leaves the tables of its tool.
    let (_turn, lab) = (alone(), Lab::new());
    let mut stage = fresh(&lab, "modes-in-one-process", &manifests());
    let (hammers, begun) = (hammers(&stage), Instant::now());
    for change in 0..CHANGES {
        let mode = if change % 2 == 0 { IPTABLES } else { NFTABLES };
        let (before, removed) = (runs(&stage), stage.proxy.log().matches("Removed rules of an earlier run").count());
        stage.reconfigure(&Config { mode, ..Config::default() });
        stage.proxy.wait_for("a run in the new mode", |proxy| {
            proxy.log().matches("Starting kube-proxy").count() > before
                && proxy.log().matches("Removed rules of an earlier run").count() >= removed + 2
        });
    }
    println!("{CHANGES} changes of mode in {:?}", begun.elapsed());
    assert_unharmed("changes of mode", hammers);
    assert_eq!(runs(&stage), CHANGES + 1, "in one process");
}

#[test]
fn swapped_configurations_fail_no_connection_and_the_last_one_runs() {
    let (_turn, lab) = (alone(), Lab::new());
    let mut stage = fresh(&lab, "swapped-configurations", &manifests());
    let (hammers, before) = (hammers(&stage), runs(&stage));
    for swap in 0..SWAPS {
        let more = if swap % 5 == 4 { "mode: [".to_owned() } else { format!("configSyncPeriod: {}s", 900 + swap) };
        stage.reconfigure(&Config::with(&more));
        std::thread::sleep(PAUSE);
    }
    stage.reconfigure(&Config::with("configSyncPeriod: 777s"));
    stage
        .proxy
        .wait_for("the last configuration", |proxy| proxy.log().contains("changed=\"configSyncPeriod: 12m57s\""));
    stage.proxy.wait_until_synced(&Family::ALL);
    println!("{SWAPS} swaps led to {} runs", runs(&stage) - before);
    assert_unharmed("swaps of the configuration", hammers);
}
