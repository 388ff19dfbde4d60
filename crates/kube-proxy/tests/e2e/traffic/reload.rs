//! Changes of the configuration of a running proxy while clients connect: the mode, other settings, and files that are invalid.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ferry_lab::lab::node_addresses;
use ferry_lab::objects::{at_cluster_ip, at_node_port};
use ferry_lab::patience::slowly;
use ferry_lab::probe::Hammer;
use ferry_lab::proxy::{IPTABLES, NFTABLES, ProxyConfig};
use ferry_lab::stage::ManifestDirectory;
use ferry_lab::{Family, Lab, LabMachine, Manifests, ProbeOutcome, Protocol, ProxyProcess, Stage, TestService};

use crate::support::{EXECUTABLE, alone, folder, fresh};

/// Below TCP's retransmission timeout of 1 s, so that a lost packet is detected.
const NO_RETRY: Duration = Duration::from_millis(900);
/// Changes of mode, and the rounds of other changes.
const CHANGES: usize = 20;
const SWAPS: usize = 100;
/// The pause after a swap. Content counts once it has not changed for 200 ms.
const PAUSE: Duration = Duration::from_millis(60);
/// The pause after every twentieth swap: its content counts, and the next swaps come while a run starts with it.
const MIDDLE_PAUSE: Duration = Duration::from_millis(300);
/// The fewest runs: one after each of the fifteen swaps that are waited for, and one for the last content.
const FEWEST_RUNS: usize = 16;
/// Time limit of a run while content keeps changing: 2 s after the first change it counts, unless it is invalid then.
const AMID_CHANGES: Duration = Duration::from_secs(10);
/// The node port, which clients use at the node's primary address.
const NODE_PORT: u16 = 30046;
/// Node ports at both addresses of the node.
const AT_BOTH: &str = "nodePortAddresses: [203.0.113.0/24, 192.168.9.0/24, \"fd00:cc::/64\", \"fd00:9::/64\"]";
/// Node ports at the primary address alone, which is the default, too.
const AT_PRIMARY: &str = "nodePortAddresses: [203.0.113.0/24, \"fd00:cc::/64\"]";

fn manifests() -> Manifests {
    Manifests::new().with(TestService::new("busy", 46).node_port(NODE_PORT), &[LabMachine::PodA, LabMachine::Far])
}

fn hammers(lab: &Lab) -> Vec<Hammer> {
    let of = |family| {
        let client = |place| lab.from(place).patience(NO_RETRY);
        [
            client(LabMachine::PodB).hammer(Protocol::Tcp, at_cluster_ip(family, 46)),
            client(LabMachine::Client).hammer(Protocol::Tcp, at_node_port(family, NODE_PORT)),
        ]
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

fn assert_unharmed(what: &str, hammers: Vec<Hammer>) {
    let outcomes: Vec<_> = hammers.into_iter().flat_map(Hammer::stop).collect();
    let is_answered = |outcome: &ProbeOutcome| matches!(outcome, ProbeOutcome::Answered(_));
    let failed: Vec<_> = outcomes.iter().filter(|(_, outcome)| !is_answered(outcome)).collect();
    println!("{what}: {} connections, {} failed", outcomes.len(), failed.len());
    assert!(outcomes.len() > 100 && failed.is_empty(), "{failed:?}");
}

/// True if the node's primary address serves the node port, and its second one serves or refuses it as wanted.
fn node_port_is_at_second_address(lab: &Lab, wanted: bool) -> bool {
    Family::ALL.into_iter().all(|family| {
        let client = lab.from(LabMachine::Client);
        let [first, second] = node_addresses(family).map(|address| client.tcp(SocketAddr::new(address, NODE_PORT), 3));
        let as_wanted = if wanted { second.all_answered() } else { second.all(&ProbeOutcome::Refused) };
        first.all_answered() && as_wanted
    })
}

/// The number of runs so far.
fn runs(proxy: &ProxyProcess<'_>) -> usize {
    proxy.log().matches("Starting kube-proxy").count()
}

#[test]
fn changes_of_mode_in_the_running_process_refuse_nothing() {
    // In a lab of its own: mode iptables leaves the tables of its tool.
    let (_turn, lab) = (alone(), Lab::new());
    let mut stage = fresh(&lab, "modes-in-one-process", &manifests());
    let (hammers, begun) = (hammers(&lab), Instant::now());
    for change in 0..CHANGES {
        let mode = if change % 2 == 0 { IPTABLES } else { NFTABLES };
        let (before, removed) =
            (runs(&stage.proxy), stage.proxy.log().matches("Removed rules of an earlier run").count());
        stage.reconfigure(&ProxyConfig { mode, ..ProxyConfig::default() });
        stage.proxy.wait_for("a run in the new mode", |proxy| {
            runs(proxy) > before && proxy.log().matches("Removed rules of an earlier run").count() >= removed + 2
        });
    }
    println!("{CHANGES} changes of mode in {:?}", begun.elapsed());
    assert_unharmed("changes of mode", hammers);
    assert_eq!(runs(&stage.proxy), CHANGES + 1, "in one process");
}

/// A configuration that is invalid, or differs from all others. Those with a longer pause change the rules each time.
fn swapped(swap: usize) -> ProxyConfig {
    if swap % 5 == 3 {
        return ProxyConfig::with("mode: [");
    }
    let addresses = if swap.is_multiple_of(2) { AT_BOTH } else { AT_PRIMARY };
    ProxyConfig::with(&format!("configSyncPeriod: {}s\n{addresses}", 900 + swap))
}

/// Waits after a swap: after every fifth until a run has started, after the others for a time.
fn pause_after(swap: usize, stage: &mut Stage<'_>, before: usize) {
    match (swap % 5, swap % 20) {
        (_, 19) => std::thread::sleep(MIDDLE_PAUSE),
        (4, _) => stage.proxy.wait_for("a run after a swap", |proxy| runs(proxy) > before),
        _ => std::thread::sleep(PAUSE),
    }
}

/// Swaps configurations without a longer pause until a run starts all the same.
fn start_amid_changes(stage: &mut Stage<'_>) {
    let (before, begun) = (runs(&stage.proxy), Instant::now());
    let mut swap = SWAPS;
    while runs(&stage.proxy) == before {
        assert!(begun.elapsed() < slowly(AMID_CHANGES), "no run amid changes\n{}", stage.proxy.log());
        stage.reconfigure(&swapped(swap));
        std::thread::sleep(PAUSE);
        swap += 1;
    }
    println!("a run amid changes after {:?}", begun.elapsed());
}

#[test]
fn swapped_configurations_fail_no_connection_and_the_last_one_runs() {
    let (_turn, lab) = (alone(), Lab::new());
    let mut stage = fresh(&lab, "swapped-configurations", &manifests());
    let hammers = hammers(&lab);
    start_amid_changes(&mut stage);
    let before = runs(&stage.proxy);
    for swap in 0..SWAPS {
        let seen = runs(&stage.proxy);
        stage.reconfigure(&swapped(swap));
        pause_after(swap, &mut stage, seen);
    }
    stage.reconfigure(&ProxyConfig::with(&format!("configSyncPeriod: 777s\n{AT_BOTH}")));
    stage.proxy.wait_for("the last configuration", |proxy| proxy.log().contains("changed=\"configSyncPeriod: 12m57s"));
    stage.proxy.wait_until_synced(&Family::ALL);
    stage.proxy.wait_for("its node ports", |_| node_port_is_at_second_address(&lab, true));
    let led_to = runs(&stage.proxy) - before;
    println!("{SWAPS} swaps led to {led_to} runs");
    // Contents that have a middle pause, and those that start-ups find, have runs beyond these.
    assert!(led_to >= FEWEST_RUNS, "{led_to}");
    assert_unharmed("swaps of the configuration", hammers);
}

/// A proxy over manifests without a flag for the verbosity, which would replace that of its file.
struct Site<'a> {
    lab: &'a Lab,
    proxy: ProxyProcess<'a>,
    directory: ManifestDirectory,
}

/// A setting, and its effect in the running process. The rest of the configuration is the default.
struct Setting {
    name: &'static str,
    cluster_cidr: &'static str,
    /// further lines of the configuration file
    more: &'static str,
    is_in_force: fn(&mut Site<'_>) -> bool,
}

/// The pod ranges of the lab, of both families.
const PODS: &str = "10.244.0.0/16,fd00:10:244::/56";
/// Ranges without a pod.
const OTHERS: &str = "10.99.0.0/16,fd00:99::/64";
/// The default ports of health checks and of metrics.
const DEFAULTS: [u16; 2] = [10256, 10249];
/// A minSyncPeriod that is longer than its default.
const LONG_PERIOD: Duration = Duration::from_secs(3);

/// Each differs from the one before in its effect, too.
const SETTINGS: &[Setting] = &[
    Setting {
        name: "healthzBindAddress",
        cluster_cidr: PODS,
        more: "healthzBindAddress: 127.0.0.1:10301",
        is_in_force: |site| site.answers(10301, "/healthz") && !site.answers(DEFAULTS[0], "/healthz"),
    },
    Setting {
        name: "metricsBindAddress",
        cluster_cidr: PODS,
        more: "metricsBindAddress: 127.0.0.1:10302",
        is_in_force: |site| site.answers(10302, "/metrics") && !site.answers(DEFAULTS[1], "/metrics"),
    },
    Setting {
        name: "the default addresses",
        cluster_cidr: PODS,
        more: "",
        is_in_force: |site| site.answers(DEFAULTS[0], "/healthz") && site.answers(DEFAULTS[1], "/metrics"),
    },
    Setting {
        name: "nodePortAddresses of both networks",
        cluster_cidr: PODS,
        more: AT_BOTH,
        is_in_force: |site| node_port_is_at_second_address(site.lab, true),
    },
    Setting {
        name: "nodePortAddresses of the primary network",
        cluster_cidr: PODS,
        more: AT_PRIMARY,
        is_in_force: |site| node_port_is_at_second_address(site.lab, false),
    },
    Setting { name: "clusterCIDR", cluster_cidr: OTHERS, more: "", is_in_force: |site| site.pods_are(false) },
    Setting {
        name: "detectLocalMode InterfaceNamePrefix",
        cluster_cidr: OTHERS,
        more: "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: vpod}",
        is_in_force: |site| site.pods_are(true),
    },
    Setting {
        name: "detectLocalMode BridgeInterface",
        cluster_cidr: OTHERS,
        more: "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: vcli}",
        is_in_force: |site| site.pods_are(false),
    },
    Setting {
        name: "verbosity of objects",
        cluster_cidr: PODS,
        more: "logging: {verbosity: 4}",
        is_in_force: |site| site.logs_of_a_change("\"Received object\""),
    },
    Setting {
        name: "verbosity of passes",
        cluster_cidr: PODS,
        more: "logging: {verbosity: 2}",
        is_in_force: |site| !site.logs_of_a_change("\"Received object\"") && site.logs_of_a_change("\"Synced\""),
    },
    Setting {
        name: "verbosity of nothing",
        cluster_cidr: PODS,
        more: "logging: {verbosity: 0}",
        is_in_force: |site| !site.logs_of_a_change("\"Synced\""),
    },
];

// === impl Site ===

impl<'a> Site<'a> {
    fn new(lab: &'a Lab, name: &str) -> Self {
        let mut directory = ManifestDirectory::new(&folder(name));
        directory.write(&manifests());
        directory.configure(&ProxyConfig::default());
        let path = |path: &Path| path.display().to_string();
        let (file, objects) = (path(&folder(name).join("config.yaml")), path(&directory.manifests()));
        let arguments = ["--config", &file, "--manifests", &objects];
        let proxy = ProxyProcess::start_with(lab.host(LabMachine::Node), EXECUTABLE, &folder(name), &arguments);
        let mut site = Self { lab, proxy, directory };
        site.wait();
        site
    }

    /// Replaces the configuration, and waits until a new run in the process has synced.
    fn reconfigure(&mut self, what: &str, config: &ProxyConfig) {
        let before = runs(&self.proxy);
        self.directory.configure(config);
        self.proxy.wait_for(what, |proxy| runs(proxy) > before);
        self.change();
    }

    /// Waits until the manifests written last are in force.
    fn wait(&mut self) {
        for at in Family::ALL.map(|family| self.directory.marker(family)) {
            let client = self.lab.from(LabMachine::Node).patience(slowly(Duration::from_millis(100)));
            self.proxy.wait_for("manifests in force", |_| client.tcp(at, 1).all_answered());
        }
    }

    /// Changes a Service, and waits until that is in force.
    fn change(&mut self) {
        self.directory.write(&manifests());
        self.wait();
    }

    fn answers(&self, port: u16, path: &str) -> bool {
        self.proxy.get(port, path).is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    /// True if connections from a pod count as such of a pod of this node, or as those of others: an endpoint sees their sources.
    fn pods_are(&self, local: bool) -> bool {
        Family::ALL.into_iter().all(|family| {
            let tally = self.lab.from(LabMachine::PodB).tcp(at_cluster_ip(family, 46), 8);
            let is_kept = |source| source == LabMachine::PodB.address(family);
            tally.all_answered() && tally.sources().into_iter().all(|source| is_kept(source) == local)
        })
    }

    /// True if the log has this message about a change that is in force, once its sync passes are reported.
    fn logs_of_a_change(&mut self, message: &str) -> bool {
        let (logged, before) = (self.proxy.log().len(), passes(&self.proxy));
        self.change();
        // The report of the second change's passes follows that of the first one's.
        self.change();
        self.proxy.wait_for("reports", |proxy| passes(proxy) >= before + 4.0);
        self.proxy.log().get(logged..).is_some_and(|log| log.contains(message))
    }
}

/// Sync passes of both families that are reported.
fn passes(proxy: &ProxyProcess<'_>) -> f64 {
    proxy.metric("kubeproxy_sync_proxy_rules_duration_seconds_count", &[])
}

#[test]
fn changed_settings_take_effect_in_the_running_process() {
    let (_turn, lab) = (alone(), Lab::new());
    let mut site = Site::new(&lab, "settings");
    let hammers = hammers(&lab);
    for Setting { name, cluster_cidr, more, is_in_force } in SETTINGS {
        assert!(!is_in_force(&mut site), "{name} has its effect already\n{}", site.proxy.log());
        let config = ProxyConfig { cluster_cidr: Some((*cluster_cidr).to_owned()), ..ProxyConfig::with(more) };
        site.reconfigure(name, &config);
        assert!(is_in_force(&mut site), "{name} has no effect\n{}", site.proxy.log());
    }
    let period = format!("{NFTABLES}: {{minSyncPeriod: {}s}}", LONG_PERIOD.as_secs());
    site.reconfigure("minSyncPeriod", &ProxyConfig::with(&period));
    let begun = Instant::now();
    site.change();
    site.change();
    assert!(begun.elapsed() >= LONG_PERIOD, "two syncs within {:?}", begun.elapsed());
    assert_unharmed("changes of settings", hammers);
    assert_eq!(runs(&site.proxy), 1 + SETTINGS.len() + 1, "in one process");
}
