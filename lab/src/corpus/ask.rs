//! Makes many connections concurrently: one thread per machine, one non-blocking socket per connection.
#![expect(clippy::indexing_slicing, reason = "a number is always the place of an ask among all of them")]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::Protocol;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use socket2::Socket;

use super::icmp;
use super::server::socket;
use super::terrain::{SourcePorts, Terrain};
use crate::lab::LabMachine;
use crate::patience::slowly;
use crate::probe::{ProbeAnswer, ProbeOutcome, sctp};

/// Time without an answer that counts as silence.
const SILENCE: Duration = Duration::from_millis(350);
/// Time limit for an expected answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Concurrent connections per machine of those with an expected answer.
const TOGETHER: usize = 48;
/// Number of unanswered connections after which no further ones are started.
const ENOUGH_TIMEOUTS: usize = 8;
/// Epoll token of the ICMP sockets.
const ICMP: u64 = u64::MAX;
/// IP protocol number of SCTP.
const SCTP: u8 = 132;

/// One connection to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// the connecting machine
    pub(super) from: LabMachine,
    /// its source address
    pub(super) source: IpAddr,
    /// the destination
    pub(super) to: SocketAddr,
    /// the protocol
    pub(super) protocol: Protocol,
    /// no answer is expected: start at once, with the short time limit
    pub(super) silent: bool,
}

/// The connections in progress of one machine.
struct Round<'a> {
    asks: &'a [Ask],
    ports: &'a SourcePorts,
    outcomes: Vec<Option<ProbeOutcome>>,
    open: Vec<Option<Opened>>,
    events: OwnedFd,
    icmp: Vec<Socket>,
    /// connections that may time out, in order of their start: those expected to be silent, and the others
    waiting: [VecDeque<usize>; 2],
    timeouts: usize,
}

struct Opened {
    socket: Socket,
    source_port: u16,
    began: Instant,
    text: Vec<u8>,
}

/// Makes all these connections and returns the outcome of each; `None` for those that were not started because too many
/// others had no answer.
pub(super) fn ask_all(terrain: &Terrain, asks: &[Ask]) -> Vec<Option<ProbeOutcome>> {
    let mut outcomes: Vec<Option<ProbeOutcome>> = vec![None; asks.len()];
    let parts = LabMachine::ALL.map(|place| {
        let mine = asks.iter().enumerate().filter(|(_, ask)| ask.from == place);
        mine.map(|(index, ask)| (index, *ask)).collect::<Vec<_>>()
    });
    std::thread::scope(|scope| {
        let threads =
            LabMachine::ALL.into_iter().zip(&parts).filter(|(_, part)| !part.is_empty()).map(|(place, part)| {
                let asks: Vec<Ask> = part.iter().map(|(_, ask)| *ask).collect();
                let ports = Arc::clone(terrain.source_ports(place));
                (part, scope.spawn(move || terrain.host(place).run(move || Round::new(&asks, &ports).run())))
            });
        for (part, thread) in threads.collect::<Vec<_>>() {
            let found = thread.join().expect("connections end one way or another");
            for ((index, _), outcome) in part.iter().zip(found) {
                outcomes[*index] = outcome;
            }
        }
    });
    outcomes
}

// === impl Round ===

impl<'a> Round<'a> {
    fn new(asks: &'a [Ask], ports: &'a SourcePorts) -> Self {
        let events = epoll::create(CreateFlags::CLOEXEC).expect("a set of events");
        let icmp = if asks.iter().any(|ask| ask.protocol == Protocol::Sctp) { icmp::sockets() } else { Vec::new() };
        for socket in &icmp {
            epoll::add(&events, socket, EventData::new_u64(ICMP), EventFlags::IN).expect("watching a socket");
        }
        Self {
            asks,
            ports,
            outcomes: vec![None; asks.len()],
            open: asks.iter().map(|_| None).collect(),
            events,
            icmp,
            waiting: Default::default(),
            timeouts: 0,
        }
    }

    fn run(mut self) -> Vec<Option<ProbeOutcome>> {
        let (silent, mut rest): (VecDeque<usize>, VecDeque<usize>) =
            (0..self.asks.len()).partition(|&at| self.asks[at].silent);
        silent.into_iter().for_each(|at| self.begin(at));
        loop {
            self.give_up();
            if self.timeouts >= ENOUGH_TIMEOUTS {
                rest.clear();
            }
            while self.waiting[1].len() < TOGETHER
                && let Some(at) = rest.pop_front()
            {
                self.begin(at);
            }
            if rest.is_empty() && self.waiting.iter().all(VecDeque::is_empty) {
                return self.outcomes;
            }
            self.wait();
        }
    }

    /// Times out overdue connections, and drops completed ones from the queues.
    fn give_up(&mut self) {
        let now = Instant::now();
        for silent in [true, false] {
            let limit = limit(silent);
            let mut waiting = std::mem::take(&mut self.waiting[usize::from(!silent)]);
            waiting.retain(|&at| {
                let Some(open) = &self.open[at] else { return false };
                let over = now.duration_since(open.began) >= limit;
                if over {
                    self.timeouts += usize::from(!silent);
                    self.end(at, ProbeOutcome::Timeout);
                }
                !over
            });
            self.waiting[usize::from(!silent)] = waiting;
        }
    }

    fn wait(&mut self) {
        let now = Instant::now();
        let next = [true, false].into_iter().filter_map(|silent| {
            let first = self.open[*self.waiting[usize::from(!silent)].front()?].as_ref()?;
            Some(first.began + limit(silent))
        });
        let timeout = next.min().map_or(PATIENCE, |next| next.saturating_duration_since(now));
        let timeout = Timespec::try_from(timeout).expect("seconds fit");
        let mut ready = Vec::with_capacity(64);
        match epoll::wait(&self.events, spare_capacity(&mut ready), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("waiting for answers: {error}"),
        }
        for event in ready {
            match event.data.u64() {
                ICMP => self.read_icmp(),
                at => self.read(usize::try_from(at).expect("an index")),
            }
        }
    }

    fn end(&mut self, at: usize, outcome: ProbeOutcome) {
        self.open[at] = None;
        self.outcomes[at] = Some(outcome);
    }

    fn begin(&mut self, at: usize) {
        let ask = self.asks[at];
        let began = Instant::now();
        match connect(&ask, self.ports) {
            Ok((socket, source_port)) => {
                let number = EventData::new_u64(at.try_into().expect("a small number"));
                epoll::add(&self.events, &socket, number, EventFlags::IN).expect("watching a socket");
                self.open[at] = Some(Opened { socket, source_port, began, text: Vec::new() });
                self.waiting[usize::from(!ask.silent)].push_back(at);
            }
            Err(error) => self.end(at, failure(&error)),
        }
    }

    fn read(&mut self, at: usize) {
        let Some(open) = &mut self.open[at] else { return };
        let outcome = match self.asks[at].protocol {
            Protocol::Tcp => match open.socket.read_to_end(&mut open.text) {
                Ok(_) => Some(ProbeAnswer::parse(&open.text)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                Err(error) => Some(failure(&error)),
            },
            Protocol::Udp => {
                let mut text = [0; 256];
                match open.socket.read(&mut text) {
                    Ok(length) => Some(ProbeAnswer::parse(&text[..length])),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                    Err(error) => Some(failure(&error)),
                }
            }
            Protocol::Sctp => match sctp::receive(&open.socket) {
                Ok((packet, _)) => sctp::cookie(&packet, open.source_port).map(ProbeAnswer::parse),
                // refusals are read from the ICMP sockets, which show the port
                Err(_) => None,
            },
        };
        if let Some(outcome) = outcome {
            self.end(at, outcome);
        }
    }

    /// Reads ICMP errors of SCTP packets. A raw SCTP socket gets an error for every refusal between two addresses, regardless of
    /// ports, so the ICMP message itself is needed.
    fn read_icmp(&mut self) {
        for refusal in icmp::read(&self.icmp) {
            let (source_port, port) = refusal.ports();
            let to = SocketAddr::new(refusal.to, port);
            let about = |at: &usize| {
                let open = self.open[*at].as_ref();
                refusal.protocol == SCTP
                    && self.asks[*at].protocol == Protocol::Sctp
                    && self.asks[*at].to == to
                    && open.is_some_and(|open| open.source_port == source_port)
            };
            if let Some(at) = (0..self.asks.len()).find(about) {
                self.end(at, ProbeOutcome::Refused);
            }
        }
    }
}

/// Time limit of a connection, by its expectation.
fn limit(silent: bool) -> Duration {
    if silent { SILENCE } else { slowly(PATIENCE) }
}

fn failure(error: &std::io::Error) -> ProbeOutcome {
    match error.kind() {
        ErrorKind::ConnectionRefused => ProbeOutcome::Refused,
        ErrorKind::ConnectionReset => ProbeOutcome::Reset,
        _ => ProbeOutcome::Failed(error.to_string()),
    }
}

/// Starts a connection.
fn connect(ask: &Ask, ports: &SourcePorts) -> std::io::Result<(Socket, u16)> {
    let socket = socket(ask.source, ask.protocol)?;
    if ask.protocol == Protocol::Sctp {
        socket.bind(&SocketAddr::new(ask.source, 0).into())?;
        socket.connect(&SocketAddr::new(ask.to.ip(), 0).into())?;
        let port = ports.next();
        sent(socket.send(&sctp::init(port, ask.to.port())))?;
        return Ok((socket, port));
    }
    let port = loop {
        let port = ports.next();
        match socket.bind(&SocketAddr::new(ask.source, port).into()) {
            Ok(()) => break port,
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    };
    if ask.protocol == Protocol::Tcp {
        // closing by a reset leaves neither a TIME_WAIT socket nor a waiting conntrack entry
        socket.set_linger(Some(Duration::ZERO))?;
    }
    match socket.connect(&ask.to.into()) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        result => result?,
    }
    // The kernel keeps a refusal that arrives before `connect` returns as a soft error, and reports it only with the SYN
    // retransmission, a second later.
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    if ask.protocol == Protocol::Udp {
        sent(socket.send(b"?"))?;
    }
    Ok((socket, port))
}

/// Ignores the EPERM of a packet that is dropped or rejected in the output hook of the sending machine. Drop and reject are
/// distinguished by whether an answer arrives, as elsewhere.
fn sent(result: std::io::Result<usize>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::PermissionDenied => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
