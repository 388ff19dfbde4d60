//! A scripted cluster, and a source that follows it into a store.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ferry_api::object::{Kind, KubeObject, ObjectName};
use ferry_client::{self as client, Access, Client};
use ferry_kernel::netns::Namespace;
use ferry_kube_proxy::events::{self, Recorder};
use ferry_kube_proxy::health::{Fresh, Freshness};
use ferry_kube_proxy::input::Input;
use ferry_kube_proxy::metrics::Metrics;
use ferry_kube_proxy::source::Sink;
use ferry_kube_proxy::source::api::{ApiSetup, KINDS, SourceTiming};
use ferry_lab::api::{ApiServer, ApiServerOptions, Damage, RecordedRequest, RequestForm};
use ferry_model::store::{Event, Store};
use tokio::sync::oneshot;

/// Name of the source's node.
pub(crate) const NODE: &str = "here";
/// Kinds whose lists differ from checks: a list of Nodes selects one object, as a check does.
pub(crate) const LISTED: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr];
/// Time limit of every wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for a source to catch up with a server that is reachable again, with production times.
pub(crate) const SOON: Duration = Duration::from_secs(2);
/// Capacity of the queue to the store, in batches.
const INPUTS: usize = 64;

/// A server in a namespace, and its expected state. Each state of each object has a number, higher than any before.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    namespace: Namespace,
    folder: PathBuf,
    truth: BTreeMap<String, u32>,
    number: u32,
}

/// Settings of a follower.
pub(crate) struct How {
    pub(crate) timing: SourceTiming,
    pub(crate) client: client::TimeLimits,
    pub(crate) content_type: &'static str,
    pub(crate) events: events::EventTiming,
}

/// A running source, and its delivered objects.
pub(crate) struct Follower {
    inputs: Receiver<Input>,
    store: Store,
    /// the number of each object's last state, deleted ones included
    last: BTreeMap<String, u32>,
    /// events so far
    pub(crate) events: usize,
    /// events so far that changed something
    pub(crate) effects: usize,
    /// kinds whose initial list is complete, in that order
    pub(crate) synced: Vec<Kind>,
    log: Log,
    freshness: Arc<Freshness>,
    metrics: Metrics,
    /// writes Events on the source's thread, over its connections
    pub(crate) recorder: Recorder,
    /// the source ends with this
    _stop: oneshot::Sender<()>,
}

thread_local! {
    /// whether the servers of this thread's test speak HTTP/2
    static HTTP2: Cell<bool> = const { Cell::new(true) };
}

/// Runs a test with servers with or without HTTP/2.
pub(crate) fn over(http2: bool, test: fn()) {
    HTTP2.set(http2);
    test();
}

/// True in a test over HTTP/2.
pub(crate) fn is_http2() -> bool {
    HTTP2.get()
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

/// Short waits, and no silence timeouts except where a test sets them.
pub(crate) fn quick() -> SourceTiming {
    SourceTiming {
        backoff: Duration::from_millis(2),
        failing: Duration::from_millis(2),
        backoff_limit: Duration::from_millis(20),
        short_limit: Duration::from_millis(20),
        refusal_limit: Duration::from_millis(40),
        floor: Duration::from_millis(1),
        refusal_grace: Duration::from_millis(100),
        optional_retry: Duration::from_millis(100),
        verify_millis: 20..100,
        lag_millis: 100..200,
        courtesy: Duration::from_millis(3),
        verdict: Duration::from_millis(3),
        lag_check_millis: 20..40,
        ..SourceTiming::default()
    }
}

/// The same for connections.
pub(crate) fn quick_client() -> client::TimeLimits {
    client::TimeLimits {
        probe: Duration::from_millis(20),
        backoff: Duration::from_millis(2),
        backoff_limit: Duration::from_millis(20),
        ..client::TimeLimits::default()
    }
}

/// The same for Events.
pub(crate) fn quick_events() -> events::EventTiming {
    events::EventTiming { pause: Duration::from_millis(20), ..events::EventTiming::default() }
}

/// Waits for a condition without receiving events.
#[track_caller]
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "no {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// An object's name in the expected state, and the number of its state.
fn reading(object: &KubeObject) -> (String, u32) {
    let address = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(_) => panic!("{address} is not of these tests"),
    };
    let number = match object {
        KubeObject::Service(service) => {
            let port = service.ports.first().expect("a port");
            u32::from(*port.port.as_ref().expect("a sound port"))
        }
        KubeObject::EndpointSlice(slice) => address(&slice.endpoints.first().expect("an endpoint").address) & 0xff_ffff,
        KubeObject::Node(node) => {
            let first = node.addresses.first().expect("an address");
            address(first.address.as_ref().expect("a sound address")) & 0xff_ffff
        }
        KubeObject::ServiceCidr(cidr) => {
            let first = cidr.cidrs.first().expect("a range");
            (address(&first.as_ref().expect("a sound range").addr()) >> 8) & 0xffff
        }
    };
    (key(object.kind(), object.name()), number)
}

fn key(kind: Kind, name: &ObjectName) -> String {
    format!("{kind} {name}")
}

/// An address that carries a number.
fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 | number)
}

// === impl Cluster ===

impl Cluster {
    /// A cluster with a node, a range, three services and their slices.
    pub(crate) fn new() -> Self {
        Self::with(ApiServerOptions::secure())
    }

    pub(crate) fn with(options: ApiServerOptions) -> Self {
        let mut cluster = Self::empty(options);
        cluster.node();
        cluster.service_cidr("range");
        for name in ["a", "b", "c"] {
            cluster.service(name);
            cluster.slice(name);
        }
        cluster
    }

    pub(crate) fn empty(options: ApiServerOptions) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("faults-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("making a folder");
        let namespace = Namespace::new().expect("making a network namespace needs root");
        namespace.raise_loopback().expect("raising loopback");
        let options = ApiServerOptions { http2: is_http2(), ..options };
        let server = namespace.run(|| ApiServer::start(options)).expect("entering the namespace");
        Self { server, namespace, folder, truth: BTreeMap::new(), number: 0 }
    }

    /// Number of the next state of an object.
    fn count(&mut self, kind: Kind, name: &ObjectName) -> u32 {
        self.number += 1;
        self.truth.insert(key(kind, name), self.number);
        self.number
    }

    /// Creates this service, or gives it a new state.
    pub(crate) fn service(&mut self, name: &str) {
        let json = self.service_json(name);
        self.server.put(&json);
    }

    /// The same, malformed.
    pub(crate) fn unreadable_service(&mut self, name: &str) {
        let known = self.truth.get(&key(Kind::Service, &ObjectName::new("demo", name))).copied();
        let json = self.service_json(name);
        self.server.put_damaged(&json, Damage::Content);
        match known {
            Some(known) => self.truth.insert(key(Kind::Service, &ObjectName::new("demo", name)), known),
            None => self.truth.remove(&key(Kind::Service, &ObjectName::new("demo", name))),
        };
    }

    fn service_json(&mut self, name: &str) -> String {
        let number = self.count(Kind::Service, &ObjectName::new("demo", name));
        let place = name.bytes().fold(7_u32, |sum, byte| (sum * 31 + u32::from(byte)) % 60_000);
        let ip = Ipv4Addr::from_bits(0x0a60_0001 + place);
        format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"demo"}},
                "spec":{{"clusterIP":"{ip}","clusterIPs":["{ip}"],"ipFamilies":["IPv4"],
                "ports":[{{"name":"p","port":{number},"protocol":"TCP"}}]}}}}"#
        )
    }

    /// A new state of this service's slice.
    pub(crate) fn slice(&mut self, name: &str) {
        self.padded_slice(name, 0);
    }

    /// The same, with an annotation of this size.
    pub(crate) fn padded_slice(&mut self, name: &str, padding: usize) {
        let number = self.count(Kind::EndpointSlice, &ObjectName::new("demo", name));
        let padding = "x".repeat(padding);
        self.server.put(&format!(
            r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",
                "metadata":{{"name":"{name}","namespace":"demo","labels":{{"kubernetes.io/service-name":"{name}"}},
                "annotations":{{"padding":"{padding}"}}}},"addressType":"IPv4",
                "ports":[{{"name":"p","port":8080,"protocol":"TCP"}}],
                "endpoints":[{{"addresses":["{}"],"conditions":{{"ready":true}},"nodeName":"{NODE}"}}]}}"#,
            address(number)
        ));
    }

    /// A new state of the follower's Node.
    pub(crate) fn node(&mut self) {
        let number = self.count(Kind::Node, &ObjectName::cluster_wide(NODE));
        self.server.put(&node_json(NODE, number));
    }

    /// Another Node, which the source must ignore.
    pub(crate) fn other_node(&mut self, name: &str) {
        self.server.put(&node_json(name, 1));
    }

    /// A new state of this range.
    pub(crate) fn service_cidr(&mut self, name: &str) {
        let number = self.count(Kind::ServiceCidr, &ObjectName::cluster_wide(name));
        self.server.put(&format!(
            r#"{{"apiVersion":"networking.k8s.io/v1","kind":"ServiceCIDR","metadata":{{"name":"{name}"}},
                "spec":{{"cidrs":["{}/24"]}}}}"#,
            address(number << 8)
        ));
    }

    /// Deletes an object.
    pub(crate) fn delete(&mut self, kind: Kind, name: &str) {
        let (full, object) = match kind.is_cluster_wide() {
            true => (name.to_owned(), ObjectName::cluster_wide(name)),
            false => (format!("demo/{name}"), ObjectName::new("demo", name)),
        };
        assert!(self.server.delete(kind, &full).is_some(), "no {kind} {name}");
        self.truth.remove(&key(kind, &object));
    }

    /// Stops the server and restarts it from a backup at this version, when these services and their slices didn't exist.
    pub(crate) fn restore(&mut self, version: u64, without: &[&str]) {
        self.server.stop();
        self.server.restore(version);
        for name in without {
            for kind in [Kind::Service, Kind::EndpointSlice] {
                self.truth.remove(&key(kind, &ObjectName::new("demo", name)));
            }
        }
    }

    /// Deletes the Node, whose last state stays known.
    pub(crate) fn delete_node(&mut self) {
        self.server.delete(Kind::Node, NODE).expect("our Node");
    }

    /// A new state of something, by a number.
    pub(crate) fn change(&mut self, choice: u32) {
        let name = format!("n{}", choice / 8 % 16);
        match choice % 8 {
            0 => self.node(),
            1 => self.service_cidr(&name),
            2..=3 => self.service(&name),
            4..=6 => self.slice(&name),
            _ => {
                let kind = if choice % 16 < 8 { Kind::Service } else { Kind::EndpointSlice };
                if self.truth.contains_key(&key(kind, &ObjectName::new("demo", &name))) {
                    self.delete(kind, &name);
                }
            }
        }
    }

    /// Starts a source that follows this cluster.
    pub(crate) fn follow(&self, timing: SourceTiming) -> Follower {
        self.follow_by(How { timing, ..How::default() })
    }

    pub(crate) fn follow_by(&self, how: How) -> Follower {
        self.follow_with(&self.server.kubeconfig_text(), how)
    }

    /// The same by another kubeconfig.
    pub(crate) fn follow_with(&self, kubeconfig: &str, how: How) -> Follower {
        let file = self.folder.join("kubeconfig");
        fs::write(&file, kubeconfig).expect("writing a kubeconfig");
        let access = Access::load(&file.display().to_string(), None).expect("a sound kubeconfig");
        let server = access.server().to_owned();
        let options = client::ClientOptions {
            content_type: how.content_type.to_owned(),
            accept_content_types: String::new(),
            qps: -1.0,
            burst: 0,
            user_agent: "faults".to_owned(),
            timing: how.client,
        };
        let (metrics, log) = (Metrics::new().expect("metrics"), Log::default());
        let client = Client::new(access, options, metrics.rest.clone()).expect("a client");
        let (recorder, told) = events::open(client.with_own_limit(), "machine", how.events);
        let freshness = Arc::new(Freshness::new(Instant::now(), &KINDS));
        let setup = ApiSetup {
            client,
            server,
            node_name: NODE.to_owned(),
            freshness: Arc::clone(&freshness),
            timing: how.timing,
        };
        let (sender, inputs) = sync_channel(INPUTS);
        let (stop, stopped) = oneshot::channel::<()>();
        let writer = log.clone();
        let run = move || {
            let subscriber = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_target(false)
                .without_time()
                .with_writer(move || writer.clone())
                .finish();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            tracing::subscriber::with_default(subscriber, || {
                runtime.block_on(async {
                    let sink = Sink::new(sender);
                    tokio::select! {
                        _ = setup.follow(&sink) => {}
                        // it never ends, since the test has a recorder
                        () = told.run() => {}
                        _ = stopped => {}
                    }
                });
            });
        };
        let started = self.namespace.run(|| thread::Builder::new().name("source".to_owned()).spawn(run).map(drop));
        started.expect("entering the namespace").expect("starting a thread");
        Follower {
            inputs,
            store: Store::new(NODE),
            last: BTreeMap::new(),
            events: 0,
            effects: 0,
            synced: Vec::new(),
            log,
            freshness,
            metrics,
            recorder,
            _stop: stop,
        }
    }

    /// Lists of all objects of a kind, streamed or in pages, without further pages. Not of Nodes, of which there is one.
    pub(crate) fn lists(&self, kind: Kind) -> usize {
        let is_list = |seen: &RecordedRequest| {
            matches!(seen.form, RequestForm::StreamingList | RequestForm::List) && !is_check(seen)
        };
        let asked = self.asked(kind, RequestForm::Any);
        asked.iter().filter(|seen| is_list(seen) && seen.parameter("continue").is_none()).count()
    }

    /// Number of history checks of a kind.
    pub(crate) fn checks(&self, kind: Kind) -> usize {
        self.asked(kind, RequestForm::List).iter().filter(|seen| is_check(seen)).count()
    }

    /// Number of attempted TCP connections of this namespace.
    pub(crate) fn attempts(&self) -> u64 {
        let read = || fs::read_to_string("/proc/thread-self/net/snmp").expect("the kernel's counters");
        let page = self.namespace.run(read).expect("entering the namespace");
        let mut tcp = page.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
        let (names, values) = (tcp.next().expect("names"), tcp.next().expect("values"));
        let (_, count) = names.zip(values).find(|(name, _)| *name == "ActiveOpens").expect("a count of attempts");
        count.parse().expect("a number")
    }

    /// Runs a program on the server's machine; returns its output.
    pub(crate) fn run(&self, program: &str, arguments: &str) -> String {
        let output = self.namespace.run(|| Command::new(program).args(arguments.split(' ')).output());
        let output = output.expect("entering the namespace").unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sets a parameter of the server's machine, if its kernel has it.
    pub(crate) fn set_parameter(&self, path: &str, value: &str) {
        let written = self.namespace.run(|| fs::write(Path::new("/proc/sys").join(path), value));
        match written.expect("entering the namespace") {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{path}: {error}"),
            Ok(()) | Err(_) => {}
        }
    }

    /// Requests for a kind and of a form so far.
    pub(crate) fn asked(&self, kind: Kind, form: RequestForm) -> Vec<RecordedRequest> {
        let fits = |seen: &RecordedRequest| seen.kind == Some(kind) && (form == RequestForm::Any || seen.form == form);
        self.server.requests().into_iter().filter(fits).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Leftovers in the target folder are harmless.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// True for a request of one object by its name.
fn is_check(seen: &RecordedRequest) -> bool {
    let fields = seen.parameter("fieldSelector").unwrap_or_default();
    seen.form == RequestForm::List && seen.parameter("limit").is_none() && fields.starts_with("metadata.name=")
}

fn node_json(name: &str, number: u32) -> String {
    let address = address(number);
    format!(
        r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{name}"}},
            "status":{{"addresses":[{{"type":"InternalIP","address":"{address}"}}]}}}}"#
    )
}

// === impl How ===

impl Default for How {
    fn default() -> Self {
        Self {
            timing: quick(),
            client: quick_client(),
            content_type: "application/vnd.kubernetes.protobuf",
            events: quick_events(),
        }
    }
}

// === impl Follower ===

impl Follower {
    /// Receives events until a condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "no {what}\n{}", self.log());
            self.take_within(Duration::from_millis(20));
        }
    }

    /// Takes one batch.
    pub(crate) fn take_one(&mut self) {
        let input = self.inputs.recv_timeout(PATIENCE).expect("a batch");
        self.take(input);
    }

    /// Receives events for this time.
    pub(crate) fn take_within(&mut self, time: Duration) {
        match self.inputs.recv_timeout(time) {
            Ok(input) => {
                self.take(input);
                while let Ok(input) = self.inputs.try_recv() {
                    self.take(input);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("the source has ended\n{}", self.log()),
        }
    }

    /// Receives events until all lists are complete and the store equals the cluster.
    #[track_caller]
    pub(crate) fn until_equal(&mut self, cluster: &Cluster) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let have = self.have();
            if have == cluster.truth && KINDS.iter().all(|kind| self.store.synced(*kind)) {
                return;
            }
            if Instant::now() > deadline {
                let lacks: Vec<_> =
                    cluster.truth.iter().filter(|(key, number)| have.get(*key) != Some(number)).collect();
                let extra: Vec<_> = have.keys().filter(|key| !cluster.truth.contains_key(*key)).collect();
                panic!("lacks {lacks:?}, has {extra:?}, synced {:?}\n{}", self.synced, self.log());
            }
            self.take_within(Duration::from_millis(20));
        }
    }

    /// The store's objects with the numbers of their states.
    pub(crate) fn have(&self) -> BTreeMap<String, u32> {
        let mut all = BTreeMap::new();
        let names: std::collections::BTreeSet<ObjectName> =
            self.store.service_names().cloned().chain(self.last.keys().filter_map(|key| slice_service(key))).collect();
        for name in names {
            let objects = self.store.objects(&name);
            all.extend(objects.service.map(|service| reading(&KubeObject::Service(service.clone()))));
            let slices = objects.slices.into_iter();
            all.extend(slices.map(|slice| reading(&KubeObject::EndpointSlice(slice.clone()))));
        }
        all.extend(self.store.node().map(|node| reading(&KubeObject::Node(node.clone()))));
        all.extend(self.store.service_cidrs().map(|cidr| reading(&KubeObject::ServiceCidr(cidr.clone()))));
        all
    }

    fn take(&mut self, input: Input) {
        let Input::Events(events) = input else { panic!("{input:?}") };
        events.into_iter().for_each(|event| self.apply(event));
    }

    fn apply(&mut self, event: Event) {
        self.events += 1;
        if let Event::Upsert(object) = &event {
            let (key, number) = reading(object);
            let known = self.last.insert(key.clone(), number);
            assert!(known.is_none_or(|known| number >= known), "{key} goes back from {known:?} to {number}");
            if known == Some(number) {
                let dirty = self.store.apply(event);
                assert!(dirty.is_empty(), "{key} {number} a second time, and it has an effect: {dirty:?}");
                return;
            }
        }
        if let Event::Synced(kind) = &event {
            self.synced.push(*kind);
        }
        self.effects += usize::from(!self.store.apply(event).is_empty());
    }

    /// Number of attempts to connect so far that reached no server, by the metric.
    pub(crate) fn unreachable_attempts(&self) -> f64 {
        let page = self.metrics.encode();
        let line =
            page.lines().find(|line| line.starts_with("kubeproxy_source_connections_total{result=\"unreachable\"}"));
        line.map_or(0.0, |line| line.rsplit(' ').next().expect("a value").parse().expect("a number"))
    }

    /// The source's log.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.0.lock().expect("the log")).into_owned()
    }

    /// Lines of the log that contain all of these texts.
    pub(crate) fn lines(&self, parts: &[&str]) -> Vec<String> {
        let fits = |line: &&str| parts.iter().all(|part| line.contains(part));
        self.log().lines().filter(fits).map(str::to_owned).collect()
    }

    /// Freshness of a kind.
    pub(crate) fn fresh(&self, kind: Kind) -> Fresh {
        let mut all = self.freshness.now(Instant::now());
        all.find_map(|(of, fresh)| (of == kind).then_some(fresh)).expect("a kind that is followed")
    }
}

/// The Service of a slice by its key: they have the same name.
fn slice_service(key: &str) -> Option<ObjectName> {
    let (namespace, name) = key.strip_prefix("EndpointSlice ")?.split_once('/')?;
    Some(ObjectName::new(namespace, name))
}

// === impl Log ===

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the log").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
