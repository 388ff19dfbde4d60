//! Initial lists, streamed or paged, and later ones.

use std::time::Duration;

use ferry_api::object::Kind;
use ferry_lab::api::{ApiServerOptions, FaultAction, FaultRule, RequestForm};

use crate::support::{Cluster, Follower, quick};

/// Compacts the history, and waits for the next list of slices.
fn relist(cluster: &mut Cluster, follower: &mut Follower) {
    cluster.server.stop();
    cluster.slice("a");
    cluster.server.compact();
    cluster.server.resume();
    follower.until_equal(cluster);
}

fn a_refused_stream_leads_to_pages_for_an_hour() {
    let lasting = [
        FaultAction::status(400),
        FaultAction::status(422),
        FaultAction::status(500),
        FaultAction::ErrorEvent { code: 500, after: 0 },
        FaultAction::ErrorEvent { code: 500, after: 2 },
    ];
    for action in lasting {
        let mut cluster = Cluster::new();
        cluster
            .server
            .script(FaultRule::new(1, action.clone()).kind(Kind::EndpointSlice).form(RequestForm::StreamingList));
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        let asked = cluster.asked(Kind::EndpointSlice, RequestForm::List);
        assert_eq!(asked.len(), 1, "{action:?}");
        assert_eq!(asked[0].parameter("limit"), Some("500"));
        assert_eq!(asked[0].parameter("resourceVersion"), Some("0"));
        assert_eq!(asked[0].parameter("labelSelector"), Some("!service.kubernetes.io/headless"));
        relist(&mut cluster, &mut follower);
        assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::StreamingList).len(), 1, "{action:?}");
        assert!(cluster.asked(Kind::EndpointSlice, RequestForm::List).len() >= 2, "{action:?}");
        assert!(!cluster.asked(Kind::Service, RequestForm::StreamingList).is_empty(), "each kind by itself");
    }
}

fn a_stream_that_fails_otherwise_is_tried_again_before_pages() {
    let passing = [
        FaultAction::status(503),
        FaultAction::status(429),
        FaultAction::CutAfter { bytes: 300 },
        FaultAction::ResetAfter { bytes: 300 },
        FaultAction::EndAfter { bytes: 300 },
        FaultAction::CutHead { bytes: 20 },
        FaultAction::BrokenFrame { after: 1 },
        FaultAction::ContentType("text/html".to_owned()),
    ];
    for (action, times) in passing.into_iter().flat_map(|action| [(action.clone(), 1), (action, 2)]) {
        let mut cluster = Cluster::new();
        cluster
            .server
            .script(FaultRule::new(times, action.clone()).kind(Kind::EndpointSlice).form(RequestForm::StreamingList));
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::StreamingList).len(), 2, "{action:?}");
        assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::List).len(), times - 1, "{action:?}");
        relist(&mut cluster, &mut follower);
        assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::StreamingList).len(), 3, "{action:?}");
    }
}

/// A later list is served from the server's cache, not from its store.
fn a_later_list_is_from_the_servers_cache() {
    for streaming_lists in [true, false] {
        let mut cluster = Cluster::with(ApiServerOptions { streaming_lists, ..ApiServerOptions::secure() });
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        let form = if streaming_lists { RequestForm::StreamingList } else { RequestForm::List };
        let before = cluster.server.version().to_string();
        assert_eq!(cluster.asked(Kind::Service, form)[0].parameter("resourceVersion"), Some("0"));
        cluster.server.forget_requests();
        relist(&mut cluster, &mut follower);
        follower.until("lists", |_| cluster.asked(Kind::Service, form).iter().any(|seen| seen.namespace.is_empty()));
        let asked = cluster.asked(Kind::Service, form);
        let list = asked.iter().find(|seen| seen.namespace.is_empty()).expect("a list");
        let get = |name| list.parameter(name);
        assert_eq!((get("resourceVersionMatch"), get("limit")), (Some("NotOlderThan"), None));
        assert!(get("resourceVersion").is_some_and(|version| version != "0" && version <= before.as_str()), "{list:?}");
    }
}

fn an_old_server_is_listed_in_pages() {
    let mut cluster = Cluster::with(ApiServerOptions { streaming_lists: false, ..ApiServerOptions::secure() });
    for number in 0..1200 {
        cluster.slice(&format!("s{number}"));
    }
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    let asked = cluster.asked(Kind::EndpointSlice, RequestForm::List);
    assert_eq!(asked[0].parameter("continue"), None);
    for page in &asked[1..] {
        assert!(page.parameter("continue").is_some() && page.parameter("resourceVersion").is_none());
        assert_eq!(page.parameter("labelSelector"), Some("!service.kubernetes.io/headless"));
    }
    cluster.slice("s7");
    cluster.service("s7");
    follower.until_equal(&cluster);
    assert_eq!(follower.synced.len(), 4, "{:?}", follower.synced);
}

fn a_page_that_has_expired_leads_to_a_list_of_now() {
    let mut cluster = Cluster::with(ApiServerOptions { streaming_lists: false, ..ApiServerOptions::secure() });
    for number in 0..600 {
        cluster.slice(&format!("s{number}"));
    }
    // Lists from the watch cache aren't paged; the first paged list is of the latest state.
    let slices = |times, action| FaultRule::new(times, action).kind(Kind::EndpointSlice).form(RequestForm::List);
    cluster.server.script(slices(1, FaultAction::status(410)));
    cluster.server.script(slices(1, FaultAction::Delay(Duration::ZERO)));
    cluster.server.script(slices(1, FaultAction::status(410)));
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    let asked = cluster.asked(Kind::EndpointSlice, RequestForm::List);
    let shape: Vec<_> =
        asked.iter().map(|seen| (seen.parameter("resourceVersion"), seen.parameter("continue").is_some())).collect();
    assert_eq!(shape, [(Some("0"), false), (None, false), (None, true), (None, false), (None, true)]);
}

fn a_list_that_breaks_off_is_begun_again() {
    for action in [
        FaultAction::CutAfter { bytes: 5000 },
        FaultAction::EndAfter { bytes: 5000 },
        FaultAction::BrokenFrame { after: 9 },
    ] {
        let mut cluster = Cluster::with(ApiServerOptions { streaming_lists: false, ..ApiServerOptions::secure() });
        for number in 0..100 {
            cluster.slice(&format!("s{number}"));
        }
        cluster.server.script(FaultRule::new(3, action.clone()).kind(Kind::EndpointSlice).form(RequestForm::List));
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        let synced = follower.synced.iter().filter(|kind| **kind == Kind::EndpointSlice).count();
        assert_eq!(synced, 1, "{action:?}: half a list is not complete");
    }
}

fn a_later_list_changes_what_differs_and_nothing_else() {
    for streaming_lists in [true, false] {
        let mut cluster = Cluster::with(ApiServerOptions { streaming_lists, ..ApiServerOptions::secure() });
        let mut follower = cluster.follow(quick());
        follower.until_equal(&cluster);
        let again = |cluster: &mut Cluster, follower: &mut Follower, change: fn(&mut Cluster)| {
            let (before, lists) = (follower.effects, follower.synced.len());
            cluster.server.stop();
            change(cluster);
            cluster.server.compact();
            cluster.server.resume();
            // all but the Node, whose lists deliver no end
            follower.until("lists", |follower| follower.synced.len() == lists + 3);
            follower.until_equal(cluster);
            follower.effects - before
        };
        assert_eq!(again(&mut cluster, &mut follower, |_| {}), 0);
        let effects = again(&mut cluster, &mut follower, |cluster| {
            cluster.slice("a");
            cluster.delete(Kind::Service, "b");
            cluster.service("new");
        });
        // Two new or changed objects, and one end of a list that deletes.
        assert_eq!(effects, 3);
        let effects = again(&mut cluster, &mut follower, |cluster| cluster.delete(Kind::ServiceCidr, "range"));
        assert_eq!(effects, 1);
    }
}

fn what_changes_during_a_list_is_not_lost() {
    for streaming_lists in [true, false] {
        let mut cluster = Cluster::with(ApiServerOptions { streaming_lists, ..ApiServerOptions::secure() });
        for number in 0..50 {
            cluster.slice(&format!("s{number}"));
        }
        let slow = FaultAction::Slow { bytes: 400, pause: Duration::from_millis(5) };
        cluster.server.script(FaultRule::new(2, slow).kind(Kind::EndpointSlice));
        let mut follower = cluster.follow(quick());
        follower.until("half a list", |follower| follower.have().len() > 15);
        cluster.slice("s0");
        cluster.slice("s49");
        cluster.delete(Kind::EndpointSlice, "s1");
        cluster.delete(Kind::EndpointSlice, "s48");
        cluster.slice("s50");
        follower.until_equal(&cluster);
    }
}

over_both! {
    a_refused_stream_leads_to_pages_for_an_hour,
    a_stream_that_fails_otherwise_is_tried_again_before_pages,
    a_later_list_is_from_the_servers_cache,
    an_old_server_is_listed_in_pages,
    a_page_that_has_expired_leads_to_a_list_of_now,
    a_list_that_breaks_off_is_begun_again,
    a_later_list_changes_what_differs_and_nothing_else,
    what_changes_during_a_list_is_not_lost,
}
