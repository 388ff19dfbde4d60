//! Runs the proxies of one side, each in the namespace of its node.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ferry_lab::Host;

use super::PRIORITY;
use super::network::Network;
use super::objects::node_name;
use crate::stats::{children_cpu, memory_mib, stat_cpu};

/// Number of log lines shown.
const LINES: usize = 5;

/// The proxies and their nodes; both end when dropped.
pub(super) struct Proxies {
    children: Vec<Child>,
    pub(super) nodes: Vec<Host>,
    folder: PathBuf,
    started: Instant,
}

// === impl Proxies ===

impl Proxies {
    /// Creates the nodes, without proxies yet.
    pub(super) fn new(network: &mut Network<'_>, nodes: usize, folder: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { children: Vec::new(), nodes: network.nodes(nodes)?, folder, started: Instant::now() })
    }

    /// Starts all at once, with the priority at which the benchmark was started.
    pub(super) fn start(&mut self, executable: &Path, kubeconfig: &Path) -> anyhow::Result<()> {
        let config = self.folder.join("config.yaml");
        fs::write(&config, configuration(kubeconfig))?;
        self.started = Instant::now();
        for (index, node) in self.nodes.iter().enumerate() {
            let log = File::create(self.log(index))?;
            let arguments = [
                "-n".to_owned(),
                PRIORITY.to_string(),
                executable.display().to_string(),
                format!("--config={}", config.display()),
                format!("--hostname-override={}", node_name(index)),
            ];
            self.children.push(node.spawn("nice", &arguments, |command| {
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            }));
        }
        Ok(())
    }

    /// Start time of the first proxy.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// CPU time of all proxies and of the tools that they ran.
    pub(super) fn processor_time(&self) -> anyhow::Result<Duration> {
        let mut sum = Duration::ZERO;
        for child in &self.children {
            let own = stat_cpu(&format!("/proc/{}/stat", child.id()))?;
            let tools = children_cpu(child.id())?;
            sum += own.0 + own.1 + tools.0 + tools.1;
        }
        Ok(sum)
    }

    /// Resident memory of all proxies in MiB; shared pages count for each.
    pub(super) fn memory(&self) -> anyhow::Result<f64> {
        self.children.iter().map(|child| memory_mib(&child.id().to_string(), "VmRSS")).sum()
    }

    /// The end of a proxy's log.
    pub(super) fn log_tail(&self, node: usize) -> String {
        let log = fs::read_to_string(self.log(node)).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(LINES).collect();
        lines.into_iter().rev().map(|line| format!("    {line}\n")).collect()
    }

    fn log(&self, node: usize) -> PathBuf {
        self.folder.join(format!("{}.log", node_name(node)))
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The process may have ended already.
            let _ = child.kill();
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// The configuration in the form that cluster installers write, without conntrack limits, which can only be set in the
/// initial network namespace.
fn configuration(kubeconfig: &Path) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
         clusterCIDR: 10.128.0.0/9\nclientConnection: {{kubeconfig: \"{}\"}}\n\
         conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n",
        kubeconfig.display()
    )
}
