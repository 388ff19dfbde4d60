//! Establishes connections: name resolution, TCP, proxy, TLS.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
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
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::TimeLimits;
use super::error::chain;
use super::platform::limit_unacknowledged;
use super::proxy::{ForwardProxy, Scheme};
use super::settings::ClientSettings;
use super::tls::HTTP2;

/// A byte stream over any layers.
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The TLS alert by which the peer closed a connection: HTTP/2 doesn't pass it on.
pub(super) type Alert = Arc<OnceLock<String>>;

/// A connection in the form of hyper's traits.
pub(super) struct Wire {
    io: TokioIo<Box<dyn ByteStream>>,
    /// ALPN chose HTTP/2
    pub(super) http2: bool,
    /// requests need the absolute URL: a proxy forwards them one by one
    pub(super) forwarded: bool,
    pub(super) alert: Alert,
    /// notified after every read
    pub(super) read: Arc<Notify>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct ConnectError {
    text: String,
    /// the server or a proxy answered before the failure
    pub(super) answered: bool,
}

/// Establishes connections of one identity.
#[derive(Clone)]
pub(super) struct Connector(Arc<Dial>);

struct Dial {
    /// short timeout, so that a server that returned isn't missed in the kernel's growing SYN retransmission intervals
    brisk: HttpConnector,
    /// long timeout, for distant servers and lossy networks
    patient: HttpConnector,
    /// `None` for a server without TLS
    tls: Option<Arc<ClientConfig>>,
    /// instead of the URL's host
    server_name: Option<String>,
    proxy: Option<ForwardProxy>,
    /// for the connection to an https proxy
    proxy_tls: Option<Arc<ClientConfig>>,
}

/// Connects to the proxy, as the first step towards the server.
#[derive(Clone)]
struct ToProxy {
    dial: Arc<Dial>,
    brisk: bool,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Wire, ConnectError>> + Send>>;

// === impl Wire ===

impl Wire {
    fn new(stream: Box<dyn ByteStream>) -> Self {
        Self { io: TokioIo::new(stream), http2: false, forwarded: false, alert: Alert::default(), read: Arc::default() }
    }

    /// Stores the error if it is a TLS alert.
    fn note(&self, error: &io::Error) {
        let alert = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(alert @ rustls::Error::AlertReceived(_)) = alert {
            self.alert.get_or_init(|| format!("the server refused the TLS connection: {alert}"));
        }
    }

    /// Reads a pending TLS alert after a failed write: a server that refuses a connection closes it, so that writing fails
    /// before the alert has been read.
    fn explained<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(outcome, Poll::Ready(Err(_))) {
            let mut unread = [0; 1];
            let mut last = tokio::io::ReadBuf::new(&mut unread);
            match Pin::new(self.io.inner_mut()).poll_read(cx, &mut last) {
                Poll::Ready(Err(error)) => self.note(&error),
                Poll::Ready(Ok(())) => {}
                // A connection that failed for writing will shortly fail for reading.
                Poll::Pending => return Poll::Pending,
            }
        }
        outcome
    }
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if let Poll::Ready(Err(error)) = &read {
            self.note(error);
        }
        if read.is_ready() {
            self.read.notify_one();
        }
        read
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.explained(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.explained(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

// === impl ConnectError ===

impl ConnectError {
    /// The server didn't answer.
    pub(super) fn unreachable(text: String) -> Self {
        Self { text, answered: false }
    }

    /// The server or a proxy answered before the failure.
    pub(super) fn failing(text: String) -> Self {
        Self { text, answered: true }
    }
}

// === impl Connector ===

impl Connector {
    /// A connector for a server and one identity; `tls` is `None` without TLS.
    pub(super) fn new(
        settings: &ClientSettings,
        tls: Option<ClientConfig>,
        proxy_tls: Option<ClientConfig>,
        timing: &TimeLimits,
    ) -> Self {
        Self(Arc::new(Dial {
            brisk: tcp(timing, timing.tcp),
            // Several addresses share this time, so that the last one is tried before the overall limit.
            patient: tcp(timing, timing.connect / 2),
            tls: tls.map(Arc::new),
            server_name: settings.chosen.server_name.clone(),
            proxy: settings.proxy.clone(),
            proxy_tls: proxy_tls.map(Arc::new),
        }))
    }

    /// Establishes a connection; `brisk` selects the short TCP timeout.
    pub(super) async fn connect(&self, server: Uri, brisk: bool) -> Result<Wire, ConnectError> {
        Arc::clone(&self.0).dial(server, brisk).await
    }
}

fn tcp(timing: &TimeLimits, limit: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(timing.keepalive));
    tcp.set_keepalive_interval(Some(timing.keepalive));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    tcp.set_connect_timeout(Some(limit));
    limit_unacknowledged(&mut tcp, timing.unacknowledged);
    tcp
}

/// Unanswered keepalive probes after which TCP closes a connection.
const KEEPALIVE_PROBES: u32 = 3;

// === impl Dial ===

impl Dial {
    async fn dial(self: Arc<Self>, server: Uri, brisk: bool) -> Result<Wire, ConnectError> {
        let host = server.host().unwrap_or_default();
        let name = self.server_name.clone().unwrap_or_else(|| host.trim_matches(['[', ']']).to_owned());
        let Some(proxy) = &self.proxy else {
            let tcp = self.tcp(server, brisk).await?;
            return self.secure(tcp, &name).await;
        };
        let to_proxy = ToProxy { dial: Arc::clone(&self), brisk };
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
                let mut wire = Arc::clone(&self).reach_proxy(brisk).await?;
                wire.forwarded = true;
                return Ok(wire);
            }
        };
        self.secure(Box::new(TokioIo::new(tunnelled)), &name).await
    }

    async fn tcp(&self, to: Uri, brisk: bool) -> Result<Box<dyn ByteStream>, ConnectError> {
        let mut tcp = if brisk { self.brisk.clone() } else { self.patient.clone() };
        let tcp = tcp.call(to).await.map_err(|error| ConnectError::unreachable(chain(&error)))?;
        Ok(Box::new(tcp.into_inner()))
    }

    /// Adds TLS if the server uses it.
    async fn secure(&self, stream: Box<dyn ByteStream>, name: &str) -> Result<Wire, ConnectError> {
        match &self.tls {
            None => Ok(Wire::new(stream)),
            Some(config) => handshake(config, stream, name).await,
        }
    }

    async fn reach_proxy(self: Arc<Self>, brisk: bool) -> Result<Wire, ConnectError> {
        let Some(proxy) = &self.proxy else {
            return Err(ConnectError::unreachable("no proxy is configured".to_owned()));
        };
        let tcp = self.tcp(proxy.uri.clone(), brisk).await?;
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
        Box::pin(Arc::clone(&self.dial).reach_proxy(self.brisk))
    }
}

async fn handshake(config: &Arc<ClientConfig>, stream: Box<dyn ByteStream>, name: &str) -> Result<Wire, ConnectError> {
    let server = ServerName::try_from(name.to_owned())
        .map_err(|_| ConnectError::failing(format!("{name:?} is not a valid TLS server name")))?;
    let tls = TlsConnector::from(Arc::clone(config)).connect(server, stream).await;
    let tls = tls.map_err(|error| ConnectError::failing(format!("TLS with {name}: {}", chain(&error))))?;
    let http2 = tls.get_ref().1.alpn_protocol() == Some(HTTP2);
    Ok(Wire { http2, ..Wire::new(Box::new(tls)) })
}

/// Adds the default port, which SOCKS requires explicitly.
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

fn through(proxy: &ForwardProxy, error: &(dyn Error + 'static)) -> ConnectError {
    let mut cause = Some(error);
    let mut answered = true;
    while let Some(inner) = cause {
        if let Some(own) = inner.downcast_ref::<ConnectError>() {
            answered = own.answered;
        }
        cause = inner.source();
    }
    let authority = proxy.uri.authority().map_or("", |authority| authority.as_str());
    ConnectError { text: format!("proxy {authority}: {}", chain(error)), answered }
}
