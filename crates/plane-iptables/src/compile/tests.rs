use ferry_api::object::{ObjectName, Protocol};
use ferry_kernel::iptables::Match;
use ferry_model::{
    Action, Affinity, Endpoint, Frontend, FrontendAddr, FrontendKind, HealthCheck, LocalDetector, MissingSchedulers,
    Pool, Scheduler, Scope, Snat, SourceRanges, Treatment,
};
use ferry_plane::Object as _;
use proptest::prelude::*;

use super::*;
use crate::object::LONG;
use crate::render;

const INTERNAL: Treatment = Treatment {
    pod: Action::Forward { to: Scope::Cluster, snat: Snat::Keep },
    host: Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade },
    other: Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade },
};
const LOCAL: Treatment = Treatment {
    pod: Action::Forward { to: Scope::Cluster, snat: Snat::Keep },
    host: Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade },
    other: Action::Forward { to: Scope::Local, snat: Snat::Keep },
};

fn context(detector: Option<LocalDetector>) -> Context {
    Context {
        node_name: "node-a".into(),
        zone: None,
        node_ip: None,
        node_addresses: [].into(),
        local_addresses: [].into(),
        relay_address: None,
        local: detector.clone(),
        masquerade_all: false,
        masquerade_mark: 0x4000,
        scheduler: Scheduler::default(),
        missing_schedulers: MissingSchedulers::new(),
    }
}

fn pods() -> Option<LocalDetector> {
    Some(LocalDetector::Cidr("10.244.0.0/16".parse().unwrap()))
}

fn pool(endpoints: &[&str]) -> Pool {
    let endpoint = |text: &&str| {
        let address: std::net::SocketAddr = text.parse().unwrap();
        Endpoint { address: address.ip(), port: address.port() }
    };
    Pool::new(endpoints.iter().map(endpoint).collect::<Vec<_>>())
}

fn frontends() -> Box<[Frontend]> {
    let frontend = |kind, at, treatment| Frontend { kind, at, sources: SourceRanges::Any, treatment };
    let vip = |text: &str| FrontendAddr::Vip(text.parse().unwrap(), 80);
    let mut balancer = frontend(FrontendKind::LoadBalancer, vip("203.0.113.9"), LOCAL);
    balancer.sources = SourceRanges::Only(["198.51.100.0/24".parse().unwrap()].into());
    [
        frontend(FrontendKind::ClusterIp, vip("10.96.0.10"), INTERNAL),
        frontend(FrontendKind::NodePort, FrontendAddr::NodePort(30_080), LOCAL),
        balancer,
    ]
    .into()
}

/// A service whose port has this name, with all kinds of rules.
fn service(name: ObjectName, port: &str) -> ServiceState {
    let state = PortState {
        name: port.into(),
        protocol: Protocol::Tcp,
        affinity: Affinity::new(10_800),
        cluster: pool(&["10.244.1.1:80", "10.244.1.10:80", "10.244.1.2:80", "10.244.1.10:8"]),
        local: pool(&["10.244.1.2:80", "10.244.1.10:80"]),
        lingering: Pool::default(),
        balance: None,
        shadowed: None,
        frontends: frontends(),
    };
    ServiceState { name, ports: vec![state], health_check: HealthCheck::new(32_000, 2) }
}

fn compiled(context: &Context, features: Features, service: ServiceState) -> Vec<IptObject> {
    let mut objects = Vec::new();
    Iptables::new(Family::V4, features).compile(context, &Unit::Service(service), &mut objects);
    objects
}

fn rules_of(objects: &[IptObject], chain: &str) -> Vec<String> {
    let text = render::ruleset(Family::V4, objects);
    let prefix = format!("-A {chain}");
    let rules = text.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once(' '));
    rules.map(|(_, rule)| rule.to_owned()).collect()
}

fn web() -> ServiceState {
    service(ObjectName::new("demo", "web"), "http")
}

#[test]
fn endpoints_stand_in_the_order_of_their_text() {
    let objects = compiled(&context(pods()), Features::default(), web());
    let balancing = |chain| {
        let rules = rules_of(&objects, chain);
        let rules = rules.iter().filter(|rule| rule.contains(" -> ") && !rule.contains("recent"));
        let texts = rules.map(|rule| rule.split(" -> ").nth(1).unwrap().split('"').next().unwrap().to_owned());
        texts.collect::<Vec<_>>()
    };
    assert_eq!(balancing("KUBE-SVC-"), ["10.244.1.10:8", "10.244.1.10:80", "10.244.1.1:80", "10.244.1.2:80"]);
    assert_eq!(balancing("KUBE-SVL-"), ["10.244.1.10:80", "10.244.1.2:80"]);
    assert_eq!(rules_of(&objects, "KUBE-SEP-").len(), 8, "a chain for each endpoint of either pool");
}

#[test]
fn only_balancing_chains_of_long_pools_depend_on_the_order_of_endpoints() {
    for (count, differing) in [(4, 0), (LONG - 1, 0), (LONG, 2), (LONG + 9, 2)] {
        let texts: Vec<String> = (0..count).map(|last| format!("10.244.1.{last}:80")).collect();
        let pools = [texts.iter().map(String::as_str).collect(), texts.iter().rev().map(String::as_str).collect()];
        let [one, other] = pools.map(|texts: Vec<&str>| {
            let mut service = web();
            service.ports[0].cluster = pool(&texts);
            service.ports[0].local = pool(&texts);
            compiled(&context(pods()), Features::default(), service)
        });
        let unlike: Vec<&IptObject> = one.iter().filter(|object| !other.contains(object)).collect();
        assert_eq!(unlike.len(), differing, "{count} endpoints: {unlike:?}");
        assert!(unlike.iter().all(|object| object.is_placed()), "{count} endpoints");
        // With affinity a pool has twice as many rules.
        let placed = one.iter().filter(|object| object.is_placed()).count();
        assert_eq!(placed, if 2 * count < LONG { 0 } else { 2 }, "{count} endpoints");
    }
}

#[test]
fn each_endpoint_is_as_likely_as_any_other() {
    let objects = compiled(&context(pods()), Features::default(), web());
    let rules = rules_of(&objects, "KUBE-SVC-");
    let chances: Vec<&str> =
        rules.iter().filter_map(|rule| rule.split("--probability ").nth(1)?.split(' ').next()).collect();
    assert_eq!(chances, ["0.25000000000", "0.33333333349", "0.50000000000"]);
}

#[test]
fn loopback_is_counted_only_where_it_is_served() {
    let rules = |counts_localhost| {
        let features = Features { counts_localhost, ..Features::default() };
        rules_of(&compiled(&context(pods()), features, web()), "KUBE-NODEPORTS")
    };
    assert!(rules(true).iter().any(|rule| rule.starts_with("-d 127.0.0.0/8") && rule.contains("nfacct")));
    assert!(!rules(false).iter().any(|rule| rule.contains("127.0.0.0/8")));
    assert_eq!(rules(true).len(), rules(false).len() + 1);
}

/// The Service with so many source ranges.
fn with_ranges(count: usize) -> ServiceState {
    let net = |number: u8| IpNet::new(std::net::Ipv4Addr::new(10, number, 0, 0).into(), 16).unwrap();
    let mut service = web();
    service.ports[0].frontends[2].sources = SourceRanges::Only((0..=255).map(net).take(count).collect());
    service
}

#[test]
fn many_source_ranges_are_a_set() {
    let compiled = |ranges, has_sets| {
        compiled(&context(pods()), Features { has_sets, ..Features::default() }, with_ranges(ranges))
    };
    let rules = |objects: &[IptObject]| rules_of(objects, "KUBE-FW-").len() - 1;
    for (ranges, has_sets, wanted) in [(64, true, 64), (65, true, 1), (65, false, 65)] {
        let objects = compiled(ranges, has_sets);
        let sets: Vec<_> = objects.iter().filter(|object| matches!(object, IptObject::SourceSet(..))).collect();
        assert_eq!((rules(&objects), sets.len()), (wanted, usize::from(wanted == 1)), "{ranges} {has_sets}");
    }
    let rule = &rules_of(&compiled(65, true), "KUBE-FW-")[0];
    let set = names::sources(&web().name, Family::V4);
    assert!(rule.starts_with(&format!("-m set --match-set {set} src -m comment")), "{rule}");
    let text = render::sets(Family::V4, &compiled(65, true));
    assert!(
        text.starts_with(&format!("create {set} hash:net family inet maxelem 65\nadd {set} 10.0.0.0/16\n")),
        "{text}"
    );
    assert_ne!(set, names::sources(&web().name, Family::V6), "sets of both families have one space of names");
}

#[test]
fn a_change_of_endpoints_compiles_no_set() {
    let compiler = Iptables::new(Family::V4, Features { has_sets: true, ..Features::default() });
    let change = |old: ServiceState, new: ServiceState| {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let units = (&Unit::Service(old), &Unit::Service(new));
        compiler.compile_change(&context(pods()), units, &mut before, &mut after);
        let sets =
            |objects: &[IptObject]| objects.iter().filter(|object| matches!(object, IptObject::SourceSet(..))).count();
        (sets(&before), sets(&after))
    };
    let mut moved = with_ranges(65);
    moved.ports[0].cluster = pool(&["10.244.1.7:80"]);
    assert_eq!(change(with_ranges(65), moved), (0, 0));
    assert_eq!(change(with_ranges(65), with_ranges(66)), (1, 1));
    assert_eq!(change(with_ranges(64), with_ranges(65)), (0, 1));
}

#[test]
fn how_pods_are_known() {
    let of = |detector: Option<LocalDetector>| {
        let objects = compiled(&context(detector), Features::default(), web());
        let first = |chain, of| rules_of(&objects, chain).into_iter().find(|rule| rule.contains(of));
        let until = |rule: String| rule.split(" -m comment").next().unwrap().to_owned();
        (first("KUBE-EXT-", "pod traffic").map(until), first("KUBE-SVC-", "KUBE-MARK-MASQ").map(until))
    };
    let some = |pods: &str, others: &str| (Some(pods.to_owned()), Some(others.to_owned()));
    let bridge = |name: &str| Some(LocalDetector::Bridge(name.to_owned()));
    let prefix = |name: &str| Some(LocalDetector::InterfacePrefix(name.to_owned()));
    let vip = "-d 10.96.0.10/32";
    assert_eq!(of(pods()), some("-s 10.244.0.0/16", &format!("! -s 10.244.0.0/16 {vip} -p tcp")));
    assert_eq!(of(bridge("cni0")), some("-i cni0", &format!("{vip} ! -i cni0 -p tcp")));
    assert_eq!(of(prefix("veth")), some("-i veth+", &format!("{vip} ! -i veth+ -p tcp")));
    let longest = "fifteen-letters";
    assert_eq!(of(prefix(longest)), some(&format!("-i {longest}"), &format!("{vip} ! -i {longest} -p tcp")));
    assert_eq!(of(None), (None, None));
    // No source is a pod.
    let of_other_family = Some(LocalDetector::Cidr("fd00::/8".parse().unwrap()));
    assert_eq!(of(of_other_family), (None, Some(format!("{vip} -p tcp"))));
    for nobody in [bridge("sixteen-letters-"), bridge("br+"), bridge(""), bridge("a b"), prefix("sixteen-letters-")] {
        assert_eq!(of(nobody.clone()), (None, Some(format!("{vip} -p tcp"))), "{nobody:?}");
    }
    // Every source is.
    let everybody = of(Some(LocalDetector::Cidr("0.0.0.0/0".parse().unwrap())));
    assert!(everybody.0.is_some_and(|rule| rule.starts_with("-m comment")) && everybody.1.is_none());
}

#[test]
fn the_longest_names_that_a_server_lets_through_are_not_cut() {
    let longest = "x".repeat(63);
    let objects =
        compiled(&context(pods()), Features::default(), service(ObjectName::new(&longest, &longest), &longest));
    let printed = format!("{longest}/{longest}:{longest}");
    for comment in comments(&objects) {
        assert!(comment.contains(&printed) && comment.len() < 255, "{comment}");
    }
}

#[test]
fn a_refused_load_balancer_has_no_chain_for_its_source_ranges() {
    let mut service = web();
    service.ports[0].frontends[2].treatment = Treatment::all(Action::Reject);
    let objects = compiled(&context(pods()), Features::default(), service);
    assert_eq!(rules_of(&objects, "KUBE-FW-"), Vec::<String>::new());
    let refused = rules_of(&objects, "KUBE-EXTERNAL-SERVICES");
    assert!(refused.len() == 1 && refused[0].starts_with("-d 203.0.113.9/32 "), "{refused:?}");
}

#[test]
fn a_long_pool_keeps_the_order_that_is_in_force() {
    let texts: Vec<String> = (0..LONG).map(|last| format!("10.244.1.{last}:80")).collect();
    let [old, mut next] = [texts.iter().rev().collect(), texts.iter().collect()].map(|texts: Vec<&String>| {
        let mut service = web();
        service.ports[0].cluster = pool(&texts.into_iter().map(String::as_str).collect::<Vec<_>>());
        Unit::Service(service)
    });
    assert_ne!(next, old);
    let compiler = Iptables::new(Family::V4, Features::default());
    compiler.place(&mut next, Before::Unit(&old));
    assert_eq!(next, old);
}

#[test]
fn a_chain_or_set_is_looked_for_only_in_the_service_that_may_want_it() {
    let features = Features { has_sets: true, ..Features::default() };
    let compiler = Iptables::new(Family::V4, features);
    let may_want = |service: &ServiceState, key: &IptKey| {
        let mut hints = Vec::new();
        compiler.hints(key, &mut hints);
        compiler.may_want(&Unit::Service(service.clone()), &|hint| hints.contains(hint))
    };
    let (own, other) = (with_ranges(65), ServiceState { name: ObjectName::new("demo", "other"), ..with_ranges(65) });
    let objects = compiled(&context(pods()), features, own.clone());
    let keys: Vec<IptKey> = objects.iter().map(IptObject::key).collect();
    let of_service = |key: &&IptKey| matches!(key, IptKey::Chain(_) | IptKey::SourceSet(_));
    assert_eq!(keys.iter().filter(of_service).count(), 4 + 4 + 1, "chains of the port and of its endpoints, and a set");
    for key in keys.iter().filter(of_service) {
        assert!(may_want(&own, key) && !may_want(&other, key), "{key}");
    }
    let rest: Vec<&IptKey> = keys.iter().filter(|key| !of_service(key)).collect();
    assert!(!rest.is_empty() && rest.into_iter().all(|key| may_want(&own, key)));
    let of_base = IptKey::Chain(ChainId { table: Table::Nat, name: names::MARK_MASQ });
    assert!(!may_want(&own, &of_base));
}

fn comments(objects: &[IptObject]) -> Vec<String> {
    let rules = objects.iter().flat_map(|object| match object {
        IptObject::Chain(_, rules) => rules.0.iter(),
        IptObject::OwnedRules(_, rules) => rules.iter(),
        IptObject::SharedChain(_)
        | IptObject::SourceSet(..)
        | IptObject::RouteLocalnet
        | IptObject::ForeignRule(..) => [].iter(),
    });
    let matches = rules.flat_map(|rule| &rule.matches);
    matches
        .filter_map(|each| match each {
            Match::Comment(text) => Some(text.to_string()),
            _ => None,
        })
        .collect()
}

#[test]
fn wrong_families_break_nothing() {
    let mut service = web();
    service.ports[0].cluster = pool(&["[fd00::1]:80", "10.244.1.1:80"]);
    assert!(!compiled(&context(pods()), Features::default(), service.clone()).is_empty());
    let mut objects = Vec::new();
    Iptables::new(Family::V6, Features::default()).compile(&context(pods()), &Unit::Service(service), &mut objects);
    assert!(render::ruleset(Family::V6, &objects).contains("-j KUBE-SVC-"));
}

#[test]
fn a_service_without_ports_needs_nothing() {
    let service = ServiceState { ports: Vec::new(), ..web() };
    assert_eq!(compiled(&context(pods()), Features::default(), service), []);
}

/// The chains that an incremental compile leaves out are equal before and after the change.
#[test]
fn a_change_comes_to_the_same_as_both_sides_as_a_whole() {
    let few = pool(&["10.244.1.10:80", "10.244.1.9:80"]);
    let many: Vec<String> = (1..40).map(|last| format!("10.244.2.{last}:80")).collect();
    let many = pool(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let mut states = vec![web(), ServiceState { ports: Vec::new(), ..web() }];
    for (cluster, local) in [(&few, &many), (&many, &few), (&few, &pool(&[]))] {
        let mut state = web();
        (state.ports[0].cluster, state.ports[0].local) = (cluster.clone(), local.clone());
        states.push(state.clone());
        state.ports[0].affinity = Some(Affinity { timeout_seconds: 60.try_into().unwrap() });
        states.push(state.clone());
        state.ports.insert(0, PortState { name: "other".into(), ..web().ports[0].clone() });
        states.push(state.clone());
        state.ports[1].frontends = state.ports[1].frontends[1..].into();
        states.push(state);
    }
    let (context, iptables) = (context(pods()), Iptables::new(Family::V4, Features::default()));
    let without = |list: &[IptObject], other: &[IptObject]| -> Vec<IptObject> {
        let mut left: Vec<IptObject> = list.iter().filter(|object| !other.contains(object)).cloned().collect();
        left.sort();
        left
    };
    for (old, new) in states.iter().flat_map(|old| states.iter().map(move |new| (old, new))) {
        let [before, after] = [old, new].map(|state| compiled(&context, Features::default(), state.clone()));
        let (mut less, mut more) = (Vec::new(), Vec::new());
        let units = (&Unit::Service(old.clone()), &Unit::Service(new.clone()));
        iptables.compile_change(&context, units, &mut less, &mut more);
        assert_eq!(without(&before, &after), without(&less, &more));
        assert_eq!(without(&after, &before), without(&more, &less));
        assert!(
            less.len() <= before.len() && (old != new || less.len() <= 1),
            "of what is equal health checks at most"
        );
    }
}

proptest! {
    #[test]
    fn whatever_a_service_is_called_its_comments_fit_and_need_no_quoting(
        namespace in "\\PC{0,80}", name in "[ -~\\t\\n\"'\\\\]{0,300}", port in "\\PC{0,80}",
    ) {
        let service = service(ObjectName::new(&namespace, &name), &port);
        let owner = names::of_service(&service.name);
        let objects = compiled(&context(pods()), Features::default(), service);
        for comment in comments(&objects) {
            prop_assert!(comment.len() <= 255);
            prop_assert!(comment.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{comment}");
            prop_assert!(!comment.contains(['"', '\\', '\'']), "{comment}");
            if let Some(found) = names::health_check_of(&comment) {
                prop_assert_eq!(found, owner);
            }
        }
    }
}
