//! Certificates, and servers that go and come.

use std::time::{Duration, Instant};

use ferry_api::object::Kind;
use ferry_kube_proxy::source::api::Timing;
use ferry_testkit::api::{Action, Authority, Form, Options, Rule, Validity};

use crate::support::{Cluster, How, quick};

#[test]
fn a_refused_certificate_is_said_and_tried_for_ever() {
    let authority = Authority::new("lab");
    let names = ["127.0.0.1", "localhost"];
    let good = authority.server(&names, Validity::Now);
    let bad = [
        (authority.server(&names, Validity::Expired), "expired"),
        (authority.server(&names, Validity::NotYet), "not valid yet"),
        (Authority::new("lab").server(&names, Validity::Now), ""),
        (authority.server(&["elsewhere.example"], Validity::Now), "elsewhere.example"),
    ];
    for (identity, words) in bad {
        let mut cluster = Cluster::with(Options { tls: Some(good.clone()), ..Options::secure() });
        let kubeconfig = cluster.server.kubeconfig_text();
        cluster.server.present(identity);
        let mut follower = cluster.follow_with(&kubeconfig, How::default());
        follower.until("connections", |_| cluster.server.connections() > 20);
        let lines = follower.lines(&["WARN", "certificate", "services", words, &cluster.server.url()]);
        assert_eq!(lines.len(), 1, "{words}\n{}", follower.log());
        assert_eq!(follower.log().lines().count(), 4, "once for each kind\n{}", follower.log());
        assert_eq!(follower.events, 0);
        assert!(cluster.server.requests().is_empty(), "nothing is sent to somebody unknown");
        cluster.server.present(good.clone());
        cluster.service("a");
        follower.until_equal(&cluster);
        follower.until("lines", |follower| follower.lines(&["INFO", "works again"]).len() == 4);
    }
}

#[test]
fn a_server_that_returns_is_found_soon() {
    let mut cluster = Cluster::new();
    // the real times
    let mut follower = cluster.follow(Timing::default());
    follower.until_equal(&cluster);
    let effects = follower.effects;
    cluster.server.stop();
    follower.until("trouble", |follower| follower.lines(&["WARN"]).len() >= 4);
    // long enough for the waits to have grown to their bound
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        follower.take_within(Duration::from_millis(50));
    }
    assert_eq!(follower.effects, effects, "services go on");
    assert!(!follower.fresh(Kind::Service).connected && follower.fresh(Kind::Service).synced);
    cluster.service("a");
    cluster.slice("a");
    cluster.node();
    cluster.service_cidr("range");
    cluster.server.resume();
    let start = Instant::now();
    follower.until_equal(&cluster);
    // Two seconds by design; machines are slow.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}\n{}", start.elapsed(), follower.log());
    assert_eq!(follower.effects, effects + 4);
    assert_eq!(cluster.asked(Kind::Service, Form::StreamingList).len(), 1, "it goes on where it was");
    follower.until("lines", |follower| follower.lines(&["INFO", "works again"]).len() == 4);
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let cluster = Cluster::new();
    cluster.server.stop();
    let mut follower = cluster.follow(quick());
    follower.until("trouble", |follower| follower.lines(&["WARN", "refused"]).len() == 4);
    follower.take_within(Duration::from_millis(200));
    assert_eq!((follower.events, follower.log().lines().count()), (0, 4), "{}", follower.log());
    cluster.server.resume();
    follower.until_equal(&cluster);
}

#[test]
fn no_fault_is_a_busy_loop_and_every_one_passes() {
    let pause = Duration::from_millis(20);
    let timing = Timing {
        backoff: pause,
        floor: pause,
        silence: Duration::from_millis(200),
        list_silence: Duration::from_millis(200),
        ..quick()
    };
    let faults = [
        Action::status(500),
        Action::status(503),
        Action::status(403),
        Action::status(410),
        Action::ErrorEvent { code: 410, after: 0 },
        Action::ErrorEvent { code: 500, after: 0 },
        Action::CutHead { bytes: 9 },
        Action::CutAfter { bytes: 0 },
        Action::ResetAfter { bytes: 10 },
        Action::EndAfter { bytes: 0 },
        Action::EndAfter { bytes: 10 },
        Action::Silence,
        Action::ContentType("application/yaml".to_owned()),
        Action::Raw(vec![0xff; 1000]),
        Action::Raw(b"<html>".to_vec()),
        Action::BrokenFrame { after: 0 },
        Action::EndlessPages { items: 0 },
    ];
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(timing);
    follower.until_equal(&cluster);
    for fault in faults {
        cluster.server.forget_requests();
        cluster.server.script(Rule::new(usize::MAX, fault.clone()).kind(Kind::Service));
        cluster.server.cut();
        follower.until("requests", |_| cluster.asked(Kind::Service, Form::Any).len() > 5);
        let asked = cluster.asked(Kind::Service, Form::Any);
        for pair in asked.windows(2) {
            let (first, second) = (&pair[0], &pair[1]);
            // pages of one list follow each other
            let is_page = second.parameter("continue").is_some();
            // what a server's clock says of two connections is not exact
            assert!(is_page || second.when - first.when >= pause * 9 / 10, "{fault:?}: {asked:?}");
        }
        cluster.server.clear();
        cluster.service("a");
        cluster.slice("a");
        follower.until_equal(&cluster);
    }
}

/// A watch from a version of the server's lost future says nothing until the server has come that far again, and what it
/// lost is never told.
#[test]
fn a_store_that_goes_back_is_noticed() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    let version = cluster.server.version();
    cluster.service("lost");
    cluster.slice("lost");
    follower.until_equal(&cluster);
    cluster.restore(version, &["lost"]);
    follower.until("trouble", |follower| follower.lines(&["WARN"]).len() >= 4);
    cluster.server.resume();
    // some while it is behind, some after it has overtaken
    for _ in 0..8 {
        cluster.service("a");
        cluster.slice("b");
    }
    follower.until_equal(&cluster);
    cluster.service("b");
    follower.until_equal(&cluster);
}
