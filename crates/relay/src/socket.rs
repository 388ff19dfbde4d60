//! Opens listening sockets, and sets the options of connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use socket2::{Domain, SockRef, Socket, Type};

use crate::config::Keepalive;
use crate::system::{self, OpenSocket};

/// Connections that wait to be accepted; the kernel limits it further (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// Receive buffer of a UDP listener, which all its clients share; the kernel limits it further (`net.core.rmem_max`).
const DATAGRAM_BUFFER_BYTES: usize = 4 << 20;

/// The transport protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
}

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
pub(crate) fn connect(address: SocketAddr, keepalive: Keepalive) -> io::Result<TcpStream> {
    let socket = system::open_connecting(address)?;
    socket.set_tcp_nodelay(true)?;
    system::set_keepalive(&socket, keepalive)?;
    match socket.connect(&address.into()) {
        Err(error) if !system::is_in_progress(&error) => Err(error),
        Ok(()) | Err(_) => Ok(socket.into()),
    }
}

fn bound(address: SocketAddr, reuse_port: bool, kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    system::share_address(&socket, kind, reuse_port)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
