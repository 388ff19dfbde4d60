//! A small HTTP/1.1 server for fixed routes, on the edges thread.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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

/// A pause between tries to bind, and after a failed accept (too many open files).
const RETRY: Duration = Duration::from_secs(5);
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A client that doesn't send its request so long is sent away.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
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
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::task::spawn_local(connection(stream, Rc::clone(&routes)));
            }
            Err(error) => {
                tracing::debug!(server = what, err = %error, "Accepting a connection failed");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, routes: Rc<dyn Routes>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = routes.answer(request.uri().path());
        async move { Ok::<_, Infallible>(answer.into_response()) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::trace!(err = %error, "A connection ended early");
    }
}

/// Binds an address. A wildcard of either family stands for both, as Go's library has it.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return listen_on(address);
    }
    let any = |ip: IpAddr| SocketAddr::new(ip, address.port());
    // Without IPv6 in the kernel, IPv4 is what is left.
    listen_on(any(Ipv6Addr::UNSPECIFIED.into())).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Err(error),
        _ => listen_on(any(Ipv4Addr::UNSPECIFIED.into())),
    })
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
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
