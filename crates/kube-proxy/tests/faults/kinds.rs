//! Particularities of kinds, and their independence.

use ferry_api::object::Kind;
use ferry_kube_proxy::source::api::SourceTiming;
use ferry_lab::api::{ApiServerOptions, FaultAction, FaultRule, RequestForm};

use crate::support::{Cluster, NODE, quick};

fn service_cidrs_may_be_missing_and_come_later() {
    for code in [404, 403] {
        let cluster = Cluster::new();
        cluster.server.script(FaultRule::new(usize::MAX, FaultAction::status(code)).kind(Kind::ServiceCidr));
        let mut follower = cluster.follow(quick());
        follower.until("line", |follower| !follower.log().is_empty());
        // the core waits for them in neither case
        follower.until("lists", |follower| follower.synced.len() >= 4);
        assert!(follower.synced.contains(&Kind::ServiceCidr));
        let lines = follower.log();
        assert_eq!(lines.lines().count(), 1, "{lines}");
        assert!(lines.contains("INFO") && lines.contains("servicecidrs") && lines.contains(&code.to_string()));
        // a server that has just started may answer 403, which is retried soon at first
        follower.until("seldom tries", |_| {
            let asked = cluster.asked(Kind::ServiceCidr, RequestForm::Any);
            asked.windows(2).filter(|pair| pair[1].when - pair[0].when >= quick().optional_retry).count() >= 2
        });
        assert!(follower.have().keys().all(|key| !key.starts_with("ServiceCIDR")));
        cluster.server.clear();
        follower.until_equal(&cluster);
        follower.until("line", |follower| follower.log().lines().count() == 2);
    }
}

fn service_cidrs_that_are_forbidden_for_a_moment_are_there_soon() {
    let mut cluster = Cluster::new();
    let forbidden = FaultRule::new(3, FaultAction::status(403)).kind(Kind::ServiceCidr);
    cluster.server.script(forbidden.clone());
    // production times: a missing kind is retried only after ten minutes
    let mut follower = cluster.follow(SourceTiming::default());
    follower.until_equal(&cluster);
    cluster.server.script(forbidden);
    cluster.server.cut();
    cluster.service_cidr("range");
    follower.until_equal(&cluster);
    // The first rejection is logged, since the core doesn't wait for them; later ones don't discard known objects.
    assert_eq!(follower.lines(&["403"]).len(), 1, "{}", follower.log());
    assert_eq!(follower.lines(&["INFO", "serves this resource now"]).len(), 1, "{}", follower.log());
}

fn service_cidrs_that_go_are_forgotten_and_those_that_are_forbidden_are_kept() {
    for code in [404, 403] {
        let mut cluster = Cluster::new();
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        let known = follower.have().get("ServiceCIDR range").copied();
        cluster.server.script(FaultRule::new(usize::MAX, FaultAction::status(code)).kind(Kind::ServiceCidr));
        cluster.server.cut();
        follower.until("several tries", |_| cluster.asked(Kind::ServiceCidr, RequestForm::Any).len() > 3);
        follower.take_within(quick().floor);
        let have = follower.have().get("ServiceCIDR range").copied();
        assert_eq!(have, if code == 403 { known } else { None });
        cluster.server.clear();
        cluster.service_cidr("range");
        follower.until_equal(&cluster);
    }
}

fn the_node_may_be_missing_go_and_return() {
    let mut cluster = Cluster::empty(ApiServerOptions::secure());
    cluster.other_node("elsewhere");
    cluster.service("a");
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    assert_eq!(follower.synced.iter().filter(|kind| **kind == Kind::Node).count(), 1);
    assert_eq!(follower.lines(&["WARN", NODE]).len(), 1, "{}", follower.log());
    let asked = cluster.asked(Kind::Node, RequestForm::StreamingList);
    assert_eq!(asked[0].parameter("fieldSelector"), Some("metadata.name=here"));
    assert_eq!(asked[0].parameter("labelSelector"), None);
    // it comes
    cluster.node();
    follower.until_equal(&cluster);
    // others don't count
    let events = follower.events;
    cluster.other_node("elsewhere");
    cluster.other_node("nowhere");
    // it goes, and its facts stay
    cluster.delete_node();
    follower.until("line", |follower| follower.lines(&["WARN", NODE]).len() == 2);
    follower.until_equal(&cluster);
    // a list without it changes nothing either
    cluster.server.compact();
    cluster.server.cut();
    follower.until("list", |_| cluster.asked(Kind::Node, RequestForm::StreamingList).len() == 2);
    cluster.service("b");
    follower.until_equal(&cluster);
    let of_nodes = |follower: &crate::support::Follower| follower.lines(&[NODE]).len();
    assert_eq!(of_nodes(&follower), 3, "{}", follower.log());
    // it returns
    cluster.node();
    follower.until_equal(&cluster);
    assert_eq!(of_nodes(&follower), 4, "{}", follower.log());
    assert_eq!(follower.synced.iter().filter(|kind| **kind == Kind::Node).count(), 1);
    assert!(follower.events >= events);
}

fn an_unreadable_object_keeps_its_last_good_state() {
    for streaming_lists in [true, false] {
        let mut cluster = Cluster::with(ApiServerOptions { streaming_lists, ..ApiServerOptions::secure() });
        // one that nothing was known of
        cluster.unreadable_service("odd");
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        assert_eq!(follower.lines(&["ERROR", "Service", "demo/odd"]).len(), 1, "{}", follower.log());
        // in a watch
        cluster.unreadable_service("a");
        cluster.service("b");
        follower.until_equal(&cluster);
        assert_eq!(follower.lines(&["ERROR", "Service", "demo/a"]).len(), 1, "{}", follower.log());
        // the version goes on behind it
        let version = cluster.server.version();
        cluster.unreadable_service("a");
        follower.until("watches", |_| cluster.server.watches() == 4);
        cluster.server.cut();
        cluster.service("c");
        follower.until_equal(&cluster);
        let asked = cluster.asked(Kind::Service, RequestForm::Watch);
        let from: u64 = asked[asked.len() - 1].parameter("resourceVersion").unwrap().parse().unwrap();
        assert!(from >= version, "{from} {version}");
        // in a later list, which delivers the other objects and deletions
        cluster.server.stop();
        cluster.service("b");
        cluster.delete(Kind::Service, "c");
        cluster.server.compact();
        cluster.server.resume();
        follower.until_equal(&cluster);
        assert_eq!(follower.lines(&["ERROR", "demo/a"]).len(), 1, "{}", follower.log());
        assert_eq!(follower.lines(&["ERROR", "demo/odd"]).len(), 1, "{}", follower.log());
        // readable, and not again
        cluster.service("a");
        cluster.service("odd");
        follower.until_equal(&cluster);
        cluster.unreadable_service("a");
        cluster.service("b");
        follower.until_equal(&cluster);
        assert_eq!(follower.lines(&["ERROR", "demo/a"]).len(), 2, "{}", follower.log());
        // it goes as any other
        cluster.delete(Kind::Service, "a");
        follower.until_equal(&cluster);
    }
}

fn an_unreadable_object_without_a_name_costs_nothing_else() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    cluster
        .server
        .script(FaultRule::new(1, FaultAction::BrokenName).kind(Kind::EndpointSlice).form(RequestForm::Watch));
    cluster.server.cut();
    follower.until("watches", |_| cluster.server.watches() == 4);
    // the first one is damaged on its way, and then it comes again
    cluster.slice("a");
    cluster.slice("b");
    cluster.slice("a");
    follower.until_equal(&cluster);
    assert_eq!(follower.lines(&["ERROR", "EndpointSlice"]).len(), 1, "{}", follower.log());
}

fn two_kinds_go_on_while_a_third_is_down() {
    for action in
        [FaultAction::status(500), FaultAction::Silence, FaultAction::CutAfter { bytes: 0 }, FaultAction::NoAnswer]
    {
        let mut cluster = Cluster::new();
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        cluster.server.script(FaultRule::new(usize::MAX, action).kind(Kind::Node));
        cluster.server.cut();
        for _ in 0..5 {
            cluster.service("a");
            cluster.slice("a");
            cluster.delete(Kind::Service, "b");
            cluster.service("b");
            cluster.service_cidr("range");
            follower.until_equal(&cluster);
        }
    }
}

over_both! {
    service_cidrs_may_be_missing_and_come_later,
    service_cidrs_that_are_forbidden_for_a_moment_are_there_soon,
    service_cidrs_that_go_are_forgotten_and_those_that_are_forbidden_are_kept,
    the_node_may_be_missing_go_and_return,
    an_unreadable_object_keeps_its_last_good_state,
    an_unreadable_object_without_a_name_costs_nothing_else,
    two_kinds_go_on_while_a_third_is_down,
}
