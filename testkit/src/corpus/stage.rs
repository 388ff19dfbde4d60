//! The proxy on the node, and whose objects it has at present.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferry_api::config;
use ferry_api::object::{AddressKind, Family, KubeObject, Node, NodeAddress, ObjectName, Protocol};
use ferry_model::{Event, Profile, Settings, explain::explain};
use serde_json::{Map, Value, json};

use super::plan::Decided;
use super::served::{self, Served};
use super::server::Servers;
use super::terrain::{Addresses, Terrain};
use super::trial::{Fault, try_all};
use super::{Findings, Situation};
use crate::iptables;
use crate::lab::{NODE_NAME, Place};
use crate::mode::Mode;
use crate::probe::Client;
use crate::proxy::Proxy;

/// The machines with a proxy in one mode.
pub struct Corpus<'a> {
    terrain: &'a Terrain,
    executable: &'a str,
    folder: PathBuf,
    mode: Mode,
    proxy: Option<Running<'a>>,
    addresses: Option<Addresses>,
    written: u16,
    objects: Objects,
    _marker: Servers,
}

struct Running<'a> {
    proxy: Proxy<'a>,
    config: String,
    knows: Knows,
}

/// What a proxy knows of its Node that a later Node doesn't take back.
#[derive(Clone, PartialEq, Eq)]
struct Knows {
    /// all of it, where it is learned at the start alone
    start: String,
    /// the facts whose last value stays when the Node loses them, each with its family
    facts: BTreeSet<(Family, &'static str)>,
}

/// Where the proxy has its objects from.
enum Objects {
    /// from a folder
    Manifests,
    /// from an API server that takes in everything: what it holds
    Server(Box<Served>),
}

/// So many faults of a situation are told.
const TOLD: usize = 12;
/// So many lines of the proxy's log are told with them.
const LOGGED: usize = 15;
/// A service that tells which objects are in force: by its port, the first one and then one more for each time.
const MARKER: [&str; 2] = ["10.96.255.250", "fd00:10:96::fffa"];
const MARKER_PORTS: u16 = 20_000;
/// Its endpoints, which pod-b has.
const MARKER_ENDPOINTS: [&str; 2] = ["10.244.1.200:9", "[fd00:10:244:1:8000::200]:9"];

// === impl Corpus ===

impl<'a> Corpus<'a> {
    /// Nothing runs yet. The folder is emptied; it is going to hold the manifests and the log.
    pub fn new(terrain: &'a Terrain, executable: &'a str, folder: &Path, mode: Mode) -> Self {
        Self::over(terrain, executable, folder, mode, Objects::Manifests)
    }

    /// The same with upstream's executable, which reads no manifests: to see that the model decides as upstream does.
    pub fn of_upstream(terrain: &'a Terrain, executable: &'a str, folder: &Path, mode: Mode) -> Self {
        let served = terrain.host(Place::Node).run(Served::start);
        Self::over(terrain, executable, folder, mode, Objects::Server(Box::new(served)))
    }

    fn over(terrain: &'a Terrain, executable: &'a str, folder: &Path, mode: Mode, objects: Objects) -> Self {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
            Ok(()) | Err(_) => {}
        }
        fs::create_dir_all(folder.join("manifests")).expect("making a folder");
        let marker = MARKER_ENDPOINTS.map(|at| (Protocol::Tcp, at.parse().expect("an address")));
        let marker = Servers::start(terrain.host(Place::PodB), &BTreeSet::from(marker));
        if let Some(backend) = mode.backend {
            iptables::hint(terrain.host(Place::Node), backend);
        }
        let folder = folder.to_owned();
        Self { terrain, executable, folder, mode, proxy: None, addresses: None, written: 0, objects, _marker: marker }
    }

    /// Brings a situation into force and makes every connection; complains of what was not as decided.
    pub fn try_one(&mut self, situation: Situation) -> Findings {
        let Situation { name, config, manifest, mut store } = situation;
        let config = self.configuration(&config);
        let settings = settings(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
        let addresses = Addresses::new(
            store.node().into_iter().flat_map(|node| &*node.addresses).filter_map(|known| known.address.clone().ok()),
        );
        let mut manifest = manifest;
        if store.node().is_none() {
            let node = stand_in(&settings, &addresses);
            if let Objects::Server(..) = self.objects {
                manifest += &served::node_yaml(&node);
            }
            store.apply(Event::Upsert(KubeObject::Node(node)));
        }
        // upstream knows the addresses that its Node had when it started
        let start = if let Objects::Server(..) = self.objects { format!("{:?}", store.node()) } else { String::new() };
        let facts = store.node().map(facts).unwrap_or_default();
        self.put((&config, Knows { start, facts }), &addresses, &manifest);
        let decided = Decided::new(&settings, &store, &self.mode, &addresses);
        let found = try_all(self.terrain, &decided, &addresses, self.mode.remembers);
        let mut findings = Findings { connections: found.connections, faults: Vec::new() };
        if !found.faults.is_empty() {
            let explained = explain(&settings, &addresses.local(), &store, &self.mode.profile);
            let mut text = complaint(&format!("{name}, mode {}", self.mode.name), &found.faults, &explained);
            text += "  the end of the proxy's log:\n";
            text.extend(self.log().into_iter().map(|line| format!("    {line}\n")));
            findings.faults.push(text);
        }
        findings
    }

    /// Ends the proxy; the next situation starts another.
    pub fn end_proxy(&mut self) {
        self.proxy = None;
    }

    /// The last lines of the log, without the flags that it begins with.
    fn log(&self) -> Vec<String> {
        let log = self.proxy.as_ref().map(|running| running.proxy.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !line.contains("FLAG: ")).collect();
        lines.iter().rev().take(LOGGED).rev().map(|line| (*line).to_owned()).collect()
    }

    /// From now on decides by this profile, whatever the mode's own is: to see that it makes a difference.
    pub fn set_profile(&mut self, profile: Profile) {
        self.mode.profile = profile;
    }

    /// A case's configuration for this mode and for a namespace that isn't the machine's first.
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
        section.insert("minSyncPeriod".to_owned(), json!("1ms"));
        fields.insert(self.mode.section.to_owned(), Value::Object(section));
        fields.insert("mode".to_owned(), json!(self.mode.name));
        fields.entry("hostnameOverride").or_insert(json!(NODE_NAME));
        // where it is asked how far it is, whatever address it binds otherwise
        fields.entry("metricsBindAddress").or_insert(json!("127.0.0.1:10249"));
        let conntrack = json!({"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"});
        fields.insert("conntrack".to_owned(), conntrack);
        if let Objects::Server(served) = &self.objects {
            let file = self.folder.join("kubeconfig");
            served.kubeconfig(&file);
            fields
                .insert("clientConnection".to_owned(), json!({"kubeconfig": file, "contentType": "application/json"}));
        }
        Value::Object(fields).to_string()
    }

    /// Makes it so that these objects are served by a proxy with this configuration, on a node with these addresses.
    fn put(&mut self, (config, knows): (&str, Knows), addresses: &Addresses, manifest: &str) {
        let stays = self.addresses.as_ref() == Some(addresses)
            && self.proxy.as_mut().is_some_and(|running| {
                let loses_nothing = running.knows.start == knows.start && running.knows.facts.is_subset(&knows.facts);
                running.config == config && loses_nothing && running.proxy.is_running()
            });
        if !stays {
            // so that what answers is the new process
            self.proxy = None;
            self.terrain.readdress(self.addresses.as_ref(), addresses);
            self.addresses = Some(addresses.clone());
        }
        self.written += 1;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs_f64();
        let marker = marker(MARKER_PORTS + self.written);
        match &mut self.objects {
            Objects::Manifests => {
                let draft = self.folder.join("draft.yaml");
                fs::write(&draft, format!("{manifest}\n---\n{marker}")).expect("writing manifests");
                fs::rename(&draft, self.folder.join("manifests/all.yaml")).expect("putting manifests in place");
            }
            Objects::Server(served) => served.put(manifest, &marker),
        }
        match &mut self.proxy {
            Some(running) => running.knows = knows,
            None => self.proxy = Some(self.start(config, knows)),
        }
        self.wait(since);
    }

    fn start(&self, config: &str, knows: Knows) -> Running<'a> {
        let file = self.folder.join("config.yaml");
        fs::write(&file, config).expect("writing the configuration");
        let path = |path: &Path| path.to_str().expect("a path of this repository is text").to_owned();
        let (file, manifests) = (path(&file), path(&self.folder.join("manifests")));
        let arguments = ["--config", &file, "-v=2", "--manifests", &manifests];
        let arguments = match self.objects {
            Objects::Manifests => &arguments[..],
            Objects::Server(..) => &arguments[..3],
        };
        let host = self.terrain.host(Place::Node);
        let proxy = Proxy::start_with(host, self.executable, &self.folder, arguments);
        Running { proxy, config: config.to_owned(), knows }
    }

    /// Waits until what was written last is in force.
    fn wait(&mut self, since: f64) {
        let client = Client::new(self.terrain.host(Place::Node)).patience(Duration::from_millis(100));
        let Some(running) = &mut self.proxy else { return };
        for address in MARKER {
            let at = SocketAddr::new(address.parse().expect("an address"), MARKER_PORTS + self.written);
            running.proxy.wait_for("objects in force", |_| client.tcp(at, 1).all_answered());
        }
        if self.mode.backend.is_some() {
            // a commit of more than one transaction: what refuses goes last
            running.proxy.wait_for("the end of the commit", |proxy| {
                Family::ALL.into_iter().all(|family| {
                    let label = format!("ip_family=\"{family}\"");
                    proxy.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds", &[&label]) > since
                })
            });
            if let Objects::Server(_) = self.objects {
                // Services and slices come one by one: more than one commit
                std::thread::sleep(Duration::from_millis(150));
            }
        }
    }
}

/// What a Node has of which the last value stays.
fn facts(node: &Node) -> BTreeSet<(Family, &'static str)> {
    let addresses = node.addresses.iter().filter_map(|known| known.address.as_ref().ok());
    let addresses = addresses.map(|address| (Family::of(*address), "address"));
    let ranges = node.pod_cidrs.iter().flatten().map(|range| (Family::of_net(*range), "pod range"));
    addresses.chain(ranges).collect()
}

/// The first faults of a situation, and what was decided in their families.
fn complaint(about: &str, faults: &[Fault], explained: &str) -> String {
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

/// What a configuration says about traffic.
fn settings(text: &str) -> Result<Settings, String> {
    let mut config = config::decode(text).map_err(|error| error.to_string())?.config;
    config.apply_platform_defaults();
    config.validate().map_err(|errors| errors.to_string())?;
    Ok(Settings::from_config(&config, &config.hostname_override))
}

/// What the executable makes of a machine that no manifest describes.
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
