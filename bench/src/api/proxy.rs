//! A proxy under measurement: ours or upstream's.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferry_kernel::nft::{Family, Socket};

use super::site::{NODE, Site};
use crate::process::metrics;
use crate::stats::{children_cpu, memory_mib, stat_cpu, tasks_cpu};

/// The longest that a start may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// A start is over when nothing is committed for so long and everything is there.
const QUIET: Duration = Duration::from_millis(500);
/// How often the kernel is asked.
const LOOK: Duration = Duration::from_millis(1);
/// How often the proxy's children are looked at: it runs `nft` if it is upstream's.
const LOOK_AT_CHILDREN: Duration = Duration::from_millis(20);
/// The table and the map of both.
const TABLE: &str = "kube-proxy";
const MAP: &str = "service-ips";

/// An executable.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
}

/// A started proxy, ended with the value.
pub(super) struct Proxy {
    child: Child,
    started: Instant,
    log: PathBuf,
}

/// What a start took.
pub(super) struct Start {
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    pub(super) user: Duration,
    pub(super) system: Duration,
    /// the largest that a child of it was, in MiB
    pub(super) child_mib: f64,
    pub(super) commits: u32,
}

// === impl Program ===

impl Program {
    pub(super) fn start(&self, site: &Site) -> anyhow::Result<Proxy> {
        let log = site.file("log");
        let child = Command::new(&self.path)
            .arg(format!("--config={}", site.file("config.yaml").display()))
            .arg(format!("--hostname-override={NODE}"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()
            .with_context(|| format!("starting {}", self.path.display()))?;
        Ok(Proxy { child, started: Instant::now(), log })
    }
}

// === impl Proxy ===

impl Proxy {
    /// Until the last rule of a first start is effective: the last commit before a while without any, after which all
    /// services are there.
    pub(super) fn wait_for_rules(&mut self, site: &Site) -> anyhow::Result<Start> {
        let mut socket = Socket::open()?;
        let first = socket.generation()?;
        let (mut seen, mut last, mut child_mib) = (first, self.started, 0.0_f64);
        let mut children = Instant::now();
        loop {
            let generation = socket.generation()?;
            let now = Instant::now();
            if generation != seen {
                (seen, last) = (generation, now);
            }
            if now - children > LOOK_AT_CHILDREN {
                children = now;
                child_mib = child_mib.max(self.largest_child());
                self.check_alive()?;
            }
            if seen != first && now - last > QUIET {
                if is_complete(&mut socket, site)? {
                    break;
                }
                last = now;
            }
            std::thread::sleep(LOOK);
        }
        self.start(last - self.started, child_mib, seen.wrapping_sub(first))
    }

    /// Until it says that it has synced, with or without a commit; then a while for what it does after that.
    pub(super) fn wait_for_sync(&mut self) -> anyhow::Result<Start> {
        let mut socket = Socket::open()?;
        let first = socket.generation()?;
        let synced = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
        let mut child_mib = 0.0_f64;
        while !metrics().is_ok_and(|text| text.lines().any(|line| line.starts_with(synced) && !line.ends_with(" 0"))) {
            std::thread::sleep(LOOK_AT_CHILDREN);
            child_mib = child_mib.max(self.largest_child());
            self.check_alive()?;
        }
        let wall = self.started.elapsed();
        std::thread::sleep(QUIET);
        let commits = socket.generation()?.wrapping_sub(first);
        self.start(wall, child_mib, commits)
    }

    fn start(&self, wall: Duration, child_mib: f64, commits: u32) -> anyhow::Result<Start> {
        let (user, system) = stat_cpu(&format!("/proc/{}/stat", self.child.id()))?;
        let of_children = children_cpu(self.child.id())?;
        Ok(Start {
            wall,
            cpu: self.cpu()?,
            user: user + of_children.0,
            system: system + of_children.1,
            child_mib,
            commits,
        })
    }

    /// With that of its children that have ended.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        let (user, system) = children_cpu(self.child.id())?;
        Ok(tasks_cpu(self.child.id())? + user + system)
    }

    /// A line of its status, in MiB.
    pub(super) fn memory_mib(&self, line: &str) -> anyhow::Result<f64> {
        memory_mib(&self.child.id().to_string(), line)
    }

    fn check_alive(&mut self) -> anyhow::Result<()> {
        let text = || fs::read_to_string(&self.log).unwrap_or_default();
        if let Some(status) = self.child.try_wait()? {
            bail!("the proxy has ended, {status}:\n{}", text());
        }
        anyhow::ensure!(self.started.elapsed() < PATIENCE, "no rules after {PATIENCE:?}:\n{}", text());
        Ok(())
    }

    /// How large the largest child has been that is there now, in MiB.
    fn largest_child(&self) -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let sizes = children.flat_map(|list| {
            // One may end while it is looked at.
            list.split_ascii_whitespace().filter_map(|child| memory_mib(child, "VmHWM").ok()).collect::<Vec<_>>()
        });
        sizes.fold(0.0, f64::max)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the kernel sends the packets of each service somewhere.
fn is_complete(socket: &mut Socket, site: &Site) -> anyhow::Result<bool> {
    let key = [&site.last_vip().octets()[..], &[6, 0, 0, 0], &[0, 80, 0, 0]].concat();
    // There may be no such map yet.
    if !socket.element(Family::Ip, TABLE, MAP, &key).is_ok_and(|found| found.is_some()) {
        return Ok(false);
    }
    let mut count = 0;
    socket.elements(Family::Ip, TABLE, MAP, &mut |_| count += 1)?;
    Ok(count == site.shape.services)
}
