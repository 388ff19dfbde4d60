use std::sync::Arc;

use ferry_api::object::{
    AddressType, Conditions, EndpointSlice, EndpointSliceBuilder, Hints, IpNet, KubeObject, LoadBalancerIngress,
    OddField, OddValue, Service, ServicePort, ServiceType, SlicePort,
};

use super::*;
use crate::flows::{RightFlows, flow_rules};
use crate::serves;
use crate::special::special;
use crate::state::{Action, Affinity, Treatment};
use crate::store::{Event, Store};
use crate::testing::{
    DRAINING, ENDED, READY, UNREADY, context, context_of, hinted_slice, ingress, ip, name, pool, port, service, slice,
    slice_port,
};

fn store(services: impl IntoIterator<Item = Service>, slices: impl IntoIterator<Item = EndpointSlice>) -> Store {
    let mut store = Store::new("here");
    for service in services {
        store.apply(Event::Upsert(KubeObject::Service(service)));
    }
    for slice in slices {
        store.apply(Event::Upsert(KubeObject::EndpointSlice(slice)));
    }
    store
}

fn resolved(store: &Store, service: &str, family: Family) -> (ServiceState, Vec<String>) {
    let objects = store.objects(&name(service));
    let (state, diagnostics) = resolve(&objects, store.claims(), &context_of(family), &Profile::NFTABLES, family);
    let found = diagnostics.iter().map(|found| found.to_string());
    (state, found.map(|text| text.split_once(": ").unwrap().1.to_owned()).collect())
}

/// The frontends of a service in IPv4, as text, and its diagnostics.
fn frontends(store: &Store, service: &str) -> (Vec<String>, Vec<String>) {
    let (state, diagnostics) = resolved(store, service, Family::V4);
    (state.ports.iter().flat_map(|port| &port.frontends).map(ToString::to_string).collect(), diagnostics)
}

fn here_and_there() -> EndpointSlice {
    slice("web-1", "web", &[("10.244.1.1", "here", READY), ("10.244.2.1", "there", READY)])
}

fn with_everything() -> Service {
    Service {
        kind: ServiceType::LoadBalancer,
        ports: [ServicePort { node_port: Ok(30_080), ..port("", 80) }].into(),
        external_ips: [Ok(ip("198.51.100.7")), Ok(ip("2001:db8::7"))].into(),
        ingress: [ingress("203.0.113.9"), ingress("2001:db8:1::9")].into(),
        ..service("web", "10.96.0.10")
    }
}

#[test]
fn every_kind_of_frontend_in_order() {
    let (frontends, diagnostics) = frontends(&store([with_everything()], [here_and_there()]), "web");
    let masqueraded = "pod=cluster+masquerade host=cluster+masquerade other=cluster+masquerade";
    assert_eq!(
        frontends,
        [
            "clusterIP 10.96.0.10:80: pod=cluster host=cluster+masquerade other=cluster+masquerade".to_owned(),
            format!("externalIP 198.51.100.7:80: {masqueraded}"),
            format!("loadBalancer 203.0.113.9:80: {masqueraded}"),
            format!("nodePort 30080: {masqueraded}"),
        ]
    );
    assert_eq!(diagnostics, [""; 0]);
}

#[test]
fn pools_follow_what_the_policies_ask_for() {
    let internal = |internal_policy| Service { internal_policy, ..service("web", "10.96.0.10") };
    let external = |external_policy| Service { external_policy, ..with_everything() };
    let (cluster, local) = (pool(&["10.244.1.1", "10.244.2.1"]), pool(&["10.244.1.1"]));
    for (service, wanted) in [
        (internal(TrafficPolicy::Cluster), (&cluster, &pool(&[]))),
        (internal(TrafficPolicy::Local), (&pool(&[]), &local)),
        (external(TrafficPolicy::Cluster), (&cluster, &pool(&[]))),
        (external(TrafficPolicy::Local), (&cluster, &local)),
        // without an external address the external policy asks for nothing
        (Service { external_policy: TrafficPolicy::Local, ..internal(TrafficPolicy::Cluster) }, (&cluster, &pool(&[]))),
        (
            // a load balancer that waits for its address and has no node ports
            Service {
                kind: ServiceType::LoadBalancer,
                external_policy: TrafficPolicy::Local,
                ..internal(TrafficPolicy::Cluster)
            },
            (&cluster, &pool(&[])),
        ),
        (Service { internal_policy: TrafficPolicy::Local, ..with_everything() }, (&cluster, &local)),
    ] {
        let (state, _) = resolved(&store([service.clone()], [here_and_there()]), "web", Family::V4);
        assert_eq!((&state.ports[0].cluster, &state.ports[0].local), wanted, "{service:?}");
    }
}

#[test]
fn external_policy_local_needs_an_external_type_or_address() {
    let local = |kind, external_ips: &[&str]| Service {
        kind,
        external_policy: TrafficPolicy::Local,
        external_ips: external_ips.iter().map(|text| Ok(ip(text))).collect(),
        ..service("web", "10.96.0.10")
    };
    assert!(!is_external_local(&local(ServiceType::ClusterIp, &[])));
    assert!(is_external_local(&local(ServiceType::ClusterIp, &["2001:db8::7"])), "either family's will do");
    assert!(is_external_local(&local(ServiceType::NodePort, &[])));
    assert!(is_external_local(&local(ServiceType::LoadBalancer, &[])));
}

#[test]
fn which_family_sees_the_service() {
    let seen = |service: &Service| {
        let store = store([service.clone()], []);
        Family::ALL.map(|family| resolved(&store, "web", family).0.ports.len())
    };
    let plain = service("web", "10.96.0.10");
    let six = Ok(ip("fd00:10:96::10"));
    assert_eq!(seen(&plain), [1, 0]);
    assert_eq!(seen(&service("web", "fd00:10:96::10")), [0, 1]);
    assert_eq!(seen(&Service { families: [].into(), ..plain.clone() }), [1, 0]);
    let dual = Service {
        families: [Family::V6, Family::V4].into(),
        cluster_ips: [six, Ok(ip("10.96.0.10"))].into(),
        ..plain.clone()
    };
    assert_eq!(seen(&dual), [1, 1]);
    // only the first of the two has an address yet
    assert_eq!(seen(&Service { families: [Family::V4, Family::V6].into(), ..plain.clone() }), [1, 0]);
    for hidden in [
        Service { cluster_ip: None, ..dual.clone() },
        Service { foreign_proxy: true, ..dual.clone() },
        Service { kind: ServiceType::ExternalName, ..dual },
    ] {
        assert_eq!(seen(&hidden), [0, 0], "{hidden:?}");
    }
}

#[test]
fn bad_cluster_ips_cost_their_family() {
    let bad = Service {
        families: [Family::V4, Family::V6].into(),
        cluster_ips: [Ok(ip("fd00:10:96::10")), Err("10.96.0.300".into())].into(),
        ..service("web", "10.96.0.10")
    };
    let store = store([bad], []);
    for (family, wanted) in [
        (Family::V4, "spec.clusterIPs[0]: fd00:10:96::10 is no IPv4 address: the service is not served in IPv4"),
        (Family::V6, "spec.clusterIPs[1]: \"10.96.0.300\" is no address: the service is not served in IPv6"),
    ] {
        let (state, diagnostics) = resolved(&store, "web", family);
        assert_eq!((state.ports.len(), diagnostics), (0, vec![wanted.to_owned()]));
    }
}

#[test]
fn source_ranges_guard_load_balancer_addresses_only() {
    let ranges = |list: &[&str]| Service {
        source_ranges: list.iter().map(|text| text.parse().map_err(|_| Box::from(*text))).collect(),
        ..with_everything()
    };
    let sources = |list: &[&str]| {
        let (state, _) = resolved(&store([ranges(list)], [here_and_there()]), "web", Family::V4);
        let frontends = &state.ports[0].frontends;
        for frontend in frontends.iter().filter(|frontend| frontend.kind != FrontendKind::LoadBalancer) {
            assert_eq!(frontend.sources, SourceRanges::Any);
        }
        match &frontends[2].sources {
            SourceRanges::Any => "any".to_owned(),
            SourceRanges::Only(nets) if nets.is_empty() => "nobody".to_owned(),
            SourceRanges::Only(nets) => nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        }
    };
    for (list, wanted) in [
        (&[][..], "any"),
        (&["10.0.0.0/8"], "10.0.0.0/8"),
        (&["10.1.0.0/16", "10.0.0.0/8", "172.16.5.1/12"], "10.0.0.0/8 172.16.0.0/12"),
        // the node is inside: so is the VIP
        (&["192.0.2.0/24"], "192.0.2.0/24 203.0.113.9/32"),
        (&["192.0.2.0/24", "203.0.113.0/24"], "192.0.2.0/24 203.0.113.0/24"),
        // ranges of the other family only, one that holds everything
        (&["2001:db8::/32"], "any"),
        (&["10.0.0.0/8", "0.0.0.0/0"], "any"),
        // nothing readable that could be of the family; what is of the other doesn't matter
        (&["10.0.0.0/33"], "nobody"),
        (&["everybody"], "nobody"),
        (&["10.0.0.0/33", "2001:db8::/32"], "nobody"),
        (&["2001:db8::/129"], "any"),
        (&["10.0.0.0/33", "10.0.0.0/8"], "10.0.0.0/8"),
        (&["everybody", "0.0.0.0/0"], "any"),
    ] {
        assert_eq!(sources(list), wanted, "{list:?}");
    }
}

#[test]
fn an_external_ip_that_is_a_load_balancer_address_keeps_the_ranges() {
    let both = Service {
        external_ips: [Ok(ip("203.0.113.9"))].into(),
        source_ranges: [Ok("10.0.0.0/8".parse().unwrap())].into(),
        ..with_everything()
    };
    let (frontends, diagnostics) = frontends(&store([both], [here_and_there()]), "web");
    assert!(frontends[1].starts_with("loadBalancer 203.0.113.9:80 sources 10.0.0.0/8: "), "{frontends:?}");
    assert_eq!(frontends.len(), 3);
    assert_eq!(diagnostics, ["spec.externalIPs[0]: a load balancer address of this service too: served as that"]);
}

#[test]
fn a_mode_may_reject_before_it_filters() {
    let guarded = Service { source_ranges: [Ok("10.0.0.0/8".parse().unwrap())].into(), ..with_everything() };
    let store = store([guarded], []);
    let profile = Profile { filters_sources_before_reject: false, ..Profile::NFTABLES };
    for (profile, wanted) in [(&profile, true), (&Profile::NFTABLES, false)] {
        let (state, _) = resolve(&store.objects(&name("web")), store.claims(), &context(), profile, Family::V4);
        assert_eq!(state.ports[0].frontends[2].sources == SourceRanges::Any, wanted);
    }
}

#[test]
fn the_loser_of_a_frontend_is_told() {
    let young = Service { created: None, ..with_everything() };
    let old = Service {
        name: name("old"),
        cluster_ip: Some(Ok(ip("10.96.0.11"))),
        cluster_ips: [Ok(ip("10.96.0.11"))].into(),
        ..with_everything()
    };
    let old = Service { external_ips: [].into(), ..old };
    let store = store([young, old], []);
    let (frontends, diagnostics) = frontends(&store, "web");
    assert_eq!(frontends.len(), 2);
    assert_eq!(
        diagnostics,
        [
            "status.loadBalancer.ingress[0].ip: 203.0.113.9:80 TCP belongs to another Service, which comes first: not served for this one [winner default/old]",
            "spec.ports[0].nodePort: 30080 TCP belongs to another Service, which comes first: not served for this one [winner default/old]",
        ]
    );
    assert_eq!(resolved(&store, "old", Family::V4).1, [""; 0]);
}

#[test]
fn within_a_service_the_first_wins() {
    let twice = Service {
        ports: [port("a", 80), ServicePort { node_port: Ok(30_080), ..port("a", 81) }, port("b", 80)].into(),
        external_ips: [Ok(ip("10.96.0.10")), Ok(ip("198.51.100.7")), Ok(ip("198.51.100.7"))].into(),
        ..service("web", "10.96.0.10")
    };
    let (frontends, diagnostics) = frontends(&store([twice], []), "web");
    let reject = "pod=reject host=reject other=reject";
    assert_eq!(
        frontends,
        [format!("clusterIP 10.96.0.10:80: {reject}"), format!("externalIP 198.51.100.7:80: {reject}")]
    );
    let again = |field, more| format!("{field}: this service has 10.96.0.10:80 TCP already: not served again{more}");
    assert_eq!(
        diagnostics,
        [
            "spec.ports[1].name: an earlier port has the name \"a\" and protocol TCP too: this port is not served"
                .to_owned(),
            again("spec.externalIPs[0]", " (4 more like it)"),
            again("spec.clusterIP", ""),
        ]
    );
}

#[test]
fn what_is_malformed_costs_itself_only() {
    let bad = Service {
        ports: [
            ServicePort { protocol: Err("ICMP".into()), ..port("a", 80) },
            ServicePort { port: Err("0".into()), ..port("b", 80) },
            ServicePort { node_port: Err("99999".into()), ..port("c", 80) },
        ]
        .into(),
        external_ips: [Err("198.51.100".into()), Ok(ip("198.51.100.7"))].into(),
        source_ranges: [Err("all".into())].into(),
        affinity_seconds: Some(0),
        health_check_node_port: 32_000,
        external_policy: TrafficPolicy::Local,
        kind: ServiceType::LoadBalancer,
        ..service("web", "10.96.0.10")
    };
    let (frontends, diagnostics) = frontends(&store([bad], []), "web");
    assert_eq!(frontends.len(), 2);
    assert_eq!(
        diagnostics,
        [
            "spec.externalIPs[0]: \"198.51.100\" is no address: not served",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: a memory of 0 seconds: session affinity is off",
            "spec.loadBalancerSourceRanges[0]: \"all\" is no range: it admits no client",
            "spec.ports[0].protocol: \"ICMP\" is no known protocol: this port is not served",
            "spec.ports[1].port: \"0\" is no port: this port is not served",
            "spec.ports[2].nodePort: \"99999\" is no port: it is not served as a node port",
        ]
    );
}

#[test]
fn load_balancers_may_ask_for_ready_endpoints_here() {
    let balanced = Service {
        kind: ServiceType::LoadBalancer,
        external_policy: TrafficPolicy::Local,
        health_check_node_port: 32_000,
        ports: [port("", 80), port("more", 81)].into(),
        ..service("web", "10.96.0.10")
    };
    let check = |service: &Service, slices: &[EndpointSlice]| {
        resolved(&store([service.clone()], slices.to_vec()), "web", Family::V4).0.health_check
    };
    let count = |local_endpoints| HealthCheck::new(32_000, local_endpoints);
    assert_eq!(check(&balanced, &[]), count(0));
    let here = |last: u8, conditions| (format!("10.244.1.{last}"), "here", conditions);
    let all = [
        here(1, READY),
        here(2, DRAINING),
        here(3, UNREADY),
        here(4, READY),
        ("10.244.2.1".to_owned(), "there", READY),
    ];
    let all: Vec<_> = all.iter().map(|(address, node, conditions)| (address.as_str(), *node, *conditions)).collect();
    let one = slice("one", "web", &all);
    // the same addresses on another port are the same pods
    let mut other = slice("other", "web", &all[..1]);
    other.ports = vec![slice_port("more", 8081)].into();
    assert_eq!(check(&balanced, &[one.clone(), other]), count(2));
    for none in [
        Service { health_check_node_port: 0, ..balanced.clone() },
        Service { external_policy: TrafficPolicy::Cluster, ..balanced.clone() },
        Service { kind: ServiceType::NodePort, ..balanced.clone() },
    ] {
        assert_eq!(check(&none, std::slice::from_ref(&one)), None);
    }
    assert_eq!(
        resolved(&store([balanced], [one]), "web", Family::V6).0.health_check,
        None,
        "no address of this family"
    );
}

/// In mode iptables the node's own packets pass by an external address of a service without usable endpoints, also while one
/// that is not ready serves the flows it has: both kinds of flow are right.
#[test]
fn packets_pass_by_while_an_endpoint_lingers() {
    let unready = Conditions { ready: false, serving: true, terminating: false };
    let mut slice = slice("web", "web", &[("10.244.1.1", "there", unready)]);
    slice.ports = vec![SlicePort { protocol: Ok(Protocol::Udp), ..slice_port("", 8080) }].into();
    let ports = [ServicePort { protocol: Ok(Protocol::Udp), ..port("", 80) }].into();
    let web = Service { ports, external_ips: [Ok(ip("203.0.113.9"))].into(), ..service("web", "10.96.0.10") };
    let store = store([web], [slice]);
    let (state, _) = resolve(&store.objects(&name("web")), store.claims(), &context(), &Profile::IPTABLES, Family::V4);
    assert_eq!(state.ports[0].lingering, pool(&["10.244.1.1"]));
    let external = FrontendAddr::Vip(ip("203.0.113.9"), 80);
    let right =
        |at| flow_rules(None, Some(&state), false).into_iter().find(|rule| rule.at == at).map(|rule| rule.right);
    assert!(matches!(right(external), Some(RightFlows::ToOrUntranslated(_))));
    assert!(matches!(right(FrontendAddr::Vip(ip("10.96.0.10"), 80)), Some(RightFlows::To(_))));
}

#[test]
fn endpoints_that_still_serve_linger_for_flows() {
    let conditions = [READY, UNREADY, DRAINING, ENDED, Conditions { ready: false, serving: true, terminating: false }];
    let endpoints: Vec<String> = (1..=conditions.len()).map(|last| format!("10.244.1.{last}")).collect();
    let endpoints: Vec<_> =
        endpoints.iter().zip(conditions).map(|(address, conditions)| (address.as_str(), "there", conditions)).collect();
    let serving = pool(&["10.244.1.3", "10.244.1.5"]);
    let listed = pool(&["10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5"]);
    for (profile, protocol, lingering) in [
        (&Profile::NFTABLES, Protocol::Tcp, &pool(&[])),
        (&Profile::IPTABLES, Protocol::Tcp, &pool(&[])),
        (&Profile::IPVS, Protocol::Tcp, &listed),
        (&Profile::USERSPACE, Protocol::Tcp, &listed),
        (&Profile::USERSPACE_BIND, Protocol::Udp, &serving),
        (&Profile::NFTABLES, Protocol::Udp, &serving),
        (&Profile::IPVS, Protocol::Udp, &serving),
        (&Profile::IPVS, Protocol::Sctp, &serving),
    ] {
        let mut slice = slice("web", "web", &endpoints);
        slice.ports = vec![SlicePort { protocol: Ok(protocol), ..slice_port("", 8080) }].into();
        let ports = [ServicePort { protocol: Ok(protocol), ..port("", 80) }].into();
        let store = store([Service { ports, ..service("web", "10.96.0.10") }], [slice]);
        let (state, _) = resolve(&store.objects(&name("web")), store.claims(), &context(), profile, Family::V4);
        assert_eq!(state.ports[0].cluster, pool(&["10.244.1.1"]));
        assert_eq!(state.ports[0].lingering, *lingering, "{protocol} {profile:?}");
    }
}

/// `serves` answers without endpoints what a state would have.
#[test]
fn a_service_is_served_if_its_state_has_ports() {
    for profile in Profile::ALL {
        for protocols in [&[][..], &[Protocol::Tcp], &[Protocol::Sctp], &[Protocol::Sctp, Protocol::Udp]] {
            let ports = protocols.iter().map(|protocol| ServicePort { protocol: Ok(*protocol), ..port("", 80) });
            let service = Service { ports: ports.collect(), ..service("web", "10.96.0.10") };
            let store = store([service.clone()], []);
            for family in Family::ALL {
                let context = context_of(family);
                let (state, _) = resolve(&store.objects(&name("web")), store.claims(), &context, profile, family);
                assert_eq!(
                    serves(&service, profile, family),
                    !state.ports.is_empty(),
                    "{family} {protocols:?} {profile:?}"
                );
            }
        }
    }
}

#[test]
fn a_load_balancer_that_proxies_itself_is_left_alone() {
    let mut balanced = with_everything();
    balanced.ingress[0].proxy_mode = true;
    let (frontends, _) = frontends(&store([balanced], []), "web");
    assert!(frontends.iter().all(|frontend| !frontend.starts_with("loadBalancer")), "{frontends:?}");
}

#[test]
fn affinity_reaches_every_port() {
    let sticky = Service {
        affinity_seconds: Some(300),
        ports: [port("a", 80), port("b", 81)].into(),
        ..service("web", "10.96.0.10")
    };
    let (state, _) = resolved(&store([sticky], []), "web", Family::V4);
    assert!(state.ports.iter().all(|port| port.affinity == Affinity::new(300)));
}

#[test]
fn ports_find_their_own_endpoints() {
    let mut two = hinted_slice("web-1", "web", [("10.244.1.1", "here", READY, &[][..], &[][..])]);
    two.ports = [slice_port("a", 8080), slice_port("b", 9090)].into();
    let web = Service { ports: [port("b", 81), port("a", 80), port("c", 82)].into(), ..service("web", "10.96.0.10") };
    let (state, _) = resolved(&store([web], [two]), "web", Family::V4);
    let pools: Vec<_> = state.ports.iter().map(|port| (&*port.name, port.cluster.to_string())).collect();
    assert_eq!(
        pools,
        [("b", "10.244.1.1:9090".to_owned()), ("a", "10.244.1.1:8080".to_owned()), ("c", "-".to_owned())]
    );
}

#[test]
fn equal_pools_are_shared() {
    let local = Service { external_policy: TrafficPolicy::Local, ..with_everything() };
    let (state, _) =
        resolved(&store([local], [slice("s", "web", &[("10.244.1.1", "here", READY)])]), "web", Family::V4);
    assert!(Arc::ptr_eq(&state.ports[0].cluster.0, &state.ports[0].local.0));
}

#[test]
fn without_the_service_there_is_nothing() {
    let store = store([], [here_and_there()]);
    assert_eq!(
        resolved(&store, "web", Family::V4).0,
        ServiceState { name: name("web"), ports: Vec::new(), health_check: None }
    );
}

#[test]
fn what_stands_for_odd_values_is_said() {
    let fields = [
        OddField::Type,
        OddField::SessionAffinity,
        OddField::NegativeTimeout,
        OddField::LongTimeout,
        OddField::InternalTrafficPolicy,
        OddField::ExternalTrafficPolicy,
        OddField::HealthCheckNodePort,
    ];
    let odd = fields.map(|field| OddValue { field, text: "x".into() }).into();
    let store = store([Service { odd, ..service("web", "10.96.0.10") }], []);
    let (_, diagnostics) = frontends(&store, "web");
    assert_eq!(
        diagnostics,
        [
            "spec.type: \"x\" is no type: taken for ClusterIP",
            "spec.sessionAffinity: \"x\" is no session affinity: taken for None",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: x is no timeout: 10800 seconds are taken",
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: x is too long a timeout: 86400 seconds are taken",
            "spec.internalTrafficPolicy: \"x\" is no policy: taken for Cluster",
            "spec.externalTrafficPolicy: \"x\" is no policy: taken for Cluster",
            "spec.healthCheckNodePort: x is no port: the service has no health check port",
        ]
    );
    let (_, found) = resolve(&store.objects(&name("web")), store.claims(), &context(), &Profile::NFTABLES, Family::V4);
    let causes: Vec<Cause> = found.iter().map(|found| found.cause).collect();
    let [object, excess] = [Cause::Object, Cause::Excess];
    assert_eq!(causes, [object, object, object, excess, object, object, object], "a timeout can be too long");
}

#[test]
fn a_pool_has_an_end() {
    let addresses: Vec<String> = (0..70)
        .flat_map(|i| (0..1000).map(move |j| (i, j)))
        .take(65_538)
        .map(|(i, j)| format!("10.{i}.{}.{}", j / 250, j % 250))
        .collect();
    let slices = |count: usize| {
        let chunks = addresses[..count].chunks(1000).enumerate();
        chunks
            .map(|(index, chunk)| {
                let endpoints: Vec<_> = chunk.iter().map(|address| (address.as_str(), "here", READY)).collect();
                slice(&format!("web-{index}"), "web", &endpoints)
            })
            .collect::<Vec<_>>()
    };
    let web = || Service { external_policy: TrafficPolicy::Local, ..with_everything() };
    let (full, diagnostics) = resolved(&store([web()], slices(65_536)), "web", Family::V4);
    assert_eq!((full.ports[0].cluster.len(), full.ports[0].local.len(), diagnostics.len()), (65_536, 65_536, 0));
    let mut more = slices(65_538);
    more.reverse();
    let (cut, diagnostics) = resolved(&store([web()], more), "web", Family::V4);
    assert_eq!(cut, full, "the first by address");
    assert_eq!(diagnostics, ["spec.ports[0]: 65538 endpoints, but there is room for 65536: the last 2 are not used"]);
}

#[test]
fn one_of_many_losers_is_not_told_to_whom() {
    let rivals = |count: u16| {
        let rival = |number| Service {
            external_ips: [Ok(ip("198.51.100.7"))].into(),
            ..service(&format!("s{number:02}"), &format!("10.96.1.{number}"))
        };
        store((0..count).map(rival), [])
    };
    let message = |winner: &str| {
        let text = "belongs to another Service, which comes first: not served for this one";
        vec![format!("spec.externalIPs[0]: 198.51.100.7:80 TCP {text}{winner}")]
    };
    let store = rivals(12);
    assert_eq!(frontends(&store, "s00").1, Vec::<String>::new());
    assert_eq!(frontends(&store, "s08").1, message(" [winner default/s00]"));
    assert_eq!(frontends(&store, "s09").1, message(""));
}

#[test]
fn who_loses_very_much_is_told_once() {
    let wide = |name: &str, cluster_ip: &str, addresses: u8| Service {
        ports: (1..=20).map(|number| port(&number.to_string(), number)).collect(),
        external_ips: (0..addresses).map(|last| Ok(IpAddr::from([198, 51, 100, last]))).collect(),
        ..service(name, cluster_ip)
    };
    for addresses in [1, 3, 200] {
        let store = store([wide("a", "10.96.0.10", addresses), wide("b", "10.96.0.11", addresses)], []);
        assert_eq!(resolved(&store, "a", Family::V4).1, [""; 0]);
        let (state, diagnostics) = resolved(&store, "b", Family::V4);
        assert!(state.ports.iter().all(|port| port.frontends.len() == 1), "the cluster IP alone");
        let lost = 20 * usize::from(addresses) - 1;
        let first = "spec.externalIPs[0]: 198.51.100.0:1 TCP belongs to another Service, which comes first: not served for this one";
        assert_eq!(diagnostics, [format!("{first} ({lost} more like it) [winner default/a]")]);
    }
}

#[test]
fn a_service_has_no_more_frontends_than_there_is_room_for() {
    let ports: Vec<ServicePort> = (1..=200).map(|number| port(&number.to_string(), number)).collect();
    let addresses = (0..200_u8).map(|last| Ok(IpAddr::from([198, 51, 100, last])));
    let wide = Service { ports: ports.into(), external_ips: addresses.collect(), ..service("web", "10.96.0.10") };
    let store = store([wide], []);
    let (state, diagnostics) = resolved(&store, "web", Family::V4);
    let served: Vec<&Frontend> = state.ports.iter().flat_map(|port| &port.frontends).collect();
    assert_eq!(served.len(), MAX_FRONTENDS);
    assert_eq!(state.ports.len(), MAX_FRONTENDS.div_ceil(201));
    assert_eq!(diagnostics.len(), 1);
    assert!(diagnostics[0].starts_with("spec.ports[81]: the service has more than 16384 frontends"), "{diagnostics:?}");
    // A frontend that isn't served isn't claimed either.
    let owner = |address: u8, port| {
        store.claims().owner(Family::V4, FrontendAddr::Vip([198, 51, 100, address].into(), port), Protocol::Tcp)
    };
    assert_eq!(owner(0, 82), Some(&name("web")));
    assert_eq!((owner(199, 82), owner(0, 83)), (None, None));
}

#[test]
fn a_service_ends_where_its_endpoints_and_ranges_are_too_many() {
    let ports: Vec<ServicePort> = (1..=4).map(|number| port(&number.to_string(), number)).collect();
    let range = |number: u32| Ok(IpNet::from(IpAddr::from(std::net::Ipv4Addr::from(0xc633_0000 + number))));
    let heavy = |ranges| Service {
        kind: ServiceType::LoadBalancer,
        ports: ports.clone().into(),
        ingress: [ingress("203.0.113.9"), ingress("203.0.113.10")].into(),
        source_ranges: (0..ranges).map(range).collect(),
        ..service("web", "10.96.0.10")
    };
    let (state, diagnostics) = resolved(&store([heavy(250_000)], []), "web", Family::V4);
    assert_eq!((state.ports.len(), diagnostics), (4, Vec::new()));
    let (state, diagnostics) = resolved(&store([heavy(400_000)], []), "web", Family::V4);
    assert_eq!(state.ports.len(), 2);
    assert_eq!(diagnostics.len(), 1);
    assert!(diagnostics[0].starts_with("spec.ports[2]: the service has more than"), "{diagnostics:?}");
    // A slice that names one port ten thousand times.
    let again = (1..=10_000).map(|number| slice_port("", number)).collect();
    let mut endpoints = EndpointSliceBuilder::default();
    (0..200_u8).for_each(|last| endpoints.push(Ok([10, 244, 1, last].into()), READY, None, None, Hints::default()));
    let slice = endpoints.build(name("web-1"), Some(name("web")), AddressType::Ipv4, again);
    let (state, diagnostics) = resolved(&store([service("web", "10.96.0.10")], [slice]), "web", Family::V4);
    assert_eq!((state.ports.len(), state.ports[0].frontends.len()), (1, 0));
    assert!(diagnostics[0].starts_with("spec.ports[0]: the service has more than"), "{diagnostics:?}");
}

/// In mode ipvs each frontend is a virtual server with all endpoints: what one Service may take is bounded by them, and no valid one is cut.
#[test]
fn endpoints_count_once_for_each_virtual_server() {
    let wide = |ports: u16, endpoints: u16| {
        let ports: Vec<ServicePort> = (1..=ports).map(|number| port(&number.to_string(), number)).collect();
        let slice_ports = ports.iter().map(|port| slice_port(&port.name, 8080)).collect();
        let externals = (1..=63_u8).map(|last| Ok([203, 0, 113, last].into())).collect();
        let mut slice = EndpointSliceBuilder::default();
        for number in 0..endpoints {
            let [high, low] = number.to_be_bytes();
            slice.push(Ok([10, 244, high, low].into()), READY, None, None, Hints::default());
        }
        let slice = slice.build(name("web-1"), Some(name("web")), AddressType::Ipv4, slice_ports);
        store([Service { ports: ports.into(), external_ips: externals, ..service("web", "10.96.0.10") }], [slice])
    };
    let served = |store: &Store, profile: &Profile| {
        let (state, diagnostics) =
            resolve(&store.objects(&name("web")), store.claims(), &context(), profile, Family::V4);
        let frontends: usize = state.ports.iter().map(|port| port.frontends.len()).sum();
        (frontends, diagnostics.len())
    };
    for (ports, endpoints, profile, wanted) in [
        (250, 64, &Profile::IPVS, (250 * 64, 0)),
        (250, 64, &Profile::NFTABLES, (250 * 64, 0)),
        (1, 30_000, &Profile::NFTABLES, (64, 0)),
        (1, 30_000, &Profile::IPVS, (0, 1)),
        (1, 20_000, &Profile::IPVS, (64, 0)),
    ] {
        assert_eq!(served(&wide(ports, endpoints), profile), wanted, "{ports} x {endpoints} {profile:?}");
    }
}

const SPECIAL: [&str; 7] =
    ["127.0.0.1", "127.9.9.9", "169.254.169.254", "0.0.0.0", "224.0.0.1", "239.1.2.3", "255.255.255.255"];

#[test]
fn special_addresses_are_no_addresses_of_a_service() {
    for address in SPECIAL {
        let wanted = format!("{address} is {}", special(ip(address)).unwrap());
        let service = Service {
            external_ips: [Ok(ip(address)), Ok(ip("198.51.100.7"))].into(),
            ingress: [
                ingress("203.0.113.9"),
                ingress(address),
                LoadBalancerIngress { proxy_mode: true, ..ingress(address) },
            ]
            .into(),
            ..with_everything()
        };
        let store = store([service.clone()], [here_and_there()]);
        let (served, diagnostics) = frontends(&store, "web");
        let kinds: Vec<&str> = served.iter().map(|text| text.split(": ").next().unwrap()).collect();
        assert_eq!(
            kinds,
            ["clusterIP 10.96.0.10:80", "externalIP 198.51.100.7:80", "loadBalancer 203.0.113.9:80", "nodePort 30080"]
        );
        assert_eq!(
            diagnostics,
            [
                format!("spec.externalIPs[0]: {wanted}: not served"),
                format!("status.loadBalancer.ingress[1].ip: {wanted}: not served"),
            ]
        );
        assert_eq!(store.claims().owner(Family::V4, FrontendAddr::Vip(ip(address), 80), Protocol::Tcp), None);
        // As a cluster IP it makes the family blind for the service, as one does that can't be read.
        let at = Service { cluster_ip: Some(Ok(ip(address))), cluster_ips: [Ok(ip(address))].into(), ..service };
        let store = self::store([at], [here_and_there()]);
        let (state, diagnostics) = resolved(&store, "web", Family::V4);
        assert_eq!(state.ports.len(), 0);
        assert_eq!(diagnostics[0], format!("spec.clusterIPs[0]: {wanted}: the service is not served in IPv4"));
    }
}

#[test]
fn special_addresses_are_no_endpoints() {
    let local = Service { external_policy: TrafficPolicy::Local, health_check_node_port: 32_000, ..with_everything() };
    let specials = SPECIAL.map(|address| (address, "here", READY));
    let slices = [slice("web-1", "web", &specials), slice("web-2", "web", &[("10.244.1.1", "here", READY)])];
    let (state, diagnostics) = resolved(&store([local.clone()], slices), "web", Family::V4);
    assert_eq!((&state.ports[0].cluster, &state.ports[0].local), (&pool(&["10.244.1.1"]), &pool(&["10.244.1.1"])));
    assert_eq!(state.health_check.unwrap().local_endpoints, 1);
    let wanted = "endpoints[].addresses[0]: 127.0.0.1 is a loopback address: not used as an endpoint (6 more like it)";
    assert_eq!(diagnostics, [wanted]);
    // with nothing else there is no endpoint at all
    let (state, _) = resolved(&store([local], [slice("web-1", "web", &specials)]), "web", Family::V4);
    assert!(state.ports[0].cluster.is_empty() && state.ports[0].local.is_empty());
    assert_eq!(state.ports[0].frontends[0].treatment, Treatment::all(Action::Reject));
}

#[test]
fn a_port_has_a_name_that_an_api_server_accepts() {
    let long = "a".repeat(64);
    for bad in ["http:x", "HTTP", "http_x", "-http", long.as_str()] {
        let service = Service { ports: [port(bad, 80), port("http", 81)].into(), ..service("web", "10.96.0.10") };
        let store = store([service], []);
        let (state, diagnostics) = resolved(&store, "web", Family::V4);
        assert_eq!(state.ports.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["http"]);
        let wanted =
            format!("spec.ports[0].name: {bad:?} is no name of a port, which is a DNS label: this port is not served");
        assert_eq!(diagnostics, [wanted]);
        let at = |port| FrontendAddr::Vip(ip("10.96.0.10"), port);
        assert_eq!(store.claims().owner(Family::V4, at(80), Protocol::Tcp), None);
    }
}

/// A store that serves node ports at 192.0.2.10.
fn at_node(services: impl IntoIterator<Item = Service>) -> Store {
    let mut store = store(services, []);
    store.serve_node_ports_at([ip("192.0.2.10")].into());
    store
}

#[test]
fn what_comes_first_where_a_node_port_is_served() {
    let with_node_port = |text, cluster_ip| Service {
        ports: [ServicePort { node_port: Ok(30_080), ..port("", 80) }].into(),
        created: None,
        ..service(text, cluster_ip)
    };
    let at_30080 = |service| Service { ports: [port("", 30_080)].into(), ..service };
    let external = |address: &str| {
        at_30080(Service { external_ips: [Ok(ip(address))].into(), ..service("external", "10.96.0.11") })
    };
    let kinds = |store: &Store, name| -> Vec<String> {
        let served = frontends(store, name).0.into_iter();
        served.map(|text| text.split(": ").next().unwrap().to_owned()).collect()
    };
    // An external IP loses, however old it is, and gets a diagnostic.
    let store = at_node([external("192.0.2.10"), with_node_port("web", "10.96.0.10")]);
    assert_eq!(kinds(&store, "external"), ["clusterIP 10.96.0.11:30080"]);
    assert_eq!(
        resolved(&store, "external", Family::V4).1,
        [
            "spec.externalIPs[0]: 192.0.2.10:30080 TCP belongs to another Service, which comes first: not served for this one [winner default/web]"
        ]
    );
    assert_eq!(kinds(&store, "web"), ["clusterIP 10.96.0.10:80", "nodePort 30080"]);
    assert_eq!(resolved(&store, "web", Family::V4).1, [""; 0]);
    // At an address that serves no node ports it is its own.
    let store = at_node([external("192.0.2.11"), with_node_port("web", "10.96.0.10")]);
    assert_eq!(kinds(&store, "external"), ["clusterIP 10.96.0.11:30080", "externalIP 192.0.2.11:30080"]);
    // A load balancer address wins there, and the node port gets a diagnostic.
    let balanced = at_30080(Service { ingress: [ingress("192.0.2.10")].into(), ..service("balanced", "10.96.0.12") });
    let store = at_node([balanced, external("192.0.2.10"), with_node_port("web", "10.96.0.10")]);
    assert_eq!(kinds(&store, "balanced"), ["clusterIP 10.96.0.12:30080", "loadBalancer 192.0.2.10:30080"]);
    assert_eq!(kinds(&store, "web"), ["clusterIP 10.96.0.10:80", "nodePort 30080"]);
    assert_eq!(
        resolved(&store, "web", Family::V4).1,
        [
            "spec.ports[0].nodePort: 192.0.2.10:30080 TCP belongs to another Service, which comes first: not served there [winner default/balanced]"
        ]
    );
    assert!(resolved(&store, "external", Family::V4).1[0].ends_with("[winner default/balanced]"));
    // A service's own node port is served in the place of its external IP.
    let own = Service { external_ips: [Ok(ip("192.0.2.10"))].into(), ..with_node_port("web", "10.96.0.10") };
    let own = Service { ports: [ServicePort { node_port: Ok(30_080), ..port("", 30_080) }].into(), ..own };
    let store = at_node([own]);
    assert_eq!(kinds(&store, "web"), ["clusterIP 10.96.0.10:30080", "nodePort 30080"]);
    assert_eq!(
        resolved(&store, "web", Family::V4).1,
        ["spec.externalIPs[0]: an address of this node and a node port of this service too: served as that"]
    );
}

/// A mode with an object for each address that serves node ports needs to know where another frontend is in its place.
#[test]
fn node_addresses_at_which_a_node_port_is_not_served() {
    let at_node = |text, node_port| {
        let port = ServicePort { node_port: Ok(node_port), ..port("", 30_080) };
        Service { ports: [port].into(), ingress: [ingress("192.0.2.10")].into(), ..service(text, "10.96.0.10") }
    };
    let shadowed = |store: &Store, profile: &Profile| {
        let (state, _) = resolve(&store.objects(&name("web")), store.claims(), &context(), profile, Family::V4);
        let port = &state.ports[0];
        assert_eq!(port.serves_node_port_at(ip("192.0.2.10")), port.shadowed.is_none());
        assert!(port.serves_node_port_at(ip("192.0.2.11")));
        port.shadowed.as_ref().map(|shadowed| shadowed.addresses.to_vec())
    };
    let web = || Service { ingress: [].into(), ..at_node("web", 30_080) };
    let other = Service { cluster_ips: [Ok(ip("10.96.0.11"))].into(), ..at_node("other", 0) };
    let store_of = |services: Vec<Service>| {
        let mut store = store(services, []);
        store.serve_node_ports_at(["192.0.2.10", "192.0.2.11"].map(ip).into());
        store
    };
    let here = Some(vec![ip("192.0.2.10")]);
    let both = store_of(vec![web(), other]);
    assert_eq!(shadowed(&both, &Profile::IPVS), here);
    assert_eq!(shadowed(&both, &Profile::NFTABLES), None, "one object for all addresses");
    assert_eq!(shadowed(&store_of(vec![at_node("web", 30_080)]), &Profile::IPVS), here, "its own frontend");
    assert_eq!(shadowed(&store_of(vec![at_node("web", 30_081)]), &Profile::IPVS), None);
    assert_eq!(shadowed(&store_of(vec![web()]), &Profile::IPVS), None);
}

/// The node's own connections to a load balancer address have that address as their source.
#[test]
fn source_ranges_with_the_node_admit_the_address_itself_in_every_mode() {
    let web = Service { source_ranges: [Ok("192.0.2.0/24".parse().unwrap())].into(), ..with_everything() };
    let store = store([web], [here_and_there()]);
    for profile in Profile::ALL {
        let (state, _) = resolve(&store.objects(&name("web")), store.claims(), &context(), profile, Family::V4);
        let of_balancer = |frontend: &&Frontend| frontend.kind == FrontendKind::LoadBalancer;
        let balancer = state.ports[0].frontends.iter().find(of_balancer).unwrap();
        let wanted: Vec<IpNet> = ["192.0.2.0/24", "203.0.113.9/32"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(balancer.sources, SourceRanges::Only(wanted.into()), "{profile:?}");
    }
}
