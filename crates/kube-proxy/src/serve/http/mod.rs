//! A small HTTP/1.1 server for fixed routes, on the main thread.
//!
//! A slow or hostile client holds nothing for long: connections have a limit, by which the client with the most loses its idlest
//! one, a longest life, and time limits for each request.

mod answer;
mod blocking;
mod connections;
mod listener;
mod received;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::timeout;

pub use answer::{DeferredAnswer, File, HttpResponse};
pub use blocking::BlockingAnswers;
use connections::{Activity, Connections};
pub use listener::HttpListener;
pub use received::HttpRequest;

/// An answer that is being made. It is dropped when the connection closes.
pub type Deferred = Pin<Box<dyn Future<Output = DeferredAnswer>>>;

/// The routes of a server.
pub trait Routes {
    /// The response to a request of any method.
    fn answer(&self, received: &HttpRequest) -> HttpResponse;

    /// The response to a request that isn't answered at once; `None` for all others.
    fn deferred(&self, _received: &HttpRequest) -> Option<Deferred> {
        None
    }

    /// True if the answer for this path depends on the request's body, which is then read first.
    fn reads_body(&self, _path: &str) -> bool {
        false
    }
}

/// A server's share of the process's open files.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// most connections; one more closes the idlest of the client with the most, so that no client blocks others
    pub connections: usize,
    /// reserves of file descriptors that are left to other servers
    pub spared_reserves: u64,
}

/// Retry interval of binding.
pub const RETRY: Duration = Duration::from_secs(5);
/// Pause after a failed accept (too many open files).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Time limit of receiving a request; then the connection is closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest life of a connection, so that a client that doesn't read can't keep it for ever. It closes after its current response,
/// which gets half a minute.
pub const LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Buffer for a request, and for responses that the client hasn't read, in bytes.
const BUFFER: usize = 64 * 1024;
/// Share of the servers of probes and metrics.
const SHARE: Share = Share { connections: 64, spared_reserves: 0 };
const BACKLOG: i32 = 128;

/// Serves for ever. A failed bind is retried every 5 s, or is an error with `hard_fail`; `what` names the server in logs. To be
/// run on a `LocalSet`.
pub async fn serve(
    what: &'static str,
    address: SocketAddr,
    hard_fail: bool,
    routes: Rc<dyn Routes>,
) -> Result<Infallible, io::Error> {
    let listener = loop {
        match listen(address) {
            Ok(listener) => break listener,
            Err(error) if hard_fail => return Err(error),
            Err(error) => {
                tracing::error!(server = what, %address, err = %error, "Bind failed, retrying every 5 s");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    tracing::debug!(server = what, %address, "Serving");
    Ok(answer(listener, SHARE, routes).await)
}

/// Serves all connections of a listener. Dropping it closes the listener and all connections. To be run on a `LocalSet`.
pub async fn answer(listener: impl HttpListener, share: Share, routes: Rc<dyn Routes>) -> Infallible {
    let mut connections = Connections::new(share.connections);
    let mut failing = false;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => {
                    failing = false;
                    // Without a spare descriptor the connection is closed here.
                    if listener.spares(&stream, share.spared_reserves) {
                        let activity = Activity::new();
                        let connection = connection((stream, client), activity.clone(), Rc::clone(&routes));
                        connections.add(client, activity, connection).await;
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(address = %listener.place(), err = %error, "Accepting a connection failed, retrying");
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
            () = connections.ended() => {}
        }
    }
}

async fn connection(
    (stream, client): (impl AsyncRead + AsyncWrite + Unpin, IpAddr),
    activity: Activity,
    routes: Rc<dyn Routes>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        activity.note();
        let routes = Rc::clone(&routes);
        async move {
            let with_body = routes.reads_body(request.uri().path());
            let received = HttpRequest { client: Some(client), ..HttpRequest::of(request, with_body).await };
            let response = match routes.deferred(&received) {
                None => routes.answer(&received).into_response(),
                Some(deferred) => deferred.await.into_response(),
            };
            Ok::<_, Infallible>(response)
        }
    });
    let mut served = pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(BUFFER)
            // The spelling of Go's library.
            .title_case_headers(true)
            .serve_connection(TokioIo::new(stream), service)
    );
    let mut ended = timeout(LIFETIME, served.as_mut()).await;
    if ended.is_err() {
        served.as_mut().graceful_shutdown();
        ended = timeout(HEADER_TIMEOUT, served).await;
    }
    if let Ok(Err(error)) = ended {
        tracing::trace!(err = %error, "A connection ended early");
    }
}

/// Binds an address. A wildcard of either family listens on both, as in Go's library.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return listen_on(address, true);
    }
    let any = |ip: IpAddr| SocketAddr::new(ip, address.port());
    // Without IPv6 in the kernel, IPv4 remains.
    listen_on(any(Ipv6Addr::UNSPECIFIED.into()), false).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Err(error),
        _ => listen_on(any(Ipv4Addr::UNSPECIFIED.into()), true),
    })
}

/// Binds an address; `only` restricts an IPv6 wildcard to IPv6.
///
/// # Errors
/// The kernel's error: the address is in use or doesn't exist, too many files are open.
pub fn listen_on(address: SocketAddr, only: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(only)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests;
