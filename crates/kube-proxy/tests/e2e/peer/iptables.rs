//! Mode iptables and upstream's: each adopts the other's rules, and each mode takes over from the other.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferry_lab::iptables::{self, Backend, IptablesRules};
use ferry_lab::kubernetes::{self, ClusterUser};
use ferry_lab::nft::{self, Ruleset};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::probe::{Echo, Hammer, Held};
use ferry_lab::proxy::{IPTABLES, NFTABLES, ProxyConfig};
use ferry_lab::stage::ManifestDirectory;
use ferry_lab::{Family, Host, Kubernetes, Lab, LabMachine, ProxyProcess, TestService};

use crate::{EXECUTABLE, TABLES, folder, matrix};

/// The running proxy: upstream's or Ferry, in a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Upstream(&'static str),
    Ours(&'static str),
}

/// The number of the service that connections are held over.
const HELD: u16 = 87;
/// Time limit until a created Service is in the API server's lists.
const LATE: Duration = Duration::from_secs(10);
/// Port of its endpoints' echo servers.
const ECHO: u16 = 7777;
const PODS: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];

/// The machines, the API server, and clients that never stop.
pub(crate) struct Scene<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) api: Kubernetes<'a>,
    folder: PathBuf,
    number: usize,
    _echoes: Vec<Echo>,
}

/// The result of a `plan`.
struct Planned {
    code: Option<i32>,
    text: String,
}

/// Traffic during a take-over.
struct Traffic {
    hammers: Vec<(SocketAddr, Hammer)>,
    held: Vec<Held>,
}

// === impl Who ===

impl Who {
    fn mode(self) -> &'static str {
        match self {
            Self::Upstream(mode) | Self::Ours(mode) => mode,
        }
    }
}

// === impl Scene ===

impl<'a> Scene<'a> {
    pub(crate) fn new(lab: &'a Lab, name: &str) -> Self {
        kubernetes::build();
        let folder = folder(name);
        let api = Kubernetes::start(lab.host(LabMachine::Node), &folder.join("api"));
        api.create_node();
        api.create_all(&matrix::manifests());
        let held = held();
        api.create_service(&held);
        api.create_endpoints(&held.endpoints(ECHO, &PODS));
        let echo = |place: LabMachine| {
            let at = Family::ALL.map(|family| SocketAddr::new(place.address(family), ECHO));
            Echo::start(lab.host(place), &at)
        };
        Self { lab, api, folder, number: 0, _echoes: PODS.map(echo).into() }
    }

    fn node(&self) -> &'a Host {
        self.lab.host(LabMachine::Node)
    }

    /// Starts a proxy; doesn't wait for anything.
    fn start(&mut self, who: Who) -> ProxyProcess<'a> {
        let folder = self.next_folder();
        match who {
            Who::Upstream(mode) => self.api.start_proxy(&folder, mode),
            Who::Ours(mode) => self.start_ours(&folder, mode, &["-v=2"]),
        }
    }

    /// A folder for the files of the next process.
    fn next_folder(&mut self) -> PathBuf {
        self.number += 1;
        self.folder.join(self.number.to_string())
    }

    /// Starts Ferry's executable with these arguments, in a mode, for the objects of the API server.
    fn start_ours(&self, folder: &Path, mode: &'static str, arguments: &[&str]) -> ProxyProcess<'a> {
        std::fs::create_dir_all(folder).expect("making a folder");
        let (file, kubeconfig) = (folder.join("config.yaml"), self.api.kubeconfig(ClusterUser::Certificate));
        let client = format!("clientConnection: {{kubeconfig: {}}}", kubeconfig.display());
        ProxyConfig { mode, ..ProxyConfig::with(&client) }.write(&file);
        let file = file.display().to_string();
        ProxyProcess::start_with(self.node(), EXECUTABLE, folder, &[arguments, &["--config", &file]].concat())
    }

    /// Runs Ferry's `plan` in mode iptables.
    fn plan(&mut self) -> Planned {
        let folder = self.next_folder();
        let mut plan = self.start_ours(&folder, IPTABLES, &["plan"]);
        let code = plan.wait().code();
        Planned { code, text: plan.log() }
    }

    /// Starts a proxy and waits until it serves everything.
    pub(crate) fn serve(&mut self, who: Who) -> ProxyProcess<'a> {
        let mut proxy = self.start(who);
        self.wait(&mut proxy, who);
        proxy
    }

    /// Waits until a proxy's rules are complete.
    fn wait(&self, proxy: &mut ProxyProcess<'_>, who: Who) {
        proxy.wait_until_synced(&Family::ALL);
        proxy.wait_for("all rules", |_| match who.mode() {
            IPTABLES => {
                let rules = self.rules();
                let nat = |family| rules.rules(family, "nat", "KUBE-SERVICES").join("\n");
                Family::ALL.into_iter().all(|family| {
                    let nat = nat(family);
                    matrix::NAMES
                        .iter()
                        .chain(&["held"])
                        .all(|name| nat.contains(&format!("demo/{name}:tcp cluster IP")))
                })
            }
            _ => {
                let ruleset = Ruleset::of(self.node());
                TABLES.into_iter().all(|table| ruleset.names(table).next().is_some())
                    && Family::ALL
                        .into_iter()
                        .all(|family| self.lab.from(LabMachine::PodB).tcp(at_cluster_ip(family, 80), 1).all_answered())
            }
        });
    }

    /// Waits for a proxy's first sync pass in each family while another one occupies the ports of health checks and metrics.
    fn wait_beside(&self, proxy: &mut ProxyProcess<'_>, who: Who) {
        let said = match who {
            Who::Upstream(_) => "\"SyncProxyRules complete\" ipFamily=",
            Who::Ours(_) => "\"Synced\" family=",
        };
        proxy.wait_for("its first turns", |proxy| {
            let log = proxy.log();
            Family::ALL.iter().all(|family| log.contains(&format!("{said}\"{family}\"")))
        });
    }

    /// The proxy is the only one now: it answers health checks, and serves a new service.
    fn goes_on(&self, proxy: &mut ProxyProcess<'_>, who: Who, number: u16) {
        self.wait(proxy, who);
        self.create_late(number);
        super::served_late(self.lab, number, &format!("{who:?} alone, a late service"));
    }

    /// A service with one endpoint.
    fn create_late(&self, number: u16) {
        let late = super::late(number);
        self.api.create_service(&late);
        self.api.create_endpoints(&late.endpoints(8080, &[LabMachine::Far]));
    }

    fn rules(&self) -> IptablesRules {
        IptablesRules::of(self.node(), Backend::Nft)
    }

    /// Clients that connect without a pause, and connections that stay.
    fn traffic(&self) -> Traffic {
        let from = |place: LabMachine, at: fn(Family) -> Vec<SocketAddr>| {
            let at: Vec<_> = Family::ALL.into_iter().flat_map(at).collect();
            Held::open(self.lab.host(place), &at, 4)
        };
        let inside = |family| vec![at_cluster_ip(family, HELD)];
        let outside = |family| vec![at_node_port(family, 30087), at_external_ip(family, 87)];
        let held =
            vec![from(LabMachine::PodB, inside), from(LabMachine::Node, inside), from(LabMachine::Client, outside)];
        Traffic { hammers: matrix::hammer(self.lab), held }
    }
}

// === impl Planned ===

impl Planned {
    /// The number of equal Services in each family. Asserts the exit code, and that so many Services differ in each.
    #[track_caller]
    fn equal(&self, differing: usize) -> Vec<usize> {
        let Self { code, text } = self;
        let (expected, rest) = match differing {
            0 => (0, " Services equal".to_owned()),
            _ => (2, format!(" Services equal, {differing} differ")),
        };
        assert_eq!(*code, Some(expected), "{text}");
        let of_family = |family: Family| -> Option<usize> {
            let begin = format!("{family} in mode {IPTABLES}: ");
            let line = text.lines().find_map(|line| line.strip_prefix(&begin))?;
            line.strip_suffix(&rest)?.rsplit(' ').next()?.parse().ok()
        };
        let equal: Vec<usize> = Family::ALL.into_iter().filter_map(of_family).collect();
        assert_eq!(equal.len(), Family::ALL.len(), "{text}");
        equal
    }
}

// === impl Traffic ===

impl Traffic {
    /// Asserts that no connection was refused or broken.
    fn unharmed(self, what: &str) {
        matrix::unharmed(self.hammers);
        for held in self.held {
            let fate = held.finish();
            println!("{what}: {fate}");
            assert!(fate.broken.is_empty() && fate.exchanges > 0, "{what}: {fate}");
        }
    }
}

fn held() -> TestService {
    TestService::new("held", HELD).node_port(30087).external_ip(87)
}

/// Waits until no process has written for a while; returns the number of transactions since.
fn quiet(node: &Host, since: u32) -> u32 {
    let (mut seen, mut at) = (nft::generation(node), Instant::now());
    while at.elapsed() < Duration::from_millis(1500) {
        std::thread::sleep(Duration::from_millis(50));
        let now = nft::generation(node);
        if now != seen {
            (seen, at) = (now, Instant::now());
        }
    }
    seen.wrapping_sub(since)
}

/// Objects of a mode in the kernel, as texts.
fn of_mode(node: &Host, mode: &str) -> BTreeSet<String> {
    if mode == IPTABLES {
        return IptablesRules::of(node, Backend::Nft).of_proxy();
    }
    let ruleset = Ruleset::of(node);
    let tables = ruleset.objects.keys().filter(|(table, _)| TABLES.contains(&table.as_str()));
    tables.map(|(table, name)| format!("{table} {name}")).collect()
}

/// Upstream ends, then Ferry begins; Ferry ends, then upstream begins.
#[test]
fn rules_are_adopted_by_name_one_after_the_other() {
    let lab = Lab::new();
    let mut scene = Scene::new(&lab, "adopted");
    let mut upstream = scene.serve(Who::Upstream(IPTABLES));
    matrix::check_in(IPTABLES, &lab, "upstream", &Family::ALL);
    let traffic = scene.traffic();
    upstream.terminate();
    let (before, generation) = (scene.rules(), nft::generation(scene.node()));
    let equal = scene.plan().equal(0);
    assert!(equal.iter().all(|services| *services > matrix::NAMES.len() + 1), "{equal:?}");

    let mut ours = scene.serve(Who::Ours(IPTABLES));
    let written = quiet(scene.node(), generation);
    let after = scene.rules();
    println!("taken over {} rules from upstream in {written} transactions", before.number());
    assert!(before.clone().sorted() == after.clone().sorted(), "{}", before.sorted().difference(&after.sorted()));
    traffic.unharmed("from upstream to ours");
    assert_eq!(written, 0, "what was right was written again\n{}\n{}", before.difference(&after), ours.log());
    matrix::check_in(IPTABLES, &lab, "ours over upstream's chains", &Family::ALL);

    // and it goes on from there
    scene.create_late(90);
    super::served_late(&lab, 90, "a late service");
    let traffic = scene.traffic();
    ours.terminate();
    let before = scene.rules();
    let mut upstream = scene.serve(Who::Upstream(IPTABLES));
    quiet(scene.node(), 0);
    let after = scene.rules();
    assert!(before.clone().sorted() == after.clone().sorted(), "{}", before.sorted().difference(&after.sorted()));
    traffic.unharmed("from ours to upstream");
    matrix::check_in(IPTABLES, &lab, "upstream over our chains", &Family::ALL);
    super::served_late(&lab, 90, "a late service, still");
    upstream.terminate();

    // Upstream has written the rules of one Service more; the next one comes after its end.
    scene.create_late(91);
    // The API server's cache, from which the list is, may be behind.
    until("a plan for the late service", LATE, || scene.plan().text.contains("demo/late-91"));
    let plan = scene.plan();
    let more: Vec<usize> = equal.iter().map(|services| services + 1).collect();
    assert_eq!(plan.equal(1), more, "{}", plan.text);
    assert_eq!(plan.text.matches("  service demo/late-91: ").count(), Family::ALL.len(), "{}", plan.text);
}

/// Ferry begins while upstream runs, and the other way round: both run for a while, then the second one alone.
#[test]
fn two_at_a_time_agree() {
    let lab = Lab::new();
    let mut scene = Scene::new(&lab, "together");
    let mut upstream = scene.serve(Who::Upstream(IPTABLES));
    quiet(scene.node(), 0);
    let (before, traffic) = (scene.rules(), scene.traffic());
    let generation = nft::generation(scene.node());
    let mut ours = scene.start(Who::Ours(IPTABLES));
    scene.wait_beside(&mut ours, Who::Ours(IPTABLES));
    let written = quiet(scene.node(), generation);
    let after = scene.rules();
    assert!(before.clone().sorted() == after.clone().sorted(), "{}", before.sorted().difference(&after.sorted()));
    assert_eq!(written, 0, "what was right was written again\n{}", ours.log());
    upstream.terminate();
    scene.goes_on(&mut ours, Who::Ours(IPTABLES), 90);
    traffic.unharmed("ours beside upstream, then alone");
    matrix::check_in(IPTABLES, &lab, "ours, upstream has ended", &Family::ALL);
    let traffic = scene.traffic();
    let mut upstream = scene.start(Who::Upstream(IPTABLES));
    scene.wait_beside(&mut upstream, Who::Upstream(IPTABLES));
    ours.terminate();
    scene.goes_on(&mut upstream, Who::Upstream(IPTABLES), 91);
    traffic.unharmed("upstream beside ours, then alone");
    matrix::check_in(IPTABLES, &lab, "upstream, ours has ended", &Family::ALL);
    super::served_late(&lab, 90, "what came while ours was alone");
    upstream.terminate();
}

/// Leftovers of upstream 1.30 are adopted or removed, and have no effect.
#[test]
fn what_an_old_upstream_left_makes_no_difference() {
    let manifests = matrix::manifests();
    for backend in Backend::ALL {
        let rules = ["none", "1.30", "1.36"].map(|version| {
            let lab = Lab::new();
            let node = lab.host(LabMachine::Node);
            iptables::hint(node, backend);
            if version != "none" {
                node.run(iptables::create_counters);
                for family in Family::ALL {
                    iptables::restore(node, backend, family, &iptables::left_by_upstream(version, family));
                }
            }
            let mut directory = ManifestDirectory::new(&folder(&format!("old-{version}-{}", backend.name())));
            directory.write(&manifests);
            let mut proxy = directory.start(node, EXECUTABLE, &ProxyConfig::iptables());
            for family in Family::ALL {
                let (at, client) = (directory.marker(family), lab.from(LabMachine::Node));
                proxy.wait_for("manifests in force", |_| client.tcp(at, 1).all_answered());
            }
            proxy.wait_until_synced(&Family::ALL);
            matrix::check_in(IPTABLES, &lab, &format!("over {version}, {}", backend.name()), &Family::ALL);
            let other = if backend == Backend::Nft { Backend::Legacy } else { Backend::Nft };
            assert_eq!(IptablesRules::of(node, other).of_proxy(), BTreeSet::new(), "in the other variant");
            IptablesRules::of(node, backend).sorted()
        });
        let [fresh, old, new] = rules;
        assert!(fresh == old, "1.30, {}:\n{}", backend.name(), fresh.difference(&old));
        assert!(fresh == new, "1.36, {}:\n{}", backend.name(), fresh.difference(&new));
    }
}

#[test]
fn from_our_nftables_to_our_iptables_and_back() {
    change(&[Who::Ours(NFTABLES), Who::Ours(IPTABLES), Who::Ours(NFTABLES)], "ours");
}

#[test]
fn from_upstreams_iptables_to_our_nftables() {
    change(&[Who::Upstream(IPTABLES), Who::Ours(NFTABLES)], "from-iptables");
}

#[test]
fn from_upstreams_nftables_to_our_iptables() {
    change(&[Who::Upstream(NFTABLES), Who::Ours(IPTABLES)], "from-nftables");
}

/// One proxy after another, each in another mode than the one before, while traffic goes on.
fn change(order: &[Who], name: &str) {
    let lab = Lab::new();
    let mut scene = Scene::new(&lab, name);
    let mut running: Option<(ProxyProcess<'_>, Who)> = None;
    for who in order {
        let traffic = running.is_some().then(|| scene.traffic());
        let before = running.take().map(|(mut proxy, before)| {
            proxy.terminate();
            before
        });
        let start = Instant::now();
        let proxy = scene.serve(*who);
        let what = format!("{before:?} → {who:?}");
        if let Some(before) = before {
            until(&format!("{what}: nothing of the old mode is left"), Duration::from_secs(20), || {
                std::thread::sleep(Duration::from_millis(50));
                of_mode(scene.node(), before.mode()).is_empty()
            });
            println!("{what}: in force and cleaned up after {:?}", start.elapsed());
        }
        if let Some(traffic) = traffic {
            traffic.unharmed(&what);
        }
        matrix::check_in(who.mode(), &lab, &what, &Family::ALL);
        running = Some((proxy, *who));
    }
}
