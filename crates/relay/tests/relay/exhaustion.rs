//! The exhaustion of descriptors, of which a process has a limit on Linux, and of local ports.

use std::fs::File;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use ferry_relay::{Protocol, RelayConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::kit::{
    Echo, LOOPBACK, Running, config, converses, descriptors, eventually, greeted, is_refused, isolated, port,
};

#[test]
fn exhausted_descriptors_are_counted_and_waiting_connections_served_later() {
    isolated(|| {
        const CLIENTS: usize = 30;
        let echo = Echo::new(b'a', LOOPBACK);
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

/// The range of local ports of the namespace.
const LOCAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Leaves four local ports to sockets that don't choose one, until it is dropped: endpoints end by a connection to themselves.
struct FourPorts;

impl FourPorts {
    fn new() -> Self {
        std::fs::write(LOCAL_PORTS, "40000 40003").unwrap();
        Self
    }
}

impl Drop for FourPorts {
    fn drop(&mut self) {
        drop(std::fs::write(LOCAL_PORTS, "32768 60999"));
    }
}

#[test]
fn an_endpoint_whose_connections_have_all_local_ports_is_passed_over_without_blame() {
    isolated(|| {
        let [full, other] = [b'a', b'b'].map(|name| Echo::new(name, LOOPBACK));
        let (balancer, port) = port(&[full.address]);
        let relay = Running::new(config());
        // Clients need local ports, too, towards each listener.
        let [first, second] = [1, 2].map(|id| relay.listen(id, Protocol::Tcp, LOOPBACK, &port));
        let _few = FourPorts::new();
        let of_full: Vec<_> = (0..4).map(|_| greeted(first).unwrap()).collect();
        assert!(of_full.iter().all(|(_, name)| *name == b'a'));
        assert!(is_refused(second));
        assert_eq!((relay.totals().exhausted.value(), port.counters().failures.value()), (1, 1));
        relay.replace_endpoints(&balancer, &[full.address, other.address], []);
        for _ in 0..3 {
            assert_eq!(greeted(second).unwrap().1, b'b');
        }
        assert_eq!(relay.totals().exhausted.value(), 1);
        assert_eq!(balancer.endpoints()[0].counters().failures.value(), 0);
    });
}

#[test]
fn datagrams_without_a_local_port_are_counted_without_blame() {
    isolated(|| {
        let endpoint = UdpSocket::bind(LOOPBACK).unwrap();
        let (balancer, port) = port(&[endpoint.local_addr().unwrap()]);
        let relay = Running::new(RelayConfig { udp_idle: Duration::from_secs(600), ..config() });
        let address = relay.listen(1, Protocol::Udp, LOOPBACK, &port);
        let _few = FourPorts::new();
        let clients: Vec<_> = (0..5).map(|client| UdpSocket::bind((LOOPBACK.ip(), 50_000 + client)).unwrap()).collect();
        for client in &clients {
            client.send_to(b"question", address).unwrap();
        }
        eventually("the last one is counted", || relay.totals().exhausted.value() == 1);
        assert_eq!(relay.totals().open_associations.value(), 4);
        assert_eq!(balancer.endpoints()[0].counters().failures.value(), 0);
    });
}
