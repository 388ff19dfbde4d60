//! A small HTTP/1.1 server for fixed routes, on the edges thread.

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

/// What is served.
pub trait Routes {
    /// The answer to a request of any method for this path.
    fn answer(&self, path: &str) -> Answer;
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// its status
    pub status: StatusCode,
    /// its headers, names in lower case
    pub headers: Vec<(&'static str, String)>,
    /// its body
    pub body: String,
}

/// What a server may take of the process's open files.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// connections; one more ends the oldest, so that clients who are silent don't keep others out
    pub connections: usize,
    /// of the last files that the process can open, how many reserves are for others
    pub spared_reserves: u64,
}

/// The open connections of one listener.
struct Connections {
    tasks: JoinSet<()>,
    /// the same, the oldest first
    by_age: VecDeque<AbortHandle>,
    limit: usize,
}

/// A pause between tries to bind.
pub const RETRY: Duration = Duration::from_secs(5);
/// A pause after a failed accept (too many open files).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A client that doesn't send a request so long is sent away.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// After this a connection ends with the answer that it is at, so that nobody who doesn't read keeps it for ever; that
/// answer has [`HEADER_TIMEOUT`].
const LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Bytes that a request, or the answers that wait for a client to read, may take.
const BUFFER: usize = 64 * 1024;
/// What probes and metrics may take.
const SHARE: Share = Share { connections: 64, spared_reserves: 0 };
const BACKLOG: i32 = 128;

/// Serves for ever. An address that can't be bound is tried again every 5 s, or is an error with `hard_fail`; `what`
/// names the server in logs. To be run on a `LocalSet`.
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
                tracing::error!(server = what, %address, err = %error, "Binding failed, trying again every 5 s");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    tracing::debug!(server = what, %address, "Serving");
    Ok(answer(listener, SHARE, routes).await)
}

/// Answers whoever connects. When it is dropped, the listener is closed, and no request on any connection is answered
/// any more. To be run on a `LocalSet`.
pub async fn answer(listener: TcpListener, share: Share, routes: Rc<dyn Routes>) -> Infallible {
    let mut connections = Connections { tasks: JoinSet::new(), by_age: VecDeque::new(), limit: share.connections };
    let mut failing = false;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    failing = false;
                    // Else it ends here.
                    if platform::spare_files(&stream, share.spared_reserves).is_ok() {
                        connections.add(connection(stream, Rc::clone(&routes))).await;
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        let address = listener.local_addr().ok();
                        tracing::warn!(?address, err = %error, "Accepting connections fails, trying again");
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
            // As Go writes them.
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

/// Binds an address. A wildcard of either family stands for both, as Go's library has it.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return listen_on(address, true);
    }
    let any = |ip: IpAddr| SocketAddr::new(ip, address.port());
    // Without IPv6 in the kernel, IPv4 is what is left.
    listen_on(any(Ipv6Addr::UNSPECIFIED.into()), false).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Err(error),
        _ => listen_on(any(Ipv4Addr::UNSPECIFIED.into()), true),
    })
}

/// Binds an address, where `only` says of an IPv6 address that it doesn't stand for IPv4's too.
///
/// # Errors
/// The kernel's: the address is in use or not there, too many files are open.
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
            // Its turn to close, before the next one is accepted.
            tokio::task::yield_now().await;
        }
    }

    /// Waits until one has ended, and frees what it held.
    async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(_) => self.forget_ended(),
            None => std::future::pending().await,
        }
    }

    /// A handle keeps its task's memory.
    fn forget_ended(&mut self) {
        self.by_age.retain(|connection| !connection.is_finished());
    }
}

// === impl Answer ===

impl Answer {
    /// 200 with a text.
    pub fn text(body: impl Into<String>) -> Self {
        let headers = vec![
            ("content-type", "text/plain; charset=utf-8".to_owned()),
            ("x-content-type-options", "nosniff".to_owned()),
        ];
        Self { status: StatusCode::OK, headers, body: body.into() }
    }

    /// 404, as Go's library words it.
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
            // One that has ended makes room.
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
