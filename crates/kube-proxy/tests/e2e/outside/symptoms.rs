//! `kube-proxy explain` by what a client has, an address: the Services that lost it; and the whole answer that
//! docs/cli.md shows.

use std::fs;

use crate::support::Machine;

const DOCUMENT: &str = include_str!("../../../../../docs/cli.md");

/// The objects of the example: one of two endpoints isn't ready.
const SHOP: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.10}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4],
  ports: [{name: http, port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.2], nodeName: node-a, conditions: {ready: true}}
- {addresses: [10.244.2.2], nodeName: node-b, conditions: {ready: false}}
";

/// The flags of the example behind those of the source.
const FLAGS: &str = "--mode nftables --hostname-override node-a --cluster-cidr 10.244.1.0/24";

/// The answer to a question about these manifests.
fn answer(manifests: &str, question: &[&str]) -> String {
    let machine = Machine::new();
    fs::write(machine.path("manifests").join("all.yaml"), manifests).expect("writing manifests");
    let directory = machine.manifests();
    let arguments: Vec<&str> = ["explain", "--manifests", &directory].into_iter().chain(FLAGS.split(' ')).collect();
    let output = machine.output(&[&arguments[..], question].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_documented_answer_is_the_whole_one() {
    let answer = answer(SHOP, &["svc", "shop/web"]);
    let lines: String = answer.lines().map(|line| format!("    {line}\n")).collect();
    let example = format!("\n    $ kube-proxy explain --manifests shop {FLAGS} svc shop/web\n{lines}\n");
    assert!(DOCUMENT.contains(&example), "docs/cli.md has another answer than{example}");
}

#[test]
fn losers_of_an_address_are_named_where_a_client_asks_about_it() {
    let (_, service) = SHOP.split_once("---").expect("documents");
    let same = service.replace("web", "zzz").replace("30080", "30081");
    let external = service
        .replace("web", "ext")
        .replace("30080", "30082")
        .replace("10.96.0.10", "10.96.0.11")
        .replace("ports: [{name: http, port: 80,", "externalIPs: [10.96.0.10], ports: [{name: http, port: 80,");
    let manifests = format!("{SHOP}---{same}---{external}");
    for question in ["10.96.0.10:80", "10.244.1.9 -> 10.96.0.10:80"] {
        let answer = answer(&manifests, &[question]);
        let first = "problem: 10.96.0.10:80/TCP belongs to Service shop/web, which comes first: not served for \
                     shop/ext (spec.externalIPs[0]), shop/zzz (spec.clusterIP)";
        assert_eq!(answer.lines().next(), Some(first), "{answer}");
    }
    let node_ports = manifests.replace("30081", "30080");
    let answer = answer(&node_ports, &["198.51.100.7 -> 192.0.2.10:30080"]);
    let first = "problem: 192.0.2.10:30080/TCP belongs to Service shop/web, which comes first: not served for shop/zzz \
                 (spec.ports[0].nodePort)";
    assert_eq!(answer.lines().next(), Some(first), "{answer}");
}
