//! Which endpoint stands in which slot. Slots are dense, and a change touches as few of them as it can: the slot of an
//! endpoint that goes is given to one that comes, or else to the last.

use std::collections::HashMap;
use std::sync::Arc;

use ferry_api::object::{ObjectName, Protocol};
use ferry_model::{Endpoint, Frontend, FrontendAddr, Pool, PortState, Scope, ServiceState};
use ferry_plane::{Before, Unit};

use crate::compile::{Shape, first_of_scope, is_pooled};
use crate::names::{LOCAL_SLOTS, PortId};
use crate::object::{ElementKey, NftObject, Value};

/// Orders the pools of a service by what was there before.
pub(crate) fn place(next: &mut ServiceState, before: Before<'_, NftObject>) {
    let old = match before {
        Before::Nothing | Before::Unit(Unit::Base(_)) => return,
        Before::Unit(Unit::Service(old)) => Some(old),
        Before::Objects(_) => None,
    };
    let old: HashMap<(&str, Protocol), &PortState> =
        old.iter().flat_map(|old| &old.ports).map(|port| ((&*port.name, port.protocol), port)).collect();
    let service = next.name.clone();
    for port in &mut next.ports {
        let slots = |port: &PortState, scope| match (old.get(&(&*port.name, port.protocol)), before) {
            (Some(old), _) => old.pool(scope).0.iter().copied().map(Some).collect(),
            (None, Before::Objects(objects)) => found(objects, &service, port, scope),
            (None, Before::Nothing | Before::Unit(_)) => Vec::new(),
        };
        let cluster = arrange(&slots(port, Scope::Cluster), &port.cluster);
        let local = arrange(&slots(port, Scope::Local), &port.local);
        port.local = if local == cluster { cluster.clone() } else { local };
        port.cluster = cluster;
    }
}

/// The slots that were read back, of the pool or from the first frontend that has some.
fn found(objects: &[NftObject], service: &ObjectName, port: &PortState, scope: Scope) -> Vec<Option<Endpoint>> {
    if is_pooled(port) {
        let id = PortId::new(service, port.protocol, &port.name);
        return slots_of(objects, first_of_scope(scope), |slot| ElementKey::PoolSlot { id, slot });
    }
    let protocol = port.protocol;
    let key = |frontend: &Frontend, slot| match frontend.at {
        FrontendAddr::Vip(vip, port) => ElementKey::Slot { vip, protocol, port, slot },
        FrontendAddr::NodePort(port) => ElementKey::NodePortSlot { protocol, port, slot },
    };
    let firsts = port.frontends.iter().filter_map(|frontend| Some((frontend, first_slot(frontend, scope)?)));
    let mut slots = firsts.map(|(frontend, first)| slots_of(objects, first, |slot| key(frontend, slot)));
    slots.find(|slots| !slots.is_empty()).unwrap_or_default()
}

/// From which slot on a frontend keeps the pool of a scope.
fn first_slot(frontend: &Frontend, scope: Scope) -> Option<u32> {
    match (Shape::of(frontend), scope) {
        (shape, _) if !shape.uses(scope) => None,
        (Shape::Split { .. }, Scope::Local) => Some(LOCAL_SLOTS),
        _ => Some(0),
    }
}

fn slots_of(objects: &[NftObject], first: u32, key: impl Fn(u32) -> ElementKey) -> Vec<Option<Endpoint>> {
    let from = objects.partition_point(|object| *object < NftObject::Element(key(first), Value::None));
    let mut slots = Vec::new();
    for object in objects.iter().skip(from) {
        let NftObject::Element(at, value) = object else { break };
        let Some(slot) = slot_of(at).filter(|slot| *at == key(*slot) && (first..first + LOCAL_SLOTS).contains(slot))
        else {
            break;
        };
        let Value::Endpoint(endpoint) = value else { continue };
        let index = usize::try_from(slot - first).unwrap_or(usize::MAX);
        slots.resize(index, None);
        slots.push(Some(*endpoint));
    }
    slots
}

fn slot_of(key: &ElementKey) -> Option<u32> {
    match key {
        ElementKey::Slot { slot, .. } | ElementKey::NodePortSlot { slot, .. } | ElementKey::PoolSlot { slot, .. } => {
            Some(*slot)
        }
        _ => None,
    }
}

/// The endpoints of `next`, those that stay in the slots they have.
fn arrange(old: &[Option<Endpoint>], next: &Pool) -> Pool {
    let mut sorted: Vec<Endpoint> = next.0.to_vec();
    sorted.sort_unstable();
    let mut slots: Vec<Option<Endpoint>> = vec![None; sorted.len()];
    let mut placed = vec![false; sorted.len()];
    for (slot, endpoint) in slots.iter_mut().zip(old) {
        let Some(endpoint) = endpoint else { continue };
        let Ok(index) = sorted.binary_search(endpoint) else { continue };
        if let Some(done) = placed.get_mut(index).filter(|done| !**done) {
            *done = true;
            *slot = Some(*endpoint);
        }
    }
    let mut rest = sorted.iter().zip(&placed).filter(|(_, placed)| !**placed).map(|(endpoint, _)| *endpoint);
    let arranged: Arc<[Endpoint]> = slots.into_iter().filter_map(|slot| slot.or_else(|| rest.next())).collect();
    if *arranged == *next.0 { next.clone() } else { Pool(arranged) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn endpoints(last: &[u8]) -> Vec<Endpoint> {
        last.iter().map(|last| Endpoint { address: Ipv4Addr::new(10, 244, 0, *last).into(), port: 80 }).collect()
    }

    fn arranged(old: &[u8], next: &[u8]) -> Vec<Endpoint> {
        let old: Vec<_> = endpoints(old).into_iter().map(Some).collect();
        arrange(&old, &Pool::new(endpoints(next))).0.to_vec()
    }

    #[test]
    fn who_stays_keeps_its_slot() {
        assert_eq!(arranged(&[], &[1, 2, 3]), endpoints(&[1, 2, 3]));
        assert_eq!(arranged(&[3, 1, 2], &[1, 2, 3]), endpoints(&[3, 1, 2]));
        assert_eq!(arranged(&[3, 1, 2], &[2, 3, 9]), endpoints(&[3, 9, 2]), "the new one takes the free slot");
        assert_eq!(arranged(&[3, 1, 2], &[2, 3]), endpoints(&[3, 2]), "the last moves into the free slot");
        assert_eq!(arranged(&[1, 2], &[0, 1, 2]), endpoints(&[1, 2, 0]), "more come behind");
        assert_eq!(arranged(&[1, 1, 2], &[1, 2, 3]), endpoints(&[1, 3, 2]), "damage that was read back");
        assert_eq!(arranged(&[1, 2], &[]), endpoints(&[]));
    }
}
