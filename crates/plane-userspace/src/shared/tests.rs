//! Sockets of a real relay, whose threads don't run, in a network namespace.

use std::net::TcpListener;

use ferry_kernel::netns::Namespace;
use ferry_relay::{Bind, Gate, Protocol, RelayConfig, Removal, Routes, Worker};

use super::*;

/// A relay with one thread, which doesn't run.
pub(crate) fn shared(removal: Removal) -> (SharedRelay, Vec<Worker>) {
    let (relay, workers) = Relay::new(RelayConfig { workers: 1, removal, ..RelayConfig::default() }).unwrap();
    let shared = SharedRelay {
        relay: Arc::new(relay),
        inheritance: Arc::default(),
        ports: 61_000..=65_535,
        limit_per_port: usize::MAX,
        names: ListenerNames::default(),
        directory: PortDirectory::default(),
        datagrams: DatagramEndpoints::default(),
    };
    (shared, workers)
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn within_namespace(test: impl FnOnce() + Send) {
    let namespace = Namespace::new().unwrap();
    namespace.raise_loopback().unwrap();
    namespace.run(test).unwrap();
}

fn gate(label: &str) -> SocketName {
    SocketName::Gate(label.to_owned())
}

fn at(address: &str) -> SocketName {
    SocketName::Listener(Protocol::Tcp, Destination::Address(address.parse().unwrap(), 80))
}

#[test]
fn a_listener_is_handed_over_by_its_name_until_it_is_removed() {
    within_namespace(|| {
        let (shared, _workers) = shared(Removal::Cut);
        let [named, other] = [(); 2].map(|()| {
            let id = shared.names.next();
            let bind = Bind::Open(listener().into());
            shared.relay.add_gate(id, Gate { name: "cluster".to_owned(), bind, route: Arc::new(Routes::new()) });
            id
        });
        assert_ne!(named, other);
        shared.names.insert(named, gate("v4-cluster"));
        let names = || shared.sockets().unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(), ["gate-v4-cluster"], "the other one has no name");
        shared.remove(named);
        shared.names.insert(other, gate("v4-local"));
        assert_eq!(names(), ["gate-v4-local"]);
        shared.names.remove(other);
        assert!(names().is_empty());
        assert_eq!(shared.relay.states().into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [other]);
    });
}

#[test]
fn sockets_of_services_that_are_gone_are_closed_by_family() {
    within_namespace(|| {
        let (shared, _workers) = shared(Removal::Cut);
        let names = [gate("v4-cluster"), gate("v6-cluster"), at("10.96.0.1"), at("fd00:96::1")];
        shared.inheritance.add(names.iter().map(|name| (name.to_string(), listener().into())));
        shared.forget_inherited(Family::V6);
        let mut left = shared.inheritance.names();
        left.sort();
        assert_eq!(left, [at("10.96.0.1"), gate("v4-cluster")]);
        shared.forget_inherited(Family::V4);
        assert!(shared.inheritance.names().is_empty());
    });
}

#[test]
fn a_name_tells_the_family_and_the_way() {
    let any = SocketName::Listener(Protocol::Udp, Destination::AnyAddress(53));
    for (name, families, is_of_redirect) in [
        (gate("v4-cluster"), [true, false], true),
        (gate("v6-cluster"), [false, true], true),
        (at("10.96.0.1"), [true, false], false),
        (at("fd00:96::1"), [false, true], false),
        (any, [true, true], false),
    ] {
        assert_eq!([Family::V4, Family::V6].map(|family| is_of(&name, family)), families, "{name}");
        assert_eq!(is_gate(&name.to_string()), is_of_redirect, "{name}");
    }
    assert!(!is_gate("something else"));
}
