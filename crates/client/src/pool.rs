//! Connection pool: one HTTP/2 connection for all requests, or one HTTP/1.1 connection per running request.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::TimeLimits;
use super::connect::{Alert, ConnectError, Connector, Wire};
use super::error::{CallError, chain};

/// An outgoing request.
pub(super) type Outgoing = Request<Full<Bytes>>;

/// Read buffer of an HTTP/1.1 connection.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Receive window of one stream: enough for 5 MB/s over 50 ms.
const STREAM_WINDOW: u32 = 256 << 10;
/// Receive window of the connection: more than all concurrent streams can leave unread (four kinds, and one request that writes
/// an Event), so that no stream blocks another. It bounds the memory, too.
const CONNECTION_WINDOW: u32 = 8 * STREAM_WINDOW;
/// HTTP/1.1 connections that are kept open between requests. Watches occupy theirs.
const IDLE_CONNECTIONS: usize = 2;
/// Their idle timeout. API servers keep them for minutes.
const IDLE: Duration = Duration::from_secs(30);

type Http2 = http2::Connection<Wire, Full<Bytes>, TokioExecutor>;

/// Health checks of idle HTTP/2 connections by PING.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pings {
    /// idle time before a PING; `None` for never
    pub(super) after: Option<Duration>,
    /// time limit of the answer
    pub(super) within: Duration,
}

/// The open connections of one identity.
pub(super) struct Pool {
    connector: Connector,
    pings: Pings,
    open: Mutex<Vec<PooledConnection>>,
}

struct PooledConnection {
    sender: Sender,
    link: Arc<Link>,
    /// when a request was last sent over it
    used: Instant,
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

/// The state of a connection, shared by the requests on it.
pub(super) struct Link {
    /// requests whose response hasn't been read to its end
    running: AtomicUsize,
    /// the HTTP/2 connection until it ends: it has the server's limit of concurrent streams
    connection: OnceLock<Mutex<Option<Pin<Box<Http2>>>>>,
    /// requests carry the absolute URL
    forwarded: bool,
    alert: Alert,
    /// failed attempts to connect before it was established
    failures: u64,
    /// the server has answered a request over it
    answered: AtomicBool,
}

/// A connection for one request.
pub(super) struct Lease {
    pool: Arc<Pool>,
    sender: Sender,
    running: RunningRequest,
    /// the connection has served other requests before
    is_old: bool,
}

/// Counts a running request of a connection until it is dropped.
pub(super) struct RunningRequest(Arc<Link>);

/// Failure of a request without a response.
pub(super) enum SendError {
    /// it was never sent: the connection was closing
    Unsent(hyper::Error),
    /// the server reports that it hasn't processed it
    Unprocessed(hyper::Error),
    /// a reused HTTP/2 connection was lost, possibly before the request was sent
    Lost(hyper::Error),
    /// the server rejected the client certificate with this TLS alert
    Alert(String),
    /// anything else
    Broken(hyper::Error),
}

// === impl Pool ===

impl Pool {
    pub(super) fn new(connector: Connector, pings: Pings) -> Self {
        Self { connector, pings, open: Mutex::default() }
    }

    /// An open connection with capacity for another request.
    pub(super) fn take(self: &Arc<Self>) -> Option<Lease> {
        let mut open = locked(&self.open);
        open.retain(|open| !open.sender.is_closed());
        let at = open.iter().position(|open| open.link.has_room())?;
        let found = open.get(at)?;
        let running = RunningRequest::on(&found.link);
        let sender = match &found.sender {
            Sender::Two(sender) => Sender::Two(sender.clone()),
            // It returns to the pool with the head of the response.
            Sender::One(_) => open.swap_remove(at).sender,
        };
        Some(Lease { pool: Arc::clone(self), sender, running, is_old: true })
    }

    /// Establishes a connection; `failures` counts the failed attempts so far.
    pub(super) async fn dial(
        self: &Arc<Self>,
        server: Uri,
        timing: &TimeLimits,
        brisk: bool,
        failures: u64,
    ) -> Result<Lease, ConnectError> {
        let limit = timing.connect;
        let made = async {
            let wire = self.connector.connect(server, brisk).await?;
            self.open_on(wire, failures).await
        };
        let late = |_| Err(ConnectError::unreachable(format!("no connection within {} s", limit.as_secs_f32())));
        tokio::time::timeout(limit, made).await.unwrap_or_else(late)
    }

    /// Starts HTTP on a new connection, and drives it until it ends.
    async fn open_on(self: &Arc<Self>, wire: Wire, failures: u64) -> Result<Lease, ConnectError> {
        let read = Arc::clone(&wire.read);
        let link = Arc::new(Link {
            running: AtomicUsize::new(0),
            connection: OnceLock::new(),
            forwarded: wire.forwarded,
            alert: wire.alert.clone(),
            failures,
            answered: AtomicBool::new(false),
        });
        let running = RunningRequest::on(&link);
        let sender = if wire.http2 {
            let (sender, connection) = self.http2().handshake(wire).await.map_err(|error| broken(&error, &link))?;
            settled(connection, &link, &read).await?;
            self.keep(Sender::Two(sender.clone()), &link);
            Sender::Two(sender)
        } else {
            let (sender, connection) = http1::Builder::new()
                .max_buf_size(READ_BUFFER_BYTES)
                .handshake::<_, Full<Bytes>>(wire)
                .await
                .map_err(|error| broken(&error, &link))?;
            tokio::spawn(async move { drop(connection.await) });
            Sender::One(sender)
        };
        Ok(Lease { pool: Arc::clone(self), sender, running, is_old: false })
    }

    fn http2(&self) -> http2::Builder<TokioExecutor> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // Until the server's SETTINGS frame has announced its limit.
            .initial_max_send_streams(0)
            .keep_alive_interval(self.pings.after)
            .keep_alive_timeout(self.pings.within)
            .keep_alive_while_idle(true);
        builder
    }

    fn keep(&self, sender: Sender, link: &Arc<Link>) {
        let kept = PooledConnection { sender, link: Arc::clone(link), used: Instant::now() };
        locked(&self.open).push(kept);
    }

    /// Closes idle connections of HTTP/1.1.
    pub(super) fn tidy(&self) {
        let mut idle = 0;
        locked(&self.open).retain(|open| {
            if matches!(open.sender, Sender::Two(_)) || open.link.running.load(Ordering::Relaxed) > 0 {
                return true;
            }
            idle += 1;
            idle <= IDLE_CONNECTIONS && open.used.elapsed() < IDLE
        });
    }
}

/// Drives an HTTP/2 connection in a task of its own, and waits for the server's SETTINGS frame. A server that rejects the client
/// certificate closes the connection instead.
async fn settled(connection: Http2, link: &Arc<Link>, read: &Notify) -> Result<(), ConnectError> {
    let connection = link.connection.get_or_init(|| Mutex::new(Some(Box::pin(connection))));
    let own = Arc::clone(link);
    let (end, mut ended) = oneshot::channel();
    tokio::spawn(async move {
        let result = poll_fn(|cx| own.poll(cx)).await;
        // Later errors reach the requests that wait for answers.
        drop(end.send(result));
    });
    while locked(connection).as_ref().is_none_or(|http2| http2.current_max_send_streams() == 0) {
        tokio::select! {
            () = read.notified() => {}
            result = &mut ended => {
                let error = result.ok().and_then(Result::err);
                let eof = || ConnectError::failing("unexpected EOF".to_owned());
                return Err(error.map_or_else(eof, |error| broken(&error, link)));
            }
        }
    }
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(error: &hyper::Error, link: &Link) -> ConnectError {
    ConnectError::failing(link.alert.get().cloned().unwrap_or_else(|| chain(error)))
}

// === impl Sender ===

impl Sender {
    fn is_closed(&self) -> bool {
        match self {
            Self::One(sender) => sender.is_closed(),
            Self::Two(sender) => sender.is_closed(),
        }
    }
}

// === impl Link ===

impl Link {
    /// Failed attempts to connect before this connection was established; `None` once the server has answered a request over it.
    pub(super) fn unanswered(&self) -> Option<u64> {
        (!self.answered.load(Ordering::Relaxed)).then_some(self.failures)
    }

    fn has_room(&self) -> bool {
        let most = match self.connection.get() {
            Some(connection) => locked(connection).as_ref().map_or(0, |http2| http2.current_max_send_streams()),
            None => 1,
        };
        self.running.load(Ordering::Relaxed) < most
    }

    /// Drives an HTTP/2 connection, and drops it at its end.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        let Some(connection) = self.connection.get() else { return Poll::Ready(Ok(())) };
        let mut connection = locked(connection);
        let end = connection.as_mut().map_or(Poll::Ready(Ok(())), |http2| http2.as_mut().poll(cx));
        if end.is_ready() {
            *connection = None;
        }
        end
    }
}

// === impl RunningRequest ===

impl RunningRequest {
    fn on(link: &Arc<Link>) -> Self {
        link.running.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(link))
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Lease ===

impl Lease {
    /// The protocol's ALPN name.
    pub(super) fn protocol(&self) -> &'static str {
        match self.sender {
            Sender::One(_) => "http/1.1",
            Sender::Two(_) => "h2",
        }
    }

    /// The state of the connection.
    pub(super) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.running.0)
    }

    /// Sends a request and waits for the head of its response. The connection counts the request as running until the returned
    /// [`RunningRequest`] is dropped.
    pub(super) async fn send(self, request: Outgoing) -> Result<(Response<Incoming>, RunningRequest), SendError> {
        let Self { pool, sender, running, is_old } = self;
        let link = Arc::clone(&running.0);
        let result = match sender {
            Sender::Two(mut sender) => sender.try_send_request(request).await,
            Sender::One(mut sender) => {
                // The rest of the previous response may still be in transit.
                if let Err(error) = sender.ready().await {
                    return Err(SendError::of(error, true, is_old, &link));
                }
                let result = sender.try_send_request(of_http1(request, link.forwarded)).await;
                if result.is_ok() {
                    pool.keep(Sender::One(sender), &link);
                }
                result
            }
        };
        match result {
            Ok(response) => {
                link.answered.store(true, Ordering::Relaxed);
                Ok((response, running))
            }
            Err(mut error) => {
                let unsent = error.take_message().is_some();
                Err(SendError::of(error.into_error(), unsent, is_old, &link))
            }
        }
    }
}

/// Converts a request to HTTP/1.1: the server's name moves to the header Host.
fn of_http1(mut request: Outgoing, forwarded: bool) -> Outgoing {
    let uri = request.uri();
    if let Some(host) = uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()) {
        request.headers_mut().insert(HOST, host);
    }
    if !forwarded && let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(path);
    }
    request
}

// === impl SendError ===

impl SendError {
    /// True if the same request may be sent over another connection.
    pub(super) fn lets_send_again(&self, method: &Method) -> bool {
        match self {
            Self::Unsent(_) | Self::Unprocessed(_) => true,
            // A GET is idempotent.
            Self::Lost(_) => method == Method::GET,
            Self::Alert(_) | Self::Broken(_) => false,
        }
    }

    /// True if the server refused only this stream, and the connection is alive.
    pub(super) fn is_of_stream(&self) -> bool {
        let Self::Unprocessed(error) = self else { return false };
        error.source().and_then(|cause| cause.downcast_ref()).is_some_and(h2::Error::is_reset)
    }

    fn of(error: hyper::Error, unsent: bool, is_old: bool, link: &Link) -> Self {
        if let Some(alert) = link.alert.get() {
            return Self::Alert(alert.clone());
        }
        let is_http2 = link.connection.get().is_some();
        match error.source() {
            _ if unsent => Self::Unsent(error),
            Some(cause) if cause.downcast_ref().is_some_and(is_unprocessed) => Self::Unprocessed(error),
            // An unanswered PING is a timeout error of hyper.
            Some(cause) if is_old && is_http2 && (cause.is::<io::Error>() || error.is_timeout()) => Self::Lost(error),
            Some(_) | None => Self::Broken(error),
        }
    }
}

impl From<SendError> for CallError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Alert(alert) => Self::Connect(alert),
            SendError::Unsent(error)
            | SendError::Unprocessed(error)
            | SendError::Lost(error)
            | SendError::Broken(error) => {
                // The causes are specific; the outermost text isn't.
                Self::Interrupted(error.source().map_or_else(|| error.to_string(), chain))
            }
        }
    }
}

/// True if the server hasn't processed the request: REFUSED_STREAM, or a graceful GOAWAY whose last stream came before this one.
fn is_unprocessed(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let leaving = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (refused || leaving)
}
