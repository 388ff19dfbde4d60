//! Plausible clusters in this mode: the compiled objects do to every packet what the model decides, and any history, decided
//! event by event, ends in the objects of one full build.

#![expect(clippy::panic, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panic")]

#[path = "../../model/tests/case/mod.rs"]
mod case;
#[path = "../../model/tests/cluster/changes.rs"]
mod changes;
#[path = "../../model/tests/cluster/mod.rs"]
mod cluster;
#[expect(dead_code, reason = "the objects of a case belong to the tests of the cases")]
mod decided;
#[path = "../../plane-nftables/tests/matrix/mod.rs"]
mod matrix;
mod proxy;
mod well_made;

use std::collections::{BTreeMap, BTreeSet};

use case::{Case, objects};
use changes::happens;
use cluster::{Cluster, Random};
use ferry_api::object::{Family, Kind, KubeObject, ObjectName, Protocol};
use ferry_model::{Event, FrontendAddr, Packet, Profile, Settings, decide};
use ferry_plane_iptables::{IptObject, Tracer};
use proptest::prelude::*;
use proxy::Proxy;
use well_made::well_made;

/// A cluster as the case folders are read.
fn case_of(cluster: &Cluster, seed: u64) -> Case {
    let mut config = decided::of_this_mode(&cluster.config);
    if seed.is_multiple_of(3) {
        assert!(config.contains("iptables: {"), "{config}");
        config = config.replace("iptables: {", "iptables: {localhostNodePorts: false, ");
    }
    Case::of(&format!("cluster {seed}"), &config, &[cluster.manifest()])
}

/// What every packet of a sample meets.
fn the_rules_do_what_is_decided(proxy: &Proxy, case: &Case, objects: &[IptObject], sample: usize, random: &mut Random) {
    let (context, base, states) = proxy.decided();
    let tracer = Tracer::new(objects);
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
        let wanted = decide(&states, &base, packet, &context, &Profile::IPTABLES);
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_rules_do_what_the_model_decides(seed in any::<u64>()) {
        let cluster = Cluster::random(seed);
        let case = case_of(&cluster, seed);
        let mut random = Random::new(seed);
        for family in Family::ALL {
            let proxy = fresh(family, &case, &cluster);
            let objects = proxy.compiled();
            well_made(&objects, &case.name);
            the_rules_do_what_is_decided(&proxy, &case, &objects, 2_000, &mut random);
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

/// The objects of a case by kind and name.
fn by_name(case: &Case) -> BTreeMap<(Kind, ObjectName), KubeObject> {
    let store = &case.store;
    let services = store.service_names().map(|name| store.objects(name));
    let services = services.flat_map(|objects| {
        let slices = objects.slices.into_iter().map(|slice| KubeObject::EndpointSlice(slice.clone()));
        let service = objects.service.map(|service| KubeObject::Service(service.clone()));
        service.into_iter().chain(slices).collect::<Vec<_>>()
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
    let all = decided::cases();
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
