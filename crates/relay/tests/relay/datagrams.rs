//! UDP: answers, associations and their end.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

#[cfg(windows)]
use ferry_relay::{Bind, Listener, ListenerState};
use ferry_relay::{ListenerId, Protocol, RelayConfig, SourceRanges};

use crate::kit::{
    self, LOOPBACK, Running, config, converses, elsewhere, eventually, greeted, in_each_family, isolated, many, port,
    reports_refused_datagrams,
};

/// Clients in the test; the benchmark has 50,000.
const MANY: usize = 4_000;

/// An endpoint that answers each datagram with its name and the same bytes.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(crate) fn new(name: u8, address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let address = socket.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![name; 65_536];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((count, client)) = socket.recv_from(&mut buffer[1..]) {
                    // A client that has gone refuses the answer.
                    drop(socket.send_to(&buffer[..=count], client));
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn client(to: SocketAddr) -> UdpSocket {
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
    client_at(any, to)
}

/// A client with this address.
pub(crate) fn client_at(from: SocketAddr, to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(from).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// Sends until an answer comes, and returns the name in it. A connected client takes answers from the address it sends to only.
pub(crate) fn asks(client: &UdpSocket, question: &[u8]) -> u8 {
    let mut name = 0;
    eventually(&format!("an answer to {} bytes from {:?}", question.len(), client.peer_addr()), || {
        let mut answer = vec![0; 65_536];
        client.send(question).unwrap();
        let received = client.recv(&mut answer);
        name = answer[0];
        received.is_ok_and(|count| &answer[1..count] == question)
    });
    name
}

/// No association ends by itself during a test.
fn patient() -> RelayConfig {
    RelayConfig { udp_idle: Duration::from_secs(600), ..config() }
}

#[test]
fn datagrams_of_any_size_are_answered_from_the_address_they_were_sent_to() {
    isolated(|| {
        for (listen, to, endpoint) in [
            // Under Wine no answer comes from another address of loopback.
            ("127.0.0.1:0", "127.0.0.1", if cfg!(windows) { "127.0.0.1:0" } else { "127.0.0.2:0" }),
            ("[::1]:0", "::1", "[::1]:0"),
            #[cfg(target_os = "linux")]
            ("0.0.0.0:0", "127.0.0.7", "127.0.0.1:0"),
            #[cfg(target_os = "linux")]
            ("[::]:0", "::1", "[::1]:0"),
        ] {
            let echo = Echo::new(b'a', endpoint.parse().unwrap());
            let (_balancer, port) = port(&[echo.address]);
            let relay = Running::new(patient());
            let bound = relay.listen(1, Protocol::Udp, listen.parse().unwrap(), &port);
            let client = client(SocketAddr::new(to.parse().unwrap(), bound.port()));
            let mut bytes = 0;
            for size in [1, 0, 1400, 60_000] {
                assert_eq!(asks(&client, &vec![7; size]), b'a');
                bytes += size as u64;
            }
            let counters = port.counters();
            // The endpoint's name is a byte of each answer.
            eventually("the last answer is counted", || counters.bytes_to_clients.value() >= bytes + 4);
            assert!(counters.bytes_to_endpoints.value() >= bytes);
            assert_eq!((counters.associations.value(), counters.open_associations.value()), (1, 1));
        }
    });
}

/// Its answers would leave from another address than the client has sent to.
#[cfg(windows)]
#[test]
fn a_listener_without_an_address_is_refused() {
    isolated(|| {
        let (_balancer, port) = port(&[]);
        let relay = Running::new(config());
        for address in ["0.0.0.0:0", "[::]:0"] {
            let bind = Bind::Address { address: address.parse().unwrap(), reuse_port: false };
            let state = relay.add(ListenerId(1), Listener { protocol: Protocol::Udp, bind, port: Arc::clone(&port) });
            assert!(
                matches!(&state, ListenerState::Failed(error) if error.text.contains("needs an address")),
                "{state:?}"
            );
        }
    });
}

#[test]
fn clients_have_associations_of_their_own_which_expire() {
    isolated(|| {
        let echoes = [Echo::new(b'a', LOOPBACK), Echo::new(b'b', LOOPBACK)];
        let (balancer, port) = port(&[echoes[0].address, echoes[1].address]);
        let relay = Running::new(RelayConfig { udp_idle: Duration::from_secs(4), ..config() });
        let address = relay.listen(1, Protocol::Udp, LOOPBACK, &port);
        let clients: Vec<_> = (0..4).map(|_| client(address)).collect();
        let names: Vec<u8> = clients.iter().map(|client| asks(client, b"question")).collect();
        assert_eq!(names, b"abab", "endpoints take turns");
        let again: Vec<u8> = clients.iter().map(|client| asks(client, b"question")).collect();
        assert_eq!(again, names);
        eventually("all have expired", || relay.totals().open_associations.value() == 0);
        assert!(balancer.endpoints().iter().all(|endpoint| endpoint.counters().open.value() == 0));
        assert_eq!(asks(&clients[0], b"question"), b'a', "the turn is the first one's again");
    });
}

#[test]
fn an_icmp_error_ends_an_association_at_once() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'b', loopback);
        let gone = UdpSocket::bind(loopback).unwrap();
        let (balancer, port) = port(&[gone.local_addr().unwrap(), echo.address]);
        let relay = Running::new(patient());
        let client = client(relay.listen(1, Protocol::Udp, loopback, &port));
        client.send(b"question").unwrap();
        gone.recv(&mut [0; 100]).unwrap();
        assert_eq!(port.counters().open_associations.value(), 1);
        drop(gone);
        client.send(b"question").unwrap();
        eventually("it has ended", || {
            if !reports_refused_datagrams() {
                client.send(b"question").unwrap();
            }
            balancer.endpoints()[0].counters().failures.value() == 1
        });
        assert_eq!(asks(&client, b"question"), b'b', "the endpoint that failed stands behind the other");
    });
}

#[test]
fn a_client_of_a_removed_endpoint_gets_another_with_its_next_datagram() {
    in_each_family(|loopback| {
        let (first, second) = (Echo::new(b'a', loopback), Echo::new(b'b', loopback));
        let (balancer, port) = port(&[first.address]);
        let relay = Running::new(patient());
        let client = client(relay.listen(1, Protocol::Udp, loopback, &port));
        assert_eq!(asks(&client, b"question"), b'a');
        relay.replace_endpoints(&balancer, &[second.address], [first.address]);
        assert_eq!(asks(&client, b"question"), b'a', "it is kept");
        relay.replace_endpoints(&balancer, &[second.address], []);
        assert_eq!(asks(&client, b"question"), b'b');
        eventually("the old association has ended", || port.counters().open_associations.value() == 1);
    });
}

#[test]
fn refusals_are_counted_and_nothing_is_answered() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'a', loopback);
        let (balancer, port) = port(&[]);
        let relay = Running::new(RelayConfig { max_associations: 1, ..patient() });
        let address = relay.listen(1, Protocol::Udp, loopback, &port);
        let (first, second) = (client(address), client(address));
        let counters = port.counters();
        first.send(b"question").unwrap();
        eventually("refused without an endpoint", || counters.refused_without_endpoint.value() == 1);
        relay.replace_endpoints(&balancer, &[echo.address], []);
        port.set_sources(Some(elsewhere(loopback)));
        first.send(b"question").unwrap();
        eventually("refused outside the ranges", || counters.refused_sources.value() == 1);
        port.set_sources(Some(SourceRanges::new([loopback.ip().into()])));
        assert_eq!(asks(&first, b"question"), b'a');
        second.send(b"question").unwrap();
        eventually("refused at the limit", || counters.refused_at_limit.value() == 1);
        let nothing = second.recv(&mut [0; 10]).unwrap_err().kind();
        assert!(matches!(nothing, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{nothing}");
    });
}

#[test]
fn a_removed_listener_takes_its_associations_along() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'a', loopback);
        let (_balancer, port) = port(&[echo.address]);
        let relay = Running::new(patient());
        let address = relay.listen(1, Protocol::Udp, loopback, &port);
        let clients: Vec<_> = (0..20).map(|_| client(address)).collect();
        for client in &clients {
            asks(client, b"question");
        }
        assert_eq!(relay.totals().open_associations.value(), 20);
        assert!(relay.remove(ListenerId(1)));
        eventually("they have ended", || relay.totals().open_associations.value() == 0);
        // The address is free.
        assert_eq!(UdpSocket::bind(address).unwrap().local_addr().unwrap(), address);
    });
}

#[test]
fn thousands_of_clients() {
    isolated(|| {
        let echo = Echo::new(b'a', LOOPBACK);
        let (_balancer, port) = port(&[echo.address]);
        let relay = Running::new(patient());
        let address = relay.listen(1, Protocol::Udp, LOOPBACK, &port);
        let clients: Vec<_> = (0..many(MANY)).map(|_| client(address)).collect();
        for (number, client) in clients.iter().enumerate() {
            asks(client, &number.to_be_bytes());
        }
        assert_eq!(relay.totals().open_associations.value(), many(MANY));
        assert_eq!(port.counters().associations.value(), many(MANY) as u64);
    });
}

/// The socket is ready all the time, so nothing but a turn that its task gives away lets others run.
#[test]
fn a_flood_leaves_turns_to_others_of_its_thread() {
    isolated(|| {
        let (datagrams, streams) = (Echo::new(b'a', LOOPBACK), kit::Echo::new(b'b', LOOPBACK));
        let relay = Running::new(RelayConfig { workers: 1, ..patient() });
        let flooded = relay.listen(1, Protocol::Udp, LOOPBACK, &port(&[datagrams.address]).1);
        let other = relay.listen(2, Protocol::Tcp, LOOPBACK, &port(&[streams.address]).1);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Datagrams of as many clients as a batch holds take the relay longer than it takes to send them.
            for _ in 0..3 {
                scope.spawn(|| {
                    let clients: Vec<UdpSocket> = (0..64).map(|_| client(flooded)).collect();
                    while !stop.load(Ordering::Relaxed) {
                        // A full queue refuses them.
                        clients.iter().for_each(|client| drop(client.send(&[7; 64])));
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(200));
            let (mut stream, name) = greeted(other).unwrap();
            assert_eq!(name, b'b');
            (0..100).for_each(|_| converses(&mut stream).unwrap());
            // The listener's task ends between two turns, too.
            assert!(relay.remove(ListenerId(1)));
            stop.store(true, Ordering::Relaxed);
        });
    });
}
