//! A lab with a proxy in it and a directory of manifests that a test rewrites.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ferry_api::object::Family;

use crate::host::Host;
use crate::lab::{self, Lab, Place};
use crate::objects::{Manifests, Service};
use crate::proxy::{Config, Proxy};

/// The cluster IP of the service that tells which manifests are in force.
const MARKER: u16 = 0xfffa;
/// Its port says which: the first one, and then one more for each.
const MARKER_PORTS: u16 = 20000;

/// The machines, the proxy on the node, and the manifests it reads.
pub struct Stage<'a> {
    /// the machines
    pub lab: &'a Lab,
    /// the proxy that runs at present
    pub proxy: Proxy<'a>,
    executable: &'a str,
    directory: Directory,
    config: Config,
    manifests: Manifests,
}

/// A directory of manifests and what is beside it.
pub struct Directory {
    folder: PathBuf,
    written: u16,
}

// === impl Stage ===

impl<'a> Stage<'a> {
    /// Starts a proxy over these manifests and waits until it serves them. The folder is emptied first.
    pub fn new(lab: &'a Lab, executable: &'a str, folder: &Path, config: Config, manifests: &Manifests) -> Self {
        let mut directory = Directory::new(folder);
        directory.write(manifests);
        let proxy = directory.start(lab.host(Place::Node), executable, &config);
        let mut stage = Self { lab, proxy, executable, directory, config, manifests: manifests.clone() };
        stage.wait();
        stage
    }

    /// The machine that the proxy runs on.
    pub fn node(&self) -> &'a Host {
        self.lab.host(Place::Node)
    }

    /// Replaces all manifests at once and waits until they are served.
    pub fn set(&mut self, manifests: &Manifests) {
        self.replace(manifests);
        self.wait();
    }

    /// Replaces all manifests at once.
    pub fn replace(&mut self, manifests: &Manifests) {
        self.manifests.clone_from(manifests);
        self.directory.write(manifests);
    }

    /// Makes it so that a proxy with this configuration serves these manifests, whatever went on before.
    pub fn reset(&mut self, config: &Config, manifests: &Manifests) {
        if self.config == *config && self.proxy.is_running() {
            return self.set(manifests);
        }
        // first killed, so that what answers for these manifests is the new process
        self.kill();
        self.config.clone_from(config);
        self.replace(manifests);
        self.start();
        self.wait();
    }

    /// Waits until the manifests written last are served, in both families.
    pub fn wait(&mut self) {
        for family in Family::ALL {
            self.wait_family(family);
        }
    }

    /// Waits until the manifests written last are served in this family.
    pub fn wait_family(&mut self, family: Family) {
        let lab = self.lab;
        let at = self.directory.marker(family);
        self.proxy.wait_for("manifests in force", |_| {
            lab.from(Place::Node).patience(Duration::from_millis(100)).tcp(at, 1).all_answered()
        });
    }

    /// Waits until the proxy has looked for rules of other modes once: in each family in the two places that aren't its own. Until
    /// then an earlier mode's rules may answer.
    pub fn wait_for_hand_over(&mut self) {
        self.proxy.wait_for("the hand-over", |proxy| proxy.log().matches("handover.rs:").count() >= 4);
    }

    /// Kills the proxy as it is.
    pub fn kill(&mut self) {
        self.proxy.kill();
    }

    /// Asks the proxy to end; how it did, and how long it took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        self.proxy.terminate()
    }

    /// How many times manifests were put in place.
    pub fn written(&self) -> u16 {
        self.directory.written
    }

    /// Starts it again after it was killed; doesn't wait.
    pub fn start(&mut self) {
        self.proxy = self.directory.start(self.node(), self.executable, &self.config);
    }

    /// Kills it and starts it again over the same manifests; waits until it has compared everything with the kernel.
    pub fn restart(&mut self) {
        self.kill();
        self.start();
        self.proxy.wait_until_synced(&Family::ALL);
    }

    /// Where the manifests and the log are.
    pub fn folder(&self) -> &Path {
        &self.directory.folder
    }
}

// === impl Directory ===

impl Directory {
    /// An empty one in a folder, which is emptied.
    pub fn new(folder: &Path) -> Self {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
            Ok(()) | Err(_) => {}
        }
        std::fs::create_dir_all(folder.join("manifests")).expect("making a folder");
        Self { folder: folder.to_owned(), written: 0 }
    }

    /// Where the manifests are.
    pub fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    /// Puts these in place of all others, at once, with the marker.
    pub fn write(&mut self, manifests: &Manifests) {
        self.written += 1;
        let marker = Service::new("zz-marker", MARKER).port(MARKER_PORTS + self.written);
        let manifests = manifests.clone().with(marker, &[Place::PodB]);
        let draft = self.folder.join("draft.yaml");
        std::fs::write(&draft, manifests.to_string()).expect("writing manifests");
        std::fs::rename(&draft, self.manifests().join("all.yaml")).expect("putting manifests in place");
    }

    /// Starts a proxy over it.
    pub fn start<'a>(&self, host: &'a Host, executable: &str, config: &Config) -> Proxy<'a> {
        Proxy::start(host, executable, &self.folder, &self.manifests(), config)
    }

    /// Where something answers as soon as the manifests written last are in force.
    pub fn marker(&self, family: Family) -> SocketAddr {
        SocketAddr::new(lab::cluster_ip(family, MARKER), MARKER_PORTS + self.written)
    }
}

/// Waits until something is so, and says how long it took.
///
/// # Panics
/// If it isn't after the limit.
pub fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < slowly(limit), "{what}: not after {:?}", start.elapsed());
    }
    start.elapsed()
}

/// Whether something becomes so before the limit is over.
pub fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > slowly(limit) {
            return false;
        }
    }
    true
}

/// A time limit on this machine: `FERRY_SLOWNESS` says how many times slower it is than others, as an emulated one is.
pub fn slowly(limit: Duration) -> Duration {
    static SLOWNESS: OnceLock<u32> = OnceLock::new();
    let slowness = SLOWNESS.get_or_init(|| match std::env::var("FERRY_SLOWNESS") {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("FERRY_SLOWNESS={text}: {error}")),
        Err(_) => 1,
    });
    limit * *slowness
}
