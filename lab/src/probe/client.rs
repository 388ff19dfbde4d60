//! Probing clients: connect from a machine of the lab and classify the outcome.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use ferry_api::object::Protocol;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockRef, Socket, Type};

use super::{ProbeAnswer, ProbeOutcome, ProbeTally, sctp};
use crate::host::Host;

/// Time limit for an expected answer. It arrives within a millisecond; the rest is for a machine under load.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time without an answer that counts as silence: well below the second after which TCP retransmits.
const SILENCE: Duration = Duration::from_millis(400);

/// Source ports of UDP requests that have to be separate flows: above the ports of all servers.
const FLOW_PORTS: RangeInclusive<u16> = 10_000..=u16::MAX;

/// Timeouts after which further attempts are skipped, since they would time out, too.
const ENOUGH_TIMEOUTS: usize = 3;

/// A client on one machine.
#[derive(Clone, Copy)]
pub struct ProbeClient<'a> {
    host: &'a Host,
    caller: Caller,
}

/// Parameters of a connection; sent to the machine's thread.
#[derive(Clone, Copy, Debug)]
struct Caller {
    source: Option<SocketAddr>,
    patience: Duration,
    pause: Duration,
}

// === impl ProbeClient ===

impl<'a> ProbeClient<'a> {
    /// A client on the machine, with the source address that its routes choose.
    pub fn new(host: &'a Host) -> Self {
        Self { host, caller: Caller { source: None, patience: PATIENCE, pause: Duration::ZERO } }
    }

    /// Sets the source address.
    pub fn bound_to(self, source: IpAddr) -> Self {
        self.bound_to_port(SocketAddr::new(source, 0))
    }

    /// Sets the source address and port.
    pub fn bound_to_port(mut self, source: SocketAddr) -> Self {
        self.caller.source = Some(source);
        self
    }

    /// Sets the time limit.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.caller.patience = patience;
        self
    }

    /// Sets the pause between connections of [`ProbeClient::hammer`], which leaves a slow machine time for other work.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.caller.pause = pause;
        self
    }

    /// Connects, sends and waits for the answer, `times` times one after another; gives up after some timeouts.
    pub fn ask(&self, protocol: Protocol, to: SocketAddr, times: usize) -> ProbeTally {
        let caller = self.caller;
        self.host.run(move || {
            let mut outcomes = Vec::with_capacity(times);
            let mut timeouts = 0;
            while outcomes.len() < times && timeouts < ENOUGH_TIMEOUTS {
                outcomes.push(caller.connect(protocol, to));
                timeouts += usize::from(outcomes.last() == Some(&ProbeOutcome::Timeout));
            }
            ProbeTally(outcomes)
        })
    }

    /// The same over TCP.
    pub fn tcp(&self, to: SocketAddr, times: usize) -> ProbeTally {
        self.ask(Protocol::Tcp, to, times)
    }

    /// Connects once, with the time limit of silence.
    pub fn silence(&self, protocol: Protocol, to: SocketAddr) -> ProbeTally {
        self.patience(SILENCE).ask(protocol, to, 1)
    }

    /// Sends an HTTP request; returns the raw response. `None` without a listener, or without a response in time.
    pub fn http(&self, method: &str, to: SocketAddr, path: &str) -> Option<String> {
        let caller = self.caller;
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        self.host.run(move || {
            let mut socket = caller.socket(to, Type::STREAM).ok()?;
            connect(&socket, to, caller.patience).ok()?;
            socket.write_all(request.as_bytes()).ok()?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).ok()?;
            (!answer.is_empty()).then_some(answer)
        })
    }

    /// Connects again and again in a separate thread, without pauses unless one is set, until [`Hammer::stop`]. Over UDP each request is a separate flow, as long as
    /// there are ports: a request from an earlier one's port follows its conntrack entry, and when such an entry is deleted
    /// because its endpoint is gone, an answer in transit is lost.
    pub fn hammer(&self, protocol: Protocol, to: SocketAddr) -> Hammer {
        let (stop, stopped) = std::sync::mpsc::channel();
        let caller = self.caller;
        let thread = self.host.thread(move || {
            let mut outcomes = Vec::new();
            let mut ports = FLOW_PORTS.cycle();
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let caller = match protocol {
                    Protocol::Udp => caller.at_port(to, ports.next().expect("it begins anew")),
                    Protocol::Tcp | Protocol::Sctp => caller,
                };
                outcomes.push((Instant::now(), caller.connect(protocol, to)));
                std::thread::sleep(caller.pause);
            }
            outcomes
        });
        Hammer { stop, thread }
    }
}

/// A client that connects again and again.
pub struct Hammer {
    stop: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Vec<(Instant, ProbeOutcome)>>,
}

// === impl Hammer ===

impl Hammer {
    /// Ends it; returns the start time and the outcome of each connection.
    pub fn stop(self) -> Vec<(Instant, ProbeOutcome)> {
        self.stop.send(()).expect("it runs until it is told");
        self.thread.join().expect("it doesn't panic")
    }
}

// === impl Caller ===

impl Caller {
    /// Sets the source port, with any address.
    fn at_port(mut self, to: SocketAddr, port: u16) -> Self {
        let address = self.source.map_or_else(|| unspecified(to), |source| source.ip());
        self.source = Some(SocketAddr::new(address, port));
        self
    }

    /// Connects once, from the namespace of the calling thread.
    fn connect(self, protocol: Protocol, to: SocketAddr) -> ProbeOutcome {
        let reply = match protocol {
            Protocol::Tcp => self.tcp(to),
            Protocol::Udp => self.udp(to),
            Protocol::Sctp => self.sctp(to),
        };
        match reply {
            Ok(text) => ProbeAnswer::parse(&text),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused => ProbeOutcome::Refused,
                ErrorKind::ConnectionReset => ProbeOutcome::Reset,
                ErrorKind::TimedOut | ErrorKind::WouldBlock => ProbeOutcome::Timeout,
                _ => ProbeOutcome::Failed(error.to_string()),
            },
        }
    }

    fn tcp(self, to: SocketAddr) -> io::Result<Vec<u8>> {
        let mut socket = self.socket(to, Type::STREAM)?;
        connect(&socket, to, self.patience)?;
        // closing by a reset leaves neither a TIME_WAIT socket nor a waiting conntrack entry
        SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        let mut text = Vec::new();
        socket.read_to_end(&mut text)?;
        Ok(text)
    }

    fn udp(self, to: SocketAddr) -> io::Result<Vec<u8>> {
        let mut socket = self.socket(to, Type::DGRAM)?;
        socket.connect(&to.into())?;
        sent(socket.send(b"?"))?;
        let mut text = vec![0; 128];
        let length = socket.read(&mut text)?;
        text.truncate(length);
        Ok(text)
    }

    fn sctp(self, to: SocketAddr) -> io::Result<Vec<u8>> {
        static PORT: AtomicU16 = AtomicU16::new(2000);
        let source = self.source.unwrap_or(SocketAddr::new(unspecified(to), 0));
        let port = if source.port() == 0 { PORT.fetch_add(1, Ordering::Relaxed) } else { source.port() };
        let socket = sctp::socket(source.ip())?;
        socket.connect(&SocketAddr::new(to.ip(), 0).into())?;
        socket.set_read_timeout(Some(self.patience))?;
        sent(socket.send(&sctp::init(port, to.port())))?;
        let start = Instant::now();
        while start.elapsed() < self.patience {
            let (packet, _) = sctp::receive(&socket)?;
            if let Some(text) = sctp::cookie(&packet, port) {
                return Ok(text.to_vec());
            }
        }
        Err(ErrorKind::TimedOut.into())
    }

    fn socket(self, to: SocketAddr, kind: Type) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(to), kind, None)?;
        if let Some(source) = self.source {
            socket.set_reuse_address(true)?;
            socket.bind(&source.into())?;
        }
        socket.set_read_timeout(Some(self.patience))?;
        Ok(socket)
    }
}

/// The unspecified address of the same family.
fn unspecified(to: SocketAddr) -> IpAddr {
    match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Connects over TCP and reports a refusal at once: the kernel keeps one that arrives before `connect` returns as a soft
/// error, and reports it only with the SYN retransmission, a second later.
fn connect(socket: &Socket, to: SocketAddr, patience: Duration) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        result => result?,
    }
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    let timeout = Timespec::try_from(patience).expect("seconds fit");
    let mut waiting = [PollFd::new(socket, PollFlags::OUT)];
    if poll(&mut waiting, Some(&timeout))? == 0 {
        return Err(ErrorKind::TimedOut.into());
    }
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    socket.set_nonblocking(false)
}

/// Ignores the EPERM of a packet that is dropped or rejected in the output hook of the sending machine. Drop and reject are
/// distinguished by whether an answer arrives, as elsewhere.
fn sent(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::PermissionDenied => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
