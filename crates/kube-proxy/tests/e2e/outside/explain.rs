//! `kube-proxy explain`: planted faults, each of which the first three lines name, and what is asked.

use std::fs;
use std::process::Output;

use crate::support::Machine;

/// A Node with a zone, and a cluster with one sound Service.
const SOUND: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: one}}
status: {addresses: [{type: InternalIP, address: 192.0.2.10}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4],
  ports: [{name: http, port: 80, nodePort: 30080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.7}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.2], nodeName: node-a, zone: one, conditions: {ready: true}}
- {addresses: [10.244.2.2], nodeName: node-b, zone: two, conditions: {ready: true}}
";
/// The documentation, which shows an answer.
const DOCUMENT: &str = include_str!("../../../../../docs/cli.md");
/// The mode and the node.
const NODE: [&str; 4] = ["--mode", "nftables", "--hostname-override", "node-a"];
/// Pods of this node are in this range.
const PODS: [&str; 2] = ["--cluster-cidr", "10.244.1.0/24"];

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// Runs the command over these manifests, in mode nftables on node-a.
fn output(manifests: &str, more: &[&str]) -> Output {
    let machine = Machine::new();
    fs::write(machine.path("manifests").join("all.yaml"), manifests).expect("writing manifests");
    let directory = machine.manifests();
    machine.output(&[&["explain", "--manifests", &directory], &NODE[..], more].concat())
}

/// The answer to a question, where pods are told apart.
fn answer(manifests: &str, question: &str) -> String {
    let output = output(manifests, &[&PODS[..], &[question]].concat());
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).to_owned()
}

/// Plants a fault by replacing a text, and asserts that the first three lines of the answer name the cause.
#[track_caller]
fn planted((from, to): (&str, &str), question: &str, cause: &[&str]) {
    assert!(SOUND.contains(from), "{from}");
    let answer = answer(&SOUND.replace(from, to), question);
    let begin: Vec<&str> = answer.lines().take(3).collect();
    for part in cause {
        assert!(begin.iter().any(|line| line.contains(part)), "no {part:?} in the first lines:\n{answer}");
    }
}

#[test]
fn planted_faults_are_named_in_the_first_lines() {
    let service = "svc shop/web";
    planted(
        ("ports: [{name: http, port: 8080}]", "ports: [{name: htpp, port: 8080}]"),
        service,
        &["problem: shop/web port http 80/TCP IPv4 has no endpoint", "have the ports htpp/TCP, none called http/TCP"],
    );
    planted(
        ("ready: true}", "ready: false}"),
        service,
        &["has no usable endpoint among 2", "EndpointSlice shop/web-1): not used: conditions.ready is false"],
    );
    planted(
        ("kubernetes.io/service-name: web}", "kubernetes.io/service-name: wob}"),
        service,
        &[
            "no EndpointSlice with ports has the label kubernetes.io/service-name=web; EndpointSlice shop/web-1 has wob there",
        ],
    );
    planted(
        ("spec: {type: LoadBalancer,", "spec: {type: LoadBalancer, loadBalancerSourceRanges: [198.51.100.0/24],"),
        "192.0.2.99 -> 203.0.113.7:80",
        &["problem: 192.0.2.99 is in no range of spec.loadBalancerSourceRanges of Service shop/web: dropped"],
    );
}

#[test]
fn policy_local_without_an_endpoint_here_is_named() {
    let elsewhere = SOUND
        .replace("spec: {type: LoadBalancer,", "spec: {type: LoadBalancer, externalTrafficPolicy: Local,")
        .replace("nodeName: node-a", "nodeName: node-c");
    let answer = answer(&elsewhere, "192.0.2.99 -> 203.0.113.7:80/tcp");
    let begin: Vec<&str> = answer.lines().take(2).collect();
    assert_eq!(
        begin,
        [
            "problem: shop/web port http 80/TCP IPv4 has no endpoint on this node, node-a, among 2: traffic under policy Local is dropped",
            "192.0.2.99 -> 203.0.113.7:80/TCP: dropped: no answer",
        ]
    );
    assert!(answer.contains("policy Local needs this node, node-a, and its nodeName is node-c"), "{answer}");
}

/// [`SOUND`] with these fields instead of the conditions of its endpoints, on this node and on the other one.
fn with_endpoints(here: &str, elsewhere: &str) -> String {
    let fields = |zone: &str, fields: &str| format!("zone: {zone}, {fields}");
    let of_sound = |zone: &str| fields(zone, "conditions: {ready: true}");
    SOUND.replace(&of_sound("one"), &fields("one", here)).replace(&of_sound("two"), &fields("two", elsewhere))
}

/// [`SOUND`] with further fields of its Service's spec.
fn with_spec(fields: &str) -> String {
    SOUND.replace("spec: {type: LoadBalancer,", &format!("spec: {{type: LoadBalancer, {fields},"))
}

/// The endpoints of [`SOUND`], as lines begin that say whether they are used.
const HERE: &str = "10.244.1.2:8080 (node node-a, EndpointSlice shop/web-1): ";
const ELSEWHERE: &str = "10.244.2.2:8080 (node node-b, EndpointSlice shop/web-1): ";

/// Both endpoints have these lines, behind their addresses.
#[track_caller]
fn assert_endpoints(answer: &str, [here, elsewhere]: [&str; 2]) {
    for (begin, rest) in [(HERE, here), (ELSEWHERE, elsewhere)] {
        let found: Vec<&str> = answer.lines().filter_map(|line| line.trim_start().strip_prefix(begin)).collect();
        assert_eq!(found, [rest], "{begin}\n{answer}");
    }
}

#[test]
fn hints_that_point_elsewhere_are_named() {
    let hinted = |kind: &str, [here, elsewhere]: [&str; 2]| {
        let fields = |name: &str| format!("conditions: {{ready: true}}, hints: {{{kind}: [{{name: {name}}}]}}");
        with_endpoints(&fields(here), &fields(elsewhere))
    };
    for (kind, names, reason) in [
        ("forZones", ["one", "two"], "hints.forZones doesn't name this node's zone, one, as others do"),
        ("forNodes", ["node-a", "node-b"], "hints.forNodes doesn't name this node, node-a, as others do"),
    ] {
        let manifests = hinted(kind, names);
        let of_service = answer(&manifests, "svc shop/web");
        let counted = "    endpoints: 2 in its EndpointSlices, 1 used by policy Cluster\n";
        assert!(of_service.contains(counted) && !of_service.contains("problem:"), "{of_service}");
        let unused = format!("not used: {reason}");
        assert_endpoints(&of_service, ["used by policy Cluster", &unused]);
        let of_pod = answer(&manifests, "pod 10.244.2.2");
        let problem = format!("problem: shop/web port http 80/TCP: {ELSEWHERE}{unused}\n");
        assert!(of_pod.starts_with(&problem), "{of_pod}");
        let of_connection = answer(&manifests, "10.244.1.9 -> 10.96.0.10:80");
        let forwarded = "10.244.1.9 -> 10.96.0.10:80/TCP: forwarded to the only endpoint\n";
        assert!(of_connection.starts_with(forwarded), "{of_connection}");
    }
    // In another zone, which no hint names, all endpoints are used.
    let other = hinted("forZones", ["one", "two"]).replace("io/zone: one", "io/zone: three");
    assert_endpoints(&answer(&other, "svc shop/web"), ["used by policy Cluster"; 2]);
}

#[test]
fn terminating_endpoints_are_named_with_their_conditions() {
    let (ready, unready) = ("conditions: {ready: true}", "conditions: {ready: false}");
    let serving = "conditions: {ready: false, serving: true, terminating: true}";
    let ended = "conditions: {ready: false, serving: false, terminating: true}";
    let (used, not_ready) = ("used by policy Cluster", "not used: conditions.ready is false");
    let others_ready = "not used: conditions.terminating is true, and others are ready";
    let not_serving = "not used: conditions.terminating is true and conditions.serving false";
    for (conditions, lines) in [
        ([ready, serving], [used, others_ready]),
        ([ready, ended], [used, not_serving]),
        // Without a ready one, those that still serve are used.
        ([unready, serving], [not_ready, used]),
        ([ended, serving], [not_serving, used]),
    ] {
        let [here, elsewhere] = conditions;
        let answer = answer(&with_endpoints(here, elsewhere), "svc shop/web");
        assert!(!answer.contains("problem:"), "{answer}");
        assert_endpoints(&answer, lines);
    }
    let none = answer(&with_endpoints(ended, unready), "svc shop/web");
    let problem =
        format!("problem: shop/web port http 80/TCP IPv4 has no usable endpoint among 2: {HERE}{not_serving}\n");
    assert!(none.starts_with(&problem), "{none}");
}

#[test]
fn session_affinity_is_named_with_its_timeout() {
    let whole = answer(
        &with_spec("sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}"),
        "svc shop/web",
    );
    let line = "    session affinity: a client keeps its endpoint for 600 s (spec.sessionAffinity: ClientIP, \
                spec.sessionAffinityConfig.clientIP.timeoutSeconds)\n";
    assert!(whole.contains(line) && !whole.contains("problem:"), "{whole}");
    assert!(!answer(SOUND, "svc shop/web").contains("session affinity"));
}

#[test]
fn health_checks_under_policy_local_are_named_with_their_port_and_count() {
    let local = with_spec("externalTrafficPolicy: Local, healthCheckNodePort: 32000");
    let whole = answer(&local, "svc shop/web");
    for line in [
        "  health checks of load balancers at port 32000: 1 local endpoints (spec.healthCheckNodePort)\n",
        "      from elsewhere: to an endpoint of this node, which sees the client's address \
         (spec.externalTrafficPolicy: Local)\n",
        "    endpoints: 2 in its EndpointSlices, 2 used by policy Cluster, 1 on this node by policy Local\n",
    ] {
        assert!(whole.contains(line), "{line}{whole}");
    }
    let elsewhere = "used by policy Cluster: policy Local needs this node, node-a, and its nodeName is node-b";
    assert_endpoints(&whole, ["used by policy Cluster and Local", elsewhere]);
    assert!(!whole.contains("problem:"), "{whole}");
    let none = answer(&local.replace("nodeName: node-a", "nodeName: node-c"), "svc shop/web");
    assert!(none.contains("  health checks of load balancers at port 32000: 0 local endpoints "), "{none}");
}

#[test]
fn source_ranges_are_named_at_the_address_that_they_restrict() {
    let ranges = with_spec("loadBalancerSourceRanges: [198.51.100.0/24, 192.0.2.128/25]");
    let whole = answer(&ranges, "svc shop/web");
    let lines = "    load balancer address 203.0.113.7:80\n      \
                 from 192.0.2.128/25, 198.51.100.0/24 only (spec.loadBalancerSourceRanges); others are dropped\n";
    assert!(whole.contains(lines), "{whole}");
    assert_eq!(whole.matches("spec.loadBalancerSourceRanges").count(), 1, "{whole}");
    let admitted = answer(&ranges, "198.51.100.9 -> 203.0.113.7:80");
    assert!(
        admitted.starts_with("198.51.100.9 -> 203.0.113.7:80/TCP: forwarded to one of 2 endpoints\n"),
        "{admitted}"
    );
    let refused = answer(&ranges, "192.0.2.99 -> 203.0.113.7:80");
    let dropped = "problem: 192.0.2.99 is in no range of spec.loadBalancerSourceRanges of Service shop/web: dropped\n\
                   192.0.2.99 -> 203.0.113.7:80/TCP: dropped: no answer\n";
    assert!(refused.starts_with(dropped), "{refused}");
}

#[test]
fn two_services_with_one_address_are_named() {
    let (_, rest) = SOUND.split_once("---").expect("documents");
    let other = rest.replace("web", "zzz").replace("30080", "30081").replace("203.0.113.7", "203.0.113.8");
    let both = format!("{SOUND}---{other}");
    let answer = answer(&both, "svc shop/zzz");
    let first = answer.lines().next().expect("a line");
    assert!(first.starts_with("problem: Service shop/zzz: spec.clusterIP"), "{answer}");
    assert!(
        first.contains("10.96.0.10:80 TCP belongs to another Service") && first.contains("[winner shop/web]"),
        "{answer}"
    );
}

#[test]
fn an_unknown_range_of_pods_is_named() {
    let output = output(SOUND, &["10.244.1.2 -> 10.96.0.10:80"]);
    let begin: Vec<&str> = text(&output.stdout).lines().take(2).collect();
    assert!(begin[0].starts_with("problem: pods of this node are not distinguished from other clients"), "{begin:?}");
    assert!(begin[0].contains("clusterCIDR") && begin[0].contains("detectLocalMode"), "{begin:?}");
}

#[test]
fn a_sound_service_has_no_problem() {
    let whole = answer(SOUND, "svc shop/web");
    assert!(!whole.contains("problem:"), "{whole}");
    assert!(
        whole.starts_with("Service shop/web in IPv4\n  port http 80/TCP\n    cluster IP 10.96.0.10:80\n"),
        "{whole}"
    );
    let used = "10.244.1.2:8080 (node node-a, EndpointSlice shop/web-1): used by policy Cluster\n";
    assert!(whole.contains(used), "{whole}");
    assert_eq!(answer(SOUND, "svc shop/web:80"), whole);
    assert_eq!(answer(SOUND, "svc shop/web:http"), whole);
    let pod = answer(SOUND, "pod 10.244.1.2");
    assert_eq!(pod, format!("endpoint of Service shop/web\n  port http 80/TCP: {used}"));
    let from_pod = answer(SOUND, "10.244.1.9 -> 10.96.0.10:80");
    assert!(from_pod.contains("10.244.1.9 is a pod of this node (from 10.244.1.0/24)"), "{from_pod}");
    assert!(
        from_pod.contains("from a pod of this node: to any endpoint, which sees the client's address"),
        "{from_pod}"
    );
    let local = SOUND.replace("spec: {type: LoadBalancer,", "spec: {type: LoadBalancer, externalTrafficPolicy: Local,");
    let local = answer(&local, "203.0.113.7:80");
    assert!(
        local.starts_with("203.0.113.7:80/TCP is a load balancer address of Service shop/web port http\n"),
        "{local}"
    );
    assert!(
        local.contains("2 in its EndpointSlices, 2 used by policy Cluster, 1 on this node by policy Local"),
        "{local}"
    );
    for (question, line) in [
        (
            "10.96.0.10:81",
            "problem: no Service serves 10.96.0.10:81/TCP: 10.96.0.10 belongs to Service shop/web, whose ports are http 80\n",
        ),
        ("10.96.0.77:80", "problem: no Service serves 10.96.0.77:80/TCP\n"),
        ("pod 10.244.9.9", "problem: no EndpointSlice of a served Service has the address 10.244.9.9\n"),
        ("192.0.2.10:30080", "192.0.2.10:30080/TCP is a node port of Service shop/web port http\n"),
    ] {
        assert!(answer(SOUND, question).starts_with(line), "{question}: {}", answer(SOUND, question));
    }
}

#[test]
fn answers_are_json_as_well_and_errors_say_what_to_ask() {
    let output_of = |more: &[&str]| output(SOUND, &[&PODS[..], more].concat());
    let json: serde_json::Value =
        serde_json::from_slice(&output_of(&["--json", "svc", "shop/web"]).stdout).expect("JSON");
    assert_eq!(json.pointer("/version"), Some(&1.into()));
    assert_eq!(json.pointer("/question"), Some(&"svc shop/web".into()));
    assert_eq!(json.pointer("/facts/0/text"), Some(&"Service shop/web in IPv4".into()));
    let apart = output_of(&["10.244.1.9", "->", "10.96.0.10:80"]);
    assert_eq!(text(&apart.stdout), answer(SOUND, "10.244.1.9 -> 10.96.0.10:80"));
    for (arguments, error) in [
        (&["svc", "shop/wep"][..], "Error: no Service shop/wep among the objects: name it NAMESPACE/NAME\n"),
        (&["svc", "shop/\u{1b}[2J"], "Error: no Service shop/\\x1b[2J among the objects: name it NAMESPACE/NAME\n"),
        (&["svc", "shop/web:443"], "Error: Service shop/web has no port 443: its ports are http 80\n"),
        (
            &[],
            "Error: nothing is asked: ask about svc NAMESPACE/NAME[:PORT], pod IP, IP:PORT[/PROTOCOL], or CLIENT -> IP:PORT[/PROTOCOL]\n",
        ),
        (&["--in=eth0", "pod", "10.244.1.2"], "Error: --in is about a connection, CLIENT -> IP:PORT\n"),
    ] {
        let output = output_of(arguments);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
        assert!(text(&output.stderr).ends_with(error), "{output:?}");
    }
}

/// The objects of the documentation's example: one of two endpoints isn't ready.
fn documented() -> String {
    let service = SOUND.replace("LoadBalancer", "NodePort");
    let (before, rest) = service.split_once("status: {loadBalancer: ").expect("a status");
    let (_, after) = rest.split_once('\n').expect("the end of the line");
    let slices = after.replace("zone: two, conditions: {ready: true}", "zone: two, conditions: {ready: false}");
    assert_ne!(slices, after);
    format!("{before}{slices}")
}

#[test]
fn a_documented_answer_is_the_whole_one() {
    let answer = answer(&documented(), "svc shop/web");
    let lines: String = answer.lines().map(|line| format!("    {line}\n")).collect();
    let flags = [&NODE[..], &PODS].concat().join(" ");
    let example = format!("\n    $ kube-proxy explain --manifests shop {flags} svc shop/web\n{lines}\n");
    assert!(DOCUMENT.contains(&example), "docs/cli.md has another answer than{example}");
}

#[test]
fn losers_of_an_address_are_named_where_a_client_asks_about_it() {
    let shop = documented();
    let (_, service) = shop.split_once("---").expect("documents");
    let same = service.replace("web", "zzz").replace("30080", "30081");
    let external = service
        .replace("web", "ext")
        .replace("30080", "30082")
        .replace("10.96.0.10", "10.96.0.11")
        .replace("ports: [{name: http, port: 80,", "externalIPs: [10.96.0.10], ports: [{name: http, port: 80,");
    let manifests = format!("{shop}---{same}---{external}");
    for question in ["10.96.0.10:80", "10.244.1.9 -> 10.96.0.10:80"] {
        let answer = answer(&manifests, question);
        let first = "problem: 10.96.0.10:80/TCP belongs to Service shop/web, which comes first: not served for \
                     shop/ext (spec.externalIPs[0]), shop/zzz (spec.clusterIP)";
        assert_eq!(answer.lines().next(), Some(first), "{answer}");
    }
    let node_ports = manifests.replace("30081", "30080");
    let answer = answer(&node_ports, "198.51.100.7 -> 192.0.2.10:30080");
    let first = "problem: 192.0.2.10:30080/TCP belongs to Service shop/web, which comes first: not served for shop/zzz \
                 (spec.ports[0].nodePort)";
    assert_eq!(answer.lines().next(), Some(first), "{answer}");
}
