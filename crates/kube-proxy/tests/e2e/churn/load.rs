//! Opens new connections at a steady pace: many at once in one thread, each closed by a reset.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferry_lab::patience::slowly;
use ferry_lab::{Host, Lab, LabMachine, Protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};

use crate::services::{self, Target, Way};

/// Time limit of a connection: much longer than any takes, except on a machine that stands still.
const PATIENCE: Duration = Duration::from_secs(10);
/// A UDP client asks again after this time without an answer, once, as resolvers do; from the same port.
const ASKS_AGAIN: Duration = Duration::from_secs(1);
/// Interval of opening connections.
const TICK: Duration = Duration::from_millis(4);
/// Most concurrent connections: beyond them the machine is too slow for the pace.
const UNDER_WAY: usize = 400;

/// Connections from one place.
pub(crate) struct Load<'a> {
    place: LabMachine,
    host: &'a Host,
    retransmissions: u64,
    thread: JoinHandle<Outcomes>,
}

/// Results of the connections of one place.
pub(crate) struct Outcomes {
    pub(crate) place: LabMachine,
    pub(crate) ended: Vec<Ended>,
    /// first packets that TCP sent again
    pub(crate) retransmissions: u64,
    /// UDP clients that asked again
    pub(crate) asked_again: usize,
    /// the longest time that the clients didn't get to run
    pub(crate) pause: Duration,
}

/// One connection.
pub(crate) struct Ended {
    pub(crate) service: u8,
    pub(crate) way: Way,
    pub(crate) protocol: Protocol,
    pub(crate) at: SocketAddr,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    /// the endpoint that answered, or the failure
    pub(crate) outcome: Result<usize, String>,
}

struct UnderWay {
    target: Target,
    socket: Socket,
    from: Instant,
    asked_again: bool,
}

// === impl Load ===

impl<'a> Load<'a> {
    /// Opens `a_second` connections per second from a place, until `stop`. `of_host` is the node's kind of access to external
    /// addresses.
    pub(crate) fn start(lab: &'a Lab, place: LabMachine, of_host: Way, a_second: u64, stop: &Arc<AtomicBool>) -> Self {
        let (host, stop) = (lab.host(place), Arc::clone(stop));
        let retransmissions = retransmissions(host);
        let thread = host.thread(move || run(place, of_host, a_second, &stop));
        Self { place, host, retransmissions, thread }
    }

    /// Waits for the last ones.
    pub(crate) fn finish(self) -> Outcomes {
        let outcomes = self.thread.join().unwrap_or_else(|_| panic!("the clients in {} panicked", self.place.name()));
        Outcomes { retransmissions: retransmissions(self.host) - self.retransmissions, ..outcomes }
    }
}

fn run(place: LabMachine, of_host: Way, a_second: u64, stop: &AtomicBool) -> Outcomes {
    let targets = services::targets(place, of_host);
    let mut outcomes = Outcomes { place, ended: Vec::new(), retransmissions: 0, asked_again: 0, pause: Duration::ZERO };
    let mut under_way: VecDeque<UnderWay> = VecDeque::new();
    let mut ports = Ports(10_000);
    let (start, mut begun, mut last) = (Instant::now(), 0, Instant::now());
    loop {
        let now = Instant::now();
        outcomes.pause = outcomes.pause.max(now - std::mem::replace(&mut last, now));
        let ends = stop.load(Ordering::Relaxed);
        if ends && under_way.is_empty() {
            return outcomes;
        }
        let due = u64::try_from((now - start).as_micros()).expect("minutes") * a_second / 1_000_000;
        // connections missed in a pause are not made up for at once
        begun = begun.max(due.saturating_sub((a_second / 5).max(1)));
        while !ends && begun < due && under_way.len() < UNDER_WAY {
            let target = targets[usize::try_from(begun).expect("thousands") % targets.len()];
            begun += 1;
            let from = Instant::now();
            match begin(&target, &mut ports) {
                Ok(socket) => under_way.push_back(UnderWay { target, socket, from, asked_again: false }),
                Err(error) => outcomes.end(&target, from, Err(error.to_string())),
            }
        }
        wait(&under_way);
        under_way.retain_mut(|connection| match finish(connection) {
            Some(outcome) => {
                outcomes.asked_again += usize::from(connection.asked_again);
                outcomes.end(&connection.target, connection.from, outcome);
                false
            }
            None => true,
        });
    }
}

/// Sends the first packet.
fn begin(target: &Target, ports: &mut Ports) -> io::Result<Socket> {
    let udp = target.protocol == Protocol::Udp;
    let socket = Socket::new(Domain::for_address(target.at), if udp { Type::DGRAM } else { Type::STREAM }, None)?;
    socket.set_nonblocking(true)?;
    let any: IpAddr = if target.at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    if udp {
        // never a port twice: with a conntrack entry it would be no new connection
        socket.bind(&SocketAddr::new(target.from.unwrap_or(any), ports.next()).into())?;
    } else {
        socket.set_linger(Some(Duration::ZERO))?;
        if let Some(from) = target.from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
    }
    match socket.connect(&target.at.into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    if udp {
        socket.send(b"?")?;
    }
    Ok(socket)
}

/// Until something happens, or it is time for more.
fn wait(under_way: &VecDeque<UnderWay>) {
    let mut waiting: Vec<_> =
        under_way.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::IN)).collect();
    // some at a time: a wait for each answer would cost more than the answer
    std::thread::sleep(slowly(TICK) / 2);
    let rest = Timespec::try_from(slowly(TICK) / 2).expect("milliseconds fit");
    match poll(&mut waiting, Some(&rest)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => panic!("poll: {error}"),
    }
}

/// The endpoint that answered, or the failure; `None` while pending.
fn finish(connection: &mut UnderWay) -> Option<Result<usize, String>> {
    let mut text = [0; 128];
    let outcome = match connection.socket.read(&mut text) {
        Ok(0) => Err("closed without an answer".to_owned()),
        Ok(length) => {
            let text = String::from_utf8_lossy(&text[..length]).into_owned();
            let name = text.split(' ').next().unwrap_or_default();
            services::endpoint(name).ok_or_else(|| format!("answered by {text:?}"))
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
            let waits = connection.from.elapsed();
            if waits < slowly(PATIENCE) {
                let asks = connection.target.protocol == Protocol::Udp && waits >= slowly(ASKS_AGAIN);
                if asks && !std::mem::replace(&mut connection.asked_again, true) {
                    return connection.socket.send(b"?").err().map(|error| Err(error.to_string()));
                }
                return None;
            }
            Err("no answer".to_owned())
        }
        Err(error) => Err(error.to_string()),
    };
    Some(outcome)
}

/// Number of SYN retransmissions of a machine.
fn retransmissions(host: &Host) -> u64 {
    let text =
        host.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat").expect("counters of the namespace"));
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(name, _)| *name == "TCPSynRetrans").expect("a counter of first packets");
    value.parse().expect("a number")
}

// === impl Outcomes ===

impl Outcomes {
    fn end(&mut self, target: &Target, from: Instant, outcome: Result<usize, String>) {
        let Target { service, way, protocol, at, .. } = *target;
        self.ended.push(Ended { service, way, protocol, at, from, to: Instant::now(), outcome });
    }
}

/// Source ports, one after another.
struct Ports(u16);

impl Ports {
    fn next(&mut self) -> u16 {
        self.0 = if self.0 == u16::MAX { 10_000 } else { self.0 + 1 };
        self.0
    }
}
