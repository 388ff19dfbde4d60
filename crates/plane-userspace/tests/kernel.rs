//! The engine with a real relay on the real kernel, each test in a network namespace of its own.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{self, pool};
use ferry_kernel::netns::Namespace;
use ferry_kernel::nft::NftSocket;
use ferry_model::{FrontendAddr, FrontendKind, Pool, Profile};
use ferry_plane::{Delta, SyncEngine, UnitId};
use ferry_plane_userspace::redirect::{UserspaceCommitLock, UserspaceEngine, engine, names};
use ferry_plane_userspace::{
    DatagramEndpoints, ListenerNames, ListenerReports, PortDirectory, Relay, RelayConfig, SharedRelay,
};

fn inside(test: impl Fn(Family) + Send + Sync) {
    for family in Family::ALL {
        Namespace::new().expect("root and CAP_SYS_ADMIN are needed").run(|| test(family)).unwrap();
    }
}

/// A relay with its thread.
struct Site {
    shared: SharedRelay,
}

fn relay_with(sockets: Vec<(String, OwnedFd)>, ports: RangeInclusive<u16>) -> Site {
    let (relay, workers) = Relay::new(RelayConfig { workers: 1, ..RelayConfig::default() }).unwrap();
    let shared = SharedRelay {
        relay: Arc::new(relay),
        inheritance: Arc::default(),
        ports,
        limit_per_port: usize::MAX,
        names: ListenerNames::default(),
        directory: PortDirectory::default(),
        datagrams: DatagramEndpoints::default(),
    };
    shared.inheritance.add(sockets);
    for worker in workers {
        std::thread::spawn(move || worker.run());
    }
    Site { shared }
}

/// Nobody receives them.
fn no_reports() -> ListenerReports {
    ListenerReports(Arc::new(|_| {}))
}

fn open(family: Family, site: &Site) -> UserspaceEngine {
    let mut engine = engine(family, &UserspaceCommitLock::default(), &site.shared, no_reports()).unwrap();
    ferry_plane::Kernel::prepare(engine.kernel_mut()).unwrap();
    engine
}

/// A TCP and a UDP service, each with a cluster IP and a node port.
fn services(family: Family) -> Delta {
    let mut units = BTreeMap::new();
    for (number, name, protocol) in [(1, "web", Protocol::Tcp), (2, "dns", Protocol::Udp)] {
        let at = FrontendAddr::Vip(states::address(family, 96, number), 80);
        let node_port = FrontendAddr::NodePort(30_000 + u16::from(number));
        let frontends = vec![
            states::frontend(FrontendKind::ClusterIp, at, states::INTERNAL),
            states::frontend(FrontendKind::NodePort, node_port, states::SPLIT),
        ];
        let port = states::port(protocol, pool(family, &[1, 2]), pool(family, &[1]), frontends);
        units.extend([states::service(name, vec![port])]);
    }
    let base = ferry_plane::Unit::Base(states::base(family, false));
    units.insert(UnitId::Base, Some(Arc::new(base)));
    Delta { context: Some(Arc::new(states::context_for(family, &Profile::USERSPACE))), units }
}

fn started(family: Family, site: &Site) -> UserspaceEngine {
    let mut engine = open(family, site);
    engine.offer(services(family));
    good(engine.sync(Instant::now()));
    engine
}

fn nft(input: &str) -> String {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the nft tool is needed");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{input}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn table(family: Family) -> String {
    let family = match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    format!("{family} {}", names::TABLE)
}

fn listing(family: Family) -> String {
    nft(&format!("list table {}", table(family)))
}

fn generation() -> u32 {
    NftSocket::open().unwrap().generation().unwrap()
}

fn repaired(engine: &mut UserspaceEngine) -> usize {
    good(engine.repair(Instant::now())).ops
}

#[test]
fn what_is_written_is_what_is_there() {
    inside(|family| {
        let site = relay_with(Vec::new(), 61_000..=65_535);
        let mut engine = started(family, &site);
        let before = generation();
        assert_eq!(repaired(&mut engine), 0, "nothing differs");
        assert_eq!(generation(), before);
        let text = listing(family);
        assert!(text.contains("layout 1") && text.contains("goto by-origin"), "{text}");
    });
}

#[test]
fn damage_is_mended_whatever_it_is() {
    let damages: [fn(&str) -> String; 8] = [
        |table| format!("flush map {table} gate-cluster"),
        |table| format!("flush map {table} service-nodeports"),
        |table| format!("flush map {table} datagrams-cluster"),
        |table| format!("flush set {table} listeners"),
        |table| format!("flush chain {table} relay-cluster"),
        |table| format!("add element {table} listeners {{ udp . 9 }}"),
        |table| format!("delete table {table}"),
        |table| format!("delete table {table}\nadd table {table} {{ comment \"of another\"; }}"),
    ];
    for damage in damages {
        inside(|family| {
            let site = relay_with(Vec::new(), 61_000..=65_535);
            let mut engine = started(family, &site);
            let (whole, damage) = (listing(family), damage(&table(family)));
            nft(&damage);
            assert_ne!(listing_if_any(family), whole, "{damage}");
            assert!(repaired(&mut engine) > 0, "{damage}");
            assert_eq!(listing(family), whole, "{damage}");
        });
    }
}

fn listing_if_any(family: Family) -> String {
    let output = Command::new("nft").args(["list", "table"]).args(table(family).split(' ')).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_next_process_takes_over_the_sockets() {
    inside(|family| {
        let first = relay_with(Vec::new(), 61_000..=65_535);
        let engine = started(family, &first);
        let sockets = first.shared.sockets().unwrap();
        // Two gates, and for UDP one for each scope.
        assert_eq!(sockets.len(), 4, "{sockets:?}");
        drop((engine, first));
        let before = listing(family);
        let second = relay_with(sockets, 50_000..=50_009);
        let _engine = started(family, &second);
        assert_eq!(listing(family), before, "all listeners have the ports that the table has");
        assert!(second.shared.inheritance.names().is_empty(), "all are taken");
    });
}

#[test]
fn without_sockets_listeners_have_the_same_ports_again() {
    inside(|family| {
        drop(started(family, &relay_with(Vec::new(), 61_000..=65_535)));
        let whole = listing(family);
        drop(started(family, &relay_with(Vec::new(), 61_000..=65_535)));
        assert_eq!(listing(family), whole);
    });
}

#[test]
fn ports_that_others_have_are_passed_over() {
    inside(|family| {
        let any = match family {
            Family::V4 => "0.0.0.0",
            Family::V6 => "::",
        };
        let at = |port| SocketAddr::new(any.parse().unwrap(), port);
        let _tcp: Vec<TcpListener> = (7000..7003).map(|port| TcpListener::bind(at(port)).unwrap()).collect();
        let _udp: Vec<UdpSocket> = (7000..7003).map(|port| UdpSocket::bind(at(port)).unwrap()).collect();
        let site = relay_with(Vec::new(), 7000..=7002);
        let mut engine = started(family, &site);
        assert_eq!(repaired(&mut engine), 0);
        assert_eq!(site.shared.sockets().unwrap().len(), 4);
    });
}

#[test]
fn a_service_that_goes_takes_its_listeners_along() {
    inside(|family| {
        let site = relay_with(Vec::new(), 61_000..=65_535);
        let mut engine = started(family, &site);
        let mut gone = services(family);
        gone.units.retain(|id, _| id.to_string() == "service demo/dns");
        gone.units.values_mut().for_each(|unit| *unit = None);
        engine.offer(Delta { context: None, ..gone });
        good(engine.sync(Instant::now()));
        assert_eq!(site.shared.sockets().unwrap().len(), 2, "the gates");
        assert!(!listing(family).contains("udp"), "{}", listing(family));
        assert_eq!(repaired(&mut engine), 0);
    });
}

#[test]
fn a_changed_endpoint_changes_nothing_in_the_kernel() {
    inside(|family| {
        let site = relay_with(Vec::new(), 61_000..=65_535);
        let mut engine = started(family, &site);
        let before = generation();
        let at = FrontendAddr::Vip(states::address(family, 96, 1), 80);
        let frontends = vec![states::frontend(FrontendKind::ClusterIp, at, states::INTERNAL)];
        let port = |last: &[u8]| states::port(Protocol::Tcp, pool(family, last), Pool::default(), frontends.clone());
        let mut change = |last: &[u8]| {
            let units = BTreeMap::from([states::service("web", vec![port(last)])]);
            engine.offer(Delta { context: None, units });
            good(engine.sync(Instant::now()))
        };
        change(&[1, 2]);
        let shaped = generation();
        assert_ne!(shaped, before, "its node port has gone");
        change(&[1, 3]);
        assert_eq!(generation(), shaped);
    });
}
