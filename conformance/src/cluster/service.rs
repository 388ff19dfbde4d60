//! Generates Services of all types from few names and addresses, so that conflicts are frequent.

use ferry_api::object::ObjectName;

use super::random::Random;

/// All possible services. Each has its own cluster IPs: 10.96.0.20 and fd00:10:96::20 the first, and so on.
pub const SERVICES: [(&str, &str); 10] = [
    ("default", "web"),
    ("default", "api"),
    ("default", "db"),
    ("shop", "web"),
    ("shop", "cart"),
    ("kube-system", "kube-dns"),
    ("default", "a"),
    ("shop", "mail"),
    ("ops", "metrics"),
    ("default", "late"),
];

/// Ports: name, protocol, service port and endpoint port.
pub(super) const PORTS: [(&str, &str, u16, u16); 7] = [
    ("http", "TCP", 80, 8080),
    ("https", "TCP", 443, 8443),
    ("dns", "UDP", 53, 5353),
    ("dns-tcp", "TCP", 53, 5353),
    ("sctp", "SCTP", 9999, 9999),
    ("metrics", "TCP", 9090, 8081),
    ("udp", "UDP", 80, 8080),
];

/// How a mode with weights balances some of the services; the last can't be followed.
const ANNOTATIONS: [&str; 4] = [
    "  annotations: {ferry.io/ipvs-scheduler: wlc, ferry.io/ipvs-weight-local: '3'}\n",
    "  annotations: {ferry.io/ipvs-weight-zones: 'zone-a=4,zone-b=2', ferry.io/ipvs-weight-local: '3'}\n",
    "  annotations: {ferry.io/ipvs-scheduler: sh}\n",
    "  annotations: {ferry.io/ipvs-scheduler: fastest, ferry.io/ipvs-weight-zones: 'zone-a=2,zone-b=0'}\n",
];

/// Generates one of the services, in YAML block style.
pub(super) fn random(slot: usize, random: &mut Random) -> (ObjectName, String) {
    let (namespace, name) = SERVICES.get(slot).copied().unwrap_or(("default", "none"));
    let kind = random.pick(&["ClusterIP", "ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer", "LoadBalancer"]);
    let kind = if random.chance(4) { "ExternalName" } else { kind };
    let mut text = format!("apiVersion: v1\nkind: Service\nmetadata:\n  namespace: {namespace}\n  name: {name}\n");
    if random.chance(80) {
        let month = 1 + random.below(4);
        text += &format!("  creationTimestamp: 2025-{month:02}-01T00:00:00Z\n");
    }
    text += ANNOTATIONS.get((slot + kind.len()) % 7).copied().unwrap_or_default();
    if random.chance(4) {
        text += "  labels: {service.kubernetes.io/service-proxy-name: other}\n";
    }
    text += &format!("spec:\n  type: {kind}\n");
    text += &cluster_ips(slot, random);
    text += &ports(kind, random);
    text += &policies(slot, kind, random);
    if random.chance(25) {
        // These include another service's load balancer address, the node's own, and loopback.
        let addresses = [
            "198.51.100.20",
            "198.51.100.21",
            "203.0.113.20",
            "192.0.2.110",
            "127.0.0.1",
            "'2001:db8:2::20'",
            "'2001:db8:2::21'",
            "'2001:db8::110'",
            "'::1'",
        ];
        let mut chosen: Vec<String> = random.some(&addresses, 3).into_iter().map(str::to_owned).collect();
        // Enough frontends that a plane lets them share the rules of the endpoints.
        let many = if random.chance(25) { 9 } else { 0 };
        chosen.extend((0..many).flat_map(|last| [format!("198.51.100.3{last}"), format!("'2001:db8:2::3{last}'")]));
        text += &format!("  externalIPs: [{}]\n", chosen.join(", "));
    }
    // Fields of an earlier type may remain for a while.
    if kind == "LoadBalancer" || random.chance(5) {
        text += &load_balancer(random);
    }
    (ObjectName::new(namespace, name), text)
}

fn cluster_ips(slot: usize, random: &mut Random) -> String {
    if random.chance(4) {
        return "  clusterIP: None\n  clusterIPs: [None]\n".to_owned();
    }
    // Occasionally the cluster IP of another service, as in a copied manifest.
    let slot = if random.chance(4) { random.below(SERVICES.len()) } else { slot };
    let (v4, v6) = (format!("10.96.0.{}", 20 + slot), format!("'fd00:10:96::{}'", 20 + slot));
    match random.below(10) {
        0..=3 => format!("  clusterIP: {v4}\n  clusterIPs: [{v4}]\n  ipFamilies: [IPv4]\n"),
        4 => format!("  clusterIP: {v6}\n  clusterIPs: [{v6}]\n  ipFamilies: [IPv6]\n"),
        5 => format!("  clusterIP: {v6}\n  clusterIPs: [{v6}, {v4}]\n  ipFamilies: [IPv6, IPv4]\n"),
        6 => format!("  clusterIP: {v4}\n"),
        _ => format!("  clusterIP: {v4}\n  clusterIPs: [{v4}, {v6}]\n  ipFamilies: [IPv4, IPv6]\n"),
    }
}

fn ports(kind: &str, random: &mut Random) -> String {
    let mut chosen = random.some(&PORTS, 3);
    if chosen.is_empty() {
        chosen = vec![random.pick(&PORTS)];
    }
    let unnamed = chosen.len() == 1 && random.chance(50);
    let opens = (kind == "NodePort" || kind == "LoadBalancer") && random.chance(90);
    let mut text = "  ports:\n".to_owned();
    for (name, protocol, number, _) in chosen {
        let name = if unnamed { "" } else { name };
        // Occasionally the next port, or a number that is also a node port.
        let number = match random.below(100) {
            0..=4 => number + 1,
            5..=14 => random.pick(&[30_080, 30_081, 30_084, 30_091]),
            _ => number,
        };
        let node_port = if opens { 30_080 + random.below(12) } else { 0 };
        text += &format!("  - {{name: '{name}', protocol: {protocol}, port: {number}, nodePort: {node_port}}}\n");
    }
    text
}

fn policies(slot: usize, kind: &str, random: &mut Random) -> String {
    let mut text = String::new();
    if random.chance(25) {
        text += "  internalTrafficPolicy: Local\n";
    }
    if random.chance(40) {
        text += "  externalTrafficPolicy: Local\n";
        if kind == "LoadBalancer" {
            text += &format!("  healthCheckNodePort: {}\n", 32_000 + slot);
        }
    }
    if random.chance(25) {
        let seconds = random.pick(&[600, 10_800]);
        text += "  sessionAffinity: ClientIP\n";
        text += &format!("  sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}\n");
    }
    if random.chance(35) {
        let ranges = [
            "198.51.100.0/24",
            "10.244.1.0/24",
            "10.0.0.0/8",
            "192.0.2.0/24",
            "203.0.113.20/32",
            "'2001:db8:3::/48'",
            "'fd00:10:244:1::/64'",
            "'2001:db8::/64'",
            "0.0.0.0/0",
            "198.51.100.7",
            "198.51.100.0/33",
            "everybody",
        ];
        text += &format!("  loadBalancerSourceRanges: [{}]\n", random.some(&ranges, 3).join(", "));
    }
    text
}

fn load_balancer(random: &mut Random) -> String {
    let addresses = [
        "203.0.113.20",
        "203.0.113.21",
        "203.0.113.22",
        "192.0.2.110",
        "127.0.0.1",
        "'2001:db8:1::20'",
        "'2001:db8:1::21'",
    ];
    let mut text = "status:\n  loadBalancer:\n    ingress:\n".to_owned();
    for address in random.some(&addresses, 3) {
        let mode = random.pick(&["VIP", "VIP", "VIP", "Proxy"]);
        text += &format!("    - {{ip: {address}, ipMode: {mode}}}\n");
    }
    text += "    - {hostname: lb.example.com}\n";
    text
}
