//! Open sockets: those that stay, those that another relay or process has, and those that are unsuitable.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ferry_relay::{Bind, Listener, ListenerId, ListenerState, Port, Protocol};
use socket2::{Domain, Socket, Type};

use crate::kit::{
    Echo, LOOPBACK, Running, config, converses, eventually, greeted, in_each_family, isolated, listener, port,
};

/// The inode of a socket.
fn inode(socket: &OwnedFd) -> u64 {
    rustix::fs::fstat(socket.as_fd()).unwrap().st_ino
}

/// Sockets are identified by their inodes, which other systems lack.
#[test]
fn a_new_set_touches_no_listener_that_stays() {
    in_each_family(|loopback| {
        let (first, second) = (Echo::new(b'a', loopback), Echo::new(b'b', loopback));
        let ((_, port_a), (_, port_b)) = (port(&[first.address]), port(&[second.address]));
        let relay = Running::new(config());
        let addresses: Vec<SocketAddr> = (1..=3).map(|id| relay.listen(id, Protocol::Tcp, loopback, &port_a)).collect();
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

/// The other form of hand-over: both processes bind the address. Over IPv6, to an endpoint of IPv4. Windows has no such
/// addresses.
#[test]
fn two_relays_share_an_address() {
    isolated(|| {
        let echo = Echo::new(b'a', LOOPBACK);
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
#[test]
fn something_else_than_a_listener_is_refused() {
    isolated(|| {
        let (_balancer, port) = port(&[]);
        let relay = Running::new(config());
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let listener = Listener { protocol: Protocol::Tcp, bind: Bind::Open(file), port };
        let state = relay.add(ListenerId(1), listener);
        assert!(matches!(&state, ListenerState::Lost(error) if error.text.contains("open socket")), "{state:?}");
    });
}

/// Sockets that the process before has left, each with a reason why it does not suit, or without one.
#[test]
fn an_inherited_socket_is_used_if_it_suits() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'a', loopback);
        let (_balancer, port) = port(&[echo.address]);
        let relay = Running::new(config());
        let unconnected = || Socket::new(Domain::for_address(loopback), Type::STREAM, None).unwrap();
        let bound = unconnected();
        bound.bind(&loopback.into()).unwrap();
        let others = if loopback.is_ipv4() { ["127.0.0.2:0", "[::1]:0"] } else { ["[::]:0", "127.0.0.1:0"] };
        let [at_other_address, of_other_family] = others.map(|address| TcpListener::bind(address).unwrap());
        let wanted = TcpListener::bind(loopback).unwrap().local_addr().unwrap();
        let listening = || OwnedFd::from(TcpListener::bind(wanted).unwrap());
        for (socket, wanted, suits) in [
            (listening(), wanted, true),
            (TcpListener::bind(loopback).unwrap().into(), loopback, true),
            (TcpListener::bind(loopback).unwrap().into(), wanted, false),
            (at_other_address.into(), loopback, false),
            (of_other_family.into(), loopback, false),
            (UdpSocket::bind(loopback).unwrap().into(), loopback, false),
            (bound.into(), loopback, false),
            (unconnected().into(), loopback, false),
            (OwnedFd::from(std::fs::File::open("/dev/null").unwrap()), loopback, false),
        ] {
            let before = inode(&socket);
            let bind = Bind::Inherited { socket, address: wanted, reuse_port: false };
            let listener = Listener { protocol: Protocol::Tcp, bind, port: Arc::clone(&port) };
            let ListenerState::Open(address) = relay.add(ListenerId(1), listener) else { panic!("{wanted}") };
            assert_eq!(address.ip(), wanted.ip());
            let sockets = relay.sockets().unwrap();
            assert_eq!(inode(&sockets[0].1) == before, suits, "{wanted}");
            assert!(greeted(address).is_ok());
            assert!(relay.remove(ListenerId(1)));
        }
    });
}

/// Rules refer to the port that the system has chosen.
#[test]
fn a_listener_that_fails_is_opened_again_at_its_port() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'a', loopback);
        let (_balancer, port) = port(&[echo.address]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, loopback, &port);
        // The duplicate is the same socket, so its end is that of the relay's, too.
        let duplicate = TcpListener::from(relay.sockets().unwrap().remove(0).1);
        rustix::net::shutdown(&duplicate, rustix::net::Shutdown::Both).unwrap();
        drop(duplicate);
        eventually("it has failed", || matches!(relay.states()[0].1, ListenerState::Failed(_)));
        eventually("it is open", || relay.states()[0].1 == ListenerState::Open(address));
        assert!(greeted(address).is_ok());
    });
}
