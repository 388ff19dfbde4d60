//! Faults specific to HTTP/2: streams that are reset or refused, GOAWAY, silent connections. Faults of any protocol are tested
//! over HTTP/2, too, in the other modules.

use std::collections::BTreeSet;
use std::time::Duration;

use ferry_api::object::Kind;
use ferry_client as client;
use ferry_kube_proxy::source::api::KINDS;
use ferry_lab::api::{ApiServerOptions, FaultAction, FaultRule, RequestForm};

use crate::support::{Cluster, Follower, How, LISTED, quick_client, wait_until};

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

/// Open streams continue on the old connection after a GOAWAY; streams that end meanwhile are opened anew on another one.
#[test]
fn a_server_that_is_leaving_again_and_again_loses_nothing() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow_by(How::default());
    follower.until_equal(&cluster);
    let all = KINDS.len();
    for (round, kind) in (1_u64..).zip(LISTED.into_iter().cycle().take(20)) {
        follower.until("watches", |_| cluster.server.watches() == all);
        // A short watch without news is restarted only after a pause.
        change(&mut cluster);
        follower.until_equal(&cluster);
        let asked = cluster.asked(kind, RequestForm::Watch).len();
        cluster.server.go_away();
        cluster.server.end_watches(kind);
        follower.until("another watch", |_| cluster.asked(kind, RequestForm::Watch).len() > asked);
        assert_eq!(cluster.server.connections(), round + 1, "one for each GOAWAY");
        let last = cluster.asked(kind, RequestForm::Watch).pop().map(|seen| seen.connection);
        assert_eq!(last, Some(round + 1), "what ended goes on over the new one");
        change(&mut cluster);
        follower.until_equal(&cluster);
    }
    let used: BTreeSet<u64> = cluster.server.requests().iter().map(|seen| seen.connection).collect();
    assert_eq!(used.len(), 21, "{used:?}");
    assert_eq!(
        cluster.asked(Kind::Node, RequestForm::Watch).len(),
        0,
        "a watch that hasn't ended stays on the old one"
    );
    assert_listed_once(&cluster, &follower);
    assert!(follower.lines(&["WARN"]).is_empty(), "it is nothing special\n{}", follower.log());
}

/// No watch runs into its silence timeout meanwhile: that takes minutes.
#[test]
fn a_connection_that_falls_silent_is_noticed_by_its_pings() {
    let client =
        client::TimeLimits { ping: Duration::from_millis(150), pong: Duration::from_secs(1), ..quick_client() };
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow_by(How { client, ..How::default() });
    follower.until_equal(&cluster);
    for round in 0..3 {
        cluster.server.freeze();
        change(&mut cluster);
        follower.until_equal(&cluster);
        assert_eq!(cluster.server.connections(), 2 + round);
    }
    assert_listed_once(&cluster, &follower);
}

#[test]
fn streams_that_are_refused_are_asked_for_again_and_no_list_follows() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow_by(How::default());
    follower.until_equal(&cluster);
    cluster.server.script(FaultRule::new(50, FaultAction::RefuseStream).form(RequestForm::Watch));
    cluster.server.cut();
    change(&mut cluster);
    follower.until_equal(&cluster);
    assert_listed_once(&cluster, &follower);
}

#[test]
fn a_server_that_allows_few_streams_serves_all_kinds() {
    for streams in 1..=3 {
        let mut cluster = Cluster::with(ApiServerOptions { streams: Some(streams), ..ApiServerOptions::secure() });
        let mut follower = cluster.follow_by(How::default());
        follower.until_equal(&cluster);
        follower.until("watches", |_| cluster.server.watches() == KINDS.len());
        change(&mut cluster);
        follower.until_equal(&cluster);
        assert_listed_once(&cluster, &follower);
    }
}

/// A list that waits for the core blocks neither PINGs nor, in the end, other kinds.
#[test]
fn a_slow_core_keeps_its_connection() {
    let client =
        client::TimeLimits { ping: Duration::from_millis(100), pong: Duration::from_secs(5), ..quick_client() };
    let mut cluster = Cluster::new();
    for number in 0..2000 {
        cluster.padded_slice(&format!("s{number}"), 2000);
    }
    let mut follower = cluster.follow_by(How { client, ..How::default() });
    for _ in 0..4 {
        // Nothing is taken until pings have come, or what the flow control lets through.
        let heard = cluster.server.heard() + 5;
        wait_until("pings", || cluster.server.heard() >= heard);
        follower.take_one();
    }
    follower.until_equal(&cluster);
    change(&mut cluster);
    follower.until_equal(&cluster);
    assert_eq!(cluster.server.connections(), 1, "{}", follower.log());
    assert_listed_once(&cluster, &follower);
}
