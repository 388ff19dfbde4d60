//! Tests the transitions from one case to another.

use std::collections::BTreeMap;

use ferry_api::object::{Family, Kind, KubeObject, ObjectName};
use ferry_model::{Event, Settings};

use crate::case::Case;
use crate::cases;
use crate::cluster::Random;
use crate::mode::Mode;
use crate::proxy::MemoryProxy;

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

/// The events that lead from one case's objects to another's, in random order.
fn transition(from: &Case, to: &Case, random: &mut Random) -> Vec<Event> {
    let (before, after) = (by_name(from), by_name(to));
    let gone =
        before.keys().filter(|key| !after.contains_key(key)).map(|(kind, name)| Event::Delete(*kind, name.clone()));
    let mut events: Vec<Event> = gone.chain(after.values().cloned().map(Event::Upsert)).collect();
    random.shuffle(&mut events);
    events
}

/// Runs through all cases in random order. Most of them have a service default/web, so the transitions change its type,
/// ports, addresses, policies and endpoints in every direction. Half of the commits fail half-way.
pub fn any_case_may_follow_any_other<M: Mode>() {
    let all = cases::all::<M>();
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
        random.shuffle(&mut cases);
        for family in Family::ALL {
            let mut proxy = MemoryProxy::<M>::new(family, settings, &[]);
            for (at, to) in cases.iter().enumerate() {
                let from = at.checked_sub(1).map_or(*to, |before| cases[before]);
                let new: Vec<Event> = by_name(to).into_values().map(Event::Upsert).collect();
                let events = if at == 0 { new.clone() } else { transition(from, to, &mut random) };
                // Deletes the Node first: the lost facts of a changed Node would stay in force.
                proxy.apply(Event::Delete(Kind::Node, ObjectName::cluster_wide(&settings.node_name)));
                events.into_iter().for_each(|event| proxy.apply(event));
                proxy.readdress(&to.local_addresses);
                if random.chance(50) {
                    proxy.fail_half_way(&mut random);
                }
                let mut wanted = MemoryProxy::<M>::new(family, settings, &to.local_addresses);
                new.into_iter().for_each(|event| wanted.apply(event));
                assert_eq!(proxy.settle(), wanted.settle(), "{family}: from {} to {}", from.name, to.name);
            }
        }
    }
}
