//! Opens listening sockets, and sets the options of connections.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use crate::config::{Config, Keepalive};

/// Connections that wait to be accepted; the kernel limits it further (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// Receive buffer of a UDP listener, which all its clients share; the kernel limits it further (`net.core.rmem_max`).
const DATAGRAM_BUFFER_BYTES: usize = 4 << 20;

/// The transport protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    Open(OwnedFd),
    /// The process before has left an open one. If that is not of this protocol and address, or does not listen, it is closed, and one is
    /// opened. After a failure one is opened, too.
    Inherited {
        /// The open socket.
        socket: OwnedFd,
        /// The address and port; with port 0 the socket may have any.
        address: SocketAddr,
        /// As for [`Bind::Address`], if one is opened.
        reuse_port: bool,
    },
}

// === impl Protocol ===

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
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
    socket.set_tcp_keepalive(&parameters(keepalive))?;
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
    Ok(socket)
}

/// Starts to connect to an endpoint, without waiting.
pub(crate) fn connect(address: SocketAddr, config: &Config) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&parameters(config.keepalive))?;
    if let Some(mark) = config.mark {
        socket.set_mark(mark)?;
    }
    match socket.connect(&address.into()) {
        Err(error) if !is_in_progress(&error) => Err(error),
        Ok(()) | Err(_) => Ok(socket.into()),
    }
}

/// Opens a UDP socket for datagrams to an endpoint.
pub(crate) fn connect_datagrams(endpoint: SocketAddr, config: &Config) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(endpoint), Type::DGRAM.nonblocking(), None)?;
    if let Some(mark) = config.mark {
        socket.set_mark(mark)?;
    }
    socket.connect(&endpoint.into())?;
    Ok(socket.into())
}

/// The destination that a connection had before netfilter redirected it, from the record of connection tracking: `SO_ORIGINAL_DST`
/// (linux/netfilter_ipv4.h), `IP6T_SO_ORIGINAL_DST` (linux/netfilter_ipv6/ip6_tables.h). That of a connection that was not redirected is
/// its local address.
///
/// # Errors
/// The system's error: `ENOENT` if connection tracking has no record, `ENOPROTOOPT` if it is not loaded.
pub(crate) fn original_destination(stream: &tokio::net::TcpStream, ipv6: bool) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let address = if ipv6 { socket.original_dst_v6() } else { socket.original_dst_v4() }?;
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Checks that a socket that was given open has this protocol, is bound, of TCP also listens, and has this address; any port if
/// that is 0, and any address if there is none.
///
/// # Errors
/// The system's error, or one that names the difference.
pub(crate) fn check(socket: &OwnedFd, protocol: Protocol, wanted: Option<SocketAddr>) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let (kind, transport) = match protocol {
        Protocol::Tcp => (Type::STREAM, socket2::Protocol::TCP),
        Protocol::Udp => (Type::DGRAM, socket2::Protocol::UDP),
    };
    let bound = socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("it is not an IP socket"))?;
    if socket.r#type()? != kind || socket.protocol()? != Some(transport) {
        return Err(io::Error::other(format!("it is not a socket of {protocol}")));
    }
    if bound.port() == 0 || protocol == Protocol::Tcp && !socket.is_listener()? {
        return Err(io::Error::other("it does not listen"));
    }
    match wanted {
        Some(wanted) if wanted.ip() != bound.ip() || ![0, bound.port()].contains(&wanted.port()) => {
            Err(io::Error::other(format!("it listens on {bound} instead of {wanted}")))
        }
        Some(_) | None => Ok(()),
    }
}

fn is_in_progress(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::INPROGRESS)
}

fn bound(address: SocketAddr, reuse_port: bool, kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        // Connections in TIME_WAIT don't keep the address from a listener. On UDP it would let sockets share the address.
        socket.set_reuse_address(true)?;
    }
    socket.set_reuse_port(reuse_port)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn parameters(keepalive: Keepalive) -> TcpKeepalive {
    TcpKeepalive::new().with_time(keepalive.idle).with_interval(keepalive.interval).with_retries(keepalive.probes)
}
