//! JSON and protobuf, compressed or not, and unsupported encodings.

use ferry_api::object::Kind;
use ferry_lab::api::{ApiServerOptions, FaultAction, FaultRule, RequestForm};

use crate::support::{Cluster, How, quick};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn every_pair_of_encodings_works() {
    for (protobuf, content_type) in [(true, PROTOBUF), (true, JSON), (false, PROTOBUF), (false, JSON)] {
        for streaming_lists in [true, false] {
            let mut cluster =
                Cluster::with(ApiServerOptions { protobuf, streaming_lists, ..ApiServerOptions::secure() });
            let mut follower = cluster.follow_by(How { content_type, ..How::default() });
            follower.until_equal(&cluster);
            cluster.slice("a");
            cluster.node();
            cluster.service_cidr("range");
            cluster.delete(Kind::Service, "b");
            cluster.service("new");
            follower.until_equal(&cluster);
            let accept = cluster.asked(Kind::Service, RequestForm::Any)[0].header("accept").unwrap().to_owned();
            assert!(accept.starts_with(content_type), "{accept}");
            assert_eq!(follower.log(), "");
        }
    }
}

fn packed_answers_are_read() {
    for action in [FaultAction::Gzip, FaultAction::GzipMembers] {
        for streaming_lists in [true, false] {
            let mut cluster = Cluster::with(ApiServerOptions { streaming_lists, ..ApiServerOptions::secure() });
            cluster.server.script(FaultRule::new(usize::MAX, action.clone()));
            let mut follower = cluster.follow(quick());
            follower.until_equal(&cluster);
            cluster.slice("a");
            cluster.service("a");
            follower.until_equal(&cluster);
            assert_eq!(follower.log(), "");
        }
    }
}

fn what_unpacks_without_end_is_cut_off() {
    let mut cluster = Cluster::new();
    cluster.server.script(FaultRule::new(3, FaultAction::GzipBomb { bytes: 200 << 20 }).kind(Kind::EndpointSlice));
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    assert!(!follower.lines(&["WARN", "endpointslices"]).is_empty(), "{}", follower.log());
    cluster.slice("a");
    follower.until_equal(&cluster);
}

fn another_content_type_is_named_once_and_asked_again() {
    let mut cluster = Cluster::new();
    let html = FaultAction::ContentType("text/html; charset=utf-8".to_owned());
    cluster.server.script(FaultRule::new(usize::MAX, html).kind(Kind::Service));
    let mut follower = cluster.follow(quick());
    follower.until("requests", |_| cluster.asked(Kind::Service, RequestForm::Any).len() > 8);
    follower.until("other kinds", |follower| follower.synced.len() == 3);
    let lines = follower.lines(&["WARN", "services", "text/html; charset=utf-8"]);
    assert_eq!(lines.len(), 2, "once of each verb: {lines:?}");
    cluster.server.clear();
    cluster.service("a");
    follower.until_equal(&cluster);
}

over_both! {
    every_pair_of_encodings_works,
    packed_answers_are_read,
    what_unpacks_without_end_is_cut_off,
    another_content_type_is_named_once_and_asked_again,
}
