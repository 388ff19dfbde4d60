//! JSON and protobuf, compressed or not, and unsupported encodings.

use ferry_api::object::Kind;
use ferry_lab::api::{Action, Form, Options, Rule};

use crate::support::{Cluster, How, quick};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn every_pair_of_encodings_works() {
    for (protobuf, content_type) in [(true, PROTOBUF), (true, JSON), (false, PROTOBUF), (false, JSON)] {
        for streaming_lists in [true, false] {
            let mut cluster = Cluster::with(Options { protobuf, streaming_lists, ..Options::secure() });
            let mut follower = cluster.follow_by(How { content_type, ..How::default() });
            follower.until_equal(&cluster);
            cluster.slice("a");
            cluster.node();
            cluster.service_cidr("range");
            cluster.delete(Kind::Service, "b");
            cluster.service("new");
            follower.until_equal(&cluster);
            let accept = cluster.asked(Kind::Service, Form::Any)[0].header("accept").unwrap().to_owned();
            assert!(accept.starts_with(content_type), "{accept}");
            assert_eq!(follower.log(), "");
        }
    }
}

fn packed_answers_are_read() {
    for action in [Action::Gzip, Action::GzipMembers] {
        for streaming_lists in [true, false] {
            let mut cluster = Cluster::with(Options { streaming_lists, ..Options::secure() });
            cluster.server.script(Rule::new(usize::MAX, action.clone()));
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
    cluster.server.script(Rule::new(3, Action::GzipBomb { bytes: 200 << 20 }).kind(Kind::EndpointSlice));
    let mut follower = cluster.follow(quick());
    follower.until_equal(&cluster);
    assert!(!follower.lines(&["WARN", "endpointslices"]).is_empty(), "{}", follower.log());
    cluster.slice("a");
    follower.until_equal(&cluster);
}

fn another_content_type_is_named_once_and_asked_again() {
    let mut cluster = Cluster::new();
    let html = Action::ContentType("text/html; charset=utf-8".to_owned());
    cluster.server.script(Rule::new(usize::MAX, html).kind(Kind::Service));
    let mut follower = cluster.follow(quick());
    follower.until("requests", |_| cluster.asked(Kind::Service, Form::Any).len() > 8);
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
