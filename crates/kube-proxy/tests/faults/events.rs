//! Servers that reject Events, or fail temporarily. Services are followed all the same.

use std::time::{Duration, Instant};

use ferry_api::object::{Kind, ObjectName};
use ferry_kube_proxy::events::{self, KubeEvent, Level, Regarding};
use ferry_lab::api::{FaultAction, FaultRule, RecordedRequest, RequestForm, Welcome};
use serde_json::Value;

use crate::support::{Cluster, Follower, How, quick, quick_events};

fn rule(times: usize, action: FaultAction) -> FaultRule {
    FaultRule { form: RequestForm::Event, ..FaultRule::new(times, action) }
}

fn event(service: &str, note: &str) -> KubeEvent {
    let regarding = Regarding::Service(ObjectName::new("demo", service), None);
    KubeEvent::new(regarding, Level::Warning, "FrontendConflict", "Serve", note)
}

/// The requests about Events.
fn asked(cluster: &Cluster) -> Vec<RecordedRequest> {
    cluster.server.requests().into_iter().filter(|seen| seen.form == RequestForm::Event).collect()
}

/// Notes of the Events that were written, with their counts.
fn written(cluster: &Cluster) -> Vec<(String, u64)> {
    let note = |event: &Value| event.get("note").and_then(Value::as_str).unwrap_or_default().to_owned();
    let count = |event: &Value| event.pointer("/series/count").and_then(Value::as_u64).unwrap_or(1);
    cluster.server.events().iter().map(|event| (note(event), count(event))).collect()
}

#[track_caller]
fn until_written(follower: &mut Follower, cluster: &Cluster, wanted: &[(&str, u64)]) {
    let wanted: Vec<_> = wanted.iter().map(|(note, count)| ((*note).to_owned(), *count)).collect();
    follower.until(&format!("{wanted:?}"), |_| written(cluster) == wanted);
}

/// Asserts that a change is followed.
fn goes_on(follower: &mut Follower, cluster: &mut Cluster) {
    cluster.service("a");
    cluster.slice("a");
    follower.until_equal(cluster);
}

fn repeats_become_a_series_that_begins_anew_where_the_server_has_forgotten_it() {
    let cluster = Cluster::new();
    let timing = events::EventTiming { silence: Duration::from_millis(300), ..quick_events() };
    let mut follower = cluster.follow_by(How { events: timing, ..How::default() });
    follower.recorder.record(event("a", "one"));
    until_written(&mut follower, &cluster, &[("one", 1)]);
    cluster.server.forget_events();
    for _ in 0..10 {
        follower.recorder.record(event("a", "one"));
    }
    // two at once, and the rest at the end
    until_written(&mut follower, &cluster, &[("one", 11)]);
    let asked: Vec<_> = asked(&cluster).into_iter().map(|seen| seen.method).collect();
    assert_eq!(asked, ["POST", "PATCH", "POST", "PATCH"]);
    follower.recorder.record(event("a", "one"));
    until_written(&mut follower, &cluster, &[("one", 11), ("one", 1)]);
    assert_eq!(follower.log(), "");
}

fn whatever_passes_is_tried_again() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    let faults = [
        FaultAction::status(500),
        FaultAction::status(503),
        FaultAction::status(429),
        FaultAction::CutHead { bytes: 0 },
        FaultAction::CutHead { bytes: 20 },
        FaultAction::Status { code: 502, retry_after: None, body: Some("no backend".to_owned()) },
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        cluster.server.forget_requests();
        cluster.server.forget_events();
        cluster.server.script(rule(3, fault.clone()));
        let note = format!("{number}");
        follower.recorder.record(event(&note, &note));
        until_written(&mut follower, &cluster, &[(&note, 1)]);
        goes_on(&mut follower, &mut cluster);
        // The server sees a request before it stores the Event: what it forgets next includes the last one only when that is answered.
        let succeeded = |follower: &Follower| follower.lines(&["INFO", "Writing Events succeeds again"]).len();
        follower.until("an end", |follower| succeeded(follower) == number + 1);
        let asked = asked(&cluster);
        assert_eq!(asked.len(), 4, "{fault:?}");
        for pair in asked.windows(2) {
            assert!(pair[1].when - pair[0].when >= Duration::from_millis(18), "{fault:?}: {pair:?}");
        }
    }
    assert_eq!(follower.lines(&["INFO", "retrying"]).len(), 6, "{}", follower.log());
    assert_eq!(follower.lines(&["WARN"]).len(), 0, "{}", follower.log());
}

fn the_wait_that_a_server_asks_for_is_kept() {
    for action in [
        FaultAction::Throttle { header: Some(1), details: None },
        FaultAction::Throttle { header: None, details: Some(1) },
    ] {
        let cluster = Cluster::new();
        let mut follower = cluster.follow(quick());
        cluster.server.script(rule(1, action.clone()));
        follower.recorder.record(event("a", "a"));
        follower.recorder.record(event("b", "b"));
        follower.until("both", |_| written(&cluster).len() == 2);
        let asked = asked(&cluster);
        assert_eq!(asked.len(), 3);
        assert!(asked[1].when - asked[0].when >= Duration::from_secs(1), "{action:?}: {asked:?}");
    }
}

fn a_refusal_is_said_once_and_not_asked_again() {
    let mut cluster = Cluster::new();
    cluster.server.script(rule(usize::MAX, FaultAction::status(403)));
    let mut follower = cluster.follow(quick());
    for number in 0..5 {
        follower.recorder.record(event(&format!("s{number}"), "note"));
    }
    follower.until("requests", |_| asked(&cluster).len() == 5);
    goes_on(&mut follower, &mut cluster);
    let words = ["WARN", "Service demo/s0", "FrontendConflict", "403 Forbidden", "cannot create resource"];
    follower.until("a line", |follower| follower.lines(&words).len() == 1);
    assert_eq!(follower.log().lines().count(), 1, "{}", follower.log());
    cluster.server.clear();
    cluster.server.script(rule(1, FaultAction::status(422)));
    follower.recorder.record(event("s6", "note"));
    follower.recorder.record(event("s7", "fine"));
    until_written(&mut follower, &cluster, &[("fine", 1)]);
    assert_eq!(follower.lines(&["WARN", "422 Invalid"]).len(), 1, "{}", follower.log());
    assert_eq!(asked(&cluster).len(), 7);
}

fn what_is_tried_too_often_is_lost_and_said() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    cluster.server.script(rule(usize::MAX, FaultAction::status(500)));
    for name in ["a", "b", "c"] {
        follower.recorder.record(event(name, name));
    }
    follower.until("a word", |follower| !follower.lines(&["WARN", "Events were lost"]).is_empty());
    goes_on(&mut follower, &mut cluster);
    follower.until("silence", |_| asked(&cluster).len() == 3 * 12);
    cluster.server.clear();
    follower.recorder.record(event("d", "d"));
    until_written(&mut follower, &cluster, &[("d", 1)]);
    assert_eq!(asked(&cluster).len(), 3 * 12 + 1);
}

fn a_server_that_is_away_gets_them_later() {
    let mut cluster = Cluster::new();
    let timing = events::EventTiming { pause: Duration::from_millis(100), ..events::EventTiming::default() };
    let mut follower = cluster.follow_by(How { events: timing, ..How::default() });
    follower.until_equal(&cluster);
    cluster.server.stop();
    for name in ["a", "b", "c"] {
        follower.recorder.record(event(name, name));
    }
    follower.until("trouble", |follower| follower.lines(&["INFO", "retrying"]).len() == 1);
    follower.take_within(Duration::from_millis(300));
    cluster.server.resume();
    goes_on(&mut follower, &mut cluster);
    until_written(&mut follower, &cluster, &[("a", 1), ("b", 1), ("c", 1)]);
    // a request whose connection is closed before the response
    cluster.server.cut();
    cluster.server.welcome(2, Welcome::Close);
    follower.recorder.record(event("d", "d"));
    follower.until("the last", |_| written(&cluster).len() == 4);
    goes_on(&mut follower, &mut cluster);
}

fn a_server_that_says_nothing_holds_up_nobody() {
    let mut cluster = Cluster::new();
    let client = ferry_client::TimeLimits {
        connect: Duration::from_millis(200),
        headers: Duration::from_millis(200),
        ..Default::default()
    };
    cluster.server.script(rule(2, FaultAction::NoAnswer));
    let mut follower = cluster.follow_by(How { client, ..How::default() });
    follower.recorder.record(event("a", "a"));
    goes_on(&mut follower, &mut cluster);
    cluster.delete(Kind::EndpointSlice, "a");
    follower.until_equal(&cluster);
    until_written(&mut follower, &cluster, &[("a", 1)]);
}

fn a_storm_is_bounded_and_nobody_waits() {
    let mut cluster = Cluster::new();
    cluster.server.script(rule(usize::MAX, FaultAction::Delay(Duration::from_millis(5))));
    let mut follower = cluster.follow(quick());
    let begun = Instant::now();
    for number in 0..20_000 {
        follower.recorder.record(event(&format!("s{}", number % 10), &format!("note {number}")));
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    goes_on(&mut follower, &mut cluster);
    follower.until("a word", |follower| !follower.lines(&["WARN", "Events were lost", "too many at once"]).is_empty());
    // The queue may still be full; a repeated event is a series.
    follower.until("the last", |follower| {
        follower.recorder.record(event("last", "last"));
        written(&cluster).iter().any(|(note, _)| note == "last")
    });
    let count = written(&cluster).len();
    assert!(count <= 10 * 25 + 1, "{count}");
}

over_both! {
    repeats_become_a_series_that_begins_anew_where_the_server_has_forgotten_it,
    whatever_passes_is_tried_again,
    the_wait_that_a_server_asks_for_is_kept,
    a_refusal_is_said_once_and_not_asked_again,
    what_is_tried_too_often_is_lost_and_said,
    a_server_that_is_away_gets_them_later,
    a_server_that_says_nothing_holds_up_nobody,
    a_storm_is_bounded_and_nobody_waits,
}
