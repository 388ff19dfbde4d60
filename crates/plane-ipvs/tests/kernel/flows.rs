//! Connections from a client in a namespace of its own, through this one, to endpoints on loopback.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use ferry_api::object::Family;
use ferry_conformance::states::address;
use ferry_kernel::netns::Namespace;
use socket2::{Domain, Socket, Type};

use crate::common::{endpoint, ip, run};

/// A client beside this namespace.
pub(crate) struct Client(Namespace);

/// A connection to an endpoint, which was named in its first byte.
pub(crate) struct Connection {
    pub(crate) endpoint: u8,
    stream: TcpStream,
}

/// The longest time for an answer.
const ANSWER: Duration = Duration::from_secs(20);
/// The time after which none comes.
const NO_ANSWER: Duration = Duration::from_secs(5);
/// Datagrams that are sent in that time until the first answer.
const TRIES: u32 = 4;

// === impl Client ===

impl Client {
    /// Connects a new namespace, and serves the endpoints 1 and 2, by TCP and UDP.
    pub(crate) fn new(family: Family) -> Self {
        let client = Namespace::new().unwrap();
        client.raise_loopback().unwrap();
        let place = format!("/proc/{}/fd/{}", std::process::id(), client.as_fd().as_raw_fd());
        ip(&format!("link add veth0 type veth peer name veth1 netns {place}"));
        let (bits, flags) = if family == Family::V4 { (24, "") } else { (112, "nodad") };
        let raise = |device: &str, last| {
            ip(&format!("address add {}/{bits} dev {device} {flags}", address(family, 1, last)));
            ip(&format!("link set {device} up"));
        };
        raise("veth0", 1);
        client
            .run(|| {
                raise("veth1", 2);
                let option = if family == Family::V4 { "-4" } else { "-6" };
                ip(&format!("{option} route add default via {}", address(family, 1, 1)));
            })
            .unwrap();
        for last in [1, 2] {
            let at = endpoint(family, last);
            ip(&format!("address add {}/{} dev lo {flags}", at.ip(), if family == Family::V4 { 32 } else { 128 }));
            serve(at, last);
        }
        Self(client)
    }

    fn try_connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        self.0.run(|| TcpStream::connect_timeout(&to, ANSWER)).unwrap()
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> Connection {
        Connection::over(self.try_connect(to), to)
    }

    /// A connection that leaves from this port of the client.
    pub(crate) fn connect_from(&self, port: u16, to: SocketAddr) -> Connection {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = self.0.run(|| Socket::new(Domain::for_address(to), Type::STREAM, None)).unwrap().unwrap();
        socket.bind(&SocketAddr::new(any, port).into()).unwrap();
        let connected = socket.connect_timeout(&to.into(), ANSWER);
        Connection::over(connected.map(|()| socket.into()), to)
    }

    pub(crate) fn is_refused(&self, to: SocketAddr) -> bool {
        self.try_connect(to).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    }

    /// A socket that has got an answer by UDP. As clients do, it sends its datagram again if none comes.
    pub(crate) fn flow(&self, to: SocketAddr) -> UdpSocket {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = self.0.run(|| UdpSocket::bind((any, 0))).unwrap().unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(ANSWER / TRIES)).unwrap();
        assert!((0..TRIES).any(|_| answer(&socket).is_some()), "{to}: {}", run("ipvsadm", "-Lnc"));
        socket.set_read_timeout(Some(ANSWER)).unwrap();
        socket
    }
}

/// The endpoint that answers.
pub(crate) fn answer(socket: &UdpSocket) -> Option<u8> {
    socket.send(b"?").ok()?;
    let mut name = [0];
    socket.recv(&mut name).ok()?;
    Some(name[0])
}

// === impl Connection ===

impl Connection {
    /// The connection, once its endpoint has sent its name.
    fn over(stream: std::io::Result<TcpStream>, to: SocketAddr) -> Self {
        let mut stream = stream.unwrap_or_else(|error| panic!("{to}: {error}: {}", run("ipvsadm", "-Lnc")));
        stream.set_read_timeout(Some(ANSWER)).unwrap();
        let mut name = [0];
        stream.read_exact(&mut name).unwrap();
        Self { endpoint: name[0], stream }
    }

    /// The client's port.
    pub(crate) fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }

    /// True if the endpoint still answers.
    pub(crate) fn lives(&mut self) -> bool {
        let mut answer = [0];
        self.stream.write_all(b"x").and_then(|()| self.stream.read_exact(&mut answer)).is_ok() && answer == *b"x"
    }

    /// True if the endpoint answers no more: a connection that lives answers within milliseconds, retransmissions included within a second.
    pub(crate) fn is_cut(&mut self) -> bool {
        self.stream.set_read_timeout(Some(NO_ANSWER)).unwrap();
        !self.lives()
    }

    /// Ends the connection with a reset: the kernel sends one if there are unread bytes. IPVS keeps it for ten seconds.
    pub(crate) fn reset(mut self) {
        self.stream.write_all(b"x").unwrap();
        self.stream.peek(&mut [0]).unwrap();
    }
}

fn serve(at: SocketAddr, name: u8) {
    let listener = TcpListener::bind(at).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            std::thread::spawn(move || {
                let mut bytes = [name];
                while stream.write_all(&bytes).is_ok() && stream.read_exact(&mut bytes).is_ok() {}
            });
        }
    });
    let socket = UdpSocket::bind(at).unwrap();
    std::thread::spawn(move || {
        while let Ok((_, client)) = socket.recv_from(&mut [0]) {
            let _ = socket.send_to(&[name], client);
        }
    });
}
