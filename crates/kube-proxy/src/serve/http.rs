//! A small HTTP/1.1 server for fixed routes, on the main thread.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::platform;

/// The routes of a server.
pub trait Routes {
    /// The response to a request of any method for this path.
    fn answer(&self, path: &str) -> Answer;
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// its status
    pub status: StatusCode,
    /// its headers, names in lower case
    pub headers: Vec<(&'static str, String)>,
    /// its body
    pub body: String,
}

/// A server's share of the process's open files.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// most connections; one more closes the oldest, so that idle clients don't block others
    pub connections: usize,
    /// reserves of file descriptors that are left to other servers
    pub spared_reserves: u64,
}

/// The open connections of one listener.
struct Connections {
    tasks: JoinSet<()>,
    /// the same, oldest first
    by_age: VecDeque<AbortHandle>,
    limit: usize,
}

/// Retry interval of binding.
pub const RETRY: Duration = Duration::from_secs(5);
/// Pause after a failed accept (too many open files).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Time limit of receiving a request; then the connection is closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest life of a connection, so that a client that doesn't read can't keep it for ever. It closes after its current response,
/// which gets [`HEADER_TIMEOUT`].
const LIFETIME: Duration = Duration::from_secs(5 * 60);
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
pub async fn answer(listener: TcpListener, share: Share, routes: Rc<dyn Routes>) -> Infallible {
    let mut connections = Connections { tasks: JoinSet::new(), by_age: VecDeque::new(), limit: share.connections };
    let mut failing = false;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    failing = false;
                    // Without a spare descriptor the connection is closed here.
                    if platform::spare_files(&stream, share.spared_reserves).is_ok() {
                        connections.add(connection(stream, Rc::clone(&routes))).await;
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        let address = listener.local_addr().ok();
                        tracing::warn!(?address, err = %error, "Accepting a connection failed, retrying");
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
            () = connections.ended() => {}
        }
    }
}

async fn connection(stream: TcpStream, routes: Rc<dyn Routes>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = routes.answer(request.uri().path());
        async move { Ok::<_, Infallible>(answer.into_response()) }
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

// === impl Connections ===

impl Connections {
    async fn add(&mut self, connection: impl Future<Output = ()> + 'static) {
        self.forget_ended();
        self.by_age.push_back(self.tasks.spawn_local(connection));
        if self.by_age.len() > self.limit
            && let Some(oldest) = self.by_age.pop_front()
        {
            oldest.abort();
            // Lets the aborted task close its connection before the next accept.
            tokio::task::yield_now().await;
        }
    }

    /// Waits until a connection has ended, and frees its resources.
    async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(_) => self.forget_ended(),
            None => std::future::pending().await,
        }
    }

    /// Drops the handles of ended tasks, since a handle keeps its task's memory.
    fn forget_ended(&mut self) {
        self.by_age.retain(|connection| !connection.is_finished());
    }
}

// === impl Answer ===

impl Answer {
    /// Status 200 with a text.
    pub fn text(body: impl Into<String>) -> Self {
        let headers = vec![
            ("content-type", "text/plain; charset=utf-8".to_owned()),
            ("x-content-type-options", "nosniff".to_owned()),
        ];
        Self { status: StatusCode::OK, headers, body: body.into() }
    }

    /// Status 404 with the text of Go's library.
    pub fn not_found() -> Self {
        Self { status: StatusCode::NOT_FOUND, ..Self::text("404 page not found\n") }
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().insert(HeaderName::from_static(name), value);
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    struct Paths;

    impl Routes for Paths {
        fn answer(&self, path: &str) -> Answer {
            Answer::text(path)
        }
    }

    fn listener() -> (SocketAddr, TcpListener) {
        let listener = listen_on((Ipv4Addr::LOCALHOST, 0).into(), true).unwrap();
        (listener.local_addr().unwrap(), listener)
    }

    async fn ask(stream: &mut TcpStream, method: &str) -> io::Result<String> {
        stream.write_all(format!("{method} /a HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await?;
        let mut buffer = [0; 1024];
        let length = stream.read(&mut buffer).await?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn a_connection_too_many_ends_the_oldest() {
        run(async {
            let (at, listener) = listener();
            let server = spawn_local(answer(listener, Share { connections: 2, spared_reserves: 0 }, Rc::new(Paths)));
            let mut streams = Vec::new();
            for _ in 0..2 {
                let mut stream = TcpStream::connect(at).await.unwrap();
                assert!(ask(&mut stream, "GET").await.unwrap().ends_with("\r\n\r\n/a"));
                streams.push(stream);
            }
            // A closed connection frees capacity.
            drop(streams.pop());
            tokio::time::sleep(Duration::from_millis(50)).await;
            for _ in 0..2 {
                let mut stream = TcpStream::connect(at).await.unwrap();
                assert!(ask(&mut stream, "HEAD").await.unwrap().contains("\r\nContent-Length: 2\r\n"));
                streams.push(stream);
            }
            let mut alive = Vec::new();
            for stream in &mut streams {
                alive.push(ask(stream, "POST").await.is_ok_and(|text| !text.is_empty()));
            }
            assert_eq!(alive, [false, true, true]);
            server.abort();
            assert!(server.await.unwrap_err().is_cancelled());
            assert!(TcpStream::connect(at).await.is_err());
            for stream in &mut streams {
                assert!(
                    ask(stream, "GET").await.is_ok_and(|text| text.is_empty()) || ask(stream, "GET").await.is_err()
                );
            }
        });
    }
}
