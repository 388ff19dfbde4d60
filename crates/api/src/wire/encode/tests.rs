//! What is encoded decodes to an equal object: objects of JSON with random, also invalid, values in every field that is read.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::object::{KubeObject, Timestamp};
use crate::wire::time::format_timestamp;
use crate::wire::{decode_object, encode_object, parse_timestamp};

/// One of these values, or the field is absent.
fn one_of(values: Vec<Value>) -> impl Strategy<Value = Option<Value>> {
    proptest::option::of(proptest::sample::select(values))
}

/// A list of these values, an empty one included.
fn list_of(item: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    proptest::option::of(proptest::collection::vec(item, 0..4).prop_map(Value::from))
}

/// An object of these fields.
fn object(fields: Vec<(&'static str, BoxedStrategy<Option<Value>>)>) -> BoxedStrategy<Value> {
    let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    let filled = move |values: Vec<Option<Value>>| {
        names.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?))).collect()
    };
    values.prop_map(filled).prop_map(Value::Object).boxed()
}

fn some(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    value.prop_map(Some)
}

fn maybe(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    proptest::option::of(value)
}

fn words(words: &[&str]) -> Vec<Value> {
    words.iter().map(|word| Value::from(*word)).collect()
}

fn address() -> impl Strategy<Value = Value> {
    let odd = ["", "None", "10.0.0.1", "010.0.0.1", "fd00::1", "::ffff:10.0.0.1", "fe80::1%a", "ü\"\\\n"];
    prop_oneof![proptest::sample::select(words(&odd)), any::<std::net::IpAddr>().prop_map(|ip| ip.to_string().into())]
}

fn range() -> impl Strategy<Value = Value> {
    proptest::sample::select(words(&[
        "",
        "10.0.0.0/8",
        "10.0.0.1/8",
        " 10.0.0.1 ",
        "fd00::/64",
        "::ffff:10.0.0.0/104",
        "x",
    ]))
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        proptest::sample::select(vec![json!(0), json!(-1), json!(80), json!(65_536), json!(1e30), json!(90_000)]),
        any::<i64>().prop_map(Value::from),
    ]
}

fn protocol() -> BoxedStrategy<Option<Value>> {
    one_of(words(&["", "TCP", "UDP", "SCTP", "udp"])).boxed()
}

fn name() -> BoxedStrategy<Option<Value>> {
    one_of(words(&["", "http", "b", "Ü"])).boxed()
}

fn metadata(namespace: bool) -> BoxedStrategy<Option<Value>> {
    let labels = object(vec![
        ("service.kubernetes.io/service-proxy-name", name()),
        ("service.kubernetes.io/headless", name()),
        ("kubernetes.io/service-name", one_of(words(&["", "web", "No Name"])).boxed()),
        ("topology.kubernetes.io/zone", name()),
    ]);
    let times = ["2024-05-01T12:00:00Z", "2024-05-01T12:00:00.123456789+02:00", "0001-01-01T00:00:00Z", "yesterday"];
    let annotations = object(vec![
        ("endpoints.kubernetes.io/last-change-trigger-time", one_of(words(&times)).boxed()),
        ("ferry.io/ipvs-scheduler", one_of(vec![json!("wlc"), json!(""), json!(7)]).boxed()),
        ("ferry.io/ipvs-weight-zones", name()),
        ("ferry.io/ipvs-weight-local", name()),
        ("example.com/password", name()),
    ]);
    let uids = words(&["0f5c9d6e-2a1b-4c3d-8e4f-a1b2c3d4e5f6", "1"]);
    let namespaces = if namespace { words(&["demo", "default"]) } else { Vec::new() };
    let namespaces = if namespaces.is_empty() { Just(None).boxed() } else { one_of(namespaces).boxed() };
    some(object(vec![
        ("name", some(Just(json!("web"))).boxed()),
        ("namespace", namespaces),
        ("uid", one_of(uids).boxed()),
        ("creationTimestamp", one_of(words(&times)).boxed()),
        ("deletionTimestamp", one_of(words(&times[..1])).boxed()),
        ("labels", maybe(labels).boxed()),
        ("annotations", maybe(annotations).boxed()),
    ]))
    .boxed()
}

fn service() -> BoxedStrategy<Value> {
    let port = object(vec![
        ("name", name()),
        ("protocol", protocol()),
        ("port", maybe(number()).boxed()),
        ("nodePort", maybe(number()).boxed()),
    ]);
    let policies = || one_of(words(&["", "Cluster", "Local", "Else"])).boxed();
    let client = object(vec![("timeoutSeconds", maybe(number()).boxed())]);
    let config = object(vec![("clientIP", maybe(client).boxed())]);
    let spec = object(vec![
        ("type", one_of(words(&["", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "Else"])).boxed()),
        ("clusterIP", maybe(address()).boxed()),
        ("clusterIPs", list_of(address()).boxed()),
        ("ipFamilies", list_of(proptest::sample::select(words(&["", "IPv4", "IPv6"]))).boxed()),
        ("ports", list_of(port).boxed()),
        ("externalIPs", list_of(address()).boxed()),
        ("loadBalancerSourceRanges", list_of(range()).boxed()),
        ("sessionAffinity", one_of(words(&["", "None", "ClientIP", "Else"])).boxed()),
        ("sessionAffinityConfig", maybe(config).boxed()),
        ("internalTrafficPolicy", policies()),
        ("externalTrafficPolicy", policies()),
        ("healthCheckNodePort", maybe(number()).boxed()),
    ]);
    let modes = one_of(words(&["", "VIP", "Proxy", "Else"])).boxed();
    let ingress = list_of(object(vec![("ip", maybe(address()).boxed()), ("ipMode", modes)])).boxed();
    let balancer = maybe(object(vec![("ingress", ingress)])).boxed();
    let status = maybe(object(vec![("loadBalancer", balancer)])).boxed();
    object(vec![
        ("apiVersion", some(Just(json!("v1"))).boxed()),
        ("kind", some(Just(json!("Service"))).boxed()),
        ("metadata", metadata(true)),
        ("spec", maybe(spec).boxed()),
        ("status", status),
    ])
}

fn slice() -> BoxedStrategy<Value> {
    let flag = || one_of(vec![json!(true), json!(false)]).boxed();
    let conditions = object(vec![("ready", flag()), ("serving", flag()), ("terminating", flag())]);
    let hint = || list_of(object(vec![("name", name())])).boxed();
    let endpoint = object(vec![
        ("addresses", list_of(address()).boxed()),
        ("conditions", maybe(conditions).boxed()),
        ("nodeName", name()),
        ("zone", name()),
        ("hints", maybe(object(vec![("forZones", hint()), ("forNodes", hint())])).boxed()),
    ]);
    let port = object(vec![("name", name()), ("protocol", protocol()), ("port", maybe(number()).boxed())]);
    object(vec![
        ("apiVersion", some(Just(json!("discovery.k8s.io/v1"))).boxed()),
        ("kind", some(Just(json!("EndpointSlice"))).boxed()),
        ("metadata", metadata(true)),
        ("addressType", one_of(words(&["", "IPv4", "IPv6", "FQDN"])).boxed()),
        ("ports", list_of(port).boxed()),
        ("endpoints", maybe(proptest::collection::vec(endpoint, 0..12).prop_map(Value::from)).boxed()),
    ])
}

fn node() -> BoxedStrategy<Value> {
    let kinds = one_of(words(&["InternalIP", "ExternalIP", "Hostname"])).boxed();
    let addresses = list_of(object(vec![("type", kinds), ("address", maybe(address()).boxed())])).boxed();
    let taint = object(vec![("key", one_of(words(&["a", "ToBeDeletedByClusterAutoscaler"])).boxed())]);
    let spec = object(vec![
        ("podCIDR", maybe(range()).boxed()),
        ("podCIDRs", list_of(range()).boxed()),
        ("taints", list_of(taint).boxed()),
    ]);
    object(vec![
        ("apiVersion", some(Just(json!("v1"))).boxed()),
        ("kind", some(Just(json!("Node"))).boxed()),
        ("metadata", metadata(false)),
        ("spec", maybe(spec).boxed()),
        ("status", maybe(object(vec![("addresses", addresses)])).boxed()),
    ])
}

fn service_cidr() -> BoxedStrategy<Value> {
    object(vec![
        ("apiVersion", some(Just(json!("networking.k8s.io/v1"))).boxed()),
        ("kind", some(Just(json!("ServiceCIDR"))).boxed()),
        ("metadata", metadata(false)),
        ("spec", maybe(object(vec![("cidrs", list_of(range()).boxed())])).boxed()),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_encoded_object_decodes_to_itself(json in prop_oneof![service(), slice(), node(), service_cidr()]) {
        let object = decode_object(&json.to_string()).unwrap();
        let text = encode_object(&object);
        prop_assert_eq!(decode_object(&text), Ok(object), "{}", text);
        prop_assert!(!text.contains('\n') && !text.contains("password"), "{}", text);
    }

    #[test]
    fn a_time_that_has_a_text_is_read_back(seconds in -62_167_219_200..253_402_300_800_i64, nanoseconds in 0..1_000_000_000_u32) {
        let time = Timestamp { seconds, nanoseconds };
        let text = format_timestamp(time).unwrap();
        prop_assert_eq!(parse_timestamp(&text), Some(time), "{}", text);
    }
}

#[test]
fn times_without_a_text_are_left_out() {
    for seconds in [i64::MIN, -62_167_219_201, 253_402_300_800, i64::MAX] {
        assert_eq!(format_timestamp(Timestamp { seconds, nanoseconds: 0 }), None, "{seconds}");
    }
    let leap = Timestamp { seconds: 951_825_600, nanoseconds: 0 };
    assert_eq!(format_timestamp(leap).as_deref(), Some("2000-02-29T12:00:00Z"));
}

#[test]
fn only_the_fields_that_are_read_are_written() {
    let text = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"demo","annotations":{"token":"s3cret"},
        "labels":{"app":"web"},"managedFields":[{"manager":"x"}]},"spec":{"clusterIP":"10.96.0.1","selector":{"app":"web"},
        "ports":[{"port":80,"targetPort":"http"}]}}"#;
    let KubeObject::Service(service) = decode_object(text).unwrap() else { panic!("no Service") };
    let wanted = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"demo"},"spec":{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"ports":[{"port":80}]}}"#;
    assert_eq!(encode_object(&KubeObject::Service(service)), wanted);
}
