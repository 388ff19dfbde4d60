//! Many connections, and the limits of ports and of the relay.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use ferry_relay::{Protocol, RelayConfig};

use crate::kit::{Echo, LOOPBACK, Running, config, descriptors, eventually, greeted, is_refused, isolated, many, port};

/// Connections in the test; the benchmark has 20,000.
const MANY: usize = 3_000;

#[test]
fn thousands_of_connections_at_once() {
    isolated(|| {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let (balancer, port) = port(&[listener.local_addr().unwrap()]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, LOOPBACK, &port);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| (0..many(MANY)).map(|_| listener.accept().unwrap().0).collect::<Vec<_>>());
            let mut clients: Vec<_> = (0..many(MANY)).map(|_| TcpStream::connect(address).unwrap()).collect();
            let mut servers = accepting.join().unwrap();
            assert_eq!(relay.totals().open_connections.value(), many(MANY));
            eventually("all are established", || balancer.endpoints()[0].counters().open.value() == many(MANY));
            for client in &mut clients {
                client.write_all(b"x").unwrap();
            }
            let mut byte = [0];
            for server in &mut servers {
                server.read_exact(&mut byte).unwrap();
            }
            // Each side of a connection costs one descriptor, and an idle connection no pipe.
            assert!(descriptors().len() < 4 * many(MANY) + 200, "{} descriptors", descriptors().len());
            drop(clients);
            for server in &mut servers {
                assert_eq!(server.read(&mut byte).unwrap(), 0);
            }
        });
        eventually("all have ended", || relay.totals().open_connections.value() == 0);
        assert_eq!(port.counters().connections.value(), many(MANY) as u64);
    });
}

#[test]
fn the_limits_of_a_port_and_of_the_relay_refuse_clearly() {
    isolated(|| {
        let echo = Echo::new(b'a', LOOPBACK);
        let ((_, first), (_, second)) = (port(&[echo.address]), port(&[echo.address]));
        let relay = Running::new(RelayConfig { max_connections: 3, ..config() });
        let addresses = [(1, &first), (2, &second)].map(|(id, port)| relay.listen(id, Protocol::Tcp, LOOPBACK, port));
        first.set_limit(2);
        let (one, two) = (greeted(addresses[0]).unwrap(), greeted(addresses[0]).unwrap());
        assert!(is_refused(addresses[0]), "the port's limit");
        let three = greeted(addresses[1]).unwrap();
        assert!(is_refused(addresses[1]), "the relay's limit");
        assert_eq!((first.counters().refused_at_limit.value(), second.counters().refused_at_limit.value()), (1, 1));
        drop((one, two, three));
        eventually("there is room again", || relay.totals().open_connections.value() == 0);
        assert!(greeted(addresses[1]).is_ok());
    });
}
