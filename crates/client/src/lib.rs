//! A client of the Kubernetes API server: kubeconfig, credentials, TLS, rate limit, HTTP. Requests are paths, answers are bytes.
//!
//! - [`Access`] loads a kubeconfig, `--master` or a pod's environment: [`kubeconfig`] decodes the file, `settings` keeps the
//!   result, `credentials` and `exec` provide tokens and certificates (`credential`), `file` reads the files that a kubeconfig
//!   names, `authorities`, `tls`, `verify` and [`x509`] implement TLS.
//! - [`Client`] sends requests and returns an [`Answer`] with a [`Body`] to read, which `gzip` decompresses: `headers` writes and
//!   reads headers, `limit` is the rate limit, `transport` holds the connections of one identity, `pool` shares them, `connect`
//!   and `proxy` establish them, `gate` paces attempts while the server is unreachable.
//! - `platform` has the operating system's part of connections and exec plugins.
//! - [`Observe`] receives events for metrics; [`backoff`] paces retries, here and in callers. `error` has the errors.
//!
//! [`ferry_api::wire::stream`] decodes bodies; callers repeat requests.

mod access;
mod answer;
mod authorities;
pub mod backoff;
mod body;
mod connect;
mod credential;
mod credentials;
mod error;
mod exec;
mod file;
mod gate;
mod gzip;
mod headers;
pub mod kubeconfig;
mod limit;
mod observe;
mod platform;
mod pool;
mod proxy;
mod settings;
mod tls;
mod transport;
mod verify;
pub mod x509;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT,
};
use hyper::{Method, Request, Response, Uri};
use tokio::time::Instant;

pub use access::Access;
pub use answer::Answer;
pub use body::Body;
pub use error::{AccessError, CallError};
pub use exec::ExecAnswer;
pub use gzip::Gunzip;
pub use headers::user_agent;
pub use observe::Observe;

use body::Purpose;
use credential::Credential;
use credentials::Credentials;
use limit::RateLimit;
use pool::RunningRequest;
use transport::Transports;

/// Request settings: those of clientConnection, and time limits.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// contentType: encoding of request bodies and, without acceptContentTypes, of responses
    pub content_type: String,
    /// acceptContentTypes; blank for contentType, then any type
    pub accept_content_types: String,
    /// qps: requests per second; negative for no limit, 0 for 5
    pub qps: f32,
    /// burst: requests without waiting; 0 for 10
    pub burst: i32,
    /// the header User-Agent, see [`user_agent`]
    pub user_agent: String,
    /// time limits
    pub timing: TimeLimits,
}

/// Time limits. The default is for real clusters; tests shorten them.
#[derive(Clone, Debug)]
pub struct TimeLimits {
    /// time limit of establishing a connection: name resolution, TCP, proxy, TLS
    pub connect: Duration,
    /// time limit from sending a request to the head of its response; connecting isn't included
    pub headers: Duration,
    /// time limit of a TCP handshake before the next attempt; every eighth attempt has more, see `gate`
    pub tcp: Duration,
    /// least interval of attempts to connect while the server is unreachable; jitter extends it up to 1.7 times
    pub probe: Duration,
    /// first backoff after an attempt that got an answer and failed; it doubles, and jitter extends it up to twice
    pub backoff: Duration,
    /// limit of that backoff, before jitter
    pub backoff_limit: Duration,
    /// idle time of an HTTP/2 connection before a PING
    pub ping: Duration,
    /// time limit of the answer to a PING
    pub pong: Duration,
    /// idle time of a connection before TCP keepalive probes, and their interval
    pub keepalive: Duration,
    /// longest time that sent data may stay unacknowledged (`TCP_USER_TIMEOUT`)
    pub unacknowledged: Duration,
    /// interval of reading certificates, authorities and token files again
    pub recheck: Duration,
    /// time limit of a run of an exec plugin
    pub plugin: Duration,
    /// longest wait of a request for a run of an exec plugin whose last credentials were rejected and haven't expired
    pub plugin_patience: Duration,
    /// least time between two runs of an exec plugin, whatever the result of the first
    pub plugin_pause: Duration,
}

/// Client of one API server. Clones share connections, credentials and the rate limit, and all of them belong to the tokio
/// runtime (with I/O and time) that uses them first.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    /// scheme and authority, without the path's prefix
    server: Uri,
    prefix: String,
    /// host and port, for the label of metrics
    host: String,
    headers: HeaderMap,
    compress: bool,
    timing: TimeLimits,
    limit: RateLimit,
    credentials: Arc<Credentials>,
    transports: Arc<Transports>,
    metrics: Arc<dyn Observe>,
}

/// The head of a response, and the connection that it came over.
struct Reply {
    response: Response<Incoming>,
    running: RunningRequest,
    /// the number of the identity that the connection authenticated with
    identity: u64,
}

/// Attempts at a request that the server hasn't processed, because it closes its connections or refuses further streams.
const TRIES: u32 = 3;

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// all objects at once
    List,
    /// changes as they happen; also with the list before them (streaming list)
    Watch,
    /// a new object
    Create,
    /// fields of an existing object, as a strategic merge patch
    Patch,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    /// for messages and metrics; only responses to lists may be compressed
    pub verb: Verb,
    /// for messages: `endpointslices.discovery.k8s.io`
    pub resource: &'static str,
    /// from the `/` on, percent-encoded
    pub path_and_query: String,
    /// request body, JSON; empty for a list or a watch. JSON whatever contentType is: every server reads it, and writes are
    /// small and rare.
    pub body: Bytes,
}

// === impl TimeLimits ===

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            tcp: Duration::from_secs(2),
            probe: Duration::from_secs(1),
            backoff: Duration::from_millis(500),
            backoff_limit: Duration::from_secs(15),
            ping: Duration::from_secs(30),
            pong: Duration::from_secs(15),
            headers: Duration::from_secs(60),
            keepalive: Duration::from_secs(15),
            unacknowledged: Duration::from_secs(30),
            recheck: Duration::from_secs(10),
            plugin: Duration::from_secs(60),
            plugin_patience: Duration::from_secs(2),
            plugin_pause: Duration::from_secs(5),
        }
    }
}

// === impl Verb ===

impl Verb {
    /// The verb's name in RBAC rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Patch => "patch",
        }
    }

    fn method(self) -> Method {
        match self {
            Self::List | Self::Watch => Method::GET,
            Self::Create => Method::POST,
            Self::Patch => Method::PATCH,
        }
    }

    /// Content type of the request body.
    fn content_type(self) -> Option<&'static str> {
        match self {
            Self::List | Self::Watch => None,
            Self::Create => Some("application/json"),
            Self::Patch => Some("application/strategic-merge-patch+json"),
        }
    }
}

// === impl Client ===

impl Client {
    /// A client for this access. Logs content types of `options` that can't be decoded here.
    ///
    /// # Errors
    /// If the server's address, a header or the TLS material is unusable: [`AccessError::Content`].
    pub fn new(access: Access, options: ClientOptions, metrics: Arc<dyn Observe>) -> Result<Self, AccessError> {
        let settings = &access.settings;
        let unusable = |what: &str, reason: String| AccessError::Content {
            origin: settings.origin.clone(),
            what: what.to_owned(),
            reason,
        };
        let chosen = &settings.chosen;
        let (scheme, authority) = (if chosen.server.tls { "https" } else { "http" }, chosen.server.authority());
        let server = Uri::builder().scheme(scheme).authority(authority.as_str()).path_and_query("/").build();
        let server = server.map_err(|error| unusable("server", error.to_string()))?;
        let headers = fixed_headers(&access, &options).map_err(|(what, reason)| unusable(what, reason))?;
        let transports = Transports::new(&access, server.clone(), &options.timing, &metrics)
            .map_err(|fault| unusable(fault.what, fault.reason))?;
        Ok(Self(Arc::new(Inner {
            server,
            prefix: chosen.server.prefix.clone(),
            host: authority,
            headers,
            compress: !chosen.disable_compression,
            limit: RateLimit::new(options.qps, options.burst),
            credentials: Arc::new(Credentials::new(settings, &options.timing, &metrics)),
            timing: options.timing,
            transports: Arc::new(transports),
            metrics,
        })))
    }

    /// A client that shares connections and credentials and has a rate limit of its own with the same settings: many requests
    /// of one don't delay the other.
    pub fn with_own_limit(&self) -> Self {
        let inner = &*self.0;
        Self(Arc::new(Inner {
            server: inner.server.clone(),
            prefix: inner.prefix.clone(),
            host: inner.host.clone(),
            headers: inner.headers.clone(),
            compress: inner.compress,
            timing: inner.timing.clone(),
            limit: inner.limit.another(),
            credentials: Arc::clone(&inner.credentials),
            transports: Arc::clone(&inner.transports),
            metrics: Arc::clone(&inner.metrics),
        }))
    }

    /// The certificate authorities of the cluster as PEM, as new connections trust them: those of the file when it was last read.
    /// `None` without any.
    pub fn authorities(&self) -> Option<Vec<u8>> {
        self.0.transports.authorities()
    }

    /// Sends a request and waits for the head of its response, whatever its status. After a 401, the request is repeated once if
    /// there are newer credentials (a token file, a plugin).
    ///
    /// # Errors
    /// If there are no credentials, no connection, or no response within the time limit.
    pub async fn send(&self, call: &Call) -> Result<Answer, CallError> {
        let inner = &*self.0;
        let credential = inner.credentials.current().await?;
        let mut answer = self.send_with(call, &credential).await?;
        if answer.status == 401 && inner.credentials.refused(&credential) {
            let renewed = inner.credentials.current().await?;
            // A plugin that has failed leaves the rejected ones, which would be rejected again.
            if !renewed.is_same(&credential) {
                inner.metrics.retried("401", call.verb.method().as_str(), &inner.host);
                answer = self.send_with(call, &renewed).await?;
            }
        }
        Ok(answer)
    }

    async fn send_with(&self, call: &Call, credential: &Credential) -> Result<Answer, CallError> {
        let inner = &*self.0;
        let waited = inner.limit.turn().await;
        let method = call.verb.method();
        if call.verb != Verb::Watch {
            inner.metrics.waited(method.as_str(), &inner.host, waited);
        }
        let (result, begun) = self.exchange(call, credential).await;
        let code = result.as_ref().ok().map(|reply| reply.response.status());
        let status = code.as_ref().map_or("<error>", |code| code.as_str());
        inner.metrics.answered(status, method.as_str(), &inner.host);
        match result {
            Ok(Reply { response, running, identity }) => {
                inner.transports.works();
                let client = self.clone();
                let purpose = if call.verb == Verb::Watch {
                    Purpose::Follow { client, identity, every: inner.timing.recheck, looked: Instant::now() }
                } else {
                    let request_bytes = call.body.len() as u64;
                    Purpose::Measure { client, method, begun, request_bytes, size_bytes: 0 }
                };
                Answer::new(response, running, purpose)
            }
            Err(error) => {
                if call.verb != Verb::Watch {
                    self.observe(&method, begun.elapsed(), call.body.len() as u64, None);
                }
                Err(error)
            }
        }
    }

    /// Sends a request over an open or a new connection; returns the moment of sending as well. A request that the server
    /// hasn't processed is sent up to [`TRIES`] times.
    async fn exchange(&self, call: &Call, credential: &Credential) -> (Result<Reply, CallError>, Instant) {
        let inner = &*self.0;
        let after = inner.timing.headers;
        let method = call.verb.method();
        let mut tries = 0;
        loop {
            let mut begun = Instant::now();
            let leased = inner.transports.lease(credential).await;
            let ready = leased.and_then(|lease| Ok((lease, self.request(call, credential)?)));
            let ((lease, identity), request) = match ready {
                Ok(ready) => ready,
                Err(error) => return (Err(error), begun),
            };
            begun = Instant::now();
            let link = lease.link();
            let (error, again, is_of_stream) = match tokio::time::timeout(after, lease.send(request)).await {
                Ok(Ok((response, running))) => return (Ok(Reply { response, running, identity }), begun),
                Err(_) => (CallError::Timeout { after }, false, false),
                Ok(Err(error)) => {
                    let (again, is_of_stream) = (error.lets_send_again(&method), error.is_of_stream());
                    (error.into(), again, is_of_stream)
                }
            };
            if !is_of_stream {
                inner.transports.failed(&link, &error);
            }
            tries += 1;
            if tries == TRIES || !again {
                return (Err(error), begun);
            }
            inner.metrics.retried("<error>", method.as_str(), &inner.host);
        }
    }

    fn request(&self, call: &Call, credential: &Credential) -> Result<Request<Full<Bytes>>, CallError> {
        let inner = &*self.0;
        let mut parts = inner.server.clone().into_parts();
        let path = format!("{}{}", inner.prefix, call.path_and_query);
        parts.path_and_query = path.parse().ok();
        let uri = Uri::from_parts(parts).map_err(|_| CallError::Connect(format!("invalid request path {path:?}")))?;
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = call.verb.method();
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        *headers = inner.headers.clone();
        // Compressing a watch would save little, and a compressor on the way might delay events.
        let packed = call.verb == Verb::List && inner.compress;
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(if packed { "gzip" } else { "identity" }));
        if let Some(content_type) = call.verb.content_type() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if let Some(header) = &credential.header {
            headers.insert(AUTHORIZATION, header.clone());
        }
        Ok(request)
    }

    /// Failed attempts to connect so far, of all clones.
    pub fn failures(&self) -> u64 {
        self.0.transports.failures()
    }

    /// The number of the identity of new connections.
    fn identity(&self) -> u64 {
        self.0.transports.identity()
    }

    /// Reports the end of a request that isn't a watch; `answer_bytes` is `None` without a response.
    fn observe(&self, method: &Method, took: Duration, request_bytes: u64, answer_bytes: Option<u64>) {
        self.0.metrics.ended(method.as_str(), &self.0.host, took, (request_bytes, answer_bytes));
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("host", &self.0.host).finish_non_exhaustive()
    }
}

/// The headers of all requests: Accept, User-Agent, impersonation, and the login of a forwarding proxy.
fn fixed_headers(access: &Access, options: &ClientOptions) -> Result<HeaderMap, (&'static str, String)> {
    let chosen = &access.settings.chosen;
    let (accept, unknown) = headers::accept(&options.content_type, &options.accept_content_types);
    if !unknown.is_empty() {
        let (unknown, accept) = (unknown.join(", "), accept.as_str());
        tracing::warn!(unknown, accept, "Unsupported content types in clientConnection, not requesting them");
    }
    let text = |what, text: &str| HeaderValue::from_str(text).map_err(|error| (what, error.to_string()));
    let mut headers =
        credentials::impersonation(chosen.user.impersonate.as_ref()).map_err(|reason| ("impersonation", reason))?;
    headers.insert(ACCEPT, text("acceptContentTypes", &accept)?);
    headers.insert(USER_AGENT, text("User-Agent", &options.user_agent)?);
    if let (false, Some(basic)) =
        (chosen.server.tls, access.settings.proxy.as_ref().and_then(proxy::ForwardProxy::basic))
    {
        headers.insert(PROXY_AUTHORIZATION, basic.clone());
    }
    Ok(headers)
}
