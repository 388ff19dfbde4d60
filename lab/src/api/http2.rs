//! HTTP/2: hyper implements the protocol on the connection's thread; each request has a handler thread that runs the same
//! code as an HTTP/1.1 connection.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::{Connection, SharedSocket};
use super::exchange::exchange;
use super::pending::{self, Pieces};
use super::request::RequestHead;
use super::{ServerState, locked};

/// ALPN protocol name of HTTP/2.
pub(super) const NAME: &[u8] = b"h2";

/// A command to an HTTP/2 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// serves as usual
    Serve,
    /// sends GOAWAY, and completes the requests under way
    Leave,
    /// neither reads nor writes any more
    Freeze,
    End,
}

/// Result of a TLS handshake.
pub(super) enum Shaken {
    One(ServerConnection),
    Two(TlsStream<TcpStream>),
}

/// A connection whose reads are counted.
struct CountedReads<'a> {
    stream: TlsStream<TcpStream>,
    shared: &'a ServerState,
}

/// Makes a TLS handshake that offers HTTP/2, too. Called within the runtime of [`run`].
async fn shake(socket: &SharedSocket, tls: Arc<ServerConfig>) -> io::Result<Shaken> {
    let stream = socket.0.try_clone()?;
    stream.set_nonblocking(true)?;
    let tls = TlsAcceptor::from(tls).accept(TcpStream::from_std(stream)?).await?;
    if tls.get_ref().1.alpn_protocol() == Some(NAME) {
        return Ok(Shaken::Two(tls));
    }
    let (_, session) = tls.into_inner();
    socket.0.set_nonblocking(false)?;
    Ok(Shaken::One(session))
}

/// Makes the handshake. Serves an HTTP/2 connection to its end; returns any other.
pub(super) fn run(
    shared: &Arc<ServerState>,
    number: u64,
    socket: &SharedSocket,
    tls: Arc<ServerConfig>,
    orders: watch::Receiver<Order>,
) -> io::Result<Option<ServerConnection>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(shake(socket, tls))? {
        Shaken::One(session) => Ok(Some(session)),
        Shaken::Two(tls) => {
            let threads = Arc::default();
            runtime.block_on(serve(shared, number, tls, orders, &threads));
            // Tasks of the connection, such as unread bodies, end with the runtime; then so do the threads.
            drop(runtime);
            for thread in std::mem::take(&mut *locked(&threads)) {
                // Its panic was printed already.
                let _ = thread.join();
            }
            Ok(None)
        }
    }
}

type Threads = Arc<Mutex<Vec<thread::JoinHandle<()>>>>;

async fn serve(
    shared: &Arc<ServerState>,
    number: u64,
    tls: TlsStream<TcpStream>,
    mut orders: watch::Receiver<Order>,
    threads: &Threads,
) {
    let has_certificate = tls.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
    let service = service_fn(|request: Request<Incoming>| {
        let (shared, threads) = (Arc::clone(shared), Arc::clone(threads));
        async move { answer(shared, number, has_certificate, request, &threads).await }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(shared.options.streams);
    let wire = CountedReads { stream: tls, shared };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(wire), service));
    loop {
        let order = *orders.borrow_and_update();
        match order {
            Order::Serve => {}
            Order::Leave => connection.as_mut().graceful_shutdown(),
            Order::End => return,
            Order::Freeze => {
                let _ended = orders.changed().await;
                continue;
            }
        }
        tokio::select! {
            // An order precedes everything that the server writes after it.
            biased;
            changed = orders.changed() => if changed.is_err() { return },
            // Connections may end in any way: not an error of the server.
            _ = connection.as_mut() => return,
        }
    }
}

/// Starts a handler thread for the request, and passes its response to hyper.
async fn answer(
    shared: Arc<ServerState>,
    number: u64,
    has_certificate: bool,
    request: Request<Incoming>,
    threads: &Threads,
) -> Result<Response<Pieces>, h2::Error> {
    let (parts, body) = request.into_parts();
    let host = parts.uri.authority().map(|authority| ("host".to_owned(), authority.to_string()));
    let fields = parts.headers.iter();
    let fields = fields.map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    let head = RequestHead {
        method: parts.method.to_string(),
        target: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
        headers: host.into_iter().chain(fields).collect(),
    };
    let body = body.collect().await.map_err(|_| h2::Error::from(h2::Reason::CANCEL))?.to_bytes();
    let (reply, promised) = pending::response(has_certificate);
    let work = move || {
        let mut connection = Connection::of_reply(reply);
        if exchange(&shared, &mut connection, head, &body, number).is_ok() {
            connection.complete();
        }
    };
    let thread = thread::Builder::new().name(format!("api-{number}")).spawn(work).expect("starting a thread");
    keep(threads, thread);
    promised.head().await
}

fn keep(threads: &Threads, thread: thread::JoinHandle<()>) {
    let mut threads = locked(threads);
    threads.retain(|thread| !thread.is_finished());
    threads.push(thread);
}

// === impl CountedReads ===

impl AsyncRead for CountedReads<'_> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = bytes.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, bytes);
        if bytes.filled().len() > before {
            self.shared.heard.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for CountedReads<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
