//! Interrupted, expired and malformed watches.

use std::time::Duration;

use ferry_api::object::Kind;
use ferry_lab::api::{ApiServerOptions, FaultAction, FaultRule, RequestForm};

use crate::support::{Cluster, Follower, quick};

const MS: Duration = Duration::from_millis(1);

/// A generator of numbers; the same seed gives the same.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }
}

fn a_thousand_cuts_at_random_bytes_lose_nothing() {
    const CUTS: usize = 1000;
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    for (kind, seed) in [(Kind::Service, 1), (Kind::EndpointSlice, 2), (Kind::Node, 3), (Kind::ServiceCidr, 4)] {
        let times = if kind == Kind::EndpointSlice { CUTS } else { CUTS / 10 };
        let cut = FaultAction::CutRandom { seed, below: 600 };
        cluster.server.script(FaultRule::new(times, cut).kind(kind).form(RequestForm::Watch));
    }
    cluster.server.cut();
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    // The changes missed by a cut depend on the delay of the next watch, and so on the machine's load.
    let (mut changes, mut watches, mut at_last_watch) = (0, 0, 0);
    while watches <= CUTS {
        for _ in 0..50 {
            cluster.change(numbers.next());
            changes += 1;
            follower.take_within(MS / 4);
        }
        let asked = cluster.asked(Kind::EndpointSlice, RequestForm::Watch).len();
        if asked > watches {
            (watches, at_last_watch) = (asked, changes);
        }
        assert!(changes < at_last_watch + 20_000, "the watches aren't cut any more after {watches}");
    }
    cluster.server.clear();
    // The rules of watches that are open stay with them.
    cluster.server.cut();
    follower.until_equal(&cluster);
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
        // A connection that is lost before its first response may be an outage, which leads to a check.
        assert_eq!(cluster.lists(kind), 1, "{kind}: a cut is no reason for a list");
        assert_eq!(cluster.asked(kind, RequestForm::StreamingList).len(), 1, "{kind}");
    }
    let watches = cluster.asked(Kind::EndpointSlice, RequestForm::Watch).len();
    assert!(watches <= CUTS + 3, "{watches} watches");
    assert!(follower.effects <= changes + 20, "{} effects of {changes} changes", follower.effects);
}

fn storms_of_410_in_both_forms_lose_nothing() {
    for action in [
        FaultAction::status(410),
        FaultAction::ErrorEvent { code: 410, after: 0 },
        FaultAction::ErrorEvent { code: 410, after: 1 },
    ] {
        let mut cluster = Cluster::new();
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        cluster.server.script(FaultRule::new(60, action.clone()).form(RequestForm::Watch));
        // a streaming list that goes on as a watch brings changes, too
        cluster.server.script(
            FaultRule::new(usize::MAX, FaultAction::CutAfter { bytes: 20_000 }).form(RequestForm::StreamingList),
        );
        cluster.server.cut();
        let mut numbers = Numbers(99);
        while cluster.asked(Kind::EndpointSlice, RequestForm::Watch).len() < 12 {
            cluster.change(numbers.next());
            cluster.slice("a");
            follower.take_within(MS);
            assert!(follower.events < 200_000, "{action:?}");
        }
        cluster.server.clear();
        cluster.server.cut();
        follower.until_equal(&cluster);
        let lists = cluster.asked(Kind::EndpointSlice, RequestForm::StreamingList).len();
        let pages = cluster.asked(Kind::EndpointSlice, RequestForm::List).len();
        let watches = cluster.asked(Kind::EndpointSlice, RequestForm::Watch).len();
        assert!(lists + pages <= watches + 2, "{action:?}: {lists} lists, {pages} pages, {watches} watches");
    }
}

fn a_past_that_is_forgotten_leads_to_a_list() {
    for gone_as_status in [false, true] {
        let mut cluster = Cluster::with(ApiServerOptions { gone_as_status, ..ApiServerOptions::secure() });
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        for round in 0..3 {
            cluster.server.stop();
            cluster.slice("a");
            cluster.service("new");
            if round > 0 {
                cluster.delete(Kind::Service, "b");
            }
            cluster.service("b");
            cluster.server.compact();
            cluster.server.resume();
            follower.until_equal(&cluster);
        }
        assert!(cluster.asked(Kind::EndpointSlice, RequestForm::StreamingList).len() >= 4);
    }
}

fn bookmarks_advance_the_version() {
    let cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    // versions of objects that aren't watched
    cluster.server.compact();
    let version = cluster.server.version().to_string();
    follower.until("watches", |_| cluster.server.watches() == 4);
    // A bookmark is no event: only the freshness shows its arrival.
    let contact = |follower: &Follower| follower.fresh(Kind::Service).contact.expect("a list came");
    follower.until("quiet", |follower| contact(follower) > 200 * MS);
    cluster.server.bookmark();
    follower.until("contact", |follower| contact(follower) < 200 * MS);
    cluster.server.cut();
    follower.until("watches", |_| !cluster.asked(Kind::Service, RequestForm::Watch).is_empty());
    let asked = cluster.asked(Kind::Service, RequestForm::Watch);
    assert_eq!(asked[0].parameter("resourceVersion"), Some(version.as_str()));
    assert_eq!(asked[0].parameter("allowWatchBookmarks"), Some("true"));
    let seconds: u64 = asked[0].parameter("timeoutSeconds").unwrap().parse().unwrap();
    assert!((300..600).contains(&seconds));
    assert_eq!(cluster.asked(Kind::Service, RequestForm::StreamingList).len(), 1);
}

fn a_frame_that_breaks_is_asked_for_again_and_then_listed() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    // once
    cluster.server.script(
        FaultRule::new(1, FaultAction::BrokenFrame { after: 1 }).kind(Kind::EndpointSlice).form(RequestForm::Watch),
    );
    cluster.server.cut();
    follower.until("watches", |_| cluster.server.watches() == 4);
    cluster.slice("a");
    cluster.slice("b");
    follower.until_equal(&cluster);
    follower.until("reconnect", |_| cluster.asked(Kind::EndpointSlice, RequestForm::Watch).len() == 2);
    assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::StreamingList).len(), 1);
    // twice at the same version
    cluster.server.script(
        FaultRule::new(2, FaultAction::BrokenFrame { after: 0 }).kind(Kind::EndpointSlice).form(RequestForm::Watch),
    );
    cluster.server.cut();
    cluster.slice("c");
    follower.until_equal(&cluster);
    follower.until("list", |_| cluster.asked(Kind::EndpointSlice, RequestForm::StreamingList).len() == 2);
    assert_eq!(follower.lines(&["WARN", "endpointslices", "malformed"]).len(), 2, "{}", follower.log());
}

fn half_an_event_is_none() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    for bytes in [1, 3, 4, 5, 40, 150] {
        for action in
            [FaultAction::EndAfter { bytes }, FaultAction::CutAfter { bytes }, FaultAction::ResetAfter { bytes }]
        {
            cluster.server.script(FaultRule::new(4, action).form(RequestForm::Watch));
        }
        cluster.server.cut();
        for name in ["a", "b"] {
            cluster.slice(name);
            cluster.service(name);
            follower.take_within(MS);
        }
        follower.until_equal(&cluster);
        cluster.server.clear();
    }
    assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::List).len(), 0);
}

fn a_watch_that_ends_at_once_is_no_busy_loop() {
    let mut cluster = Cluster::new();
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    cluster
        .server
        .script(FaultRule::new(usize::MAX, FaultAction::Raw(Vec::new())).kind(Kind::Service).form(RequestForm::Watch));
    cluster.server.cut();
    follower.until("requests", |_| cluster.asked(Kind::Service, RequestForm::Watch).len() > 20);
    let asked = cluster.asked(Kind::Service, RequestForm::Watch);
    let time = asked[20].when - asked[6].when;
    assert!(time >= 14 * 20 * MS, "{time:?} for 14 requests");
    cluster.server.clear();
    cluster.service("a");
    follower.until_equal(&cluster);
    assert_eq!(follower.lines(&["WARN", "ended at once"]).len(), 1, "{}", follower.log());
    follower.until("line", |follower| follower.lines(&["INFO", "services", "succeed again"]).len() == 1);
}

over_both! {
    a_thousand_cuts_at_random_bytes_lose_nothing,
    storms_of_410_in_both_forms_lose_nothing,
    a_past_that_is_forgotten_leads_to_a_list,
    bookmarks_advance_the_version,
    a_frame_that_breaks_is_asked_for_again_and_then_listed,
    half_an_event_is_none,
    a_watch_that_ends_at_once_is_no_busy_loop,
}
