//! Restarts of the process.

use std::thread::sleep;
use std::time::{Duration, Instant};

use ferry_lab::nft::{self, Ruleset};
use ferry_lab::objects::{at_cluster_ip, at_node_port};
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Checks, Family, Host, Lab, LabMachine, Manifests, Protocol, SeenSource, Stage, TestService};

use crate::support::{EXECUTABLE, alone, folder, fresh, run_to_end, stage};

const ALL_PODS: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];

/// A service of each kind; the number determines the number of endpoints of some.
fn assorted(number: usize) -> Manifests {
    let pods = ALL_PODS.get(..1 + number % 3).unwrap_or_default();
    let mut manifests = Manifests::new()
        .with(TestService::new("plain", 60).protocols(&Protocol::ALL).node_port(30060), pods)
        .with(TestService::new("edge", 61).node_port(30061).load_balancer(161).external_local(), &ALL_PODS)
        .with(TestService::new("inner", 62).internal_local(), pods)
        .with(TestService::new("sticky", 63).only(Family::V4).node_port(30063).affinity(600), pods)
        .with(
            TestService::new("ranges", 64).load_balancer(164).source_ranges(&["203.0.113.0/24", "fd00:cc::/64"]),
            pods,
        )
        .without_endpoints(TestService::new("empty", 65).external_ip(65));
    for other in 0..number {
        let service = TestService::new(&format!("other-{other}"), 400 + u16::try_from(other).unwrap_or_default());
        manifests = manifests.with(service, pods);
    }
    manifests
}

#[test]
fn a_restart_with_unchanged_objects_commits_nothing() {
    let mut stage = stage(&assorted(5));
    let (before, generation) = (nft::list(stage.node()), nft::generation(stage.node()));
    for how in ["killed", "terminated"] {
        if how == "terminated" {
            stage.terminate();
            stage.start();
            stage.proxy.wait_until_synced(&Family::ALL);
        } else {
            stage.restart();
        }
        // what it might do a moment later counts too
        sleep(Duration::from_millis(500));
        assert_eq!(nft::generation(stage.node()), generation, "{how}: something was committed\n{}", stage.proxy.log());
        assert_eq!(nft::list(stage.node()), before, "{how}");
    }
}

#[test]
fn the_ruleset_lists_and_loads_back_elsewhere() {
    // nft 1.0.6 can't load the rules of an IPv6 affinity memory: the only sticky service here is of IPv4
    let stage = stage(&assorted(3));
    let text = nft::list(stage.node());
    let elsewhere = Host::new("elsewhere");
    nft::load(&elsewhere, &text);
    let (here, there) = (Ruleset::parse(&text), Ruleset::of(&elsewhere));
    assert!(here == there, "{}", here.difference(&there));
}

#[test]
fn an_affinity_of_both_families_lists() {
    let sticky = TestService::new("sticky", 66).node_port(30066).affinity(600);
    let stage = stage(&Manifests::new().with(sticky, &ALL_PODS));
    for family in Family::ALL {
        assert!(stage.lab.from(LabMachine::Client).tcp(at_cluster_ip(family, 66), 3).all_answered());
    }
    for table in ["ip kube-proxy", "ip6 kube-proxy"] {
        let ruleset = Ruleset::parse(&stage.node().sh("nft", &["list", "ruleset"]));
        assert!(ruleset.names(table).any(|name| name.contains("affinity")), "{table}: {ruleset:?}");
    }
}

#[test]
fn a_terminated_proxy_leaves_its_rules_and_they_serve() {
    let mut stage = stage(&assorted(2));
    let before = nft::list(stage.node());
    let (status, elapsed) = stage.terminate();
    println!("SIGTERM: {status} after {elapsed:?}");
    assert!(elapsed < Duration::from_secs(1), "it took {elapsed:?} to end");
    assert_eq!(nft::list(stage.node()), before);
    let mut checks = Checks::new();
    for family in Family::ALL {
        for at in [at_cluster_ip(family, 60), at_node_port(family, 30060)] {
            let tally = stage.lab.from(LabMachine::Client).tcp(at, 40);
            checks.served(&format!("{at}"), &tally, &["pod-a:8080", "pod-b:8080", "far:8080"], SeenSource::Masqueraded);
        }
    }
}

/// The rules after the deletion of unused sets of source ranges, a second after their rules.
fn settled(stage: &Stage) -> Ruleset {
    let begun = Instant::now();
    loop {
        let text = nft::list(stage.node());
        let mut sets = text.split("set sources-").skip(1).filter_map(|rest| rest.split_whitespace().next());
        let Some(unused) = sets.find(|id| !text.contains(&format!("@sources-{id} "))) else {
            return Ruleset::of(stage.node());
        };
        assert!(begun.elapsed() < Duration::from_secs(10), "sources-{unused} stays\n{}", stage.proxy.log());
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn killed_at_any_moment_it_ends_in_the_right_state() {
    let mut stage = stage(&assorted(0));
    for round in 0_u64..25 {
        // from during its start to after its first commit, while the manifests change under its hands
        stage.kill();
        stage.start();
        for step in 0..3 {
            stage.replace(&assorted(usize::try_from(round * 7 + step * 11).unwrap_or_default() % 40));
            sleep(Duration::from_millis(5 + (round * 13) % 47));
        }
    }
    stage.kill();
    let last = assorted(7);
    stage.replace(&last);
    stage.start();
    stage.wait();
    let here = settled(&stage).essence();

    let other_lab = Lab::new();
    let mut other = fresh(&other_lab, "fresh", &Manifests::new());
    // the marker says which manifests are in force, so both must have counted alike
    while other.written() < stage.written() {
        other.replace(&last);
    }
    other.wait();
    let there = Ruleset::of(other.node()).essence();
    assert!(here == there, "killed and killed again (-), fresh (+):\n{}", here.difference(&there));

    let generation = nft::generation(stage.node());
    stage.restart();
    sleep(Duration::from_millis(300));
    assert_eq!(nft::generation(stage.node()), generation, "a restart found something to do\n{}", stage.proxy.log());
}

#[test]
fn a_restart_over_other_objects_and_another_configuration_leaves_nothing_stale() {
    let mut stage = stage(&assorted(30));
    stage.kill();
    let config =
        ProxyConfig { cluster_cidr: Some("10.244.0.0/24,fd00:10:244::/80".to_owned()), ..ProxyConfig::default() };
    let few = assorted(1);
    stage.reset(&config, &few);
    let here = settled(&stage).essence();
    let written = stage.written();
    drop(stage);

    let lab = Lab::new();
    let mut other = Stage::new(&lab, EXECUTABLE, &folder("narrow"), config, &Manifests::new());
    while other.written() < written {
        other.replace(&few);
    }
    other.wait();
    let there = Ruleset::of(other.node()).essence();
    assert!(here == there, "restarted (-), fresh (+):\n{}", here.difference(&there));
}

#[test]
fn cleanup_removes_what_is_ours_and_nothing_else() {
    let _turn = alone();
    let lab = Lab::new();
    let mut stage = fresh(&lab, "cleanup", &assorted(4));
    nft::load(stage.node(), "table ip strange {\nchain c { type nat hook output priority 0; }\n}\n");
    stage.terminate();
    let (status, log) = run_to_end(&lab, "cleanup-run", &["--cleanup"]);
    assert!(status.success(), "{status}\n{log}");
    let left = Ruleset::of(stage.node());
    assert!(left.objects.keys().all(|(table, _)| table == "ip strange"), "{left:?}");
    assert!(left.objects.contains_key(&("ip strange".to_owned(), "chain c".to_owned())), "{left:?}");
}
