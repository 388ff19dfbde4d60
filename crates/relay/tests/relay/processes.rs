//! The relay in a process of its own, with limits of its own: little memory, and more clients than its descriptors allow. No memory is
//! left of what has ended.

use std::io::{self, BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ferry_relay::{Protocol, RelayConfig};
use rustix::process::{Resource, Rlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::kit::{Echo, LOOPBACK, Running, config, converses, eventually, fill, greeted, isolated, port, resident};

/// The part that a child of a test plays; children run the test again with it.
const PART: &str = "FERRY_RELAY_PART";
/// The beginning of a line that a child prints for the test, between those of the test harness.
const MARK: &str = "child: ";
/// A client whose connection neither fails nor is served within this time is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A child that plays a part of a test. Ends when it is dropped.
struct Part {
    process: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

// === impl Part ===

impl Part {
    fn start(test: &str, part: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(PART, part).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take(), process.stdout.take().unwrap());
        Self { process, input, lines: BufReader::new(output).lines() }
    }

    /// The next values that it prints.
    fn values<T: std::str::FromStr>(&mut self) -> Vec<T> {
        // The harness prints the test's name and no end of line before the first one.
        let line = self.lines.find_map(|line| Some(line.unwrap().split_once(MARK)?.1.to_owned())).expect("its output");
        line.split(' ').map(|value| value.parse().ok().expect("a value")).collect()
    }

    /// Asks for the next values.
    fn ask<T: std::str::FromStr>(&mut self) -> Vec<T> {
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
        self.values()
    }

    /// Number of ends of pipes among its descriptors.
    fn pipe_ends(&self) -> usize {
        let is_pipe = |link: PathBuf| link.to_string_lossy().starts_with("pipe:");
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap();
        descriptors.filter(|entry| std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(is_pipe)).count()
    }

    /// Lets it end, which has to be a success.
    fn end(mut self) {
        self.input = None;
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It has ended already, unless the test has failed.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Prints values for the test.
#[expect(clippy::print_stdout, reason = "the test reads it")]
fn report(values: &[&dyn ToString]) {
    println!("{MARK}{}", values.iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" "));
}

/// Plays the relay to these endpoints, of TCP and UDP: prints its addresses, and for each line of input the numbers of open
/// connections and associations, of refusals at the limit and failures, its limit of connections, and its memory.
fn relay(endpoints: [SocketAddr; 2], splice: bool) {
    let descriptors = ferry_relay::raise_limit(200_000);
    let mut config = RelayConfig { splice, udp_idle: Duration::from_secs(600), ..config() };
    config.fit(descriptors);
    let limit = config.max_connections;
    let running = Running::new(config);
    let [(_, of_streams), (_, of_datagrams)] = endpoints.map(|endpoint| port(&[endpoint]));
    let streams = running.listen(1, Protocol::Tcp, LOOPBACK, &of_streams);
    let datagrams = running.listen(2, Protocol::Udp, LOOPBACK, &of_datagrams);
    report(&[&streams, &datagrams]);
    for _line in io::stdin().lines() {
        let (totals, counters) = (running.totals(), of_streams.counters());
        report(&[
            &totals.open_connections.value(),
            &totals.open_associations.value(),
            &counters.refused_at_limit.value(),
            &counters.failures.value(),
            &limit,
            &resident(),
        ]);
    }
}

/// An endpoint that greets each connection by a byte and reads nothing.
fn greet(listener: &TcpListener, count: usize) -> Vec<TcpStream> {
    let accepted = (0..count).map(|_| {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(b"a").unwrap();
        stream
    });
    accepted.collect()
}

/// A listener that many can connect to at once. It does not wait for ever for those that a failure keeps away.
fn spacious_listener() -> TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&LOOPBACK.into()).unwrap();
    socket.listen(4096).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.into()
}

#[test]
fn sixty_four_mebibytes_serve_thousands() {
    const TEST: &str = "processes::sixty_four_mebibytes_serve_thousands";
    const CLIENTS: usize = 3_000;
    const SLOW: usize = 100;
    const LIMIT_BYTES: u64 = 64 << 20;
    if let Ok(part) = std::env::var(PART) {
        // Of writable memory, stacks included: an allocation beyond it fails, which ends the process.
        setrlimit(Resource::Data, Rlimit { current: Some(LIMIT_BYTES), maximum: Some(LIMIT_BYTES) }).unwrap();
        let (splice, endpoints) = part.split_once(' ').unwrap();
        let endpoints: Vec<_> = endpoints.split(' ').map(|address| address.parse().unwrap()).collect();
        return relay([endpoints[0], endpoints[1]], splice == "true");
    }
    for splice in [true, false] {
        isolated(|| {
            let (streams, datagrams) = (spacious_listener(), UdpSocket::bind(LOOPBACK).unwrap());
            let addresses = [streams.local_addr().unwrap(), datagrams.local_addr().unwrap()];
            let mut child = Part::start(TEST, &format!("{splice} {} {}", addresses[0], addresses[1]));
            let relay: Vec<SocketAddr> = child.values();
            std::thread::scope(|scope| {
                let accepting = scope.spawn(|| greet(&streams, CLIENTS));
                let mut clients: Vec<_> = (0..CLIENTS).map(|_| greeted(relay[0]).unwrap().0).collect();
                let servers = accepting.join().unwrap();
                let associated: Vec<_> = (0..CLIENTS).map(|_| UdpSocket::bind(LOOPBACK).unwrap()).collect();
                for client in &associated {
                    client.send_to(b"question", relay[1]).unwrap();
                    datagrams.recv(&mut [0; 8]).unwrap();
                }
                let before = child.pipe_ends();
                let written = fill(&mut clients[..SLOW]);
                assert!(written > 20 << 20, "{written} bytes wait for slow readers");
                // Each stream has a pipe with the bytes that wait, unless they are copied through memory.
                let pipes = (child.pipe_ends() - before) / 2;
                assert_eq!(pipes, if splice { SLOW } else { 0 }, "pipes");
                let figures: Vec<u64> = child.ask();
                assert_eq!(figures[..4], [CLIENTS as u64, CLIENTS as u64, 0, 0], "open connections and associations");
                assert!(figures[5] < LIMIT_BYTES, "{} bytes of memory", figures[5]);
                // The relay goes on.
                let accepting = scope.spawn(|| greet(&streams, 1));
                assert!(greeted(relay[0]).is_ok());
                drop((clients, servers, accepting.join().unwrap()));
            });
            eventually("all have ended", || child.ask::<u64>()[0] == 0);
            child.end();
        });
    }
}

/// More than the descriptors of one process allow, on most machines: those within the limit are served, the others refused.
#[test]
fn twenty_thousand_clients_at_once() {
    const TEST: &str = "processes::twenty_thousand_clients_at_once";
    const CLIENTS: usize = 20_000;
    const PROCESSES: usize = 2;
    if let Ok(part) = std::env::var(PART) {
        let (part, address) = part.split_once(' ').unwrap();
        let address: SocketAddr = address.parse().unwrap();
        return if part == "relay" { relay([address; 2], true) } else { crowd(address, CLIENTS / PROCESSES) };
    }
    isolated(|| {
        let endpoint = spacious_listener();
        let address = endpoint.local_addr().unwrap();
        let mut child = Part::start(TEST, &format!("relay {address}"));
        let relayed = child.values::<SocketAddr>()[0];
        let limit = usize::try_from(child.ask::<u64>()[4]).unwrap();
        let expected = limit.min(CLIENTS);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| greet(&endpoint, expected));
            let mut crowds: Vec<_> = (0..PROCESSES).map(|_| Part::start(TEST, &format!("crowd {relayed}"))).collect();
            let outcomes: Vec<Vec<usize>> = crowds.iter_mut().map(Part::values).collect();
            let sum = |position: usize| outcomes.iter().map(|outcome| outcome[position]).sum::<usize>();
            let figures: Vec<u64> = child.ask();
            assert_eq!(
                (sum(0), sum(1)),
                (expected, CLIENTS - expected),
                "served and refused, {outcomes:?} {figures:?}"
            );
            assert_eq!(figures[0], expected as u64);
            assert_eq!((figures[2], figures[3]), ((CLIENTS - expected) as u64, 0), "refusals and failures");
            crowds.into_iter().for_each(Part::end);
            drop(accepting.join().unwrap());
        });
        eventually("all have ended", || child.ask::<u64>()[0] == 0);
        // There is room again.
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| greet(&endpoint, 1));
            assert!(greeted(relayed).is_ok());
            drop(accepting.join().unwrap());
        });
        child.end();
    });
}

/// Plays many clients at once, and prints the numbers of those that were served and refused. They stay connected until the input
/// ends.
fn crowd(address: SocketAddr, clients: usize) {
    const THREADS: usize = 4;
    ferry_relay::raise_limit(200_000);
    let end = Instant::now() + PATIENCE;
    let connect = || -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(end.saturating_duration_since(Instant::now())))?;
        stream.read_exact(&mut [0])?;
        Ok(stream)
    };
    let outcomes: Vec<io::Result<TcpStream>> = std::thread::scope(|scope| {
        let some = || (0..clients / THREADS).map(|_| connect()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let is_refusal = |outcome: &io::Result<TcpStream>| {
        outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
    };
    let (served, refused) = (
        outcomes.iter().filter(|outcome| outcome.is_ok()).count(),
        outcomes.iter().filter(|outcome| is_refusal(outcome)).count(),
    );
    report(&[&served, &refused]);
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A leak of 500 bytes a connection, or more, is found.
#[test]
fn no_memory_is_left_of_what_has_ended() {
    const CYCLES: u64 = 6_000;
    isolated(|| {
        let echo = Echo::new(b'a', LOOPBACK);
        let datagrams = UdpSocket::bind(LOOPBACK).unwrap();
        let refusing = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        refusing.bind(&LOOPBACK.into()).unwrap();
        let refusing = refusing.local_addr().unwrap().as_socket().unwrap();
        let relay = Running::new(RelayConfig { udp_idle: Duration::from_millis(20), ..config() });
        let (balancer, of_streams) = port(&[echo.address]);
        let streams = relay.listen(1, Protocol::Tcp, LOOPBACK, &of_streams);
        let associations = relay.listen(2, Protocol::Udp, LOOPBACK, &port(&[datagrams.local_addr().unwrap()]).1);
        let cycle = |count: u64| {
            for number in 0..count {
                let (mut stream, _) = greeted(streams).unwrap();
                converses(&mut stream).unwrap();
                match number % 4 {
                    // A stream that goes through a pipe.
                    0 => stream.write_all(&[7; 20_000]).unwrap(),
                    1 => rustix::net::connect_unspec(&stream).unwrap(),
                    // The endpoint that fails goes, and comes again as another one.
                    2 => relay.replace_endpoints(&balancer, &[refusing, echo.address], []),
                    _ => relay.replace_endpoints(&balancer, &[echo.address], []),
                }
                drop(stream);
                UdpSocket::bind(LOOPBACK).unwrap().send_to(b"question", associations).unwrap();
                datagrams.recv(&mut [0; 8]).unwrap();
            }
            eventually("all have ended", || {
                let totals = relay.totals();
                totals.open_connections.value() == 0 && totals.open_associations.value() == 0
            });
        };
        cycle(1_000);
        let before = resident();
        cycle(CYCLES);
        let more = resident().saturating_sub(before);
        assert!((more as u64) < CYCLES * 500, "{more} bytes more after {CYCLES} connections and associations");
    });
}
