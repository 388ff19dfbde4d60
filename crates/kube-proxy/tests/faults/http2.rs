//! What only HTTP/2 can do: streams that are reset or refused, connections that leave or fall silent. The faults of every
//! protocol are tested over it where they stand.

use std::time::{Duration, Instant};

use ferry_kube_proxy::client;
use ferry_kube_proxy::source::api::KINDS;
use ferry_testkit::api::{Action, Form, Options, Rule};

use crate::support::{Cluster, Follower, How, LISTED, quick_client};

fn change(cluster: &mut Cluster) {
    cluster.node();
    cluster.service_cidr("range");
    cluster.service("a");
    cluster.slice("a");
}

#[track_caller]
fn assert_listed_once(cluster: &Cluster, follower: &Follower) {
    for kind in LISTED {
        assert_eq!(cluster.lists(kind), 1, "{kind}\n{}", follower.log());
    }
}

#[test]
fn all_kinds_share_one_connection() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow_by(How::default());
    follower.until_equal(&cluster);
    change(&mut cluster);
    follower.until_equal(&cluster);
    assert_eq!(cluster.server.connections(), 1);
    let used: Vec<u64> = cluster.server.requests().iter().map(|seen| seen.connection).collect();
    assert!(used.iter().all(|connection| *connection == 1), "{used:?}");
}

#[test]
fn a_server_that_is_leaving_again_and_again_loses_nothing() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow_by(How::default());
    follower.until_equal(&cluster);
    for round in 0..20 {
        cluster.server.go_away();
        // watches that end meanwhile go on over the next connection
        let end = Action::EndAfter { bytes: 1 };
        cluster.server.script(Rule::new(1, end).kind(LISTED[round % 3]).form(Form::Watch));
        change(&mut cluster);
        follower.until_equal(&cluster);
    }
    assert_listed_once(&cluster, &follower);
    assert!(follower.lines(&["WARN"]).is_empty(), "it is nothing special\n{}", follower.log());
}

#[test]
fn a_connection_that_falls_silent_is_noticed_by_its_pings() {
    let client =
        client::Timing { ping: Duration::from_millis(150), pong: Duration::from_millis(150), ..quick_client() };
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow_by(How { client, ..How::default() });
    follower.until_equal(&cluster);
    for _ in 0..3 {
        let silent = Instant::now();
        cluster.server.freeze();
        change(&mut cluster);
        follower.until_equal(&cluster);
        assert!(silent.elapsed() < Duration::from_secs(10), "long before a watch without a byte is given up");
    }
    assert_listed_once(&cluster, &follower);
    assert_eq!(cluster.server.connections(), 4);
}

#[test]
fn streams_that_are_refused_are_asked_for_again_and_no_list_follows() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow_by(How::default());
    follower.until_equal(&cluster);
    cluster.server.script(Rule::new(50, Action::RefuseStream).form(Form::Watch));
    cluster.server.cut();
    change(&mut cluster);
    follower.until_equal(&cluster);
    assert_listed_once(&cluster, &follower);
}

#[test]
fn a_server_that_allows_few_streams_serves_all_kinds() {
    for streams in 1..=3 {
        let mut cluster = Cluster::with(Options { streams: Some(streams), ..Options::secure() });
        let mut follower = cluster.follow_by(How::default());
        follower.until_equal(&cluster);
        follower.until("watches", |_| cluster.server.watches() == KINDS.len());
        change(&mut cluster);
        follower.until_equal(&cluster);
        assert_listed_once(&cluster, &follower);
    }
}

/// A list that the core doesn't take yet holds up neither the pings nor, in the end, anybody.
#[test]
fn a_slow_core_keeps_its_connection() {
    let client =
        client::Timing { ping: Duration::from_millis(100), pong: Duration::from_millis(200), ..quick_client() };
    let mut cluster = Cluster::new();
    for number in 0..2000 {
        cluster.padded_slice(&format!("s{number}"), 2000);
    }
    let mut follower = cluster.follow_by(How { client, ..How::default() });
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(500));
        follower.take_one();
    }
    follower.until_equal(&cluster);
    change(&mut cluster);
    follower.until_equal(&cluster);
    assert_eq!(cluster.server.connections(), 1, "{}", follower.log());
    assert_listed_once(&cluster, &follower);
}
