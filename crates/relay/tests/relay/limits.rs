//! Many connections, the limits of ports and of the relay, and the exhaustion of descriptors.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use ferry_relay::{Config, Protocol};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::kit::{
    Echo, LOOPBACK, Running, config, converses, descriptors, eventually, greeted, is_refused, isolated, port,
};

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
            let accepting = scope.spawn(|| (0..MANY).map(|_| listener.accept().unwrap().0).collect::<Vec<_>>());
            let mut clients: Vec<_> = (0..MANY).map(|_| TcpStream::connect(address).unwrap()).collect();
            let mut servers = accepting.join().unwrap();
            assert_eq!(relay.totals().open_connections.value(), MANY);
            eventually("all are established", || balancer.endpoints()[0].counters().open.value() == MANY);
            for client in &mut clients {
                client.write_all(b"x").unwrap();
            }
            let mut byte = [0];
            for server in &mut servers {
                server.read_exact(&mut byte).unwrap();
            }
            // Each side of a connection costs one descriptor, and an idle connection no pipe.
            assert!(descriptors().len() < 4 * MANY + 200, "{} descriptors", descriptors().len());
            drop(clients);
            for server in &mut servers {
                assert_eq!(server.read(&mut byte).unwrap(), 0);
            }
        });
        eventually("all have ended", || relay.totals().open_connections.value() == 0);
        assert_eq!(port.counters().connections.value(), MANY as u64);
    });
}

#[test]
fn the_limits_of_a_port_and_of_the_relay_refuse_clearly() {
    isolated(|| {
        let echo = Echo::new(b'a');
        let ((_, first), (_, second)) = (port(&[echo.address]), port(&[echo.address]));
        let relay = Running::new(Config { max_connections: 3, ..config() });
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

#[test]
fn exhausted_descriptors_are_counted_and_waiting_connections_served_later() {
    isolated(|| {
        const CLIENTS: usize = 30;
        let echo = Echo::new(b'a');
        let (_balancer, port) = port(&[echo.address]);
        let relay = Running::new(config());
        let address = relay.listen(1, Protocol::Tcp, LOOPBACK, &port);
        let sockets: Vec<Socket> =
            (0..CLIENTS).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()).collect();
        let limit = getrlimit(Resource::Nofile);
        // The limit is a limit of numbers: those that are free below it are taken.
        let highest: i32 = descriptors().iter().map(|name| name.parse().unwrap()).max().unwrap();
        let mut taken = vec![OwnedFd::from(File::open("/dev/null").unwrap())];
        while taken.iter().all(|descriptor| descriptor.as_raw_fd() <= highest) {
            taken.push(taken[0].try_clone().unwrap());
        }
        let lowered = u64::try_from(highest).unwrap() + 12;
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowered), maximum: limit.maximum }).unwrap();
        let to: SocketAddr = address;
        for socket in &sockets {
            socket.connect(&to.into()).unwrap();
        }
        eventually("exhaustion is counted", || relay.totals().exhausted.value() > 0);
        let before = relay.totals().exhausted.value();
        std::thread::sleep(Duration::from_millis(200));
        let more = relay.totals().exhausted.value() - before;
        setrlimit(Resource::Nofile, limit).unwrap();
        assert!(more < 100, "{more} attempts to accept within 200 ms");
        // Those that were dialled without descriptors were refused; all that waited are served.
        let served = sockets.into_iter().map(TcpStream::from).filter_map(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.read_exact(&mut [0]).and_then(|()| converses(&mut stream)).ok()
        });
        let served = served.count() as u64;
        assert_eq!(served + port.counters().failures.value(), CLIENTS as u64);
        assert!(served > 0);
        assert!(greeted(address).is_ok());
    });
}
