//! Generates overlapping EndpointSlices, with endpoints in every condition.

use ferry_api::object::ObjectName;

use super::Hints;
use super::random::Random;
use super::service::{PORTS, SERVICES};

/// The nodes with their zones, and the number in their pods' and their own addresses.
const NODES: [(&str, &str, u8); 3] = [("node-a", "zone-a", 1), ("node-b", "zone-b", 2), ("node-c", "zone-a", 3)];

/// Generates one of a service's slices: its first, second … of a family.
pub(super) fn random(slot: usize, part: usize, v4: bool, hints: Hints, random: &mut Random) -> (ObjectName, String) {
    let (namespace, service) = SERVICES.get(slot).copied().unwrap_or(("default", "none"));
    let (kind, family) = if v4 { ("IPv4", "v4") } else { ("IPv6", "v6") };
    let name = format!("{service}-{family}-{part}");
    let mut text = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: {namespace}\n  name: {name}\n  \
         labels: {{kubernetes.io/service-name: {service}}}\naddressType: {kind}\nports:\n"
    );
    for (name, protocol, _, number) in PORTS {
        if random.chance(88) {
            let number = if random.chance(5) { number + 1 } else { number };
            text += &format!("- {{name: {name}, protocol: {protocol}, port: {number}}}\n");
        }
    }
    for (protocol, number) in [("TCP", 8080), ("UDP", 8080), ("SCTP", 9999)] {
        if random.chance(80) {
            text += &format!("- {{name: '', protocol: {protocol}, port: {number}}}\n");
        }
    }
    text += "endpoints:\n";
    let most = random.pick(&[0, 1, 3, 4, 6]);
    for _ in 0..random.below(most + 1) {
        text += &endpoint(v4, hints, random);
    }
    (ObjectName::new(namespace, &name), text)
}

fn endpoint(v4: bool, hints: Hints, random: &mut Random) -> String {
    let (node, zone, number) = random.pick(&NODES);
    let address = if random.chance(5) {
        // A pod in the host network.
        if v4 { format!("192.0.2.{}", 9 + number) } else { format!("'2001:db8::{}'", 9 + number) }
    } else if random.chance(3) {
        // Special addresses, which are invalid for endpoints.
        let addresses = if v4 { ["127.0.0.1", "169.254.169.254"] } else { ["'::1'", "'fe80::1'"] };
        random.pick(&addresses).to_owned()
    } else {
        let last = random.pick(&[10, 11, 12, 13]);
        if v4 { format!("10.244.{number}.{last}") } else { format!("'fd00:10:244:{number}::{last}'") }
    };
    let conditions = match random.below(100) {
        0..=64 => "{ready: true, serving: true, terminating: false}",
        65..=79 => "{ready: false, serving: true, terminating: true}",
        80..=85 => "{ready: false, serving: false, terminating: false}",
        86..=90 => "{ready: false, serving: false, terminating: true}",
        91..=94 => "{ready: true, serving: true, terminating: true}",
        95..=97 => "{ready: false, serving: true, terminating: false}",
        _ => "{}",
    };
    let node = match random.below(100) {
        0..=3 => None,
        4..=6 => Some(random.pick(&NODES).0),
        _ => Some(node),
    };
    let mut text = format!("- addresses: [{address}]\n  zone: {zone}\n  conditions: {conditions}\n");
    if let Some(node) = node {
        text += &format!("  nodeName: {node}\n");
    }
    let zones = format!("forZones: [{{name: {zone}}}]");
    let nodes = format!("forNodes: [{{name: {}}}]", node.unwrap_or("node-z"));
    match hints {
        Hints::None => {}
        Hints::Zones => text += &format!("  hints: {{{zones}}}\n"),
        Hints::Nodes => text += &format!("  hints: {{{zones}, {nodes}}}\n"),
        Hints::Mixed => match random.below(4) {
            0 => {}
            1 => text += &format!("  hints: {{{nodes}}}\n"),
            2 => text += "  hints: {forZones: [{name: zone-a}, {name: zone-b}]}\n",
            _ => text += &format!("  hints: {{{zones}}}\n"),
        },
    }
    text
}
