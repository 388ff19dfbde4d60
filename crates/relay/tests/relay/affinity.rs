//! Session affinity by the address of the client. Not on Windows, whose loopback has one address of IPv6, so that there is no second client.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ferry_relay::{Balancer, Port, Protocol};
use socket2::{Domain, Socket, Type};

use crate::datagrams;
use crate::kit::{Echo, Running, add_address, config, in_each_family};

/// Addresses of two clients, both on loopback.
fn clients(loopback: SocketAddr) -> [IpAddr; 2] {
    let addresses = if loopback.is_ipv4() { ["127.0.0.8", "127.0.0.9"] } else { ["fd00::8", "fd00::9"] };
    if loopback.is_ipv6() {
        addresses.into_iter().for_each(add_address);
    }
    addresses.map(|address| address.parse().unwrap())
}

/// The endpoint of a new connection from this address.
fn connects(from: IpAddr, to: SocketAddr) -> u8 {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut name = [0];
    TcpStream::from(socket).read_exact(&mut name).unwrap();
    name[0]
}

/// Each question has a client port of its own, so it begins an association.
fn asks(from: IpAddr, to: SocketAddr) -> u8 {
    datagrams::asks(&datagrams::client_at(SocketAddr::new(from, 0), to), b"question")
}

/// Without affinity each new connection or association would have another endpoint than the one before.
fn keep_their_endpoints(loopback: SocketAddr, protocol: Protocol, endpoints: [SocketAddr; 2]) {
    let clients = clients(loopback);
    let balancer = Arc::new(Balancer::new(Some(Duration::from_secs(600)), Duration::from_secs(600)));
    assert!(balancer.replace(&endpoints, []).is_empty());
    let port = Arc::new(Port::new("test", Arc::<Balancer>::clone(&balancer), 100));
    let relay = Running::new(config());
    let address = relay.listen(1, protocol, loopback, &port);
    let name = |client: usize| match protocol {
        Protocol::Tcp => connects(clients[client], address),
        Protocol::Udp => asks(clients[client], address),
    };
    assert_eq!([0, 0, 0, 1, 1, 0, 1].map(name), *b"aaabbab");
    // A client whose endpoint has gone gets another one, and the other client keeps its own.
    relay.replace_endpoints(&balancer, &endpoints[1..], []);
    assert_eq!([0, 1].map(name), *b"bb");
    relay.replace_endpoints(&balancer, &endpoints, []);
    assert_eq!([0, 1, 0, 1].map(name), *b"bbbb");
}

#[test]
fn connections_of_a_client_address_keep_their_endpoint() {
    in_each_family(|loopback| {
        let (first, second) = (Echo::new(b'a', loopback), Echo::new(b'b', loopback));
        keep_their_endpoints(loopback, Protocol::Tcp, [first.address, second.address]);
    });
}

#[test]
fn associations_of_a_client_address_keep_their_endpoint() {
    in_each_family(|loopback| {
        let (first, second) = (datagrams::Echo::new(b'a', loopback), datagrams::Echo::new(b'b', loopback));
        keep_their_endpoints(loopback, Protocol::Udp, [first.address, second.address]);
    });
}
