//! Opens listening sockets, and sets the options of connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use socket2::{Domain, SockRef, Socket, Type};

use crate::config::{Keepalive, RelayConfig};
use crate::protocol::Protocol;
use crate::system::{self, OpenSocket};

/// Connections that wait to be accepted; the kernel limits it further (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// Receive buffer of a UDP listener, which all its clients share; the kernel limits it further (`net.core.rmem_max`).
const DATAGRAM_BUFFER_BYTES: usize = 4 << 20;

/// Where a listener gets its socket from.
#[derive(Debug)]
pub enum Bind {
    /// It is opened, and opened again after a failure.
    Address {
        /// The address and port.
        address: SocketAddr,
        /// Shares the address with other sockets that allow it, for example those of a process that takes over
        /// (`SO_REUSEPORT`).
        reuse_port: bool,
    },
    /// It is open already: bound, and of TCP also listening. For example one from another process.
    Open(OpenSocket),
    /// The process before has left an open one. If that is not of this protocol and address, or does not listen, it is closed, and one is
    /// opened. After a failure one is opened, too.
    Inherited {
        /// The open socket.
        socket: OpenSocket,
        /// The address and port; with port 0 the socket may have any.
        address: SocketAddr,
        /// As for [`Bind::Address`], if one is opened.
        reuse_port: bool,
    },
}

// === impl Bind ===

impl Bind {
    /// The address at which the socket can be opened again.
    pub(crate) fn address(&self) -> Option<(SocketAddr, bool)> {
        match *self {
            Self::Address { address, reuse_port } | Self::Inherited { address, reuse_port, .. } => {
                Some((address, reuse_port))
            }
            Self::Open(_) => None,
        }
    }
}

/// Opens a TCP listener. Connections inherit its options (`TCP_NODELAY`, keepalive), which saves system calls for each.
pub(crate) fn listen(address: SocketAddr, reuse_port: bool, keepalive: Keepalive) -> io::Result<TcpListener> {
    let socket = bound(address, reuse_port, Type::STREAM)?;
    socket.listen(BACKLOG)?;
    prepare_listener(socket.into(), keepalive)
}

/// Sets the options of a TCP listener that is open already.
pub(crate) fn prepare_listener(listener: TcpListener, keepalive: Keepalive) -> io::Result<TcpListener> {
    let socket = SockRef::from(&listener);
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    system::set_keepalive(&socket, keepalive)?;
    Ok(listener)
}

/// Opens a UDP socket for datagrams of clients.
pub(crate) fn bind_datagrams(address: SocketAddr, reuse_port: bool) -> io::Result<UdpSocket> {
    prepare_datagrams(bound(address, reuse_port, Type::DGRAM)?.into())
}

/// Sets the options of a UDP socket that is open already.
pub(crate) fn prepare_datagrams(socket: UdpSocket) -> io::Result<UdpSocket> {
    let options = SockRef::from(&socket);
    options.set_nonblocking(true)?;
    options.set_recv_buffer_size(DATAGRAM_BUFFER_BYTES)?;
    system::prepare_datagrams(&socket)?;
    Ok(socket)
}

/// Starts to connect to an endpoint, without waiting.
pub(crate) fn connect(address: SocketAddr, config: &RelayConfig) -> io::Result<TcpStream> {
    let socket = system::open_connecting(address)?;
    socket.set_tcp_nodelay(true)?;
    system::set_keepalive(&socket, config.keepalive)?;
    system::set_mark(&socket, config.mark)?;
    match socket.connect(&address.into()) {
        Err(error) if !system::is_in_progress(&error) => Err(error),
        Ok(()) | Err(_) => Ok(socket.into()),
    }
}

/// Opens a UDP socket for datagrams to an endpoint.
pub(crate) fn connect_datagrams(endpoint: SocketAddr, config: &RelayConfig) -> io::Result<UdpSocket> {
    let socket = system::open_datagrams(endpoint)?;
    system::set_mark(&socket, config.mark)?;
    socket.connect(&endpoint.into())?;
    Ok(socket.into())
}

/// Checks that a socket that was given open has this protocol, is bound, of TCP also listens, and has this address; any port if
/// that is 0, and any address if there is none.
///
/// # Errors
/// The system's error, or one that names the difference.
pub(crate) fn check(socket: &OpenSocket, protocol: Protocol, wanted: Option<SocketAddr>) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let bound = socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("it is not an IP socket"))?;
    if !system::is_of(&socket, protocol)? {
        return Err(io::Error::other(format!("it is not a socket of {protocol}")));
    }
    if bound.port() == 0 || protocol == Protocol::Tcp && !system::is_listening(&socket)? {
        return Err(io::Error::other("it does not listen"));
    }
    match wanted {
        Some(wanted) if wanted.ip() != bound.ip() || ![0, bound.port()].contains(&wanted.port()) => {
            Err(io::Error::other(format!("it listens on {bound} instead of {wanted}")))
        }
        Some(_) | None => Ok(()),
    }
}

fn bound(address: SocketAddr, reuse_port: bool, kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
        system::accept_routed_address(&socket)?;
    }
    system::share_address(&socket, kind, reuse_port)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
