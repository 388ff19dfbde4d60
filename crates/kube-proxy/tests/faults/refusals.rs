//! Servers that reject requests.

use std::time::Duration;

use ferry_api::object::Kind;
use ferry_lab::api::{FaultAction, FaultRule, RequestForm};

use crate::support::{Cluster, quick};

fn the_wait_that_a_server_asks_for_is_kept() {
    let busy = [
        FaultAction::Status { code: 429, retry_after: Some(1), body: None },
        FaultAction::Throttle { header: Some(1), details: None },
        FaultAction::Throttle { header: None, details: Some(1) },
        FaultAction::Status { code: 503, retry_after: Some(1), body: Some("busy".to_owned()) },
    ];
    for action in busy {
        let mut cluster = Cluster::new();
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        cluster.server.script(FaultRule::new(1, action.clone()).kind(Kind::Service).form(RequestForm::Watch));
        cluster.server.cut();
        cluster.service("a");
        cluster.slice("a");
        follower.until_equal(&cluster);
        let asked = cluster.asked(Kind::Service, RequestForm::Watch);
        assert_eq!(asked.len(), 2, "{action:?}");
        assert!(asked[1].when - asked[0].when >= Duration::from_secs(1), "{action:?}");
        assert_eq!(cluster.lists(Kind::Service), 1, "that of the start");
    }
}

fn refused_access_is_said_once_with_all_that_is_needed() {
    for (code, words) in [(401, "Unauthorized"), (403, "services is forbidden: User")] {
        let mut cluster = Cluster::new();
        cluster.server.script(FaultRule::new(usize::MAX, FaultAction::status(code)).kind(Kind::Service));
        let mut follower = cluster.follow(quick());
        follower.until("requests", |_| cluster.asked(Kind::Service, RequestForm::Any).len() > 10);
        follower.until("other kinds", |follower| follower.synced.len() == 3);
        let url = cluster.server.url();
        for verb in ["verb=\"watch\"", "verb=\"list\""] {
            let lines = follower.lines(&["ERROR", verb, "services", &url, words, &code.to_string()]);
            assert_eq!(lines.len(), 1, "{code}\n{}", follower.log());
        }
        assert_eq!(follower.log().lines().count(), 2, "{}", follower.log());
        assert!(!follower.fresh(Kind::Service).connected);
        cluster.server.clear();
        cluster.service("a");
        follower.until_equal(&cluster);
        follower.until("line", |follower| follower.lines(&["INFO", "succeed again"]).len() == 1);
        follower.until("freshness", |follower| {
            follower.fresh(Kind::Service).connected && follower.fresh(Kind::Service).synced
        });
    }
}

fn access_that_is_taken_away_and_given_back_loses_nothing() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    cluster.server.accept_token(Some("another"));
    cluster.server.cut();
    follower.until("refusals", |follower| follower.lines(&["ERROR", "401"]).len() == 4);
    cluster.service("a");
    cluster.slice("b");
    cluster.delete(Kind::EndpointSlice, "c");
    cluster.server.accept_token(Some("let-me-in"));
    follower.until_equal(&cluster);
    assert_eq!(cluster.asked(Kind::Service, RequestForm::StreamingList).len(), 1, "the version still holds");
}

fn text_instead_of_a_status_is_told() {
    let mut cluster = Cluster::new();
    let action = FaultAction::Status { code: 502, retry_after: None, body: Some("no backend\nfor you".to_owned()) };
    cluster.server.script(FaultRule::new(4, action).kind(Kind::Service));
    let mut follower = cluster.follow(quick());
    cluster.service("a");
    follower.until_equal(&cluster);
    let lines = follower.lines(&["WARN", "services", "502: no backend"]);
    assert_eq!(lines.len(), 2, "{}", follower.log());
    assert!(!lines[0].contains("for you"));
}

fn every_refusal_passes() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    for code in [400, 401, 403, 404, 406, 408, 409, 410, 418, 422, 429, 500, 501, 502, 503, 504, 599, 204, 302] {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            cluster.server.script(FaultRule::new(4, FaultAction::status(code)).kind(kind));
        }
        cluster.server.cut();
        cluster.service("a");
        cluster.slice("a");
        cluster.node();
        follower.until_equal(&cluster);
        cluster.server.clear();
    }
}

over_both! {
    the_wait_that_a_server_asks_for_is_kept,
    refused_access_is_said_once_with_all_that_is_needed,
    access_that_is_taken_away_and_given_back_loses_nothing,
    text_instead_of_a_status_is_told,
    every_refusal_passes,
}
