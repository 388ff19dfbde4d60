//! Packets whose lookups coincide with the transaction that changes the looked-up objects.
//!
//! The engine alternates between two states of a service without a pause, thousands of commits per second, while every packet of
//! a client is the first of its connection. A key found by one lookup in the old state may be missing for the next lookup in the
//! new one.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferry_api::object::{IpNet, ObjectName, Protocol};
use ferry_lab::lab::{POD_RANGES, client_address, external_ip};
use ferry_lab::patience::slowly;
use ferry_lab::{Family, Lab, LabMachine};
use ferry_model::{
    Action, Affinity, BaseState, Context, Endpoint, Frontend, FrontendAddr, FrontendKind, LocalDetector,
    MissingSchedulers, NodePortAddresses, Pool, PortState, Scheduler, Scope, ServiceState, Snat, SourceRanges,
    Treatment,
};
use ferry_plane::{Delta, SyncEngine, Unit, UnitId};
use ferry_plane_nftables::{NftablesCommitLock, engine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Duration of alternating each pair of states, in milliseconds.
const MILLISECONDS: u64 = 1500;
/// Packets in flight at once.
const BURST: u64 = 32;
/// Time after which a packet counts as lost.
const PATIENCE: Duration = Duration::from_millis(500);
/// The first of the servers' ports.
const PORTS: u16 = 9500;
/// The service's port and node port.
const PORT: u16 = 80;
const NODE_PORT: u16 = 30080;
/// Between this node and the servers.
const ALL: Treatment = Treatment::all(Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade });
/// Policy Local.
const SPLIT: Treatment = Treatment {
    pod: Action::Forward { to: Scope::Cluster, snat: Snat::Keep },
    host: Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade },
    other: Action::Forward { to: Scope::Local, snat: Snat::Keep },
};

/// Properties of the service.
#[derive(Clone)]
struct Like {
    treatment: Treatment,
    affinity: bool,
    ranges: Option<&'static [(&'static str, &'static str)]>,
    /// plus another one at each commit
    varied: bool,
    /// first server, and their number
    servers: (u16, u16),
}

/// Result of the packets while two states alternated.
struct Race {
    commits: u64,
    packets: u64,
    lost: u64,
}

const PLAIN: Like = Like { treatment: ALL, affinity: false, ranges: None, varied: false, servers: (0, 8) };
const NARROW: &[(&str, &str)] = &[("203.0.113.0/26", "fd00:cc::/122")];
const WIDE: &[(&str, &str)] = &[("203.0.113.0/24", "fd00:cc::/64")];

#[test]
fn a_lookup_that_races_a_commit_finds_what_it_should() {
    let pairs = [
        ("endpoints replaced", PLAIN, Like { servers: (4, 8), ..PLAIN }),
        ("eight endpoints and one", PLAIN, Like { servers: (3, 1), ..PLAIN }),
        ("policy Cluster and Local", PLAIN, Like { treatment: SPLIT, ..PLAIN }),
        ("affinity", PLAIN, Like { affinity: true, ..PLAIN }),
        ("source ranges on and off", PLAIN, Like { ranges: Some(NARROW), ..PLAIN }),
        ("source ranges replaced", Like { ranges: Some(WIDE), ..PLAIN }, Like { ranges: Some(NARROW), ..PLAIN }),
        (
            "source ranges never the same",
            Like { ranges: Some(WIDE), varied: true, ..PLAIN },
            Like { ranges: Some(NARROW), varied: true, ..PLAIN },
        ),
        (
            "everything at once",
            Like { treatment: SPLIT, ranges: Some(WIDE), ..PLAIN },
            Like { affinity: true, servers: (4, 3), ..PLAIN },
        ),
    ];
    let _turn = super::TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let duration = Duration::from_millis(super::scale("FERRY_CHURN_RACE_MILLISECONDS", MILLISECONDS));
    let mut failed = Vec::new();
    let lab = Lab::new();
    for family in Family::ALL {
        let arrived = Arc::new(Arrivals::default());
        let stop = Arc::new(AtomicBool::new(false));
        let server = serve(&lab, family, &arrived, &stop);
        for (what, one, other) in &pairs {
            let race = race(&lab, family, &arrived, duration, [one, other]);
            let Race { commits, packets, lost } = race;
            println!("{family} {what}: {commits} commits, {packets} first packets, {lost} lost");
            if lost > 0 {
                failed.push(format!("{family} {what}: {lost} of {packets} packets lost under {commits} commits"));
            }
        }
        stop.store(true, Ordering::Relaxed);
        server.join().expect("servers don't panic");
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Lets two states alternate while packets come in.
fn race(lab: &Lab, family: Family, arrived: &Arc<Arrivals>, duration: Duration, states: [&Like; 2]) -> Race {
    let node = lab.host(LabMachine::Node);
    // entries expire soon, so that the conntrack table stays small
    node.sysctl("net/netfilter/nf_conntrack_udp_timeout", "1");
    node.sysctl("net/netfilter/nf_conntrack_udp_timeout_stream", "1");
    let states = states.map(Like::clone);
    let (ready, is_ready) = std::sync::mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let toggler = {
        let stop = Arc::clone(&stop);
        node.thread(move || {
            let mut engine = engine(family, NftablesCommitLock::default()).expect("netlink");
            let mut commits = 0;
            for like in states.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                engine.offer(delta(family, like, commits));
                let outcome = engine.sync(Instant::now());
                assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{outcome:?}");
                // The kernel half deletes retired sets meanwhile.
                assert!(engine.tend(Instant::now()).error.is_none());
                commits += 1;
                if commits == 2 {
                    ready.send(()).expect("somebody waits");
                }
            }
            commits
        })
    };
    is_ready.recv().expect("the service is there");
    let sender = {
        let arrived = Arc::clone(arrived);
        lab.host(LabMachine::Client).thread(move || send(family, &arrived, duration))
    };
    let (packets, lost) = sender.join().expect("senders don't panic");
    stop.store(true, Ordering::Relaxed);
    Race { commits: toggler.join().expect("commits succeed"), packets, lost }
}

/// Sends first packets in bursts; returns their number, and the number of lost ones.
fn send(family: Family, arrived: &Arrivals, duration: Duration) -> (u64, u64) {
    let frontends =
        [SocketAddr::new(external_ip(family, 80), PORT), SocketAddr::new(LabMachine::Node.address(family), NODE_PORT)];
    let sources: Vec<IpAddr> = (20..28).map(|number| client_address(family, number)).collect();
    let (start, mut packets, mut lost) = (Instant::now(), 0_u64, 0);
    while start.elapsed() < duration {
        arrived.begin(packets);
        for packet in packets..packets + BURST {
            let number = usize::try_from(packet).expect("millions");
            let source = sources[number % sources.len()];
            // never a port twice within seconds: with a conntrack entry the packet would cause no lookup
            let port = 10_000 + u16::try_from(number / 16 % 50_000).expect("a port");
            let socket = UdpSocket::bind(SocketAddr::new(source, port)).expect("a free port");
            let to = frontends[number / 8 % 2];
            socket.send_to(&packets.to_be_bytes(), to).expect("sending");
        }
        packets += BURST;
        lost += BURST - arrived.wait();
    }
    (packets, lost)
}

/// Number of received packets of the current burst.
#[derive(Default)]
struct Arrivals {
    burst: AtomicU64,
    count: AtomicU64,
}

impl Arrivals {
    fn begin(&self, burst: u64) {
        self.count.store(0, Ordering::SeqCst);
        self.burst.store(burst, Ordering::SeqCst);
    }

    fn arrive(&self, packet: &[u8]) {
        if packet == self.burst.load(Ordering::SeqCst).to_be_bytes() {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn wait(&self) -> u64 {
        let start = Instant::now();
        loop {
            let count = self.count.load(Ordering::SeqCst);
            if count >= BURST || start.elapsed() > slowly(PATIENCE) {
                return count;
            }
            std::thread::yield_now();
        }
    }
}

/// Counts packets at the endpoints, in one pod.
fn serve(lab: &Lab, family: Family, arrived: &Arc<Arrivals>, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (arrived, stop) = (Arc::clone(arrived), Arc::clone(stop));
    let sockets: Vec<UdpSocket> = lab.host(LabMachine::PodA).run(move || {
        let at = (PORTS..PORTS + 12).map(|port| SocketAddr::new(LabMachine::PodA.address(family), port));
        at.map(|at| {
            let socket = UdpSocket::bind(at).expect("a free port");
            socket.set_nonblocking(true).expect("a socket that doesn't block");
            socket
        })
        .collect()
    });
    std::thread::spawn(move || {
        let timeout = Timespec::try_from(Duration::from_millis(100)).expect("it fits");
        while !stop.load(Ordering::Relaxed) {
            let mut waiting: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
            let _ = poll(&mut waiting, Some(&timeout));
            let mut data = [0; 16];
            for socket in &sockets {
                while let Ok(length) = socket.recv(&mut data) {
                    arrived.arrive(&data[..length]);
                }
            }
        }
    })
}

/// The node, and one service like this; `commit` counts them.
fn delta(family: Family, like: &Like, commit: u64) -> Delta {
    let name = ObjectName::new("demo", "raced");
    let (first, number) = like.servers;
    let endpoints = (first..first + number)
        .map(|server| Endpoint { address: LabMachine::PodA.address(family), port: PORTS + server });
    let pool = Pool::new(endpoints.collect::<Vec<_>>());
    let frontends = vec![
        Frontend {
            kind: FrontendKind::LoadBalancer,
            at: FrontendAddr::Vip(external_ip(family, 80), PORT),
            sources: sources(family, like, commit),
            treatment: like.treatment,
        },
        Frontend {
            kind: FrontendKind::NodePort,
            at: FrontendAddr::NodePort(NODE_PORT),
            sources: SourceRanges::Any,
            treatment: like.treatment,
        },
    ];
    let port = PortState {
        name: "raced".into(),
        protocol: Protocol::Udp,
        affinity: Affinity::new(10_800).filter(|_| like.affinity),
        cluster: pool.clone(),
        local: pool,
        lingering: Pool::default(),
        balance: None,
        shadowed: None,
        frontends: frontends.into(),
    };
    let service = ServiceState { name: name.clone(), ports: vec![port], health_check: None };
    let base = BaseState {
        node_ports: NodePortAddresses::All,
        localhost: false,
        service_cidrs: Vec::new(),
        affinity: like.affinity,
    };
    let [v4, v6] = POD_RANGES;
    let context = Context {
        node_name: "node-a".into(),
        zone: None,
        node_ip: None,
        node_addresses: [].into(),
        local_addresses: [].into(),
        relay_address: None,
        local: Some(LocalDetector::Cidr(net(if family == Family::V4 { v4 } else { v6 }))),
        masquerade_all: false,
        masquerade_mark: 0x4000,
        scheduler: Scheduler::default(),
        missing_schedulers: MissingSchedulers::new(),
    };
    Delta {
        context: Some(Arc::new(context)),
        units: [
            (UnitId::Base, Some(Arc::new(Unit::Base(base)))),
            (UnitId::Service(name), Some(Arc::new(Unit::Service(service)))),
        ]
        .into(),
    }
}

/// The source ranges of the load balancer: with `varied`, others at each commit.
fn sources(family: Family, like: &Like, commit: u64) -> SourceRanges {
    let Some(ranges) = like.ranges else { return SourceRanges::Any };
    let beside = match family {
        Family::V4 => format!("10.{}.{}.0/24", commit / 256 % 256, commit % 256),
        Family::V6 => format!("fd00:1:{:x}::/48", commit % 65_536),
    };
    let beside = like.varied.then(|| net(&beside));
    let ranges = ranges.iter().map(|(v4, v6)| net(if family == Family::V4 { v4 } else { v6 }));
    let mut ranges: Vec<IpNet> = ranges.chain(beside).collect();
    ranges.sort();
    SourceRanges::Only(ranges.into())
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a network")
}
