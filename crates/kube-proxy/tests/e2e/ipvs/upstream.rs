//! Upstream's proxy in mode ipvs and Ferry take over from each other on one node.
//!
//! Needs upstream's executable: `tests/lanes/kubernetes/kube-api build` makes it before the machine is booted. Both proxies read
//! the same configuration file and the same objects, of a scripted API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ferry_lab::corpus::ObjectServer;
use ferry_lab::iptables::{self, Backend, IptablesRules};
use ferry_lab::kubernetes;
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::{slowly, until};
use ferry_lab::probe::{Echo, Hammer, Held};
use ferry_lab::{
    Checks, Family, Host, Lab, LabMachine, Manifests, ProbeOutcome, Protocol, ProxyProcess, SeenSource, TestService,
};

use crate::support::{EXECUTABLE, Statistics, counted, devices, folder, ipvs, leftovers, run_to_end, servers, settled};

/// The running proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Upstream,
    Ours,
}

/// The node with clients and pods, and the API server that both proxies read.
struct Scene<'a> {
    lab: &'a Lab,
    server: ObjectServer,
    folder: PathBuf,
    started: usize,
    _echo: [Echo; 2],
}

/// Clients that connect without a pause, and connections that stay.
struct Traffic {
    begun: Instant,
    hammers: Vec<(LabMachine, SocketAddr, Hammer)>,
    held: Vec<Held>,
}

/// What a take-over must leave as it is.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    /// the virtual servers
    servers: BTreeSet<String>,
    /// the number of connections that the servers of an idle Service have counted: of a new server it is 0
    counted: BTreeMap<String, u64>,
    /// the addresses of the device
    addresses: BTreeSet<String>,
    /// the device with its number
    devices: Vec<String>,
}

/// Endpoints of most Services; connections from outside to the second one need masquerading.
const PODS: [LabMachine; 2] = [LabMachine::PodA, LabMachine::Far];
/// The numbers of the Services: hammered, held, and without traffic during a take-over.
const BUSY: u16 = 1;
const HELD: u16 = 2;
const IDLE: u16 = 3;
/// The port of the echo servers in pods.
const ECHO: u16 = 8180;
/// The pause of each client: upstream's proxy needs the processor, too.
const PAUSE: Duration = Duration::from_millis(20);
/// Time limit of a first sync pass. Upstream's runs a process for each entry of an ipset.
const SYNCED: Duration = Duration::from_secs(60);
/// Time limit of the removal of another proxy's rules: it is tried again after up to a minute.
const CLEARED: Duration = Duration::from_secs(30);
/// The chains of a kubelet and of a network plugin, which no proxy may remove: table, name.
const OF_OTHERS: [(&str, &str); 4] = [
    ("mangle", iptables::HINT),
    ("mangle", "KUBE-KUBELET-CANARY"),
    ("filter", "KUBE-FIREWALL"),
    ("nat", "NETWORK-PLUGIN"),
];

// === impl Who ===

impl Who {
    fn executable(self) -> String {
        match self {
            Self::Upstream => kubernetes::upstream(),
            Self::Ours => EXECUTABLE.to_owned(),
        }
    }
}

// === impl Scene ===

impl<'a> Scene<'a> {
    fn new(lab: &'a Lab, name: &str) -> Self {
        kubernetes::build();
        let node = lab.host(LabMachine::Node);
        of_others(node);
        let mut server = node.run(ObjectServer::start);
        server.put(&manifests().to_string(), "");
        let echo = PODS.map(|place| {
            let at = Family::ALL.map(|family| SocketAddr::new(place.address(family), ECHO));
            Echo::start(lab.host(place), &at)
        });
        Self { lab, server, folder: folder(name), started: 0, _echo: echo }
    }

    fn node(&self) -> &'a Host {
        self.lab.host(LabMachine::Node)
    }

    /// Starts an executable with these arguments.
    fn start(&mut self, who: Who, arguments: &[&str]) -> ProxyProcess<'a> {
        let (folder, file) = self.configuration();
        ProxyProcess::start_with(self.node(), &who.executable(), &folder, &[arguments, &["--config", &file]].concat())
    }

    /// Starts ours as in an image from scratch: `PATH` has no program.
    fn serve_without_tools(&mut self) -> ProxyProcess<'a> {
        let (folder, file) = self.configuration();
        let path = format!("PATH={}", folder.display());
        let arguments = [path.as_str(), EXECUTABLE, "-v=2", "--config", &file];
        synced(ProxyProcess::start_by(self.node(), "env", &folder, &arguments))
    }

    /// A folder of its own for the next proxy, and the configuration file in it.
    fn configuration(&mut self) -> (PathBuf, String) {
        self.started += 1;
        let folder = self.folder.join(self.started.to_string());
        std::fs::create_dir_all(&folder).expect("making a folder");
        let (file, kubeconfig) = (folder.join("config.yaml"), folder.join("kubeconfig"));
        self.server.kubeconfig(&kubeconfig);
        let client =
            format!("clientConnection: {{kubeconfig: {}, contentType: application/json}}", kubeconfig.display());
        ipvs(&client).write(&file);
        (folder, file.display().to_string())
    }

    /// Over upstream's virtual servers a plan creates the table and lists no server (docs/cli.md).
    fn assert_adoption_is_planned(&mut self) {
        let mut plan = self.start(Who::Ours, &["plan"]);
        let (status, text) = (plan.wait(), plan.log());
        assert_eq!(status.code(), Some(2), "{text}");
        assert_eq!(text.matches("    create table kube-proxy ").count(), Family::ALL.len(), "{text}");
        let servers = text.lines().filter_map(|line| line.split_once(" virtual server "));
        let changed: Vec<&str> = servers.map(|(_, server)| server).filter(|server| !is_link_local(server)).collect();
        assert!(changed.is_empty(), "{changed:?}: {text}");
    }

    /// Starts a proxy and waits for its first sync pass, of all objects.
    fn serve(&mut self, who: Who) -> ProxyProcess<'a> {
        synced(self.start(who, &["-v=2"]))
    }

    fn traffic(&self) -> Traffic {
        let start = |(place, to)| {
            let client = self.lab.from(place).patience(slowly(Duration::from_secs(3))).pause(slowly(PAUSE));
            (place, to, client.hammer(Protocol::Tcp, to))
        };
        let hold = |(place, at)| Held::open(self.lab.host(place), &[at], 1);
        let held = clients(HELD).into_iter().map(hold).collect();
        let hammers = clients(BUSY).into_iter().map(start).collect();
        Traffic { begun: Instant::now(), hammers, held }
    }

    /// All connections to all Services.
    fn check(&self, who: Who) {
        let mut checks = Checks::new();
        for (place, at) in [BUSY, IDLE].into_iter().flat_map(clients) {
            let tally = self.lab.from(place).tcp(at, 6);
            checks.served(
                &format!("{who:?}: {at} from {place:?}"),
                &tally,
                &["pod-a:8080", "far:8080"],
                SeenSource::Any,
            );
        }
        for family in Family::ALL {
            let client = self.lab.from(LabMachine::Client);
            let what = |text: &str| format!("{who:?}: {family} {text}");
            let (own, local) = (SeenSource::Kept(LabMachine::Client.address(family)), &["pod-a:8080"]);
            for at in [at_node_port(family, 30004), at_external_ip(family, 104)] {
                checks.served(&what(&format!("policy Local {at}")), &client.tcp(at, 3), local, own);
            }
            checks.refused(&what("without endpoints"), &client.tcp(at_external_ip(family, 105), 2));
            checks.silent(&what("out of range"), &client.silence(Protocol::Tcp, at_external_ip(family, 106)));
        }
    }

    fn kept(&self) -> Kept {
        let node = self.node();
        let idle: BTreeSet<String> = clients(IDLE).into_iter().map(|(_, at)| format!("TCP {at}")).collect();
        let counted = counted(node).into_iter().filter(|(server, _)| idle.contains(server)).collect();
        let listed = node.sh("ip", &["-o", "address", "show", "dev", "kube-ipvs0"]);
        // their scopes and lifetimes are changed in place
        let addresses = listed.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect();
        Kept {
            servers: servers(node).into_iter().map(|server| server.name).filter(|name| !is_link_local(name)).collect(),
            counted,
            addresses,
            devices: devices(node),
        }
    }

    /// What is there when the statistics have all connections of the idle Service.
    fn settle(&self) -> Kept {
        let kept = settled(|| self.kept(), |one, other| one.counted == other.counted);
        assert!(kept.counted.values().all(|connections| *connections > 0), "{kept:?}");
        kept
    }
}

// === impl Traffic ===

impl Traffic {
    /// Ends all clients. Returns the failed new connections (client, destination, and begin), and the errors of those that were held.
    fn finish(self, what: &str) -> (Vec<(LabMachine, SocketAddr, Duration)>, Vec<String>) {
        let (mut connections, mut failed) = (0, Vec::new());
        for (place, at, hammer) in self.hammers {
            for (begun, outcome) in hammer.stop() {
                connections += 1;
                if !matches!(outcome, ProbeOutcome::Answered(_)) {
                    failed.push((place, at, begun - self.begun));
                }
            }
        }
        let (mut exchanges, mut broken) = (0, Vec::new());
        for held in self.held {
            let fate = held.finish();
            exchanges += fate.exchanges;
            broken.extend(fate.broken);
        }
        println!(
            "{what}: {connections} connections, {} failed; {exchanges} exchanges, {} broken",
            failed.len(),
            broken.len()
        );
        assert!(connections > 0 && exchanges > 0, "{what}: no traffic");
        (failed, broken)
    }
}

/// The proxy, once it has made its first sync pass, of all objects.
fn synced(mut proxy: ProxyProcess<'_>) -> ProxyProcess<'_> {
    until("first sync", SYNCED, || {
        std::thread::sleep(Duration::from_millis(100));
        assert!(proxy.is_running(), "it has ended: {}", proxy.log());
        Family::ALL.iter().all(|family| {
            let label = format!("ip_family=\"{family}\"");
            proxy.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds", &[&label]) > 0.0
        })
    });
    proxy
}

fn manifests() -> Manifests {
    let held = TestService::new("held", HELD).node_port(30002);
    let echoes = held.endpoints(ECHO, &PODS);
    Manifests::new()
        .with(TestService::new("busy", BUSY).node_port(30001), &PODS)
        .with_endpoints(held, echoes)
        .with(TestService::new("idle", IDLE).node_port(30003), &PODS)
        .with(TestService::new("local", 4).node_port(30004).load_balancer(104).external_local(), &PODS)
        .without_endpoints(TestService::new("empty", 5).external_ip(105))
        .with(
            TestService::new("ranges", 6).load_balancer(106).source_ranges(&["203.0.113.128/25", "fd00:cc::/127"]),
            &PODS,
        )
}

/// A pod and the node at the cluster IPs of the Service with this number, and a client outside at its node ports.
fn clients(number: u16) -> Vec<(LabMachine, SocketAddr)> {
    let of = |family| {
        let inside = at_cluster_ip(family, number);
        [
            (LabMachine::PodB, inside),
            (LabMachine::Node, inside),
            (LabMachine::Client, at_node_port(family, 30000 + number)),
        ]
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

/// True for a node port at the gateway address of pods: upstream serves node ports at link-local addresses of IPv4, Ferry doesn't.
fn is_link_local(server: &str) -> bool {
    server.starts_with("TCP 169.254.")
}

/// Makes the chains of others.
fn of_others(node: &Host) {
    for family in Family::ALL {
        for (table, name) in OF_OTHERS {
            iptables::run(node, Backend::Nft, family, &format!("-t {table} -N {name}"));
        }
        iptables::run(node, Backend::Nft, family, "-t nat -A POSTROUTING -j NETWORK-PLUGIN");
        iptables::run(node, Backend::Nft, family, "-A INPUT -j KUBE-FIREWALL");
    }
}

/// Asserts that the chains of others are there.
fn assert_others(node: &Host) {
    let rules = IptablesRules::of(node, Backend::Nft);
    for family in Family::ALL {
        for (table, name) in OF_OTHERS {
            assert!(rules.names(family, table).any(|known| known == name), "{family} {table} {name}");
        }
        let jump = "-j KUBE-FIREWALL";
        assert!(rules.rules(family, "filter", "INPUT").iter().any(|rule| rule == jump), "{family}: {jump}");
    }
}

/// Chains, rules and ipsets of upstream's proxy.
fn of_upstream(node: &Host) -> BTreeSet<String> {
    IptablesRules::of(node, Backend::Nft).of_proxy().into_iter().chain(sets_of_upstream(node)).collect()
}

fn sets_of_upstream(node: &Host) -> Vec<String> {
    let sets = node.sh("ipset", &["list", "-n"]);
    sets.lines().filter(|name| name.starts_with("KUBE-")).map(|name| format!("ipset {name}")).collect()
}

/// True if nothing of upstream's is left. Its ipsets go last; before, the tool can meet a rule whose set is gone when it asks for it.
fn is_cleared(node: &Host) -> bool {
    sets_of_upstream(node).is_empty() && of_upstream(node).is_empty()
}

/// One proxy ends and the other one begins, under traffic.
fn take_over<'a>(scene: &mut Scene<'a>, mut before: ProxyProcess<'a>, to: Who) -> ProxyProcess<'a> {
    let (node, what) = (scene.node(), format!("to {to:?}"));
    if to == Who::Ours {
        scene.assert_adoption_is_planned();
    }
    let kept = scene.settle();
    let traffic = scene.traffic();
    before.terminate();
    let ended = traffic.begun.elapsed();
    let mut proxy = scene.serve(to);
    let synced = traffic.begun.elapsed();
    if to == Who::Ours {
        until("nothing of upstream's is left", CLEARED, || is_cleared(node));
        println!(
            "{what}: upstream's rules and sets were gone {:.1?} after the first sync",
            traffic.begun.elapsed() - synced
        );
    }
    let (failed, broken) = traffic.finish(&what);
    if to == Who::Ours {
        assert!(failed.is_empty() && broken.is_empty(), "{what}: {failed:?} {broken:?}\n{}", proxy.log());
    } else {
        // Those that are masqueraded leave untranslated once upstream has deleted the table, and the endpoint resets them.
        println!("{what}: broken: {broken:?}");
        assert_unmasqueraded(&failed, ended, synced);
        assert!(!node.sh("nft", &["list", "tables"]).contains("kube-proxy"), "upstream deletes the table");
    }
    assert_eq!(scene.settle(), kept, "{what}: adopted");
    assert_others(node);
    scene.check(to);
    assert!(proxy.is_running(), "{}", proxy.log());
    proxy
}

/// Upstream deletes the table before it has rules of its own. Connections that begin in between are not masqueraded: those from
/// outside and from the node fail if they get the endpoint on another node.
fn assert_unmasqueraded(failed: &[(LabMachine, SocketAddr, Duration)], ended: Duration, synced: Duration) {
    let begun = || failed.iter().map(|(.., begun)| *begun);
    if let (Some(first), Some(last)) = (begun().min(), begun().max()) {
        println!(
            "back to upstream: from {:.1?} to {:.1?} after the end of ours, synced at {:.1?}",
            first.saturating_sub(ended),
            last.saturating_sub(ended),
            synced - ended
        );
    }
    for (place, at, begun) in failed {
        assert!(*place != LabMachine::PodB, "a connection that needs no masquerading: {at} at {begun:?}");
        assert!(
            (ended..synced).contains(begun),
            "outside of upstream's first sync: {at} at {begun:?} of {ended:?}..{synced:?}"
        );
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn upstream_and_ours_adopt_each_others_servers_under_traffic() {
    let lab = Lab::new();
    let mut scene = Scene::new(&lab, "upstream");
    let _statistics = Statistics::of(scene.node());
    let mut proxy = scene.serve(Who::Upstream);
    scene.check(Who::Upstream);
    assert!(of_upstream(scene.node()).len() > 40);
    for to in [Who::Ours, Who::Upstream, Who::Ours] {
        proxy = take_over(&mut scene, proxy, to);
    }
    proxy.terminate();
}

/// Chains that upstream's modes share, and those with rules about ipsets, go by netlink then, and the ipsets after them.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn without_tools_nothing_of_upstreams_is_left() {
    let lab = Lab::new();
    let mut scene = Scene::new(&lab, "without-tools");
    let node = scene.node();
    let _statistics = Statistics::of(node);
    let mut before = scene.serve(Who::Upstream);
    scene.check(Who::Upstream);
    let kept = scene.settle();
    assert!(of_upstream(node).len() > 40);
    let traffic = scene.traffic();
    before.terminate();
    let mut proxy = scene.serve_without_tools();
    until("nothing of upstream's is left", CLEARED, || is_cleared(node));
    let (failed, broken) = traffic.finish("to ours without tools");
    assert!(failed.is_empty() && broken.is_empty(), "{failed:?} {broken:?}\n{}", proxy.log());
    assert_eq!(scene.settle(), kept, "adopted");
    assert_others(node);
    scene.check(Who::Ours);
    proxy.terminate();
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn clean_up_removes_all_of_upstreams_state() {
    let lab = Lab::new();
    let mut scene = Scene::new(&lab, "cleaned");
    let node = scene.node();
    let cleaned = || {
        let (status, log) = run_to_end(&lab, &["--cleanup"]);
        assert!(status.success(), "{log}");
        assert_eq!((leftovers(node), of_upstream(node)), (Vec::new(), BTreeSet::new()), "{log}");
        assert_others(node);
    };
    scene.serve(Who::Upstream).terminate();
    assert!(servers(node).len() > 10 && of_upstream(node).len() > 40);
    cleaned();

    scene.serve(Who::Upstream).terminate();
    let log = kubernetes::Kubernetes::clean_up(node, &folder("cleaned-by-upstream"));
    println!("upstream's own --cleanup leaves {:?} and {:?}", leftovers(node), of_upstream(node));
    assert!(log.starts_with("exit status"), "{log}");
    cleaned();
}
