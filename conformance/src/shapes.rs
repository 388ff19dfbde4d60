//! Tests the transitions between all shapes of one Service.

use ferry_api::object::Family;
use ferry_model::Event;

use crate::case::{Case, objects};
use crate::cases::of_this_mode;
use crate::cluster::Random;
use crate::mode::{Mode, ObjectOf};
use crate::proxy::MemoryProxy;

/// The shapes of the Service, in order.
const SHAPES: [&str; 20] = [
    "type: ClusterIP",
    "type: ClusterIP\n  externalIPs: [198.51.100.20, '2001:db8:2::20']",
    "type: NodePort",
    "type: NodePort\n  externalTrafficPolicy: Local",
    "type: LoadBalancer",
    "type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 32000",
    "type: LoadBalancer\n  loadBalancerSourceRanges: [198.51.100.0/24, '2001:db8:3::/48']",
    "type: LoadBalancer\n  allocateLoadBalancerNodePorts: false\n  sessionAffinity: ClientIP",
    "type: ExternalName\n  externalName: web.example.com",
    "type: ClusterIP\n  internalTrafficPolicy: Local",
    "type: ClusterIP\n  sessionAffinity: ClientIP",
    "type: NodePort\n  sessionAffinity: ClientIP\n  internalTrafficPolicy: Local\n  externalTrafficPolicy: Local",
    // enough addresses that they share the rules of the endpoints
    "type: NodePort\n  externalTrafficPolicy: Local\n  externalIPs: [198.51.100.1, 198.51.100.2, 198.51.100.3, 198.51.100.4, \
     198.51.100.5, 198.51.100.6, 198.51.100.7, '2001:db8:2::1', '2001:db8:2::2', '2001:db8:2::3', '2001:db8:2::4', \
     '2001:db8:2::5', '2001:db8:2::6', '2001:db8:2::7']",
    "type: LoadBalancer\n  sessionAffinity: ClientIP\n  internalTrafficPolicy: Local\n  externalIPs: [198.51.100.1, \
     198.51.100.2, 198.51.100.3, 198.51.100.4, 198.51.100.5, 198.51.100.6, 198.51.100.7, '2001:db8:2::1', '2001:db8:2::2', \
     '2001:db8:2::3', '2001:db8:2::4', '2001:db8:2::5', '2001:db8:2::6', '2001:db8:2::7']",
    // another address, families in reverse order, one family
    "type: LoadBalancer\n  clusterIP: 10.96.0.99\n  clusterIPs: [10.96.0.99]\n  ipFamilies: [IPv4]",
    "type: NodePort\n  clusterIP: 'fd00:10:96::20'\n  clusterIPs: ['fd00:10:96::20', 10.96.0.20]\n  ipFamilies: [IPv6, IPv4]",
    "type: ClusterIP\n  clusterIP: None\n  clusterIPs: [None]",
    // ports with other names, numbers and protocols
    "type: NodePort\n  ports:\n  - {name: web, port: 80, nodePort: 30080}\n  - {name: dns, protocol: UDP, port: 53}",
    "type: NodePort\n  ports:\n  - {name: http, port: 8080, nodePort: 30090}\n  - {name: dns, protocol: UDP, port: 5353}",
    "type: NodePort\n  ports:\n  - {name: dns, protocol: SCTP, port: 80, nodePort: 30080}\n  - {name: http, port: 53}",
];

/// A Service of this shape, with default addresses and ports if the shape has none.
fn shaped(shape: &str) -> Event {
    let addresses = "clusterIP: 10.96.0.20\n  clusterIPs: [10.96.0.20, 'fd00:10:96::20']\n  ipFamilies: [IPv4, IPv6]";
    let opens = shape.contains("NodePort") || shape.contains("LoadBalancer\n  ext");
    let node_port = if opens { 30_080 } else { 0 };
    let ports = format!(
        "ports:\n  - {{name: http, port: 80, nodePort: {node_port}}}\n  - {{name: dns, protocol: UDP, port: 53}}"
    );
    let addresses = if shape.contains("clusterIP:") { "" } else { addresses };
    let ports = if shape.contains("ports:") { "" } else { &ports };
    let balanced = "status: {loadBalancer: {ingress: [{ip: 203.0.113.20}, {ip: '2001:db8:1::20'}]}}\n";
    let status = if shape.contains("type: LoadBalancer") { balanced } else { "" };
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{namespace: default, name: web}}\nspec:\n  {shape}\n  {addresses}\n  \
         {ports}\n{status}"
    );
    Event::Upsert(objects("shape", &text).pop().unwrap())
}

/// Changes every shape to every other one, with endpoints of two of the ports' names and of an earlier one. Half of the commits
/// fail half-way.
pub fn a_service_leaves_nothing_of_what_it_was<M: Mode>() {
    let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables";
    let case = Case::of("shapes", &of_this_mode::<M>(config), &[]);
    let slice = |family: &str, here: &str, there: &str| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{namespace: default, name: web-{}, \
             labels: {{kubernetes.io/service-name: web}}}}\naddressType: {family}\nports:\n- {{name: http, port: 8080}}\n\
             - {{name: web, port: 8081}}\n- {{name: dns, protocol: UDP, port: 5353}}\nendpoints:\n\
             - {{addresses: ['{here}'], nodeName: node-a}}\n- {{addresses: ['{there}'], nodeName: node-b}}\n",
            family.to_lowercase()
        )
    };
    let slices = slice("IPv4", "10.244.1.10", "10.244.2.10") + &slice("IPv6", "fd00:10:244:1::10", "fd00:10:244:2::10");
    let fresh = |family, shape: &str| {
        let mut proxy = MemoryProxy::<M>::new(family, &case.settings, &case.local_addresses);
        objects("shapes", &slices).into_iter().for_each(|slice| proxy.apply(Event::Upsert(slice)));
        proxy.apply(shaped(shape));
        let settled = proxy.settle();
        (proxy, settled)
    };
    let mut random = Random::new(7);
    for family in Family::ALL {
        let wanted: Vec<(MemoryProxy<M>, Vec<ObjectOf<M>>)> = SHAPES.iter().map(|shape| fresh(family, shape)).collect();
        let mut proxy = fresh(family, SHAPES[0]).0;
        for (at, from) in SHAPES.iter().enumerate() {
            for (to, (_, wanted)) in SHAPES.iter().zip(&wanted) {
                proxy.apply(shaped(to));
                if random.chance(50) {
                    proxy.fail_half_way(&mut random);
                }
                assert_eq!(proxy.settle(), *wanted, "{family}: from {from} to {to}");
                proxy.apply(shaped(from));
                proxy.sync();
            }
            let next = SHAPES.get(at + 1).unwrap_or(from);
            proxy.apply(shaped(next));
            proxy.sync();
        }
    }
}
