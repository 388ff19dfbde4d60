//! Assigns endpoints to slots. Slots are dense, and a change touches as few of them as possible: the slot of a removed endpoint
//! goes to an added one, or else to the last.

use std::collections::HashMap;
use std::sync::Arc;

use ferry_api::object::{ObjectName, Protocol};
use ferry_model::{Endpoint, Frontend, FrontendAddr, Pool, PortState, Scope, ServiceState};
use ferry_plane::{Before, Unit};

use crate::names::{LOCAL_SLOTS, PortId};
use crate::object::{ElementKey, NftObject, Value};
use crate::shape::{Shape, first_of_scope, is_pooled};

/// Orders the pools of a service so that remaining endpoints keep their slots.
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

/// The slots as read back, of the pool or of the first frontend that has some.
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

/// First slot of a frontend's endpoints of a scope; `None` if it doesn't use the scope.
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

/// The endpoints of `next`, with remaining ones in their old slots.
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

    use ferry_api::object::Family;
    use ferry_conformance::states;
    use ferry_model::FrontendKind;
    use ferry_plane::Compile as _;

    use super::*;
    use crate::Nftables;

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

    /// A port with a cluster IP that has policy Cluster and a load balancer with policy Local.
    fn split_port(cluster: &[u8], local: &[u8]) -> PortState {
        let vip = |last| FrontendAddr::Vip(Ipv4Addr::new(10, 96, 0, last).into(), 80);
        let frontends = vec![
            states::frontend(FrontendKind::ClusterIp, vip(1), states::INTERNAL),
            states::frontend(FrontendKind::LoadBalancer, vip(2), states::SPLIT),
        ];
        let pool = |last: &[u8]| Pool(endpoints(last).into());
        states::port(Protocol::Tcp, pool(cluster), pool(local), frontends)
    }

    fn state(port: PortState) -> ServiceState {
        ServiceState { name: ObjectName::new("demo", "web"), ports: vec![port], health_check: None }
    }

    fn placed(port: PortState, before: Before<'_, NftObject>) -> [Vec<Endpoint>; 2] {
        let mut next = state(port);
        place(&mut next, before);
        [Scope::Cluster, Scope::Local].map(|scope| next.ports[0].pool(scope).0.to_vec())
    }

    /// The compiled objects in the order of a read-back, without the elements of these slots.
    fn objects_without(port: PortState, lost: &[u32]) -> Vec<NftObject> {
        let mut objects = Vec::new();
        let unit = Unit::Service(state(port));
        Nftables::new(Family::V4).compile(&states::context(Family::V4), &unit, &mut objects);
        let slot = |object: &NftObject| if let NftObject::Element(key, _) = object { slot_of(key) } else { None };
        objects.retain(|object| slot(object).is_none_or(|slot| !lost.contains(&slot)));
        objects.sort();
        objects
    }

    #[test]
    fn each_scope_keeps_its_own_slots() {
        let before = split_port(&[2, 1, 3, 4], &[3, 2, 4]);
        let wanted = [endpoints(&[2, 1, 3, 9]), endpoints(&[3, 2, 9])];
        let next = || split_port(&[1, 2, 3, 9], &[2, 3, 9]);
        assert_eq!(placed(next(), Before::Unit(&Unit::Service(state(before.clone())))), wanted);
        assert_eq!(placed(next(), Before::Objects(&objects_without(before, &[]))), wanted);
    }

    #[test]
    fn a_lost_slot_shifts_no_other() {
        let before = split_port(&[2, 1, 3, 4], &[3, 2, 4]);
        let objects = objects_without(before, &[1, LOCAL_SLOTS]);
        let [cluster, local] = placed(split_port(&[1, 2, 3, 4], &[2, 3, 4]), Before::Objects(&objects));
        assert_eq!([cluster, local], [endpoints(&[2, 1, 3, 4]), endpoints(&[3, 2, 4])]);
    }

    #[test]
    fn slots_are_those_of_the_first_frontend_that_has_some() {
        let mut before = split_port(&[2, 1, 3], &[3, 2]);
        let next = before.clone();
        let mut frontends = before.frontends.to_vec();
        frontends.remove(0);
        before.frontends = frontends.into();
        let objects = objects_without(before, &[]);
        assert_eq!(placed(next, Before::Objects(&objects)), [endpoints(&[2, 1, 3]), endpoints(&[3, 2])]);
    }

    #[test]
    fn a_pool_of_many_frontends_keeps_its_slots() {
        let wide = |cluster: &[u8], local: &[u8]| {
            let mut port = split_port(cluster, local);
            let vip = |last| FrontendAddr::Vip(Ipv4Addr::new(10, 96, 1, last).into(), 80);
            let more = (0..9).map(|last| states::frontend(FrontendKind::ExternalIp, vip(last), states::SPLIT));
            port.frontends = port.frontends.iter().cloned().chain(more).collect();
            port
        };
        let objects = objects_without(wide(&[2, 1, 3, 4], &[3, 2, 4]), &[1, LOCAL_SLOTS]);
        let placed = placed(wide(&[1, 2, 3, 9], &[2, 3, 9]), Before::Objects(&objects));
        assert_eq!(placed, [endpoints(&[2, 1, 3, 9]), endpoints(&[3, 2, 9])]);
    }

    #[test]
    fn slots_of_other_ports_are_not_taken_for_those_of_this_one() {
        let neighbour = |last, number| {
            let mut port = split_port(&[3, 9, 2, 1], &[9, 2, 3]);
            let at = FrontendAddr::Vip(Ipv4Addr::new(10, 96, 0, last).into(), number);
            port.frontends = [states::frontend(FrontendKind::LoadBalancer, at, states::SPLIT)].into();
            objects_without(port, &[])
        };
        let ours = objects_without(split_port(&[2, 1, 3], &[3, 2]), &[]);
        let mut objects = [neighbour(1, 79), ours, neighbour(1, 81), neighbour(2, 81)].concat();
        objects.sort();
        let next = split_port(&[1, 2, 3], &[2, 3]);
        assert_eq!(placed(next, Before::Objects(&objects)), [endpoints(&[2, 1, 3]), endpoints(&[3, 2])]);
    }
}
