//! A scripted API server: lists, streaming lists and watches over HTTP/1.1, with TLS or without, and over HTTP/2 with TLS,
//! in JSON and protobuf, indistinguishable from a real one for a client; and scripted faults of networks and servers.
//!
//! Tests write objects by [`ApiServer::put`], or by PUT and DELETE of their paths; Events are stored as clients write them.
//! Each connection has a thread; no thread runs while nothing changes.

mod authority;
mod body;
mod connection;
mod entry;
mod event;
mod exchange;
mod fault;
mod http2;
mod list;
mod listener;
pub mod objects;
mod pending;
mod request;
mod selector;
mod store;
mod watch;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferry_api::object::Kind;
use serde_json::Value;

pub use authority::{Authority, Identity, Validity};
pub use entry::{ApiObject, Damage};
pub use fault::{FaultAction, FaultRule, RequestForm, Welcome};
pub use request::RecordedRequest;

use connection::Connection;
use entry::Draft;
use fault::Script;
use listener::ApiListener;
use store::Store;

/// Configuration of a server.
pub struct ApiServerOptions {
    /// its certificate; plain HTTP without
    pub tls: Option<Identity>,
    /// client certificates of this authority are accepted
    pub clients: Option<Authority>,
    /// listening address; port 0 for any free port
    pub listen: SocketAddr,
    /// the accepted bearer token; with neither this nor `clients`, every client is accepted
    pub token: Option<String>,
    /// prefix of all paths, for example `/clusters/a`
    pub prefix: String,
    /// offers HTTP/2 over TLS
    pub http2: bool,
    /// SETTINGS_MAX_CONCURRENT_STREAMS of HTTP/2
    pub streams: Option<u32>,
    /// supports `sendInitialEvents` (streaming lists); without, responds 422 to it
    pub streaming_lists: bool,
    /// supports protobuf; without, responds in JSON only
    pub protobuf: bool,
    /// interval of bookmarks for watches that request them; without, only by [`ApiServer::bookmark`]
    pub bookmarks: Option<Duration>,
    /// a watch from an expired version gets 410 as an HTTP status, not as an event
    pub gone_as_status: bool,
}

/// A running server. Its threads end when it is dropped.
pub struct ApiServer {
    shared: Arc<ServerState>,
    listener: ApiListener,
}

/// Times of sending a change to a watch, for latency measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// the change's resourceVersion
    pub version: u64,
    /// just before its event was written
    pub begun: Instant,
    /// after its last byte was handed to the kernel
    pub ended: Instant,
}

/// State shared by the server's threads.
struct ServerState {
    options: ApiServerOptions,
    store: Mutex<Store>,
    script: Mutex<Script>,
    requests: Mutex<Vec<RecordedRequest>>,
    token: Mutex<Option<String>>,
    tls: Mutex<Option<(Identity, Arc<rustls::ServerConfig>)>>,
    last_delivery: Mutex<Option<Delivery>>,
    events: Mutex<Vec<Value>>,
    /// HTTP/2 reads that returned data
    heard: AtomicU64,
}

// === impl ApiServerOptions ===

impl Default for ApiServerOptions {
    fn default() -> Self {
        Self {
            tls: None,
            clients: None,
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            token: None,
            prefix: String::new(),
            http2: true,
            streams: None,
            streaming_lists: true,
            protobuf: true,
            bookmarks: None,
            gone_as_status: false,
        }
    }
}

impl ApiServerOptions {
    /// TLS with a certificate for 127.0.0.1 and localhost, signed by a new authority, and a token.
    pub fn secure() -> Self {
        let server = Authority::new("lab").server(&["127.0.0.1", "localhost"], Validity::Now);
        Self { tls: Some(server), token: Some("let-me-in".to_owned()), ..Self::default() }
    }
}

// === impl ApiServer ===

impl ApiServer {
    /// Starts a server in the network namespace of the calling thread.
    pub fn start(options: ApiServerOptions) -> Self {
        let tls = options.tls.clone().map(|identity| with_config(identity, &options));
        let listen = options.listen;
        let shared = Arc::new(ServerState {
            token: Mutex::new(options.token.clone()),
            options,
            store: Mutex::new(Store::new()),
            script: Mutex::default(),
            requests: Mutex::default(),
            tls: Mutex::new(tls),
            last_delivery: Mutex::default(),
            events: Mutex::default(),
            heard: AtomicU64::new(0),
        });
        Self { listener: ApiListener::start(listen, Arc::clone(&shared)), shared }
    }

    /// Listening address.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The server's URL, for a kubeconfig.
    pub fn url(&self) -> String {
        let scheme = if self.shared.options.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.address(), self.shared.options.prefix)
    }

    /// Writes a kubeconfig for the server, with a client certificate if it requests them, else with its token.
    pub fn kubeconfig(&self, file: &Path) {
        fs::write(file, self.kubeconfig_text()).unwrap_or_else(|error| panic!("writing {}: {error}", file.display()));
    }

    /// The content of [`ApiServer::kubeconfig`].
    pub fn kubeconfig_text(&self) -> String {
        let user = if let Some(clients) = &self.shared.options.clients {
            let client = clients.client("system:kube-proxy", &["system:node-proxiers"], Validity::Now);
            let [certificate, key] = [client.certificate, client.key].map(|pem| authority::base64(&pem));
            format!("{{client-certificate-data: {certificate}, client-key-data: {key}}}")
        } else {
            locked(&self.shared.token).as_ref().map_or_else(|| "{}".to_owned(), |token| format!("{{token: {token}}}"))
        };
        let authority = locked(&self.shared.tls).as_ref().map_or_else(String::new, |(identity, _)| {
            format!("    certificate-authority-data: {}\n", authority::base64(&identity.authority))
        });
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: lab\n  cluster:\n    server: {}\n{authority}users:\n- name: \
             proxy\n  user: {user}\ncontexts:\n- name: lab\n  context: {{cluster: lab, user: proxy}}\n\
             current-context: lab\n",
            self.url()
        )
    }

    /// Presents another certificate from the next connection on.
    pub fn present(&self, identity: Identity) {
        *locked(&self.shared.tls) = Some(with_config(identity, &self.shared.options));
    }

    /// Accepts another token from the next request on.
    pub fn accept_token(&self, token: Option<&str>) {
        *locked(&self.shared.token) = token.map(str::to_owned);
    }

    /// Creates or replaces objects (JSON, or YAML documents), in order; watches get the events. Returns the last one's
    /// resourceVersion.
    ///
    /// # Panics
    /// If the text can't be parsed, or the object's kind isn't served.
    pub fn put(&self, text: &str) -> u64 {
        self.put_all(text, None)
    }

    /// The same with objects that no client can decode, inside intact frames: until they are replaced or deleted.
    pub fn put_damaged(&self, text: &str, damage: Damage) -> u64 {
        self.put_all(text, Some(damage))
    }

    fn put_all(&self, text: &str, damage: Option<Damage>) -> u64 {
        let put = |_, draft| Some(self.shared.put(draft, damage));
        Draft::all(text).into_iter().fold(None, put).expect("an object to put")
    }

    /// Creates or replaces many objects at once.
    pub fn load(&self, objects: impl IntoIterator<Item = ApiObject>) {
        for object in objects {
            self.put(&object.text);
        }
    }

    /// Deletes an object, `namespace/name` or `name`, and returns the resourceVersion of that; `None` if there is none.
    pub fn delete(&self, kind: Kind, name: &str) -> Option<u64> {
        let key = if name.contains('/') { name.to_owned() } else { format!("/{name}") };
        self.shared.delete(kind, &key)
    }

    /// The current resourceVersion.
    pub fn version(&self) -> u64 {
        self.shared.store().version()
    }

    /// Compacts the history: a watch from an older resourceVersion than the current one, and every continue token, is answered
    /// with 410. Open watches go on. The resourceVersion increases, so that every client without a newer bookmark is affected.
    pub fn compact(&self) {
        self.shared.store().compact();
    }

    /// Goes back to this resourceVersion, as a server whose store was restored from a backup: later writes are lost, without
    /// events. Call it while the server is stopped.
    pub fn restore(&self, version: u64) {
        self.shared.store().restore(version);
    }

    /// Sends a bookmark to every open watch that has requested them.
    pub fn bookmark(&self) {
        self.shared.store().bookmark();
    }

    /// Adds a fault of the next matching requests.
    pub fn script(&self, rule: FaultRule) {
        locked(&self.shared.script).add(rule);
    }

    /// Adds a fault of the next connections.
    pub fn welcome(&self, times: usize, welcome: Welcome) {
        locked(&self.shared.script).welcome(times, welcome);
    }

    /// Removes all faults that have not occurred yet.
    pub fn clear(&self) {
        locked(&self.shared.script).clear();
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        locked(&self.shared.requests).clone()
    }

    /// Clears the recorded requests.
    pub fn forget_requests(&self) {
        locked(&self.shared.requests).clear();
    }

    /// The stored Events, in the order of their creation.
    pub fn events(&self) -> Vec<Value> {
        locked(&self.shared.events).clone()
    }

    /// Deletes the Events, as a server does after an hour.
    pub fn forget_events(&self) {
        locked(&self.shared.events).clear();
    }

    /// Connections accepted so far, failed ones included.
    pub fn connections(&self) -> u64 {
        self.listener.accepted()
    }

    /// Number of open watches.
    pub fn watches(&self) -> usize {
        self.shared.store().watchers()
    }

    /// Ends the open watches of a kind properly, as at their timeout.
    pub fn end_watches(&self, kind: Kind) {
        self.shared.store().end_watches(kind);
    }

    /// HTTP/2 reads so far that returned data: requests, acknowledgements, pings.
    pub fn heard(&self) -> u64 {
        self.shared.heard.load(Ordering::Relaxed)
    }

    /// The change that was last sent to a watch; with several watches, to one of them.
    pub fn last_delivery(&self) -> Option<Delivery> {
        *locked(&self.shared.last_delivery)
    }

    /// Ends all connections at once, in any state.
    pub fn cut(&self) {
        self.listener.cut();
    }

    /// Sends GOAWAY on all HTTP/2 connections: requests under way go on, new ones need a new connection.
    pub fn go_away(&self) {
        self.listener.order(http2::Order::Leave);
    }

    /// Freezes all HTTP/2 connections: they stay open, but nothing is read or written on them any more, not even answers to
    /// pings.
    pub fn freeze(&self) {
        self.listener.order(http2::Order::Freeze);
    }

    /// Stops listening and ends all connections.
    pub fn stop(&self) {
        self.listener.stop();
    }

    /// Listens again, on the same port.
    pub fn resume(&self) {
        self.listener.resume();
    }
}

// === impl ServerState ===

impl ServerState {
    fn store(&self) -> MutexGuard<'_, Store> {
        locked(&self.store)
    }

    fn put(&self, draft: Draft, damage: Option<Damage>) -> u64 {
        let kind = draft.kind;
        let mut store = self.store();
        let version = store.put(draft, damage);
        store.wake(|of| of == kind);
        version
    }

    fn delete(&self, kind: Kind, key: &str) -> Option<u64> {
        let mut store = self.store();
        let version = store.delete(kind, key)?;
        store.wake(|of| of == kind);
        Some(version)
    }

    /// True if the request is authenticated.
    fn admits(&self, connection: &Connection, seen: &RecordedRequest) -> bool {
        let token = locked(&self.token);
        let bearer = seen.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let everybody = token.is_none() && self.options.clients.is_none();
        everybody || connection.has_client_certificate() || (token.is_some() && bearer == token.as_deref())
    }
}

/// Locks a mutex and ignores poisoning: a test that panicked with the lock held fails by itself.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_config(identity: Identity, options: &ApiServerOptions) -> (Identity, Arc<rustls::ServerConfig>) {
    let config = authority::server_config(&identity, options.clients.as_ref(), options.http2);
    (identity, Arc::new(config))
}

#[cfg(test)]
mod tests;
