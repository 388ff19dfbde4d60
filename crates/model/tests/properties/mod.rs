//! Properties of the model for any objects and any history: the order of events doesn't matter, resolving the dirty services is
//! enough, states are well formed even if the objects aren't, and every packet gets a verdict that fits the state.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod arbitrary;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferry_api::object::{Family, Kind, KubeObject, ObjectName, Protocol};
use ferry_conformance::property::inputs;
use ferry_model::{
    Action, BaseState, Context, Diagnostic, Event, FrontendAddr, FrontendKind, MAX_WEIGHT, PerFamily, Pool, PortState,
    Profile, ServiceState, Settings, Snat, SourceRanges, Store, Treatment, Verdict, base, context, decide,
    node_port_addresses, resolve,
};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};

type States = BTreeMap<(Family, ObjectName), (ServiceState, Vec<Diagnostic>)>;

/// One Service in one family and mode.
fn resolve_one(
    store: &Store,
    context: &Context,
    profile: &Profile,
    name: &ObjectName,
    family: Family,
) -> (ServiceState, Vec<Diagnostic>) {
    resolve(&store.objects(name), store.claims(), context, profile, family)
}

/// The facts of both families.
fn contexts(settings: &Settings, store: &Store, profile: &Profile) -> PerFamily<Context> {
    let local = arbitrary::local_addresses();
    PerFamily::from_fn(|family| context(settings, store.node(), &local, profile, family))
}

fn resolve_all(store: &Store, contexts: &PerFamily<Context>, profile: &Profile) -> States {
    let names = || store.service_names().cloned();
    let all = Family::ALL.into_iter().flat_map(|family| names().map(move |name| (family, name)));
    all.map(|(family, name)| ((family, name.clone()), resolve_one(store, contexts.of(family), profile, &name, family)))
        .collect()
}

fn bases(store: &Store, settings: &Settings, contexts: &PerFamily<Context>, profile: &Profile) -> [BaseState; 2] {
    let local = arbitrary::local_addresses();
    Family::ALL.map(|family| base(settings, contexts.of(family), &local, store, profile, family).0)
}

fn place_node_ports(store: &mut Store, settings: &Settings) {
    store.serve_node_ports_at(node_port_addresses(settings, store.node(), &arbitrary::local_addresses()));
}

/// A proxy that resolves only the services that the store returns as dirty.
struct Follower {
    settings: Settings,
    profile: Profile,
    store: Store,
    contexts: PerFamily<Context>,
    states: States,
}

impl Follower {
    fn new(settings: Settings, profile: Profile) -> Self {
        let store = Store::new(&settings.node_name).serving_external_ips(settings.external_ips);
        let contexts = contexts(&settings, &store, &profile);
        let mut follower = Self { settings, profile, store, contexts, states: States::new() };
        place_node_ports(&mut follower.store, &follower.settings);
        follower
    }

    fn apply(&mut self, event: Event) {
        let dirty = self.store.apply(event);
        if dirty.node {
            self.contexts = contexts(&self.settings, &self.store, &self.profile);
            place_node_ports(&mut self.store, &self.settings);
            self.states = resolve_all(&self.store, &self.contexts, &self.profile);
        }
        for name in dirty.services {
            for family in Family::ALL {
                let key = (family, name.clone());
                if self.store.objects(&name).service.is_some() {
                    let resolved = resolve_one(&self.store, self.contexts.of(family), &self.profile, &name, family);
                    self.states.insert(key, resolved);
                } else {
                    self.states.remove(&key);
                }
            }
        }
    }
}

/// One object per kind and name: what is left at the end of a history.
fn last_of(objects: &[KubeObject]) -> Vec<KubeObject> {
    let keyed = objects.iter().map(|object| ((object.kind(), object.name().clone()), object.clone()));
    keyed.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn fresh(objects: impl IntoIterator<Item = KubeObject>, settings: &Settings) -> Store {
    let mut store = Store::new(&settings.node_name).serving_external_ips(settings.external_ips);
    for object in objects {
        store.apply(Event::Upsert(object));
    }
    store
}

/// Compares a store with one that has received the last objects only. The retained addresses and ranges of our Node, and their
/// order, depend on history, so the wanted store gets the follower's Node.
fn compare(follower: &Follower, wanted: &mut Store) -> Result<(), TestCaseError> {
    if wanted.node().is_some() {
        let node = follower.store.node().cloned();
        wanted.apply(Event::Delete(Kind::Node, ObjectName::cluster_wide(&follower.settings.node_name)));
        node.into_iter().for_each(|node| drop(wanted.apply(Event::Upsert(KubeObject::Node(node)))));
    }
    place_node_ports(wanted, &follower.settings);
    let wanted = &*wanted;
    let wanted_contexts = contexts(&follower.settings, wanted, &follower.profile);
    prop_assert_eq!(&follower.contexts, &wanted_contexts);
    prop_assert_eq!(&follower.states, &resolve_all(wanted, &wanted_contexts, &follower.profile));
    prop_assert_eq!(follower.store.claims(), wanted.claims());
    prop_assert_eq!(
        bases(&follower.store, &follower.settings, &follower.contexts, &follower.profile),
        bases(wanted, &follower.settings, &wanted_contexts, &follower.profile)
    );
    prop_assert!(follower.store.orphans().eq(wanted.orphans()));
    Ok(())
}

fn check_state(state: &ServiceState, family: Family, diagnostics: &[Diagnostic]) -> Result<(), TestCaseError> {
    prop_assert!(diagnostics.iter().all(|found| !found.field.is_empty() && !found.message.is_empty()));
    let mut ports = BTreeSet::new();
    for port in &state.ports {
        prop_assert!(ports.insert((&port.name, port.protocol)), "{}: two ports of one name", state);
        for pool in [&port.cluster, &port.local, &port.lingering] {
            check_pool(pool, family)?;
        }
        let chosen = |endpoint| [&port.cluster, &port.local].iter().any(|pool| pool.0.contains(endpoint));
        prop_assert!(!port.lingering.0.iter().any(chosen), "{} lingers and takes new flows", port.lingering);
        for frontend in &port.frontends {
            let treatment = frontend.treatment;
            for action in [treatment.pod, treatment.host, treatment.other] {
                if let Action::Forward { to, .. } = action {
                    prop_assert!(!port.pool(to).is_empty(), "{} forwards to nobody", frontend);
                }
            }
            if let FrontendAddr::Vip(address, port) = frontend.at {
                prop_assert!(Family::of(address) == family && port != 0);
                prop_assert!(!is_special(address), "{}", frontend);
            }
            if let SourceRanges::Only(ranges) = &frontend.sources {
                prop_assert_eq!(frontend.kind, FrontendKind::LoadBalancer);
                prop_assert!(ranges.iter().all(|range| Family::of_net(*range) == family && *range == range.trunc()));
                prop_assert!(ranges.windows(2).all(|pair| pair[0].broadcast() < pair[1].network()), "{:?}", ranges);
            }
        }
    }
    Ok(())
}

/// The scheduler and weights are of a mode that balances, and the weights of the port's endpoints.
fn check_balance(port: &PortState, profile: &Profile) -> Result<(), TestCaseError> {
    let Some(balance) = &port.balance else { return Ok(()) };
    prop_assert!(profile.balances && (balance.scheduler.is_some() || !balance.weights.is_empty()));
    prop_assert!(balance.weights.windows(2).all(|pair| pair[0].0 < pair[1].0), "{:?}", balance.weights);
    for (endpoint, weight) in &balance.weights {
        prop_assert!((2..=MAX_WEIGHT).contains(weight) && port.weight(endpoint) == *weight);
        prop_assert!([&port.cluster, &port.local].iter().any(|pool| pool.0.contains(endpoint)), "{}", endpoint);
    }
    Ok(())
}

/// In mode ipvs a frontend is one virtual server: sources differ in their translation only.
fn check_shared_endpoints(treatment: Treatment) -> Result<(), TestCaseError> {
    let target = |action| match action {
        Action::Forward { to, .. } => Action::Forward { to, snat: Snat::Keep },
        other => other,
    };
    let Treatment { pod, host, other } = treatment;
    prop_assert!(target(pod) == target(host) && target(host) == target(other), "{:?}", treatment);
    Ok(())
}

/// Of a mode with an object for each address that serves node ports: no two frontends have one address, protocol and number.
fn check_virtual_servers<'a>(
    states: impl Iterator<Item = &'a ServiceState>,
    context: &Context,
) -> Result<(), TestCaseError> {
    let mut taken = BTreeSet::new();
    for port in states.flat_map(|state| &state.ports) {
        for frontend in &port.frontends {
            let (number, addresses) = match frontend.at {
                FrontendAddr::Vip(address, number) => (number, vec![address]),
                FrontendAddr::NodePort(number) => {
                    let all = context.node_addresses.iter().copied();
                    (number, all.filter(|address| port.serves_node_port_at(*address)).collect())
                }
            };
            for address in addresses {
                prop_assert!(taken.insert((address, port.protocol, number)), "{} is served twice", frontend);
            }
        }
    }
    Ok(())
}

fn is_special(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    address.is_loopback() || address.is_multicast() || address.is_unspecified() || link_local
}

fn check_pool(pool: &Pool, family: Family) -> Result<(), TestCaseError> {
    prop_assert!(pool.0.windows(2).all(|pair| pair[0] < pair[1]), "{} is not sorted", pool);
    prop_assert!(pool.0.iter().all(|endpoint| Family::of(endpoint.address) == family && endpoint.port != 0));
    prop_assert!(!pool.0.iter().any(|endpoint| is_special(endpoint.address)), "{}", pool);
    Ok(())
}

/// Empty states satisfy most properties, so enough of them must have endpoints.
#[test]
fn the_objects_lead_to_endpoints() {
    let mut runner = TestRunner::deterministic();
    let strategy = (arbitrary::settings(), prop::collection::vec(arbitrary::object(), 0..24));
    let (mut served, mut split, mut lingering) = (0, 0, 0);
    for _ in 0..512 {
        let (settings, objects) = strategy.new_tree(&mut runner).unwrap().current();
        let store = fresh(objects, &settings);
        let contexts = contexts(&settings, &store, &Profile::NFTABLES);
        let states = resolve_all(&store, &contexts, &Profile::NFTABLES);
        for port in states.values().flat_map(|(state, _)| &state.ports) {
            served += usize::from(!port.cluster.is_empty());
            split += usize::from(!port.local.is_empty());
            lingering += usize::from(!port.lingering.is_empty());
        }
    }
    assert!(served >= 60 && split >= 5 && lingering >= 20, "{served} ports, {split} Local, {lingering} lingering");
}

proptest! {
    #![proptest_config(inputs(512))]

    #[test]
    fn any_history_ends_as_its_last_objects_do(
        settings in arbitrary::settings(),
        profile in arbitrary::profile(),
        objects in prop::collection::vec(arbitrary::object(), 0..24),
        deletions in prop::collection::vec((any::<Index>(), any::<Index>()), 0..6),
        order in any::<u64>(),
    ) {
        // Deletions somewhere in between, of objects that come again later or don't.
        let mut events: Vec<Event> = objects.iter().cloned().map(Event::Upsert).collect();
        for (which, at) in &deletions {
            if let Some(object) = objects.get(which.index(objects.len().max(1))) {
                let delete = Event::Delete(object.kind(), object.name().clone());
                events.insert(at.index(events.len() + 1), delete);
            }
        }
        let mut last = BTreeMap::new();
        let mut follower = Follower::new(settings, profile);
        for event in events {
            match &event {
                Event::Upsert(object) => last.insert((object.kind(), object.name().clone()), object.clone()),
                Event::Delete(kind, name) => last.remove(&(*kind, name.clone())),
                Event::Unreadable(..) | Event::Restart(_) | Event::Synced(_) => None,
            };
            follower.apply(event);
        }
        let mut rest: Vec<KubeObject> = last.into_values().collect();
        // any other order of the same objects
        let len = rest.len().max(1);
        rest.rotate_left(usize::try_from(order % 97).unwrap_or(0) % len);
        if order % 2 == 0 {
            rest.reverse();
        }
        compare(&follower, &mut fresh(rest, &follower.settings))?;
    }

    #[test]
    fn a_new_list_replaces_all_at_once(
        settings in arbitrary::settings(),
        profile in arbitrary::profile(),
        before in prop::collection::vec(arbitrary::object(), 0..12),
        after in prop::collection::vec(arbitrary::object(), 0..12),
    ) {
        let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];
        let mut follower = Follower::new(settings, profile);
        for list in [last_of(&before), last_of(&after)] {
            kinds.iter().for_each(|kind| follower.apply(Event::Restart(*kind)));
            let known = follower.store.service_names().count();
            list.iter().for_each(|object| follower.apply(Event::Upsert(object.clone())));
            prop_assert!(follower.store.service_names().count() >= known, "something went before the list was complete");
            kinds.iter().for_each(|kind| follower.apply(Event::Synced(*kind)));
        }
        compare(&follower, &mut fresh(last_of(&after), &follower.settings))?;
    }

    #[test]
    fn any_objects_give_well_formed_states(
        settings in arbitrary::settings(),
        profile in arbitrary::profile(),
        objects in prop::collection::vec(arbitrary::object(), 0..24),
        packets in prop::collection::vec(arbitrary::packet(), 16),
    ) {
        let mut store = fresh(objects, &settings);
        let contexts = contexts(&settings, &store, &profile);
        place_node_ports(&mut store, &settings);
        let bases = bases(&store, &settings, &contexts, &profile);
        let states = resolve_all(&store, &contexts, &profile);
        for (family, base) in Family::ALL.into_iter().zip(&bases) {
            let of_family = || states.iter().filter(|((of, _), _)| *of == family).map(|(_, resolved)| resolved);
            let mut owners = BTreeMap::new();
            for (state, diagnostics) in of_family() {
                check_state(state, family, diagnostics)?;
                for port in &state.ports {
                    check_balance(port, &profile)?;
                    prop_assert!(profile.lists_node_addresses || port.shadowed.is_none());
                    let may_linger = profile.ends_connections || port.protocol != Protocol::Tcp;
                    prop_assert!(may_linger || port.lingering.is_empty(), "{}", port.lingering);
                    for frontend in &port.frontends {
                        if profile == Profile::IPVS {
                            check_shared_endpoints(frontend.treatment)?;
                        }
                        let other = owners.insert((frontend.at, port.protocol), &state.name);
                        prop_assert!(other.is_none(), "{} serve {} both", state.name, frontend.at);
                        let owner = store.claims().owner(family, frontend.at, port.protocol);
                        prop_assert_eq!(owner, Some(&state.name));
                        prop_assert!(!port.name.contains(':'), "{}", state);
                    }
                }
            }
            if profile.lists_node_addresses {
                check_virtual_servers(of_family().map(|(state, _)| state), contexts.of(family))?;
            }
            // Before an external IP comes a node port wherever that is served.
            let node_ports = node_port_addresses(&settings, store.node(), &arbitrary::local_addresses());
            for (state, port) in of_family().flat_map(|(state, _)| state.ports.iter().map(move |port| (state, port))) {
                for frontend in port.frontends.iter().filter(|frontend| frontend.kind == FrontendKind::ExternalIp) {
                    let FrontendAddr::Vip(address, number) = frontend.at else { continue };
                    let node_port = (FrontendAddr::NodePort(number), port.protocol);
                    let is_taken = node_ports.contains(&address) && owners.contains_key(&node_port);
                    prop_assert!(!is_taken, "{} of {} is a node port", frontend, state.name);
                }
            }
            for packet in packets.iter().filter(|packet| Family::of(packet.destination) == family) {
                let verdict = decide(of_family().map(|(state, _)| state), base, packet, contexts.of(family), &profile);
                let vip = FrontendAddr::Vip(packet.destination, packet.port);
                let node_port = FrontendAddr::NodePort(packet.port);
                let is_ours = |at| owners.contains_key(&(at, packet.protocol));
                match &verdict {
                    Verdict::Forward(endpoints) => {
                        prop_assert!(!endpoints.is_empty());
                        prop_assert!(is_ours(vip) || is_ours(node_port), "{:?}", packet);
                    }
                    Verdict::Drop | Verdict::Reject => {}
                    // A mode that refuses by hooks lets pass what traverses none of those; see `decide/tests.rs`.
                    Verdict::Pass if profile.refuses_by_hook => {}
                    Verdict::Pass => {
                        let is_of_interface = contexts.of(family).local_addresses.contains(&packet.destination);
                        let passes = packet.source_local && !profile.rejects_host_to_external
                            // Without a listener the machine answers as for any port of its own.
                            || profile.listens && is_of_interface;
                        prop_assert!(!is_ours(vip) || passes, "{:?}", packet);
                    }
                }
            }
        }
        // and everything has a text
        let local = arbitrary::local_addresses();
        let text = ferry_model::explain::explain(&settings, &local, &store, &profile);
        for name in store.service_names() {
            let line = format!("  service {name}");
            prop_assert_eq!(text.lines().filter(|found| found.trim_end_matches(": nothing to serve") == line).count(), 2);
        }
    }
}
