//! Namespaces, engines, desired states and oracles.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{self, address, everything_for, pool};
use ferry_kernel::netns::Namespace;
use ferry_kernel::nft::NftSocket;
use ferry_model::{FrontendAddr, FrontendKind, Pool, PortState, Profile, Scheduler};
use ferry_plane::{Delta, Extent, Kernel, Next, Outcome, SyncEngine, Unit, UnitId};
use ferry_plane_ipvs::names::DEVICE;
use ferry_plane_ipvs::{
    IpvsEngine, IpvsObject, IpvsOptions, Pings, ServerId, ServerOptions, Shared, VirtualServer, engine,
};

pub(crate) const GRACE: Duration = Duration::from_secs(900);

/// Runs a test for each family in a fresh namespace.
pub(crate) fn inside(test: impl Fn(Family) + Send + Sync) {
    for family in Family::ALL {
        let namespace = Namespace::new().expect("these tests need root");
        namespace.raise_loopback().unwrap();
        namespace.run(|| test(family)).unwrap();
        // The namespace itself ends some time later, and its servers would make the next one's listing leave some out.
        namespace.run(|| ipvsadm("-C")).unwrap();
    }
}

// --- engines

pub(crate) fn options() -> IpvsOptions {
    let servers = ServerOptions {
        scheduler: Scheduler::default(),
        excluded: Vec::new(),
        timeouts: None,
        grace: GRACE,
        reports: None,
        forwarding_reports: None,
    };
    IpvsOptions { servers, strict_arp: false, pings: Pings::Answered }
}

pub(crate) fn open(family: Family) -> IpvsEngine {
    open_with(family, options())
}

pub(crate) fn open_with(family: Family, options: IpvsOptions) -> IpvsEngine {
    engine(family, &Shared::default(), options).expect("these tests need IPVS")
}

pub(crate) fn started_with(family: Family, delta: Delta) -> IpvsEngine {
    let mut engine = open(family);
    engine.offer(delta);
    good(engine.sync(Instant::now()));
    engine
}

pub(crate) fn started(family: Family) -> IpvsEngine {
    started_with(family, everything(family))
}

/// The time at which the engine asks for its next pass.
pub(crate) fn wake(outcome: &Outcome, now: Instant) -> Instant {
    match outcome.next {
        Next::RetryAfter(pause) => now + pause,
        Next::Idle => panic!("it looks for foreign changes: {outcome:?}"),
    }
}

/// Runs passes at the engine's own times until one has repaired something.
pub(crate) fn until_repaired(engine: &mut IpvsEngine, mut now: Instant, what: &str) -> (Outcome, Instant) {
    for _ in 0..200 {
        let outcome = good(engine.tend(now));
        if outcome.repairs > 0 {
            return (outcome, now);
        }
        now = wake(&outcome, now);
    }
    panic!("{what} is never repaired");
}

/// Runs passes at the engine's own times; asserts that none has any work.
pub(crate) fn assert_idle(engine: &mut IpvsEngine, mut now: Instant, passes: usize, when: &str) -> Instant {
    for _ in 0..passes {
        let outcome = good(engine.tend(now));
        assert!(!outcome.worked && outcome.repairs == 0 && outcome.ops == 0, "{when}: {outcome:?}");
        now = wake(&outcome, now);
    }
    now
}

// --- desired states

pub(crate) fn everything(family: Family) -> Delta {
    everything_for(family, &Profile::IPVS)
}

/// Some services of [`everything`], and the base.
pub(crate) fn only(family: Family, names: &[&str]) -> Delta {
    let mut delta = everything(family);
    let wanted: Vec<String> = names.iter().map(|name| format!("service demo/{name}")).collect();
    delta.units.retain(|id, _| *id == UnitId::Base || wanted.contains(&id.to_string()));
    assert_eq!(delta.units.len(), names.len() + 1);
    delta
}

/// A delta of these units alone.
pub(crate) fn change(units: impl IntoIterator<Item = (UnitId, Option<Arc<Unit>>)>) -> Delta {
    Delta { context: None, units: units.into_iter().collect() }
}

pub(crate) fn vip(family: Family, last: u8) -> IpAddr {
    address(family, 96, last)
}

/// A service port with a cluster IP, at port 80, and these endpoints.
pub(crate) fn port(family: Family, protocol: Protocol, last: u8, endpoints: &[u8]) -> PortState {
    let at = FrontendAddr::Vip(vip(family, last), 80);
    let treatment =
        if endpoints.is_empty() { ferry_model::Treatment::all(ferry_model::Action::Reject) } else { states::INTERNAL };
    let frontends = vec![states::frontend(FrontendKind::ClusterIp, at, treatment)];
    states::port(protocol, pool(family, endpoints), Pool::new([]), frontends)
}

/// A service of TCP.
pub(crate) fn web(family: Family, name: &str, last: u8, endpoints: &[u8]) -> (UnitId, Option<Arc<Unit>>) {
    states::service(name, vec![port(family, Protocol::Tcp, last, endpoints)])
}

// --- commands

pub(crate) fn run(program: &str, arguments: &str) -> String {
    let (is_done, output) = attempt(program, arguments);
    assert!(is_done, "{program} {arguments}: {output}");
    output
}

/// The standard output of a command, or its error.
pub(crate) fn attempt(program: &str, arguments: &str) -> (bool, String) {
    let output = Command::new(program).args(arguments.split_ascii_whitespace()).output().unwrap();
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Runs a command with this input.
pub(crate) fn feed(program: &str, arguments: &[&str], input: &str) {
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program} {arguments:?}: {input}");
}

pub(crate) fn nft(input: &str) {
    feed("nft", &["-f", "-"], input);
}

pub(crate) fn ipvsadm(arguments: &str) {
    run("ipvsadm", arguments);
}

pub(crate) fn ip(arguments: &str) {
    run("ip", arguments);
}

/// The table as the tool names it.
pub(crate) fn table(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip kube-proxy",
        Family::V6 => "ip6 kube-proxy",
    }
}

pub(crate) fn table_text(family: Family) -> String {
    run("nft", &format!("list table {}", table(family)))
}

/// As options of `ipvsadm`: `-t 10.96.0.1:80`.
pub(crate) fn at(protocol: Protocol, address: IpAddr, port: u16) -> String {
    let option = match protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
        Protocol::Sctp => "--sctp-service",
    };
    format!("{option} {}", SocketAddr::new(address, port))
}

/// As [`at`], for port 80 of a service address and TCP.
pub(crate) fn at_vip(family: Family, last: u8) -> String {
    at(Protocol::Tcp, vip(family, last), 80)
}

/// An endpoint of the pools of [`states`].
pub(crate) fn endpoint(family: Family, last: u8) -> SocketAddr {
    SocketAddr::new(address(family, 244, last), 8080)
}

/// An address that no service has.
pub(crate) fn stranger(family: Family) -> IpAddr {
    address(family, 3, 9)
}

/// Adds the addresses that serve node ports to the loopback interface: the addresses of this node.
pub(crate) fn add_node_addresses(family: Family) {
    let (bits, flags) = if family == Family::V4 { (32, "") } else { (128, "nodad") };
    for last in [1, 2] {
        ip(&format!("address add {}/{bits} dev lo {flags}", address(family, 0, last)));
    }
}

/// The table of mode nftables with these node ports of TCP, and these frontends.
pub(crate) fn table_of_mode_nftables(family: Family, node_ports: &[u16], frontends: &[(Protocol, IpAddr)]) {
    let kind = if family == Family::V4 { "ipv4_addr" } else { "ipv6_addr" };
    let ports: Vec<String> = node_ports.iter().map(|port| format!("tcp . {port} : drop")).collect();
    let ips: Vec<String> =
        frontends.iter().map(|(protocol, vip)| format!("{vip} . {} . 80 : drop", protocol.lower())).collect();
    let elements = |all: &[String]| match all {
        [] => String::new(),
        all => format!("elements = {{ {} }};", all.join(", ")),
    };
    nft(&format!(
        "table {} {{ comment \"kube-proxy by Ferry, layout 3\"; map service-nodeports {{ type inet_proto . inet_service : \
         verdict; {} }}; map service-ips {{ type {kind} . inet_proto . inet_service : verdict; {} }}; }}",
        table(family),
        elements(&ports),
        elements(&ips)
    ));
}

// --- oracles

pub(crate) fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// The virtual servers of both families: commands that would create all there is.
pub(crate) fn servers() -> BTreeSet<String> {
    lines(&run("ipvsadm", "-S -n"))
}

/// The lines of [`servers`] for these objects.
pub(crate) fn lines_of(objects: &[IpvsObject]) -> BTreeSet<String> {
    let server = |object: &IpvsObject| match object {
        IpvsObject::Server(id, server) => lines_of_server(*id, server),
        _ => Vec::new(),
    };
    objects.iter().flat_map(server).collect()
}

fn lines_of_server(id: ServerId, server: &VirtualServer) -> Vec<String> {
    let at = at(id.protocol, id.address, id.port);
    let persistence = match server.settings.persistence {
        Some(seconds) => format!(" -p {seconds}"),
        None => String::new(),
    };
    let flags = match server.settings.scheduler {
        Scheduler::Mh => " -b mh-fallback,mh-port",
        Scheduler::Sh => " -b sh-fallback",
        _ => "",
    };
    let mut lines = vec![format!("-A {at} -s {}{persistence}{flags}", server.settings.scheduler)];
    for weighted in server.endpoints.iter() {
        let to = SocketAddr::new(weighted.endpoint.address, weighted.endpoint.port);
        lines.push(format!("-a {at} -r {to} -m -w {}", weighted.weight));
    }
    lines
}

/// The addresses of the device, each with the rest of its line in the listing of `ip`.
pub(crate) fn addresses(family: Family) -> Vec<(IpAddr, String)> {
    let option = if family == Family::V4 { "-4" } else { "-6" };
    let (is_there, listing) = attempt("ip", &format!("{option} -oneline address show dev {DEVICE}"));
    let listing = if is_there { listing } else { String::new() };
    let entry = |line: &str| {
        let rest = line.split_once("inet")?.1.split_once(' ')?.1;
        let address = rest.split(['/', ' ']).next()?;
        Some((address.parse().unwrap(), rest.to_owned()))
    };
    listing.lines().filter_map(entry).collect()
}

pub(crate) fn bound(family: Family) -> BTreeSet<IpAddr> {
    addresses(family).into_iter().map(|(address, _)| address).collect()
}

pub(crate) fn generation() -> u32 {
    NftSocket::open().unwrap().generation().unwrap()
}

/// Everything as another engine finds it at its start.
pub(crate) fn read_back(family: Family) -> Vec<IpvsObject> {
    let mut objects = open(family).kernel_mut().read_back(&Extent::All).unwrap();
    objects.sort();
    objects
}

/// The desired objects of the acknowledged units, each once.
pub(crate) fn wanted(engine: &IpvsEngine) -> Vec<IpvsObject> {
    let mut wanted = engine.objects();
    wanted.dedup();
    wanted
}

/// Asserts that both lists are equal; prints only the differences.
pub(crate) fn assert_same<T: Ord + std::fmt::Debug>(found: &[T], wanted: &[T], when: &str) {
    let extra: Vec<_> = found.iter().filter(|object| !wanted.contains(object)).collect();
    let missing: Vec<_> = wanted.iter().filter(|object| !found.contains(object)).collect();
    assert!(extra.is_empty() && missing.is_empty(), "{when}: extra {extra:?}, missing {missing:?}");
}

/// Asserts that the kernel holds what the engine wants, and of virtual servers `others` beside it.
pub(crate) fn assert_in_force(engine: &IpvsEngine, family: Family, others: &[&str], when: &str) {
    let wanted = wanted(engine);
    assert_same(&read_back(family), &wanted, when);
    let found: Vec<String> = servers().into_iter().collect();
    let others = others.iter().map(|line| (*line).to_owned());
    let expected: Vec<String> = lines_of(&wanted).into_iter().chain(others).collect();
    assert_same(&found, &expected, when);
    let addresses = wanted.iter().filter_map(|object| match object {
        IpvsObject::Address(address, _) => Some(*address),
        _ => None,
    });
    assert_eq!(bound(family), addresses.collect(), "{when}");
}
