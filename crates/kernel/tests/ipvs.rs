//! IPVS of a real kernel, each test in a network namespace of its own, with `ipvsadm` as the oracle. Not every machine's kernel has
//! IPVS, so the tests run in virtual machines: `cargo xt vm`.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use ferry_family::Family;
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::ipvs::{
    COMMANDS_PER_SEND, Command, Flags, Forwarding, IpvsDestination, IpvsError, IpvsProtocol, IpvsServer, IpvsSocket,
    ListedServer, Listing, RefusalCause, RefusedCommand, Scheduler, Sent, ServerId, Timeouts,
};
use ferry_kernel::module::{self, ModuleState};
use ferry_kernel::netns::Namespace;

const LIFE_CYCLE: [&str; 6] = [
    "TCP 10.96.0.1:80",
    "UDP 10.96.0.1:53",
    "SCTP 10.96.0.1:3868",
    "TCP [fd00:96::1]:80",
    "UDP [fd00:96::1]:53",
    "SCTP [fd00:96::1]:3868",
];

/// Runs a test in a fresh namespace.
fn isolated(test: impl FnOnce(IpvsSocket) + Send) {
    let namespace = Namespace::new().expect("these tests need root");
    namespace.raise_loopback().unwrap();
    namespace.run(|| test(IpvsSocket::open().expect("these tests need IPVS"))).unwrap();
    // The namespace itself ends some time later, and its servers would make the next one's listing leave some out.
    namespace.run(|| run("ipvsadm", "-C")).unwrap();
}

fn run(program: &str, arguments: &str) -> String {
    let arguments: Vec<_> = arguments.split_ascii_whitespace().collect();
    let output = Process::new(program).args(&arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The lines of `ipvsadm-save`, sorted: commands that would create all there is.
fn oracle() -> Vec<String> {
    let mut lines: Vec<_> = run("ipvsadm", "-S -n").lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// As `TCP 10.96.0.1:80`.
fn id(text: &str) -> ServerId {
    let (protocol, address) = text.split_once(' ').unwrap();
    let address: SocketAddr = address.parse().unwrap();
    let protocol = IpvsProtocol::ALL.into_iter().find(|known| known.to_string() == protocol).unwrap();
    ServerId { address: address.ip(), port: address.port(), protocol }
}

fn server(text: &str) -> IpvsServer {
    let id = id(text);
    let scheduler = Scheduler::new("rr").unwrap();
    IpvsServer { id, scheduler, flags: Flags::default(), timeout_seconds: 0, netmask: id.host_netmask() }
}

fn destination(address: &str) -> IpvsDestination {
    IpvsDestination {
        address: address.parse().unwrap(),
        weight: 1,
        forwarding: Forwarding::MASQUERADE,
        upper_threshold: 0,
        lower_threshold: 0,
    }
}

fn endpoint(of: &ServerId) -> IpvsDestination {
    destination(if of.address.is_ipv4() { "10.1.0.1:8080" } else { "[fd00:1::1]:8080" })
}

fn commit(socket: &mut IpvsSocket, commands: &[Command]) -> Vec<RefusedCommand> {
    socket.commit(commands).unwrap()
}

fn succeed(socket: &mut IpvsSocket, commands: &[Command]) {
    let failures = commit(socket, commands);
    assert!(failures.is_empty(), "{failures:?}");
}

fn causes(failures: &[RefusedCommand]) -> Vec<(usize, RefusalCause)> {
    failures.iter().map(|failure| (failure.index, failure.cause)).collect()
}

fn servers(socket: &mut IpvsSocket, family: Option<Family>) -> BTreeSet<IpvsServer> {
    let mut found = Vec::new();
    assert_eq!(socket.dump_servers(family, &mut |server| found.push(server)).unwrap(), 0);
    let unique: BTreeSet<_> = found.iter().copied().collect();
    assert_eq!(unique.len(), found.len(), "a server is listed twice");
    unique
}

fn destinations(socket: &mut IpvsSocket, of: &ServerId) -> BTreeSet<IpvsDestination> {
    let mut found = BTreeSet::new();
    socket.dump_destinations(of, &mut |destination, _| assert!(found.insert(destination))).unwrap();
    found
}

/// All that the listing of servers with their destinations has.
fn listed() -> Vec<ListedServer> {
    let mut listing = Listing::open().unwrap();
    std::iter::from_fn(|| listing.next_server().unwrap()).collect()
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn the_listing_has_what_the_dumps_have() {
    isolated(|mut socket| {
        assert_eq!(listed(), []);
        run("ipvsadm", "-A -f 7 -s wlc");
        run("ipvsadm", "-a -f 7 -r 10.1.0.9 -g");
        let addresses = ["10.96.0.", "fd00:96::"].map(|net| (1..=100).map(move |last| format!("{net}{last}")));
        let ids = addresses.into_iter().flatten().zip(IpvsProtocol::ALL.into_iter().cycle());
        let ids: Vec<ServerId> =
            ids.map(|(address, protocol)| ServerId { address: address.parse().unwrap(), port: 80, protocol }).collect();
        for (id, count) in ids.iter().zip((0..12).cycle()) {
            let server = IpvsServer { timeout_seconds: 60, flags: Flags::PERSISTENT, ..server(&id.to_string()) };
            let add = (0..count).map(|n| {
                let at = SocketAddr::new(endpoint(id).address.ip(), 8080 + n);
                let to = IpvsDestination { address: at, weight: u32::from(n) * 7, ..endpoint(id) };
                Command::NewDestination(*id, to)
            });
            succeed(&mut socket, &[Command::NewServer(server)].into_iter().chain(add).collect::<Vec<_>>());
        }
        let listed = listed();
        assert_eq!(listed.len(), ids.len() + 1);
        let of_mark: Vec<_> = listed.iter().filter(|server| server.id.is_none()).collect();
        assert!(matches!(of_mark[..], [server] if server.destinations.len() == 1), "{of_mark:?}");
        for found in listed.iter().filter(|server| server.id.is_some()) {
            let id = found.id.unwrap();
            let mut dumped = Vec::new();
            socket.dump_destinations(&id, &mut |to, connections| dumped.push((to, connections))).unwrap();
            assert_eq!(found.destinations, dumped, "{id}");
        }
        let all: BTreeSet<_> = listed.iter().filter_map(|server| server.id).collect();
        assert_eq!(all, ids.into_iter().collect());
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn servers_and_destinations_live_and_end() {
    isolated(|mut socket| {
        assert!(servers(&mut socket, None).is_empty());
        let all = LIFE_CYCLE.map(server);
        for server in all {
            let wanted = endpoint(&server.id);
            succeed(&mut socket, &[Command::NewServer(server), Command::NewDestination(server.id, wanted)]);
            let (found, statistics) = socket.server(&server.id).unwrap().unwrap();
            assert_eq!((found, statistics.connections), (server, 0));
            assert_eq!(destinations(&mut socket, &server.id), BTreeSet::from([wanted]));
        }
        assert_eq!(servers(&mut socket, None), BTreeSet::from(all));
        for family in Family::ALL {
            let wanted = all.into_iter().filter(|server| Family::of(server.id.address) == family).collect();
            assert_eq!(servers(&mut socket, Some(family)), wanted);
        }
        assert_eq!(
            oracle(),
            [
                "-A -t 10.96.0.1:80 -s rr",
                "-A -t [fd00:96::1]:80 -s rr",
                "-A -u 10.96.0.1:53 -s rr",
                "-A -u [fd00:96::1]:53 -s rr",
                "-A --sctp-service 10.96.0.1:3868 -s rr",
                "-A --sctp-service [fd00:96::1]:3868 -s rr",
                "-a -t 10.96.0.1:80 -r 10.1.0.1:8080 -m -w 1",
                "-a -t [fd00:96::1]:80 -r [fd00:1::1]:8080 -m -w 1",
                "-a -u 10.96.0.1:53 -r 10.1.0.1:8080 -m -w 1",
                "-a -u [fd00:96::1]:53 -r [fd00:1::1]:8080 -m -w 1",
                "-a --sctp-service 10.96.0.1:3868 -r 10.1.0.1:8080 -m -w 1",
                "-a --sctp-service [fd00:96::1]:3868 -r [fd00:1::1]:8080 -m -w 1",
            ]
            .map(str::to_owned)
            .into_iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
        );
        for server in all {
            let edited = IpvsDestination { weight: 0, upper_threshold: 7, lower_threshold: 3, ..endpoint(&server.id) };
            let changed = IpvsServer { timeout_seconds: 90, flags: Flags::PERSISTENT, ..server };
            succeed(&mut socket, &[Command::EditDestination(server.id, edited), Command::EditServer(changed)]);
            assert_eq!(destinations(&mut socket, &server.id), BTreeSet::from([edited]));
            assert_eq!(socket.server(&server.id).unwrap().unwrap().0, changed);
            succeed(&mut socket, &[Command::EditServer(server)]);
            assert_eq!(socket.server(&server.id).unwrap().unwrap().0, server);
            succeed(&mut socket, &[Command::DeleteDestination(server.id, edited.address)]);
            assert_eq!(destinations(&mut socket, &server.id), BTreeSet::new());
            succeed(&mut socket, &[Command::DeleteServer(server.id)]);
            assert_eq!(socket.server(&server.id).unwrap(), None);
            assert_eq!(destinations(&mut socket, &server.id), BTreeSet::new(), "of a server that does not exist");
        }
        assert_eq!(oracle(), [""; 0]);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn refusals_have_causes() {
    isolated(|mut socket| {
        let (tcp, none) = (server("TCP 10.96.0.1:80"), server("TCP 10.96.0.2:80").id);
        let endpoint = endpoint(&tcp.id);
        succeed(&mut socket, &[Command::NewServer(tcp), Command::NewDestination(tcp.id, endpoint)]);
        let unknown = Scheduler::new("no-such").unwrap();
        let failures = commit(
            &mut socket,
            &[
                Command::NewServer(tcp),
                Command::NewDestination(tcp.id, endpoint),
                Command::EditServer(IpvsServer { id: none, ..tcp }),
                Command::DeleteServer(none),
                Command::NewDestination(none, endpoint),
                Command::DeleteDestination(none, endpoint.address),
                Command::EditDestination(tcp.id, destination("10.1.0.9:80")),
                Command::DeleteDestination(tcp.id, "10.1.0.9:80".parse().unwrap()),
                Command::NewServer(IpvsServer { id: none, scheduler: unknown, ..tcp }),
                Command::EditServer(IpvsServer { scheduler: unknown, ..tcp }),
                Command::NewDestination(tcp.id, destination("224.0.0.1:80")),
                Command::NewDestination(tcp.id, destination("[fd00:1::1]:80")),
                Command::NewDestination(tcp.id, IpvsDestination { weight: u32::MAX, ..destination("10.1.0.2:80") }),
                Command::NewServer(IpvsServer { netmask: 0, ..server("TCP [fd00:96::1]:80") }),
            ],
        );
        let (exists, no_server, no_destination) =
            (RefusalCause::Exists, RefusalCause::NoServer, RefusalCause::NoDestination);
        let no_scheduler = RefusalCause::NoScheduler(unknown);
        let wanted = [exists, exists, no_server, no_server, no_server, no_server, no_destination, no_destination]
            .into_iter()
            .chain([no_scheduler, no_scheduler])
            .chain([RefusalCause::Other; 4]);
        assert_eq!(causes(&failures), wanted.enumerate().collect::<Vec<_>>());
        let classes = failures[10..].iter().map(|failure| ErrorClass::of(&failure.error.error));
        let invalid = ErrorClass::Invalid;
        assert_eq!(classes.collect::<Vec<_>>(), [invalid, invalid, ErrorClass::Other, invalid]);
        assert_eq!(oracle(), ["-A -t 10.96.0.1:80 -s rr", "-a -t 10.96.0.1:80 -r 10.1.0.1:8080 -m -w 1"]);
    });
}

/// 1,000 commands of which every tenth is refused, all of one `send` in the middle.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_batch_goes_on_after_errors() {
    const ALL: usize = 1000;
    isolated(|mut socket| {
        let numbered = |n: usize| server(&format!("UDP 10.96.{}.{}:53", n / 250, n % 250 + 1));
        let refused = |n: &usize| n % 10 == 3 || (COMMANDS_PER_SEND..2 * COMMANDS_PER_SEND).contains(n);
        let existing: Vec<_> = (0..ALL).filter(refused).map(|n| Command::NewServer(numbered(n))).collect();
        succeed(&mut socket, &existing);
        let before = socket.sent();
        let all: Vec<_> = (0..ALL).map(|n| Command::NewServer(numbered(n))).collect();
        let start = Instant::now();
        let failures = commit(&mut socket, &all);
        println!("{ALL} servers, {} refused: {:?}", failures.len(), start.elapsed());
        assert_eq!(causes(&failures), (0..ALL).filter(refused).map(|n| (n, RefusalCause::Exists)).collect::<Vec<_>>());
        let Sent { sends, messages, bytes } = socket.sent();
        assert_eq!((sends - before.sends, messages - before.messages), (4, ALL as u64));
        assert_eq!(bytes - before.bytes, ALL as u64 * (16 + 88));
        assert_eq!(servers(&mut socket, None), (0..ALL).map(numbered).collect());

        let of = numbered(0).id;
        let endpoints = |n: usize| destination(&format!("10.1.{}.{}:53", n / 250, n % 250 + 1));
        let all: Vec<_> = (0..ALL).map(|n| Command::NewDestination(of, endpoints(n))).collect();
        succeed(&mut socket, &all);
        assert_eq!(destinations(&mut socket, &of), (0..ALL).map(endpoints).collect());
        assert_eq!(oracle().len(), 2 * ALL);
        let gone: Vec<_> = (0..ALL).map(|n| Command::DeleteServer(numbered(n).id)).collect();
        succeed(&mut socket, &gone);
        assert_eq!(
            causes(&commit(&mut socket, &gone)),
            (0..ALL).map(|n| (n, RefusalCause::NoServer)).collect::<Vec<_>>()
        );
        assert_eq!(oracle(), [""; 0]);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn flags_timeouts_and_masks_are_kept() {
    isolated(|mut socket| {
        let sticky = IpvsServer { flags: Flags::PERSISTENT, timeout_seconds: 10_800, ..server("TCP 10.96.0.1:80") };
        let networks = IpvsServer { netmask: u32::from_be_bytes([255, 255, 255, 0]), ..sticky };
        let all = [
            sticky,
            IpvsServer { id: id("TCP 10.96.0.2:80"), ..networks },
            IpvsServer { netmask: 64, id: id("TCP [fd00:96::1]:80"), ..sticky },
            IpvsServer { id: id("TCP 10.96.0.3:0"), ..sticky },
            IpvsServer { flags: Flags::ONE_PACKET, ..server("UDP 10.96.0.1:53") },
            IpvsServer {
                scheduler: Scheduler::new("mh").unwrap(),
                flags: Flags(Flags::SCHEDULER_1.0 | Flags::SCHEDULER_2.0),
                ..server("TCP 10.96.0.4:80")
            },
            IpvsServer { flags: Flags::SCHEDULER_3, timeout_seconds: 1, ..server("TCP 10.96.0.5:80") },
        ];
        succeed(&mut socket, &all.map(Command::NewServer));
        assert_eq!(servers(&mut socket, None), BTreeSet::from(all));
        let mut wanted = [
            "-A -t 10.96.0.1:80 -s rr -p 10800",
            "-A -t 10.96.0.2:80 -s rr -p 10800 -M 255.255.255.0",
            "-A -t 10.96.0.3:0 -s rr -p 10800",
            "-A -t 10.96.0.4:80 -s mh -b mh-fallback,mh-port",
            "-A -t 10.96.0.5:80 -s rr -b flag-3",
            "-A -t [fd00:96::1]:80 -s rr -p 10800 -M 64",
            "-A -u 10.96.0.1:53 -s rr -o",
        ];
        wanted.sort_unstable();
        assert_eq!(oracle(), wanted);
        // All flags go, and come back.
        for flags in [Flags::default(), Flags::PERSISTENT] {
            let edited = IpvsServer { flags, ..sticky };
            succeed(&mut socket, &[Command::EditServer(edited)]);
            assert_eq!(socket.server(&edited.id).unwrap().unwrap().0, edited);
        }
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn timeouts_belong_to_the_namespace() {
    isolated(|mut socket| {
        let default = socket.timeouts().unwrap();
        assert_eq!(default, Timeouts { tcp_seconds: 900, tcp_fin_seconds: 120, udp_seconds: 300 });
        socket.set_timeouts(Timeouts { tcp_seconds: 0, tcp_fin_seconds: 77, udp_seconds: 0 }).unwrap();
        assert_eq!(socket.timeouts().unwrap(), Timeouts { tcp_fin_seconds: 77, ..default });
        let all = Timeouts { tcp_seconds: 1, tcp_fin_seconds: 2, udp_seconds: 3 };
        socket.set_timeouts(all).unwrap();
        assert_eq!(socket.timeouts().unwrap(), all);
        assert!(run("ipvsadm", "-L --timeout").contains("1 2 3"));
        let error = socket.set_timeouts(Timeouts { udp_seconds: u32::MAX, ..all }).unwrap_err();
        assert!(matches!(error, IpvsError::Io(error) if ErrorClass::of(&error) == ErrorClass::Invalid));
        isolated(|mut other| assert_eq!(other.timeouts().unwrap(), default));
    });
}

/// Every scheduler of the kernel is loaded by need; one that the kernel lacks is named.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn every_scheduler_is_accepted_or_named() {
    const ALL: &[&str] =
        &["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos"];
    isolated(|mut socket| {
        let mut lacking = Vec::new();
        for (n, name) in ALL.iter().enumerate() {
            let scheduler = Scheduler::new(name).unwrap();
            let wanted = IpvsServer { scheduler, ..server(&format!("TCP 10.96.0.{}:80", n + 1)) };
            let before = module::find(&format!("ip_vs_{name}"));
            let failures = commit(&mut socket, &[Command::NewServer(wanted)]);
            let after = module::find(&format!("ip_vs_{name}"));
            println!("{before}; {:?}; {after}", failures.first().map(ToString::to_string));
            match failures.first() {
                None => {
                    assert_eq!(socket.server(&wanted.id).unwrap().unwrap().0, wanted);
                    assert!(after.is_present());
                }
                Some(failure) => {
                    assert_eq!(failure.cause, RefusalCause::NoScheduler(scheduler));
                    assert_eq!((before.state, after.state), (ModuleState::Absent, ModuleState::Absent));
                    lacking.push(*name);
                }
            }
        }
        println!("schedulers that this kernel lacks: {lacking:?}");
        assert!(lacking.len() < ALL.len() / 2);
        assert_eq!(oracle().len(), ALL.len() - lacking.len());
    });
}

/// Servers of marks, of other protocols, and other ways of forwarding are another program's.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn other_programs_servers_are_counted_and_their_destinations_kept() {
    isolated(|mut socket| {
        for arguments in ["-A -f 7 -s rr", "-A -t 10.96.0.1:80 -s rr", "-a -t 10.96.0.1:80 -r 10.1.0.1:80 -i -w 5"] {
            run("ipvsadm", arguments);
        }
        run("ipvsadm", "-a -t 10.96.0.1:80 -r 10.1.0.2:80 -g -w 6");
        let mut found = Vec::new();
        assert_eq!(socket.dump_servers(None, &mut |server| found.push(server)).unwrap(), 1);
        assert_eq!(found, [server("TCP 10.96.0.1:80")]);
        let of = found[0].id;
        let tunnel = IpvsDestination { weight: 5, forwarding: Forwarding(2), ..destination("10.1.0.1:80") };
        let route = IpvsDestination { weight: 6, forwarding: Forwarding(3), ..destination("10.1.0.2:80") };
        assert_eq!(destinations(&mut socket, &of), BTreeSet::from([tunnel, route]));
        let before = oracle();
        succeed(&mut socket, &[tunnel, route].map(|destination| Command::EditDestination(of, destination)));
        assert_eq!(oracle(), before);
    });
}

/// The family has another number after the module was removed and loaded again, which the kernel does by itself.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_module_that_was_loaded_again_is_noticed() {
    isolated(|mut socket| {
        // Namespaces of other tests, which hold the module, end a little later than those tests.
        let deadline = Instant::now() + Duration::from_secs(60);
        while module::find("ip_vs").is_present() {
            assert!(Instant::now() < deadline, "the module ip_vs stays in use");
            let loaded = std::fs::read_to_string("/proc/modules").unwrap();
            let names =
                loaded.lines().filter_map(|line| line.split(' ').next()).filter(|name| name.starts_with("ip_vs"));
            for name in names {
                let _ = Process::new("rmmod").arg(name).output().expect("kmod is needed");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let error = socket.dump_servers(None, &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "the module ip_vs was loaded again");
        assert!(matches!(error, IpvsError::Io(error) if ErrorClass::of(&error) == ErrorClass::Transient));
        assert_eq!(module::find("ip_vs").state, ModuleState::Loaded);
        let all = server("TCP 10.96.0.1:80");
        succeed(&mut socket, &[Command::NewServer(all)]);
        assert_eq!(servers(&mut socket, None), BTreeSet::from([all]));
    });
}

/// A namespace without any routing table: loopback was never up.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn destinations_need_a_routing_table() {
    let namespace = Namespace::new().expect("these tests need root");
    let (server, endpoint) = (server("TCP 10.96.0.1:80"), destination("10.1.0.1:80"));
    let first = namespace.run(|| {
        let mut socket = IpvsSocket::open().unwrap();
        let failures = commit(&mut socket, &[Command::NewServer(server), Command::NewDestination(server.id, endpoint)]);
        failures.into_iter().map(|failure| (failure.index, ErrorClass::of(&failure.error.error))).collect::<Vec<_>>()
    });
    assert_eq!(first.unwrap(), [(1, ErrorClass::Invalid)]);
    namespace.raise_loopback().unwrap();
    namespace
        .run(|| succeed(&mut IpvsSocket::open().unwrap(), &[Command::NewDestination(server.id, endpoint)]))
        .unwrap();
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn without_the_capability_ipvs_is_unusable() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    isolated(|mut socket| {
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
        let error = socket.dump_servers(None, &mut |_| {}).unwrap_err();
        assert!(matches!(error, IpvsError::Io(error) if ErrorClass::of(&error) == ErrorClass::Denied));
        let failures = commit(&mut socket, &[Command::NewServer(server("TCP 10.96.0.1:80"))]);
        assert_eq!(ErrorClass::of(&failures[0].error.error), ErrorClass::Denied);
    });
}
