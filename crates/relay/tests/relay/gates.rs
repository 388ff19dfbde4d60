//! Gates: connections to many destinations that nf_tables redirects to one listener.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferry_relay::{
    Bind, Destination, Gate, Inheritance, Listener, ListenerId, ListenerState, Protocol, RelayConfig, Routes,
    SocketName,
};
use socket2::{Domain, Socket, Type};

use crate::kit::{
    Echo, LOOPBACK, Running, add_address, config, converses, elsewhere, eventually, greeted, in_each_family,
    is_refused, isolated, port, run,
};

/// Redirects connections that this machine makes to addresses of services, which exist nowhere, and to a range of node ports at its
/// own addresses.
fn redirect(gate: u16) {
    let rules = format!(
        "table inet test {{
            chain output {{
                type nat hook output priority -100
                ip daddr 192.0.2.0/24 tcp dport != 0 dnat ip to 127.0.0.1:{gate}
                ip6 daddr 2001:db8::/64 tcp dport != 0 dnat ip6 to [::1]:{gate}
                ip daddr 127.0.0.0/8 tcp dport 30000-30009 redirect to :{gate}
                ip6 daddr {{ ::1, fd00::/64 }} tcp dport 30000-30009 redirect to :{gate}
            }}
        }}"
    );
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success());
    // Without a route there is no connection whose destination could be translated.
    for source in ["127.0.0.1", "::1"] {
        let family = if source.contains(':') { "-6" } else { "-4" };
        let route = [family, "route", "add", "default", "dev", "lo", "src", source];
        run("ip", &route);
    }
}

fn gate(address: SocketAddr, routes: &Arc<Routes>) -> Gate {
    let bind = Bind::Address { address, reuse_port: false };
    Gate { name: "gate".to_owned(), bind, route: Arc::<Routes>::clone(routes) }
}

/// Opens a gate at a port that the system chooses.
fn open(relay: &Running, id: u64, at_any_port: SocketAddr, routes: &Arc<Routes>) -> SocketAddr {
    match relay.add_gate(ListenerId(id), gate(at_any_port, routes)) {
        ListenerState::Open(address) => address,
        failed => panic!("{failed:?}"),
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The address of a service, of the same family as this loopback.
fn service(loopback: SocketAddr, number: u8, port: u16) -> SocketAddr {
    let prefix = if loopback.is_ipv4() { "192.0.2." } else { "2001:db8::" };
    SocketAddr::new(format!("{prefix}{number}").parse().unwrap(), port)
}

#[test]
fn connections_go_to_the_port_of_their_original_destination() {
    isolated(|| {
        let (first, second) = (Echo::new(b'a', LOOPBACK), Echo::new(b'b', LOOPBACK));
        let ((_, port_a), (_, port_b)) = (port(&[first.address]), port(&[second.address]));
        let (relay, routes) = (Running::new(config()), Arc::new(Routes::new()));
        let address = open(&relay, 1, at("0.0.0.0:0"), &routes);
        let bind = Bind::Address { address: at(&format!("[::]:{}", address.port())), reuse_port: false };
        let of_ipv6 = Gate { name: "gate".to_owned(), bind, route: Arc::<Routes>::clone(&routes) };
        assert!(matches!(relay.add_gate(ListenerId(2), of_ipv6), ListenerState::Open(_)));
        redirect(address.port());
        ["fd00::3", "fd00::9"].into_iter().for_each(add_address);
        for (destination, port) in [
            (at("192.0.2.1:80").into(), &port_a),
            (at("192.0.2.1:81").into(), &port_b),
            (at("192.0.2.2:80").into(), &port_b),
            (at("[2001:db8::1]:80").into(), &port_b),
            (at("[2001:db8::1]:81").into(), &port_a),
            (at("[2001:db8::2]:80").into(), &port_a),
            (at("127.0.0.9:30001").into(), &port_b),
            (at("[fd00::9]:30001").into(), &port_b),
            (Destination::AnyAddress(30001), &port_a),
        ] {
            assert!(routes.insert(destination, Arc::clone(port)).is_none());
        }
        for (destination, name) in [
            ("192.0.2.1:80", b'a'),
            ("192.0.2.1:81", b'b'),
            ("192.0.2.2:80", b'b'),
            ("[2001:db8::1]:80", b'b'),
            ("[2001:db8::1]:81", b'a'),
            ("[2001:db8::2]:80", b'a'),
            ("127.0.0.1:30001", b'a'),
            ("127.0.0.3:30001", b'a'),
            ("127.0.0.9:30001", b'b'),
            ("[::1]:30001", b'a'),
            ("[fd00::3]:30001", b'a'),
            ("[fd00::9]:30001", b'b'),
        ] {
            let (mut stream, greeting) = greeted(at(destination)).unwrap();
            assert_eq!(greeting, name, "{destination}");
            converses(&mut stream).unwrap();
        }
        assert_eq!((port_a.counters().connections.value(), port_b.counters().connections.value()), (7, 5));
        assert_eq!(relay.totals().refused_without_route.value(), 0);
    });
}

#[test]
fn unknown_destinations_and_the_gate_itself_are_refused_and_counted() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'a', loopback);
        let (_balancer, port) = port(&[echo.address]);
        let (relay, routes) = (Running::new(config()), Arc::new(Routes::new()));
        let address = open(&relay, 1, loopback, &routes);
        assert!(is_refused(address), "there is no connection tracking yet");
        redirect(address.port());
        routes.insert(service(loopback, 1, 80).into(), Arc::clone(&port));
        // Not even a route makes the gate a destination.
        routes.insert(address.into(), Arc::clone(&port));
        assert!(is_refused(address));
        assert!(is_refused(service(loopback, 1, 81)));
        assert!(is_refused(service(loopback, 2, 80)));
        assert_eq!(relay.totals().refused_without_route.value(), 4);
        assert!(greeted(service(loopback, 1, 80)).is_ok());
        assert_eq!(port.counters().connections.value(), 1);
    });
}

/// A client may use one source port for two services; at the gate both connections would be the same.
#[test]
fn one_source_port_reaches_two_services() {
    in_each_family(|loopback| {
        let (first, second) = (Echo::new(b'a', loopback), Echo::new(b'b', loopback));
        let (relay, routes) = (Running::new(config()), Arc::new(Routes::new()));
        let address = open(&relay, 1, loopback, &routes);
        redirect(address.port());
        let services = [service(loopback, 1, 80), service(loopback, 2, 80)];
        for (service, echo) in services.iter().zip([&first, &second]) {
            routes.insert((*service).into(), port(&[echo.address]).1);
        }
        let connected = services.map(|service| {
            let socket = Socket::new(Domain::for_address(service), Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&SocketAddr::new(loopback.ip(), 5000).into()).unwrap();
            socket.connect(&service.into()).unwrap();
            let mut stream = TcpStream::from(socket);
            let mut name = [0];
            stream.read_exact(&mut name).unwrap();
            (stream, name[0])
        });
        for ((mut stream, name), expected) in connected.into_iter().zip(*b"ab") {
            assert_eq!(name, expected);
            converses(&mut stream).unwrap();
        }
    });
}

#[test]
fn routes_change_while_connections_live() {
    in_each_family(|loopback| {
        let (first, second) = (Echo::new(b'a', loopback), Echo::new(b'b', loopback));
        let ((_, port_a), (_, port_b)) = (port(&[first.address]), port(&[second.address]));
        let (relay, routes) = (Running::new(config()), Arc::new(Routes::new()));
        let address = open(&relay, 1, loopback, &routes);
        redirect(address.port());
        let service = service(loopback, 1, 80);
        routes.insert(service.into(), Arc::clone(&port_a));
        let (mut old, name) = greeted(service).unwrap();
        assert_eq!(name, b'a');
        assert!(routes.insert(service.into(), port_b).is_some_and(|before| Arc::ptr_eq(&before, &port_a)));
        assert_eq!(greeted(service).unwrap().1, b'b');
        assert!(routes.remove(service.into()).is_some());
        assert!(is_refused(service));
        converses(&mut old).unwrap();

        // A new set of listeners leaves the gate, and another route takes its place without another socket.
        let listener = |port| Listener {
            protocol: Protocol::Tcp,
            bind: Bind::Address { address: loopback, reuse_port: false },
            port,
        };
        relay.replace(vec![(ListenerId(2), listener(Arc::clone(&port_a)))]);
        relay.replace(Vec::new());
        let others = Arc::new(Routes::new());
        others.insert(service.into(), port_a);
        let at_any_port = SocketAddr::new(address.ip(), 0);
        assert_eq!(relay.add_gate(ListenerId(1), gate(at_any_port, &others)), ListenerState::Open(address));
        assert_eq!(greeted(service).unwrap().1, b'a');
        assert!(relay.remove(ListenerId(1)));
        assert!(TcpStream::connect(service).is_err());
        converses(&mut old).unwrap();
    });
}

#[test]
fn limits_and_source_ranges_hold_at_a_gate() {
    in_each_family(|loopback| {
        let echo = Echo::new(b'a', loopback);
        let (_balancer, port) = port(&[echo.address]);
        let (relay, routes) = (Running::new(RelayConfig { max_connections: 8, ..config() }), Arc::new(Routes::new()));
        let address = open(&relay, 1, loopback, &routes);
        redirect(address.port());
        let service = service(loopback, 1, 80);
        routes.insert(service.into(), Arc::clone(&port));
        port.set_sources(Some(elsewhere(loopback)));
        assert!(is_refused(service));
        port.set_sources(None);
        port.set_limit(6);
        let mut open: Vec<_> = (0..6).map(|_| greeted(service).unwrap().0).collect();
        assert!(is_refused(service));
        open.iter_mut().for_each(|stream| converses(stream).unwrap());
        assert_eq!((port.counters().refused_sources.value(), port.counters().refused_at_limit.value()), (1, 1));
        drop(open);
        eventually("all have ended", || relay.totals().open_connections.value() == 0);
        assert!(greeted(service).is_ok());
    });
}

#[test]
fn a_gate_whose_port_is_taken_is_tried_again() {
    in_each_family(|loopback| {
        let other = TcpListener::bind(loopback).unwrap();
        let taken = other.local_addr().unwrap();
        let (relay, routes) = (Running::new(config()), Arc::new(Routes::new()));
        let failed = relay.add_gate(ListenerId(1), gate(taken, &routes));
        assert!(matches!(&failed, ListenerState::Failed(error) if error.text.contains("in use")), "{failed:?}");
        drop(other);
        eventually("it is open", || relay.states()[0].1 == ListenerState::Open(taken));
        assert!(is_refused(taken));
    });
}

/// Clients connect without a pause while a second relay takes the gate over by its name, with a route of its own, and the first one
/// ends.
#[test]
fn a_gate_is_handed_over_with_its_port() {
    in_each_family(|loopback| {
        let (first, second) = (Echo::new(b'a', loopback), Echo::new(b'b', loopback));
        let ((_, port_a), (_, port_b)) = (port(&[first.address]), port(&[second.address]));
        let (old, of_old, of_new) = (Running::new(config()), Arc::new(Routes::new()), Arc::new(Routes::new()));
        let address = open(&old, 1, loopback, &of_old);
        redirect(address.port());
        let service = service(loopback, 1, 80);
        of_old.insert(service.into(), port_a);
        of_new.insert(service.into(), port_b);
        let name = SocketName::Gate("all".to_owned());
        let new = Running::new(config());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        converses(&mut greeted(service).unwrap().0).unwrap();
                    }
                });
            }
            let passed = old.sockets().unwrap().into_iter().map(|(_, socket)| (name.to_string(), socket));
            let inheritance = Inheritance::default();
            inheritance.add(passed);
            assert_eq!(inheritance.names(), std::slice::from_ref(&name));
            let bind = inheritance.bind(&name, SocketAddr::new(address.ip(), 0), false);
            assert_eq!(inheritance.names(), []);
            let taken = Gate { name: "gate".to_owned(), bind, route: of_new };
            assert_eq!(new.add_gate(ListenerId(7), taken), ListenerState::Open(address));
            assert_eq!(old.drain(Duration::from_secs(20)), 0);
            for _ in 0..50 {
                assert_eq!(greeted(service).unwrap().1, b'b');
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}
