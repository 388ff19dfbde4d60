//! The parts that the tests share: servers, clients and service ports.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::running::PATIENCE;
pub(crate) use crate::running::{Running, config, eventually};
#[cfg(target_os = "linux")]
pub(crate) use crate::system::{add_address, run};
pub(crate) use crate::system::{
    descriptors, ends_by_reset, isolated, many, reports_refused_datagrams, reset, resident,
};
use ferry_relay::{Balancer, Bind, Listener, Port, Protocol, SourceRanges};

/// Loopback with a port that the system chooses.
pub(crate) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The same of IPv6.
const LOOPBACK_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

/// Runs a test once over each family, in a namespace of its own, with the loopback of the family. For tests of what the system
/// does otherwise for each: addresses of sockets, errors of ICMP, translated destinations.
#[expect(clippy::print_stdout, reason = "a failed test shows its output, which names the family")]
pub(crate) fn in_each_family(test: impl Fn(SocketAddr) + Sync) {
    for loopback in [LOOPBACK, LOOPBACK_V6] {
        println!("over {}", loopback.ip());
        isolated(|| test(loopback));
    }
}

/// A port with these endpoints.
pub(crate) fn port(endpoints: &[SocketAddr]) -> (Arc<Balancer>, Arc<Port>) {
    let balancer = Arc::new(Balancer::new(None, Duration::from_secs(60)));
    assert!(balancer.replace(endpoints, []).is_empty());
    let port = Port::new("test", Arc::<Balancer>::clone(&balancer), 100_000);
    (balancer, Arc::new(port))
}

/// Source ranges outside of which this loopback is: one of its family, and the whole other family.
pub(crate) fn elsewhere(loopback: SocketAddr) -> SourceRanges {
    let networks = if loopback.is_ipv4() { ["192.0.2.0/24", "::/0"] } else { ["2001:db8::/64", "0.0.0.0/0"] };
    SourceRanges::new(networks.map(|network| network.parse().unwrap()))
}

/// An endpoint that echoes each connection, after a greeting of one byte that names it. Ends when it is dropped.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(crate) fn new(name: u8, address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut connections: Vec<JoinHandle<()>> = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                // A thread that has ended keeps its stack until then.
                connections.retain(|connection| !connection.is_finished());
                match listener.accept() {
                    Ok((stream, _)) => connections.push(std::thread::spawn(move || echo(stream, name))),
                    // A test exhausts descriptors.
                    Err(_error) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
            drop(listener);
            for connection in connections {
                connection.join().unwrap();
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn echo(mut stream: TcpStream, name: u8) {
    let mut buffer = [0; 4096];
    let mut bytes = vec![name];
    // A client that resets the connection ends it as well as one that closes.
    while stream.write_all(&bytes).is_ok() {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => bytes = buffer[..count].to_vec(),
        }
    }
}

/// Connects and returns the connection and the name of the endpoint.
pub(crate) fn greeted(address: SocketAddr) -> io::Result<(TcpStream, u8)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut name = [0];
    stream.read_exact(&mut name)?;
    Ok((stream, name[0]))
}

/// Sends bytes and reads them back.
pub(crate) fn converses(stream: &mut TcpStream) -> io::Result<()> {
    let mut answer = [0; 8];
    stream.write_all(b"question")?;
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"question");
    Ok(())
}

/// Reads until the connection ends, which has to be by a reset where the system can do that.
pub(crate) fn is_reset(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        Ok(_end) => !ends_by_reset(),
    }
}

/// Connects, and expects the connection to be reset at once.
pub(crate) fn is_refused(address: SocketAddr) -> bool {
    match TcpStream::connect(address) {
        // The reset may come before the system call ends.
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        Ok(mut stream) => is_reset(&mut stream),
    }
}

/// A TCP listener at this address.
pub(crate) fn listener(address: SocketAddr, port: &Arc<Port>) -> Listener {
    let bind = Bind::Address { address, reuse_port: false };
    Listener { protocol: Protocol::Tcp, bind, port: Arc::clone(port) }
}

/// Writes until nothing goes through for a while, since nothing is read, and returns the number of bytes. The streams are non-blocking from
/// then on.
pub(crate) fn fill(streams: &mut [TcpStream]) -> usize {
    let block = vec![7; 1 << 20];
    streams.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    let (mut written, mut rests) = (0, 0);
    while rests < 20 {
        let round: usize = streams.iter_mut().filter_map(|stream| stream.write(&block).ok()).sum();
        written += round;
        rests = if round == 0 { rests + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(5));
    }
    written
}
