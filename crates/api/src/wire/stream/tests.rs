//! Answers of API servers: both encodings alike, in any pieces, damaged, endless.
//!
//! `testdata/wire` has the same answers in both encodings, the protobuf written by upstream's serializer.

use proptest::prelude::*;

use super::object::{MAX_PARTS, TEXT_BYTES};
use super::*;
use crate::object::{
    AddressKind, AddressType, Conditions, EndpointSlice, Family, Hints, Node, OddField, Protocol, Service, ServiceType,
    Timestamp, TrafficPolicy,
};
use crate::wire::{Document, decode_manifest};

macro_rules! both {
    ($name:literal) => {
        [
            (Encoding::Json, include_bytes!(concat!("../../../../../testdata/wire/", $name, ".json")).as_slice()),
            (Encoding::Protobuf, include_bytes!(concat!("../../../../../testdata/wire/", $name, ".pb")).as_slice()),
        ]
    };
}

/// The same answer in both encodings.
type Bodies = [(Encoding, &'static [u8]); 2];

const LISTS: [(Kind, Bodies); 5] = [
    (Kind::Service, both!("services")),
    (Kind::EndpointSlice, both!("endpointslices")),
    (Kind::Node, both!("nodes")),
    (Kind::ServiceCidr, both!("servicecidrs")),
    (Kind::Service, both!("empty")),
];

type Items = Vec<Result<KubeObject, Unreadable>>;

/// Decodes a list in such pieces, up to its first error.
fn list<'b>(
    kind: Kind,
    encoding: Encoding,
    pieces: impl IntoIterator<Item = &'b [u8]>,
) -> (Items, Result<ListEnd, StreamError>) {
    let (mut decoder, mut items) = (ListDecoder::new(kind, encoding), Vec::new());
    for piece in pieces {
        if let Err(error) = decoder.push(piece, &mut items) {
            assert_eq!(decoder.push(b"", &mut items), Err(error.clone()));
            assert_eq!(decoder.finish(), Err(error.clone()));
            return (items, Err(error));
        }
    }
    (items, decoder.finish())
}

/// Decodes a watch in such pieces, up to its first error.
fn watch<'b>(
    kind: Kind,
    encoding: Encoding,
    pieces: impl IntoIterator<Item = &'b [u8]>,
) -> (Vec<WatchEvent>, Result<(), StreamError>) {
    let (mut decoder, mut events) = (WatchDecoder::new(kind, encoding), Vec::new());
    for piece in pieces {
        if let Err(error) = decoder.push(piece, &mut events) {
            assert_eq!(decoder.push(b"", &mut events), Err(error.clone()));
            assert_eq!(decoder.finish(), Err(error.clone()));
            return (events, Err(error));
        }
    }
    (events, decoder.finish())
}

/// All objects of a list that is in order.
fn objects(kind: Kind, encoding: Encoding, body: &[u8]) -> Vec<KubeObject> {
    let (items, end) = list(kind, encoding, [body]);
    end.unwrap();
    items.into_iter().map(Result::unwrap).collect()
}

fn services(encoding: usize) -> Vec<Service> {
    let (encoding, body) = LISTS[0].1[encoding];
    let objects = objects(Kind::Service, encoding, body).into_iter();
    objects
        .map(|object| if let KubeObject::Service(service) = object { service } else { panic!("{object:?}") })
        .collect()
}

fn slices(encoding: usize) -> Vec<EndpointSlice> {
    let (encoding, body) = LISTS[1].1[encoding];
    let objects = objects(Kind::EndpointSlice, encoding, body).into_iter();
    objects
        .map(|object| if let KubeObject::EndpointSlice(slice) = object { slice } else { panic!("{object:?}") })
        .collect()
}

fn nodes(encoding: usize) -> Vec<Node> {
    let (encoding, body) = LISTS[2].1[encoding];
    let objects = objects(Kind::Node, encoding, body).into_iter();
    objects.map(|object| if let KubeObject::Node(node) = object { node } else { panic!("{object:?}") }).collect()
}

fn malformed(message: &str) -> StreamError {
    StreamError::Malformed(message.to_owned())
}

// Protobuf by hand.

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn field(number: u64, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

fn number(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

fn wrapped(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [field(1, api_version), field(2, kind)].concat();
    [b"k8s\0".to_vec(), field(1, type_meta), field(2, raw), field(3, ""), field(4, "")].concat()
}

fn service_list(items: &[Vec<u8>]) -> Vec<u8> {
    let items: Vec<u8> = items.iter().flat_map(|item| field(2, item)).collect();
    wrapped("v1", "ServiceList", &[field(1, field(2, "7")), items].concat())
}

fn meta(namespace: &str, name: &str) -> Vec<u8> {
    field(1, [field(1, name), field(3, namespace), field(6, "70")].concat())
}

fn frame(event: &str, object: &[u8]) -> Vec<u8> {
    let event = [field(1, event), field(2, field(1, object))].concat();
    [(event.len() as u32).to_be_bytes().to_vec(), event].concat()
}

fn unreadable(kind: Kind, name: Option<ObjectName>, message: &str) -> Unreadable {
    Unreadable { kind, name, misnamed: message.contains("can't be the name"), message: message.to_owned() }
}

#[test]
fn both_encodings_are_alike() {
    for (kind, [(_, json), (_, protobuf)]) in LISTS {
        let json = list(kind, Encoding::Json, [json]);
        assert!(json.1.is_ok() && json.0.iter().all(Result::is_ok), "{json:?}");
        assert_eq!(json, list(kind, Encoding::Protobuf, [protobuf]));
    }
    let [(_, json), (_, protobuf)] = both!("watch");
    let json = watch(Kind::Service, Encoding::Json, [json]);
    assert_eq!(json.1, Ok(()));
    assert_eq!(json, watch(Kind::Service, Encoding::Protobuf, [protobuf]));
}

#[test]
fn answers_are_read_as_manifests_are() {
    for (kind, [(encoding, json), _]) in LISTS {
        let documents = decode_manifest(str::from_utf8(json).unwrap()).complete().unwrap();
        let wanted = documents.into_iter().map(|document| match document {
            Document::Object(object) => object,
            Document::Ignored { kind } => panic!("{kind}"),
        });
        assert_eq!(objects(kind, encoding, json), wanted.collect::<Vec<_>>());
    }
}

#[test]
fn every_field_of_services() {
    for services in [services(0), services(1)] {
        let ip = |text: &str| Ok(text.parse().unwrap());
        let all = &services[0];
        assert_eq!(all.name, ObjectName::new("shop", "all"));
        assert_eq!(all.uid.unwrap().to_string(), "6cf4b6a2-2f3b-4b8e-93ec-0c1c38c0b1d5");
        assert_eq!(all.created, Some(Timestamp { seconds: 1_714_557_600, nanoseconds: 0 }));
        assert!(all.foreign_proxy && all.odd.is_empty());
        assert_eq!((all.kind, &all.cluster_ip), (ServiceType::LoadBalancer, &Some(ip("10.0.0.10"))));
        assert_eq!(*all.cluster_ips, [ip("10.0.0.10"), ip("fd00::a")]);
        assert_eq!(*all.families, [Family::V4, Family::V6]);
        let ports = all
            .ports
            .iter()
            .map(|port| (&*port.name, port.protocol.clone(), port.port.clone(), port.node_port.clone()));
        assert_eq!(
            ports.collect::<Vec<_>>(),
            [
                ("http", Ok(Protocol::Tcp), Ok(80), Ok(30080)),
                ("dns", Ok(Protocol::Udp), Ok(53), Ok(30053)),
                ("sig", Ok(Protocol::Sctp), Ok(3868), Ok(0))
            ]
        );
        assert_eq!(*all.external_ips, [ip("192.0.2.1"), ip("2001:db8::1")]);
        let ingress: Vec<_> = all.ingress.iter().map(|entry| (entry.ip.clone(), entry.proxy_mode)).collect();
        assert_eq!(ingress, [(ip("198.51.100.1"), false), (ip("198.51.100.2"), true), (ip("198.51.100.3"), false)]);
        assert_eq!(*all.source_ranges, [Ok("10.0.0.1/8".parse().unwrap()), Ok("fd00::/16".parse().unwrap())]);
        assert_eq!((all.affinity_seconds, all.health_check_node_port), (Some(60), 32000));
        assert_eq!((all.internal_policy, all.external_policy), (TrafficPolicy::Local, TrafficPolicy::Local));

        let balancing = all.balancing.as_ref().unwrap();
        assert_eq!(
            [&balancing.scheduler, &balancing.weight_zones, &balancing.weight_local].map(|text| text.as_deref()),
            [Some("wlc"), Some("a=3,b=1"), Some("")]
        );
        assert_eq!(services[1].balancing, None);
        assert_eq!(services[1].created, None);
        assert_eq!(services[2].created, Some(Timestamp { seconds: -1, nanoseconds: 0 }));
        assert_eq!(services[2].affinity_seconds, Some(10_800));
        assert_eq!(
            (&services[2].ports[0].port, &services[2].ports[0].node_port),
            (&Err("0".into()), &Err("65536".into()))
        );
        assert_eq!(services[2].ports[1].node_port, Err("-2147483648".into()));
        assert_eq!((services[2].odd[0].field, &*services[2].odd[0].text), (OddField::HealthCheckNodePort, "-5"));
        assert_eq!(services[3].created, Some(Timestamp { seconds: 0, nanoseconds: 0 }));
        assert_eq!((&services[3].cluster_ip, services[3].affinity_seconds), (&None, Some(10_800)));
        assert_eq!((services[4].kind, services[4].affinity_seconds), (ServiceType::ExternalName, Some(0)));
        assert_eq!(services[5].odd.len(), 4);
        assert_eq!(services[6].name, ObjectName::new("default", "bare"));
    }
}

#[test]
fn every_field_of_slices() {
    for slices in [slices(0), slices(1)] {
        let web = &slices[0];
        assert_eq!(web.name, ObjectName::new("shop", "web-x2v9k"));
        assert_eq!(web.service, Some(ObjectName::new("shop", "web")));
        assert_eq!((web.headless, web.address_type), (false, AddressType::Ipv4));
        assert_eq!(web.trigger_time, Some(Timestamp { seconds: 1_714_557_600, nanoseconds: 500_000_000 }));
        let conditions = |ready, serving, terminating| Conditions { ready, serving, terminating };
        let hints = |zones: &[&str], nodes: &[&str]| Hints {
            zones: zones.iter().map(|zone| (*zone).into()).collect(),
            nodes: nodes.iter().map(|node| (*node).into()).collect(),
        };
        let endpoints: Vec<_> = web
            .endpoints
            .iter()
            .map(|endpoint| {
                (
                    endpoint.address.to_string(),
                    endpoint.conditions,
                    web.node_of(endpoint),
                    web.hints_of(endpoint).cloned(),
                )
            })
            .collect();
        assert_eq!(
            endpoints,
            [
                ("10.1.0.1".to_owned(), conditions(true, true, false), Some("n1"), Some(hints(&["a", "b"], &["n1"]))),
                ("10.1.0.2".to_owned(), conditions(false, true, true), Some("n2"), None),
                ("10.1.0.3".to_owned(), conditions(true, false, false), None, None),
                ("10.1.0.4".to_owned(), conditions(true, true, false), None, Some(hints(&[], &["n4"]))),
                ("10.1.0.5".to_owned(), conditions(true, true, true), Some("n1"), Some(hints(&[""], &[]))),
                ("10.1.0.6".to_owned(), conditions(true, true, false), Some("n2"), None),
            ]
        );
        let zones: Vec<_> = web.endpoints.iter().map(|endpoint| web.zone_of(endpoint)).collect();
        assert_eq!(zones, [Some("a"), Some("b"), Some("b"), None, None, None]);
        assert_eq!(*web.bad_addresses, ["nowhere".into(), "".into()]);
        let ports: Vec<_> =
            web.ports.iter().map(|port| (port.name.as_deref(), port.protocol.clone(), port.port.clone())).collect();
        assert_eq!(
            ports,
            [
                (Some("http"), Ok(Protocol::Tcp), Some(Ok(8080))),
                (Some(""), Ok(Protocol::Udp), Some(Err("0".into()))),
                (Some(""), Ok(Protocol::Tcp), None),
                (Some("many"), Ok(Protocol::Tcp), Some(Err("65536".into()))),
                (Some(""), Ok(Protocol::Tcp), None),
            ]
        );
        assert_eq!((slices[1].headless, &slices[1].service, slices[1].trigger_time), (true, &None, None));
        assert_eq!(
            slices.iter().map(|slice| slice.address_type).collect::<Vec<_>>()[1..3],
            [AddressType::Ipv6, AddressType::Other]
        );
    }
}

#[test]
fn every_field_of_nodes() {
    for nodes in [nodes(0), nodes(1)] {
        assert_eq!((&nodes[0].name, nodes[0].zone.as_deref()), (&ObjectName::cluster_wide("n1"), Some("a")));
        assert_eq!((nodes[0].deleting, nodes[0].to_be_deleted, nodes[1].deleting), (false, true, true));
        let addresses: Vec<_> = nodes[0].addresses.iter().map(|entry| (entry.kind, entry.address.is_ok())).collect();
        assert_eq!(
            addresses,
            [(AddressKind::Internal, true), (AddressKind::External, true), (AddressKind::Internal, false)]
        );
        let ranges = |node: usize| {
            nodes[node].pod_cidrs.iter().map(|range| range.as_ref().map(ToString::to_string)).collect::<Vec<_>>()
        };
        assert_eq!(ranges(0), [Ok("10.244.1.0/24".to_owned()), Ok("fd00:1::/64".to_owned())]);
        assert_eq!(ranges(1), [Ok("10.244.2.0/24".to_owned())]);
        assert_eq!(ranges(2), [Err(&"10.244.3.0/33".into())]);
        assert_eq!((ranges(3).len(), nodes[1].zone.as_deref()), (0, None));
    }
}

#[test]
fn the_end_of_a_list() {
    for (encoding, body) in LISTS[0].1 {
        let end = list(Kind::Service, encoding, [body]).1.unwrap();
        assert_eq!((&*end.resource_version, end.continue_token.as_deref()), ("4711", Some("eyJ2IjoibWV0YSJ9")));
    }
    for (encoding, body) in LISTS[4].1 {
        let (items, end) = list(Kind::Service, encoding, [body]);
        let end = end.unwrap();
        assert_eq!((items.len(), &*end.resource_version, end.continue_token), (0, "1", None));
    }
}

#[test]
fn resource_versions_are_compared_as_numbers_of_any_length() {
    use Ordering::{Equal, Greater, Less};
    for (one, other, wanted) in [
        ("9", "10", Some(Less)),
        ("10", "9", Some(Greater)),
        ("10", "10", Some(Equal)),
        ("010", "10", Some(Equal)),
        ("000", "0", Some(Equal)),
        ("0099", "100", Some(Less)),
        ("18446744073709551617", "18446744073709551616", Some(Greater)),
        ("", "1", None),
        ("1", "", None),
        ("x", "1", None),
        ("1", "1x", None),
        ("-1", "1", None),
        ("", "", None),
    ] {
        assert_eq!(compare_versions(one, other), wanted, "{one:?} {other:?}");
    }
}

/// A list of Services with these names and resource versions, in both encodings.
fn versioned(versions: &[(&str, &str)]) -> [(Encoding, Vec<u8>); 2] {
    let json = versions.iter().map(|(name, version)| {
        format!(r#"{{"metadata":{{"name":"{name}","namespace":"shop","resourceVersion":"{version}"}}}}"#)
    });
    let json = format!(
        r#"{{"kind":"ServiceList","apiVersion":"v1","metadata":{{"resourceVersion":"7"}},"items":[{}]}}"#,
        json.collect::<Vec<_>>().join(",")
    );
    let protobuf: Vec<_> = versions
        .iter()
        .map(|(name, version)| field(1, [field(1, name), field(3, "shop"), field(6, version)].concat()))
        .collect();
    [(Encoding::Json, json.into_bytes()), (Encoding::Protobuf, service_list(&protobuf))]
}

#[test]
fn the_newest_object_of_a_list_has_its_greatest_version() {
    let (longest, overlong) = ("9".repeat(TEXT_BYTES), "9".repeat(TEXT_BYTES + 1));
    for (versions, wanted) in [
        (&[("a", "9"), ("b", "10"), ("c", "x"), ("d", ""), ("e", "010"), ("f", "8")][..], Some(("b", "10"))),
        (&[("a", "8"), ("b", &overlong)], Some(("a", "8"))),
        (&[("a", "8"), ("b", &longest)], Some(("b", &*longest))),
        (&[("a", "0"), ("b", "x"), ("c", "")], None),
    ] {
        for (encoding, body) in versioned(versions) {
            let newest = list(Kind::Service, encoding, [&*body]).1.unwrap().newest;
            assert_eq!(newest, wanted.map(|(name, version)| (ObjectName::new("shop", name), version.into())));
        }
    }
}

#[test]
fn an_event_has_no_empty_or_overlong_version() {
    let (longest, overlong) = ("9".repeat(TEXT_BYTES), "9".repeat(TEXT_BYTES + 1));
    for event in ["ADDED", "DELETED", "BOOKMARK"] {
        for (version, wanted) in [("70", Some("70")), ("", None), (&longest, Some(&*longest)), (&overlong, None)] {
            let json = format!(
                r#"{{"type":"{event}","object":{{"metadata":{{"name":"a","namespace":"shop","resourceVersion":"{version}"}}}}}}"#
            );
            let object = field(1, [field(1, "a"), field(3, "shop"), field(6, version)].concat());
            let protobuf = frame(event, &wrapped("v1", "Service", &object));
            for (encoding, body) in [(Encoding::Json, json.into_bytes()), (Encoding::Protobuf, protobuf)] {
                let (events, end) = watch(Kind::Service, encoding, [&*body]);
                let versions: Vec<_> = events.iter().map(|event| event.resource_version.as_deref()).collect();
                assert_eq!((versions, end), (vec![wanted], Ok(())), "{event}");
            }
        }
    }
}

#[test]
fn a_continue_token_has_a_greatest_length() {
    for (length, is_kept) in [(TEXT_BYTES, true), (TEXT_BYTES + 1, false)] {
        let token = "x".repeat(length);
        let json = format!(
            r#"{{"kind":"ServiceList","apiVersion":"v1","metadata":{{"resourceVersion":"7","continue":"{token}"}}}}"#
        );
        let protobuf = wrapped("v1", "ServiceList", &field(1, [field(2, "7"), field(3, &token)].concat()));
        for (encoding, body) in [(Encoding::Json, json.into_bytes()), (Encoding::Protobuf, protobuf)] {
            let found = list(Kind::Service, encoding, [&*body]).1.map(|end| end.continue_token);
            let refused = malformed(&format!("a text of {length} bytes in the list's metadata"));
            assert_eq!(found, if is_kept { Ok(Some(token.as_str().into())) } else { Err(refused) });
        }
    }
}

#[test]
fn every_event_of_a_watch() {
    for (encoding, body) in both!("watch") {
        let (events, end) = watch(Kind::Service, encoding, [body]);
        assert_eq!(end, Ok(()));
        let versions: Vec<_> = events.iter().map(|event| event.resource_version.as_deref()).collect();
        assert_eq!(versions, [Some("101"), Some("102"), Some("103"), Some("104"), Some("105"), None, None]);
        let name = ObjectName::new("shop", "web");
        let types = [&events[0], &events[2]].map(|event| match &event.change {
            WatchChange::Upsert(KubeObject::Service(service)) if service.name == name => service.kind,
            other => panic!("{other:?}"),
        });
        assert_eq!(types, [ServiceType::ClusterIp, ServiceType::NodePort]);
        assert_eq!(events[1].change, WatchChange::Bookmark { initial_events_end: true });
        assert_eq!(events[3].change, WatchChange::Bookmark { initial_events_end: false });
        assert_eq!(events[4].change, WatchChange::Delete(name));
        assert_eq!(
            events[5].change,
            WatchChange::Unreadable(unreadable(Kind::Service, None, "expected a Service, got a Node"))
        );
        let expired = Status {
            code: 410,
            reason: "Expired".into(),
            message: "too old resource version: 1 (105)".into(),
            retry_after_seconds: None,
        };
        assert_eq!(events[6].change, WatchChange::Error(expired));
    }
}

#[test]
fn a_status_instead_of_a_list() {
    let wanted = Status {
        code: 429,
        reason: "TooManyRequests".into(),
        message: "the server has received too many requests".into(),
        retry_after_seconds: Some(7),
    };
    for (encoding, body) in both!("status") {
        assert_eq!(decode_status(encoding, body), Some(wanted.clone()));
        assert_eq!(list(Kind::Node, encoding, [body]), (Vec::new(), Err(StreamError::Status(wanted.clone()))));
        assert_eq!(list(Kind::Node, encoding, body.chunks(1)).1, Err(StreamError::Status(wanted.clone())));
        for length in 0..body.trim_ascii_end().len() - 4 {
            assert_ne!(decode_status(encoding, &body[..length]), Some(wanted.clone()));
        }
    }
    let odd = br#"{"kind": "Status", "code": 99999999999, "reason": null, "details": {"retryAfterSeconds": -1}, "message": "a\nb"}"#;
    let status = decode_status(Encoding::Json, odd).unwrap();
    assert_eq!((status.code, &*status.reason, &*status.message, status.retry_after_seconds), (0, "", "a\\nb", None));
    for body in [&b""[..], b"null", b"[]", b"not found", b"{\"kind\": \"Pod\"}", b"{}", LISTS[0].1[0].1] {
        assert_eq!(decode_status(Encoding::Json, body), None);
        assert_eq!(decode_status(Encoding::Protobuf, body), None);
    }
}

#[test]
fn pieces_of_one_byte() {
    for (kind, bodies) in LISTS {
        for (encoding, body) in bodies {
            assert_eq!(list(kind, encoding, body.chunks(1)), list(kind, encoding, [body]));
        }
    }
    for (encoding, body) in both!("watch") {
        assert_eq!(watch(Kind::Service, encoding, body.chunks(1)), watch(Kind::Service, encoding, [body]));
    }
}

#[test]
fn bodies_that_end_early() {
    for (kind, bodies) in LISTS {
        for (encoding, body) in bodies {
            let body = body.trim_ascii_end();
            // The last two fields of what the list is wrapped in are empty.
            let end = if encoding == Encoding::Json { body.len() } else { body.len() - 4 };
            for length in 0..end {
                assert_eq!(list(kind, encoding, [&body[..length]]).1, Err(StreamError::Truncated), "{length}");
            }
        }
    }
    for (encoding, body) in both!("watch") {
        let mut ends = 0;
        for length in 0..body.len() {
            match watch(Kind::Service, encoding, [&body[..length]]) {
                (_, Err(error)) => assert_eq!(error, StreamError::Truncated),
                (events, Ok(())) => {
                    assert!(events.len() == ends || events.len() == ends + 1);
                    ends = events.len();
                }
            }
        }
        assert!(ends >= 6);
    }
}

#[test]
fn a_watch_in_protobuf_ends_between_two_frames() {
    let frames = ["a", "b"].map(|name| frame("ADDED", &wrapped("v1", "Service", &meta("shop", name))));
    let ends = [0, frames[0].len(), frames[0].len() + frames[1].len()];
    let body = frames.concat();
    for length in 0..=body.len() {
        let (events, end) = watch(Kind::Service, Encoding::Protobuf, [&body[..length]]);
        let wanted = if ends.contains(&length) { Ok(()) } else { Err(StreamError::Truncated) };
        assert_eq!((events.len(), end), (ends[1..].iter().filter(|end| **end <= length).count(), wanted), "{length}");
    }
}

#[test]
fn lists_of_something_else() {
    for (encoding, body) in LISTS[2].1 {
        assert_eq!(
            list(Kind::Service, encoding, [body]),
            (Vec::new(), Err(malformed("expected a ServiceList, got a NodeList")))
        );
    }
    let refused = |text: &str| list(Kind::ServiceCidr, Encoding::Json, [text.as_bytes()]).1.unwrap_err();
    for (text, message) in [
        (r#"{"items": [], "metadata": {"resourceVersion": "1"}}"#, "expected a ServiceCIDRList: kind is missing"),
        (
            r#"{"kind": "ServiceCIDRList", "metadata": {"resourceVersion": "1"}}"#,
            "expected a ServiceCIDRList: apiVersion is missing",
        ),
        (
            r#"{"kind": "ServiceCIDRList", "apiVersion": "v1", "#,
            "expected a ServiceCIDRList: apiVersion v1 of ServiceCIDRList can't be read, only networking.k8s.io/v1 and networking.k8s.io/v1beta1",
        ),
        (r#"{"kind": "PodList", "apiVersion": "v1", "items": []}"#, "expected a ServiceCIDRList, got a PodList"),
        (
            r#"{"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1"}"#,
            "expected a ServiceCIDRList, got a ServiceCIDR",
        ),
        (r#"{"kind": "ServiceCIDRList", "apiVersion": "networking.k8s.io/v1"}"#, "the list has no resourceVersion"),
        (
            r#"{"kind": "ServiceCIDRList", "apiVersion": "networking.k8s.io/v1", "metadata": null}"#,
            "the list has no resourceVersion",
        ),
        (
            r#"{"metadata": {"resourceVersion": 1}}"#,
            "metadata of the list: invalid type: integer `1`, expected a string",
        ),
        ("<html>", "'<' instead of an object"),
        ("null", "'n' instead of an object"),
        ("{\"items\": {}}", "'{' instead of a list"),
        ("{\"items\": [1 2]}", "'2' instead of a comma or an end"),
        ("{\"items\": [,]}", "an item is missing"),
        ("{\"a\": ,}", "a value is missing"),
        ("{\"a\" 1}", "'1' instead of a colon"),
        ("{\"a\": 1,}", "'}' instead of a key"),
    ] {
        assert_eq!(refused(text), malformed(message), "{text}");
    }
    let no_kind = [b"k8s\0".to_vec(), field(2, field(1, field(2, "7")))].concat();
    let refused = |body: &[u8]| list(Kind::Service, Encoding::Protobuf, [body]).1.unwrap_err();
    assert_eq!(refused(&no_kind), malformed("expected a ServiceList, got something without a kind"));
    assert_eq!(refused(b"{\"ki"), malformed("it doesn't begin as protobuf of Kubernetes does"));
    assert_eq!(refused(&wrapped("v1", "ServiceList", b"")), malformed("the list has no resourceVersion"));
    assert_eq!(refused(&[service_list(&[]), field(2, "")].concat()), malformed("a second list behind the first"));
    assert_eq!(refused(&[service_list(&[]), field(3, "gzip")].concat()), malformed("the list has a content encoding"));
    let behind = list(Kind::Service, Encoding::Json, [LISTS[0].1[0].1, b"{}"]).1;
    assert_eq!(behind, Err(malformed("something behind the list")));
    let within = wrapped("v1", "ServiceList", &[field(1, field(2, "7")), varint(2 << 3 | 2), varint(9)].concat());
    assert_eq!(refused(&within), malformed("a field goes beyond the end of the list"));
    // The first byte of a tag is the list's last, the next one belongs to what the list is wrapped in.
    let cut = wrapped("v1", "ServiceList", &[field(1, field(2, "7")), vec![0x92]].concat());
    for size in [1, cut.len()] {
        let end = list(Kind::Service, Encoding::Protobuf, cut.chunks(size)).1;
        assert_eq!(end, Err(malformed("a field goes beyond the end of the list")), "{size}");
    }
}

#[test]
fn members_in_any_order_and_form() {
    let body = "\u{20}\r\n{ \"items\" : [ { \"metadata\":{\"name\":\"a\"}} , {\"kind\":\"Node\",\"apiVersion\":\"v1\",\
        \"metadata\":{\"name\":\"b\"} }\t] , \"more\":[{\"items\":[1,\"}\\\"]\"]}],\"n\":-1.5e3,\"t\":true,\
        \"meta\\u0064ata\":{\"resourceVersion\":\"8\"},\"apiVersion\":\"v1\",\"kind\":\"NodeList\"}\n\n";
    for pieces in [1, 2, 3, 1000] {
        let (items, end) = list(Kind::Node, Encoding::Json, body.as_bytes().chunks(pieces));
        let names: Vec<_> = items.iter().map(|item| item.as_ref().unwrap().name().to_string()).collect();
        assert_eq!((names, &*end.unwrap().resource_version), (vec!["a".to_owned(), "b".to_owned()], "8"));
    }
    let events = r#"{"object":{"metadata":{"name":"a"}},"type":"ADDED"}{"more":{},"type":"DELETED","object":{"metadata":{"name":"a","x":[}}}"#;
    let node = ObjectName::cluster_wide("a");
    let (events, end) = watch(Kind::Node, Encoding::Json, events.as_bytes().chunks(1));
    assert!(matches!(&events[0].change, WatchChange::Upsert(KubeObject::Node(found)) if found.name == node));
    assert_eq!((events.len(), end), (1, Err(StreamError::Truncated)));
}

#[test]
fn damage_in_an_object_costs_that_object() {
    let good = |name: &str| meta("shop", name);
    let damaged = [good("b"), field(2, [0xff])].concat();
    let early = field(1, [field(1, "b"), vec![7]].concat());
    let body = service_list(&[good("a"), damaged, early, good(""), good("a b"), field(3, ""), good("c")]);
    let (items, end) = list(Kind::Service, Encoding::Protobuf, [&*body]);
    assert!(end.is_ok());
    let found: Vec<_> = items.iter().map(|item| item.as_ref().map(|object| object.name().to_string())).collect();
    assert_eq!(
        found,
        [
            Ok("shop/a".to_owned()),
            Err(&unreadable(Kind::Service, Some(ObjectName::new("shop", "b")), "a field ends beyond its message")),
            Err(&unreadable(Kind::Service, None, "a field of an unknown wire type")),
            Err(&unreadable(Kind::Service, None, "metadata.name is missing")),
            Err(&unreadable(
                Kind::Service,
                None,
                "metadata.name: \"a b\" can't be the name of a Service: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
            )),
            Err(&unreadable(Kind::Service, None, "metadata.name is missing")),
            Ok("shop/c".to_owned()),
        ]
    );
}

#[test]
fn a_damaged_object_has_the_name_whose_namespace_is_clear() {
    let nameless = |kind| unreadable(kind, None, "a deleted object without a name that can be read");
    let named = |namespace: &str| field(1, [field(1, "a"), field(3, namespace)].concat());
    let bare = || field(1, field(1, "a"));
    let damaged = |meta: Vec<u8>| [meta, vec![0xff]].concat();
    for (kind, object, wanted) in [
        (Kind::Service, named("shop"), Ok(ObjectName::new("shop", "a"))),
        (Kind::Service, damaged(named("shop")), Ok(ObjectName::new("shop", "a"))),
        (Kind::Service, bare(), Ok(ObjectName::new("default", "a"))),
        (Kind::Service, damaged(bare()), Err(nameless(Kind::Service))),
        (Kind::Node, bare(), Ok(ObjectName::cluster_wide("a"))),
        (Kind::Node, damaged(bare()), Ok(ObjectName::cluster_wide("a"))),
    ] {
        let body = frame("DELETED", &wrapped("v1", &kind.to_string(), &object));
        let changes: Vec<_> =
            watch(kind, Encoding::Protobuf, [&*body]).0.into_iter().map(|event| event.change).collect();
        assert_eq!(changes, [wanted.map_or_else(WatchChange::Unreadable, WatchChange::Delete)], "{kind} {object:?}");
    }
}

#[test]
fn damage_in_json_costs_that_object() {
    let head = r#""metadata":{"name":"b","namespace":"shop"}"#;
    let items = [
        format!("{{{head}}}"),
        format!(r#"{{{head},"spec":{{"ports":7}}}}"#),
        format!(r#"{{"spec":tru,{head}}}"#),
        format!(r#"{{{head},{head}}}"#),
        format!(r#"{{{head},"kind":"Pod","apiVersion":"v1"}}"#),
        format!(r#"{{{head},"spec":{{"clusterIP":"{}"}}}}"#, '\u{1}'),
        r#"{"metadata":{"name":"b","namespace":[]}}"#.to_owned(),
        r#"{"metadata":[]}"#.to_owned(),
        "null".to_owned(),
        format!("{{{head}}}"),
    ];
    let body = format!(
        r#"{{"kind":"ServiceList","apiVersion":"v1","metadata":{{"resourceVersion":"1"}},"items":[{}]}}"#,
        items.join(",")
    );
    let (items, end) = list(Kind::Service, Encoding::Json, [body.as_bytes()]);
    assert!(end.is_ok());
    let found: Vec<_> = items
        .iter()
        .map(|item| item.as_ref().map_err(|error| (error.name.as_ref().map(ToString::to_string), &*error.message)))
        .collect();
    let b = || Some("shop/b".to_owned());
    assert!(found[0].is_ok() && found[9].is_ok());
    for (index, name, message) in [
        (1, b(), "invalid type: integer `7`, expected a sequence"),
        (2, b(), "expected ident"),
        (3, None, "duplicate field `metadata`"),
        (4, None, "expected a Service, got a Pod"),
        (5, b(), "control character (\\u0000-\\u001F) found while parsing a string"),
        (6, None, "invalid type: sequence, expected a string"),
        (7, None, "invalid length 0, expected struct RawMeta with 8 elements"),
        (8, None, "invalid type: null, expected struct RawService"),
    ] {
        assert_eq!(found[index], Err((name, message)), "{index}");
    }
}

#[test]
fn damage_in_a_frame() {
    let event = |bytes: &[u8]| watch(Kind::Service, Encoding::Protobuf, [bytes]);
    let good = wrapped("v1", "Service", &meta("shop", "a"));
    let damaged = wrapped("v1", "Service", &[meta("shop", "a"), vec![0xff]].concat());
    let name = Some(ObjectName::new("shop", "a"));
    let only = |bytes: &[u8]| {
        let (mut events, end) = event(bytes);
        assert_eq!((events.len(), end), (1, Ok(())));
        events.remove(0)
    };
    assert_eq!(
        only(&frame("MODIFIED", &damaged)),
        WatchEvent {
            change: WatchChange::Unreadable(unreadable(Kind::Service, name.clone(), "a field ends beyond its message")),
            resource_version: Some("70".into())
        }
    );
    let deleted =
        WatchEvent { change: WatchChange::Delete(ObjectName::new("shop", "a")), resource_version: Some("70".into()) };
    assert_eq!(only(&frame("DELETED", &damaged)), deleted);
    let nameless =
        WatchChange::Unreadable(unreadable(Kind::Service, None, "a deleted object without a name that can be read"));
    assert_eq!(only(&frame("DELETED", &wrapped("v1", "Service", b"\xff"))).change, nameless);
    let bare =
        WatchChange::Unreadable(unreadable(Kind::Service, None, "an object doesn't begin as one in protobuf does"));
    assert_eq!(only(&frame("ADDED", b"{}")).change, bare);
    let unclear = Status {
        code: 0,
        reason: "".into(),
        message: "the server sent an error that can't be read".into(),
        retry_after_seconds: None,
    };
    assert_eq!(only(&frame("ERROR", b"")).change, WatchChange::Error(unclear));
    assert_eq!(event(&frame("RENAMED", &good)).1, Err(malformed("an event of type \"RENAMED\"")));
    assert_eq!(event(&[0, 0, 0, 1, 0xff]).1, Err(malformed("an event of the watch: a field ends beyond its message")));
    assert_eq!(event(&[0, 0, 0, 0]).1, Err(malformed("an event of type \"\"")));

    let event = |text: &str| watch(Kind::Node, Encoding::Json, [text.as_bytes()]);
    for (text, message) in [
        ("{}", "an event without a type or an object"),
        (r#"{"type":"ADDED"}"#, "an event without a type or an object"),
        (r#"{"type":"ADDED","type":"ADDED"}"#, "an event with two types"),
        (r#"{"object":1,"object":1}"#, "an event with two objects"),
        (r#"{"type":7"#, ""),
        ("7", "'7' instead of an object"),
    ] {
        let wanted = if message.is_empty() { StreamError::Truncated } else { malformed(message) };
        assert_eq!(event(text), (Vec::new(), Err(wanted)), "{text}");
    }
    assert_eq!(event(r#"{"type":7}"#).1, Err(malformed("an event of type \"\"")));
    let gone = event(r#"{"type":"DELETED","object":{"metadata":{"name":"a"},"status":{"addresses":7}}}"#);
    assert_eq!(gone.0[0].change, WatchChange::Delete(ObjectName::cluster_wide("a")));
    let nameless = event(r#"{"type":"DELETED","object":{}}"#).0.remove(0).change;
    assert_eq!(
        nameless,
        WatchChange::Unreadable(unreadable(Kind::Node, None, "a deleted object without a name that can be read"))
    );
}

#[test]
fn protobuf_as_others_may_write_it() {
    // Unknown fields of all types; a message in two parts; the last value counts; a long zero.
    let item = [
        number(1000, u64::MAX),
        vec![0xf9, 0x3e, 1, 2, 3, 4, 5, 6, 7, 8],
        vec![0xfd, 0x3e, 1, 2, 3, 4],
        field(1, field(1, "old")),
        field(1, [field(1, "a"), field(3, "shop")].concat()),
        field(2, [field(3, "10.0.0.1"), field(1, [number(3, 80), vec![5 << 3, 0x80, 0]].concat())].concat()),
        field(2, [field(3, "10.0.0.2"), field(1, number(3, 81))].concat()),
    ];
    let body = [service_list(&[item.concat()]), number(9, 1)].concat();
    let object = objects(Kind::Service, Encoding::Protobuf, &body).remove(0);
    let KubeObject::Service(service) = object else { panic!("{object:?}") };
    assert_eq!(
        (&service.name, &service.cluster_ip),
        (&ObjectName::new("shop", "a"), &Some(Ok("10.0.0.2".parse().unwrap())))
    );
    assert_eq!(service.ports.iter().map(|port| port.port.clone()).collect::<Vec<_>>(), [Ok(80), Ok(81)]);
    for (damage, message) in [
        (vec![0x0b], "a field of an unknown wire type"),
        (vec![0x00], "a field with an impossible number"),
        ([vec![0x08], vec![0xff; 9], vec![2]].concat(), "a number of more than 64 bits"),
        (number(1, 1), "a field has another type"),
        (field(1, field(1, [0xff])), "a text isn't UTF-8"),
        (field(1, field(8, field(1, ""))), "a field has another type"),
        (vec![0x09, 1, 2], "a field ends beyond its message"),
        (vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], "a field ends beyond its message"),
    ] {
        let (items, end) = list(Kind::Service, Encoding::Protobuf, [&*service_list(&[damage])]);
        assert!(end.is_ok());
        assert_eq!(items, [Err(unreadable(Kind::Service, None, message))]);
    }
}

#[test]
fn what_claims_to_be_large() {
    let large = MAX_OBJECT_BYTES as u64 + 1;
    let begin = b"k8s\0".to_vec();
    let type_meta = field(1, [field(1, "v1"), field(2, "ServiceList")].concat());
    for claim in [large, u64::from(u32::MAX) + 1, u64::MAX] {
        let outside = [begin.clone(), varint(1 << 3 | 2), varint(claim)].concat();
        assert_eq!(list(Kind::Service, Encoding::Protobuf, [&*outside]).1, Err(StreamError::TooLarge { bytes: claim }));
        let item =
            [begin.clone(), type_meta.clone(), varint(2 << 3 | 2), varint(u64::MAX), varint(2 << 3 | 2), varint(claim)];
        let error = list(Kind::Service, Encoding::Protobuf, [&*item.concat()]).1.unwrap_err();
        let beyond = malformed("a field goes beyond the end of the list");
        assert_eq!(error, if claim == u64::MAX { beyond } else { StreamError::TooLarge { bytes: claim } });
    }
    let bytes = (large as u32).to_be_bytes();
    assert_eq!(watch(Kind::Service, Encoding::Protobuf, [&bytes[..]]).1, Err(StreamError::TooLarge { bytes: large }));
    // The longest that is allowed is believed, but nothing is reserved for it.
    let mut decoder = WatchDecoder::new(Kind::Service, Encoding::Protobuf);
    decoder.push(&(MAX_OBJECT_BYTES as u32).to_be_bytes(), &mut Vec::new()).unwrap();
    decoder.push(&[1; 100], &mut Vec::new()).unwrap();
    assert!(decoder.capacity() < 1000);
}

#[test]
fn endless_texts() {
    let filler = vec![b'x'; 64 << 10];
    for beginning in [
        r#"{"items":[""#,
        r#"{"items":[{"metadata":{"name":""#,
        r#"{"metadata":{"continue":""#,
        r#"{""#,
        r#"{"more":""#,
        r#"{"type":"ADDED","object":{"a":""#,
        r#"{"object":{"a":""#,
        r#"{"n":1"#,
    ] {
        let mut list = ListDecoder::new(Kind::Service, Encoding::Json);
        let mut watch = WatchDecoder::new(Kind::Service, Encoding::Json);
        list.push(beginning.as_bytes(), &mut Vec::new()).unwrap();
        watch.push(beginning.as_bytes(), &mut Vec::new()).unwrap();
        let mut pushed = beginning.len();
        let mut errors = [None, None];
        while errors.iter().any(Option::is_none) {
            assert!(pushed <= MAX_OBJECT_BYTES + filler.len());
            pushed += filler.len();
            errors[0] = list.push(&filler, &mut Vec::new()).err();
            errors[1] = watch.push(&filler, &mut Vec::new()).err();
            assert!(list.capacity() <= MAX_OBJECT_BYTES && watch.capacity() <= MAX_OBJECT_BYTES);
        }
        let too_large = Some(StreamError::TooLarge { bytes: MAX_OBJECT_BYTES as u64 });
        assert_eq!(errors, [too_large.clone(), too_large], "{beginning}");
    }
    // An object that waits for its type counts with what comes behind it.
    let mut watch = WatchDecoder::new(Kind::Service, Encoding::Json);
    watch.push(br#"{"object":[""#, &mut Vec::new()).unwrap();
    for _ in 0..200 {
        watch.push(&filler, &mut Vec::new()).unwrap();
    }
    watch.push(br#""],"more":""#, &mut Vec::new()).unwrap();
    let error = (0..100).find_map(|_| watch.push(&filler, &mut Vec::new()).err());
    assert_eq!(error, Some(StreamError::TooLarge { bytes: MAX_OBJECT_BYTES as u64 }));
    assert!(watch.capacity() <= MAX_OBJECT_BYTES + (64 << 10), "{}", watch.capacity());
    // Short of that, a continue token is still refused.
    let token = format!(r#"{{"metadata":{{"continue":"{}"}}"#, "x".repeat(20_000));
    let refused = list(Kind::Service, Encoding::Json, [token.as_bytes()]).1;
    assert_eq!(refused, Err(malformed("a text of 20000 bytes in the list's metadata")));
}

#[test]
fn a_large_object_gives_its_memory_back() {
    let annotation = field(12, [field(1, "k"), field(2, "x".repeat(1 << 20))].concat());
    let item = field(1, [field(1, "a"), field(3, "shop"), annotation].concat());
    let text = format!(
        r#"{{"type":"ADDED","object":{{"metadata":{{"name":"a","namespace":"shop","annotations":{{"k":"{}"}}}}}}}}"#,
        "x".repeat(1 << 20)
    );
    for (encoding, frame) in
        [(Encoding::Protobuf, frame("ADDED", &wrapped("v1", "Service", &item))), (Encoding::Json, text.into_bytes())]
    {
        let (mut decoder, mut events, mut most) = (WatchDecoder::new(Kind::Service, encoding), Vec::new(), 0);
        for piece in frame.chunks(10_000) {
            decoder.push(piece, &mut events).unwrap();
            most = most.max(decoder.capacity());
        }
        assert!(matches!(&events[..], [WatchEvent { change: WatchChange::Upsert(_), .. }]));
        assert!(most >= 1 << 20 && decoder.capacity() <= 64 << 10, "{most}, {}", decoder.capacity());
    }
    let (mut decoder, mut items, mut most) = (ListDecoder::new(Kind::Service, Encoding::Protobuf), Vec::new(), 0);
    for piece in service_list(&[item]).chunks(10_000) {
        decoder.push(piece, &mut items).unwrap();
        most = most.max(decoder.capacity());
    }
    assert!(items.len() == 1 && most >= 1 << 20 && decoder.capacity() <= 64 << 10);
}

#[test]
fn objects_of_very_many_parts() {
    let many = [0x12, 0].repeat(300_000);
    let name = field(1, [field(1, "a"), field(3, "shop")].concat());
    let body = wrapped(
        "discovery.k8s.io/v1",
        "EndpointSliceList",
        &[field(1, field(2, "7")), field(2, [name, many].concat())].concat(),
    );
    let wanted = unreadable(
        Kind::EndpointSlice,
        Some(ObjectName::new("shop", "a")),
        "it has more parts than any object may have",
    );
    assert_eq!(list(Kind::EndpointSlice, Encoding::Protobuf, [&*body]).0, [Err(wanted.clone())]);
    let body = format!(
        r#"{{"items":[{{"metadata":{{"name":"a","namespace":"shop"}},"endpoints":[{}]}}]"#,
        vec!["{}"; 300_000].join(",")
    );
    assert_eq!(list(Kind::EndpointSlice, Encoding::Json, [body.as_bytes()]).0, [Err(wanted)]);
    // Beside its list, this object has seven parts.
    for (more, is_read) in [(MAX_PARTS as usize - 7, true), (MAX_PARTS as usize - 6, false)] {
        let body = format!(r#"{{"items":[{{"metadata":{{"name":"a"}},"x":[{}]}}]"#, vec!["{}"; more].join(","));
        let items = list(Kind::Node, Encoding::Json, [body.as_bytes()]).0;
        assert_eq!(items.iter().map(Result::is_ok).collect::<Vec<_>>(), [is_read]);
    }
}

#[test]
fn deep_nesting() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let node = |extra: &str| format!(r#"{{"metadata":{{"name":"a"}},{extra}:{deep}}}"#);
    let body = format!(
        r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{"resourceVersion":"1"}},"x":{deep},"items":[{},{},{deep}]}}"#,
        node(r#""x""#),
        node(r#""status""#)
    );
    let (items, end) = list(Kind::Node, Encoding::Json, [body.as_bytes()]);
    assert!(end.is_ok());
    let [Ok(_), Err(wrong_type), Err(no_object)] = &items[..] else { panic!("{items:?}") };
    assert_eq!((&wrong_type.name, &no_object.name), (&Some(ObjectName::cluster_wide("a")), &None));
    let body = format!(r#"{{"kind":"Status","x":{deep}}}"#);
    assert!(decode_status(Encoding::Json, body.as_bytes()).is_some());
}

#[test]
fn messages_are_short_and_plain() {
    let body = format!("{{\"items\":[{{\"metadata\":{{\"name\":\"a\"}},\"spec\":\"{}\\n\"}}]", "\\u0007".repeat(5000));
    let (items, _) = list(Kind::Node, Encoding::Json, [body.as_bytes()]);
    let Err(error) = &items[0] else { panic!("{items:?}") };
    assert!(
        error.message.starts_with("invalid type: string \"") && error.message.len() < 4096,
        "{}",
        error.message.len()
    );
    assert!(!error.message.contains(char::is_control));
}

fn any_body() -> impl Strategy<Value = (bool, Kind, Encoding, Vec<u8>)> {
    let lists =
        LISTS.into_iter().flat_map(|(kind, bodies)| bodies.map(|(encoding, body)| (false, kind, encoding, body)));
    let watches = both!("watch").into_iter().map(|(encoding, body)| (true, Kind::Service, encoding, body));
    let all: Vec<_> =
        lists.chain(watches).map(|(watch, kind, encoding, body)| (watch, kind, encoding, body.to_vec())).collect();
    prop::sample::select(all)
}

proptest! {
    /// However a body is cut, whole or damaged, the result is the same.
    #[test]
    fn pieces_of_any_size(
        (is_watch, kind, encoding, mut body) in any_body(),
        sizes in prop::collection::vec(1usize..200, 1..40),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        for (index, byte) in damage {
            let at = index.index(body.len());
            body[at] = byte;
        }
        let mut pieces = Vec::new();
        let mut rest = &*body;
        for size in sizes.iter().cycle() {
            let (piece, behind) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece);
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        if is_watch {
            prop_assert_eq!(watch(kind, encoding, [&*body]), watch(kind, encoding, pieces));
        } else {
            prop_assert_eq!(list(kind, encoding, [&*body]), list(kind, encoding, pieces));
        }
    }
}
