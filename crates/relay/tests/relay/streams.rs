//! Streams against a model: each side writes bytes that depend on their position only, with any sizes and pauses, and closes its
//! direction or resets the connection. The other side receives exactly these bytes and the same end.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
#[cfg(target_os = "linux")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ferry_relay::{Protocol, RelayConfig};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

use crate::kit::{Running, config, ends_by_reset, eventually, in_each_family, is_reset, port};

/// An action of one side.
#[derive(Clone, Debug)]
struct Script {
    writes: Vec<Write>,
    resets: bool,
    /// The size of its reads.
    reads_bytes: usize,
    /// A pause before each of the first reads.
    read_pause: Duration,
}

#[derive(Clone, Debug)]
struct Write {
    bytes: usize,
    pause: Duration,
}

/// The observations of one side.
#[derive(Debug)]
struct Seen {
    /// Bytes that it wrote; fewer than in its script if the connection was reset before.
    written: usize,
    /// Bytes that it received, all of them right.
    received: usize,
    /// An error of a write or read.
    error: Option<io::ErrorKind>,
}

fn pause() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => Just(0), 1 => 1u64..4].prop_map(Duration::from_millis)
}

fn script() -> impl Strategy<Value = Script> {
    let bytes = prop_oneof![
        3 => 1usize..100,
        2 => 4000usize..4200,
        2 => 1usize..70_000,
        1 => 300_000usize..2_000_000,
    ];
    let write = (bytes, pause()).prop_map(|(bytes, pause)| Write { bytes, pause });
    let writes = prop::collection::vec(write, 0..6);
    let reads = prop_oneof![Just(1000usize), Just(5000), Just(100_000)];
    (writes, prop::bool::weighted(0.2), reads, pause()).prop_map(|(writes, resets, reads_bytes, read_pause)| Script {
        writes,
        resets,
        reads_bytes,
        read_pause,
    })
}

/// The byte at a position of the stream of one side.
fn byte(side: u8, position: usize) -> u8 {
    let position = position as u64;
    let mixed = (position ^ (position >> 9)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    side ^ mixed.to_be_bytes()[0]
}

/// Plays one side of a connection, and closes it.
fn play(stream: TcpStream, side: u8, other: u8, script: &Script) -> Seen {
    let stream = &stream;
    let reset = AtomicBool::new(false);
    let (written, received) = thread::scope(|scope| {
        let writing = scope.spawn(|| write(stream, side, script, &reset));
        let received = read(stream, other, script, &reset);
        (writing.join().unwrap(), received)
    });
    Seen { written: written.0, received: received.0, error: written.1.or(received.1) }
}

fn write(mut stream: &TcpStream, side: u8, script: &Script, reset: &AtomicBool) -> (usize, Option<io::ErrorKind>) {
    let mut position = 0;
    for write in &script.writes {
        thread::sleep(write.pause);
        let bytes: Vec<u8> = (position..position + write.bytes).map(|position| byte(side, position)).collect();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(count) => {
                    rest = &rest[count..];
                    position += count;
                }
                Err(error) => return (position, Some(error.kind())),
            }
        }
    }
    (position, finish(stream, script, reset).err().map(|error| error.kind()))
}

fn finish(stream: &TcpStream, script: &Script, reset: &AtomicBool) -> io::Result<()> {
    if !script.resets {
        return stream.shutdown(Shutdown::Write);
    }
    // Resets the connection, whoever else has the descriptor (tcp_disconnect in the kernel).
    #[cfg(target_os = "linux")]
    rustix::net::connect_unspec(stream)?;
    // Closing resets it, once the reader has stopped.
    #[cfg(not(target_os = "linux"))]
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
    reset.store(true, Ordering::Relaxed);
    Ok(())
}

/// A wait for bytes ends so that the reader of a side that resets notices it.
const GLANCE: Duration = Duration::from_millis(20);

fn read(mut stream: &TcpStream, other: u8, script: &Script, reset: &AtomicBool) -> (usize, Option<io::ErrorKind>) {
    if script.resets {
        stream.set_read_timeout(Some(GLANCE)).unwrap();
    }
    let mut buffer = vec![0; script.reads_bytes];
    let mut position = 0;
    let mut pauses = 20;
    loop {
        if pauses > 0 {
            pauses -= 1;
            thread::sleep(script.read_pause);
        }
        match stream.read(&mut buffer) {
            Ok(0) => return (position, None),
            Ok(count) => {
                for &received in &buffer[..count] {
                    assert_eq!(received, byte(other, position), "at {position} of the stream");
                    position += 1;
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if reset.load(Ordering::Relaxed) {
                    return (position, None);
                }
            }
            Err(error) => return (position, Some(error.kind())),
        }
    }
}

/// Plays connections with a script for each side at the same time, and compares.
fn compare(scripts: &[(Script, Script)], splice: bool, loopback: SocketAddr) {
    let listener = TcpListener::bind(loopback).unwrap();
    let (_balancer, port) = port(&[listener.local_addr().unwrap()]);
    let relay = Running::new(RelayConfig { splice, ..config() });
    let address = relay.listen(1, Protocol::Tcp, loopback, &port);
    let mut moved = 0;
    thread::scope(|scope| {
        let mut pairs = Vec::new();
        for (client_script, server_script) in scripts {
            let client = TcpStream::connect(address).unwrap();
            let server = listener.accept().unwrap().0;
            let client = scope.spawn(move || play(client, 1, 2, client_script));
            let server = scope.spawn(move || play(server, 2, 1, server_script));
            pairs.push((client, server, client_script, server_script));
        }
        for (client, server, client_script, server_script) in pairs {
            let (client, server) = (client.join().unwrap(), server.join().unwrap());
            check(&client, &server, server_script);
            check(&server, &client, client_script);
            if !client_script.resets && !server_script.resets {
                let total = |script: &Script| script.writes.iter().map(|write| write.bytes).sum::<usize>();
                assert_eq!((client.received, server.received), (total(server_script), total(client_script)));
                assert_eq!((client.error, server.error), (None, None));
            }
            moved += client.received + server.received;
        }
    });
    eventually("all connections have ended", || relay.totals().open_connections.value() == 0);
    let counters = port.counters();
    // A server that resets before the relay has noticed that it is connected has refused.
    let refused = scripts.iter().filter(|(_, server)| server.resets).count() as u64;
    let connections = counters.connections.value();
    assert_eq!(connections + counters.failures.value(), scripts.len() as u64);
    assert!(counters.failures.value() <= refused);
    let counted = counters.bytes_to_clients.value() + counters.bytes_to_endpoints.value();
    assert!(counted >= moved as u64, "{counted} counted, {moved} received");
    assert_eq!(relay.drain(Duration::ZERO), 0);
}

/// One side has received no byte that the other has not written, and knows of its reset.
fn check(seen: &Seen, other: &Seen, other_script: &Script) {
    assert!(seen.received <= other.written, "{seen:?} {other:?}");
    if ends_by_reset() && other_script.resets && other.error.is_none() {
        assert!(seen.error.is_some(), "a reset became a regular end: {seen:?} {other:?}");
    }
}

/// Runs random cases without shrinking, which would take as many namespaces.
fn random(cases: u32, splice: bool) {
    in_each_family(|loopback| {
        let mut runner = TestRunner::new(Cases { cases, max_shrink_iters: 0, ..Cases::default() });
        let connections = prop::collection::vec((script(), script()), 1..4);
        let result = runner.run(&connections, |scripts| {
            compare(&scripts, splice, loopback);
            Ok(())
        });
        result.unwrap();
    });
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_lost_or_invented_in_the_kernel() {
    random(40, true);
}

#[test]
fn nothing_is_lost_or_invented_in_memory() {
    random(20, false);
}

#[test]
fn an_answer_after_half_close_arrives() {
    in_each_family(|loopback| {
        let listener = TcpListener::bind(loopback).unwrap();
        let (_balancer, port) = port(&[listener.local_addr().unwrap()]);
        let relay = Running::new(config());
        let mut client = TcpStream::connect(relay.listen(1, Protocol::Tcp, loopback, &port)).unwrap();
        client.write_all(b"all of the question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut server = listener.accept().unwrap().0;
        let mut text = String::new();
        server.read_to_string(&mut text).unwrap();
        assert_eq!(text, "all of the question");
        thread::sleep(Duration::from_millis(20));
        server.write_all(b"the answer").unwrap();
        drop(server);
        text.clear();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "the answer");
    });
}

/// A server that closes with unread bytes resets the connection after its answer.
#[test]
fn an_answer_before_a_reset_arrives() {
    in_each_family(|loopback| {
        let listener = TcpListener::bind(loopback).unwrap();
        let (_balancer, port) = port(&[listener.local_addr().unwrap()]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, loopback, &port);
        for _ in 0..20 {
            let mut client = TcpStream::connect(address).unwrap();
            let mut server = listener.accept().unwrap().0;
            client.write_all(b"question").unwrap();
            let mut first = [0];
            server.read_exact(&mut first).unwrap();
            server.write_all(b"answer").unwrap();
            let mut answer = [0; 6];
            client.read_exact(&mut answer).unwrap();
            drop(server);
            assert!(is_reset(&mut client));
        }
    });
}

/// The test waits for the bytes that the relay has received; Windows doesn't report their number.
#[cfg(target_os = "linux")]
#[test]
fn an_answer_in_the_same_moment_as_the_reset_arrives() {
    in_each_family(|loopback| {
        let listener = TcpListener::bind(loopback).unwrap();
        let (_balancer, port) = port(&[listener.local_addr().unwrap()]);
        let relay = Arc::new(Running::new(config()));
        let address = relay.listen(1, Protocol::Tcp, loopback, &port);
        let mut client = TcpStream::connect(address).unwrap();
        let mut server = listener.accept().unwrap().0;
        client.write_all(b"question").unwrap();
        let mut first = [0];
        server.read_exact(&mut first).unwrap();
        server.write_all(&vec![7; 100_000]).unwrap();
        // What the relay has received counts as sent: it has acknowledged it.
        eventually("the relay has it", || {
            ferry_kernel::datagram::undelivered_bytes(std::os::fd::AsFd::as_fd(&server)).unwrap() == 0
        });
        drop(server);
        let mut received = Vec::new();
        assert_eq!(client.read_to_end(&mut received).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(received.len(), 100_000);
    });
}

/// Both in memory and in the kernel, where splice(2) goes no further than an urgent byte. One that the relay has not met when the next one
/// comes is an ordinary byte, as for every program that doesn't ask for urgent ones.
#[cfg(target_os = "linux")]
#[test]
fn urgent_bytes_hold_up_nothing() {
    const ROUNDS: usize = 40;
    in_each_family(|loopback| {
        for (splice, bytes) in [(false, 3), (true, 3), (false, 200_000), (true, 200_000)] {
            let listener = TcpListener::bind(loopback).unwrap();
            let (_balancer, port) = port(&[listener.local_addr().unwrap()]);
            let relay = Running::new(RelayConfig { splice, ..config() });
            let address = relay.listen(1, Protocol::Tcp, loopback, &port);
            let client = thread::spawn(move || {
                let client = socket2::Socket::from(TcpStream::connect(address).unwrap());
                for round in 0..ROUNDS {
                    (&client).write_all(&vec![7; bytes]).unwrap();
                    client.send_out_of_band(b"!").unwrap();
                    // Both where the relay has read everything before, and where more is behind it.
                    thread::sleep(Duration::from_millis(round as u64 % 3));
                }
                (&client).write_all(&vec![7; bytes]).unwrap();
                client
            });
            let mut server = listener.accept().unwrap().0;
            server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let (mut ordinary, mut urgent, mut block) = (0, 0, vec![0; 65_536]);
            // Everything arrives before the client closes, which would be one more reason to look at the socket.
            while ordinary < (ROUNDS + 1) * bytes {
                let count = server
                    .read(&mut block)
                    .unwrap_or_else(|error| panic!("{splice} {bytes}: {error} after {ordinary}"));
                assert!(count > 0, "{splice} {bytes}: the end after {ordinary}");
                let read = &block[..count];
                ordinary += read.iter().filter(|byte| **byte == 7).count();
                urgent += read.iter().filter(|byte| **byte == b'!').count();
                assert_eq!(read.iter().filter(|byte| ![7, b'!'].contains(byte)).count(), 0);
            }
            assert!(ordinary == (ROUNDS + 1) * bytes && urgent < ROUNDS, "{splice} {bytes}: {ordinary} {urgent}");
            client.join().unwrap().shutdown(Shutdown::Write).unwrap();
            assert_eq!(server.read(&mut block).unwrap(), 0);
        }
    });
}
