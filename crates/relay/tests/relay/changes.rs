//! Changes of endpoints and listeners while connections are open; hand-over; the end.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::kit::{
    Echo, LOOPBACK, Running, config, converses, eventually, greeted, in_each_family, is_reset, isolated, listener, port,
};
use ferry_relay::{Bind, Listener, ListenerId, ListenerState, Protocol, Relay, RelayConfig, Removal};

#[test]
fn a_removed_endpoint_gets_no_new_connection_and_keeps_its_old_ones() {
    isolated(|| {
        let (first, second) = (Echo::new(b'a', LOOPBACK), Echo::new(b'b', LOOPBACK));
        let (balancer, port) = port(&[first.address]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, LOOPBACK, &port);
        let (mut old, name) = greeted(address).unwrap();
        assert_eq!(name, b'a');
        let removed = Arc::clone(&balancer.endpoints()[0]);
        relay.replace_endpoints(&balancer, &[second.address], []);
        for _ in 0..3 {
            assert_eq!(greeted(address).unwrap().1, b'b');
        }
        converses(&mut old).unwrap();
        assert_eq!(removed.counters().open.value(), 1);
        drop(old);
        eventually("it has ended", || removed.counters().open.value() == 0);
    });
}

#[test]
fn connections_of_a_removed_endpoint_are_reset_at_once_or_after_a_grace() {
    isolated(|| {
        let (first, second) = (Echo::new(b'a', LOOPBACK), Echo::new(b'b', LOOPBACK));
        for (removal, lives_on) in [(Removal::Cut, false), (Removal::Grace(Duration::from_millis(300)), true)] {
            let (balancer, port) = port(&[first.address]);
            let relay = Running::new(RelayConfig { removal, ..config() });
            let address = relay.listen(1, Protocol::Tcp, LOOPBACK, &port);
            let (mut old, _) = greeted(address).unwrap();
            relay.replace_endpoints(&balancer, &[second.address], []);
            let (mut new, _) = greeted(address).unwrap();
            if lives_on {
                converses(&mut old).unwrap();
            }
            assert!(is_reset(&mut old));
            converses(&mut new).unwrap();
        }
    });
}

#[test]
fn connections_of_an_endpoint_that_is_kept_stay_until_it_is_gone() {
    isolated(|| {
        let (first, second) = (Echo::new(b'a', LOOPBACK), Echo::new(b'b', LOOPBACK));
        let (balancer, port) = port(&[first.address]);
        let relay = Running::new(RelayConfig { removal: Removal::Cut, ..config() });
        let address = relay.listen(1, Protocol::Tcp, LOOPBACK, &port);
        let (mut old, _) = greeted(address).unwrap();
        relay.replace_endpoints(&balancer, &[second.address], [first.address]);
        assert_eq!(greeted(address).unwrap().1, b'b');
        converses(&mut old).unwrap();
        relay.replace_endpoints(&balancer, &[second.address], []);
        assert!(is_reset(&mut old));
    });
}

#[test]
fn a_removed_listener_is_closed_and_its_connections_live_on() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'a', loopback);
        let (_balancer, port) = port(&[echo.address]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, loopback, &port);
        let (mut stream, _) = greeted(address).unwrap();
        assert!(relay.remove(ListenerId(1)));
        assert!(!relay.remove(ListenerId(1)));
        assert!(TcpStream::connect(address).is_err());
        converses(&mut stream).unwrap();
        // The address is free at once.
        assert_eq!(relay.listen(2, Protocol::Tcp, address, &port), address);
        assert!(greeted(address).is_ok());
    });
}

#[test]
fn a_taken_port_is_reported_and_tried_again_while_the_others_work() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'a', loopback);
        let (_balancer, port) = port(&[echo.address]);
        let other = TcpListener::bind(loopback).unwrap();
        let taken = other.local_addr().unwrap();
        let relay = Running::new(config());
        let ListenerState::Failed(error) = relay.add(ListenerId(1), listener(taken, &port)) else { panic!() };
        assert!(
            error.text.contains(&taken.to_string())
                && error.text.contains(if cfg!(windows) { "10048" } else { "in use" }),
            "{error}"
        );
        assert_eq!(relay.totals().listener_errors.value(), 1);
        assert!(greeted(relay.listen(2, Protocol::Tcp, loopback, &port)).is_ok());
        drop(other);
        eventually("it is open", || relay.states()[0].1 == ListenerState::Open(taken));
        assert!(greeted(taken).is_ok());
    });
}

/// Clients connect without a pause while a second relay takes the sockets over and the first one ends.
#[test]
fn a_hand_over_refuses_no_connection() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'a', loopback);
        let (_balancer, port) = port(&[echo.address]);
        let old = Running::new(config());
        let address = old.listen(1, Protocol::Tcp, loopback, &port);
        let new = Running::new(config());
        let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        converses(&mut greeted(address).unwrap().0).unwrap();
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let connected = |more| {
                let before = count.load(Ordering::Relaxed);
                eventually("more connections", || count.load(Ordering::Relaxed) >= before + more);
            };
            connected(50);
            for (id, socket) in old.sockets().unwrap() {
                let bind = Bind::Open(socket);
                let listener = Listener { protocol: Protocol::Tcp, bind, port: Arc::clone(&port) };
                assert_eq!(new.add(id, listener), ListenerState::Open(address));
            }
            assert_eq!(old.drain(Duration::from_secs(20)), 0);
            connected(50);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(port.counters().failures.value(), 0);
    });
}

#[test]
fn the_end_closes_everything_for_all_who_share_the_relay() {
    in_each_family(|loopback| {
        let endpoint = UdpSocket::bind(loopback).unwrap();
        let (_balancer, port) = port(&[endpoint.local_addr().unwrap()]);
        let config = RelayConfig { udp_idle: Duration::from_secs(600), ..config() };
        let (relay, workers) = Relay::new(config).unwrap();
        let threads: Vec<_> = workers.into_iter().map(|worker| std::thread::spawn(|| worker.run())).collect();
        let bind = Bind::Address { address: loopback, reuse_port: false };
        let datagrams = Listener { protocol: Protocol::Udp, bind, port: Arc::clone(&port) };
        let ListenerState::Open(address) = relay.add(ListenerId(1), datagrams) else { panic!() };
        let client = UdpSocket::bind(loopback).unwrap();
        client.send_to(b"question", address).unwrap();
        endpoint.recv(&mut [0; 8]).unwrap();
        assert_eq!(relay.totals().open_associations.value(), 1);
        assert_eq!(std::thread::scope(|scope| scope.spawn(|| relay.drain(Duration::ZERO)).join().unwrap()), 0);
        assert_eq!(relay.states(), []);
        let late = relay.add(ListenerId(1), listener(loopback, &port));
        assert!(matches!(&late, ListenerState::Lost(error) if error.text.contains("ended")), "{late:?}");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(relay.totals().open_associations.value(), 0);
    });
}

#[cfg(windows)]
#[test]
fn an_address_that_listeners_share_is_refused() {
    isolated(|| {
        let (_balancer, port) = port(&[]);
        let relay = Running::new(config());
        let bind = Bind::Address { address: LOOPBACK, reuse_port: true };
        let state = relay.add(ListenerId(1), Listener { protocol: Protocol::Tcp, bind, port });
        assert!(matches!(&state, ListenerState::Failed(error) if error.text.contains("Windows has no")), "{state:?}");
    });
}

#[test]
fn the_end_waits_for_connections_and_resets_what_is_left() {
    isolated(|| {
        let echo = Echo::new(b'a', LOOPBACK);
        let (_balancer, port) = port(&[echo.address]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, LOOPBACK, &port);
        let (mut stays, _) = greeted(address).unwrap();
        let (ends, _) = greeted(address).unwrap();
        let draining = std::thread::spawn(move || relay.drain(Duration::from_millis(500)));
        eventually("the listener is closed", || TcpStream::connect(address).is_err());
        drop(ends);
        converses(&mut stays).unwrap();
        assert_eq!(draining.join().unwrap(), 1);
        assert!(is_reset(&mut stays));

        let relay = Running::new(config());
        let (mut last, _) = greeted(relay.listen(1, Protocol::Tcp, LOOPBACK, &port)).unwrap();
        let draining = std::thread::spawn(move || relay.drain(Duration::from_secs(20)));
        converses(&mut last).unwrap();
        last.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(last.read(&mut [0]).unwrap(), 0, "it ends in order");
        assert_eq!(draining.join().unwrap(), 0);
    });
}
