//! A lab with a running proxy, and a directory of manifests that the test rewrites.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use ferry_api::object::Family;

use crate::host::Host;
use crate::lab::{self, Lab, LabMachine};
use crate::objects::{Manifests, TestService};
use crate::patience::slowly;
use crate::proxy::{ProxyConfig, ProxyProcess};

/// Number of the cluster IP of the marker service, which shows the manifests in force.
const MARKER: u16 = 0xfffa;
/// First port of the marker service; it increases by one with each replacement of the manifests.
const MARKER_PORTS: u16 = 20000;

/// The machines, the proxy on the node, and its manifests.
pub struct Stage<'a> {
    /// the machines
    pub lab: &'a Lab,
    /// the running proxy
    pub proxy: ProxyProcess<'a>,
    executable: &'a str,
    directory: ManifestDirectory,
    config: ProxyConfig,
    manifests: Manifests,
}

/// A directory of manifests, with the proxy's configuration and log beside it.
pub struct ManifestDirectory {
    folder: PathBuf,
    written: u16,
}

// === impl Stage ===

impl<'a> Stage<'a> {
    /// Starts a proxy with these manifests and waits until they are in force. The folder is emptied first.
    pub fn new(lab: &'a Lab, executable: &'a str, folder: &Path, config: ProxyConfig, manifests: &Manifests) -> Self {
        let mut directory = ManifestDirectory::new(folder);
        directory.write(manifests);
        let proxy = directory.start(lab.host(LabMachine::Node), executable, &config);
        let mut stage = Self { lab, proxy, executable, directory, config, manifests: manifests.clone() };
        stage.wait();
        stage
    }

    /// The proxy's machine.
    pub fn node(&self) -> &'a Host {
        self.lab.host(LabMachine::Node)
    }

    /// Replaces all manifests at once and waits until they are in force.
    pub fn set(&mut self, manifests: &Manifests) {
        self.replace(manifests);
        self.wait();
    }

    /// Replaces all manifests at once.
    pub fn replace(&mut self, manifests: &Manifests) {
        self.manifests.clone_from(manifests);
        self.directory.write(manifests);
    }

    /// Brings this configuration and these manifests into force. Restarts the proxy only if its configuration differs or it
    /// doesn't run.
    pub fn reset(&mut self, config: &ProxyConfig, manifests: &Manifests) {
        if self.config == *config && self.proxy.is_running() {
            return self.set(manifests);
        }
        // killed first, so that the new process answers for these manifests
        self.kill();
        self.config.clone_from(config);
        self.replace(manifests);
        self.start();
        self.wait();
    }

    /// Waits until the manifests written last are in force, in both families.
    pub fn wait(&mut self) {
        for family in Family::ALL {
            self.wait_family(family);
        }
    }

    /// Waits until the manifests written last are in force in this family.
    pub fn wait_family(&mut self, family: Family) {
        let lab = self.lab;
        let at = self.directory.marker(family);
        self.proxy.wait_for("manifests in force", |_| {
            lab.from(LabMachine::Node).patience(slowly(Duration::from_millis(100))).tcp(at, 1).all_answered()
        });
    }

    /// Waits until the proxy has completed its first clean-up of other modes' rules: in each family, so many rule domains other than
    /// its own. Before that, an earlier mode's rules may answer.
    pub fn wait_for_hand_over(&mut self, others: usize) {
        self.proxy.wait_for("the hand-over", |proxy| proxy.log().matches("handover.rs:").count() >= 2 * others);
    }

    /// Kills the proxy.
    pub fn kill(&mut self) {
        self.proxy.kill();
    }

    /// Terminates the proxy; returns its exit status, and the time it took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        self.proxy.terminate()
    }

    /// Number of replacements of the manifests.
    pub fn written(&self) -> u16 {
        self.directory.written
    }

    /// Starts the proxy again after a kill; doesn't wait.
    pub fn start(&mut self) {
        self.proxy = self.directory.start(self.node(), self.executable, &self.config);
    }

    /// Kills and restarts the proxy with the same manifests; waits until its full sync is complete.
    pub fn restart(&mut self) {
        self.kill();
        self.start();
        self.proxy.wait_until_synced(&Family::ALL);
    }

    /// Replaces the configuration file. The running proxy finds that by itself.
    pub fn reconfigure(&mut self, config: &ProxyConfig) {
        self.config.clone_from(config);
        self.directory.configure(config);
    }

    /// The folder of the manifests and the log.
    pub fn folder(&self) -> &Path {
        &self.directory.folder
    }
}

// === impl ManifestDirectory ===

impl ManifestDirectory {
    /// An empty directory in a folder, which is emptied.
    pub fn new(folder: &Path) -> Self {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
            Ok(()) | Err(_) => {}
        }
        std::fs::create_dir_all(folder.join("manifests")).expect("making a folder");
        Self { folder: folder.to_owned(), written: 0 }
    }

    /// The folder of the manifests.
    pub fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    /// Replaces all manifests at once, with a new marker.
    pub fn write(&mut self, manifests: &Manifests) {
        self.written += 1;
        let marker = TestService::new("zz-marker", MARKER).port(MARKER_PORTS + self.written);
        let manifests = manifests.clone().with(marker, &[LabMachine::PodB]);
        let draft = self.folder.join("draft.yaml");
        std::fs::write(&draft, manifests.to_string()).expect("writing manifests");
        std::fs::rename(&draft, self.manifests().join("all.yaml")).expect("putting manifests in place");
    }

    /// Replaces the configuration file by a rename.
    pub fn configure(&self, config: &ProxyConfig) {
        let draft = self.folder.join("draft-config.yaml");
        config.write(&draft);
        std::fs::rename(draft, self.folder.join("config.yaml")).expect("putting a configuration in place");
    }

    /// Starts a proxy with these manifests.
    pub fn start<'a>(&self, host: &'a Host, executable: &str, config: &ProxyConfig) -> ProxyProcess<'a> {
        ProxyProcess::start(host, executable, &self.folder, &self.manifests(), config)
    }

    /// The marker's address, which answers as soon as the manifests written last are in force.
    pub fn marker(&self, family: Family) -> SocketAddr {
        SocketAddr::new(lab::cluster_ip(family, MARKER), MARKER_PORTS + self.written)
    }
}
