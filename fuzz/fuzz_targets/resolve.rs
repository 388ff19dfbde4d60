//! Fuzzes the model with odd objects in any order: the store, `resolve`, `decide`, `flow_rules` and `explain` never panic,
//! states are well formed in the profile of each mode, only dirty services change, and the order of arrival doesn't matter. The
//! iptables mode compiles every state into objects without dangling references whose verdicts are the model's.
//!
//! The bytes select from few names, addresses and ports, so that objects often conflict, and occasionally a malformed value;
//! the decoders have their own targets.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferry_api::object::{
    AddressKind, AddressType, BalancingAnnotations, Conditions, EndpointSlice, EndpointSliceBuilder, Family, Hints,
    IpNet, Kind, KubeObject, LoadBalancerIngress, Node, NodeAddress, ObjectName, Parsed, Protocol, Service,
    ServiceCidr, ServicePort, ServiceType, SlicePort, Timestamp, TrafficPolicy,
};
use ferry_model::explain::explain;
use ferry_model::{
    Action, BaseState, Context, DetectLocal, Diagnostic, Dirty, Event, Flow, FrontendAddr, FrontendKind,
    NodePortSelection, Packet, Pool, Profile, RightFlows, Scheduler, ServiceState, Settings, SourceRanges, Store,
    Verdict, base, context, decide, flow_rules, node_port_addresses, resolve,
};
use ferry_plane::{Compile, Trace, Unit};
use ferry_plane_iptables::testing::well_made;
use ferry_plane_iptables::{Features, IptObject, Iptables};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

const ADDRESSES: [&str; 12] = [
    "10.96.0.1",
    "10.96.0.2",
    "203.0.113.9",
    "192.0.2.10",
    "10.244.1.1",
    "fd00:10:96::1",
    "2001:db8::10",
    "::1",
    "127.0.0.1",
    "169.254.169.254",
    "224.0.0.1",
    "fe80::1",
];
const NETS: [&str; 7] =
    ["10.0.0.0/8", "10.244.0.0/16", "192.0.2.10/24", "0.0.0.0/0", "fd00:10:244::/56", "2001:db8::/32", "::/0"];
const NODES: [&str; 3] = ["here", "there", ""];
const NAMES: [&str; 3] = ["a", "b", "c"];
const PORTS: [u16; 4] = [0, 80, 30_080, 65_535];
const LOCAL: [&str; 3] = ["127.0.0.1", "192.0.2.10", "2001:db8::10"];

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Unstructured::new(bytes);
    let Ok(settings) = settings(&mut bytes) else { return };
    let mut store = empty(&settings);
    place_node_ports(&settings, &mut store);
    let mut before = States::new();
    // After the last byte, zeros follow: the history has to end by itself.
    while !bytes.is_empty() {
        let Ok(event) = event(&mut bytes) else { return };
        let mut dirty = store.apply(event);
        dirty.services.extend(place_node_ports(&settings, &mut store));
        if !dirty.is_empty() {
            let after = states(&settings, &store);
            check_change(&before, &after, &dirty);
            before = after;
        }
    }
    assert_eq!(before, states(&settings, &store));
    for profile in Profile::ALL {
        check(&settings, &store, profile);
    }
    let mut again = reversed(&settings, &store);
    place_node_ports(&settings, &mut again);
    assert_eq!(store.claims(), again.claims());
    assert_eq!(text(&settings, &store), text(&settings, &again));
    for family in Family::ALL {
        assert_eq!(store.uses_affinity(family), again.uses_affinity(family));
    }
});

type States = BTreeMap<(Family, ObjectName), (ServiceState, Vec<Diagnostic>)>;

fn empty(settings: &Settings) -> Store {
    Store::new(&settings.node_name).serving_external_ips(settings.external_ips)
}

fn place_node_ports(settings: &Settings, store: &mut Store) -> BTreeSet<ObjectName> {
    store.serve_node_ports_at(node_port_addresses(settings, store.node(), &local()))
}

fn states(settings: &Settings, store: &Store) -> States {
    let profile = &Profile::NFTABLES;
    let of = |family, name: &ObjectName| {
        let context = context(settings, store.node(), &local(), profile, family);
        resolve(&store.objects(name), store.claims(), &context, profile, family)
    };
    let names = |family| store.service_names().map(move |name| ((family, name.clone()), of(family, name)));
    Family::ALL.into_iter().flat_map(names).collect()
}

/// Checks that an event changed only dirty states, and that the rules for its stale flows are consistent.
fn check_change(before: &States, after: &States, dirty: &Dirty) {
    for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let (old, new) = (before.get(key), after.get(key));
        assert!(old == new || dirty.node || dirty.services.contains(&key.1), "{key:?} is not dirty");
        let (old, new) = (old.map(|(state, _)| state), new.map(|(state, _)| state));
        let rules = flow_rules(old, new, false);
        let frontends: BTreeSet<_> = rules.iter().map(|rule| (rule.protocol, rule.at)).collect();
        assert_eq!(frontends.len(), rules.len(), "two rules for one frontend");
        for rule in &rules {
            assert_eq!(rule.right == RightFlows::Answered, rule.protocol == Protocol::Tcp);
            let served = new.is_some_and(|state| serves(state, rule.protocol, rule.at));
            let (RightFlows::To(pools) | RightFlows::ToOrUntranslated(pools)) = &rule.right else { continue };
            assert!(served || pools.iter().all(Pool::is_empty), "flows to what is gone are right");
            for endpoint in pools.iter().flat_map(|pool| &*pool.0) {
                let destination = SocketAddr::new(endpoint.address, 1);
                let answers_from = SocketAddr::new(endpoint.address, endpoint.port);
                let flow = Flow { protocol: rule.protocol, destination, answers_from, answered: false };
                assert!(rule.right.allows(&flow));
            }
        }
        assert_eq!(rules, flow_rules(old, new, false));
        let kept = flow_rules(old, new, true);
        assert_eq!(kept.len(), rules.len());
        assert!(kept.iter().zip(&rules).all(|(kept, rule)| kept.right == rule.right && (kept.due || !rule.due)));
        assert!(flow_rules(new, new, true).iter().all(|rule| !rule.due), "nothing has changed");
    }
}

fn serves(state: &ServiceState, protocol: Protocol, at: FrontendAddr) -> bool {
    let mut of_protocol = state.ports.iter().filter(|port| port.protocol == protocol);
    of_protocol.any(|port| port.frontends.iter().any(|frontend| frontend.at == at))
}

fn local() -> Vec<IpAddr> {
    LOCAL.iter().filter_map(|text| text.parse().ok()).collect()
}

fn text(settings: &Settings, store: &Store) -> String {
    // Slices without a service can't be listed, so they can't be copied to the other store.
    let orphans: BTreeSet<String> = store.orphans().map(|found| format!("  {found}")).collect();
    let text = explain(settings, &local(), store, &Profile::NFTABLES);
    // Only a store that has seen the Node's earlier facts retains them.
    let retained = |line: &str| line.ends_with("any more: its last one stays in force");
    let shown = |line: &&str| !orphans.contains(*line) && !line.ends_with("diagnostics") && !retained(line);
    text.lines().filter(shown).collect()
}

/// A store with the same objects, applied in reverse order.
fn reversed(settings: &Settings, store: &Store) -> Store {
    let mut again = empty(settings);
    let mut names: Vec<&ObjectName> = store.service_names().collect();
    names.reverse();
    for name in names {
        let objects = store.objects(name);
        for slice in objects.slices.into_iter().rev() {
            again.apply(Event::Upsert(KubeObject::EndpointSlice(slice.clone())));
        }
        again.apply(Event::Upsert(KubeObject::Service(objects.service.expect("it has a name").clone())));
    }
    let cidrs: Vec<&ServiceCidr> = store.service_cidrs().collect();
    cidrs.into_iter().rev().for_each(|cidr| drop(again.apply(Event::Upsert(KubeObject::ServiceCidr(cidr.clone())))));
    store.node().into_iter().for_each(|node| drop(again.apply(Event::Upsert(KubeObject::Node(node.clone())))));
    again
}

fn is_special(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    address.is_loopback() || address.is_multicast() || address.is_unspecified() || link_local
}

fn check(settings: &Settings, store: &Store, profile: &Profile) {
    let node_ports = node_port_addresses(settings, store.node(), &local());
    for family in Family::ALL {
        let context = context(settings, store.node(), &local(), profile, family);
        let (base, _) = base(settings, &context, &local(), store, profile, family);
        let resolved = |name| resolve(&store.objects(name), store.claims(), &context, profile, family).0;
        let states: Vec<ServiceState> = store.service_names().map(resolved).collect();
        let mut taken = BTreeSet::new();
        for state in &states {
            let service = store.objects(&state.name).service.expect("it has a name");
            assert_eq!(!state.ports.is_empty(), ferry_model::serves(service, profile, family), "{}", state.name);
            if let Some(check) = &state.health_check {
                assert_eq!(check.port.get(), service.health_check_node_port);
                assert_eq!((service.kind, service.external_policy), (ServiceType::LoadBalancer, TrafficPolicy::Local));
            }
        }
        for port in states.iter().flat_map(|state| &state.ports) {
            assert!(port.lingering.is_empty() || port.protocol != Protocol::Tcp || profile.ends_connections);
            let chosen = |endpoint| port.cluster.0.contains(endpoint) || port.local.0.contains(endpoint);
            assert!(!port.lingering.0.iter().any(chosen), "{port:?}");
            for pool in [&port.cluster, &port.local, &port.lingering] {
                assert!(pool.0.windows(2).all(|pair| pair[0] < pair[1]));
                assert!(pool.0.iter().all(|endpoint| Family::of(endpoint.address) == family));
                assert!(!pool.0.iter().any(|endpoint| is_special(endpoint.address)), "{pool:?}");
            }
            for frontend in &port.frontends {
                assert!(taken.insert((frontend.at, port.protocol)), "{frontend} is served twice");
                assert!(!matches!(frontend.at, FrontendAddr::Vip(vip, _) if is_special(vip)), "{frontend}");
                for action in [frontend.treatment.pod, frontend.treatment.host, frontend.treatment.other] {
                    assert!(!matches!(action, Action::Forward { to, .. } if port.pool(to).is_empty()), "{frontend}");
                }
                if let SourceRanges::Only(ranges) = &frontend.sources {
                    assert!(ranges.windows(2).all(|pair| pair[0].broadcast() < pair[1].network()), "{ranges:?}");
                }
            }
        }
        for (state, port) in states.iter().flat_map(|state| state.ports.iter().map(move |port| (state, port))) {
            for frontend in port.frontends.iter().filter(|frontend| frontend.kind == FrontendKind::ExternalIp) {
                let FrontendAddr::Vip(vip, number) = frontend.at else { continue };
                let is_taken = taken.contains(&(FrontendAddr::NodePort(number), port.protocol));
                assert!(!(is_taken && node_ports.contains(&vip)), "{frontend} of {} is a node port", state.name);
            }
        }
        let iptables = compiler(family, &base);
        let objects =
            if *profile == Profile::IPTABLES { compiled(&iptables, &context, &base, &states) } else { Vec::new() };
        let vips: BTreeSet<FrontendAddr> = taken.iter().map(|(at, _)| *at).collect();
        let tracer = (*profile == Profile::IPTABLES).then(|| iptables.tracer(&objects));
        for source in local().into_iter().chain(ADDRESSES.iter().filter_map(|text| text.parse().ok())) {
            if Family::of(source) != family {
                continue;
            }
            for destination in ADDRESSES.iter().filter_map(|text| text.parse().ok()) {
                if Family::of(destination) != family {
                    continue;
                }
                let destination_local = local().contains(&destination);
                for (protocol, port) in Protocol::ALL.into_iter().zip(PORTS) {
                    let source_local = local().contains(&source);
                    let interface = (destination_local || !source_local).then(|| "cni0".to_owned());
                    let packet =
                        Packet { source, source_local, interface, destination, destination_local, protocol, port };
                    let verdict = decide(&states, &base, &packet, &context, profile);
                    assert!(!matches!(&verdict, Verdict::Forward(endpoints) if endpoints.is_empty()));
                    // A packet to an endpoint that is also a frontend is rejected by that frontend's rules.
                    let meets_another = matches!(&verdict, Verdict::Forward(endpoints)
                        if endpoints.keys().any(|to| vips.contains(&FrontendAddr::Vip(to.address, to.port))));
                    if let Some(tracer) = tracer.as_ref().filter(|_| !meets_another) {
                        assert_eq!(tracer.verdict(&packet), verdict, "{packet:?}");
                    }
                }
            }
        }
    }
}

fn compiler(family: Family, base: &BaseState) -> Iptables {
    let features = Features {
        lacks_mangle: false,
        counts_invalid: true,
        counts_localhost: base.localhost,
        drops_invalid: true,
        guards_loopback: false,
        has_sets: true,
    };
    Iptables::new(family, features)
}

/// The objects of the iptables mode.
fn compiled(iptables: &Iptables, context: &Context, base: &BaseState, states: &[ServiceState]) -> Vec<IptObject> {
    let mut objects = Vec::new();
    iptables.compile(context, &Unit::Base(base.clone()), &mut objects);
    for state in states {
        iptables.compile(context, &Unit::Service(state.clone()), &mut objects);
    }
    well_made(&objects, "what was compiled");
    objects
}

// === values selected by the bytes ===

type Bytes<'a, 'b> = &'a mut Unstructured<'b>;

fn list<T>(bytes: Bytes<'_, '_>, mut item: impl FnMut(Bytes<'_, '_>) -> Result<T>) -> Result<Vec<T>> {
    (0..bytes.int_in_range(0..=3)?).map(|_| item(bytes)).collect()
}

fn mostly<T>(bytes: Bytes<'_, '_>, value: impl FnOnce(Bytes<'_, '_>) -> Result<T>) -> Result<Parsed<T>> {
    Ok(if bytes.ratio(1, 10)? { Err("bad".into()) } else { Ok(value(bytes)?) })
}

fn address(bytes: Bytes<'_, '_>) -> Result<IpAddr> {
    Ok(bytes.choose(&ADDRESSES)?.parse().expect("an address"))
}

fn net(bytes: Bytes<'_, '_>) -> Result<IpNet> {
    Ok(bytes.choose(&NETS)?.parse().expect("a range"))
}

fn number(bytes: Bytes<'_, '_>) -> Result<u16> {
    bytes.choose(&PORTS).copied()
}

fn protocol(bytes: Bytes<'_, '_>) -> Result<Protocol> {
    bytes.choose(&Protocol::ALL).copied()
}

fn name(bytes: Bytes<'_, '_>) -> Result<ObjectName> {
    Ok(ObjectName::new("default", bytes.choose(&NAMES)?))
}

fn boxed(bytes: Bytes<'_, '_>, names: &[&str]) -> Result<Box<str>> {
    Ok((*bytes.choose(names)?).into())
}

fn policy(bytes: Bytes<'_, '_>) -> Result<TrafficPolicy> {
    bytes.choose(&[TrafficPolicy::Cluster, TrafficPolicy::Local]).copied()
}

fn settings(bytes: Bytes<'_, '_>) -> Result<Settings> {
    Ok(Settings {
        node_name: "here".to_owned(),
        bind_address: if bytes.arbitrary()? { Some(address(bytes)?) } else { None },
        detect_local: match bytes.int_in_range(0..=3)? {
            0 => DetectLocal::NodeCidr,
            1 => DetectLocal::Bridge("cni0".to_owned()),
            2 => DetectLocal::InterfacePrefix("veth".to_owned()),
            _ => DetectLocal::ClusterCidr(list(bytes, net)?),
        },
        masquerade_all: bytes.arbitrary()?,
        masquerade_bit: bytes.arbitrary()?,
        node_port_addresses: if bytes.arbitrary()? {
            NodePortSelection::Primary
        } else {
            NodePortSelection::Cidrs(list(bytes, net)?)
        },
        localhost_node_ports: bytes.arbitrary()?,
        external_ips: bytes.ratio(9, 10)?,
        scheduler: *bytes.choose(&Scheduler::ALL)?,
    })
}

fn event(bytes: Bytes<'_, '_>) -> Result<Event> {
    let kind = *bytes.choose(&[Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr])?;
    Ok(match bytes.int_in_range(0..=10)? {
        0 => Event::Restart(kind),
        1 => Event::Synced(kind),
        2 => Event::Delete(kind, name(bytes)?),
        3 => Event::Unreadable(kind, name(bytes)?),
        _ => Event::Upsert(match kind {
            Kind::Service => KubeObject::Service(service(bytes)?),
            Kind::EndpointSlice => KubeObject::EndpointSlice(slice(bytes)?),
            Kind::Node => KubeObject::Node(node(bytes)?),
            Kind::ServiceCidr => KubeObject::ServiceCidr(ServiceCidr {
                name: ObjectName::cluster_wide(bytes.choose(&NAMES)?),
                cidrs: list(bytes, |bytes| mostly(bytes, net))?.into(),
            }),
        }),
    })
}

fn service(bytes: Bytes<'_, '_>) -> Result<Service> {
    let kinds = [ServiceType::LoadBalancer, ServiceType::NodePort, ServiceType::ClusterIp, ServiceType::ExternalName];
    Ok(Service {
        name: name(bytes)?,
        uid: None,
        created: if bytes.arbitrary()? {
            Some(Timestamp { seconds: bytes.int_in_range(0..=2)?, nanoseconds: 0 })
        } else {
            None
        },
        foreign_proxy: bytes.ratio(1, 20)?,
        kind: *bytes.choose(&kinds)?,
        cluster_ip: if bytes.ratio(9, 10)? { Some(mostly(bytes, address)?) } else { None },
        cluster_ips: list(bytes, |bytes| mostly(bytes, address))?.into(),
        families: list(bytes, |bytes| bytes.choose(&Family::ALL).copied())?.into(),
        ports: list(bytes, |bytes| {
            Ok(ServicePort {
                name: boxed(bytes, &["", "http"])?,
                protocol: mostly(bytes, protocol)?,
                port: mostly(bytes, number)?,
                node_port: mostly(bytes, number)?,
            })
        })?
        .into(),
        external_ips: list(bytes, |bytes| mostly(bytes, address))?.into(),
        ingress: list(bytes, |bytes| {
            Ok(LoadBalancerIngress { ip: mostly(bytes, address)?, proxy_mode: bytes.arbitrary()? })
        })?
        .into(),
        source_ranges: list(bytes, |bytes| mostly(bytes, net))?.into(),
        affinity_seconds: if bytes.arbitrary()? { Some(bytes.int_in_range(0..=2)?) } else { None },
        internal_policy: policy(bytes)?,
        external_policy: policy(bytes)?,
        health_check_node_port: number(bytes)?,
        odd: [].into(),
        balancing: if bytes.ratio(1, 3)? { Some(Box::new(balancing(bytes)?)) } else { None },
    })
}

fn balancing(bytes: Bytes<'_, '_>) -> Result<BalancingAnnotations> {
    Ok(BalancingAnnotations {
        scheduler: some(bytes, &["wlc", "sh", "fastest", ""])?,
        weight_zones: some(bytes, &["z1=3,z2=2", "z1=0", "z1=65535,z1=1,=", ""])?,
        weight_local: some(bytes, &["2", "65535", "0", "-"])?,
    })
}

fn some(bytes: Bytes<'_, '_>, texts: &[&str]) -> Result<Option<Box<str>>> {
    Ok(if bytes.arbitrary()? { Some(boxed(bytes, texts)?) } else { None })
}

fn slice(bytes: Bytes<'_, '_>) -> Result<EndpointSlice> {
    let mut builder = EndpointSliceBuilder::default();
    for _ in 0..bytes.int_in_range(0..=4)? {
        let conditions =
            Conditions { ready: bytes.arbitrary()?, serving: bytes.arbitrary()?, terminating: bytes.arbitrary()? };
        let hints = Hints {
            zones: list(bytes, |bytes| boxed(bytes, &["z1", "z2"]))?.into(),
            nodes: list(bytes, |bytes| boxed(bytes, &NODES))?.into(),
        };
        let node = if bytes.arbitrary()? { Some(*bytes.choose(&NODES)?) } else { None };
        let zone = if bytes.arbitrary()? { Some(*bytes.choose(&["z1", "z2"])?) } else { None };
        builder.push(mostly(bytes, address)?, conditions, node, zone, hints);
    }
    let ports = list(bytes, |bytes| {
        Ok(SlicePort {
            name: if bytes.ratio(9, 10)? { Some(boxed(bytes, &["", "http"])?) } else { None },
            protocol: mostly(bytes, protocol)?,
            port: if bytes.ratio(9, 10)? { Some(mostly(bytes, number)?) } else { None },
        })
    })?;
    let service = if bytes.ratio(9, 10)? { Some(name(bytes)?) } else { None };
    let types = [AddressType::Ipv4, AddressType::Ipv6, AddressType::Other];
    let mut slice = builder.build(name(bytes)?, service, *bytes.choose(&types)?, ports);
    slice.headless = bytes.ratio(1, 10)?;
    Ok(slice)
}

fn node(bytes: Bytes<'_, '_>) -> Result<Node> {
    Ok(Node {
        name: ObjectName::cluster_wide(bytes.choose(&NODES)?),
        zone: if bytes.arbitrary()? { Some(boxed(bytes, &["z1", "z2"])?) } else { None },
        addresses: list(bytes, |bytes| {
            let kind = *bytes.choose(&[AddressKind::Internal, AddressKind::External])?;
            Ok(NodeAddress { kind, address: mostly(bytes, address)? })
        })?
        .into(),
        pod_cidrs: list(bytes, |bytes| mostly(bytes, net))?.into(),
        deleting: false,
        to_be_deleted: false,
    })
}
