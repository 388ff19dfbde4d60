//! Runs the proxy on the node with the objects of one situation after another.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferry_api::config;
use ferry_api::object::{AddressKind, Family, KubeObject, Node, NodeAddress, ObjectName, Protocol};
use ferry_model::{Event, Profile, Settings, explain::explain};
use serde_json::{Map, Value, json};

use super::plan::Decided;
use super::served::{self, ObjectServer};
use super::server::Servers;
use super::terrain::{Addresses, Terrain};
use super::trial::{Mismatch, try_all};
use super::{Situation, SituationResult};
use crate::iptables;
use crate::lab::{LabMachine, NODE_NAME};
use crate::mode::Mode;
use crate::patience::within;
use crate::probe::ProbeClient;
use crate::proxy::{IPVS, ProxyProcess};

/// The machines with a proxy in one mode.
pub struct Corpus<'a> {
    terrain: &'a Terrain,
    executable: &'a str,
    folder: PathBuf,
    mode: Mode,
    proxy: Option<StartedProxy<'a>>,
    addresses: Option<Addresses>,
    written: u16,
    objects: ObjectSource,
    _marker: Servers,
}

struct StartedProxy<'a> {
    proxy: ProxyProcess<'a>,
    config: String,
    knows: Knows,
}

/// Facts of the Node that a running proxy retains when a later Node lacks them.
#[derive(Clone, PartialEq, Eq)]
struct Knows {
    /// the whole Node, if the proxy reads it only at its start (upstream)
    start: String,
    /// the facts whose last value stays in force when the Node loses them, each with its family
    facts: BTreeSet<(Family, &'static str)>,
}

/// Source of the proxy's objects.
enum ObjectSource {
    /// a folder of manifests
    Manifests,
    /// an API server without validation
    Server(Box<ObjectServer>),
}

/// Faults reported per situation.
const TOLD: usize = 12;
/// Lines of the proxy's log reported with them.
const LOGGED: usize = 15;
/// Cluster IPs of the marker service, whose port identifies the objects in force: incremented with each replacement.
const MARKER: [&str; 2] = ["10.96.255.250", "fd00:10:96::fffa"];
const MARKER_PORTS: u16 = 20_000;
/// Upstream's message about new labels of the Node.
const LABELS: &str = "] \"Updated proxier node topology labels\"";
/// The end of upstream's message about a completed commit, whose first letter differs between modes.
const COMPLETE: &str = "yncProxyRules complete\"";
/// A zone that no case assigns.
const ANOTHER_ZONE: &str = "zone-of-lab";
/// Time within which a proxy has deleted what a commit took out of use: mode nftables deletes sets of source ranges a
/// second later.
const DEFERRED: Duration = Duration::from_secs(5);
/// Pause before a plan is repeated.
const AGAIN: Duration = Duration::from_millis(200);
/// The marker's endpoints, on pod-b.
const MARKER_ENDPOINTS: [&str; 2] = ["10.244.1.200:9", "[fd00:10:244:1:8000::200]:9"];

// === impl Corpus ===

impl<'a> Corpus<'a> {
    /// Prepares a corpus run without a proxy yet. The folder is emptied; it holds the manifests and the log.
    pub fn new(terrain: &'a Terrain, executable: &'a str, folder: &Path, mode: Mode) -> Self {
        Self::over(terrain, executable, folder, mode, ObjectSource::Manifests)
    }

    /// The same with upstream's executable, which reads no manifests: checks the model against upstream.
    pub fn of_upstream(terrain: &'a Terrain, executable: &'a str, folder: &Path, mode: Mode) -> Self {
        let served = terrain.host(LabMachine::Node).run(ObjectServer::start);
        Self::over(terrain, executable, folder, mode, ObjectSource::Server(Box::new(served)))
    }

    fn over(terrain: &'a Terrain, executable: &'a str, folder: &Path, mode: Mode, objects: ObjectSource) -> Self {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
            Ok(()) | Err(_) => {}
        }
        fs::create_dir_all(folder.join("manifests")).expect("making a folder");
        let marker = MARKER_ENDPOINTS.map(|at| (Protocol::Tcp, at.parse().expect("an address")));
        let marker = Servers::start(terrain.host(LabMachine::PodB), &BTreeSet::from(marker));
        if let Some(backend) = mode.backend {
            iptables::hint(terrain.host(LabMachine::Node), backend);
        }
        let folder = folder.to_owned();
        Self { terrain, executable, folder, mode, proxy: None, addresses: None, written: 0, objects, _marker: marker }
    }

    /// Brings a situation into force, makes every connection, and reports outcomes that contradict the model.
    pub fn try_one(&mut self, situation: Situation) -> SituationResult {
        let Situation { name, config, manifest, mut store } = situation;
        let config = self.configuration(&config);
        let settings = settings(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
        let addresses = Addresses::new(
            store.node().into_iter().flat_map(|node| &*node.addresses).filter_map(|known| known.address.clone().ok()),
        );
        let mut manifest = manifest;
        if store.node().is_none() {
            let node = stand_in(&settings, &addresses);
            if let ObjectSource::Server(..) = self.objects {
                manifest += &served::node_yaml(&node);
            }
            store.apply(Event::Upsert(KubeObject::Node(node)));
        }
        // upstream keeps the addresses that its Node had at its start
        let start =
            if let ObjectSource::Server(..) = self.objects { format!("{:?}", store.node()) } else { String::new() };
        let facts = store.node().map(facts).unwrap_or_default();
        let is_new = self.put((&config, Knows { start, facts }), &addresses, &manifest);
        if let Some(zone) = store.node().and_then(|node| node.zone.as_deref()).filter(|_| is_new) {
            self.teach_zone(&manifest, zone);
        }
        let mut decided = Decided::new(&settings, &store, &self.mode, &addresses);
        if let ObjectSource::Server(..) = self.objects {
            decided = decided.of_upstream();
        }
        let found = try_all(self.terrain, &decided, &addresses, &self.mode);
        let mut findings = SituationResult { connections: found.connections, faults: Vec::new() };
        if !found.faults.is_empty() {
            let explained = explain(&settings, &addresses.local(), &store, &self.mode.profile);
            let mut text = complaint(&format!("{name}, mode {}", self.mode.name), &found.faults, &explained);
            if self.mode.name == IPVS {
                text += "  virtual servers afterwards:\n";
                let listed = self.terrain.host(LabMachine::Node).sh("ipvsadm", &["-L", "-n"]);
                text.extend(listed.lines().map(|line| format!("    {line}\n")));
            }
            text += "  the end of the proxy's log:\n";
            text.extend(self.log().into_iter().map(|line| format!("    {line}\n")));
            findings.faults.push(text);
        }
        findings
    }

    /// Runs Ferry's `plan` on the node for the situation in force, until it finds nothing to change; returns its output
    /// if it still finds something after some seconds, or fails.
    pub fn planned_changes(&self) -> Option<String> {
        // the log of the running proxy is in the folder itself
        let folder = self.folder.join("plan");
        fs::create_dir_all(&folder).expect("making a folder");
        let [config, manifests] = ["config.yaml", "manifests"].map(|name| self.folder.join(name).display().to_string());
        let arguments = ["plan", "--config", &config, "--manifests", &manifests];
        let mut found = None;
        within(DEFERRED, || {
            if found.is_some() {
                thread::sleep(AGAIN);
            }
            let mut plan =
                ProxyProcess::start_with(self.terrain.host(LabMachine::Node), self.executable, &folder, &arguments);
            let status = plan.wait();
            found = (!status.success()).then(|| format!("plan, mode {}: {status}\n{}", self.mode, plan.log()));
            found.is_none()
        });
        found
    }

    /// Ends the proxy; the next situation starts a new one.
    pub fn end_proxy(&mut self) {
        self.proxy = None;
    }

    /// The last lines of the log, without upstream's FLAG lines at its start.
    fn log(&self) -> Vec<String> {
        let log = self.proxy.as_ref().map(|running| running.proxy.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !line.contains("FLAG: ")).collect();
        lines.iter().rev().take(LOGGED).rev().map(|line| (*line).to_owned()).collect()
    }

    /// Overrides the mode's profile from now on, to show that the difference is detected.
    pub fn set_profile(&mut self, profile: Profile) {
        self.mode.profile = profile;
    }

    /// A case's configuration adapted to this mode and to a network namespace other than the initial one.
    fn configuration(&self, text: &str) -> String {
        let mut fields: Map<String, Value> =
            serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let written_for = fields.get("mode").and_then(Value::as_str).unwrap_or(self.mode.section).to_owned();
        let mut section = Map::new();
        for name in [&written_for, self.mode.section] {
            if let Some(Value::Object(more)) = fields.remove(name) {
                section.extend(more);
            }
        }
        let pause =
            std::env::var("FERRY_UPSTREAM_PAUSE").ok().filter(|_| matches!(self.objects, ObjectSource::Server(..)));
        if pause.is_some() {
            section.insert("syncPeriod".to_owned(), json!("1h"));
        }
        section.insert("minSyncPeriod".to_owned(), json!(pause.as_deref().unwrap_or("1ms")));
        fields.insert(self.mode.section.to_owned(), Value::Object(section));
        fields.insert("mode".to_owned(), json!(self.mode.name));
        fields.entry("hostnameOverride").or_insert(json!(NODE_NAME));
        // the address at which the test reads the sync metrics
        fields.entry("metricsBindAddress").or_insert(json!("127.0.0.1:10249"));
        let conntrack = json!({"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"});
        fields.insert("conntrack".to_owned(), conntrack);
        if let ObjectSource::Server(served) = &self.objects {
            let file = self.folder.join("kubeconfig");
            served.kubeconfig(&file);
            fields
                .insert("clientConnection".to_owned(), json!({"kubeconfig": file, "contentType": "application/json"}));
        }
        let of_way = self.mode.way.map(|way| {
            let kind = "apiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration";
            format!("\n---\n{kind}\nuserspaceWay: {way}\n")
        });
        Value::Object(fields).to_string() + &of_way.unwrap_or_default()
    }

    /// Brings these objects into force, by a proxy with this configuration on a node with these addresses. True if it is a new
    /// process.
    fn put(&mut self, (config, knows): (&str, Knows), addresses: &Addresses, manifest: &str) -> bool {
        let stays = self.addresses.as_ref() == Some(addresses)
            && self.proxy.as_mut().is_some_and(|running| {
                let loses_nothing = running.knows.start == knows.start && running.knows.facts.is_subset(&knows.facts);
                running.config == config && loses_nothing && running.proxy.is_running()
            });
        if !stays {
            // killed first, so that the new process answers
            self.proxy = None;
            self.terrain.readdress(self.addresses.as_ref(), addresses);
            self.addresses = Some(addresses.clone());
        }
        self.written += 1;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs_f64();
        let marker = marker(MARKER_PORTS + self.written);
        match &mut self.objects {
            ObjectSource::Manifests => {
                let draft = self.folder.join("draft.yaml");
                fs::write(&draft, format!("{manifest}\n---\n{marker}")).expect("writing manifests");
                fs::rename(&draft, self.folder.join("manifests/all.yaml")).expect("putting manifests in place");
            }
            ObjectSource::Server(served) => served.put(manifest, &marker),
        }
        match &mut self.proxy {
            Some(running) => running.knows = knows,
            None => self.proxy = Some(self.start(config, knows)),
        }
        self.wait(since);
        !stays
    }

    /// Makes upstream's proxy know its Node's zone, if it doesn't. At its start it may miss it for good: its handler of labels is
    /// added to an informer that has the Node already, and its proxier is registered with that handler only afterwards. If the Node
    /// is reported in between, its labels count as known, and the proxier gets them only when they change. So they change twice.
    fn teach_zone(&mut self, manifest: &str, zone: &str) {
        let (ObjectSource::Server(served), Some(running)) = (&self.objects, &mut self.proxy) else { return };
        if !knows_zone(&running.proxy.log(), zone) {
            for (written, expected) in [(Some(ANOTHER_ZONE), ANOTHER_ZONE), (None, zone)] {
                served.move_nodes(manifest, written);
                running.proxy.wait_for("knowledge of the Node's zone", |proxy| knows_zone(&proxy.log(), expected));
            }
        }
        // the zone may have come after the commit that served the marker
        running.proxy.wait_for("the end of the commit", |proxy| is_idle(&proxy.log_end()));
    }

    fn start(&self, config: &str, knows: Knows) -> StartedProxy<'a> {
        let file = self.folder.join("config.yaml");
        fs::write(&file, config).expect("writing the configuration");
        let path = |path: &Path| path.to_str().expect("a path of this repository is text").to_owned();
        let (file, manifests) = (path(&file), path(&self.folder.join("manifests")));
        let objects = match self.objects {
            ObjectSource::Manifests => ["--manifests", &manifests],
            // logs the Node's labels, and begin and end of each commit, in mode ipvs, too
            ObjectSource::Server(..) => ["--vmodule", "proxier=4"],
        };
        let arguments = [&["--config", &file, "-v=2"][..], &objects].concat();
        let host = self.terrain.host(LabMachine::Node);
        let proxy = ProxyProcess::start_with(host, self.executable, &self.folder, &arguments);
        StartedProxy { proxy, config: config.to_owned(), knows }
    }

    /// Waits until the objects written last are in force.
    fn wait(&mut self, since: f64) {
        self.wait_for_marker();
        if self.mode.is_atomic() {
            return;
        }
        // the commit consists of several steps, and the marker may be served before the last
        let Some(running) = &mut self.proxy else { return };
        if let ObjectSource::Server(..) = &self.objects {
            // Services and slices arrive one by one, in more than one commit, and those of the marker last.
            running.proxy.wait_for("the end of the commit", |proxy| is_idle(&proxy.log_end()));
        } else {
            running.proxy.wait_for("the end of the commit", |proxy| {
                Family::ALL.into_iter().all(|family| {
                    let label = format!("ip_family=\"{family}\"");
                    proxy.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds", &[&label]) > since
                })
            });
        }
    }

    fn wait_for_marker(&mut self) {
        let client = ProbeClient::new(self.terrain.host(LabMachine::Node)).patience(Duration::from_millis(100));
        let Some(running) = &mut self.proxy else { return };
        for address in MARKER {
            let at = SocketAddr::new(address.parse().expect("an address"), MARKER_PORTS + self.written);
            running.proxy.wait_for("objects in force", |_| client.tcp(at, 1).all_answered());
        }
    }
}

/// The facts of a Node whose last value stays in force.
fn facts(node: &Node) -> BTreeSet<(Family, &'static str)> {
    let addresses = node.addresses.iter().filter_map(|known| known.address.as_ref().ok());
    let addresses = addresses.map(|address| (Family::of(*address), "address"));
    let ranges = node.pod_cidrs.iter().flatten().map(|range| (Family::of_net(*range), "pod range"));
    addresses.chain(ranges).collect()
}

/// The first faults of a situation, with the model's decisions in their families.
fn complaint(about: &str, faults: &[Mismatch], explained: &str) -> String {
    let mut text = format!("{about}: {} faults\n", faults.len());
    for fault in faults.iter().take(TOLD) {
        let _ = writeln!(text, "  {}", fault.text);
    }
    let whole = |family: Family| faults.iter().any(|fault| fault.family == family);
    let sections = explained.split("\n\n").filter(|section| {
        Family::ALL.into_iter().all(|family| !section.starts_with(&format!("{family}\n")) || whole(family))
    });
    for line in sections.flat_map(str::lines) {
        let _ = writeln!(text, "    {line}");
    }
    text
}

/// The traffic settings of a configuration.
fn settings(text: &str) -> Result<Settings, String> {
    let mut config = config::decode(text).map_err(|error| error.to_string())?.config;
    config.apply_platform_defaults();
    config.validate().map_err(|errors| errors.to_string())?;
    Ok(Settings::from_config(&config, &config.hostname_override))
}

/// The Node that the executable synthesizes if no manifest has one.
fn stand_in(settings: &Settings, addresses: &Addresses) -> Node {
    let address = |address: &IpAddr| NodeAddress { kind: AddressKind::Internal, address: Ok(*address) };
    Node {
        name: ObjectName::cluster_wide(&settings.node_name),
        zone: None,
        addresses: addresses.of_node().iter().map(address).collect(),
        pod_cidrs: Box::default(),
        deleting: false,
        to_be_deleted: false,
    }
}

/// True if the last zone that the proxiers of both families got is this one, by upstream's log.
fn knows_zone(log: &str, zone: &str) -> bool {
    let zone = format!("\"{zone}\"");
    last_of_families(log, |line| line.contains(LABELS)).all(|line| line.is_some_and(|line| line.contains(&zone)))
}

/// True if the proxiers of both families have ended their last commit, by upstream's log, and got no labels since, after which they
/// begin another.
fn is_idle(log: &str) -> bool {
    let begins = |line: &str| line.contains("] \"Syncing ") && line.contains(" rules\"");
    let is_step = |line: &str| line.contains(LABELS) || begins(line) || line.contains(COMPLETE);
    last_of_families(log, is_step).all(|line| line.is_some_and(|line| line.contains(COMPLETE)))
}

/// The last of these lines of each family in upstream's log.
fn last_of_families(log: &str, is_wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = Option<&str>> {
    Family::ALL.into_iter().map(move |family| {
        let label = format!("ipFamily=\"{family}\"");
        log.lines().rev().find(|line| line.contains(&label) && is_wanted(line))
    })
}

/// The manifest of the marker.
fn marker(port: u16) -> String {
    let [v4, v6] = MARKER;
    let mut text = format!(
        "apiVersion: v1
kind: Service
metadata: {{name: marker, namespace: zz-lab}}
spec:
  clusterIP: \"{v4}\"
  clusterIPs: [\"{v4}\", \"{v6}\"]
  ipFamilies: [IPv4, IPv6]
  ports: [{{port: {port}}}]
"
    );
    for (family, at) in Family::ALL.into_iter().zip(MARKER_ENDPOINTS) {
        let at: SocketAddr = at.parse().expect("an address");
        let _ = write!(
            text,
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: marker-{}, namespace: zz-lab, labels: {{kubernetes.io/service-name: marker}}}}
addressType: {family}
ports: [{{name: \"\", port: {}}}]
endpoints: [{{addresses: [\"{}\"]}}]
",
            family.to_string().to_lowercase(),
            at.port(),
            at.ip()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_shows_the_zone_and_the_end_of_commits() {
        let mut log = String::new();
        let mut after = |family: Family, message: &str| {
            let _ = writeln!(
                log,
                "I1126 06:47:34.905442    1952 proxier.go:534] \"{message}\" ipFamily=\"{family}\" z={{\"zone\":\"b\"}}"
            );
            (knows_zone(&log, "b"), is_idle(&log))
        };
        let [v4, v6] = Family::ALL;
        let (syncs, completes) = ("Syncing ipvs proxier rules", "syncProxyRules complete");
        assert_eq!(after(v4, completes), (false, false));
        assert_eq!(after(v6, "SyncProxyRules complete"), (false, true));
        assert_eq!(after(v4, "Updated proxier node topology labels"), (false, false));
        assert_eq!(after(v6, "Updated proxier node topology labels"), (true, false));
        assert_eq!(after(v4, syncs), (true, false));
        assert_eq!(after(v6, "Syncing iptables rules"), (true, false));
        assert_eq!(after(v4, completes), (true, false));
        assert_eq!(after(v6, completes), (true, true));
    }
}
