//! Changes of endpoints and listeners while connections are open; hand-over; the end.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ferry_relay::{Bind, Config, Listener, ListenerId, ListenerState, Port, Protocol, Removal};

use crate::kit::{Echo, LOOPBACK, Running, config, converses, eventually, greeted, is_reset, isolated, port};

/// The inode of a socket.
#[cfg(target_os = "linux")]
fn inode(socket: &OwnedFd) -> u64 {
    rustix::fs::fstat(socket.as_fd()).unwrap().st_ino
}

fn listener(address: SocketAddr, port: &Arc<Port>) -> Listener {
    let bind = Bind::Address { address, reuse_port: false };
    Listener { protocol: Protocol::Tcp, bind, port: Arc::clone(port) }
}

#[test]
fn a_removed_endpoint_gets_no_new_connection_and_keeps_its_old_ones() {
    isolated(|| {
        let (first, second) = (Echo::new(b'a'), Echo::new(b'b'));
        let (balancer, port) = port(&[first.address]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, LOOPBACK, &port);
        let (mut old, name) = greeted(address).unwrap();
        assert_eq!(name, b'a');
        let removed = Arc::clone(&balancer.endpoints()[0]);
        relay.replace_endpoints(&balancer, &[second.address]);
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
        let (first, second) = (Echo::new(b'a'), Echo::new(b'b'));
        for (removal, lives_on) in [(Removal::Cut, false), (Removal::Grace(Duration::from_millis(300)), true)] {
            let (balancer, port) = port(&[first.address]);
            let relay = Running::new(Config { removal, ..config() });
            let address = relay.listen(1, Protocol::Tcp, LOOPBACK, &port);
            let (mut old, _) = greeted(address).unwrap();
            relay.replace_endpoints(&balancer, &[second.address]);
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
fn a_removed_listener_is_closed_and_its_connections_live_on() {
    isolated(|| {
        let echo = Echo::new(b'a');
        let (_balancer, port) = port(&[echo.address]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, LOOPBACK, &port);
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

/// Sockets are identified by their inodes, which other systems lack.
#[cfg(target_os = "linux")]
#[test]
fn a_new_set_touches_no_listener_that_stays() {
    isolated(|| {
        let (first, second) = (Echo::new(b'a'), Echo::new(b'b'));
        let ((_, port_a), (_, port_b)) = (port(&[first.address]), port(&[second.address]));
        let relay = Running::new(config());
        let addresses: Vec<SocketAddr> = (1..=3).map(|id| relay.listen(id, Protocol::Tcp, LOOPBACK, &port_a)).collect();
        // Their addresses are known now, so they can be stated as a set.
        let set = |ids: &[(u64, usize, &Arc<Port>)]| {
            ids.iter().map(|&(id, at, port)| (ListenerId(id), listener(addresses[at], port))).collect::<Vec<_>>()
        };
        relay.replace(set(&[(1, 0, &port_a), (2, 1, &port_a), (3, 2, &port_a)]));
        let inodes = || {
            let mut found: Vec<_> = relay.sockets().unwrap().iter().map(|(id, socket)| (id.0, inode(socket))).collect();
            found.sort_unstable();
            found
        };
        let before = inodes();
        relay.replace(set(&[(1, 0, &port_a), (2, 1, &port_b), (4, 2, &port_a)]));
        let after = inodes();
        assert_eq!(after[..2], before[..2], "the first two have their sockets still");
        assert_ne!(after[2].1, before[2].1);
        assert_eq!(after[2].0, 4);
        assert_eq!(greeted(addresses[0]).unwrap().1, b'a');
        assert_eq!(greeted(addresses[1]).unwrap().1, b'b', "new connections are of the new port");
        assert_eq!(greeted(addresses[2]).unwrap().1, b'a');
        // Two listeners exchange their addresses.
        relay.replace(set(&[(1, 1, &port_a), (2, 0, &port_b)]));
        eventually("both serve", || relay.states().iter().all(|(_, state)| matches!(state, ListenerState::Open(_))));
        assert_eq!(greeted(addresses[1]).unwrap().1, b'a');
        assert_eq!(greeted(addresses[0]).unwrap().1, b'b');
    });
}

#[test]
fn a_taken_port_is_reported_and_tried_again_while_the_others_work() {
    isolated(|| {
        let echo = Echo::new(b'a');
        let (_balancer, port) = port(&[echo.address]);
        let other = TcpListener::bind(LOOPBACK).unwrap();
        let taken = other.local_addr().unwrap();
        let relay = Running::new(config());
        let ListenerState::Failed(error) = relay.add(ListenerId(1), listener(taken, &port)) else { panic!() };
        assert!(
            error.contains(&taken.to_string()) && error.contains(if cfg!(windows) { "10048" } else { "in use" }),
            "{error}"
        );
        assert_eq!(relay.totals().listener_errors.value(), 1);
        assert!(greeted(relay.listen(2, Protocol::Tcp, LOOPBACK, &port)).is_ok());
        drop(other);
        eventually("it is open", || relay.states()[0].1 == ListenerState::Open(taken));
        assert!(greeted(taken).is_ok());
    });
}

/// Clients connect without a pause while a second relay takes the sockets over and the first one ends.
#[test]
fn a_hand_over_refuses_no_connection() {
    isolated(|| {
        let echo = Echo::new(b'a');
        let (_balancer, port) = port(&[echo.address]);
        let old = Running::new(config());
        let address = old.listen(1, Protocol::Tcp, LOOPBACK, &port);
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

/// The other form of hand-over: both processes bind the address. Over IPv6, to an endpoint of IPv4. Windows has no such
/// addresses.
#[cfg(target_os = "linux")]
#[test]
fn two_relays_share_an_address() {
    isolated(|| {
        let echo = Echo::new(b'a');
        let ((_, port_a), (_, port_b)) = (port(&[echo.address]), port(&[echo.address]));
        let (old, new) = (Running::new(config()), Running::new(config()));
        let shared = |relay: &Running, address, port: &Arc<Port>| {
            let bind = Bind::Address { address, reuse_port: true };
            relay.add(ListenerId(1), Listener { protocol: Protocol::Tcp, bind, port: Arc::clone(port) })
        };
        let ListenerState::Open(address) = shared(&old, "[::1]:0".parse().unwrap(), &port_a) else { panic!() };
        assert_eq!(shared(&new, address, &port_b), ListenerState::Open(address));
        let both = || [&port_a, &port_b].map(|port| port.counters().connections.value());
        eventually("both serve", || greeted(address).is_ok() && both().iter().all(|&count| count > 0));
        assert_eq!(old.drain(Duration::from_secs(20)), 0);
        for _ in 0..20 {
            converses(&mut greeted(address).unwrap().0).unwrap();
        }
    });
}

/// On Windows a file is no handle of a socket.
#[cfg(target_os = "linux")]
#[test]
fn something_else_than_a_listener_is_refused() {
    isolated(|| {
        let (_balancer, port) = port(&[]);
        let relay = Running::new(config());
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let listener = Listener { protocol: Protocol::Tcp, bind: Bind::Open(file), port };
        let state = relay.add(ListenerId(1), listener);
        assert!(matches!(&state, ListenerState::Lost(error) if error.contains("open socket")), "{state:?}");
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
        assert!(matches!(&state, ListenerState::Failed(error) if error.contains("Windows has no")), "{state:?}");
    });
}

#[test]
fn the_end_waits_for_connections_and_resets_what_is_left() {
    isolated(|| {
        let echo = Echo::new(b'a');
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
