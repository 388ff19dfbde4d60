//! Plausible clusters in this mode: the compiled objects do to every packet what the model decides, and any history, decided
//! event by event and placed slot by slot, ends in the objects of one full build.

#![expect(clippy::panic, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panic")]

#[expect(dead_code, reason = "the folders belong to the tests of the cases")]
#[path = "../../model/tests/case/mod.rs"]
mod case;
#[path = "../../model/tests/cluster/changes.rs"]
mod changes;
#[path = "../../model/tests/cluster/mod.rs"]
mod cluster;
mod matrix;
mod proxy;
mod settled;

use std::collections::{BTreeMap, BTreeSet};

use case::{Case, objects};
use changes::happens;
use cluster::{Cluster, Random};
use ferry_api::object::{Family, Kind, KubeObject, ObjectName, Protocol};
use ferry_model::{Event, FrontendAddr, Packet, Profile, Settings, decide};
use ferry_plane::{Compile, Unit};
use ferry_plane_nftables::{NftObject, Nftables, Tracer};
use proptest::prelude::*;
use proxy::Proxy;

/// A cluster as the case folders are read.
fn case_of(cluster: &Cluster, seed: u64) -> Case {
    Case::of(&format!("cluster {seed}"), &cluster.config, &[cluster.manifest()])
}

/// What every packet of a sample meets.
fn the_rules_do_what_is_decided(proxy: &Proxy, case: &Case, objects: &[NftObject], sample: usize, random: &mut Random) {
    let (context, base, states) = proxy.decided();
    let tracer = Tracer::new(proxy.family, objects);
    let packets = matrix::packets(proxy.family, case, &states, &base);
    let frontends: BTreeSet<(FrontendAddr, Protocol)> = (states.iter().flat_map(|state| &state.ports))
        .flat_map(|port| port.frontends.iter().map(|frontend| (frontend.at, port.protocol)))
        .collect();
    let is_served = |packet: &Packet| {
        let at = [FrontendAddr::Vip(packet.destination, packet.port), FrontendAddr::NodePort(packet.port)];
        at.iter().any(|at| frontends.contains(&(*at, packet.protocol)))
    };
    let (served, others): (Vec<Packet>, Vec<Packet>) = packets.into_iter().partition(is_served);
    for _ in 0..sample {
        // Most packets of the matrix go to ports that nobody serves.
        let packets = if served.is_empty() || random.chance(20) { &others } else { &served };
        let packet = &packets[random.below(packets.len())];
        let wanted = decide(&states, &base, packet, &context, &Profile::NFTABLES);
        assert_eq!(tracer.trace(packet), wanted, "{} {}: {packet:?}", case.name, proxy.family);
    }
}

/// The event that brings an object to a store, or takes it away.
fn event(cluster: &Cluster, key: &(Kind, ObjectName)) -> Event {
    let Some(text) = cluster.objects.get(key) else { return Event::Delete(key.0, key.1.clone()) };
    let object = objects("cluster", text).pop().unwrap();
    assert_eq!((object.kind(), object.name()), (key.0, &key.1));
    Event::Upsert(object)
}

fn fresh(family: Family, case: &Case, cluster: &Cluster) -> Proxy {
    let mut proxy = Proxy::new(family, &case.settings, &case.local_addresses);
    for key in cluster.objects.keys() {
        proxy.apply(event(cluster, key));
    }
    proxy
}

fn compiled(proxy: &Proxy) -> Vec<NftObject> {
    let (context, base, states) = proxy.decided();
    let nftables = Nftables::new(proxy.family);
    let mut objects = Vec::new();
    for unit in [Unit::Base(base)].into_iter().chain(states.into_iter().map(Unit::Service)) {
        nftables.compile(&context, &unit, &mut objects);
    }
    objects
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_do_what_the_model_decides(seed in any::<u64>()) {
        let cluster = Cluster::random(seed);
        let case = case_of(&cluster, seed);
        let mut random = Random::new(seed);
        for family in Family::ALL {
            let proxy = fresh(family, &case, &cluster);
            the_rules_do_what_is_decided(&proxy, &case, &compiled(&proxy), 2_000, &mut random);
        }
    }

    #[test]
    fn any_history_ends_as_one_full_build_does(seed in any::<u64>(), moments in 1..60usize) {
        for family in Family::ALL {
            let mut cluster = Cluster::random(seed);
            let mut random = Random::new(seed);
            let case = case_of(&cluster, seed);
            let mut proxy = fresh(family, &case, &cluster);
            for _ in 0..moments {
                let key = happens(&mut cluster, &mut random);
                proxy.apply(event(&cluster, &key));
                // Some changes meet in one transaction.
                if random.chance(60) {
                    proxy.sync();
                }
            }
            let found = proxy.settle();
            prop_assert_eq!(found, fresh(family, &case, &cluster).settle());
            the_rules_do_what_is_decided(&proxy, &case, &proxy.engine.objects(), 300, &mut random);
        }
    }
}

/// What one Service may be, one after the other.
const SHAPES: [&str; 18] = [
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
    // another address, the families turned round, one family
    "type: LoadBalancer\n  clusterIP: 10.96.0.99\n  clusterIPs: [10.96.0.99]\n  ipFamilies: [IPv4]",
    "type: NodePort\n  clusterIP: 'fd00:10:96::20'\n  clusterIPs: ['fd00:10:96::20', 10.96.0.20]\n  ipFamilies: [IPv6, IPv4]",
    "type: ClusterIP\n  clusterIP: None\n  clusterIPs: [None]",
    // ports that are renamed, renumbered, of another protocol
    "type: NodePort\n  ports:\n  - {name: web, port: 80, nodePort: 30080}\n  - {name: dns, protocol: UDP, port: 53}",
    "type: NodePort\n  ports:\n  - {name: http, port: 8080, nodePort: 30090}\n  - {name: dns, protocol: UDP, port: 5353}",
    "type: NodePort\n  ports:\n  - {name: dns, protocol: SCTP, port: 80, nodePort: 30080}\n  - {name: http, port: 53}",
];

/// A Service of this shape, with addresses and ports where the shape leaves them open.
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

/// From every shape to every other, with endpoints of two of the ports' names and of an earlier one.
#[test]
fn a_service_leaves_nothing_of_what_it_was() {
    let case = Case::of(
        "shapes",
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables",
        &[],
    );
    let slice = |family: &str, here: &str, there: &str| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{namespace: default, name: web-{family}, \
             labels: {{kubernetes.io/service-name: web}}}}\naddressType: {family}\nports:\n- {{name: http, port: 8080}}\n\
             - {{name: web, port: 8081}}\n- {{name: dns, protocol: UDP, port: 5353}}\nendpoints:\n\
             - {{addresses: ['{here}'], nodeName: node-a}}\n- {{addresses: ['{there}'], nodeName: node-b}}\n"
        )
    };
    let slices = slice("IPv4", "10.244.1.10", "10.244.2.10") + &slice("IPv6", "fd00:10:244:1::10", "fd00:10:244:2::10");
    let fresh = |family, shape: &str| {
        let mut proxy = Proxy::new(family, &case.settings, &case.local_addresses);
        objects("shapes", &slices).into_iter().for_each(|slice| proxy.apply(Event::Upsert(slice)));
        proxy.apply(shaped(shape));
        let settled = proxy.settle();
        (proxy, settled)
    };
    for family in Family::ALL {
        let wanted: Vec<(Proxy, Vec<String>)> = SHAPES.iter().map(|shape| fresh(family, shape)).collect();
        let mut proxy = fresh(family, SHAPES[0]).0;
        for (at, from) in SHAPES.iter().enumerate() {
            for (to, (_, wanted)) in SHAPES.iter().zip(&wanted) {
                proxy.apply(shaped(to));
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

/// The objects of a case by kind and name.
fn by_name(case: &Case) -> BTreeMap<(Kind, ObjectName), KubeObject> {
    let store = &case.store;
    let services = store.service_names().map(|name| store.objects(name));
    let services = services.flat_map(|objects| {
        let slices = objects.slices.into_iter().map(|slice| KubeObject::EndpointSlice(slice.clone()));
        objects
            .service
            .map(|service| KubeObject::Service(service.clone()))
            .into_iter()
            .chain(slices)
            .collect::<Vec<_>>()
    });
    let node = store.node().map(|node| KubeObject::Node(node.clone()));
    let cidrs = store.service_cidrs().map(|cidr| KubeObject::ServiceCidr(cidr.clone()));
    services.chain(node).chain(cidrs).map(|object| ((object.kind(), object.name().clone()), object)).collect()
}

/// What leads from one case's objects to another's, in any order.
fn transition(from: &Case, to: &Case, random: &mut Random) -> Vec<Event> {
    let (before, after) = (by_name(from), by_name(to));
    let gone =
        before.keys().filter(|key| !after.contains_key(key)).map(|(kind, name)| Event::Delete(*kind, name.clone()));
    let mut events: Vec<Event> = gone.chain(after.values().cloned().map(Event::Upsert)).collect();
    for at in (1..events.len()).rev() {
        events.swap(at, random.below(at + 1));
    }
    events
}

/// Most cases are about a service default/web, so one after the other they change its type, ports, addresses, policies and
/// endpoints in every direction.
#[test]
fn any_case_may_follow_any_other() {
    let all = Case::all();
    let mut groups: Vec<(&Settings, Vec<&Case>)> = Vec::new();
    for case in &all {
        match groups.iter_mut().find(|(settings, _)| **settings == case.settings) {
            Some((_, cases)) => cases.push(case),
            None => groups.push((&case.settings, vec![case])),
        }
    }
    assert!(groups.iter().any(|(_, cases)| cases.len() > 150));
    let mut random = Random::new(5);
    for (settings, mut cases) in groups {
        for at in (1..cases.len()).rev() {
            cases.swap(at, random.below(at + 1));
        }
        for family in Family::ALL {
            let mut proxy = Proxy::new(family, settings, &[]);
            for (at, to) in cases.iter().enumerate() {
                let from = at.checked_sub(1).map_or(*to, |before| cases[before]);
                let new: Vec<Event> = by_name(to).into_values().map(Event::Upsert).collect();
                let events = if at == 0 { new.clone() } else { transition(from, to, &mut random) };
                events.into_iter().for_each(|event| proxy.apply(event));
                proxy.readdress(&to.local_addresses);
                let mut wanted = Proxy::new(family, settings, &to.local_addresses);
                new.into_iter().for_each(|event| wanted.apply(event));
                assert_eq!(proxy.settle(), wanted.settle(), "{family}: from {} to {}", from.name, to.name);
            }
        }
    }
}
