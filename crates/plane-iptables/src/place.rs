//! Orders endpoints in long chains so that a change touches as few rules as possible. A rule's probability depends on the number
//! of rules behind it, so remaining endpoints keep their distance from the end of the chain: the position of a removed endpoint
//! goes to an added one, or else to the first; further endpoints are put in front.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use ferry_api::object::Protocol;
use ferry_kernel::iptables::{IptablesChainName, Match, Table, Target};
use ferry_model::{Endpoint, Pool, PortState, Scope, ServiceState};
use ferry_plane::{Before, Object as _, Unit};

use crate::names::PortNames;
use crate::object::{ChainId, IptKey, IptObject, LONG};

/// Orders the long pools of a Service after their previous order. Short pools are ordered by the compiler.
pub(crate) fn place(next: &mut ServiceState, before: Before<'_, IptObject>) {
    let old = match before {
        Before::Unit(Unit::Service(old)) => Some(old),
        Before::Nothing | Before::Unit(Unit::Base(_)) | Before::Objects(_) => None,
    };
    let is_long = |port: &PortState| port.cluster.len() >= LONG || port.local.len() >= LONG;
    if !next.ports.iter().any(is_long) {
        return;
    }
    let old: HashMap<(&str, Protocol), &PortState> =
        old.iter().flat_map(|old| &old.ports).map(|port| ((&*port.name, port.protocol), port)).collect();
    let service = next.name.clone();
    for port in next.ports.iter_mut().filter(|port| is_long(port)) {
        let slots = |scope| match (old.get(&(&*port.name, port.protocol)), before) {
            (Some(old), _) => ordered(old.pool(scope)).into_iter().map(Some).collect(),
            (None, Before::Objects(objects)) => {
                found(objects, &PortNames::new(&service, &port.name, port.protocol), scope, port.pool(scope))
            }
            (None, Before::Nothing | Before::Unit(_)) => Vec::new(),
        };
        let cluster = arrange(slots(Scope::Cluster), &port.cluster);
        let local = arrange(slots(Scope::Local), &port.local);
        port.local = if local == cluster { cluster.clone() } else { local };
        port.cluster = cluster;
    }
}

/// The endpoints of a pool in the order of the balancing rules: the pool's own if it is long, else by text, as in upstream.
pub(crate) fn ordered(pool: &Pool) -> Vec<Endpoint> {
    let mut endpoints = pool.0.to_vec();
    if endpoints.len() < LONG {
        endpoints.sort_by_cached_key(text);
    }
    endpoints
}

/// The text of an endpoint in comments and hashes.
pub(crate) fn text(endpoint: &Endpoint) -> String {
    SocketAddr::new(endpoint.address, endpoint.port).to_string()
}

/// The order in a chain that was read back; `None` for a rule that jumps to no endpoint of the pool.
fn found(objects: &[IptObject], names: &PortNames, scope: Scope, pool: &Pool) -> Vec<Option<Endpoint>> {
    let name = match scope {
        Scope::Cluster => names.cluster(),
        Scope::Local => names.local(),
    };
    let key = IptKey::Chain(ChainId { table: Table::Nat, name });
    let at = objects.binary_search_by(|object| object.key().cmp(&key)).ok();
    let Some(IptObject::Chain(_, rules)) = at.and_then(|at| objects.get(at)) else { return Vec::new() };
    let endpoints: HashMap<IptablesChainName, Endpoint> =
        pool.0.iter().map(|endpoint| (names.endpoint(&text(endpoint)), *endpoint)).collect();
    let remembers = |each: &Match| matches!(each, Match::RecentlySeen { .. });
    let balancing = rules.0.iter().filter(|rule| !rule.matches.iter().any(remembers));
    let jumps = balancing.filter_map(|rule| match rule.target {
        Target::Jump(to) if crate::names::Class::of(to) == Some(crate::names::Class::Endpoint) => Some(to),
        _ => None,
    });
    jumps.map(|to| endpoints.get(&to).copied()).collect()
}

/// The endpoints of `next`, with remaining ones in their old slots, counted from the end.
fn arrange(old: Vec<Option<Endpoint>>, next: &Pool) -> Pool {
    if next.len() < LONG {
        return next.clone();
    }
    let mut rest: BTreeMap<String, Endpoint> = next.0.iter().map(|endpoint| (text(endpoint), *endpoint)).collect();
    let wanted: HashSet<Endpoint> = next.0.iter().copied().collect();
    let stays = |slot: Option<Endpoint>| {
        slot.filter(|endpoint| wanted.contains(endpoint)).filter(|endpoint| rest.remove(&text(endpoint)).is_some())
    };
    let mut slots: VecDeque<Option<Endpoint>> = old.into_iter().map(stays).collect();
    let mut new = rest.into_values();
    for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
        *slot = new.next();
    }
    // More endpoints than free slots: in front, in the order of their text.
    let new: Vec<Endpoint> = new.collect();
    new.into_iter().rev().for_each(|endpoint| slots.push_front(Some(endpoint)));
    // More free slots than endpoints: the first ones move into the last free slots.
    while let Some(free) = slots.iter().rposition(Option::is_none) {
        let first = slots.pop_front().flatten();
        if let Some(slot) = free.checked_sub(1).and_then(|free| slots.get_mut(free)) {
            *slot = first;
        }
    }
    let arranged: Vec<Endpoint> = slots.into_iter().flatten().collect();
    if *arranged == *next.0 { next.clone() } else { Pool::new(arranged) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ferry_api::object::{Family, ObjectName};
    use ferry_conformance::states;
    use ferry_model::{Affinity, FrontendAddr, FrontendKind};
    use ferry_plane::Compile as _;

    use super::*;
    use crate::{Features, Iptables};

    fn endpoints(last: &[u8]) -> Vec<Endpoint> {
        last.iter().map(|last| Endpoint { address: Ipv4Addr::new(10, 244, 0, *last).into(), port: 80 }).collect()
    }

    /// The last octets of the arranged addresses.
    fn arranged(old: &[u8], next: &[u8]) -> Vec<u8> {
        let old: Vec<_> = endpoints(old).into_iter().map(Some).collect();
        let pool = arrange(old, &Pool::new(endpoints(next)));
        let last = |endpoint: &Endpoint| text(endpoint).trim_end_matches(":80").rsplit('.').next().unwrap().parse();
        pool.0.iter().map(|endpoint| last(endpoint).unwrap()).collect()
    }

    fn many(more: &[u8]) -> Vec<u8> {
        (100..120).chain(more.iter().copied()).collect()
    }

    #[test]
    fn endpoints_that_stay_keep_their_distance_from_the_end() {
        let old = many(&[]);
        assert_eq!(arranged(&[], &many(&[9, 20])), [&[100][..], &many(&[20, 9])[1..]].concat(), "by text");
        assert_eq!(arranged(&old, &many(&[])), old);
        let mut replaced = old.clone();
        replaced[7] = 9;
        let mut sorted = replaced.clone();
        sorted.sort_unstable();
        assert_eq!(arranged(&old, &sorted), replaced, "the new one takes the free slot");
        assert_eq!(arranged(&old, &many(&[7, 6])), [&[6, 7], &*old].concat(), "more come in front");
        let without: Vec<u8> = old.iter().copied().filter(|last| *last != 107).collect();
        let mut moved = old[1..].to_vec();
        moved[6] = 100;
        assert_eq!(arranged(&old, &without), moved, "the first one moves into the free slot");
        assert_eq!(arranged(&old, &old[1..]), old[1..], "the first one goes");
        assert_eq!(arranged(&old, &old[3..]), old[3..]);
        let mut twice = old.clone();
        twice[3] = 110;
        assert_eq!(arranged(&twice, &old).len(), 20, "damage that was read back");
        let backwards: Vec<u8> = old[..LONG].iter().copied().rev().collect();
        assert_eq!(arranged(&backwards, &old[..LONG]), backwards);
        assert_eq!(arranged(&backwards, &old[1..LONG]), old[1..LONG], "a short pool is ordered where it is compiled");
    }

    /// A port with a cluster IP that has policy Cluster and a load balancer with policy Local.
    fn port(cluster: &[u8], local: &[u8]) -> PortState {
        let vip = |last| FrontendAddr::Vip(Ipv4Addr::new(10, 96, 0, last).into(), 80);
        let frontends = vec![
            states::frontend(FrontendKind::ClusterIp, vip(1), states::INTERNAL),
            states::frontend(FrontendKind::LoadBalancer, vip(2), states::SPLIT),
        ];
        states::port(Protocol::Tcp, Pool::new(endpoints(cluster)), Pool::new(endpoints(local)), frontends)
    }

    fn unit(port: PortState) -> Unit {
        Unit::Service(ServiceState { name: ObjectName::new("demo", "web"), ports: vec![port], health_check: None })
    }

    /// The compiled objects in the order of a read-back.
    fn objects(port: PortState) -> Vec<IptObject> {
        let mut objects = Vec::new();
        let compiler = Iptables::new(Family::V4, Features::default());
        compiler.compile(&states::context(Family::V4), &unit(port), &mut objects);
        objects.sort_by_key(IptObject::key);
        objects
    }

    /// The endpoints of either scope.
    fn placed(port: PortState, before: Before<'_, IptObject>) -> [Vec<Endpoint>; 2] {
        let mut next = unit(port);
        Iptables::new(Family::V4, Features::default()).place(&mut next, before);
        let Unit::Service(next) = next else { panic!("{next:?}") };
        [Scope::Cluster, Scope::Local].map(|scope| next.ports[0].pool(scope).0.to_vec())
    }

    fn reversed(last: &[u8]) -> Vec<u8> {
        last.iter().copied().rev().collect()
    }

    #[test]
    fn each_scope_keeps_its_own_order() {
        let (all, some) = (many(&[]), many(&[])[1..18].to_vec());
        let replaced = |last: &[u8]| last.iter().map(|last| if *last == 105 { 9 } else { *last }).collect::<Vec<u8>>();
        let rotated = [&some[5..], &some[..5]].concat();
        let next = || port(&replaced(&all), &replaced(&some));
        let wanted = [endpoints(&replaced(&reversed(&all))), endpoints(&replaced(&rotated))];
        let mut before = port(&reversed(&all), &rotated);
        for affinity in [None, Affinity::new(10_800)] {
            before.affinity = affinity;
            assert_eq!(placed(next(), Before::Unit(&unit(before.clone()))), wanted);
            assert_eq!(placed(next(), Before::Objects(&objects(before.clone()))), wanted);
        }
        let sorted = |last: &[u8]| {
            let mut endpoints = endpoints(last);
            endpoints.sort_by_key(text);
            endpoints
        };
        let by_text = [sorted(&replaced(&all)), sorted(&replaced(&some))];
        assert_eq!(placed(next(), Before::Nothing), by_text);
        let mut other = before;
        other.protocol = Protocol::Udp;
        assert_eq!(placed(next(), Before::Unit(&unit(other.clone()))), by_text, "of another port");
        assert_eq!(placed(next(), Before::Objects(&objects(other))), by_text, "of another port");
    }

    #[test]
    fn either_scope_is_placed_if_it_is_long() {
        let (long, short) = (many(&[]), many(&[])[1..LONG].to_vec());
        for (cluster, local, wanted) in [
            (&long, &short, [reversed(&long), short.clone()]),
            (&short, &long, [short.clone(), reversed(&long)]),
            (&short, &short, [short.clone(), short.clone()]),
        ] {
            let before = unit(port(&reversed(cluster), &reversed(local)));
            let wanted = wanted.map(|last| endpoints(&last));
            assert_eq!(placed(port(cluster, local), Before::Unit(&before)), wanted);
        }
    }

    /// The chain of the cluster IP begins with a rule that marks packets for masquerading. As a slot it would take the first endpoint.
    #[test]
    fn only_rules_that_jump_to_endpoints_are_slots() {
        let before = objects(port(&many(&[]), &[100]));
        let first = before.iter().find_map(|object| match object {
            IptObject::Chain(id, rules) if crate::names::is_balancing(id.name) => rules.0.first(),
            _ => None,
        });
        assert_eq!(first.map(|rule| rule.target), Some(Target::Jump(crate::names::MARK_MASQ)));
        let mut next = many(&[8, 9]);
        next.retain(|last| *last != 105);
        let mut wanted = many(&[]);
        wanted[5] = 8;
        wanted.insert(0, 9);
        assert_eq!(placed(port(&next, &[100]), Before::Objects(&before)), [endpoints(&wanted), endpoints(&[100])]);
    }
}
