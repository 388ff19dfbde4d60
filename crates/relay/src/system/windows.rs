//! Windows. Its sockets have neither batches of datagrams, nor local addresses of datagrams without further calls, nor a count of
//! bytes that the peer has not acknowledged.

use std::future::poll_fn;
use std::io;
use std::net::{self, IpAddr, SocketAddr, UdpSocket};
use std::os::windows::io::{AsSocket, BorrowedSocket, OwnedSocket};
use std::time::Duration;

use ferry_kernel::windows::sockets::{accepts_connections, connect_without_retransmission, ignore_port_unreachable};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::{Interest, Ready};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::config::Keepalive;
use crate::protocol::Protocol;

/// An open socket, of this process or another.
pub type OpenSocket = OwnedSocket;

/// The most datagrams that one call receives.
pub(crate) const BATCH: usize = 1;
/// The largest datagram: 65,535 bytes of an IP packet, headers included.
const LARGEST_BYTES: usize = 65_535;
/// The interval of the looks for a lost connection while nothing reads from it.
const LOOK: Duration = Duration::from_millis(250);

/// Where datagrams are sent: the receiver, and the local address they leave from, which a socket here never reports.
type Route = (SocketAddr, Option<IpAddr>);

/// A buffer for one datagram of any size.
#[derive(Debug)]
pub(crate) struct Datagrams {
    bytes: Vec<u8>,
    received: Option<ReceivedDatagram>,
}

/// A received datagram, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedDatagram {
    /// The sender.
    pub(crate) source: SocketAddr,
    /// The address that the datagram was sent to, if the socket reports it.
    pub(crate) local: Option<IpAddr>,
    /// The number of bytes.
    pub(crate) length: usize,
}

// === impl Datagrams ===

impl Datagrams {
    /// Reserves the buffer.
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; LARGEST_BYTES], received: None }
    }

    /// The datagram that was received last.
    pub(crate) fn received(&self) -> &[ReceivedDatagram] {
        self.received.as_slice()
    }
}

/// The system has no limit of sockets but its memory.
pub fn raise_limit(_wanted: u64) -> u64 {
    u64::MAX
}

/// Receives a datagram from a socket that is ready in one of these respects.
pub(crate) fn receive(datagrams: &mut Datagrams, socket: &tokio::net::UdpSocket, ready: Ready) -> io::Result<()> {
    datagrams.received = None;
    let received = match socket.peer_addr() {
        Ok(peer) => socket.try_recv(&mut datagrams.bytes).map(|length| (length, peer)),
        Err(_unconnected) => socket.try_recv_from(&mut datagrams.bytes),
    };
    let (length, source) = received.map_err(|error| {
        // Wine reports the ICMP error of a connected socket as a readiness, and takes it from the socket; Windows returns it.
        let is_refusal = ready.is_error() && error.kind() == io::ErrorKind::WouldBlock;
        if is_refusal { io::ErrorKind::ConnectionRefused.into() } else { error }
    })?;
    datagrams.received = Some(ReceivedDatagram { source, local: None, length });
    Ok(())
}

/// Sends the received datagram on, if it is among these positions: to `route`, or to the peer of a connected socket. Returns the
/// number of those that were sent.
pub(crate) fn send(
    datagrams: &Datagrams,
    socket: &tokio::net::UdpSocket,
    positions: &[usize],
    route: Option<Route>,
) -> io::Result<usize> {
    let Some(received) = datagrams.received.filter(|_| positions.contains(&0)) else { return Ok(0) };
    let bytes = datagrams.bytes.get(..received.length).unwrap_or_default();
    // Not by the runtime, for which a new socket is not ready.
    let socket = SockRef::from(socket);
    match route {
        Some((to, _)) => socket.send_to(bytes, &to.into())?,
        None => socket.send(bytes)?,
    };
    Ok(1)
}

/// True if no local port is left.
pub(crate) fn lacks_local_port(error: &io::Error) -> bool {
    /// `WSAEADDRINUSE`, `WSAEADDRNOTAVAIL`
    const LOCAL_PORTS: [i32; 2] = [10_048, 10_049];
    error.raw_os_error().is_some_and(|code| LOCAL_PORTS.contains(&code))
}

/// True if a socket can't be opened because memory is used up: any other one can't, either.
pub(crate) fn lacks_resources(error: &io::Error) -> bool {
    /// `WSAEMFILE`, `WSAENOBUFS`
    const EXHAUSTED: [i32; 2] = [10_024, 10_055];
    error.raw_os_error().is_some_and(|code| EXHAUSTED.contains(&code))
}

/// True if accepting failed because of the connection: the client has gone while it waited.
pub(crate) fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, TimedOut};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | TimedOut)
}

/// True if the socket of a UDP listener goes on after this error: one of ICMP concerns an answer that was sent to a client.
pub(crate) fn is_of_datagram(error: &io::Error) -> bool {
    /// `WSAEMSGSIZE`, `WSAENETRESET`, `WSAENOBUFS`
    const OF_DATAGRAMS: [i32; 3] = [10_040, 10_052, 10_055];
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | HostUnreachable | Interrupted | NetworkUnreachable)
        || error.raw_os_error().is_some_and(|code| OF_DATAGRAMS.contains(&code))
}

/// True if a connection attempt has begun and is not decided.
pub(crate) fn is_in_progress(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// A TCP socket for a connection attempt that doesn't wait.
pub(crate) fn open_connecting(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // Where the system lacks it, a refusal takes as long as an endpoint without an answer, and the limit of the try ends it.
    if let Err(error) = connect_without_retransmission(socket.as_socket()) {
        tracing::trace!(%error, "Refused connections end by the time limit of their tries");
    }
    Ok(socket)
}

/// A UDP socket whose calls don't wait.
pub(crate) fn open_datagrams(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Packets have no marks here.
pub(crate) fn set_mark(_socket: &Socket, mark: Option<u32>) -> io::Result<()> {
    mark.map_or(Ok(()), |_| Err(io::Error::new(io::ErrorKind::Unsupported, "Windows has no marks of packets")))
}

/// No connection is redirected here.
pub(crate) fn original_destination(_stream: &net::TcpStream, _ipv6: bool) -> io::Result<SocketAddr> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "Windows redirects no connection"))
}

/// True if a socket is of this protocol.
pub(crate) fn is_of(socket: &Socket, protocol: Protocol) -> io::Result<bool> {
    Ok(socket.r#type()?
        == match protocol {
            Protocol::Tcp => Type::STREAM,
            Protocol::Udp => Type::DGRAM,
        })
}

/// True if connections can be accepted from a TCP socket.
pub(crate) fn is_listening(socket: &Socket) -> io::Result<bool> {
    accepts_connections(socket.as_socket())
}

/// Sets keepalive, which accepted connections inherit. Before Windows 10 (15063) the number of probes is ten and can't be set.
pub(crate) fn set_keepalive(socket: &Socket, keepalive: Keepalive) -> io::Result<()> {
    /// `WSAENOPROTOOPT`
    const NO_SUCH_OPTION: i32 = 10_042;
    let times = TcpKeepalive::new().with_time(keepalive.idle).with_interval(keepalive.interval);
    match socket.set_tcp_keepalive(&times.clone().with_retries(keepalive.probes)) {
        Err(error) if error.raw_os_error() == Some(NO_SUCH_OPTION) => socket.set_tcp_keepalive(&times),
        set => set,
    }
}

/// Before an IPv6 listener is bound. Windows has addresses on interfaces only.
pub(crate) fn accept_routed_address(_: &Socket) -> io::Result<()> {
    Ok(())
}

/// Before a listener is bound: two sockets never share an address. `SO_REUSEADDR` would permit that to any program here, and
/// connections in TIME_WAIT keep no address from a listener.
pub(crate) fn share_address(_socket: &Socket, _kind: Type, reuse_port: bool) -> io::Result<()> {
    if reuse_port {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "Windows has no addresses that several listeners share",
        ));
    }
    Ok(())
}

/// A socket that is bound to all addresses would answer from another address than the client has sent to.
pub(crate) fn prepare_datagrams(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.ip().is_unspecified() {
        let text =
            "on Windows a UDP listener needs an address, it can't answer from the one that its client has sent to";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    // Of many clients, one that has closed its socket would fail the next call of each.
    ignore_port_unreachable(socket.as_socket())
}

/// A TCP listener, registered with this thread's event loop. Accepted sockets are unregistered again.
#[derive(Debug)]
pub(crate) struct Acceptor(TcpListener);

// === impl Acceptor ===

impl Acceptor {
    /// Registers a non-blocking listener.
    pub(crate) fn new(listener: net::TcpListener) -> io::Result<Self> {
        TcpListener::from_std(listener).map(Self)
    }

    /// The next connection, non-blocking, and its client. Cancel-safe.
    pub(crate) async fn accept(&self) -> io::Result<(net::TcpStream, SocketAddr)> {
        let (stream, client) = self.0.accept().await?;
        Ok((stream.into_std().map_err(|_error| io::ErrorKind::ConnectionAborted)?, client))
    }

    /// The address and port at which it listens.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Another handle of the same socket.
    pub(crate) fn duplicate(&self) -> io::Result<OpenSocket> {
        duplicate(&self.0)
    }
}

/// A TCP connection, registered with this thread's event loop.
#[derive(Debug)]
pub(crate) struct Stream(TcpStream);

// === impl Stream ===

impl Stream {
    /// Registers a non-blocking socket.
    pub(crate) fn new(socket: net::TcpStream) -> io::Result<Self> {
        TcpStream::from_std(socket).map(Self)
    }

    /// Makes a call that returns `WouldBlock` if the socket isn't ready for it, or returns that without the call if it is known.
    pub(crate) fn try_io<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.0.try_io(interest, call)
    }

    /// Writes without waiting.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    /// Waits until there is something to read. One task at a time may wait for this.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        poll_fn(|context| self.0.poll_read_ready(context)).await
    }

    /// Waits until the socket takes bytes, or a connection attempt is decided. One task at a time may wait for this.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        poll_fn(|context| self.0.poll_write_ready(context)).await
    }
}

impl AsSocket for Stream {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.0.as_socket()
    }
}

/// Another handle of the same socket.
pub(crate) fn duplicate(socket: &impl AsSocket) -> io::Result<OpenSocket> {
    socket.as_socket().try_clone_to_owned()
}

/// Always true: the system doesn't report it, so a reset waits as long as it may.
pub(crate) fn has_undelivered(_stream: &Stream) -> bool {
    true
}

/// False: the system reports again what is left behind an urgent byte, whenever it is asked.
pub(crate) fn is_at_mark(_stream: &Stream) -> bool {
    false
}

/// Waits until the connection is lost: by a reset, or keepalive without an answer. Nothing reads from it meanwhile. The system
/// reports that as an end of both directions, beside a readiness that is there all along, so it is looked for in intervals.
pub(crate) async fn lost(socket: &Stream) {
    loop {
        match socket.0.ready(Interest::READABLE | Interest::WRITABLE).await {
            Ok(ready) if ready.is_write_closed() || ready.is_error() => return,
            Ok(_ready) => sleep(LOOK).await,
            // The runtime ends, and this with it.
            Err(_error) => std::future::pending().await,
        }
    }
}
