//! A proxy under measurement: ours or upstream's.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferry_api::object::Family;
use ferry_kernel::nft::Socket;
use rustix::process::{Pid, Signal, kill_process_group};

use super::site::{NODE, Site};
use super::tools::Count;
use crate::process::metrics;
use crate::stats::{children_cpu, memory_mib, stat_cpu, tasks_cpu, threads_cpu};

/// How long a start is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);
/// A start is over when nothing is committed for so long and everything is there.
const QUIET: Duration = Duration::from_millis(500);
/// How often the kernel is asked.
const LOOK: Duration = Duration::from_millis(1);
/// How often the proxy's children are looked at: `nft` of upstream's, `iptables-restore` of both.
const LOOK_AT_CHILDREN: Duration = Duration::from_millis(20);
/// The table and the map of both in nftables mode.
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
    /// what of it the tools were that it ran
    pub(super) children: Duration,
    /// the largest that a child of it was, in MiB
    pub(super) child_mib: f64,
    pub(super) steps: Steps,
}

/// What has been done to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    /// to nf_tables
    pub(super) commits: u32,
    /// of `iptables-restore`
    pub(super) runs: u32,
}

/// Who looks what is done to the kernel.
struct Watcher<'a> {
    site: &'a Site,
    socket: Socket,
    first: u32,
    seen: Steps,
}

// === impl Program ===

impl Program {
    /// The executable built beside this program.
    pub(super) fn ours() -> anyhow::Result<Self> {
        let path = std::env::current_exe()?.with_file_name("kube-proxy");
        anyhow::ensure!(path.exists(), "{} has to be built beside this program", path.display());
        Ok(Self { name: "ours", path })
    }

    pub(super) fn start(&self, site: &Site) -> anyhow::Result<Proxy> {
        let log = site.file("log");
        let mut command = Command::new(&self.path);
        command.arg(format!("--config={}", site.file("config.yaml").display()));
        command.arg(format!("--hostname-override={NODE}"));
        if let Some(tools) = &site.tools {
            tools.apply(&mut command);
        }
        command.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        // A tool that runs on when its proxy is killed is in the group.
        let child = command.process_group(0).spawn().with_context(|| format!("starting {}", self.path.display()))?;
        Ok(Proxy { child, started: Instant::now(), log })
    }
}

// === impl Proxy ===

impl Proxy {
    /// Until the last rule of a first start is effective: the last step before a while without any, after which all
    /// services are there. `None`: they never were while that was waited for.
    pub(super) fn wait_for_rules(&mut self, site: &Site) -> anyhow::Result<Option<Start>> {
        let mut watcher = Watcher::new(site)?;
        let (mut last, mut child_mib) = (self.started, 0.0_f64);
        let mut children = Instant::now();
        loop {
            let moved = watcher.look()?;
            let now = Instant::now();
            if moved {
                last = now;
            }
            if now - children > LOOK_AT_CHILDREN {
                children = now;
                child_mib = child_mib.max(self.largest_child());
                if !self.is_awaited()? {
                    return Ok(None);
                }
            }
            if watcher.seen != Steps::default() && now - last > QUIET {
                if watcher.is_complete()? {
                    break;
                }
                last = now;
            }
            std::thread::sleep(LOOK);
        }
        // A tool ends a while after its commit.
        watcher.look()?;
        self.start(last - self.started, child_mib, watcher.seen).map(Some)
    }

    /// Until it says that it has synced, with or without a step; then a while for what it does after that.
    pub(super) fn wait_for_sync(&mut self, site: &Site) -> anyhow::Result<Option<Start>> {
        let mut watcher = Watcher::new(site)?;
        let synced = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
        let mut child_mib = 0.0_f64;
        while !metrics().is_ok_and(|text| text.lines().any(|line| line.starts_with(synced) && !line.ends_with(" 0"))) {
            std::thread::sleep(LOOK_AT_CHILDREN);
            child_mib = child_mib.max(self.largest_child());
            if !self.is_awaited()? {
                return Ok(None);
            }
        }
        let wall = self.started.elapsed();
        std::thread::sleep(QUIET);
        watcher.look()?;
        self.start(wall, child_mib, watcher.seen).map(Some)
    }

    fn start(&self, wall: Duration, child_mib: f64, steps: Steps) -> anyhow::Result<Start> {
        let (user, system) = stat_cpu(&format!("/proc/{}/stat", self.child.id()))?;
        let of_children = children_cpu(self.child.id())?;
        Ok(Start {
            wall,
            cpu: self.cpu()?,
            user: user + of_children.0,
            system: system + of_children.1,
            children: of_children.0 + of_children.1,
            child_mib,
            steps,
        })
    }

    /// What its children that have ended have used.
    pub(super) fn children_cpu(&self) -> anyhow::Result<Duration> {
        let (user, system) = children_cpu(self.child.id())?;
        Ok(user + system)
    }

    /// Of each of its threads, by name.
    pub(super) fn threads_cpu(&self) -> anyhow::Result<Vec<(String, Duration)>> {
        threads_cpu(self.child.id())
    }

    /// With that of its children that have ended.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        Ok(tasks_cpu(self.child.id())? + self.children_cpu()?)
    }

    /// A line of its status, in MiB.
    pub(super) fn memory_mib(&self, line: &str) -> anyhow::Result<f64> {
        memory_mib(&self.child.id().to_string(), line)
    }

    /// Whether it runs, and not yet for too long.
    fn is_awaited(&mut self) -> anyhow::Result<bool> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the proxy has ended, {status}:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
        Ok(self.started.elapsed() < PATIENCE)
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
        // They may have ended by themselves.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

// === impl Watcher ===

impl<'a> Watcher<'a> {
    fn new(site: &'a Site) -> anyhow::Result<Self> {
        let mut socket = Socket::open()?;
        let first = socket.generation()?;
        if let Some(tools) = &site.tools {
            tools.ended()?;
        }
        Ok(Self { site, socket, first, seen: Steps::default() })
    }

    /// Whether something has been done since it looked last.
    fn look(&mut self) -> anyhow::Result<bool> {
        let commits = self.socket.generation()?.wrapping_sub(self.first);
        let ended = self.site.tools.as_ref().map_or(Ok(0), |tools| tools.ended())?;
        let seen = Steps { commits, runs: self.seen.runs + ended };
        Ok(std::mem::replace(&mut self.seen, seen) != seen)
    }

    /// Whether the kernel sends the packets of each service somewhere.
    fn is_complete(&mut self) -> anyhow::Result<bool> {
        let shape = self.site.shape;
        if let Some(tools) = &self.site.tools {
            let all = Count { dispatched: shape.services, translated: shape.services * shape.endpoints };
            return Ok(tools.rules()? == all);
        }
        let key = [&self.site.last_vip().octets()[..], &[6, 0, 0, 0], &[0, 80, 0, 0]].concat();
        // There may be no such map yet.
        if !self.socket.element(Family::V4, TABLE, MAP, &key).is_ok_and(|found| found.is_some()) {
            return Ok(false);
        }
        let mut count = 0;
        self.socket.elements(Family::V4, TABLE, MAP, &mut |_| count += 1)?;
        Ok(count == shape.services)
    }
}
