//! Certificates, outages and restarts of servers.

use std::time::{Duration, Instant};

use ferry_api::object::Kind;
use ferry_client as client;
use ferry_kube_proxy::source::api::{KINDS, SourceTiming};
use ferry_lab::api::{ApiServerOptions, Authority, FaultAction, FaultRule, RecordedRequest, RequestForm, Validity};
use ferry_lab::patience::slowly;

use crate::support::{Cluster, Follower, How, LISTED, SOON, quick};

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
        let mut cluster = Cluster::with(ApiServerOptions { tls: Some(good.clone()), ..ApiServerOptions::secure() });
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
        follower.until("lines", |follower| follower.lines(&["INFO", "succeed again"]).len() == 4);
    }
}

fn a_server_that_returns_is_found_soon() {
    let mut cluster = Cluster::new();
    // production times
    let times = How { timing: SourceTiming::default(), client: client::TimeLimits::default(), ..How::default() };
    let mut follower = cluster.follow_by(times);
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
    assert!(start.elapsed() < slowly(SOON), "{:?}\n{}", start.elapsed(), follower.log());
    assert_eq!(follower.effects, effects + 4);
    assert_eq!(cluster.asked(Kind::Service, RequestForm::StreamingList).len(), 1, "it goes on where it was");
    follower.until("lines", |follower| follower.lines(&["INFO", "succeed again"]).len() == 4);
}

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

fn no_fault_is_a_busy_loop_and_every_one_passes() {
    let pause = Duration::from_millis(20);
    let timing = SourceTiming {
        backoff: pause,
        floor: pause,
        silence: Duration::from_millis(200),
        list_silence: Duration::from_millis(200),
        ..quick()
    };
    let faults = [
        FaultAction::status(500),
        FaultAction::status(503),
        FaultAction::status(403),
        FaultAction::status(410),
        FaultAction::ErrorEvent { code: 410, after: 0 },
        FaultAction::ErrorEvent { code: 500, after: 0 },
        FaultAction::CutHead { bytes: 9 },
        FaultAction::CutAfter { bytes: 0 },
        FaultAction::ResetAfter { bytes: 10 },
        FaultAction::EndAfter { bytes: 0 },
        FaultAction::EndAfter { bytes: 10 },
        FaultAction::Silence,
        FaultAction::ContentType("application/yaml".to_owned()),
        FaultAction::Raw(vec![0xff; 1000]),
        FaultAction::Raw(b"<html>".to_vec()),
        FaultAction::BrokenFrame { after: 0 },
        FaultAction::EndlessPages { items: 0 },
    ];
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(timing);
    follower.until_equal(&cluster);
    for fault in faults {
        cluster.server.forget_requests();
        cluster.server.script(FaultRule::new(usize::MAX, fault.clone()).kind(Kind::Service));
        cluster.server.cut();
        follower.until("requests", |_| cluster.asked(Kind::Service, RequestForm::Any).len() > 5);
        let asked = cluster.asked(Kind::Service, RequestForm::Any);
        // reads of single malformed objects, by name: those of different objects follow each other
        let (of_all, by_name): (Vec<_>, Vec<_>) = asked.iter().partition(|request| request.namespace.is_empty());
        // the clock of two connections is not exact
        let distant = |first: &RecordedRequest, second: &RecordedRequest| second.when - first.when >= pause * 9 / 10;
        for pair in of_all.windows(2) {
            // pages of one list follow each other
            let is_page = pair[1].parameter("continue").is_some();
            assert!(is_page || distant(pair[0], pair[1]), "{fault:?}: {asked:?}");
        }
        for (index, request) in by_name.iter().enumerate() {
            let again = by_name[index + 1..].iter().find(|next| next.path_and_query == request.path_and_query);
            assert!(again.is_none_or(|again| distant(request, again)), "{fault:?}: {asked:?}");
        }
        cluster.server.clear();
        cluster.service("a");
        cluster.slice("a");
        follower.until_equal(&cluster);
    }
}

/// Many outages, each with one small request per kind instead of a list.
fn an_outage_is_no_reason_for_a_list() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    for round in 1..=5 {
        cluster.server.stop();
        // so many that kinds that wait for their turn miss some
        let attempts = cluster.attempts() + 6;
        follower.until("attempts", |_| cluster.attempts() >= attempts);
        // not what was written last
        cluster.service("a");
        cluster.slice("a");
        cluster.server.resume();
        follower.until_equal(&cluster);
        // what was written while the watch was there is the witness of the next round
        follower.until("watches", |_| cluster.server.watches() == 4);
        cluster.service("b");
        cluster.slice("b");
        follower.until_equal(&cluster);
        for kind in LISTED {
            assert!(cluster.checks(kind) <= round, "{kind}");
        }
    }
    // longer than lists would wait that are to follow
    follower.take_within(Duration::from_millis(300));
    for kind in LISTED {
        assert_eq!(cluster.lists(kind), 1, "{kind}\n{}", follower.log());
        assert!(cluster.checks(kind) > 0, "{kind}\n{:#?}\n{}", cluster.asked(kind, RequestForm::Any), follower.log());
    }
}

/// Also if these objects changed last before the outage.
fn what_changes_during_an_outage_is_no_reason_for_a_list() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    for _ in 0..3 {
        follower.until("watches", |_| cluster.server.watches() == KINDS.len());
        for name in ["a", "b", "c", "last"] {
            cluster.service(name);
            cluster.slice(name);
        }
        follower.until_equal(&cluster);
        cluster.server.stop();
        follower.until("trouble", |follower| !follower.fresh(Kind::Service).connected);
        follower.until("an attempt", |follower| !follower.lines(&["WARN", "refused"]).is_empty());
        cluster.delete(Kind::Service, "last");
        cluster.slice("last");
        cluster.service("b");
        // there is one of this kind
        cluster.service_cidr("range");
        cluster.node();
        // and these were all that changed last
        for name in ["a", "b", "c", "last"] {
            cluster.delete(Kind::EndpointSlice, name);
        }
        cluster.server.resume();
        follower.until_equal(&cluster);
    }
    // Watches end in time for lists that are to follow, and go on where none is.
    follower.until("watches", |_| LISTED.iter().all(|kind| cluster.asked(*kind, RequestForm::Watch).len() >= 3));
    follower.take_within(Duration::from_secs(2));
    for kind in LISTED {
        assert_eq!(cluster.lists(kind), 1, "{kind}\n{}", follower.log());
    }
}

/// A restarted server rejects everything at first, and its watch caches are empty: one kind finds out for all.
fn a_server_that_starts_anew_is_asked_by_one_kind() {
    starts_anew(|cluster, follower| {
        cluster.server.stop();
        let attempts = cluster.attempts() + 6;
        follower.until("attempts", |_| cluster.attempts() >= attempts);
        forget_past(cluster);
        cluster.server.resume();
        // refused twice, a check, a watch that is too old, a list
        &[RequestForm::List, RequestForm::List, RequestForm::List, RequestForm::Watch, RequestForm::StreamingList]
    });
}

/// The same without a failed attempt to connect, as behind a load balancer: a server listens before it serves.
fn a_server_that_starts_anew_unseen_is_asked_by_one_kind() {
    starts_anew(|cluster, _| {
        cluster.server.cut();
        forget_past(cluster);
        // a watch is refused, then a check, which shows that the server is there; a watch that is too old, a list
        &[RequestForm::Watch, RequestForm::List, RequestForm::List, RequestForm::Watch, RequestForm::StreamingList]
    });
}

/// Empties the server's watch cache, and rejects the next two requests.
fn forget_past(cluster: &mut Cluster) {
    cluster.service("a");
    cluster.slice("a");
    cluster.node();
    cluster.server.compact();
    cluster.server.forget_requests();
    cluster.server.script(FaultRule::new(2, FaultAction::status(403)));
}

/// Restarts the server in this way, three times, and expects these requests for Services, and a list of each other kind.
fn starts_anew(mut restart: impl FnMut(&mut Cluster, &mut Follower) -> &'static [RequestForm]) {
    let mut cluster = Cluster::new();
    // So that there is time for changes before the first attempt, and for a version to be found too old.
    let SourceTiming { backoff, courtesy, verdict, .. } = SourceTiming::default();
    let timing = SourceTiming { backoff, courtesy, verdict, ..quick() };
    let mut follower = cluster.follow(timing);
    follower.until_equal(&cluster);
    for _ in 0..3 {
        // the last change, which stays as it is
        cluster.service("b");
        follower.until_equal(&cluster);
        let wanted = restart(&mut cluster, &mut follower);
        follower.until_equal(&cluster);
        follower.until("watches", |_| cluster.server.watches() == KINDS.len());
        let forms = |kind| cluster.asked(kind, RequestForm::Any).iter().map(|seen| seen.form).collect::<Vec<_>>();
        for kind in [Kind::Node, Kind::EndpointSlice, Kind::ServiceCidr] {
            assert_eq!(forms(kind), [RequestForm::StreamingList], "{kind}\n{}", follower.log());
        }
        assert_eq!(forms(Kind::Service), wanted, "{}", follower.log());
    }
}

/// A closed connection alone causes neither a check nor a list.
fn an_interruption_costs_a_watch_of_each_kind() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    for _ in 0..3 {
        cluster.server.forget_requests();
        cluster.server.cut();
        cluster.service("a");
        cluster.slice("a");
        follower.until_equal(&cluster);
        follower.until("watches", |_| cluster.server.watches() == KINDS.len());
        for kind in KINDS {
            let forms: Vec<_> = cluster.asked(kind, RequestForm::Any).iter().map(|seen| seen.form).collect();
            assert_eq!(forms, [RequestForm::Watch], "{kind}\n{}", follower.log());
        }
    }
}

/// A kind waits for its turn up to a bound.
fn a_kind_that_is_refused_alone_holds_up_no_other() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    for kind in KINDS {
        cluster.server.stop();
        let attempts = cluster.attempts() + 6;
        follower.until("attempts", |_| cluster.attempts() >= attempts);
        cluster.server.script(FaultRule::new(usize::MAX, FaultAction::status(403)).kind(kind));
        cluster.server.resume();
        follower.until("watches", |_| cluster.server.watches() == KINDS.len() - 1);
        cluster.server.clear();
        follower.until("watches", |_| cluster.server.watches() == KINDS.len());
        cluster.service("a");
        cluster.slice("a");
        follower.until_equal(&cluster);
    }
}

/// One of several servers may lag behind the previous one.
fn a_server_that_lags_is_waited_for() {
    let mut cluster = Cluster::new();
    // so that no check is due before the watch
    let timing = SourceTiming { lag_millis: 5000..6000, lag_check_millis: 500..600, ..quick() };
    let mut follower = cluster.follow(timing);
    follower.until_equal(&cluster);
    let lags = FaultAction::Status {
        code: 504,
        retry_after: None,
        body: Some("Too large resource version: 1009, current: 1007".to_owned()),
    };
    for kind in LISTED {
        cluster.server.script(FaultRule::new(1, lags.clone()).kind(kind).form(RequestForm::List));
    }
    cluster.server.stop();
    follower.until("trouble", |follower| LISTED.iter().all(|kind| !follower.fresh(*kind).connected));
    follower.until("an attempt", |follower| !follower.lines(&["WARN", "refused"]).is_empty());
    cluster.server.resume();
    // the watch goes on meanwhile
    follower.until("watches", |_| cluster.server.watches() == KINDS.len());
    cluster.service("a");
    follower.until_equal(&cluster);
    follower.until("checks", |_| LISTED.iter().all(|kind| cluster.checks(*kind) >= 2));
    follower.until("watches", |_| LISTED.iter().all(|kind| cluster.asked(*kind, RequestForm::Watch).len() >= 2));
    for kind in LISTED {
        assert_eq!(cluster.lists(kind), 1, "{kind}\n{}", follower.log());
    }
}

/// A watch from a version of the server's lost future is silent until the server has reached it again, and lost deletions are
/// never delivered.
fn a_store_that_goes_back_is_noticed() {
    // while it is behind, and after it has overtaken
    for writes in [0, 1, 8, 50] {
        let mut cluster = Cluster::new();
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        let version = cluster.server.version();
        for number in 0..10 {
            cluster.service(&format!("lost{number}"));
            cluster.slice(&format!("lost{number}"));
        }
        follower.until_equal(&cluster);
        let lost: Vec<String> = (0..10).map(|number| format!("lost{number}")).collect();
        cluster.restore(version, &lost.iter().map(String::as_str).collect::<Vec<_>>());
        follower.until("trouble", |follower| follower.lines(&["WARN"]).len() >= 4);
        for _ in 0..writes {
            cluster.service("a");
            cluster.slice("b");
        }
        cluster.server.resume();
        follower.until_equal(&cluster);
        cluster.service("b");
        follower.until_equal(&cluster);
    }
}

over_both! {
    a_refused_certificate_is_said_and_tried_for_ever,
    a_server_that_returns_is_found_soon,
    a_server_that_is_not_there_yet_is_waited_for,
    no_fault_is_a_busy_loop_and_every_one_passes,
    an_outage_is_no_reason_for_a_list,
    what_changes_during_an_outage_is_no_reason_for_a_list,
    a_server_that_starts_anew_is_asked_by_one_kind,
    a_server_that_starts_anew_unseen_is_asked_by_one_kind,
    an_interruption_costs_a_watch_of_each_kind,
    a_kind_that_is_refused_alone_holds_up_no_other,
    a_server_that_lags_is_waited_for,
    a_store_that_goes_back_is_noticed,
}
