//! The stage that the groups share, clients with one source port, and the connection table of the node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ferry_kernel::conntrack::testing::DestroyMonitor;
use ferry_kernel::conntrack::{ConntrackSocket, Entry, Filter};
use ferry_kube_proxy::planes;
use ferry_lab::iptables;
use ferry_lab::patience::until;
use ferry_lab::proxy::{IPTABLES, IPVS, NFTABLES, ProxyConfig};
use ferry_lab::{Family, Lab, LabMachine, Manifests, Mode, ProbeClient, ProbeOutcome, Protocol, Stage};

/// The program under test.
pub(crate) const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");
/// Time limit for flows to follow a change; it takes milliseconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// The lab, built once, with a proxy that serves these manifests. Groups take turns.
pub(crate) fn stage(manifests: &Manifests) -> MutexGuard<'static, Stage<'static>> {
    stage_in(Mode::NFTABLES, manifests)
}

/// The same in a mode.
pub(crate) fn stage_in(mode: Mode, manifests: &Manifests) -> MutexGuard<'static, Stage<'static>> {
    stage_with(mode, "", manifests)
}

/// The same with further lines of the configuration.
pub(crate) fn stage_with(mode: Mode, more: &str, manifests: &Manifests) -> MutexGuard<'static, Stage<'static>> {
    static STAGE: OnceLock<Mutex<Stage<'static>>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| {
        let lab: &Lab = Box::leak(Box::new(Lab::new()));
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("flows");
        prepare(lab, mode);
        Mutex::new(Stage::new(lab, EXECUTABLE, &folder, config(mode, more), manifests))
    });
    let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    switch(&mut stage, mode, more, manifests);
    // Mode nftables has two rule domains, mode iptables its ipsets and one of the two for its tool's variants, mode ipvs those of mode nftables,
    // too.
    let own = match mode.name {
        IPTABLES | NFTABLES => 2,
        IPVS => 3,
        _ => 1,
    };
    stage.wait_for_hand_over(planes::domains().count() - own);
    stage
}

/// Replaces the proxy by one of this mode, with further lines of the configuration, if the running one is another.
pub(crate) fn switch(stage: &mut Stage<'_>, mode: Mode, more: &str, manifests: &Manifests) {
    if prepare(stage.lab, mode) {
        // The configuration names no variant of the tool.
        stage.kill();
    }
    stage.reset(&config(mode, more), manifests);
}

fn config(mode: Mode, more: &str) -> ProxyConfig {
    ProxyConfig { mode: mode.name, more: more.to_owned(), ..ProxyConfig::default() }
}

/// Marks the mode's variant of the tool as the kubelet's. True if another one was marked.
fn prepare(lab: &Lab, mode: Mode) -> bool {
    mode.backend.is_some_and(|backend| iptables::hint(lab.host(LabMachine::Node), backend))
}

/// A client that sends from one port all the time.
pub(crate) struct Asker<'a> {
    client: ProbeClient<'a>,
    protocol: Protocol,
    /// where it sends from
    pub(crate) source: SocketAddr,
    /// where it sends to
    pub(crate) to: SocketAddr,
}

// === impl Asker ===

impl<'a> Asker<'a> {
    /// From a place, to an address. No two have the same port.
    pub(crate) fn new(lab: &'a Lab, place: LabMachine, protocol: Protocol, to: SocketAddr) -> Self {
        static PORT: AtomicU16 = AtomicU16::new(21000);
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        let source = SocketAddr::new(place.address(Family::of(to.ip())), port);
        let client = lab.from(place).bound_to_port(source).patience(Duration::from_millis(200));
        Self { client, protocol, source, to }
    }

    /// Sends once, and waits a little for what comes.
    pub(crate) fn ask(&self) -> ProbeOutcome {
        self.client.ask(self.protocol, self.to, 1).0.remove(0)
    }

    /// Sends once; returns the endpoint that answered.
    pub(crate) fn endpoint(&self) -> Option<String> {
        match self.ask() {
            ProbeOutcome::Answered(answer) => Some(answer.endpoint),
            ProbeOutcome::Refused | ProbeOutcome::Reset | ProbeOutcome::Timeout | ProbeOutcome::Failed(_) => None,
        }
    }

    /// Sends until an endpoint answers, and returns it. On a busy machine an answer may be late.
    pub(crate) fn answer(&self) -> String {
        let mut answer = None;
        until(&format!("{} answers", self.to), LIMIT, || {
            answer = self.endpoint();
            answer.is_some()
        });
        answer.expect("somebody has answered")
    }

    /// Sends until no endpoint answers, and the node has no translated conntrack entry of the flow.
    pub(crate) fn gets_lost(&self, lab: &Lab) {
        until(&format!("{} reaches nobody", self.to), LIMIT, || {
            let nobody = self.endpoint().is_none();
            nobody && self.entry(lab).is_none_or(|entry| entry.reply.from() == entry.original.to())
        });
    }

    /// Its conntrack entry on the node.
    pub(crate) fn entry(&self, lab: &Lab) -> Option<Entry> {
        let (source, to) = (self.source, self.to);
        let filter = Filter {
            family: Family::of(to.ip()),
            protocol: self.protocol.number(),
            destination: Some(to.ip()),
            port: Some(to.port()),
            unanswered: false,
        };
        lab.host(LabMachine::Node).run(move || {
            let mut found = None;
            let mut socket = ConntrackSocket::open().expect("connection tracking");
            let list = socket.dump(&filter, &mut |entry| {
                if entry.original.from() == source {
                    found = Some(*entry);
                }
            });
            list.expect("the list of what the node remembers");
            found
        })
    }
}

/// Reports which flows of the node have ended.
#[derive(Clone)]
pub(crate) struct EndedFlows(Arc<Mutex<DestroyMonitor>>);

// === impl EndedFlows ===

impl EndedFlows {
    /// Subscribes; covers flows that begin from now on.
    pub(crate) fn new(lab: &Lab) -> Self {
        let monitor = lab.host(LabMachine::Node).run(|| DestroyMonitor::open().expect("subscribing to ends of flows"));
        Self(Arc::new(Mutex::new(monitor)))
    }

    /// Of these clients, those whose flow has ended since the last time.
    pub(crate) fn ended<'a>(&self, askers: &[&'a Asker<'_>]) -> Vec<&'a SocketAddr> {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner).read().expect("all that ended");
        let has_ended = |asker: &Asker<'_>| {
            ended.iter().any(|entry| entry.original.from() == asker.source && entry.original.to() == asker.to)
        };
        askers.iter().filter(|asker| has_ended(asker)).map(|asker| &asker.source).collect()
    }
}

/// Number of deleted conntrack entries by the proxy's metric.
pub(crate) fn removed(stage: &Stage<'_>) -> f64 {
    stage.proxy.metric("kubeproxy_conntrack_reconciler_deleted_entries_total", &[])
}

/// Number of sweeps by the proxy's metric.
pub(crate) fn sweeps(stage: &Stage<'_>) -> f64 {
    stage.proxy.metric("kubeproxy_conntrack_reconciler_sync_duration_seconds_count", &[])
}

/// Waits until no sweep is pending: the last one comes 3 s after the one before.
pub(crate) fn rest(stage: &Stage<'_>) {
    let mut seen = sweeps(stage);
    loop {
        std::thread::sleep(Duration::from_millis(3600));
        let now = sweeps(stage);
        if now == seen {
            return;
        }
        seen = now;
    }
}

/// Distribution of measured times, as text.
pub(crate) fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |index: usize| times.get(index).copied().unwrap_or_default();
    format!("fastest {:?}, median {:?}, slowest {:?}", at(0), at(times.len() / 2), at(times.len().saturating_sub(1)))
}
