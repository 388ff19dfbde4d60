//! The cluster that the tests share.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferry_lab::kubernetes::{self, ClusterUser};
use ferry_lab::nft::{self, Ruleset};
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::patience::{slowly, until};
use ferry_lab::probe::Hammer;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, Host, Kubernetes, Lab, LabMachine, ProbeTally, Protocol, ProxyProcess, TestService};

/// The program under test.
pub(crate) const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");
/// Health check port of the first proxy.
pub(crate) const HEALTHZ: u16 = 10256;
/// Time without a commit after which none is to come.
const SETTLES: Duration = Duration::from_millis(500);
/// Time limit until none is to come.
const SETTLED_WITHIN: Duration = Duration::from_secs(20);

/// The lab and the API server.
pub(crate) struct Cluster {
    pub(crate) lab: &'static Lab,
    pub(crate) api: Kubernetes<'static>,
}

/// The cluster, started once: without objects of earlier tests, rules, or processes except for the API server.
pub(crate) fn cluster() -> MutexGuard<'static, Cluster> {
    static CLUSTER: OnceLock<Mutex<Cluster>> = OnceLock::new();
    let cluster = CLUSTER.get_or_init(|| {
        kubernetes::build();
        let lab: &Lab = Box::leak(Box::new(Lab::new()));
        let start = Instant::now();
        let api = Kubernetes::start(lab.host(LabMachine::Node), &folder("api"));
        println!("API server ready after {:?}", start.elapsed());
        Mutex::new(Cluster { lab, api })
    });
    let cluster = cluster.lock().unwrap_or_else(PoisonError::into_inner);
    nft::load(cluster.node(), "flush ruleset");
    cluster.api.clear();
    cluster
}

/// A folder of this test binary, by the name of its user.
pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cluster").join(name)
}

/// A line of a configuration: the kubeconfig.
pub(crate) fn connection(kubeconfig: &Path) -> String {
    format!("clientConnection: {{kubeconfig: {}}}", kubeconfig.display())
}

/// Runs the executable over a configuration with these further lines and, behind them, further arguments.
pub(crate) fn start<'a>(host: &'a Host, name: &str, config: &ProxyConfig, arguments: &[&str]) -> ProxyProcess<'a> {
    let folder = folder(name);
    std::fs::create_dir_all(&folder).expect("making a folder");
    let file = folder.join("config.yaml");
    config.write(&file);
    let file = file.display().to_string();
    ProxyProcess::start_with(host, EXECUTABLE, &folder, &[&["--config", &file, "-v=2"], arguments].concat())
}

/// Waits for a condition; returns the time it took.
///
/// # Panics
/// If it isn't in time, with the proxy's log.
pub(crate) fn wait(proxy: &mut ProxyProcess<'_>, what: &str, is_so: impl FnMut(&ProxyProcess<'_>) -> bool) -> Duration {
    let start = Instant::now();
    proxy.wait_for(what, is_so);
    start.elapsed()
}

// === impl Cluster ===

impl Cluster {
    /// The machine that the proxy runs on.
    pub(crate) fn node(&self) -> &'static Host {
        self.lab.host(LabMachine::Node)
    }

    /// A proxy with the kubeconfig of a kube-proxy; doesn't wait for anything.
    pub(crate) fn start(&self, name: &str) -> ProxyProcess<'static> {
        self.start_with(name, "")
    }

    /// The same with further lines of the configuration.
    pub(crate) fn start_with(&self, name: &str, more: &str) -> ProxyProcess<'static> {
        let more = format!("{}\n{more}", connection(&self.api.kubeconfig(ClusterUser::Certificate)));
        start(self.node(), name, &ProxyConfig::with(&more), &[])
    }

    /// Creates a service with ready endpoints at these places.
    pub(crate) fn create(&self, service: &TestService, at: &[LabMachine]) {
        self.api.create_service(service);
        self.api.create_endpoints(&service.endpoints(8080, at));
    }

    /// Replaces the endpoints of a service.
    pub(crate) fn move_to(&self, service: &TestService, at: &[LabMachine]) {
        for slice in Family::ALL.into_iter().filter_map(|family| service.endpoints(8080, at).slice(family)) {
            self.api.replace(&slice);
        }
    }

    /// Connections from a pod to the cluster IP of this number.
    pub(crate) fn ask(&self, family: Family, number: u16, times: usize) -> ProbeTally {
        let client = self.lab.from(LabMachine::PodB).patience(Duration::from_millis(300));
        client.tcp(at_cluster_ip(family, number), times)
    }

    /// True if exactly these endpoints answer there, in both families.
    pub(crate) fn serves(&self, number: u16, endpoints: &[&str]) -> bool {
        Family::ALL.into_iter().all(|family| {
            let tally = self.ask(family, number, 4 * endpoints.len().pow(2));
            tally.all_answered() && tally.endpoints().into_keys().eq(endpoints.iter().copied())
        })
    }

    /// Waits until exactly these endpoints answer.
    pub(crate) fn wait(&self, proxy: &mut ProxyProcess<'_>, number: u16, endpoints: &[&str]) -> Duration {
        wait(proxy, &format!("{endpoints:?} at service {number}"), |_| self.serves(number, endpoints))
    }

    /// The node's rules, as far as two proxies with different histories must agree.
    pub(crate) fn rules(&self) -> Ruleset {
        // A set that the kernel arranges anew, as it does a moment after a large load, may be listed in part.
        let read = || Ruleset::of(self.node()).essence();
        let mut last = read();
        until("rules that rest", Duration::from_secs(5), || {
            std::thread::sleep(Duration::from_millis(100));
            let before = std::mem::replace(&mut last, read());
            before == last
        });
        last
    }

    /// Generation of nf_tables: the number of commits by any process.
    pub(crate) fn generation(&self) -> u32 {
        nft::generation(self.node())
    }

    /// The generation after the last commit for what has happened so far: that of the other family, and of what goes only once nothing
    /// refers to it any more, may come after a connection already shows a change.
    pub(crate) fn settled_generation(&self) -> u32 {
        let begun = Instant::now();
        let (mut settled, mut since) = (self.generation(), begun);
        while since.elapsed() < slowly(SETTLES) {
            assert!(begun.elapsed() < slowly(SETTLED_WITHIN), "commits go on, {settled} was the last");
            std::thread::sleep(SETTLES / 10);
            let generation = self.generation();
            if generation != settled {
                (settled, since) = (generation, Instant::now());
            }
        }
        settled
    }

    /// Asserts that no process commits for a while.
    pub(crate) fn assert_quiet(&self, what: &str, proxy: &ProxyProcess<'_>, for_so_long: Duration) {
        let before = self.generation();
        std::thread::sleep(for_so_long);
        assert_eq!(self.generation(), before, "{what}: something was committed\n{}", proxy.log());
    }
}

/// The status of an answer over HTTP; 0 if there is none.
pub(crate) fn status(proxy: &ProxyProcess<'_>, path: &str) -> u16 {
    let answer = proxy.get(HEALTHZ, path).unwrap_or_default();
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// Connections without a pause from outside to the cluster IP of this number, in both families.
pub(crate) fn hammer(cluster: &Cluster, number: u16) -> Vec<Hammer> {
    let client = cluster.lab.from(LabMachine::Client).patience(Duration::from_millis(900));
    Family::ALL.map(|family| client.hammer(Protocol::Tcp, at_cluster_ip(family, number))).into()
}

/// Ends them, and asserts that all were answered.
pub(crate) fn assert_unharmed(what: &str, hammers: Vec<Hammer>) {
    for hammer in hammers {
        let tally = ProbeTally(hammer.stop().into_iter().map(|(_, outcome)| outcome).collect());
        println!("{what}: {} connections", tally.0.len());
        assert!(tally.all_answered(), "{what}: {tally}");
    }
}
