//! The lab's servers: one thread per machine that serves all its ports.

use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

use super::{ProbeAnswer, sctp};
use crate::host::Host;

/// Answers every TCP connection and UDP datagram to its addresses and ports, and SCTP's first packet.
///
/// It binds each address separately: an answer over UDP must have the requested address as its source.
pub struct ProbeServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Sockets {
    name: &'static str,
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
    sctp: Vec<Socket>,
    ports: Vec<u16>,
}

// === impl ProbeServer ===

impl ProbeServer {
    /// Starts serving on the machine.
    pub fn start(host: &Host, addresses: Vec<IpAddr>, ports: Vec<u16>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let name = host.name();
        let sockets = host.run(move || Sockets::open(name, &addresses, ports));
        let flag = Arc::clone(&stop);
        Self { stop, thread: Some(host.thread(move || sockets.serve(&flag))) }
    }
}

impl Drop for ProbeServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // its panic was printed already, and this may run during another unwinding
            let _ = thread.join();
        }
    }
}

// === impl Sockets ===

impl Sockets {
    fn open(name: &'static str, addresses: &[IpAddr], ports: Vec<u16>) -> Self {
        let mut sockets = Self { name, tcp: Vec::new(), udp: Vec::new(), sctp: Vec::new(), ports };
        for &address in addresses {
            for &port in &sockets.ports {
                let at = SocketAddr::new(address, port);
                let tcp = TcpListener::bind(at).unwrap_or_else(|error| panic!("{name}: {at}: {error}"));
                tcp.set_nonblocking(true).expect("a listener that doesn't block");
                sockets.tcp.push(tcp);
                let udp = UdpSocket::bind(at).unwrap_or_else(|error| panic!("{name}: {at}: {error}"));
                udp.set_nonblocking(true).expect("a socket that doesn't block");
                sockets.udp.push(udp);
            }
            let raw = sctp::socket(address).unwrap_or_else(|error| panic!("{name}: sctp {address}: {error}"));
            raw.set_nonblocking(true).expect("a socket that doesn't block");
            sockets.sctp.push(raw);
        }
        sockets
    }

    fn serve(&self, stop: &AtomicBool) {
        let timeout = Timespec::try_from(Duration::from_millis(100)).expect("a tenth of a second fits");
        while !stop.load(Ordering::Relaxed) {
            let mut ready: Vec<_> = self.tcp.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
            ready.extend(self.udp.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
            ready.extend(self.sctp.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
            match poll(&mut ready, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("{}: poll: {error}", self.name),
            }
            let is_ready: Vec<_> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut is_ready = is_ready.into_iter();
            for listener in self.tcp.iter().zip(&mut is_ready).filter_map(wanted) {
                self.accept(listener);
            }
            for socket in self.udp.iter().zip(&mut is_ready).filter_map(wanted) {
                self.answer(socket);
            }
            for socket in self.sctp.iter().zip(&mut is_ready).filter_map(wanted) {
                self.acknowledge(socket);
            }
        }
    }

    fn text(&self, port: u16, seen: SocketAddr) -> String {
        ProbeAnswer::text(format_args!("{}:{port}", self.name), seen)
    }

    fn accept(&self, listener: &TcpListener) {
        let port = listener.local_addr().expect("a bound socket").port();
        loop {
            match listener.accept() {
                // a client that has closed its connection already records its own outcome
                Ok((mut stream, seen)) => drop(stream.write_all(self.text(port, seen).as_bytes())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => panic!("{}: accept: {error}", self.name),
            }
        }
    }

    fn answer(&self, socket: &UdpSocket) {
        let port = socket.local_addr().expect("a bound socket").port();
        let mut buffer = [0; 64];
        // an error of an earlier answer is reported here: skip it
        while let Ok((_, seen)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(self.text(port, seen).as_bytes(), seen);
        }
    }

    fn acknowledge(&self, socket: &Socket) {
        while let Ok((packet, seen)) = sctp::receive(socket) {
            let Some(init) = sctp::Init::decode(&packet) else { continue };
            if self.ports.contains(&init.destination) {
                let text = self.text(init.destination, SocketAddr::new(seen, init.source));
                let _ = socket.send_to(&init.acknowledge(&text), &SocketAddr::new(seen, 0).into());
            }
        }
    }
}

fn wanted<T>((socket, ready): (T, bool)) -> Option<T> {
    ready.then_some(socket)
}
