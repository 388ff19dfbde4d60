//! The engine on the real kernel, each test in a network namespace of its own.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panic")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{self, everything, pool, service};
use ferry_kernel::netns::Namespace;
use ferry_kernel::nft::NftSocket;
use ferry_model::{Context, FrontendAddr, FrontendKind, LocalDetector, Pool, SourceRanges};
use ferry_plane::mailbox::{Arrival, Mailbox};
use ferry_plane::{CommitError, Delta, Extent, Kernel, Served, SyncEngine, Unit, UnitId};
use ferry_plane_nftables::leftovers::{self, Leftovers};
use ferry_plane_nftables::names::PortId;
use ferry_plane_nftables::{NftKey, NftObject, NftablesCommitLock, NftablesEngine, NftablesKernel, engine, render};
use ferry_ruleset::sources::{Ranges, SourcesId};

fn inside(test: impl Fn(Family) + Send + Sync) {
    for family in Family::ALL {
        Namespace::new().expect("root and CAP_SYS_ADMIN are needed").run(|| test(family)).unwrap();
    }
}

fn open(family: Family) -> NftablesEngine {
    engine(family, NftablesCommitLock::default()).unwrap()
}

fn started(family: Family) -> NftablesEngine {
    let mut engine = open(family);
    engine.offer(everything(family));
    good(engine.sync(Instant::now()));
    engine
}

fn nft(input: &str, arguments: &[&str]) -> String {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the nft tool is needed");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments:?}: {} {error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn read_back(family: Family) -> Vec<NftObject> {
    read_back_of(family, &Extent::All)
}

fn read_back_of(family: Family, extent: &Extent<NftKey>) -> Vec<NftObject> {
    let mut kernel = NftablesKernel::open(family, NftablesCommitLock::default()).unwrap();
    let mut objects = kernel.read_back(extent).unwrap();
    objects.sort();
    objects
}

/// Asserts that both lists are equal; prints only the differences.
fn assert_same(found: &[NftObject], wanted: &[NftObject], when: &str) {
    let extra: Vec<_> = found.iter().filter(|object| !wanted.contains(object)).collect();
    let missing: Vec<_> = wanted.iter().filter(|object| !found.contains(object)).collect();
    assert!(extra.is_empty() && missing.is_empty(), "{when}: extra {extra:?}, missing {missing:?}");
}

/// The source ranges of `states::everything`.
fn ranges(family: Family) -> [IpNet; 2] {
    [states::net(family, "10.0.0.0/9", "fd00:77::/64"), states::net(family, "203.0.113.7/32", "fd00:cc::7/128")]
}

fn restricted_to(networks: &[IpNet]) -> SourcesId {
    Ranges::new(networks).id()
}

/// One of the services of `states::everything`, with other source ranges if it has some.
fn with_ranges(family: Family, name: &str, networks: &[IpNet]) -> Delta {
    let mut delta = everything(family);
    delta.units.retain(|id, _| id.to_string() == format!("service demo/{name}"));
    for unit in delta.units.values_mut().flatten() {
        if let Unit::Service(state) = Arc::make_mut(unit) {
            let frontends = state.ports.iter_mut().flat_map(|port| &mut port.frontends);
            for frontend in frontends.filter(|frontend| frontend.sources != SourceRanges::Any) {
                frontend.sources = SourceRanges::Only(networks.into());
            }
        }
    }
    assert_eq!(delta.units.len(), 1, "{name}");
    delta
}

/// The table as the tool names it.
fn table(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip kube-proxy",
        Family::V6 => "ip6 kube-proxy",
    }
}

fn generation() -> u32 {
    NftSocket::open().unwrap().generation().unwrap()
}

#[test]
fn what_is_written_reads_back() {
    inside(|family| {
        let engine = started(family);
        let mut wanted = engine.objects();
        wanted.dedup();
        assert_same(&read_back(family), &wanted, "");
    });
}

#[test]
fn keys_read_back_as_everything_does() {
    inside(|family| {
        let _engine = started(family);
        let all = read_back(family);
        // With 86 elements of one set, which are read by a dump of the set, and with 6, which are read one by one.
        for step in [1, 3, 50] {
            let wanted: Vec<NftObject> = all.iter().step_by(step).cloned().collect();
            let keys = wanted.iter().map(ferry_plane::Object::key).collect();
            let found = read_back_of(family, &Extent::Keys(keys));
            assert_eq!(found.len(), wanted.len());
            assert_same(&found, &wanted, &format!("one of {step}"));
        }
        nft(&format!("flush map {} endpoints", table(family)), &["-f", "-"]);
        let keys: Vec<NftKey> = all.iter().map(ferry_plane::Object::key).collect();
        let left = read_back(family);
        assert!(left.len() < all.len(), "{} objects", left.len());
        assert_same(&read_back_of(family, &Extent::Keys(keys)), &left, "without the endpoints");
    });
}

/// An engine with everything that nft can load: nft 1.0.6 can't load the rule that records an endpoint for IPv6 clients.
fn started_loadable(family: Family) -> NftablesEngine {
    let mut delta = everything(family);
    if family == Family::V6 {
        for unit in delta.units.values_mut().flatten() {
            match Arc::make_mut(unit) {
                Unit::Service(state) => state.ports.iter_mut().for_each(|port| port.affinity = None),
                Unit::Base(base) => base.affinity = false,
            }
        }
    }
    let mut engine = open(family);
    engine.offer(delta);
    good(engine.sync(Instant::now()));
    engine
}

#[test]
fn the_listing_loads_back_to_the_same() {
    inside(|family| {
        let engine = started_loadable(family);
        let listing = nft("", &["list", "ruleset"]);
        let before = read_back(family);
        assert!(before.len() > 400, "{} objects", before.len());
        nft(&format!("flush ruleset\n{listing}"), &["-f", "-"]);
        assert_eq!(nft("", &["list", "ruleset"]), listing);
        assert_same(&read_back(family), &before, "loaded");
        drop(engine);
    });
}

#[test]
fn the_rendered_text_is_what_is_written() {
    inside(|family| {
        let engine = started_loadable(family);
        let objects: Vec<NftObject> = engine.objects();
        let text = render::ruleset(family, &objects);
        nft(&format!("flush ruleset\n{text}"), &["-f", "-"]);
        let mut wanted = objects;
        wanted.dedup();
        assert_same(&read_back(family), &wanted, "loaded");
    });
}

#[test]
fn a_restart_commits_nothing() {
    inside(|family| {
        drop(started(family));
        let before = generation();
        let outcome = good({
            let mut engine = open(family);
            engine.offer(everything(family));
            engine.sync(Instant::now())
        });
        assert_eq!(outcome.ops, 0);
        assert_eq!(generation(), before);
    });
}

#[test]
fn slots_are_adopted_in_the_order_found() {
    inside(|family| {
        let mut engine = started(family);
        let ports = |last: &[u8]| {
            let vip = states::frontend(
                FrontendKind::ClusterIp,
                FrontendAddr::Vip(states::address(family, 96, 70), 80),
                states::INTERNAL,
            );
            vec![states::port(Protocol::Tcp, pool(family, last), pool(family, &[]), vec![vip])]
        };
        let delta = |last: &[u8]| Delta { context: None, units: [service("moving", ports(last))].into() };
        engine.offer(delta(&[1, 2, 3, 4]));
        good(engine.sync(Instant::now()));
        engine.offer(delta(&[2, 3, 4, 9]));
        let outcome = good(engine.sync(Instant::now()));
        // One slot.
        assert_eq!(outcome.ops, 1, "{outcome:?}");
        drop(engine);
        let mut next = open(family);
        let mut all = everything(family);
        all.merge(delta(&[2, 3, 4, 9]));
        next.offer(all);
        assert_eq!(good(next.sync(Instant::now())).ops, 0);
    });
}

#[test]
fn damage_is_noticed_and_mended() {
    inside(|family| {
        let mut engine = started(family);
        let now = Instant::now();
        assert!(!good(engine.tend(now)).worked, "our own commits are no drift");
        let table = table(family);
        let vip = states::address(family, 96, 1);
        let endpoint = states::address(family, 244, 9);
        let sources = format!("sources-{}", restricted_to(&ranges(family)));
        let restricted = format!("restricted-{}", restricted_to(&ranges(family)));
        let (range, half) = (ranges(family)[0], states::net(family, "10.0.0.0/10", "fd00:77::/65"));
        let damage = [
            format!("delete element {table} service-ips {{ {vip} . tcp . 80 }}"),
            format!(
                "delete element {table} service-ips {{ {vip} . tcp . 80 }}; add element {table} service-ips {{ {vip} . tcp . 80 : accept }}"
            ),
            format!("delete element {table} same-octet {{ 7 . 7 }}"),
            format!("delete element {table} same-octet {{ 7 . 7 }}; add element {table} same-octet {{ 7 . 8 }}"),
            format!("add element {table} cluster-ips {{ {endpoint} }}"),
            format!("flush chain {table} services"),
            format!("flush chain {table} nat-prerouting"),
            format!("insert rule {table} int-3 counter"),
            format!("flush set {table} {sources}"),
            format!("delete element {table} {sources} {{ {range} }}"),
            format!("delete element {table} {sources} {{ {range} }}; add element {table} {sources} {{ {half} }}"),
            format!("add element {table} {sources} {{ {endpoint} }}"),
            format!("flush chain {table} {restricted}"),
            format!("flush chain {table} {restricted}; delete set {table} {sources}"),
            format!("flush map {table} endpoints"),
            format!("add chain {table} stranger"),
            format!("add map {table} stranger {{ type inet_service : verdict; }}"),
            format!("delete chain {table} nat-output-late"),
            format!("chain {table} nat-prerouting {{ policy drop; }}"),
            format!("rename chain {table} unknown int-77"),
            // Its chains see no packet.
            format!("add table {table} {{ flags dormant; }}"),
            format!("delete table {table}"),
            "flush ruleset".to_owned(),
        ];
        let mut wanted = engine.objects();
        wanted.dedup();
        for (round, damage) in (1..).zip(&damage) {
            nft(damage, &["-f", "-"]);
            let noticed = now + Duration::from_secs(60 * round);
            let outcome = good(engine.tend(noticed));
            assert!(outcome.repairs > 0, "{damage}, at once: {outcome:?}");
            let strange_spare = |object: &NftObject| !ferry_plane::Object::spare(object) || wanted.contains(object);
            let found: Vec<NftObject> = read_back(family).into_iter().filter(strange_spare).collect();
            assert_same(&found, &wanted, damage);
            assert!(!good(engine.tend(noticed + Duration::from_secs(1))).worked, "{damage}");
        }
    });
}

#[test]
fn other_tables_are_none_of_our_business() {
    inside(|family| {
        let mut engine = started(family);
        good(engine.tend(Instant::now()));
        nft("add table ip neighbour; add chain ip neighbour services", &["-f", "-"]);
        assert!(!good(engine.tend(Instant::now())).worked);
    });
}

#[test]
fn a_foreign_table_is_replaced_in_one_transaction() {
    inside(|family| {
        let table = table(family);
        let upstreams = "comment \"rules for kube-proxy\"; chain filter-input { };";
        // Ids of 64 bits.
        let layout_1 = "comment \"kube-proxy by Ferry, layout 1\"; chain restricted { }; chain learn-2a90fe6d2f83c9ed { }; \
                        chain learn { jump learn-2a90fe6d2f83c9ed; }; \
                        chain nat-postrouting { type nat hook postrouting priority 100; jump learn; };";
        // One set of source ranges for all services.
        let layout_2 = "comment \"kube-proxy by Ferry, layout 2\"; chain restricted { }; \
                        map service-ips { type inet_service : verdict; elements = { 80 : goto restricted } };";
        for content in [upstreams, layout_1, layout_2] {
            nft(&format!("table {table} {{ {content} }}"), &["-f", "-"]);
            let before = generation();
            let engine = started(family);
            assert_eq!(generation(), before + 2, "the probe, and one commit");
            let mut wanted = engine.objects();
            wanted.dedup();
            assert_same(&read_back(family), &wanted, content);
            nft("", &["flush", "ruleset"]);
        }
    });
}

/// The frontends that a table serves are reported before it is replaced, for upstream's and for ours.
#[test]
fn what_a_table_served_is_told_when_it_goes() {
    inside(|family| {
        let (table, kind) = match family {
            Family::V4 => ("ip kube-proxy", "ipv4_addr"),
            Family::V6 => ("ip6 kube-proxy", "ipv6_addr"),
        };
        let [vip, node] = [(96, 77), (1, 1)].map(|(net, last)| states::address(family, net, last));
        let upstreams = format!(
            "add table {table} {{ comment \"rules for kube-proxy\"; }}
             add chain {table} service-ULMVA6XW-demo/dns/udp/dns
             add map {table} service-ips {{ type {kind} . inet_proto . inet_service : verdict; comment \"ClusterIP\"; }}
             add map {table} service-nodeports {{ type inet_proto . inet_service : verdict; }}
             add set {table} nodeport-ips {{ type {kind}; }}
             add element {table} service-ips {{ {vip} . udp . 53 : goto service-ULMVA6XW-demo/dns/udp/dns }}
             add element {table} service-nodeports {{ udp . 30053 : goto service-ULMVA6XW-demo/dns/udp/dns }}
             add element {table} nodeport-ips {{ {node} }}"
        );
        let frontend = |at| Served::Frontend(Protocol::Udp, at);
        let theirs =
            [frontend(FrontendAddr::Vip(vip, 53)), frontend(FrontendAddr::NodePort(30053)), Served::NodePorts(node)];
        nft(&upstreams, &["-f", "-"]);
        let mut engine = open(family);
        engine.offer(everything(family));
        assert_eq!(good(engine.sync(Instant::now())).unserved, theirs);
        let mut served = Vec::new();
        let objects = Box::new(engine).retire(&mut served).unwrap();
        assert!(served.len() > 4 && objects > 50, "{objects}: {served:?}");
        nft(&upstreams, &["-f", "-"]);
        served.clear();
        assert_eq!(Box::new(open(family)).retire(&mut served).unwrap(), 1);
        assert_eq!(served, theirs);
        // Without listed addresses every local one serves node ports.
        let everywhere = upstreams.replace(&format!("add element {table} nodeport-ips {{ {node} }}"), "");
        nft(&everywhere, &["-f", "-"]);
        served.clear();
        Box::new(open(family)).retire(&mut served).unwrap();
        assert_eq!(served, [theirs[0], theirs[1], Served::NodePortsEverywhere]);
    });
}

#[test]
fn a_new_context_reaches_every_rule_that_depends_on_it() {
    inside(|family| {
        let mut engine = started(family);
        let detector = Some(LocalDetector::InterfacePrefix("veth".into()));
        let context = Context { local: detector, masquerade_mark: 0x8000, ..states::context(family) };
        engine.offer(Delta { context: Some(Arc::new(context.clone())), ..Delta::default() });
        good(engine.sync(Instant::now()));
        let mut fresh = open(family);
        fresh.offer(Delta { context: Some(Arc::new(context)), ..everything(family) });
        assert_eq!(good(fresh.sync(Instant::now())).ops, 0);
    });
}

#[test]
fn units_go_without_a_trace_but_spare_parts() {
    inside(|family| {
        let mut engine = started(family);
        let mut gone = everything(family);
        for unit in gone.units.values_mut() {
            if matches!(unit.as_deref(), Some(Unit::Service(_))) {
                *unit = None;
            }
        }
        engine.offer(gone);
        good(engine.sync(Instant::now()));
        let now = Instant::now();
        for seconds in [0, 2] {
            good(engine.tend(now + Duration::from_secs(seconds)));
        }
        let left: Vec<NftObject> =
            read_back(family).into_iter().filter(|object| !ferry_plane::Object::spare(object)).collect();
        assert_eq!(left, engine.objects());
        Box::new(engine).retire(&mut Vec::new()).unwrap();
        assert_eq!(read_back(family), []);
    });
}

#[test]
fn an_affinity_map_forgets_an_endpoint_that_goes() {
    inside(|family| {
        let mut engine = started(family);
        let table = table(family);
        let id = PortId::new(&ferry_api::object::ObjectName::new("demo", "sticky"), Protocol::Tcp, "http");
        let (stays, goes) = (states::address(family, 244, 2), states::address(family, 244, 3));
        let clients = [states::address(family, 1, 1), states::address(family, 1, 2)];
        nft(
            &format!(
                "add element {table} affinity-{id} {{ {} timeout 60s : {stays} . 8080, {} timeout 60s : {goes} . 8080 }}",
                clients[0], clients[1]
            ),
            &["-f", "-"],
        );
        let mut delta = everything(family);
        delta.units.retain(|id, _| id.to_string() == "service demo/sticky");
        for unit in delta.units.values_mut().flatten() {
            let Unit::Service(state) = Arc::make_mut(unit) else { panic!("a service") };
            state.ports[0].cluster = pool(family, &[1, 2]);
        }
        engine.offer(delta);
        good(engine.sync(Instant::now()));
        let listing =
            nft("", &["list", "map", &table.replace(" kube-proxy", ""), "kube-proxy", &format!("affinity-{id}")]);
        assert!(listing.contains(&clients[0].to_string()), "{listing}");
        assert!(!listing.contains(&clients[1].to_string()), "{listing}");
    });
}

#[test]
fn changed_ranges_are_another_set() {
    inside(|family| {
        let mut engine = started(family);
        let sets = || -> Vec<SourcesId> {
            let id = |object| if let NftObject::Ranges(id, _) = object { Some(id) } else { None };
            read_back(family).into_iter().filter_map(id).collect()
        };
        // Two services share one.
        let (old, wide) = (ranges(family), [states::net(family, "10.0.0.0/8", "fd00:77::/48")]);
        assert_eq!(sets(), [restricted_to(&old)]);
        let (before, now) = (generation(), Instant::now());
        let later = |engine: &mut NftablesEngine, seconds| {
            for seconds in [seconds, seconds + 2] {
                assert!(!good(engine.tend(now + Duration::from_secs(seconds))).worked);
            }
        };
        engine.offer(with_ranges(family, "plain", &wide));
        assert!(good(engine.sync(Instant::now())).ops <= 4);
        assert_eq!(generation(), before + 2, "the set, and what leads there");
        let mut both = vec![restricted_to(&old), restricted_to(&wide)];
        both.sort();
        assert_eq!(sets(), both);
        engine.offer(with_ranges(family, "local", &wide));
        good(engine.sync(Instant::now()));
        // Packets in flight may still look up the old one.
        assert_eq!(sets(), both);
        assert_eq!(good(engine.repair(now)).repairs, 0);
        later(&mut engine, 0);
        assert_eq!(sets(), [restricted_to(&wide)]);
        // One that comes back in time stays.
        for networks in [&old[..], &wide[..]] {
            for name in ["plain", "local"] {
                engine.offer(with_ranges(family, name, networks));
            }
            good(engine.sync(Instant::now()));
        }
        later(&mut engine, 10);
        assert_eq!(sets(), [restricted_to(&wide)]);
        // No source is admitted, which needs no set.
        for name in ["plain", "local"] {
            engine.offer(with_ranges(family, name, &[]));
            good(engine.sync(Instant::now()));
        }
        later(&mut engine, 20);
        assert_eq!(sets(), []);
        let mut wanted = engine.objects();
        wanted.dedup();
        let mut found = read_back(family);
        found.retain(|object| !ferry_plane::Object::spare(object) || wanted.contains(object));
        assert_same(&found, &wanted, "changed");
    });
}

#[test]
fn very_many_ranges_read_back() {
    inside(|family| {
        let mut engine = started(family);
        let network = |number: u32| -> IpNet {
            match family {
                Family::V4 => IpNet::new(std::net::Ipv4Addr::from_bits(0x1400_0000 + 8 * number).into(), 30).unwrap(),
                Family::V6 => {
                    let bits = 0xfd00_0000_u128 << 96 | u128::from(2 * number) << 64;
                    IpNet::new(std::net::Ipv6Addr::from_bits(bits).into(), 64).unwrap()
                }
            }
        };
        let networks: Vec<IpNet> = (0..20_000).map(network).collect();
        let before = generation();
        engine.offer(with_ranges(family, "plain", &networks));
        assert!(good(engine.sync(Instant::now())).ops <= 4);
        assert_eq!(generation(), before + 2, "the set, and what leads there");
        assert!(!good(engine.tend(Instant::now())).worked);
        let mut wanted = engine.objects();
        wanted.dedup();
        assert_same(&read_back(family), &wanted, "written");
        let mut again = open(family);
        let mut all = everything(family);
        all.units.extend(with_ranges(family, "plain", &networks).units);
        again.offer(all);
        assert_eq!(good(again.sync(Instant::now())).ops, 0);
    });
}

#[test]
fn what_the_kernel_refuses_quarantines_its_service_alone() {
    inside(|family| {
        let mut engine = started(family);
        // Forwarding to an empty pool, which the model never yields: no kernel draws one of zero slots.
        let vip = states::frontend(
            FrontendKind::LoadBalancer,
            FrontendAddr::Vip(states::address(family, 96, 80), 80),
            states::EXTERNAL,
        );
        let bad = service("bad", vec![states::port(Protocol::Tcp, pool(family, &[]), pool(family, &[]), vec![vip])]);
        let good_vip = states::frontend(
            FrontendKind::ClusterIp,
            FrontendAddr::Vip(states::address(family, 96, 81), 80),
            states::INTERNAL,
        );
        let fine =
            service("fine", vec![states::port(Protocol::Tcp, pool(family, &[1]), pool(family, &[]), vec![good_vip])]);
        engine.offer(Delta { context: None, units: [bad, fine].into() });
        let outcome = engine.sync(Instant::now());
        let refused: Vec<String> = outcome.quarantined.iter().map(|(id, _)| id.to_string()).collect();
        assert_eq!(refused, ["service demo/bad"], "{outcome:?}");
        let served: Vec<String> = engine.acked().keys().map(ToString::to_string).collect();
        assert!(served.contains(&"service demo/fine".to_owned()), "{served:?} {outcome:?}");
    });
}

#[test]
fn a_set_that_cannot_be_deleted_holds_up_its_service_alone() {
    inside(|family| {
        let mut engine = started(family);
        let (keyword, table) = match family {
            Family::V4 => ("ip", "ip kube-proxy"),
            Family::V6 => ("ip6", "ip6 kube-proxy"),
        };
        let id = PortId::new(&ferry_api::object::ObjectName::new("demo", "sticky"), Protocol::Tcp, "http");
        nft(&format!("add rule {table} unknown {keyword} daddr . th dport @endpoints-{id} counter"), &["-f", "-"]);
        let now = Instant::now();
        let mut delta = everything(family);
        delta.units.retain(|id, _| ["service demo/sticky", "service demo/empty"].contains(&&*id.to_string()));
        delta.units.values_mut().for_each(|unit| *unit = None);
        engine.offer(delta);
        assert!(
            matches!(engine.sync(now).error.as_deref(), Some(CommitError::Resources(_))),
            "it may be free in a moment"
        );
        let outcome = engine.sync(now + Duration::from_millis(50));
        let waiting: Vec<String> = outcome.quarantined.iter().map(|(id, _)| id.to_string()).collect();
        assert_eq!(waiting, ["service demo/sticky"], "{outcome:?}");
        assert!(!engine.acked().keys().any(|id| id.to_string() == "service demo/empty"), "the other is gone");
        // The rule is drift; after its repair the service can be deleted, too.
        let repairs = [100, 300].map(|millis| engine.tend(now + Duration::from_millis(millis)).repairs);
        assert!(repairs.iter().sum::<usize>() > 0);
        let outcome = good(engine.tend(now + Duration::from_secs(2)));
        assert!(outcome.quarantined.is_empty(), "{outcome:?}");
        assert!(!nft("", &["list", "ruleset"]).contains(&id.to_string()));
    });
}

#[test]
fn leftovers_go_from_a_table_that_another_has_taken_over() {
    inside(|family| {
        let table = table(family);
        assert_eq!(leftovers::remove(family).unwrap(), Leftovers::NoTable);
        drop(started(family));
        assert_eq!(leftovers::remove(family).unwrap(), Leftovers::NotTakenOver);
        let taken = "flush chain T services; flush chain T nat-postrouting; flush map T service-ips;
            flush map T service-nodeports; add chain T filter-input; add chain T service-ULMVA6XW-ns1/svc1/tcp/p80";
        nft(&taken.replace('T', table).replace(";\n", "\n").replace("; ", "\n"), &["-f", "-"]);
        assert!(matches!(leftovers::remove(family).unwrap(), Leftovers::Removed(count) if count > 20));
        let mut socket = NftSocket::open().unwrap();
        let chains: Vec<String> =
            socket.chains(family, "kube-proxy").unwrap().into_iter().map(|chain| chain.name).collect();
        let mut left =
            ["nat-output", "nat-postrouting", "nat-prerouting", "reject-chain", "services"].map(String::from).to_vec();
        left.extend(["service-ULMVA6XW-ns1/svc1/tcp/p80", "filter-input"].map(String::from));
        assert!(chains.len() == left.len() && left.iter().all(|name| chains.contains(name)), "{chains:?}");
    });
}

/// The last service's VIP passes to the first one while all are pending and nothing of ours exists.
#[test]
fn after_a_flush_a_vip_passes_between_portions() {
    inside(|family| {
        let delta = |moved: bool, mark| {
            let mut delta = everything(family);
            delta.units.retain(|id, _| *id == UnitId::Base);
            for index in 0..7 {
                let last = if moved && (index == 0 || index == 6) { 6 - index } else { index };
                let at = FrontendAddr::Vip(states::address(family, 96, last + 1), 80);
                let frontends = vec![states::frontend(FrontendKind::ClusterIp, at, states::INTERNAL)];
                let port = states::port(Protocol::Tcp, pool(family, &[index + 1]), Pool::new([]), frontends);
                let (id, unit) = service(&format!("service-{index}"), vec![port]);
                delta.units.insert(id, unit);
            }
            delta.context = Some(Arc::new(Context { masquerade_mark: mark, ..states::context(family) }));
            delta
        };
        let mut engine = open(family).with_portion(3);
        engine.offer(delta(false, 0x4000));
        good(engine.sync(Instant::now()));
        nft("", &["flush", "ruleset"]);
        engine.offer(delta(true, 0x8000));
        good(engine.sync(Instant::now()));
        let mut wanted = engine.objects();
        wanted.dedup();
        assert_same(&read_back(family), &wanted, "all of it");
    });
}

/// The other family's engine may be committing at the same time.
#[test]
fn foreign_changes_are_heard_of_before_a_commit_while_the_other_family_holds_the_commit_lock() {
    inside(|family| {
        started(family);
        let commit_lock = NftablesCommitLock::default();
        let mut kernel = NftablesKernel::open(family, commit_lock.clone()).unwrap();
        kernel.prepare().unwrap();
        nft(&format!("flush chain {} services", table(family)), &["-f", "-"]);
        let (taken, has_taken) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _other = commit_lock.take();
                taken.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            });
            has_taken.recv().unwrap();
            assert!(!kernel.news().unwrap().is_empty());
        });
    });
}

/// As the executable has it: an engine for each family, and a thread that waits for what others do.
#[test]
fn a_foreign_change_wakes_the_engine_of_its_family_alone() {
    inside(|family| {
        let commit_lock = NftablesCommitLock::default();
        let mut engines = Family::ALL.map(|of| engine(of, commit_lock.clone()).unwrap());
        let receivers = engines.each_mut().map(|engine| {
            let (sender, receiver) = Mailbox::new();
            // The receiver would be closed without it.
            std::mem::forget(sender);
            engine.wake_by(&receiver.waker());
            receiver
        });
        for (engine, of) in engines.iter_mut().zip(Family::ALL) {
            engine.offer(everything(of));
            good(engine.sync(Instant::now()));
        }
        let listener = ferry_plane_nftables::listener(commit_lock).unwrap();
        std::thread::spawn(listener);
        let own = Family::ALL.iter().position(|of| *of == family).unwrap();
        let mut delta = everything(family);
        delta.units.retain(|id, unit| id.to_string().ends_with("demo/plain") && unit.take().is_some());
        engines[own].offer(delta);
        assert!(good(engines[own].sync(Instant::now())).ops > 0);
        let long = Some(Duration::from_millis(300));
        assert_eq!(receivers.each_ref().map(|receiver| receiver.wait(long)), [Arrival::Timeout; 2], "own commits");
        nft("add table inet neighbour", &["-f", "-"]);
        assert_eq!(receivers.each_ref().map(|receiver| receiver.wait(long)), [Arrival::Timeout; 2], "other tables");
        nft(&format!("flush chain {} services", table(family)), &["-f", "-"]);
        assert_eq!(receivers[own].wait(Some(Duration::from_secs(10))), Arrival::Woken);
        assert_eq!(receivers[1 - own].wait(long), Arrival::Timeout, "the other family");
        // The engine that reads the notifications wakes the other one.
        nft(&format!("flush chain {} services", table(Family::ALL[1 - own])), &["-f", "-"]);
        engines[own].kernel_mut().news().unwrap();
        assert_eq!(receivers[1 - own].wait(Some(Duration::from_secs(10))), Arrival::Woken);
        let outcomes = engines.each_mut().map(|engine| good(engine.tend(Instant::now())).repairs);
        assert_eq!(outcomes[1 - own], 1, "no proxy did it");
    });
}

#[test]
fn a_proxy_that_is_behind_looks_only_at_what_the_change_is_about() {
    inside(|family| {
        let (mut first, mut second) = (started(family), started(family));
        // Of the endpoints that are added and deleted one by one, the second engine finds the deleted ones missing already.
        for endpoints in [&[1, 10, 11, 12, 13][..], &[1, 10, 11, 12], &[1, 10, 11], &[1, 10]] {
            let mut delta = everything(family);
            delta.units.retain(|id, _| id.to_string().ends_with("demo/plain"));
            for unit in delta.units.values_mut().flatten() {
                if let Unit::Service(state) = Arc::make_mut(unit) {
                    state.ports[0].cluster = pool(family, endpoints);
                }
            }
            first.offer(delta.clone());
            good(first.sync(Instant::now()));
            second.offer(delta);
            let outcome = good(second.sync(Instant::now()));
            assert!(!outcome.full && outcome.acked.len() == 1, "{outcome:?}");
            assert!(outcome.ops == 0 || endpoints.len() == 5, "what is there already is no conflict: {outcome:?}");
        }
        let mut wanted = second.objects();
        wanted.dedup();
        wanted.retain(|object| !ferry_plane::Object::spare(object));
        let mut found = read_back(family);
        found.retain(|object| !ferry_plane::Object::spare(object));
        assert_same(&found, &wanted, "both agree");
    });
}
