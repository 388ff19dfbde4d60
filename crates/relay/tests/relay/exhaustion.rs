//! The exhaustion of descriptors, of which a process has a limit on Linux.

use std::fs::File;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use ferry_relay::Protocol;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::kit::{Echo, LOOPBACK, Running, config, converses, descriptors, eventually, greeted, isolated, port};

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
