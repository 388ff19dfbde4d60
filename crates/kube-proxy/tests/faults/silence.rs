//! Silent servers.

use std::time::Duration;

use ferry_api::object::Kind;
use ferry_client as client;
use ferry_kube_proxy::source::api::SourceTiming;
use ferry_lab::api::{ApiServerOptions, FaultAction, FaultRule, RequestForm, Welcome};

use crate::support::{Cluster, How, quick, quick_client};

const SILENCE: Duration = Duration::from_millis(400);

fn impatient() -> How {
    How {
        timing: SourceTiming { silence: SILENCE, list_silence: SILENCE, ..quick() },
        client: client::TimeLimits { connect: SILENCE, headers: SILENCE, ..quick_client() },
        ..How::default()
    }
}

fn a_silent_watch_is_asked_for_again_from_its_version() {
    for action in [FaultAction::Silence, FaultAction::NoAnswer, FaultAction::StallAfter { bytes: 100 }] {
        let mut cluster = Cluster::new();
        let mut follower = cluster.follow_by(impatient());
        follower.until_equal(&cluster);
        cluster.server.script(FaultRule::new(2, action.clone()).kind(Kind::EndpointSlice).form(RequestForm::Watch));
        cluster.server.cut();
        follower.until("watch", |_| !cluster.asked(Kind::EndpointSlice, RequestForm::Watch).is_empty());
        cluster.slice("a");
        cluster.slice("b");
        cluster.service("a");
        follower.until_equal(&cluster);
        assert!(cluster.asked(Kind::EndpointSlice, RequestForm::Watch).len() >= 3, "{action:?}");
        assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::StreamingList).len(), 1, "{action:?}");
    }
}

fn a_silent_list_fails() {
    for (form, streaming_lists) in [(RequestForm::StreamingList, true), (RequestForm::List, false)] {
        for action in [FaultAction::Silence, FaultAction::NoAnswer, FaultAction::StallAfter { bytes: 300 }] {
            let cluster = Cluster::with(ApiServerOptions { streaming_lists, ..ApiServerOptions::secure() });
            cluster.server.script(FaultRule::new(1, action.clone()).kind(Kind::EndpointSlice).form(form));
            let mut follower = cluster.follow_by(impatient());
            follower.until_equal(&cluster);
            assert_eq!(follower.lines(&["WARN", "endpointslices", "0.4 s"]).len().max(1), 1, "{}", follower.log());
            let pages = cluster.asked(Kind::EndpointSlice, RequestForm::List).len();
            let says_nothing_of_streams = matches!(action, FaultAction::NoAnswer);
            let wanted = if !streaming_lists { 2 } else { usize::from(!says_nothing_of_streams) };
            assert_eq!(pages, wanted, "{action:?}");
        }
    }
}

fn a_quiet_cluster_is_followed_by_its_bookmarks() {
    let mut cluster = Cluster::with(ApiServerOptions { bookmarks: Some(SILENCE / 8), ..ApiServerOptions::secure() });
    let mut follower = cluster.follow_by(impatient());
    follower.until_equal(&cluster);
    let events = follower.events;
    follower.take_within(3 * SILENCE);
    assert_eq!(follower.events, events);
    assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::Watch).len(), 0, "{}", follower.log());
    assert!(follower.fresh(Kind::EndpointSlice).contact.unwrap() < SILENCE);
    cluster.slice("a");
    follower.until_equal(&cluster);
}

fn connections_that_come_to_nothing_are_tried_again() {
    for welcome in [Welcome::Close, Welcome::Reset, Welcome::Garbage, Welcome::Silence] {
        let mut cluster = Cluster::new();
        cluster.server.welcome(12, welcome);
        let mut follower = cluster.follow_by(impatient());
        follower.until_equal(&cluster);
        cluster.server.welcome(8, welcome);
        cluster.server.cut();
        cluster.slice("a");
        cluster.service("a");
        follower.until_equal(&cluster);
        assert!(!follower.lines(&["WARN", "services"]).is_empty(), "{welcome:?}\n{}", follower.log());
        assert_eq!(follower.synced.len(), 4, "{welcome:?}");
    }
}

over_both! {
    a_silent_watch_is_asked_for_again_from_its_version,
    a_silent_list_fails,
    a_quiet_cluster_is_followed_by_its_bookmarks,
    connections_that_come_to_nothing_are_tried_again,
}
