use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ferry_api::config::KubeProxyConfiguration;
use ferry_api::wire::{Document, decode_manifest};
use ferry_model::{DetectLocal, FrontendAddr, LocalDetector, NodePortAddresses, NodePortSelection, Scheduler};
use ferry_plane::mailbox::{Arrival, Mailbox, Receiver};

use super::*;
use crate::events::{Inbox, KubeEvent, Level, Regarding};
use crate::health::Pulse;
use crate::input::{NodeProblem, NodeWarning};
use crate::metrics::Metrics;
use crate::report::{Report, Reports};

struct Bench {
    core: Core,
    mailboxes: Vec<Receiver>,
    metrics: Arc<Metrics>,
    reports: Reports,
    eligible: Arc<AtomicBool>,
    told: Inbox,
    signals: std::sync::mpsc::Receiver<()>,
}

impl Bench {
    fn new() -> Self {
        Self::beside(|_| Ok(false))
    }

    /// A core whose families have rules of an earlier run if `in_use` returns true.
    fn beside(in_use: fn(Family) -> io::Result<bool>) -> Self {
        Self::with(in_use, NodeFacts::Local)
    }

    fn with(in_use: fn(Family) -> io::Result<bool>, node: NodeFacts) -> Self {
        let mut config = KubeProxyConfiguration { mode: "nftables".to_owned(), ..KubeProxyConfiguration::default() };
        config.apply_platform_defaults();
        let metrics = Arc::new(Metrics::new().unwrap());
        let reports = Reports::default();
        let eligible = Arc::new(AtomicBool::new(node == NodeFacts::Local));
        let (recorder, told) = events::open_queue(10);
        let mut mailboxes = Vec::new();
        let engines = Family::ALL.map(|family| {
            let (sender, receiver) = Mailbox::new();
            mailboxes.push(receiver);
            EngineHandle::new(family, sender, Arc::new(Pulse::new(Instant::now())))
        });
        let (changed, signals) = std::sync::mpsc::sync_channel(1);
        let core = Core::new(CoreSetup {
            settings: Settings::from_config(&config, "node"),
            config,
            profile: Profile::NFTABLES,
            addresses: vec!["10.0.0.9".parse().unwrap()],
            node,
            engines: engines.into(),
            changes: ChangeReporter::new(Arc::clone(&metrics), reports.clone(), Family::ALL.into()),
            eligible: Arc::clone(&eligible),
            recorder,
            in_use,
            changed: Some(changed),
        });
        Self { core, mailboxes, metrics, reports, eligible, told, signals }
    }

    /// A core whose initial lists are complete, and whose first deltas are taken.
    fn started(manifest: &str) -> Self {
        let mut bench = Self::new();
        let mut events = events(manifest);
        events.extend([Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice].map(Event::Synced));
        bench.input(Input::Events(events));
        assert!(bench.taken().iter().all(Option::is_some));
        bench
    }

    fn input(&mut self, input: Input) {
        self.core.take(input);
        assert_eq!(self.core.decide(), Ok(None));
    }

    fn upsert(&mut self, manifest: &str) {
        self.input(Input::Events(events(manifest)));
    }

    /// The pending delta of each family.
    fn taken(&self) -> Vec<Option<Delta>> {
        self.mailboxes.iter().map(Receiver::take).collect()
    }
}

fn events(manifest: &str) -> Vec<Event> {
    let documents = decode_manifest(manifest).complete().unwrap().into_iter();
    let object = |document| match document {
        Document::Object(object) => Event::Upsert(object),
        Document::Ignored { kind } => panic!("{kind}"),
    };
    documents.map(object).collect()
}

fn service(name: &str, ip: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  clusterIP: {ip}\n  \
         ports: [{{port: 80}}]\n{more}---\n"
    )
}

fn slice(service: &str, address: &str, node: &str) -> String {
    let kind = if address.contains(':') { "IPv6" } else { "IPv4" };
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {service}-x\n  \
         labels: {{kubernetes.io/service-name: {service}}}\naddressType: {kind}\nports: [{{name: '', port: 8080, protocol: TCP}}]\n\
         endpoints: [{{addresses: ['{address}'], nodeName: {node}}}]\n---\n"
    )
}

fn id(name: &str) -> UnitId {
    UnitId::Service(ObjectName::new("default", name))
}

fn ids(delta: Option<&Delta>) -> Vec<UnitId> {
    delta.map_or_else(Vec::new, |delta| delta.units.keys().cloned().collect())
}

#[test]
fn nothing_before_the_lists_are_complete() {
    let mut bench = Bench::new();
    bench.upsert(&service("a", "10.96.0.1", ""));
    bench.input(Input::Events(vec![Event::Synced(Kind::Service), Event::Synced(Kind::Node)]));
    assert!(bench.taken().iter().all(Option::is_none));
    bench.input(Input::Events(vec![Event::Synced(Kind::EndpointSlice)]));
    let [Some(v4), Some(v6)] = &bench.taken()[..] else { panic!("for both families") };
    assert!(v4.context.is_some() && v6.context.is_some());
    assert_eq!(ids(Some(v4)), [UnitId::Base, id("a")]);
    assert!(v4.units[&id("a")].is_some());
    // The service has an IPv4 address only.
    assert_eq!(ids(Some(v6)), [UnitId::Base]);
}

#[test]
fn an_empty_cluster_starts_too() {
    let bench = Bench::started("");
    assert!(bench.taken().iter().all(Option::is_none));
}

/// A start with a malformed file and one that defines service a.
fn broken_start(in_use: fn(Family) -> io::Result<bool>) -> Bench {
    let mut bench = Bench::beside(in_use);
    bench.input(Input::Unreadable(1));
    let mut events = events(&service("a", "10.96.0.1", ""));
    events.extend([Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice].map(Event::Synced));
    bench.input(Input::Events(events));
    bench
}

#[test]
fn rules_of_an_earlier_run_wait_for_every_file() {
    for in_use in [|family| Ok(family == Family::V6), |_| Err(io::ErrorKind::TimedOut.into())] {
        let mut bench = broken_start(in_use);
        assert!(bench.taken().iter().all(Option::is_none));
        let waits =
            |bench: &Bench| bench.core.engines.iter().all(|engine| engine.pulse.waiting(Instant::now()).is_some());
        assert!(waits(&bench));
        bench.upsert(&service("b", "10.96.0.2", ""));
        bench.input(Input::Unreadable(2));
        bench.input(Input::Addresses(vec!["10.0.0.8".parse().unwrap()]));
        assert!(bench.taken().iter().all(Option::is_none));
        // Everything is handed over at once, with the file's objects.
        bench.core.take(Input::Unreadable(0));
        bench.upsert(&service("c", "10.96.0.3", ""));
        assert_eq!(ids(bench.taken()[0].as_ref()), [UnitId::Base, id("a"), id("b"), id("c")]);
        // From then on there is a last good state.
        bench.input(Input::Unreadable(1));
        bench.upsert(&service("d", "10.96.0.4", ""));
        assert_eq!(ids(bench.taken()[0].as_ref()), [id("d")]);
    }
}

#[test]
fn where_nothing_serves_a_broken_file_keeps_nobody_waiting() {
    let bench = broken_start(|_| Ok(false));
    assert_eq!(ids(bench.taken()[0].as_ref()), [UnitId::Base, id("a")]);
}

#[test]
fn a_change_hands_over_what_changed() {
    let manifest = service("a", "10.96.0.1", "") + &service("b", "10.96.0.2", "") + &slice("a", "10.1.0.1", "node");
    let mut bench = Bench::started(&manifest);
    bench.upsert(&slice("a", "10.1.0.2", "node"));
    let taken = bench.taken();
    let delta = taken[0].as_ref().unwrap();
    assert!(delta.context.is_none());
    assert_eq!(ids(Some(delta)), [id("a")]);
    let Some(unit) = &delta.units[&id("a")] else { panic!("gone") };
    let Unit::Service(state) = &**unit else { panic!("{unit:?}") };
    assert_eq!(state.ports[0].cluster.0[0].address.to_string(), "10.1.0.2");
    bench.upsert(&slice("a", "10.1.0.2", "node"));
    assert!(bench.taken().iter().all(Option::is_none));
    bench.input(Input::Events(vec![Event::Delete(Kind::Service, ObjectName::new("default", "a"))]));
    assert!(bench.taken()[0].as_ref().unwrap().units[&id("a")].is_none());
}

#[test]
fn a_batch_is_one_decision() {
    let mut bench = Bench::started(&service("a", "10.96.0.1", ""));
    let mut batch = vec![Event::Delete(Kind::Service, ObjectName::new("default", "a"))];
    batch.extend(events(&service("b", "10.96.0.1", "")));
    bench.input(Input::Events(batch));
    assert_eq!(ids(bench.taken()[0].as_ref()), [id("a"), id("b")]);
}

#[test]
fn the_first_affinity_changes_the_base() {
    let mut bench = Bench::started(&service("a", "10.96.0.1", ""));
    bench.upsert(&service("a", "10.96.0.1", "  sessionAffinity: ClientIP\n"));
    let taken = bench.taken();
    assert_eq!(ids(taken[0].as_ref()), [UnitId::Base, id("a")]);
    assert_eq!(ids(taken[1].as_ref()), [id("a")]);
}

#[test]
fn a_context_change_reaches_every_service() {
    let mut bench = Bench::started(&(service("a", "10.96.0.1", "") + &service("b", "10.96.0.2", "")));
    let node = "apiVersion: v1\nkind: Node\nmetadata:\n  name: node\n  labels: {topology.kubernetes.io/zone: z}\n\
                status: {addresses: [{type: InternalIP, address: 10.0.0.9}]}\n";
    bench.upsert(node);
    let taken = bench.taken();
    let delta = taken[0].as_ref().unwrap();
    assert_eq!(delta.context.as_ref().unwrap().zone.as_deref(), Some("z"));
    assert_eq!(ids(Some(delta)), [id("a"), id("b")]);
    // Other nodes' objects have no effect.
    bench.upsert(&node.replace("name: node\n", "name: other\n"));
    assert!(bench.taken().iter().all(Option::is_none));
}

/// A Node with these addresses and pod ranges.
fn node_of(addresses: &[&str], ranges: &str) -> String {
    let addresses: Vec<String> =
        addresses.iter().map(|address| format!("{{type: InternalIP, address: '{address}'}}")).collect();
    format!("{NODE}spec: {{podCIDRs: [{ranges}]}}\nstatus: {{addresses: [{}]}}\n", addresses.join(", "))
}

/// A dual-stack Service.
fn dual(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  clusterIP: 10.96.0.1\n  \
         clusterIPs: [10.96.0.1, 'fd00:96::1']\n  ipFamilies: [IPv4, IPv6]\n  ports: [{{port: 80}}]\n---\n"
    )
}

#[test]
fn pod_ranges_are_followed_in_their_family() {
    let mut bench = Bench::started(&dual("a"));
    bench.core.settings.detect_local = DetectLocal::NodeCidr;
    let [v4, other_v4, v6] = ["10.244.1.0/24", "10.244.2.0/24", "fd00:10:244:1::/64"];
    for (ranges, wanted) in [
        (v4.to_owned(), [Some(v4), None]),
        (format!("{v4}, '{v6}'"), [None, Some(v6)]),
        (format!("{other_v4}, '{v6}'"), [Some(other_v4), None]),
    ] {
        bench.upsert(&node_of(&["10.0.0.9"], &ranges));
        for (delta, range) in bench.taken().iter().zip(wanted) {
            let found = delta.as_ref().map(|delta| delta.context.as_ref().unwrap().local.clone().unwrap());
            assert_eq!(found, range.map(|range| LocalDetector::Cidr(range.parse().unwrap())), "{ranges}");
            assert_eq!(ids(delta.as_ref()), range.map(|_| id("a")).into_iter().collect::<Vec<_>>(), "{ranges}");
        }
    }
}

#[test]
fn an_address_of_one_family_is_nothing_to_the_other() {
    let mut bench = Bench::started(&(dual("a") + &node_of(&["10.0.0.9", "2001:db8::9"], "")));
    bench.upsert(&node_of(&["10.0.0.9", "2001:db8::8"], ""));
    let [None, Some(v6)] = &bench.taken()[..] else { panic!("for IPv6 alone") };
    assert_eq!(v6.context.as_ref().unwrap().node_ip, Some("2001:db8::8".parse().unwrap()));
    assert_eq!(ids(Some(v6)), [id("a")]);
    bench.upsert(&node_of(&["10.0.0.8", "2001:db8::8"], ""));
    let [Some(v4), None] = &bench.taken()[..] else { panic!("for IPv4 alone") };
    assert_eq!(v4.context.as_ref().unwrap().node_ip, Some("10.0.0.8".parse().unwrap()));
    assert_eq!(ids(Some(v4)), [UnitId::Base, id("a")]);
}

#[test]
fn node_addresses_come_to_a_profile_that_lists_them() {
    let mut bench = Bench::started(&(dual("a") + &node_of(&["10.0.0.9"], "")));
    bench.core.profile.lists_node_addresses = true;
    bench.core.settings.node_port_addresses = NodePortSelection::Cidrs(Vec::new());
    let addresses = |list: &[&str]| -> Vec<IpAddr> { list.iter().map(|address| address.parse().unwrap()).collect() };
    bench.input(Input::Addresses(addresses(&["10.0.0.9", "10.0.0.7", "2001:db8::9", "127.0.0.1"])));
    for (delta, wanted) in bench.taken().iter().zip([&["10.0.0.7", "10.0.0.9"][..], &["2001:db8::9"]]) {
        let delta = delta.as_ref().unwrap();
        assert_eq!(*delta.context.as_ref().unwrap().node_addresses, *addresses(wanted));
        assert!(ids(Some(delta)).contains(&id("a")));
    }
    bench.input(Input::Addresses(addresses(&["10.0.0.9", "10.0.0.7", "127.0.0.1"])));
    let [None, Some(v6)] = &bench.taken()[..] else { panic!("for IPv6 alone") };
    assert!(v6.context.as_ref().unwrap().node_addresses.is_empty());
}

#[test]
fn what_is_wrong_in_one_family_stays_known_when_the_other_changes() {
    let contested = contested("old", "10.96.0.10", 1) + "---\n" + &contested("young", "10.96.0.11", 3) + "---\n";
    let mut bench = Bench::started(&(contested + &node_of(&["10.0.0.9"], "")));
    assert_eq!(bench.told.waiting().len(), 1);
    bench.upsert(&node_of(&["10.0.0.9", "2001:db8::8"], ""));
    assert!(bench.taken()[0].is_none());
    bench.upsert(&slice("young", "10.244.1.1", "node"));
    assert_eq!(bench.told.waiting(), [], "it was told before");
}

#[test]
fn local_addresses_change_the_stand_in_and_the_base() {
    let mut bench = Bench::started(&service("a", "10.96.0.1", ""));
    bench.input(Input::Addresses(vec!["10.0.0.8".parse().unwrap()]));
    let taken = bench.taken();
    let delta = taken[0].as_ref().unwrap();
    assert_eq!(delta.context.as_ref().unwrap().node_ip, Some("10.0.0.8".parse().unwrap()));
    assert_eq!(ids(Some(delta)), [UnitId::Base, id("a")]);
    bench.input(Input::Addresses(vec!["10.0.0.8".parse().unwrap()]));
    assert!(bench.taken().iter().all(Option::is_none));
}

#[test]
fn a_draining_node_is_not_eligible() {
    let mut bench = Bench::started("");
    assert!(bench.eligible.load(Ordering::Relaxed));
    let node = |more: &str| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: node}}\nspec: {{{more}}}\n");
    bench.upsert(&node("taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]"));
    assert!(!bench.eligible.load(Ordering::Relaxed));
    bench.upsert(&node(""));
    assert!(bench.eligible.load(Ordering::Relaxed));
}

#[test]
fn changes_are_counted() {
    let mut bench = Bench::started(&service("a", "10.96.0.1", ""));
    let total = |bench: &Bench| (bench.metrics.service_changes_total.get(), bench.metrics.endpoint_changes_total.get());
    // Once per family.
    assert_eq!(total(&bench), (2, 0));
    let later = "annotations: {endpoints.kubernetes.io/last-change-trigger-time: '2999-01-01T00:00:00Z'}\n  labels:";
    let triggered = slice("a", "10.1.0.1", "node").replacen("labels:", later, 1);
    bench.upsert(&triggered);
    assert_eq!(total(&bench), (2, 1));
    bench.upsert(&triggered);
    assert_eq!(total(&bench), (2, 1));
    let reports = bench.reports.take();
    let [Report::Changed { services: 1, slices: 1 }, Report::Triggered { service, family, .. }] = &reports[..] else {
        panic!("{reports:?}")
    };
    assert_eq!((service, *family), (&ObjectName::new("default", "a"), Family::V4));
    bench.upsert(&triggered.replace("2999", "1999"));
    // Triggered before this process began.
    assert!(matches!(bench.reports.take()[..], [Report::Changed { services: 0, slices: 1 }]));
}

#[test]
fn services_without_local_endpoints_are_counted() {
    let local = service("a", "10.96.0.1", "  internalTrafficPolicy: Local\n");
    let mut bench = Bench::started(&local);
    let count = |bench: &Bench, policy| bench.metrics.no_local_endpoints.with_label_values(&["IPv4", policy]).get();
    assert_eq!(count(&bench, "internal"), 0);
    bench.upsert(&slice("a", "10.1.0.1", "other"));
    assert_eq!((count(&bench, "internal"), count(&bench, "external")), (1, 0));
    bench.upsert(&slice("a", "10.1.0.1", "node"));
    assert_eq!(count(&bench, "internal"), 0);
    bench.upsert(&slice("a", "10.1.0.1", "other"));
    bench.input(Input::Events(vec![Event::Delete(Kind::Service, ObjectName::new("default", "a"))]));
    assert_eq!(count(&bench, "internal"), 0);
}

#[test]
fn diagnostics_follow_the_objects() {
    let mut bench = Bench::started(&service("a", "10.96.0.1", "  externalIPs: [nonsense]\n"));
    let topic = Topic::Service(ObjectName::new("default", "a"));
    assert!(bench.core.diagnostic_log.has(&topic));
    bench.upsert(&service("a", "10.96.0.1", ""));
    assert!(!bench.core.diagnostic_log.has(&topic));
    let orphan = slice("a", "10.1.0.1", "node").replace("kubernetes.io/service-name: a", "a: a");
    bench.upsert(&orphan);
    assert!(bench.core.diagnostic_log.has(&Topic::Orphans));
    bench.input(Input::Events(vec![Event::Delete(Kind::EndpointSlice, ObjectName::new("default", "a-x"))]));
    assert!(!bench.core.diagnostic_log.has(&Topic::Orphans));
}

const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node}\n";
const LISTED: [Event; 3] =
    [Event::Synced(Kind::Node), Event::Synced(Kind::Service), Event::Synced(Kind::EndpointSlice)];

fn cluster(wait: NodeWait) -> Bench {
    Bench::with(|_| Ok(false), NodeFacts::Cluster(wait))
}

#[test]
fn the_node_of_a_cluster_is_waited_for() {
    let mut bench = cluster(NodeWait { address: Duration::from_secs(30), pod_range: None });
    bench.input(Input::Events(vec![Event::Synced(Kind::Service), Event::Synced(Kind::EndpointSlice)]));
    assert!(bench.taken().iter().all(Option::is_none), "the server has not told about the node");
    assert!(!bench.eligible.load(Ordering::Relaxed));
    bench.core.take(Input::Events([events(NODE), vec![Event::Synced(Kind::Node)]].concat()));
    let again = bench.core.decide().unwrap().unwrap();
    assert!(again > Instant::now() + Duration::from_secs(20), "an address is waited for");
    assert!(bench.taken().iter().all(Option::is_none));
    assert!(bench.eligible.load(Ordering::Relaxed), "load balancers may know it before");
    bench.upsert(&format!("{NODE}status: {{addresses: [{{type: InternalIP, address: 10.0.0.1}}]}}\n"));
    let taken = bench.taken();
    let context = taken[0].as_ref().and_then(|delta| delta.context.clone()).unwrap();
    assert_eq!(context.node_ip, Some("10.0.0.1".parse().unwrap()));
}

#[test]
fn without_an_address_the_wait_ends_by_itself() {
    let mut bench = cluster(NodeWait { address: Duration::from_millis(20), pod_range: None });
    bench.core.take(Input::Events(LISTED.into()));
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let Bench { core, mailboxes, eligible, .. } = bench;
    let thread = std::thread::spawn(move || Desk::new(core).run(&receiver));
    sender.send(Input::Events(Vec::new())).unwrap();
    assert_eq!(mailboxes[0].wait(Some(Duration::from_secs(10))), Arrival::Delta);
    assert!(mailboxes[0].take().is_some_and(|delta| delta.context.is_some()));
    assert!(!eligible.load(Ordering::Relaxed), "a node that the cluster doesn't know");
    drop(sender);
    assert_eq!(thread.join().unwrap(), Ok(()));
}

#[test]
fn a_pod_range_that_never_comes_ends_the_core() {
    let wait = NodeWait { address: Duration::ZERO, pod_range: Some(Duration::from_millis(20)) };
    let bench = cluster(wait);
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    sender.send(Input::Events([events(NODE), LISTED.into()].concat())).unwrap();
    let ended = Desk::new(bench.core).run(&receiver).unwrap_err();
    assert_eq!(ended.to_string(), "timeout waiting for PodCIDR allocation on node \"node\"");
}

#[test]
fn a_family_does_not_wake_up_for_what_only_the_other_serves() {
    let mut bench = Bench::started(&(service("web", "10.96.0.10", "") + &slice("web", "10.244.1.1", "node")));
    bench.upsert(&slice("web", "10.244.1.2", "node"));
    let [Some(v4), None] = &bench.taken()[..] else { panic!("for IPv4 only") };
    assert!(v4.units.get(&id("web")).is_some_and(Option::is_some));
    // From one family to the other: both get a delta.
    bench.upsert(&service("web", "fd00::10", ""));
    let [Some(v4), Some(v6)] = &bench.taken()[..] else { panic!("for both") };
    assert!(v4.units.get(&id("web")).is_some_and(Option::is_none));
    assert!(v6.units.get(&id("web")).is_some_and(Option::is_some));
    bench.upsert(&slice("web", "fd00::1:1", "node"));
    assert!(matches!(&bench.taken()[..], [None, Some(_)]));
    // No family serves it, but the change must be acknowledged.
    bench.upsert(&service("web", "fd00::10", "  type: ExternalName\n"));
    assert!(bench.taken().iter().all(Option::is_some));
    bench.upsert(&slice("web", "fd00::1:2", "node"));
    assert!(bench.taken().iter().all(Option::is_some));
}

/// SCTP is not relayed: no engine has such a unit, and one of them acknowledges the change of its endpoints.
#[test]
fn a_change_of_what_the_mode_does_not_serve_is_acknowledged() {
    let sctp = |manifest: &str| manifest.replace("port: 80}", "port: 80, protocol: SCTP}");
    let slice = |address| slice("web", address, "node").replace("protocol: TCP", "protocol: SCTP");
    for (profile, is_served) in [(Profile::NFTABLES, true), (Profile::USERSPACE, false)] {
        let mut bench = Bench::new();
        bench.core.profile = profile;
        let mut first = events(&(sctp(&service("web", "10.96.0.10", "")) + &slice("10.244.1.1")));
        first.extend([Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice].map(Event::Synced));
        bench.input(Input::Events(first));
        bench.taken();
        bench.upsert(&slice("10.244.1.2"));
        let taken = bench.taken();
        let units: Vec<_> = taken.iter().flatten().filter_map(|delta| delta.units.get(&id("web"))).collect();
        assert!(!units.is_empty() && units.iter().all(|unit| unit.is_some() == is_served), "{profile:?}: {units:?}");
    }
}

/// A service of this uid and age with an external IP; the lower the age, the older it is.
fn contested(name: &str, ip: &str, age: u8) -> String {
    let more = format!(
        "metadata: {{name: {name}, uid: {}, creationTimestamp: '2024-05-0{age}T10:00:00Z'}}",
        uid_of(age).unwrap()
    );
    service(name, ip, "  externalIPs: [192.0.2.1]\n").replace(&format!("metadata: {{name: {name}}}"), &more)
}

fn uid_of(age: u8) -> Option<Uid> {
    Uid::parse(&format!("00000000-0000-4000-8000-00000000000{age}"))
}

#[test]
fn who_loses_an_address_is_told_once_and_again_when_it_happens_again() {
    let mut bench = Bench::started(&contested("old", "10.96.0.10", 1));
    assert_eq!(bench.told.waiting(), []);
    bench.upsert(&contested("young", "10.96.0.11", 3));
    let told = bench.told.waiting();
    let [event] = &told[..] else { panic!("{told:?}") };
    assert_eq!(event.regarding, Regarding::Service(ObjectName::new("default", "young"), uid_of(3)));
    assert_eq!((event.reason, event.action, event.level), ("FrontendConflict", "Serve", Level::Warning));
    // The loser's own field and address, and nothing of the winner: neither its name nor its other addresses.
    let note = event.note();
    assert!(note.starts_with("spec.externalIPs[0]: ") && note.contains("192.0.2.1"), "{note}");
    assert!(!note.contains("old") && !note.contains("10.96.0.10"), "{note}");
    // no further Event as long as the conflict stays
    bench.upsert(&slice("young", "10.244.1.1", "node"));
    bench.upsert(&slice("old", "10.244.1.2", "node"));
    assert_eq!(bench.told.waiting(), []);
    // another one wins over both, so both lose to it
    bench.upsert(&contested("ancient", "10.96.0.12", 0).replace("2024-05-00", "2023-05-01"));
    let losers: Vec<_> = bench.told.waiting().into_iter().map(|event| event.regarding).collect();
    assert!(losers.contains(&Regarding::Service(ObjectName::new("default", "old"), uid_of(1))), "{losers:?}");
    // without the winners it is served, and another lost conflict is a new Event
    let gone = ["ancient", "old"].map(|name| Event::Delete(Kind::Service, ObjectName::new("default", name)));
    bench.input(Input::Events(gone.into()));
    assert_eq!(bench.told.waiting(), []);
    bench.upsert(&contested("old", "10.96.0.10", 1));
    assert_eq!(bench.told.waiting(), told);
}

#[test]
fn what_could_harm_the_node_or_lets_nobody_in_is_an_event() {
    let mut bench = Bench::started("");
    let more = "  type: LoadBalancer\n  externalIPs: [127.0.0.1, 169.254.169.254]\n  loadBalancerSourceRanges: [everybody]\n\
                status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}\n";
    bench.upsert(&service("web", "10.96.0.10", more));
    bench.upsert(&slice("web", "127.0.0.1", "node"));
    let told = bench.told.waiting();
    let said: Vec<_> = told.iter().map(|event| (event.reason, event.note())).collect();
    assert_eq!(
        said,
        [
            ("AddressNotAllowed", "spec.externalIPs[0]: 127.0.0.1 is a loopback address: not served (1 more like it)"),
            ("InvalidSourceRange", "spec.loadBalancerSourceRanges[0]: \"everybody\" is no range: it admits no client"),
            (
                "AddressNotAllowed",
                "EndpointSlice web-x: endpoints[].addresses[0]: 127.0.0.1 is a loopback address: not used as an endpoint"
            ),
        ]
    );
    let web = Regarding::Service(ObjectName::new("default", "web"), None);
    assert!(told.iter().all(|event| event.regarding == web && event.level == Level::Warning));
    // Unchanged diagnostics cause no further Event.
    bench.upsert(&service("web", "10.96.0.10", more));
    assert_eq!(bench.told.waiting(), []);
}

/// The kernel half of a family finds a scheduler missing: its Services get the configured one, and an Event, until it is there.
#[test]
fn a_missing_scheduler_is_replaced_and_told() {
    let mut bench = Bench::started("");
    bench.core.profile = Profile::IPVS;
    let annotated = service("web", "10.96.0.10", "")
        .replace("metadata: {", "metadata: {annotations: {ferry.io/ipvs-scheduler: wlc}, ");
    bench.upsert(&(annotated + "---\n" + &slice("web", "10.244.0.1", "node")));
    let scheduler = |bench: &Bench| {
        let [Some(delta), _] = &bench.taken()[..] else { panic!("nothing for IPv4") };
        let unit = delta.units.values().flatten().find_map(|unit| match &**unit {
            Unit::Service(state) => Some(state.clone()),
            Unit::Base(_) => None,
        });
        let context = bench.core.engines[0].context.clone().unwrap();
        unit.unwrap().ports[0].scheduler(&context)
    };
    assert_eq!(scheduler(&bench), Scheduler::Wlc);
    assert_eq!(bench.told.waiting(), []);
    let advice = "run `modprobe -- ip_vs_wlc`";
    let missing = |list: &[Scheduler]| Input::MissingSchedulers {
        family: Family::V4,
        missing: list.iter().map(|scheduler| (*scheduler, advice.to_owned())).collect(),
    };
    bench.input(missing(&[Scheduler::Wlc]));
    assert_eq!(scheduler(&bench), Scheduler::Rr);
    let told = bench.told.waiting();
    assert!(told.len() == 1 && told[0].reason == "SchedulerMissing" && told[0].note().contains(advice), "{told:?}");
    bench.input(missing(&[Scheduler::Wlc]));
    assert!(bench.taken().iter().all(Option::is_none), "known");
    bench.input(missing(&[]));
    assert_eq!(scheduler(&bench), Scheduler::Wlc);
}

/// An external IP becomes an address of this node, and so a node port's.
#[test]
fn an_address_that_comes_to_the_node_brings_its_node_ports() {
    const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node}\nstatus: {addresses: [{type: InternalIP, address: 10.0.0.8}]}\n---\n";
    let external = service("external", "10.96.0.10", "  externalIPs: [10.0.0.8]\n").replace("port: 80", "port: 30080");
    let with_port =
        service("port", "10.96.0.11", "  type: NodePort\n").replace("port: 80", "port: 80, nodePort: 30080");
    let mut bench = Bench::started(&format!("{NODE}{external}{with_port}"));
    let frontends = |delta: &Option<Delta>, name: &str| -> Option<usize> {
        match &**delta.as_ref()?.units.get(&id(name))?.as_ref()? {
            Unit::Service(state) => Some(state.ports[0].frontends.len()),
            Unit::Base(_) => None,
        }
    };
    let address = |text: &str| Input::Addresses(vec![text.parse().unwrap()]);
    bench.input(address("10.0.0.8"));
    assert_eq!(frontends(&bench.taken()[0], "external"), Some(1), "the cluster IP alone");
    assert_eq!(bench.told.waiting().iter().map(|event| event.reason).collect::<Vec<_>>(), ["FrontendConflict"]);
    bench.input(address("10.0.0.9"));
    assert_eq!(frontends(&bench.taken()[0], "external"), Some(2));
    // A Service without such an address isn't resolved again.
    bench.upsert(&service("other", "10.96.0.12", ""));
    assert!(bench.taken()[0].is_some());
    bench.input(address("10.0.0.8"));
    assert_eq!(ids(bench.taken()[0].as_ref()), [UnitId::Base, id("external"), id("port")]);
}

/// The node ports of a family stay where they were when the Node loses its address.
#[test]
fn a_node_that_loses_its_address_opens_no_other() {
    let node = |addresses: &str| {
        format!("apiVersion: v1\nkind: Node\nmetadata: {{name: node}}\nstatus: {{addresses: [{addresses}]}}\n---\n")
    };
    let both = "{type: InternalIP, address: 10.0.0.9}, {type: InternalIP, address: 'fd00::9'}";
    let mut bench = Bench::started(&node(both));
    bench.input(Input::Addresses(
        ["10.0.0.9", "10.0.0.10", "fd00::9", "fd00::10"].map(|text| text.parse().unwrap()).into(),
    ));
    let at = |text: &str| NodePortAddresses::Only(vec![text.parse().unwrap()]);
    let bases = |bench: &Bench| -> Vec<NodePortAddresses> {
        bench.core.engines.iter().map(|engine| engine.base.as_ref().unwrap().node_ports.clone()).collect()
    };
    assert_eq!(bases(&bench), [at("10.0.0.9"), at("fd00::9")]);
    for addresses in ["{type: InternalIP, address: 10.0.0.9}", "", "{type: Hostname, address: node}"] {
        let log = crate::logging::logged(0, || bench.upsert(&node(addresses)));
        assert_eq!(bases(&bench), [at("10.0.0.9"), at("fd00::9")], "{addresses}");
        assert_eq!(log.contains("any more"), addresses.is_empty() || addresses.contains("InternalIP"), "{log}");
    }
    assert!(bench.taken().iter().flatten().all(|delta| delta.context.is_none()), "nothing has changed");
}

#[test]
fn what_is_only_written_wrong_is_no_event() {
    let mut bench = Bench::started("");
    bench.upsert(&service("web", "10.96.0.10", "  externalIPs: [nonsense]\n"));
    assert_eq!(bench.told.waiting(), []);
}

#[test]
fn failures_of_health_checks_are_told_with_the_uid() {
    let mut bench = Bench::started(&contested("web", "10.96.0.10", 4));
    for (name, uid) in [("web", uid_of(4)), ("gone", None)] {
        let service = ObjectName::new("default", name);
        bench.input(Input::HealthCheckFailed { service: service.clone(), note: "in use".to_owned() });
        assert_eq!(bench.told.waiting(), [KubeEvent::health_check_failed(&service, uid, "in use")]);
    }
}

#[test]
fn problems_of_the_node_are_events_before_and_after_the_start() {
    let warning = |note: &str| {
        let problem = NodeProblem::ForwardPolicyDrop;
        Input::NodeWarning(NodeWarning { problem, family: Family::V4, note: Some(note.to_owned()) })
    };
    let event = |note: &str| KubeEvent::node_warning("node", "ForwardPolicyDrop", &format!("IPv4: {note}"));
    let mut bench = Bench::new();
    bench.input(warning("dropped"));
    assert_eq!(bench.told.waiting(), [event("dropped")]);
    let mut bench = Bench::started("");
    for (note, events) in [("dropped", vec![event("dropped")]), ("dropped", vec![]), ("lost", vec![event("lost")])] {
        bench.input(warning(note));
        assert_eq!(bench.told.waiting(), events);
    }
    assert!(bench.taken().iter().all(Option::is_none), "no engine is woken");
}

#[test]
fn a_source_hands_over_on_its_own_thread() {
    let Bench { core, mailboxes, .. } = Bench::new();
    let (sender, inputs) = std::sync::mpsc::sync_channel(1);
    let sink = crate::source::Sink::direct(Desk::new(core), sender);
    let mut batch = events(&service("a", "10.96.0.1", ""));
    batch.extend([Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice].map(Event::Synced));
    sink.deliver(batch).unwrap();
    assert!(mailboxes[0].take().is_some_and(|delta| delta.context.is_some()));
    assert!(inputs.try_recv().is_err(), "the thread of the core need not wake up");
}

#[test]
fn a_source_leaves_waiting_to_the_thread_of_the_core() {
    let Bench { core, .. } = cluster(NodeWait { address: Duration::from_secs(60), pod_range: None });
    let (sender, inputs) = std::sync::mpsc::sync_channel(1);
    let sink = crate::source::Sink::direct(Desk::new(core), sender);
    sink.deliver(LISTED.into()).unwrap();
    assert_eq!(inputs.try_recv(), Ok(Input::Undecided), "there is a moment at which to decide again");
    drop(inputs);
    assert!(sink.deliver(LISTED.into()).is_err(), "it has ended");
}

/// Large batches go to the core's thread, and no later batch is applied before them.
#[test]
fn a_small_batch_does_not_overtake_a_large_one() {
    let Bench { core, mailboxes, .. } = Bench::new();
    let (sender, inputs) = std::sync::mpsc::sync_channel(8);
    let desk = Desk::new(core);
    let sink = crate::source::Sink::direct(desk.clone(), sender);
    let mut first = events(&service("a", "10.96.0.1", ""));
    first.extend([Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice].map(Event::Synced));
    sink.deliver(first).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let bring = |events: Vec<Event>| runtime.block_on(sink.deliver_in_turn(events)).unwrap();
    let large: Vec<Event> = (0..100).flat_map(|_| events(&service("a", "10.96.0.2", ""))).collect();
    bring(events(&service("b", "10.96.1.1", "")));
    assert_eq!(inputs.try_iter().count(), 0, "a small one is applied at once");
    bring(large);
    bring(events(&service("a", "10.96.0.3", "")));
    let queued: Vec<Input> = inputs.try_iter().collect();
    assert_eq!(queued.len(), 2, "the small one waits behind the large one");
    let (replay, inputs) = std::sync::mpsc::sync_channel(8);
    queued.into_iter().for_each(|input| replay.send(input).unwrap());
    drop(replay);
    desk.run(&inputs).unwrap();
    let delta = mailboxes[0].take().expect("something was handed over");
    let unit = delta.units[&UnitId::Service(ObjectName::new("default", "a"))].as_deref();
    let Some(Unit::Service(state)) = unit else { panic!("{unit:?}") };
    let FrontendAddr::Vip(address, _) = state.ports[0].frontends[0].at else { panic!("{state:?}") };
    assert_eq!(address.to_string(), "10.96.0.3", "the last one counts");
    runtime.block_on(sink.deliver_in_turn(events(&service("b", "10.96.1.2", "")))).unwrap();
    assert!(inputs.try_recv().is_err(), "and then small ones are applied at once again");
}

#[test]
fn a_change_is_signalled_once_until_it_is_received() {
    let mut bench = Bench::new();
    bench.upsert(&service("web", "10.96.0.1", ""));
    assert!(bench.signals.try_recv().is_err(), "no list is complete");
    let synced =
        || Input::Events([Kind::Node, Kind::ServiceCidr, Kind::Service, Kind::EndpointSlice].map(Event::Synced).into());
    bench.input(synced());
    bench.upsert(&service("more", "10.96.0.2", ""));
    assert!(bench.signals.try_recv().is_ok(), "the start, and the change");
    assert!(bench.signals.try_recv().is_err());
    bench.upsert(&service("more", "10.96.0.2", ""));
    assert!(bench.signals.try_recv().is_err(), "nothing changed");
    bench.upsert(&slice("web", "10.244.0.1", "node"));
    assert!(bench.signals.try_recv().is_ok());
    bench.input(synced());
    assert!(bench.signals.try_recv().is_ok(), "a complete list, also without a change");
}
