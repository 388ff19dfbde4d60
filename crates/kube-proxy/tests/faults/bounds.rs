//! Endless and large responses.

use std::time::Duration;

use ferry_api::object::Kind;
use ferry_kube_proxy::source::api::{KINDS, SourceTiming};
use ferry_lab::api::{ApiServerOptions, FaultAction, FaultRule, RequestForm};

use crate::support::{Cluster, How, quick};

fn small() -> SourceTiming {
    SourceTiming { most_objects: 2000, ..quick() }
}

fn a_list_without_end_fails_by_its_name_and_harms_no_other() {
    let endless = [
        (true, RequestForm::StreamingList, FaultAction::Endless),
        (false, RequestForm::List, FaultAction::Endless),
        (false, RequestForm::List, FaultAction::EndlessPages { items: 300 }),
        (false, RequestForm::List, FaultAction::EndlessPages { items: 0 }),
    ];
    for (streaming_lists, form, action) in endless {
        let mut cluster = Cluster::with(ApiServerOptions { streaming_lists, ..ApiServerOptions::secure() });
        cluster.server.script(FaultRule::new(usize::MAX, action.clone()).kind(Kind::ServiceCidr).form(form));
        if streaming_lists {
            cluster.server.script(
                FaultRule::new(usize::MAX, FaultAction::status(500)).kind(Kind::ServiceCidr).form(RequestForm::List),
            );
        }
        let mut follower = cluster.follow(small());
        follower.until("failure", |follower| !follower.lines(&["WARN", "servicecidrs", "endless list"]).is_empty());
        follower.until("other kinds", |follower| follower.synced.len() == 3);
        cluster.service("a");
        cluster.slice("a");
        let wanted = ["Service demo/a", "EndpointSlice demo/a"];
        let numbers = |have: &std::collections::BTreeMap<String, u32>| wanted.map(|key| have.get(key).copied());
        let before = numbers(&follower.have());
        follower.until("changes of other kinds", |follower| {
            let now = numbers(&follower.have());
            now.iter().zip(before).all(|(now, before)| *now > before)
        });
        assert!(!follower.synced.contains(&Kind::ServiceCidr), "{action:?}");
        cluster.server.clear();
        follower.until("recovery", |follower| follower.synced.contains(&Kind::ServiceCidr));
        let lines = follower.lines(&["WARN", "endless list"]);
        assert_eq!(lines.len(), 1, "{action:?} {lines:?}");
    }
}

fn an_object_without_end_is_cut_off() {
    let mut cluster = Cluster::new();
    for form in [RequestForm::StreamingList, RequestForm::List] {
        cluster.server.script(FaultRule::new(1, FaultAction::EndlessObject).kind(Kind::EndpointSlice).form(form));
    }
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    assert!(!follower.lines(&["WARN", "endpointslices"]).is_empty(), "{}", follower.log());
    cluster
        .server
        .script(FaultRule::new(2, FaultAction::EndlessObject).kind(Kind::EndpointSlice).form(RequestForm::Watch));
    cluster.server.cut();
    cluster.slice("a");
    follower.until_equal(&cluster);
}

fn an_object_of_a_megabyte_is_one_like_any_other() {
    for content_type in ["application/json", "application/vnd.kubernetes.protobuf"] {
        for streaming_lists in [true, false] {
            let mut cluster = Cluster::with(ApiServerOptions { streaming_lists, ..ApiServerOptions::secure() });
            cluster.padded_slice("large", 1 << 20);
            let mut follower = cluster.follow_by(How { content_type, ..How::default() });
            follower.until_equal(&cluster);
            cluster.padded_slice("large", 1 << 20);
            cluster.slice("a");
            follower.until_equal(&cluster);
        }
    }
}

fn slow_bytes_are_no_silence() {
    for content_type in ["application/json", "application/vnd.kubernetes.protobuf"] {
        let mut cluster = Cluster::new();
        let slow = FaultAction::Slow { bytes: 11, pause: Duration::from_millis(1) };
        cluster.server.script(FaultRule::new(usize::MAX, slow));
        let silence = Duration::from_secs(2);
        let timing = SourceTiming { silence, list_silence: silence, ..quick() };
        let mut follower = cluster.follow_by(How { timing, content_type, ..How::default() });
        follower.until_equal(&cluster);
        cluster.slice("a");
        follower.until_equal(&cluster);
        assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::List).len(), 0);
        assert_eq!(cluster.asked(Kind::EndpointSlice, RequestForm::StreamingList).len(), 1);
    }
}

fn a_slow_core_is_no_silence() {
    let silence = Duration::from_millis(400);
    let mut cluster = Cluster::with(ApiServerOptions { bookmarks: Some(silence / 8), ..ApiServerOptions::secure() });
    for number in 0..200 {
        cluster.slice(&format!("s{number}"));
    }
    // many small pieces, so that they fill the way to the core
    let slow = FaultAction::Slow { bytes: 200, pause: Duration::from_millis(1) };
    cluster.server.script(FaultRule::new(1, slow).kind(Kind::EndpointSlice));
    let mut follower = cluster.follow(SourceTiming { silence, list_silence: silence, ..quick() });
    // The core takes a batch now and then, each time later than the server is allowed to be silent.
    for _ in 0..2 {
        std::thread::sleep(2 * silence);
        follower.take_one();
    }
    cluster.service("a");
    follower.until_equal(&cluster);
    follower.take_within(silence / 2);
    for kind in KINDS {
        assert_eq!(cluster.asked(kind, RequestForm::Any).len(), 1, "{kind}\n{}", follower.log());
    }
}

over_both! {
    a_list_without_end_fails_by_its_name_and_harms_no_other,
    an_object_without_end_is_cut_off,
    an_object_of_a_megabyte_is_one_like_any_other,
    slow_bytes_are_no_silence,
    a_slow_core_is_no_silence,
}
