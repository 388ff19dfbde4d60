//! One connection: reads and writes bytes, with or without TLS, and applies the faults that count bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::pending::PendingResponse;
use super::request::{self, RequestHead};

/// Largest request head or request body, in bytes.
const LARGEST_REQUEST: usize = 1 << 20;

/// A socket that other threads may shut down while it is used.
#[derive(Clone)]
pub(super) struct SharedSocket(pub(super) Arc<TcpStream>);

/// Carries requests one after another and their responses: an HTTP/1.1 connection, after its TLS handshake or without
/// TLS; or one HTTP/2 stream.
pub(super) struct Connection {
    stream: ConnectionStream,
    inbox: Vec<u8>,
}

enum ConnectionStream {
    Plain(SharedSocket),
    Tls(Box<StreamOwned<ServerConnection, SharedSocket>>),
    Two(PendingResponse),
}

/// Byte-counting faults of one body. Counts decrease as bytes are sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    pub(super) cut: Option<Cut>,
    /// bytes sent before the body stalls
    pub(super) stall: Option<usize>,
    /// bytes per piece, and the pause after each
    pub(super) slow: Option<(usize, Duration)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) left: usize,
    pub(super) reset: bool,
}

/// Reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// the client closed the connection, or the server is cutting connections
    Closed,
    /// the waker was woken
    Woken,
    /// the deadline passed
    Time,
}

// === impl SharedSocket ===

impl Read for SharedSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(bytes)
    }
}

impl Write for SharedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Connection ===

impl Connection {
    /// Completes the TLS handshake, if TLS is configured.
    pub(super) fn open(socket: SharedSocket, tls: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        let stream = match tls {
            None => ConnectionStream::Plain(socket.clone()),
            Some(tls) => {
                let mut session = ServerConnection::new(tls).map_err(io::Error::other)?;
                let mut io = socket.clone();
                while session.is_handshaking() {
                    session.complete_io(&mut io)?;
                }
                ConnectionStream::Tls(Box::new(StreamOwned::new(session, io)))
            }
        };
        Ok(Self { stream, inbox: Vec::new() })
    }

    /// A connection whose TLS handshake was completed elsewhere.
    pub(super) fn secured(socket: SharedSocket, session: ServerConnection) -> Self {
        Self { stream: ConnectionStream::Tls(Box::new(StreamOwned::new(session, socket))), inbox: Vec::new() }
    }

    /// One HTTP/2 stream.
    pub(super) fn of_reply(reply: PendingResponse) -> Self {
        Self { stream: ConnectionStream::Two(reply), inbox: Vec::new() }
    }

    /// Marks the response as complete.
    pub(super) fn complete(&mut self) {
        if let ConnectionStream::Two(reply) = &mut self.stream {
            reply.complete();
        }
    }

    /// True if bodies are framed as HTTP/1.1 chunks.
    pub(super) fn has_chunks(&self) -> bool {
        !matches!(self.stream, ConnectionStream::Two(_))
    }

    fn socket(&self) -> Option<&SharedSocket> {
        match &self.stream {
            ConnectionStream::Plain(socket) => Some(socket),
            ConnectionStream::Tls(tls) => Some(&tls.sock),
            ConnectionStream::Two(_) => None,
        }
    }

    /// Writes the head of a response: its status, fields, and the length of its body if known; in HTTP/1.1 at most `most`
    /// bytes of it.
    pub(super) fn head(
        &mut self,
        code: u16,
        fields: &[(&str, &str)],
        length: Option<usize>,
        most: usize,
    ) -> io::Result<()> {
        let length = length.map(|length| length.to_string());
        if let ConnectionStream::Two(reply) = &mut self.stream {
            let response = hyper::Response::builder().status(code);
            let length = length.as_deref().map(|length| ("content-length", length));
            let fields = fields.iter().copied().chain(length);
            return reply.head(fields.fold(response, |response, (name, value)| response.header(name, value)));
        }
        let word = match code {
            200 => "OK",
            ..300 => "Fine",
            300.. => "Refused",
        };
        let mut head = format!("HTTP/1.1 {code} {word}\r\n");
        let framing = length.as_deref().map_or(("Transfer-Encoding", "chunked"), |length| ("Content-Length", length));
        for (name, value) in fields.iter().copied().chain([framing]) {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head.push_str("\r\n");
        self.write(head.as_bytes().get(..most).unwrap_or(head.as_bytes()))
    }

    /// True if the client presented a certificate (verified by the handshake).
    pub(super) fn has_client_certificate(&self) -> bool {
        match &self.stream {
            ConnectionStream::Plain(_) => false,
            ConnectionStream::Two(reply) => reply.has_certificate,
            ConnectionStream::Tls(tls) => tls.conn.peer_certificates().is_some_and(|chain| !chain.is_empty()),
        }
    }

    /// Reads the next request with its body; `None` at the end of the connection.
    pub(super) fn request(&mut self) -> io::Result<Option<(RequestHead, Vec<u8>)>> {
        let end = loop {
            if let Some(end) = self.inbox.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end + 4;
            }
            if !self.fill()? {
                return Ok(None);
            }
        };
        let rest = self.inbox.split_off(end);
        let head = request::parse(&std::mem::replace(&mut self.inbox, rest));
        let head = head.ok_or_else(|| io::Error::other("not a request of HTTP/1.1"))?;
        let length = head.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        while self.inbox.len() < length {
            if !self.fill()? {
                return Ok(None);
            }
        }
        let rest = self.inbox.split_off(length);
        Ok(Some((head, std::mem::replace(&mut self.inbox, rest))))
    }

    fn fill(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let count = self.read(&mut bytes)?;
        self.inbox.extend(bytes.iter().take(count));
        if self.inbox.len() > LARGEST_REQUEST {
            return Err(io::Error::other("too large a request"));
        }
        Ok(count > 0)
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.stream {
            ConnectionStream::Plain(socket) => socket.read(bytes),
            ConnectionStream::Tls(tls) => tls.read(bytes),
            // An HTTP/2 request was read whole.
            ConnectionStream::Two(_) => Ok(0),
        }
    }

    /// Writes without buffering, as one TLS record if it fits into one.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            ConnectionStream::Plain(socket) => socket.write_all(bytes),
            ConnectionStream::Tls(tls) => tls.write_all(bytes).and_then(|()| tls.flush()),
            ConnectionStream::Two(reply) => reply.write(bytes),
        }
    }

    /// Writes bytes of a body within its limits. An error ends the connection.
    pub(super) fn send(&mut self, mut bytes: &[u8], limits: &mut Limits) -> io::Result<()> {
        let mut end = None;
        for (left, cut) in [(limits.cut.as_mut().map(|cut| &mut cut.left), true), (limits.stall.as_mut(), false)] {
            let Some(left) = left else { continue };
            if bytes.len() >= *left {
                bytes = bytes.get(..*left).unwrap_or(bytes);
                end = Some(cut);
            }
            *left -= bytes.len();
        }
        let (piece, pause) = limits.slow.unwrap_or((usize::MAX, Duration::ZERO));
        for piece in bytes.chunks(piece.max(1)) {
            self.write(piece)?;
            if !pause.is_zero() && self.wait(None, Some(Instant::now() + pause))? == Wake::Closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        match end {
            None => Ok(()),
            Some(true) => self.cut(limits.cut.is_some_and(|cut| cut.reset)),
            Some(false) => self.silence(),
        }
    }

    /// Ends the connection without TLS close_notify; in HTTP/2, resets the stream.
    pub(super) fn cut(&mut self, reset: bool) -> io::Result<()> {
        match (&mut self.stream, reset) {
            (ConnectionStream::Two(reply), true) => reply.reset(h2::Reason::CANCEL),
            (ConnectionStream::Two(reply), false) => reply.reset(h2::Reason::INTERNAL_ERROR),
            (ConnectionStream::Plain(_) | ConnectionStream::Tls(_), _) => {
                let Some(socket) = self.socket() else { return Ok(()) };
                if reset {
                    // Takes effect when the last owner of the socket closes it, soon after.
                    socket2::SockRef::from(&*socket.0).set_linger(Some(Duration::ZERO))?;
                } else {
                    socket.0.shutdown(Shutdown::Both)?;
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "cut as the script wants it"))
    }

    /// Refuses the stream unprocessed; only HTTP/2 can express that.
    pub(super) fn refuse_stream(&mut self) -> io::Result<()> {
        if let ConnectionStream::Two(reply) = &mut self.stream {
            reply.refuse();
        }
        self.cut(false)
    }

    /// Sends nothing until the client closes the connection.
    pub(super) fn silence(&mut self) -> io::Result<()> {
        while self.wait(None, None)? != Wake::Closed {}
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "silent until the client went"))
    }

    /// Waits for the waker, the deadline or the end of the connection by the client.
    pub(super) fn wait(&mut self, waker: Option<BorrowedFd<'_>>, until: Option<Instant>) -> io::Result<Wake> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Wake::Time);
            }
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let socket = self.socket().cloned();
            let gone =
                if let ConnectionStream::Two(reply) = &self.stream { Some(Arc::clone(&reply.gone)) } else { None };
            let peer = socket.as_ref().map(|socket| socket.0.as_fd()).or(gone.as_ref().map(|gone| gone.as_fd()));
            let Some(peer) = peer else { return Ok(Wake::Closed) };
            let mut ready = vec![PollFd::from_borrowed_fd(peer, PollFlags::IN)];
            ready.extend(waker.map(|waker| PollFd::from_borrowed_fd(waker, PollFlags::IN)));
            match poll(&mut ready, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let is_ready = |at: usize| ready.get(at).is_some_and(|fd| !fd.revents().is_empty());
            let (client, woken) = (is_ready(0), is_ready(1));
            if client && !self.client_is_there()? {
                return Ok(Wake::Closed);
            }
            if woken {
                return Ok(Wake::Woken);
            }
        }
    }

    /// Reads and buffers incoming bytes; false at the end of the connection.
    fn client_is_there(&mut self) -> io::Result<bool> {
        let Some(socket) = self.socket().cloned() else { return Ok(false) };
        socket.0.set_nonblocking(true)?;
        let outcome = self.fill();
        socket.0.set_nonblocking(false)?;
        match outcome {
            Ok(more) => Ok(more),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(_) => Ok(false),
        }
    }

    /// Closes the connection properly.
    pub(super) fn close(mut self) {
        if let ConnectionStream::Tls(tls) = &mut self.stream {
            tls.conn.send_close_notify();
            // The client may have closed the connection already.
            let _ = tls.flush();
        }
        if let Some(socket) = self.socket() {
            let _ = socket.0.shutdown(Shutdown::Both);
        }
    }
}

/// Resets a waker.
pub(super) fn drain(waker: &impl AsFd) {
    // Non-blocking; an error means that it was not set.
    let _ = rustix::io::read(waker.as_fd(), &mut [0_u8; 8]);
}
