//! Endpoints that refuse, don't answer, or vanish; readers that are slow; ports without endpoints.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
#[cfg(target_os = "linux")]
use std::time::Instant;

#[cfg(target_os = "linux")]
use ferry_relay::Keepalive;
use ferry_relay::{Protocol, RelayConfig, SourceRanges};
use socket2::{Domain, Socket, Type};

#[cfg(target_os = "linux")]
use crate::kit::run;
use crate::kit::{
    Echo, LOOPBACK, Running, config, converses, elsewhere, eventually, fill, greeted, in_each_family, is_refused,
    is_reset, isolated, port, reset, resident,
};

/// An address that nothing listens at: its socket is bound, so nothing else takes it, and refuses connections.
fn refusing(loopback: SocketAddr) -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::for_address(loopback), Type::STREAM, None).unwrap();
    socket.bind(&loopback.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A listener with a full queue: the kernel drops further attempts, so a connection attempt gets no answer. On Windows
/// it is refused.
#[cfg(target_os = "linux")]
fn black_hole(loopback: SocketAddr) -> (Socket, Vec<TcpStream>, SocketAddr) {
    let (socket, address) = refusing(loopback);
    socket.listen(0).unwrap();
    let mut filling = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(50)) {
        filling.push(stream);
    }
    (socket, filling, address)
}

#[test]
fn the_next_endpoint_serves_where_one_refuses_and_then_comes_first() {
    in_each_family(|loopback| {
        let (echo, (_bound, refusing)) = (Echo::new(b'a', loopback), refusing(loopback));
        let (balancer, port) = port(&[refusing, echo.address]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, loopback, &port);
        for _ in 0..4 {
            let (mut stream, name) = greeted(address).unwrap();
            assert_eq!(name, b'a');
            converses(&mut stream).unwrap();
        }
        assert_eq!(port.counters().retries.value(), 1, "the refusing endpoint stands behind the other");
        assert_eq!(port.counters().failures.value(), 0);
        assert_eq!(balancer.endpoints()[0].counters().failures.value(), 1);
        assert_eq!(balancer.endpoints()[1].counters().connections.value(), 4);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn the_next_endpoint_serves_where_one_does_not_answer() {
    in_each_family(|loopback| {
        let (echo, (_full, _filling, black_hole)) = (Echo::new(b'a', loopback), black_hole(loopback));
        let (balancer, port) = port(&[black_hole, echo.address]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, loopback, &port);
        let start = Instant::now();
        assert_eq!(greeted(address).unwrap().1, b'a');
        assert!(start.elapsed() >= Duration::from_millis(250));
        assert_eq!(balancer.endpoints()[0].counters().failures.value(), 1);
        assert_eq!(port.counters().retries.value(), 1);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn an_endpoint_alone_is_tried_with_each_limit_and_then_the_client_is_refused() {
    in_each_family(|loopback| {
        let (_full, _filling, black_hole) = black_hole(loopback);
        let (balancer, port) = port(&[black_hole]);
        let limits = [20, 30, 40, 50].map(Duration::from_millis);
        let relay = Running::new(RelayConfig { dial_limits: limits, ..config() });
        let address = relay.listen(1, Protocol::Tcp, loopback, &port);
        let start = Instant::now();
        assert!(is_refused(address));
        assert!(start.elapsed() >= limits.iter().sum());
        assert_eq!(balancer.endpoints()[0].counters().failures.value(), 4);
        assert_eq!((port.counters().retries.value(), port.counters().failures.value()), (3, 1));
    });
}

#[test]
fn an_endpoint_that_refuses_is_not_tried_again() {
    in_each_family(|loopback| {
        let (_bound, refusing) = refusing(loopback);
        let (balancer, port) = port(&[refusing]);
        let relay = Running::new(config());
        assert!(is_refused(relay.listen(1, Protocol::Tcp, loopback, &port)));
        assert_eq!(balancer.endpoints()[0].counters().failures.value(), 1);
        assert_eq!((port.counters().retries.value(), port.counters().failures.value()), (0, 1));
    });
}

#[test]
fn without_an_endpoint_or_outside_the_ranges_the_client_is_refused() {
    in_each_family(|loopback| {
        let (balancer, port) = port(&[]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, loopback, &port);
        assert!(is_refused(address));
        assert_eq!(port.counters().refused_without_endpoint.value(), 1);

        let echo = Echo::new(b'a', loopback);
        relay.replace_endpoints(&balancer, &[echo.address], []);
        port.set_sources(Some(elsewhere(loopback)));
        assert!(is_refused(address));
        assert_eq!(port.counters().refused_sources.value(), 1);
        port.set_sources(Some(SourceRanges::new([loopback.ip().into()])));
        assert!(greeted(address).is_ok());
        assert_eq!(port.counters().connections.value(), 1);
    });
}

#[test]
fn a_silent_endpoint_costs_one_connection_until_the_client_resets_it() {
    in_each_family(|loopback| {
        let silent = TcpListener::bind(loopback).unwrap();
        let (balancer, port) = port(&[silent.local_addr().unwrap()]);
        let relay = Running::new(config());
        let mut client = TcpStream::connect(relay.listen(1, Protocol::Tcp, loopback, &port)).unwrap();
        let mut server = silent.accept().unwrap().0;
        client.write_all(b"question").unwrap();
        // After the client has closed its direction, nothing reads from it any more; its reset is noticed all the same.
        client.shutdown(Shutdown::Write).unwrap();
        let mut question = String::new();
        server.read_to_string(&mut question).unwrap();
        assert_eq!(balancer.endpoints()[0].counters().open.value(), 1);
        reset(client);
        eventually("the connection has ended", || relay.totals().open_connections.value() == 0);
        // Its direction towards the server was closed in order before; the other one isn't.
        eventually("the server learns it", || server.write_all(b"answer").is_err());
        assert_eq!(balancer.endpoints()[0].counters().open.value(), 0);
    });
}

/// Everything that the client has to say is there before an endpoint answers.
#[test]
#[cfg(target_os = "linux")]
fn what_a_client_sends_before_the_endpoint_answers_arrives() {
    in_each_family(|loopback| {
        for (bytes, closes) in [(1, false), (1, true), (4096, true), (10_000, false), (10_000, true)] {
            let (listener, fillers, address) = black_hole(loopback);
            let (balancer, port) = port(&[address]);
            let relay = Running::new(config());
            let mut client = TcpStream::connect(relay.listen(1, Protocol::Tcp, loopback, &port)).unwrap();
            client.write_all(&vec![7; bytes]).unwrap();
            if closes {
                client.shutdown(Shutdown::Write).unwrap();
            }
            let listener = TcpListener::from(listener);
            for _ in &fillers {
                drop(listener.accept().unwrap());
            }
            let mut server = listener.accept().unwrap().0;
            let mut received = vec![0; bytes];
            server.read_exact(&mut received).unwrap();
            assert!(received.iter().all(|byte| *byte == 7));
            if closes {
                assert_eq!(server.read(&mut [0]).unwrap(), 0, "the end of the client's direction");
            }
            server.write_all(b"answer").unwrap();
            drop(server);
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "answer");
            let counted = u64::try_from(bytes).unwrap();
            assert_eq!(port.counters().bytes_to_endpoints.value(), counted);
            assert_eq!(balancer.endpoints()[0].counters().bytes_to_endpoint.value(), counted);
        }
    });
}

/// An endpoint whose connections are cut while one is being made gets none of the client's bytes.
#[test]
#[cfg(target_os = "linux")]
fn an_endpoint_that_is_cut_meanwhile_gets_nothing() {
    in_each_family(|loopback| {
        let (listener, fillers, address) = black_hole(loopback);
        let (balancer, port) = port(&[address]);
        let relay = Running::new(config());
        let mut client = TcpStream::connect(relay.listen(1, Protocol::Tcp, loopback, &port)).unwrap();
        client.write_all(b"question").unwrap();
        eventually("a try", || port.counters().retries.value() > 0);
        balancer.endpoints()[0].cut();
        let listener = TcpListener::from(listener);
        for _ in &fillers {
            drop(listener.accept().unwrap());
        }
        let mut server = listener.accept().unwrap().0;
        assert!(is_reset(&mut server) && is_reset(&mut client));
        assert_eq!(port.counters().bytes_to_endpoints.value(), 0);
    });
}

/// Neither side says anything any more, nor does the network.
#[test]
#[cfg(target_os = "linux")]
fn a_connection_whose_peers_have_vanished_ends() {
    in_each_family(|loopback| {
        // Not an echo server, which would wait for the end of its connection, and learns of none.
        let listener = TcpListener::bind(loopback).unwrap();
        let (_balancer, port) = port(&[listener.local_addr().unwrap()]);
        let keepalive = Keepalive { idle: Duration::from_secs(1), interval: Duration::from_secs(1), probes: 2 };
        let relay = Running::new(RelayConfig { keepalive, ..config() });
        let mut client = TcpStream::connect(relay.listen(1, Protocol::Tcp, loopback, &port)).unwrap();
        client.write_all(b"question").unwrap();
        let mut server = listener.accept().unwrap().0;
        server.read_exact(&mut [0; 8]).unwrap();
        // Once all is acknowledged; of the four sockets, those towards the client and the endpoint.
        let sockets = || run("ss", &["-Htno", "state", "established"]);
        eventually("keepalive on both sides", || sockets().matches("timer:(keepalive").count() == 2);
        run("ip", &["link", "set", "lo", "down"]);
        eventually("the connection has ended", || relay.totals().open_connections.value() == 0);
        run("ip", &["link", "set", "lo", "up"]);
    });
}

#[test]
fn a_slow_reader_stops_the_sender_and_costs_no_memory_of_the_process() {
    isolated(|| {
        let slow = TcpListener::bind(LOOPBACK).unwrap();
        let (_balancer, port) = port(&[slow.local_addr().unwrap()]);
        for splice in if cfg!(target_os = "linux") { &[true, false][..] } else { &[false] } {
            let relay = Running::new(RelayConfig { splice: *splice, ..config() });
            let mut client = TcpStream::connect(relay.listen(1, Protocol::Tcp, LOOPBACK, &port)).unwrap();
            let mut server = slow.accept().unwrap().0;
            let block = vec![7; 1 << 20];
            let before = resident();
            client.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
            let mut written = 0;
            while let Ok(count) = client.write(&block) {
                written += count;
                assert!(written < 1 << 30, "nothing stops the sender");
            }
            assert!(resident() < before + (4 << 20), "{} more bytes", resident() - before);
            // The rest arrives once the server reads.
            client.shutdown(Shutdown::Write).unwrap();
            let mut received = 0;
            let mut buffer = vec![0; 1 << 20];
            loop {
                match server.read(&mut buffer).unwrap() {
                    0 => break,
                    count => received += count,
                }
            }
            assert_eq!(received, written);
        }
    });
}

/// A source that resets while its bytes wait for a slow reader is not read from, and has to be noticed all the same.
#[test]
fn a_reset_behind_a_slow_reader_ends_the_connection() {
    isolated(|| {
        let slow = TcpListener::bind(LOOPBACK).unwrap();
        let (_balancer, port) = port(&[slow.local_addr().unwrap()]);
        let relay = Running::new(config());
        let mut client = TcpStream::connect(relay.listen(1, Protocol::Tcp, LOOPBACK, &port)).unwrap();
        let mut server = slow.accept().unwrap().0;
        fill(std::slice::from_mut(&mut client));
        reset(client);
        eventually("the connection has ended", || relay.totals().open_connections.value() == 0);
        assert!(is_reset(&mut server));
    });
}

/// A server answers while its client still sends, and ends with bytes unread, which the kernel makes a reset. Returns what the client
/// reads, and whether it finds a regular end behind it.
#[cfg(target_os = "linux")]
fn answer_of_a_server_that_resets(loopback: SocketAddr, splice: bool, ends_before: bool) -> (Vec<u8>, bool) {
    let slow = TcpListener::bind(loopback).unwrap();
    let (_balancer, port) = port(&[slow.local_addr().unwrap()]);
    let relay = Running::new(RelayConfig { splice, ..config() });
    let mut client = TcpStream::connect(relay.listen(1, Protocol::Tcp, loopback, &port)).unwrap();
    let mut server = slow.accept().unwrap().0;
    server.write_all(b"answer").unwrap();
    fill(std::slice::from_mut(&mut client));
    client.set_nonblocking(false).unwrap();
    if ends_before {
        server.shutdown(Shutdown::Write).unwrap();
    }
    drop(server);
    let mut answer = Vec::new();
    let ends = client.read_to_end(&mut answer).is_ok();
    eventually("the connection has ended", || relay.totals().open_connections.value() == 0);
    (answer, ends)
}

/// The write that fails gets the error of the reset, and a read after it finds an end.
#[test]
#[cfg(target_os = "linux")]
fn a_reset_that_a_write_meets_is_not_passed_on_as_an_end() {
    in_each_family(|loopback| {
        for splice in [true, false] {
            assert_eq!(answer_of_a_server_that_resets(loopback, splice, false), (b"answer".to_vec(), false));
            assert_eq!(answer_of_a_server_that_resets(loopback, splice, true), (b"answer".to_vec(), true));
        }
    });
}

/// An endpoint that doesn't answer is replaced while a client waits for it.
#[test]
#[cfg(target_os = "linux")]
fn a_client_that_waits_is_served_by_the_endpoint_that_comes_instead() {
    in_each_family(|loopback| {
        let (echo, (_full, _filling, black_hole)) = (Echo::new(b'b', loopback), black_hole(loopback));
        let (balancer, port) = port(&[black_hole]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, loopback, &port);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| greeted(address).unwrap().1);
            eventually("the client is accepted", || relay.totals().open_connections.value() == 1);
            relay.replace_endpoints(&balancer, &[echo.address], []);
            assert_eq!(client.join().unwrap(), b'b');
        });
        assert_eq!(port.counters().failures.value(), 0);
    });
}
