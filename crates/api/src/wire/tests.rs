//! Manifests: forms of files, defaults, bad values, broken files.

use std::fmt::Write as _;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::object::{
    AddressKind, AddressType, BalancingAnnotations, Conditions, EndpointSlice, Family, LoadBalancerIngress, Node,
    NodeAddress, ObjectName, OddField, OddValue, Protocol, Service, ServicePort, ServiceType, SlicePort, Timestamp,
    TrafficPolicy, Uid,
};

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
const SLICE: &str = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1}\n";
const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n";

fn objects(text: &str) -> Vec<KubeObject> {
    let documents = decode_manifest(text).complete().unwrap();
    documents
        .into_iter()
        .map(|document| match document {
            Document::Object(object) => object,
            Document::Ignored { kind } => panic!("{kind}"),
        })
        .collect()
}

fn service(rest: &str) -> Service {
    match objects(&format!("{SERVICE}{rest}")).remove(0) {
        KubeObject::Service(service) => service,
        other => panic!("{other:?}"),
    }
}

fn slice(rest: &str) -> EndpointSlice {
    match objects(&format!("{SLICE}{rest}")).remove(0) {
        KubeObject::EndpointSlice(slice) => slice,
        other => panic!("{other:?}"),
    }
}

fn node(text: &str) -> Node {
    match objects(text).remove(0) {
        KubeObject::Node(node) => node,
        other => panic!("{other:?}"),
    }
}

fn refusal(text: &str) -> String {
    decode_manifest(text).complete().unwrap_err().to_string()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Kind and name of each document.
fn titles(text: &str) -> Vec<String> {
    let documents = decode_manifest(text).complete().unwrap();
    documents
        .iter()
        .map(|document| match document {
            Document::Object(object) => format!("{} {}", object.kind(), object.name()),
            Document::Ignored { kind } => format!("({kind})"),
        })
        .collect()
}

const WHOLE_SERVICE: &str = "
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  uid: 01234567-89ab-4def-8123-456789abcdef
  creationTimestamp: '2024-05-01T10:00:00Z'
  labels: {app: web, service.kubernetes.io/service-proxy-name: ''}
  managedFields: [{manager: kubectl}]
spec:
  type: LoadBalancer
  clusterIP: 10.0.0.010
  clusterIPs: [10.0.0.10, 'fd00::a']
  ipFamilies: [IPv4, IPv6]
  ports:
  - {name: http, port: 80, protocol: TCP, targetPort: http, nodePort: 30080}
  - {name: dns, port: 53, protocol: UDP}
  - {name: sig, port: 3868, protocol: SCTP, nodePort: null}
  externalIPs: [192.0.2.1, '::ffff:192.0.2.2']
  loadBalancerSourceRanges: [' 10.0.0.1/8 ', 'fd00::/16']
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  internalTrafficPolicy: Local
  externalTrafficPolicy: Local
  healthCheckNodePort: 32000
  selector: {app: web}
status:
  loadBalancer:
    ingress:
    - {ip: 198.51.100.1}
    - {ip: 198.51.100.2, ipMode: Proxy}
    - {ip: 198.51.100.3, ipMode: VIP, ports: [{port: 80}]}
    - {hostname: lb.example}
";

#[test]
fn a_whole_service() {
    let port = |name: &str, protocol, port, node_port| ServicePort {
        name: name.into(),
        protocol: Ok(protocol),
        port: Ok(port),
        node_port: Ok(node_port),
    };
    let ingress = |ip: &str, proxy_mode| LoadBalancerIngress { ip: Ok(address(ip)), proxy_mode };
    let wanted = Service {
        name: ObjectName::new("shop", "web"),
        uid: Uid::parse("01234567-89ab-4def-8123-456789abcdef"),
        created: Some(Timestamp { seconds: 1_714_557_600, nanoseconds: 0 }),
        foreign_proxy: true,
        kind: ServiceType::LoadBalancer,
        cluster_ip: Some(Ok(address("10.0.0.10"))),
        cluster_ips: [Ok(address("10.0.0.10")), Ok(address("fd00::a"))].into(),
        families: [Family::V4, Family::V6].into(),
        ports: [
            port("http", Protocol::Tcp, 80, 30080),
            port("dns", Protocol::Udp, 53, 0),
            port("sig", Protocol::Sctp, 3868, 0),
        ]
        .into(),
        external_ips: [Ok(address("192.0.2.1")), Ok(address("192.0.2.2"))].into(),
        ingress: [ingress("198.51.100.1", false), ingress("198.51.100.2", true), ingress("198.51.100.3", false)].into(),
        source_ranges: [Ok("10.0.0.1/8".parse().unwrap()), Ok("fd00::/16".parse().unwrap())].into(),
        affinity_seconds: Some(60),
        internal_policy: TrafficPolicy::Local,
        external_policy: TrafficPolicy::Local,
        health_check_node_port: 32000,
        odd: [].into(),
        balancing: None,
    };
    assert_eq!(objects(WHOLE_SERVICE), [KubeObject::Service(wanted)]);
}

#[test]
fn a_uid_is_one_or_none() {
    for (uid, wanted) in [
        ("01234567-89ab-4def-8123-456789abcdef", true),
        ("'01234567-89ab-4def-8123-456789abcdef'", true),
        ("web", false),
        ("7", false),
        ("[1]", false),
        ("", false),
    ] {
        let text = format!("apiVersion: v1\nkind: Service\nmetadata: {{name: web, uid: {uid}}}\n");
        let found = objects(&text);
        assert!(matches!(&found[..], [KubeObject::Service(service)] if service.uid.is_some() == wanted), "{uid}");
    }
}

#[test]
fn annotations_about_balancing() {
    let of = |annotations: &str| {
        let text = format!("apiVersion: v1\nkind: Service\nmetadata: {{name: web, annotations: {annotations}}}\n");
        match objects(&text).remove(0) {
            KubeObject::Service(service) => service,
            other => panic!("{other:?}"),
        }
    };
    let bare = of("{}");
    for none in ["", "{other: 1, ferry.io/ipvs: wlc}", "{ferry.io/ipvs-scheduler: null}"] {
        assert_eq!(of(none), bare, "{none:?}");
    }
    assert_eq!(bare.balancing, None);
    let all =
        of("{ferry.io/ipvs-scheduler: wlc, ferry.io/ipvs-weight-zones: 'a=3,b=1', ferry.io/ipvs-weight-local: '2'}");
    let wanted = BalancingAnnotations {
        scheduler: Some("wlc".into()),
        weight_zones: Some("a=3,b=1".into()),
        weight_local: Some("2".into()),
    };
    assert_eq!(all.balancing.as_deref(), Some(&wanted));
    assert_eq!(all.weight_bytes() - bare.weight_bytes(), size_of::<BalancingAnnotations>() + "wlca=3,b=12".len());
    // A value that is no string doesn't cost the Service.
    let numbers = of("{ferry.io/ipvs-scheduler: [wlc], ferry.io/ipvs-weight-local: 2}");
    let wanted = BalancingAnnotations { scheduler: Some("".into()), weight_zones: None, weight_local: Some("".into()) };
    assert_eq!(numbers.balancing.as_deref(), Some(&wanted));
}

#[test]
fn zones_of_endpoints() {
    let slice = slice(
        "addressType: IPv4\nendpoints:\n\
         - {addresses: [10.0.0.1], nodeName: n1, zone: a}\n- {addresses: [10.0.0.2], zone: a}\n\
         - {addresses: [10.0.0.3], nodeName: n1, zone: b}\n- {addresses: [10.0.0.4], nodeName: n2}\n\
         - {addresses: [10.0.0.5]}\n- {addresses: [10.0.0.6], nodeName: n1, zone: a}\n",
    );
    let places: Vec<_> =
        slice.endpoints.iter().map(|endpoint| (slice.node_of(endpoint), slice.zone_of(endpoint))).collect();
    let (n1, n2, a, b) = (Some("n1"), Some("n2"), Some("a"), Some("b"));
    assert_eq!(places, [(n1, a), (None, a), (n1, b), (n2, None), (None, None), (n1, a)]);
}

#[test]
fn defaults_of_the_api_server() {
    let bare = service("spec: {clusterIP: 10.0.0.1, sessionAffinity: ClientIP, ports: [{port: 80}]}");
    assert_eq!(bare.name, ObjectName::new("default", "web"));
    assert_eq!(
        bare.ports[0],
        ServicePort { name: "".into(), protocol: Ok(Protocol::Tcp), port: Ok(80), node_port: Ok(0) }
    );
    assert_eq!(bare.affinity_seconds, Some(10_800));
    assert_eq!((bare.internal_policy, bare.external_policy), (TrafficPolicy::Cluster, TrafficPolicy::Cluster));
    assert_eq!((bare.kind, bare.foreign_proxy, bare.created), (ServiceType::ClusterIp, false, None));
    assert_eq!(*bare.cluster_ips, [Ok(address("10.0.0.1"))]);
    assert_eq!(service("spec: {sessionAffinity: None}").affinity_seconds, None);
    let empty = service("");
    assert_eq!((empty.ports.len(), empty.cluster_ip.is_none(), empty.cluster_ips.len()), (0, true, 0));
    let nulls = service("spec: {ports: null, clusterIP: null, externalIPs: ~}\nstatus: {loadBalancer: {}}");
    assert_eq!(nulls, empty);

    let bare = slice("addressType: IPv4\nports: [{port: 80}, {name: null}]\nendpoints: [{addresses: [10.1.0.1]}]");
    let port = |port| SlicePort { name: Some("".into()), protocol: Ok(Protocol::Tcp), port };
    assert_eq!(*bare.ports, [port(Some(Ok(80))), port(None)]);
    assert_eq!(bare.endpoints[0].conditions, Conditions { ready: true, serving: true, terminating: false });
    assert_eq!((bare.service, bare.headless, bare.trigger_time), (None, false, None));
}

#[test]
fn families_and_addresses_stay_in_step() {
    for (spec, families, ips) in [
        ("clusterIP: None", vec![], vec![]),
        ("clusterIP: None, clusterIPs: [None], ipFamilies: [IPv4]", vec![], vec![]),
        ("clusterIP: 10.0.0.1, ipFamilies: [IPv4]", vec![Family::V4], vec!["10.0.0.1"]),
        ("clusterIPs: ['', 'fd00::1'], ipFamilies: [IPv4, IPv6]", vec![Family::V6], vec!["fd00::1"]),
        ("clusterIPs: [10.0.0.1, 'fd00::1'], ipFamilies: [IPv5, IPv6]", vec![Family::V6], vec!["fd00::1"]),
        ("clusterIPs: [10.0.0.1, 'fd00::1']", vec![], vec!["10.0.0.1", "fd00::1"]),
    ] {
        let service = service(&format!("spec: {{{spec}}}"));
        let ips: Vec<_> = ips.into_iter().map(|ip| Ok(address(ip))).collect();
        assert_eq!((service.families.to_vec(), service.cluster_ips.to_vec()), (families, ips), "{spec}");
    }
    assert_eq!(service("spec: {clusterIP: None}").cluster_ip, None);
    assert_eq!(service("spec: {clusterIP: ''}").cluster_ip, None);
}

#[test]
fn a_whole_slice() {
    let text = "
addressType: IPv6
apiVersion: discovery.k8s.io/v1
endpoints:
- addresses: ['fd00::0001', ignored]
  conditions: {ready: false, serving: true, terminating: true}
  nodeName: n1
  zone: unread
  hints: {forZones: [{name: a}, {name: b}], forNodes: [{name: n1}]}
  targetRef: {kind: Pod, name: x}
- addresses: ['fd00::2']
  conditions: {ready: null}
  nodeName: n1
- addresses: []
- addresses: [broken]
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  annotations: {endpoints.kubernetes.io/last-change-trigger-time: '2024-05-01T10:00:00.5Z'}
  labels: {kubernetes.io/service-name: web, service.kubernetes.io/headless: ''}
ports:
- {name: http, port: 8080, protocol: TCP, appProtocol: x}
- {name: dns, port: 53, protocol: UDP}
";
    let documents = objects(text);
    let KubeObject::EndpointSlice(slice) = &documents[0] else { panic!("{documents:?}") };
    assert_eq!(
        (&slice.name, &slice.service),
        (&ObjectName::new("shop", "web-1"), &Some(ObjectName::new("shop", "web")))
    );
    assert_eq!((slice.headless, slice.address_type), (true, AddressType::Ipv6));
    assert_eq!(slice.trigger_time, Some(Timestamp { seconds: 1_714_557_600, nanoseconds: 500_000_000 }));
    let port = |name: &str, protocol, port| SlicePort {
        name: Some(name.into()),
        protocol: Ok(protocol),
        port: Some(Ok(port)),
    };
    assert_eq!(*slice.ports, [port("http", Protocol::Tcp, 8080), port("dns", Protocol::Udp, 53)]);
    let [first, second] = &*slice.endpoints else { panic!("{slice:?}") };
    assert_eq!((first.address, second.address), (address("fd00::1"), address("fd00::2")));
    assert_eq!(first.conditions, Conditions { ready: false, serving: true, terminating: true });
    assert_eq!(second.conditions, Conditions::default());
    assert_eq!((slice.node_of(first), slice.node_of(second)), (Some("n1"), Some("n1")));
    let hints = slice.hints_of(first).unwrap();
    assert_eq!((&*hints.zones, &*hints.nodes), (&["a".into(), "b".into()][..], &["n1".into()][..]));
    assert_eq!(slice.hints_of(second), None);
    assert_eq!(*slice.bad_addresses, ["broken".into()]);
}

#[test]
fn a_node_and_a_service_cidr() {
    let text = "
apiVersion: v1
kind: Node
metadata:
  name: n1
  namespace: ignored
  labels: {topology.kubernetes.io/zone: a}
  deletionTimestamp: '2024-05-01T10:00:00Z'
spec:
  podCIDR: 10.244.1.0/24
  podCIDRs: [10.244.1.0/24, 'fd00:1::/64', x]
  taints: [{key: other, effect: NoSchedule}, {key: ToBeDeletedByClusterAutoscaler}]
status:
  addresses:
  - {type: Hostname, address: n1}
  - {type: InternalIP, address: 192.168.0.1}
  - {type: ExternalIP, address: n1.example}
";
    let wanted = Node {
        name: ObjectName::cluster_wide("n1"),
        zone: Some("a".into()),
        addresses: [
            NodeAddress { kind: AddressKind::Internal, address: Ok(address("192.168.0.1")) },
            NodeAddress { kind: AddressKind::External, address: Err("n1.example".into()) },
        ]
        .into(),
        pod_cidrs: [Ok("10.244.1.0/24".parse().unwrap()), Ok("fd00:1::/64".parse().unwrap()), Err("x".into())].into(),
        deleting: true,
        to_be_deleted: true,
    };
    assert_eq!(node(text), wanted);
    let bare = node(&format!("{NODE}spec: {{podCIDR: 10.244.1.0/24}}"));
    assert_eq!(*bare.pod_cidrs, [Ok("10.244.1.0/24".parse().unwrap())]);
    assert_eq!((bare.zone, bare.deleting, bare.to_be_deleted), (None, false, false));
    for version in ["v1", "v1beta1"] {
        let text = format!(
            "apiVersion: networking.k8s.io/{version}\nkind: ServiceCIDR\nmetadata: {{name: kubernetes}}\nspec: {{cidrs: \
             [10.96.0.0/12, x]}}"
        );
        let documents = objects(&text);
        let KubeObject::ServiceCidr(range) = &documents[0] else { panic!("{documents:?}") };
        assert_eq!(range.name, ObjectName::cluster_wide("kubernetes"));
        assert_eq!(*range.cidrs, [Ok("10.96.0.0/12".parse().unwrap()), Err("x".into())]);
    }
}

#[test]
fn a_bad_value_harms_its_field_only() {
    let ports = service(
        "spec: {clusterIP: x, externalIPs: [z], loadBalancerSourceRanges: [10.0.0.0, 10.0.0], healthCheckNodePort: 70000, ports: \
         [{port: 0}, {port: 70000, nodePort: -1, protocol: tcp}, {}, {port: 99999999999999999999}]}",
    );
    assert_eq!(ports.cluster_ip, Some(Err("x".into())));
    assert_eq!(*ports.external_ips, [Err("z".into())]);
    assert_eq!(*ports.source_ranges, [Ok("10.0.0.0/32".parse().unwrap()), Err("10.0.0".into())]);
    assert_eq!(ports.health_check_node_port, 0);
    let numbers: Vec<_> = ports.ports.iter().map(|port| port.port.clone()).collect();
    let bad = |text: &str| Err(text.into());
    assert_eq!(numbers, [bad("0"), bad("70000"), bad("0"), bad("9223372036854775807")]);
    assert_eq!((&ports.ports[1].node_port, &ports.ports[1].protocol), (&bad("-1"), &Err("tcp".into())));
    let odd = service(
        "spec: {type: Strange, externalTrafficPolicy: Never, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: \
         {timeoutSeconds: -1}}}",
    );
    assert_eq!((odd.kind, odd.external_policy), (ServiceType::ClusterIp, TrafficPolicy::Cluster));
    assert_eq!(odd.affinity_seconds, Some(10_800));
    let ports = slice("addressType: FQDN\nports: [{port: 0, protocol: ICMP}]").ports;
    assert_eq!((&ports[0].port, &ports[0].protocol), (&Some(bad("0")), &Err("ICMP".into())));
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a, creationTimestamp: yesterday}";
    let documents = objects(text);
    let KubeObject::Service(undated) = &documents[0] else { panic!("{documents:?}") };
    assert_eq!(undated.created, None);
}

#[test]
fn forms_of_files() {
    let item = "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"b\"}}";
    for (text, wanted) in [
        (String::new(), &[][..]),
        ("# nothing\n---\n---\nnull\n---\n".to_owned(), &[]),
        (format!("---\n{SERVICE}---\n{SLICE}...\n---\n# empty\n---\n{NODE}"), &["Service default/web", "EndpointSlice default/web-1", "Node n1"]),
        (format!("\u{feff}%YAML 1.1\n---\n{SERVICE}").replace('\n', "\r\n"), &["Service default/web"]),
        ("apiVersion: apps/v1\nkind: Deployment\nmetadata: 5\nspec: {ports: x}\nitems: {a: b}\n".to_owned(), &["(Deployment)"]),
        ("apiVersion: serving.knative.dev/v1\nkind: Service\nspec: {ports: x}\n".to_owned(), &["(Service)"]),
        ("apiVersion: example.com/discovery.k8s.io\nkind: EndpointSlice\n".to_owned(), &["(EndpointSlice)"]),
        ("apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceSet\n".to_owned(), &["(EndpointSliceSet)"]),
        (
            format!("apiVersion: v1\nkind: List\nitems:\n- {item}\n- {{apiVersion: v1, kind: Pod, spec: 5}}\n- {item}\n"),
            &["Service default/b", "(Pod)", "Service default/b"],
        ),
        ("items: [{metadata: {name: a}}]\nkind: ServiceList\napiVersion: v1\nmetadata: {resourceVersion: '5'}\n".to_owned(), &["Service default/a"]),
        ("apiVersion: v1\nkind: NodeList\nitems: [{kind: Node, metadata: {name: a}}]\n".to_owned(), &["Node a"]),
        ("apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems: [{metadata: {name: a}}]\n".to_owned(), &["EndpointSlice default/a"]),
        ("apiVersion: networking.k8s.io/v1\nkind: ServiceCIDRList\nitems: [{metadata: {name: a}}]\n".to_owned(), &["ServiceCIDR a"]),
        ("apiVersion: v1\nkind: List\nitems: null\n".to_owned(), &[]),
        ("apiVersion: v1\nkind: List\n".to_owned(), &[]),
        (format!(" {item}"), &["Service default/b"]),
        (format!("{item}\n{item}"), &["Service default/b", "Service default/b"]),
        (format!("{item}\n---\n{SERVICE}"), &["Service default/b", "Service default/web"]),
        (format!("{{\"kind\":\"List\",\"items\":[{item},{item}],\"apiVersion\":\"v1\"}}"), &["Service default/b", "Service default/b"]),
        ("{apiVersion: v1, kind: Service, metadata: {name: flow}}".to_owned(), &["Service default/flow"]),
        (
            "apiVersion: v1\nkind: List\nx: &head {apiVersion: v1, kind: Service}\nitems:\n- {<<: *head, metadata: {name: a}}\n- \
             {<<: *head, metadata: {name: b}}\n"
                .to_owned(),
            &["Service default/a", "Service default/b"],
        ),
    ] {
        assert_eq!(titles(&text), wanted, "{text}");
    }
}

#[test]
fn lines_that_only_look_like_the_type_are_no_type() {
    let document = |own: &str| {
        format!("--- {{metadata: {{name: a}}, x: {{\nkind: Service\n}}, y: {{\napiVersion: v1\n}}, {own}}}\n")
    };
    for (own, wanted) in [
        ("apiVersion: v1, kind: Service", "Service default/a"),
        ("apiVersion: v1, kind: Node", "Node a"),
        ("apiVersion: serving.knative.dev/v1, kind: Service", "(Service)"),
    ] {
        assert_eq!(titles(&document(own)), [wanted]);
    }
}

#[test]
fn a_head_of_other_types_is_as_good_as_absent() {
    for value in ["null", "true", "7", "-7", "1.5", "[1, {}]", r#"{"a": [1]}"#] {
        for (text, wanted) in [
            (format!(r#"{{"apiVersion": {value}, "kind": "Node"}}"#), "apiVersion is missing"),
            (format!(r#"{{"apiVersion": "v1", "kind": {value}}}"#), "kind is missing"),
            (
                format!(r#"{{"metadata": {value}, "items": {value}, "apiVersion": "apps/v1", "kind": "Deployment"}}"#),
                "an object of kind \"Deployment\"",
            ),
        ] {
            assert_eq!(decode_object(&text), Err(wanted.to_owned()), "{text}");
        }
    }
}

#[test]
fn anchors_are_expanded() {
    let both =
        service("spec: {ports: [&p {port: 80, protocol: UDP}, *p], externalIPs: &ips [10.0.0.1], clusterIPs: *ips}");
    assert_eq!((both.ports.len(), &both.ports[0]), (2, &both.ports[1]));
    assert_eq!(both.external_ips, both.cluster_ips);
}

/// The head of a file, its rest, and why it can't be used.
const BROKEN: &[(&str, &str, &str)] = &[
    (SERVICE, "spec:\n  ports: x\n", "line 5, column 10: Service web: expected a list"),
    (SERVICE, "spec: []\n", "line 4, column 7: Service web: expected a map"),
    (
        "",
        "# first\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  ports:\n  - port: '80'\n",
        "line 12, column 5: Service web: invalid type: string \"80\", expected an integer",
    ),
    (
        SERVICE,
        "spec: {ports: [{port: 1.5}]}",
        "line 4, column 17: Service web: invalid type: floating point `1.5`, expected an integer",
    ),
    (
        "",
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: 5\n",
        "line 4, column 3: invalid type: integer `5`, expected a string",
    ),
    (SERVICE, "spec:\n  clusterIP: 5\n", "line 5, column 3: Service web: invalid type: integer `5`, expected a string"),
    (
        SLICE,
        "endpoints:\n- addresses: [10.0.0.1]\n  conditions:\n    ready: 'true'\n",
        "line 7, column 5: EndpointSlice web-1: invalid type: string \"true\", expected a boolean",
    ),
    (SERVICE, "spec:\n  clusterIP: [\n", "line 5, column 14: unclosed bracket '['"),
    (SERVICE, "spec:\n\tports: []\n", "line 5, column 2: tabs disallowed within this context (block indentation)"),
    (SERVICE, "spec: *missing\n", "line 4, column 7: alias references unknown anchor"),
    (SERVICE, "spec: {}\nspec: {}\n", "line 5, column 1: Service web: the key \"spec\" stands twice in its map"),
    (NODE, "---\nkind: Service\n", "line 5, column 1: apiVersion is missing"),
    ("", "\n\napiVersion: v1\n", "line 3, column 1: kind is missing"),
    ("", "apiVersion: ''\nkind: Service", "line 1, column 1: apiVersion is missing"),
    ("", "- a\n", "line 1, column 1: expected an object with apiVersion and kind"),
    ("", "text", "line 1, column 1: expected an object with apiVersion and kind"),
    (
        "",
        "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: a}",
        "line 1, column 1: EndpointSlice a: apiVersion discovery.k8s.io/v1beta1 of EndpointSlice can't be read, only \
             discovery.k8s.io/v1",
    ),
    (
        "",
        "apiVersion: networking.k8s.io/v1alpha1\nkind: ServiceCIDR",
        "line 1, column 1: apiVersion networking.k8s.io/v1alpha1 of ServiceCIDR can't be read, only networking.k8s.io/v1 \
             and networking.k8s.io/v1beta1",
    ),
    (
        "",
        "apiVersion: v1\nkind: EndpointSlice",
        "line 1, column 1: apiVersion v1 of EndpointSlice can't be read, only discovery.k8s.io/v1",
    ),
    // Kubernetes' own groups have no other kind of that name; see `(Service)` for those of others.
    (
        "",
        "apiVersion: discovery.k8s.io/v1\nkind: Service",
        "line 1, column 1: apiVersion discovery.k8s.io/v1 of Service can't be read, only v1",
    ),
    (
        "",
        "apiVersion: networking.k8s.io/v1\nkind: EndpointSlice",
        "line 1, column 1: apiVersion networking.k8s.io/v1 of EndpointSlice can't be read, only discovery.k8s.io/v1",
    ),
    ("", "apiVersion: v2\nkind: List", "line 1, column 1: apiVersion v2 of List can't be read, only v1"),
    ("", "apiVersion: v1\nkind: Service\nmetadata: {}", "line 1, column 1: metadata.name is missing"),
    ("", "apiVersion: v1\nkind: Service", "line 1, column 1: metadata.name is missing"),
    (
        "",
        "apiVersion: v1\nkind: Service\nmetadata: {name: a/b}",
        "line 1, column 1: Service a/b: metadata.name: \"a/b\" can't be the name of a Service: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends",
    ),
    (
        "",
        "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: \"b\\n\"}",
        "line 1, column 1: Service b\\n/a: metadata.namespace: \"b\\n\" can't be the name of a namespace: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends",
    ),
    (
        "",
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: a}}\n- apiVersion: v1\n  kind: Node\n  \
             metadata: {name: b}\n  spec:\n    podCIDRs: x\n",
        "line 9, column 15: Node b: expected a list",
    ),
    ("", "apiVersion: v1\nkind: List\nitems:\n- 5\n", "line 4, column 3: expected an object with apiVersion and kind"),
    ("", "apiVersion: v1\nkind: List\nitems:\n- {metadata: {name: a}}\n", "line 4, column 3: kind is missing"),
    (
        "",
        "apiVersion: v1\nkind: List\nitems: x\n",
        "line 3, column 1: invalid type: string \"x\", expected a list of objects",
    ),
    (
        "",
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: List}\n",
        "line 4, column 3: a List within a List can't be read",
    ),
    (
        "",
        "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\"},\n \"spec\":{\"ports\":[{\"port\":\"x\"}]}}",
        "line 2, column 29: Service a: invalid type: string \"x\", expected an integer",
    ),
    (
        "",
        "{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"a\"}}\n\n{\"apiVersion\":\"v1\",\"kind\":\"Node\",\n\"metadata\":{}}",
        "line 3, column 1: metadata.name is missing",
    ),
    ("", "{\"apiVersion\":\"v1\",\n\"kind\":\"Serv", "line 2, column 12: EOF while parsing a string"),
    ("", "{apiVersion: v1,\nkind: [Service}", "line 2, column 7: mismatched bracket '[' closed by '}'"),
    ("", "[]", "line 1, column 1: expected an object with apiVersion and kind"),
];

#[test]
fn a_broken_file_is_named_with_its_place() {
    for (head, rest, wanted) in BROKEN {
        assert_eq!(refusal(&format!("{head}{rest}")), *wanted, "{head}{rest}");
    }
    let third = decode_manifest(&format!("{SERVICE}---\n# x\n---\nkind: 1\n")).complete().unwrap_err();
    assert_eq!((third.document, third.line), (3, Some(7)));
}

#[test]
fn names_are_those_that_an_api_server_accepts() {
    let read = |kind: &str, metadata: &str| {
        let group = if kind == "EndpointSlice" { "discovery.k8s.io/v1" } else { "v1" };
        let text = format!("apiVersion: {group}\nkind: {kind}\nmetadata: {{{metadata}}}\n");
        decode_manifest(&text).complete().map_err(|error| (error.object, error.misnamed))
    };
    // A Service web with a port p and one of this name would have the same chains in mode iptables.
    for name in ["'web:p'", "Web", "web_1", "web.1", "a/b", "-a", "wéb", &"a".repeat(64)] {
        assert_eq!(read("Service", &format!("name: {name}")), Err((None, true)), "{name}");
        assert_eq!(read("EndpointSlice", &format!("name: a, namespace: {name}")), Err((None, true)), "{name}");
    }
    assert!(read("Service", "name: 0-web, namespace: 0-shop").is_ok(), "a label, of newer API servers");
    for (name, is_name) in [("web-1.2", true), ("web..2", false), ("web_2", false)] {
        for kind in ["EndpointSlice", "Node"] {
            assert_eq!(read(kind, &format!("name: {name}")).is_ok(), is_name, "{kind} {name}");
        }
    }
    assert_eq!(read("Service", ""), Err((None, false)), "it may be any");
    assert_eq!(read("Service", "name: ''"), Err((None, false)), "it may be any");
    let web = Some((Kind::Service, ObjectName::new("default", "web")));
    assert_eq!(read("Service", "name: web, labels: 5"), Err((web, false)), "what is wrong isn't the name");
    let label = |service: &str| {
        let text = format!("{SLICE}addressType: IPv4\n")
            .replace("web-1}", &format!("web-1, labels: {{kubernetes.io/service-name: '{service}'}}}}"));
        match objects(&text).remove(0) {
            KubeObject::EndpointSlice(slice) => slice.service,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(label("web"), Some(ObjectName::new("default", "web")));
    assert_eq!((label("web:p"), label("Web"), label("")), (None, None, None));
}

/// Each document as what it is: its kind and name, or the object that is broken with its error.
fn outcomes(text: &str) -> Vec<String> {
    let outcome = |document: Result<Document, WireError>| match document {
        Ok(Document::Object(object)) => format!("{} {}", object.kind(), object.name()),
        Ok(Document::Ignored { kind }) => format!("({kind})"),
        Err(error) => match &error.object {
            Some((kind, name)) => format!("broken {kind} {name}: {error}"),
            None => format!("broken: {error}"),
        },
    };
    decode_manifest(text).documents.into_iter().map(outcome).collect()
}

#[test]
fn a_broken_document_leaves_the_others_alone() {
    let service = |name: &str, port: &str| {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  ports:\n  - port: {port}\n---\n")
    };
    for (port, wanted) in [
        ("abc", "invalid type: string \"abc\", expected an integer"),
        ("'80'", "invalid type: string \"80\", expected an integer"),
        ("80.5", "invalid type: floating point `80.5`, expected an integer"),
    ] {
        let text = service("a", "80") + &service("b", port) + &service("c", "80");
        let broken = format!("broken Service default/b: line 13, column 5: Service b: {wanted}");
        assert_eq!(outcomes(&text), ["Service default/a", &broken, "Service default/c"]);
    }
    for (middle, wanted) in [
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: 1, a: 2}\n", "(ConfigMap)"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {}\ndata: {}\n", "(ConfigMap)"),
        (
            "apiVersion: v1\nkind: Node\nmetadata: {name: x}\nspec: {}\nspec: {}\n",
            "broken Node x: line 12, column 1: Node x: the key \"spec\" stands twice in its map",
        ),
        (
            "apiVersion: v1\nkind: Node\nkind: Service\nmetadata: {name: x}\n",
            "broken: line 8, column 1: Service x: the key \"kind\" stands twice in its map",
        ),
        (
            "apiVersion: v1\nkind: Node\nmetadata: {name: x, name: z}\n",
            "broken: line 8, column 1: Node z: the key \"name\" stands twice in its map",
        ),
        (
            "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: x, namespace: z}\n",
            "broken EndpointSlice z/x: line 8, column 1: EndpointSlice z/x: apiVersion discovery.k8s.io/v1beta1 of \
             EndpointSlice can't be read, only discovery.k8s.io/v1",
        ),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: 5}\n",
            "broken: line 10, column 12: invalid type: integer `5`, expected a string",
        ),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: 5}\n",
            "broken: line 10, column 21: Service x: invalid type: integer `5`, expected a string",
        ),
        ("apiVersion: [\n", "broken: line 8, column 13: unclosed bracket '['"),
        ("kind: \"Service\n", "broken: line 9, column 1: invalid indentation in multiline quoted scalar"),
        ("a: *b\n", "broken: line 8, column 4: alias references unknown anchor"),
    ] {
        let text = format!("{}{middle}---\n{}", service("a", "80"), service("c", "80"));
        assert_eq!(outcomes(&text), ["Service default/a", wanted, "Service default/c"], "{middle}");
    }
}

#[test]
fn a_broken_item_leaves_the_others_alone() {
    let text = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n- apiVersion: v1\n  kind: \
                Service\n  metadata: {name: b}\n  spec: {clusterIP: 5}\n- {apiVersion: v1, kind: Pod, spec: 5}\n- 5\n- {apiVersion: \
                v1, kind: Node, metadata: {name: c}, spec: {podCIDR: a,\n    podCIDR: b}}\n- {apiVersion: v1, kind: Node, \
                metadata: {name: d, labels: {x: 1, x: 2}}}\n";
    assert_eq!(
        outcomes(text),
        [
            "Service default/a",
            "broken Service default/b: line 8, column 10: Service b: invalid type: integer `5`, expected a string",
            "(Pod)",
            "broken: line 10, column 3: expected an object with apiVersion and kind",
            "broken Node c: line 11, column 59: Node c: duplicate field `podCIDR`",
            "Node d",
        ]
    );
    let item =
        |name: &str, cidr: &str| format!("{{\"metadata\":{{\"name\":\"{name}\"}},\"spec\":{{\"podCIDR\":{cidr}}}}}");
    let list =
        |items: &[String]| format!("{{\"apiVersion\":\"v1\",\"kind\":\"NodeList\",\"items\":[{}]}}", items.join(",\n"));
    let text =
        format!("{}\n{}", list(&[item("a", "1"), item("b", "\"x\""), item("c", "2")]), list(&[item("d", "\"\"")]));
    assert_eq!(
        outcomes(&text),
        [
            "broken Node a: line 1, column 90: Node a: invalid type: integer `1`, expected a string",
            "Node b",
            "broken Node c: line 3, column 44: Node c: invalid type: integer `2`, expected a string",
            "Node d",
        ]
    );
    // There is an end to it, so that a hostile file doesn't cost its length squared.
    let many: Vec<String> = (0..40).map(|i| item(&format!("n{i}"), if i < 5 { "\"\"" } else { "1" })).collect();
    let many = outcomes(&list(&many));
    assert_eq!(many.len(), 5 + 16 + 1);
    assert!(many[5].starts_with("broken Node n5: line 6, ") && many[20].starts_with("broken Node n20: "), "{many:?}");
    assert!(many[21].starts_with("broken: line 22, ") && many[21].ends_with("what follows isn't read"), "{many:?}");
}

#[test]
fn what_is_no_json_ends_a_stream_of_json() {
    let good = "{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"a\"}}\n";
    let bad = "{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"b\"},\"spec\":1}\n";
    assert_eq!(outcomes(&format!("{good}{bad}{good}")).len(), 3);
    assert_eq!(outcomes(&format!("{good}{bad}{good}"))[2], "Node a");
    let third = decode_manifest(&format!("{good}{good}{bad}")).complete().unwrap_err();
    assert_eq!((third.document, third.line), (3, Some(3)));
    assert_eq!(
        outcomes(&format!("{good}{{\"a\":\n{good}")),
        ["Node a", "broken: line 4, column 0: EOF while parsing an object"]
    );
    // with markers it is YAML, and can be separated
    let mixed = outcomes(&format!("{bad}---\n{good}---\nkind: [\n---\n{SERVICE}"));
    assert!(mixed[0].starts_with("broken Node b: line 1, "), "{mixed:?}");
    assert_eq!((mixed[1].as_str(), mixed[3].as_str(), mixed.len()), ("Node a", "Service default/web", 4));
}

#[test]
fn values_that_an_api_server_refuses_are_kept_apart() {
    let of = |spec: &str| service(&format!("spec: {{{spec}}}"));
    let odd = |field, text: &str| vec![OddValue { field, text: text.into() }];
    let timeout = |text: &str| {
        format!("sessionAffinity: ClientIP, sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {text}}}}}")
    };
    for (spec, wanted) in [
        ("type: Foo", odd(OddField::Type, "Foo")),
        ("sessionAffinity: clientip", odd(OddField::SessionAffinity, "clientip")),
        ("internalTrafficPolicy: Foo", odd(OddField::InternalTrafficPolicy, "Foo")),
        ("externalTrafficPolicy: local", odd(OddField::ExternalTrafficPolicy, "local")),
        ("healthCheckNodePort: 70000", odd(OddField::HealthCheckNodePort, "70000")),
        ("healthCheckNodePort: -1", odd(OddField::HealthCheckNodePort, "-1")),
        (
            "type: '', sessionAffinity: '', internalTrafficPolicy: '', externalTrafficPolicy: null, healthCheckNodePort: 0",
            vec![],
        ),
        (
            "type: ClusterIP, sessionAffinity: None, internalTrafficPolicy: Cluster, externalTrafficPolicy: Cluster",
            vec![],
        ),
        // a timeout that nothing asks for
        ("sessionAffinityConfig: {clientIP: {timeoutSeconds: -1}}", vec![]),
    ] {
        let service = of(spec);
        assert_eq!(service.odd.to_vec(), wanted, "{spec}");
        assert_eq!(
            (service.kind, service.affinity_seconds, service.internal_policy, service.external_policy),
            (ServiceType::ClusterIp, None, TrafficPolicy::Cluster, TrafficPolicy::Cluster),
            "{spec}"
        );
    }
    for (text, seconds, wanted) in [
        ("-1", 10_800, odd(OddField::NegativeTimeout, "-1")),
        ("90000", 86_400, odd(OddField::LongTimeout, "90000")),
        ("1e12", 86_400, odd(OddField::LongTimeout, "1000000000000")),
        ("86400", 86_400, vec![]),
        ("0", 0, vec![]),
    ] {
        let service = of(&timeout(text));
        assert_eq!((service.affinity_seconds, service.odd.to_vec()), (Some(seconds), wanted), "{text}");
    }
}

#[test]
fn every_cut_of_a_file_ends_well() {
    let text = format!(
        "{SERVICE}spec:\n  ports:\n  - name: http\n    port: 80\n---\n{SLICE}endpoints:\n- addresses: ['10.0.0.1']\n"
    );
    let json = "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\"},\"spec\":{\"ports\":[{\"port\":80}]}}";
    let mut broken = 0;
    for cut in 0..text.len() {
        broken += usize::from(decode_manifest(&text[..cut]).complete().is_err());
    }
    assert!(broken > 50, "{broken}");
    for cut in 1..json.len() {
        let error = decode_manifest(&json[..cut]).complete().unwrap_err();
        assert!(error.line == Some(1) && error.column.is_some(), "{error}");
    }
}

#[test]
fn hostile_files_end_in_errors() {
    let bomb = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, i| {
        format!("{text}a{i}: &a{i} [*a{0}, *a{0}, *a{0}, *a{0}]\n", i - 1)
    });
    let chain =
        (1..200).fold("c0: &c0 [x]\n".to_owned(), |text, i| format!("{text}c{i}: &c{i} [[[[[*c{}]]]]]\n", i - 1));
    let deep_block: String = (0..2000).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    for rest in
        [bomb, chain, deep_block, format!("a: {}", "[".repeat(200_000)), format!("a: {}", "{a: ".repeat(100_000))]
    {
        for head in [SERVICE, "apiVersion: example.com/v1\nkind: Other\n"] {
            let error = decode_manifest(&format!("{head}{rest}")).complete().unwrap_err();
            assert!(error.line.is_some(), "{error}");
        }
    }
    let lists = format!("{}{}", "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[".repeat(1000), "]}".repeat(1000));
    assert_eq!(refusal(&lists), "line 1, column 42: a List within a List can't be read");
    let nested = format!("apiVersion: example.com/v1\nkind: Other\na: {}1{}", "[".repeat(60), "]".repeat(60));
    assert_eq!(titles(&nested), ["(Other)"], "what is deep but bounded is read");
}

/// 10,000 Services, and an EndpointSlice of ten endpoints for each tenth of them.
fn large_manifest() -> String {
    let mut yaml = String::new();
    for i in 0..10_000 {
        let (high, low) = (i / 256, i % 256);
        let _ = writeln!(
            yaml,
            "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: svc-{i}\n  namespace: default\nspec:\n  clusterIP: \
             10.96.{high}.{low}\n  ports:\n  - {{name: http, port: 80, protocol: TCP, targetPort: 8080}}"
        );
        if i % 10 == 0 {
            let _ = writeln!(
                yaml,
                "---\naddressType: IPv4\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: svc-{i}-x\n  \
                 labels: {{kubernetes.io/service-name: svc-{i}}}\nports: [{{name: http, port: 8080}}]\nendpoints:"
            );
            for j in 100..110 {
                let _ = writeln!(yaml, "- addresses: [10.{j}.{high}.{low}]\n  nodeName: n{j}");
            }
        }
    }
    yaml
}

#[test]
#[expect(clippy::disallowed_methods, reason = "prints how long it takes")]
fn ten_thousand_services() {
    let yaml = large_manifest();
    let begin = std::time::Instant::now();
    let documents = decode_manifest(&yaml).complete().unwrap();
    println!("{} documents, {} KiB of YAML: {:?}", documents.len(), yaml.len() / 1024, begin.elapsed());
    assert_eq!(documents.len(), 11_000);
    let endpoints: usize = documents
        .iter()
        .map(|document| match document {
            Document::Object(KubeObject::EndpointSlice(slice)) => slice.endpoints.len(),
            Document::Object(_) | Document::Ignored { .. } => 0,
        })
        .sum();
    assert_eq!(endpoints, 10_000);
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC*", rest in "[a-zA-Z:{}\\[\\]&*<!|> \\-\\n\"'0-9.,#%~/]{0,300}") {
        let _ = decode_manifest(&text);
        let _ = decode_manifest(&format!("{SERVICE}{rest}"));
        let _ = decode_manifest(&format!("{{\"apiVersion\":\"v1\",{rest}"));
    }

    /// Without directives, which belong to the document behind them.
    #[test]
    fn nothing_between_two_documents_harms_them(rest in "[a-zA-Z:{}\\[\\]&*<!|> \\-\\n\"'0-9.,#~/]{0,300}", head in any::<bool>()) {
        let head = if head { SERVICE } else { "" };
        let outcomes = outcomes(&format!("{SLICE}---\n{head}{rest}\n---\n{NODE}"));
        prop_assert_eq!(outcomes.first().map(String::as_str), Some("EndpointSlice default/web-1"));
        prop_assert_eq!(outcomes.last().map(String::as_str), Some("Node n1"));
    }

    #[test]
    fn no_address_panics(text in "[0-9a-fA-F.:/%\\[\\]]{0,60}") {
        let _ = (address::parse_ip(&text), address::parse_cidr(&text), address::parse_socket_address(&text));
    }

    #[test]
    fn the_standard_forms_of_addresses_are_read(ip: IpAddr) {
        prop_assert_eq!(address::parse_ip(&ip.to_string()), Some(ip.to_canonical()));
    }

    #[test]
    fn no_timestamp_panics(text in "[-+0-9TZtz:.]{0,40}") {
        let _ = parse_timestamp(&text);
    }
}
