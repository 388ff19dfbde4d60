//! A scripted API server: lists, streaming lists and watches over HTTP/1.1, with TLS or without, and over HTTP/2 with TLS,
//! in JSON and protobuf, as a real one answers them where a client can tell; and every fault of a network or a server.
//!
//! Objects are put in from outside, by [`ApiServer::put`] or by PUT and DELETE of their paths; Events are kept as clients
//! write them. Each connection has a thread; nothing runs while nothing changes.

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
pub use fault::{Action, Form, Rule, Welcome};
pub use request::Seen;

use connection::Connection;
use entry::Draft;
use fault::Script;
use listener::Listener;
use store::Store;

/// What a server is like.
pub struct Options {
    /// its certificate; plain HTTP without
    pub tls: Option<Identity>,
    /// client certificates of this authority are accepted
    pub clients: Option<Authority>,
    /// where it listens; port 0 for any
    pub listen: SocketAddr,
    /// a bearer token that is accepted; with neither this nor `clients` everybody is
    pub token: Option<String>,
    /// what all paths begin with, say `/clusters/a`
    pub prefix: String,
    /// it offers HTTP/2 over TLS
    pub http2: bool,
    /// SETTINGS_MAX_CONCURRENT_STREAMS of HTTP/2
    pub streams: Option<u32>,
    /// whether it knows `sendInitialEvents`; without, it answers 422 to that
    pub streaming_lists: bool,
    /// whether it knows protobuf; without, JSON is all that it can answer
    pub protobuf: bool,
    /// how often watches get bookmarks that want them; without, only by [`ApiServer::bookmark`]
    pub bookmarks: Option<Duration>,
    /// a watch from a version that is gone gets 410 as a status, not as an event
    pub gone_as_status: bool,
}

/// A server. Its threads end when it is dropped.
pub struct ApiServer {
    shared: Arc<Shared>,
    listener: Listener,
}

/// When a change was told to a watch, for who measures what comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// the change's resourceVersion
    pub version: u64,
    /// just before its event was written
    pub begun: Instant,
    /// its last byte is with the system
    pub ended: Instant,
}

/// What its threads share.
struct Shared {
    options: Options,
    store: Mutex<Store>,
    script: Mutex<Script>,
    requests: Mutex<Vec<Seen>>,
    token: Mutex<Option<String>>,
    tls: Mutex<Option<(Identity, Arc<rustls::ServerConfig>)>>,
    told: Mutex<Option<Told>>,
    events: Mutex<Vec<Value>>,
    /// reads of HTTP/2 that brought something
    heard: AtomicU64,
}

// === impl Options ===

impl Default for Options {
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

impl Options {
    /// TLS with a certificate for 127.0.0.1 and localhost of an authority made for it, and a token.
    pub fn secure() -> Self {
        let server = Authority::new("lab").server(&["127.0.0.1", "localhost"], Validity::Now);
        Self { tls: Some(server), token: Some("let-me-in".to_owned()), ..Self::default() }
    }
}

// === impl ApiServer ===

impl ApiServer {
    /// Starts a server in the network namespace of the calling thread.
    pub fn start(options: Options) -> Self {
        let tls = options.tls.clone().map(|identity| with_config(identity, &options));
        let listen = options.listen;
        let shared = Arc::new(Shared {
            token: Mutex::new(options.token.clone()),
            options,
            store: Mutex::new(Store::new()),
            script: Mutex::default(),
            requests: Mutex::default(),
            tls: Mutex::new(tls),
            told: Mutex::default(),
            events: Mutex::default(),
            heard: AtomicU64::new(0),
        });
        Self { listener: Listener::start(listen, Arc::clone(&shared)), shared }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Its URL, as a kubeconfig has it.
    pub fn url(&self) -> String {
        let scheme = if self.shared.options.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.address(), self.shared.options.prefix)
    }

    /// Writes a kubeconfig for it, with a client certificate where it wants one, else with its token.
    pub fn kubeconfig(&self, file: &Path) {
        fs::write(file, self.kubeconfig_text()).unwrap_or_else(|error| panic!("writing {}: {error}", file.display()));
    }

    /// The text of such a kubeconfig.
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

    /// Shows another certificate from the next connection on.
    pub fn present(&self, identity: Identity) {
        *locked(&self.shared.tls) = Some(with_config(identity, &self.shared.options));
    }

    /// Accepts another token from the next request on.
    pub fn accept_token(&self, token: Option<&str>) {
        *locked(&self.shared.token) = token.map(str::to_owned);
    }

    /// Creates or replaces objects (JSON, or YAML documents), in order; watches are told. Returns the last one's
    /// resourceVersion.
    ///
    /// # Panics
    /// If the text can't be read, or is none of an object that is served.
    pub fn put(&self, text: &str) -> u64 {
        self.put_all(text, None)
    }

    /// The same with objects that no client can decode, though the frames around them are sound: until they are
    /// replaced or deleted.
    pub fn put_damaged(&self, text: &str, damage: Damage) -> u64 {
        self.put_all(text, Some(damage))
    }

    fn put_all(&self, text: &str, damage: Option<Damage>) -> u64 {
        let put = |_, draft| Some(self.shared.put(draft, damage));
        Draft::all(text).into_iter().fold(None, put).expect("an object to put")
    }

    /// Many at once.
    pub fn load(&self, objects: impl IntoIterator<Item = ApiObject>) {
        for object in objects {
            self.put(&object.text);
        }
    }

    /// Deletes an object, `namespace/name` or `name`; nothing if there is none.
    pub fn delete(&self, kind: Kind, name: &str) -> Option<u64> {
        let key = if name.contains('/') { name.to_owned() } else { format!("/{name}") };
        self.shared.delete(kind, &key)
    }

    /// The resourceVersion of now.
    pub fn version(&self) -> u64 {
        self.shared.store().version()
    }

    /// Forgets the past: a watch from an older resourceVersion than now, and every continue token, is answered with 410.
    /// Open watches go on. Now is a new resourceVersion, so that this is true of all clients that don't get a bookmark.
    pub fn compact(&self) {
        self.shared.store().compact();
    }

    /// Goes back to this resourceVersion, as one whose store was restored from a backup: what was written since is not there
    /// any more, and nobody is told. To be done while it is stopped.
    pub fn restore(&self, version: u64) {
        self.shared.store().restore(version);
    }

    /// Sends a bookmark to every open watch that wants them.
    pub fn bookmark(&self) {
        self.shared.store().bookmark();
    }

    /// Adds a fault.
    pub fn script(&self, rule: Rule) {
        locked(&self.shared.script).add(rule);
    }

    /// Adds a fault of the next connections.
    pub fn welcome(&self, times: usize, welcome: Welcome) {
        locked(&self.shared.script).welcome(times, welcome);
    }

    /// Takes back all faults that have not come yet.
    pub fn clear(&self) {
        locked(&self.shared.script).clear();
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Seen> {
        locked(&self.shared.requests).clone()
    }

    /// Forgets them.
    pub fn forget_requests(&self) {
        locked(&self.shared.requests).clear();
    }

    /// The Events that were written, as they are now, in the order of their creation.
    pub fn events(&self) -> Vec<Value> {
        locked(&self.shared.events).clone()
    }

    /// Forgets them, as a server does after an hour.
    pub fn forget_events(&self) {
        locked(&self.shared.events).clear();
    }

    /// Connections accepted so far, also those that came to nothing.
    pub fn connections(&self) -> u64 {
        self.listener.accepted()
    }

    /// Watches that are open now.
    pub fn watches(&self) -> usize {
        self.shared.store().watchers()
    }

    /// Ends the open watches of a kind properly, as if their time were over.
    pub fn end_watches(&self, kind: Kind) {
        self.shared.store().end_watches(kind);
    }

    /// Reads over HTTP/2 so far that brought something: requests, acknowledgements, pings.
    pub fn heard(&self) -> u64 {
        self.shared.heard.load(Ordering::Relaxed)
    }

    /// The change that was told last to a watch; one of the watches, where there are several.
    pub fn last_told(&self) -> Option<Told> {
        *locked(&self.shared.told)
    }

    /// Ends all connections now, in the middle of whatever they are at.
    pub fn cut(&self) {
        self.listener.cut();
    }

    /// Sends GOAWAY on all connections of HTTP/2: what has begun goes on, new requests are for a new connection.
    pub fn go_away(&self) {
        self.listener.order(http2::Order::Leave);
    }

    /// Leaves all connections of HTTP/2 as they are: open, but nothing is read or said on them any more, not even to
    /// pings.
    pub fn freeze(&self) {
        self.listener.order(http2::Order::Freeze);
    }

    /// Refuses connections and ends those that there are.
    pub fn stop(&self) {
        self.listener.stop();
    }

    /// Listens again, at the same port.
    pub fn resume(&self) {
        self.listener.resume();
    }
}

// === impl Shared ===

impl Shared {
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

    /// Whether a request comes with what it needs to be answered.
    fn admits(&self, connection: &Connection, seen: &Seen) -> bool {
        let token = locked(&self.token);
        let bearer = seen.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let everybody = token.is_none() && self.options.clients.is_none();
        everybody || connection.has_client_certificate() || (token.is_some() && bearer == token.as_deref())
    }
}

/// A panic of a test while it held the lock is that test's matter.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_config(identity: Identity, options: &Options) -> (Identity, Arc<rustls::ServerConfig>) {
    let config = authority::server_config(&identity, options.clients.as_ref(), options.http2);
    (identity, Arc::new(config))
}

#[cfg(test)]
mod tests;
