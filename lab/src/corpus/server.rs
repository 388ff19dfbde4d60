//! Servers at given addresses and ports; each answers with its own address and the client's.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;

use ferry_api::object::Protocol;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use socket2::{Domain, Socket, Type};

use crate::host::Host;
use crate::probe::{ProbeAnswer, sctp};

/// The servers of one machine, in one thread; closed when dropped.
pub(super) struct Servers {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A listening socket.
enum Door {
    Tcp(TcpListener, SocketAddr),
    Udp(UdpSocket, SocketAddr),
    /// a raw socket for all SCTP to an address, with the ports that answer
    Sctp(Socket, IpAddr, BTreeSet<u16>),
}

// === impl Servers ===

impl Servers {
    /// Opens all sockets, then answers until dropped.
    pub(super) fn start(host: &Host, at: &BTreeSet<(Protocol, SocketAddr)>) -> Self {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an event to wait for"));
        let flag = Arc::clone(&stop);
        let at = at.clone();
        let name = host.name();
        let doors = host.run(move || open(name, &at));
        Self { stop, thread: Some(host.thread(move || serve(&doors, &flag))) }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // its panic was printed already, and this may run during another unwinding
            let _ = thread.join();
        }
    }
}

/// A socket of this protocol that may bind any address, local or not.
pub(super) fn socket(address: IpAddr, protocol: Protocol) -> std::io::Result<Socket> {
    match protocol {
        Protocol::Tcp => transparent(address, Type::STREAM, None),
        Protocol::Udp => transparent(address, Type::DGRAM, None),
        Protocol::Sctp => transparent(address, Type::RAW, Some(socket2::Protocol::SCTP)),
    }
}

/// A socket of this type that may bind any address (IP_TRANSPARENT).
pub(super) fn transparent(address: IpAddr, kind: Type, protocol: Option<socket2::Protocol>) -> std::io::Result<Socket> {
    let domain = Domain::for_address(SocketAddr::new(address, 0));
    let socket = Socket::new(domain, kind.nonblocking(), protocol)?;
    if address.is_ipv4() {
        socket.set_ip_transparent_v4(true)?;
    } else {
        socket.set_ip_transparent_v6(true)?;
    }
    Ok(socket)
}

fn open(name: &str, at: &BTreeSet<(Protocol, SocketAddr)>) -> Vec<Door> {
    let mut doors: Vec<Door> = Vec::new();
    for (protocol, at) in at {
        if let (Protocol::Sctp, Some(ports)) = (protocol, ports_of(&mut doors, at.ip())) {
            ports.insert(at.port());
            continue;
        }
        let door = door(*protocol, *at);
        doors.push(door.unwrap_or_else(|error| panic!("{name}: a server at {at} over {protocol}: {error}")));
    }
    doors
}

fn ports_of(doors: &mut [Door], address: IpAddr) -> Option<&mut BTreeSet<u16>> {
    doors.iter_mut().find_map(|door| match door {
        Door::Sctp(_, at, ports) if *at == address => Some(ports),
        Door::Sctp(..) | Door::Tcp(..) | Door::Udp(..) => None,
    })
}

fn door(protocol: Protocol, at: SocketAddr) -> std::io::Result<Door> {
    let socket = socket(at.ip(), protocol)?;
    match protocol {
        Protocol::Tcp => {
            socket.set_reuse_address(true)?;
            socket.bind(&at.into())?;
            socket.listen(1024)?;
            Ok(Door::Tcp(socket.into(), at))
        }
        Protocol::Udp => {
            socket.bind(&at.into())?;
            Ok(Door::Udp(socket.into(), at))
        }
        Protocol::Sctp => {
            socket.bind(&SocketAddr::new(at.ip(), 0).into())?;
            Ok(Door::Sctp(socket, at.ip(), BTreeSet::from([at.port()])))
        }
    }
}

fn serve(doors: &[Door], stop: &OwnedFd) {
    let events = epoll::create(CreateFlags::CLOEXEC).expect("a set of events");
    let watch = |fd: &dyn AsFd, number: usize| {
        let number = EventData::new_u64(number.try_into().expect("a small number"));
        epoll::add(&events, fd.as_fd(), number, EventFlags::IN).expect("watching a socket");
    };
    for (number, door) in doors.iter().enumerate() {
        match door {
            Door::Tcp(listener, _) => watch(listener, number),
            Door::Udp(socket, _) => watch(socket, number),
            Door::Sctp(socket, ..) => watch(socket, number),
        }
    }
    watch(stop, doors.len());
    let mut ready = Vec::with_capacity(64);
    loop {
        ready.clear();
        match epoll::wait(&events, spare_capacity(&mut ready), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("waiting for clients: {error}"),
        }
        for event in &ready {
            let number = usize::try_from(event.data.u64()).expect("a small number");
            match doors.get(number) {
                Some(door) => door.answer(),
                None => return,
            }
        }
    }
}

// === impl Door ===

impl Door {
    /// Answers all pending clients. A client that has closed its connection already records its own outcome.
    fn answer(&self) {
        match self {
            Self::Tcp(listener, at) => loop {
                match listener.accept() {
                    Ok((mut stream, seen)) => drop(stream.write_all(ProbeAnswer::text(*at, seen).as_bytes())),
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                    Err(error) => panic!("{at}: accept: {error}"),
                }
            },
            Self::Udp(socket, at) => {
                let mut buffer = [0; 64];
                // an error of an earlier answer is reported here
                while let Ok((_, seen)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(ProbeAnswer::text(*at, seen).as_bytes(), seen);
                }
            }
            Self::Sctp(socket, address, ports) => {
                while let Ok((packet, seen)) = sctp::receive(socket) {
                    let Some(init) = sctp::Init::decode(&packet).filter(|init| ports.contains(&init.destination))
                    else {
                        continue;
                    };
                    let at = SocketAddr::new(*address, init.destination);
                    let text = ProbeAnswer::text(at, SocketAddr::new(seen, init.source));
                    let _ = socket.send_to(&init.acknowledge(&text), &SocketAddr::new(seen, 0).into());
                }
            }
        }
    }
}
