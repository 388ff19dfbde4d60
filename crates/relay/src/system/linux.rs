//! Socket options, classes of errors, batches of datagrams and limits on Linux.

use std::future::poll_fn;
use std::io::{self, Write as _};
use std::net::{self, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ferry_kernel::datagram::{self, Route, report_local_address, undelivered_bytes};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

use crate::config::Keepalive;
use crate::protocol::Protocol;
pub(crate) use ferry_kernel::datagram::{BATCH, Datagrams, ReceivedDatagram};

/// An open socket that another process can have, too.
pub type OpenSocket = OwnedFd;

/// A TCP listener, registered with this thread's event loop. Accepted sockets are unregistered, so that the thread that serves a connection
/// registers it, once; tokio's listener would register it with this thread.
#[derive(Debug)]
pub(crate) struct Acceptor(AsyncFd<net::TcpListener>);

/// A TCP connection, registered with this thread's event loop, which also reports urgent bytes: so a connection that has none costs no call
/// that asks for them.
#[derive(Debug)]
pub(crate) struct Stream(AsyncFd<net::TcpStream>);

/// Raises this process's limit of open files (`RLIMIT_NOFILE`) to `wanted`, or as far towards it as the hard limit and the
/// privileges allow. Never lowers it. Returns the limit in force; `u64::MAX` if there is none.
pub fn raise_limit(wanted: u64) -> u64 {
    let before = getrlimit(Resource::Nofile);
    let reaches = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if !reaches(before.current) {
        let maximum = if reaches(before.maximum) { before.maximum } else { Some(wanted) };
        // A higher hard limit takes CAP_SYS_RESOURCE; without it the present one is the best there is.
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
        if raised.is_err() && before.current != before.maximum {
            let to_maximum = Rlimit { current: before.maximum, maximum: before.maximum };
            if let Err(error) = setrlimit(Resource::Nofile, to_maximum) {
                tracing::warn!(%error, wanted, "Failed to raise the limit of open files");
            }
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

// === impl Acceptor ===

impl Acceptor {
    /// Registers a non-blocking listener.
    pub(crate) fn new(listener: net::TcpListener) -> io::Result<Self> {
        registered(listener, Interest::READABLE).map(Self)
    }

    /// The next connection, non-blocking, and its client. Cancel-safe.
    pub(crate) async fn accept(&self) -> io::Result<(net::TcpStream, SocketAddr)> {
        let accept = |listener: &net::TcpListener| {
            let (stream, client) = acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
            let client = client.and_then(|client| SocketAddr::try_from(client).ok());
            Ok((stream.into(), client.ok_or(Errno::CONNABORTED)?))
        };
        self.0.async_io(Interest::READABLE, accept).await
    }

    /// The address and port at which it listens.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.get_ref().local_addr()
    }

    /// Another descriptor of the same socket.
    pub(crate) fn duplicate(&self) -> io::Result<OpenSocket> {
        duplicate(&self.0)
    }
}

/// Registers a socket with this thread's event loop.
#[expect(
    deprecated,
    reason = "sound: sockets of the standard library keep their descriptor; the replacement is unsafe"
)]
fn registered<S: Into<OwnedFd> + AsRawFd>(socket: S, interest: Interest) -> io::Result<AsyncFd<S>> {
    AsyncFd::with_interest(socket, interest)
}

// === impl Stream ===

impl Stream {
    /// Registers a non-blocking socket.
    pub(crate) fn new(socket: net::TcpStream) -> io::Result<Self> {
        registered(socket, Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY).map(Self)
    }

    /// Makes a call that returns `WouldBlock` if the socket isn't ready for it, or returns that without the call if it is known.
    pub(crate) fn try_io<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.0.try_io(interest, |_socket| call())
    }

    /// Writes without waiting.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_io(Interest::WRITABLE, |mut socket| socket.write(bytes))
    }

    /// Waits until there is something to read. One task at a time may wait for this.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        poll_fn(|context| self.0.poll_read_ready(context)).await.map(drop)
    }

    /// Waits until the socket takes bytes, or a connection attempt is decided. One task at a time may wait for this.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        poll_fn(|context| self.0.poll_write_ready(context)).await.map(drop)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// True if no local port is left (`ip_local_port_range`): for a TCP connection, towards this endpoint; for a datagram socket, which binds as
/// it connects and reports that by `EAGAIN`, at all.
pub(crate) fn lacks_local_port(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::ADDRINUSE, Errno::ADDRNOTAVAIL, Errno::AGAIN])
}

/// True if a socket can't be opened because descriptors or memory are used up: any other one can't, either.
pub(crate) fn lacks_resources(error: &io::Error) -> bool {
    // The last one is that of `epoll_ctl(2)` beyond `fs.epoll.max_user_watches`.
    is_one_of(error, &[Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::NOSPC])
}

/// True if accepting failed because of the connection: the client has gone while it waited, or a network error of its connection
/// (accept(2), "Error handling").
pub(crate) fn is_of_connection(error: &io::Error) -> bool {
    let errors = [
        Errno::CONNABORTED,
        Errno::INTR,
        Errno::PROTO,
        Errno::NETDOWN,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::OPNOTSUPP,
        Errno::PERM,
        Errno::CONNRESET,
        Errno::TIMEDOUT,
    ];
    is_one_of(error, &errors)
}

/// True if the socket of a UDP listener goes on after this error: one of ICMP concerns an answer that was sent to a client.
pub(crate) fn is_of_datagram(error: &io::Error) -> bool {
    let errors = [
        Errno::INTR,
        Errno::CONNREFUSED,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::HOSTDOWN,
        Errno::MSGSIZE,
        Errno::NOBUFS,
        Errno::NOMEM,
    ];
    is_one_of(error, &errors)
}

/// True if a connection attempt has begun and is not decided.
pub(crate) fn is_in_progress(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || is_one_of(error, &[Errno::INPROGRESS])
}

fn is_one_of(error: &io::Error, errors: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| errors.contains(&errno))
}

/// A TCP socket for a connection attempt that doesn't wait.
pub(crate) fn open_connecting(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)
}

/// A UDP socket whose calls don't wait.
pub(crate) fn open_datagrams(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking(), None)
}

/// Marks the packets of a socket (`SO_MARK`, which takes `CAP_NET_ADMIN`).
pub(crate) fn set_mark(socket: &Socket, mark: Option<u32>) -> io::Result<()> {
    mark.map_or(Ok(()), |mark| socket.set_mark(mark))
}

/// The destination that a connection had before netfilter redirected it, from the record of connection tracking: `SO_ORIGINAL_DST`
/// (linux/netfilter_ipv4.h), `IP6T_SO_ORIGINAL_DST` (linux/netfilter_ipv6/ip6_tables.h). That of a connection that was not redirected is
/// its local address.
///
/// # Errors
/// The system's error: `ENOENT` if connection tracking has no record, `ENOPROTOOPT` if it is not loaded.
pub(crate) fn original_destination(stream: &net::TcpStream, ipv6: bool) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let address = if ipv6 { socket.original_dst_v6() } else { socket.original_dst_v4() }?;
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// True if a socket is of this protocol.
pub(crate) fn is_of(socket: &Socket, protocol: Protocol) -> io::Result<bool> {
    let (kind, transport) = match protocol {
        Protocol::Tcp => (Type::STREAM, socket2::Protocol::TCP),
        Protocol::Udp => (Type::DGRAM, socket2::Protocol::UDP),
    };
    Ok(socket.r#type()? == kind && socket.protocol()? == Some(transport))
}

/// True if connections can be accepted from a TCP socket.
pub(crate) fn is_listening(socket: &Socket) -> io::Result<bool> {
    socket.is_listener()
}

/// Sets keepalive, which accepted connections inherit.
pub(crate) fn set_keepalive(socket: &Socket, keepalive: Keepalive) -> io::Result<()> {
    let Keepalive { idle, interval, probes } = keepalive;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes))
}

/// Before an IPv6 listener is bound: accepts an address that a route of type `local` has made the machine's. For IPv4 the kernel looks at
/// routes, for IPv6 at interfaces (`ip(7)`, `IPV6_FREEBIND` of `ipv6(7)`).
pub(crate) fn accept_routed_address(socket: &Socket) -> io::Result<()> {
    socket.set_freebind_v6(true)
}

/// Before a listener is bound: with which sockets it shares its address.
pub(crate) fn share_address(socket: &Socket, kind: Type, reuse_port: bool) -> io::Result<()> {
    if kind == Type::STREAM {
        // Connections in TIME_WAIT don't keep the address from a listener. On UDP it would let sockets share the address.
        socket.set_reuse_address(true)?;
    }
    socket.set_reuse_port(reuse_port)
}

/// A socket that is bound to all addresses has to answer from the address that the client has sent to.
pub(crate) fn prepare_datagrams(socket: &UdpSocket) -> io::Result<()> {
    let address = socket.local_addr()?;
    if address.ip().is_unspecified() { report_local_address(socket.as_fd(), address.is_ipv6()) } else { Ok(()) }
}

/// Receives a batch from a socket that is ready in one of these respects.
pub(crate) fn receive(datagrams: &mut Datagrams, socket: &tokio::net::UdpSocket, ready: Ready) -> io::Result<()> {
    // The runtime clears the readiness of one interest at a time, none of a combination.
    let interest = if ready.is_readable() { Interest::READABLE } else { Interest::ERROR };
    socket.try_io(interest, || datagrams.receive(socket.as_fd()))
}

/// Sends datagrams of the batch, as [`Datagrams::send`] does.
pub(crate) fn send(
    datagrams: &Datagrams,
    socket: &tokio::net::UdpSocket,
    positions: &[usize],
    route: Option<Route>,
) -> io::Result<usize> {
    datagrams.send(socket.as_fd(), positions, route)
}

/// Another descriptor of the same socket.
pub(crate) fn duplicate(socket: &impl AsFd) -> io::Result<OpenSocket> {
    socket.as_fd().try_clone_to_owned()
}

/// True if the peer has not acknowledged all bytes that were written.
pub(crate) fn has_undelivered(stream: &Stream) -> bool {
    undelivered_bytes(stream.as_fd()).is_ok_and(|bytes| bytes > 0)
}

/// True if a read has ended before an urgent byte that the event loop has reported: no further event reports what is behind it. The event
/// of one that comes later also reports that there is something to read. The report is never cleared, and the peer's end counts as one: from
/// then on each short read costs a call.
pub(crate) fn is_at_mark(stream: &Stream) -> bool {
    let reported = stream.try_io(Interest::PRIORITY, || Ok(())).is_ok();
    reported && datagram::is_at_mark(stream.as_fd()).unwrap_or(false)
}

/// Waits until the socket has an error: a reset, or keepalive without an answer. Nothing reads from it meanwhile.
pub(crate) async fn lost(socket: &Stream) {
    // Fails only when the runtime ends, and this with it.
    if socket.0.ready(Interest::ERROR).await.is_err() {
        std::future::pending::<()>().await;
    }
}
