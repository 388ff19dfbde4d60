//! Making connections: name, TCP, proxy, TLS.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::Timing;
use super::access::Settings;
use super::error::chain;
use super::proxy::{Proxy, Scheme};

/// A stream of bytes, of whatever layers.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection as hyper wants it.
pub(super) struct Wire {
    io: TokioIo<Box<dyn Stream>>,
    /// whether requests must say the whole URL: over a proxy that forwards them one by one
    forwarded: bool,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct ConnectError(String);

/// Makes connections of one identity.
#[derive(Clone)]
pub(super) struct Connector(Arc<Dial>);

struct Dial {
    tcp: HttpConnector,
    /// `None` for a server without TLS
    tls: Option<Arc<ClientConfig>>,
    /// instead of the URL's host
    server_name: Option<String>,
    proxy: Option<Proxy>,
    /// towards an https proxy
    proxy_tls: Option<Arc<ClientConfig>>,
    limit: Duration,
}

/// The first step where there is a proxy.
#[derive(Clone)]
struct ToProxy(Arc<Dial>);

type Connecting = Pin<Box<dyn Future<Output = Result<Wire, ConnectError>> + Send>>;

// === impl Wire ===

impl Wire {
    fn new(stream: Box<dyn Stream>) -> Self {
        Self { io: TokioIo::new(stream), forwarded: false }
    }
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.forwarded)
    }
}

impl Read for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

// === impl Connector ===

impl Connector {
    /// For a server and one identity; `tls` is `None` without TLS.
    pub(super) fn new(
        settings: &Settings,
        tls: Option<ClientConfig>,
        proxy_tls: Option<ClientConfig>,
        timing: &Timing,
    ) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(timing.keepalive));
        tcp.set_keepalive_interval(Some(timing.keepalive));
        tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        // Of several addresses each gets its share, so that the last has its turn before all is given up.
        tcp.set_connect_timeout(Some(timing.connect / 2));
        tcp.set_tcp_user_timeout(Some(timing.unacknowledged));
        Self(Arc::new(Dial {
            tcp,
            tls: tls.map(Arc::new),
            server_name: settings.chosen.server_name.clone(),
            proxy: settings.proxy.clone(),
            proxy_tls: proxy_tls.map(Arc::new),
            limit: timing.connect,
        }))
    }
}

/// How many probes without an answer end a connection.
const KEEPALIVE_PROBES: u32 = 3;

impl Service<Uri> for Connector {
    type Response = Wire;
    type Error = ConnectError;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Connecting {
        let dial = Arc::clone(&self.0);
        Box::pin(async move {
            let limit = dial.limit;
            tokio::time::timeout(limit, dial.dial(server))
                .await
                .unwrap_or_else(|_| Err(ConnectError(format!("no connection within {} s", limit.as_secs_f32()))))
        })
    }
}

// === impl Dial ===

impl Dial {
    async fn dial(self: Arc<Self>, server: Uri) -> Result<Wire, ConnectError> {
        let host = server.host().unwrap_or_default();
        let name = self.server_name.clone().unwrap_or_else(|| host.trim_matches(['[', ']']).to_owned());
        let Some(proxy) = &self.proxy else {
            let tcp = self.tcp(server).await?;
            return self.secure(tcp, &name).await;
        };
        let to_proxy = ToProxy(Arc::clone(&self));
        let tunnelled = match (proxy.scheme, &self.tls) {
            (Scheme::Socks5, _) => {
                let mut socks = SocksV5::new(proxy.uri.clone(), to_proxy);
                if let Some((user, password)) = proxy.login() {
                    socks = socks.with_auth(user.to_owned(), password.to_owned());
                }
                socks.call(with_port(server)).await.map_err(|error| through(proxy, &error))?
            }
            (Scheme::Http | Scheme::Https, Some(_)) => {
                let mut tunnel = Tunnel::new(proxy.uri.clone(), to_proxy);
                if let Some(basic) = proxy.basic() {
                    tunnel = tunnel.with_auth(basic.clone());
                }
                tunnel.call(server).await.map_err(|error| through(proxy, &error))?
            }
            (Scheme::Http | Scheme::Https, None) => {
                let mut wire = Arc::clone(&self).reach_proxy().await?;
                wire.forwarded = true;
                return Ok(wire);
            }
        };
        self.secure(Box::new(TokioIo::new(tunnelled)), &name).await
    }

    async fn tcp(&self, to: Uri) -> Result<Box<dyn Stream>, ConnectError> {
        let tcp = self.tcp.clone().call(to).await.map_err(|error| ConnectError(chain(&error)))?;
        Ok(Box::new(tcp.into_inner()))
    }

    /// The layer of TLS, if the server has one.
    async fn secure(&self, stream: Box<dyn Stream>, name: &str) -> Result<Wire, ConnectError> {
        match &self.tls {
            None => Ok(Wire::new(stream)),
            Some(config) => handshake(config, stream, name).await,
        }
    }

    async fn reach_proxy(self: Arc<Self>) -> Result<Wire, ConnectError> {
        let Some(proxy) = &self.proxy else { return Err(ConnectError("there is no proxy".to_owned())) };
        let tcp = self.tcp(proxy.uri.clone()).await?;
        match &self.proxy_tls {
            None => Ok(Wire::new(tcp)),
            Some(config) => handshake(config, tcp, proxy.uri.host().unwrap_or_default().trim_matches(['[', ']'])).await,
        }
    }
}

// === impl ToProxy ===

impl Service<Uri> for ToProxy {
    type Response = Wire;
    type Error = ConnectError;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Connecting {
        Box::pin(Arc::clone(&self.0).reach_proxy())
    }
}

async fn handshake(config: &Arc<ClientConfig>, stream: Box<dyn Stream>, name: &str) -> Result<Wire, ConnectError> {
    let server = ServerName::try_from(name.to_owned())
        .map_err(|_| ConnectError(format!("{name:?} can't be the name in a certificate")))?;
    let tls = TlsConnector::from(Arc::clone(config)).connect(server, stream).await;
    Ok(Wire::new(Box::new(tls.map_err(|error| ConnectError(format!("TLS with {name}: {}", chain(&error))))?)))
}

/// SOCKS needs a port in any case.
fn with_port(server: Uri) -> Uri {
    if server.port().is_some() {
        return server;
    }
    let port = if server.scheme_str() == Some("https") { 443 } else { 80 };
    let authority = format!("{}:{port}", server.host().unwrap_or_default());
    let mut parts = server.clone().into_parts();
    parts.authority = authority.parse().ok();
    Uri::from_parts(parts).unwrap_or(server)
}

fn through(proxy: &Proxy, error: &dyn Error) -> ConnectError {
    ConnectError(format!(
        "proxy {}: {}",
        proxy.uri.authority().map_or("", |authority| authority.as_str()),
        chain(error)
    ))
}
