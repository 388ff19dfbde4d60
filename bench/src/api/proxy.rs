//! Starts and observes a proxy under measurement: ours or upstream's.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferry_api::object::Family;
use ferry_kernel::nft::NftSocket;
use rustix::process::{Pid, Signal, kill_process_group};

use super::site::{NODE, Site};
use super::tools::RuleCount;
use crate::process::metrics;
use crate::stats::{children_cpu, memory_mib, stat_cpu, tasks_cpu, threads_cpu, wakes};

/// Time limit of a start.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);
/// Time without a commit after which a start counts as complete, if all rules are present.
const QUIET: Duration = Duration::from_millis(500);
/// Polling interval of the kernel's state.
const POLL: Duration = Duration::from_millis(1);
/// Polling interval of the proxy's child processes: upstream's `nft`, both proxies' `iptables-restore`.
const CHILDREN_POLL: Duration = Duration::from_millis(20);
/// The table, and below the map, of both proxies in nftables mode.
const TABLE: &str = "kube-proxy";
const MAP: &str = "service-ips";

/// An executable under measurement.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
}

/// A running proxy; killed when dropped.
pub(super) struct MeasuredProxy {
    child: Child,
    started: Instant,
    log: PathBuf,
}

/// Cost of a start.
pub(super) struct Start {
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
    pub(super) user: Duration,
    pub(super) system: Duration,
    /// the share of the tools that it ran
    pub(super) children: Duration,
    /// peak memory of its largest child process, in MiB
    pub(super) child_mib: f64,
    pub(super) steps: Steps,
}

/// Writes to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    /// commits of nf_tables
    pub(super) commits: u32,
    /// runs of `iptables-restore`
    pub(super) runs: u32,
}

/// Observes writes to the kernel.
struct Watcher<'a> {
    site: &'a Site,
    socket: NftSocket,
    first: u32,
    seen: Steps,
}

// === impl Program ===

impl Program {
    /// The executable built beside this program.
    pub(super) fn ours() -> anyhow::Result<Self> {
        let path = std::env::current_exe()?.with_file_name("kube-proxy");
        anyhow::ensure!(path.exists(), "{} is missing: build the executable beside this program", path.display());
        Ok(Self { name: "ours", path })
    }

    /// The first line of its output for `--version`.
    pub(super) fn version(&self) -> anyhow::Result<String> {
        let output = Command::new(&self.path).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }

    pub(super) fn start(&self, site: &Site) -> anyhow::Result<MeasuredProxy> {
        let log = site.file("log");
        let mut command = Command::new(&self.path);
        command.arg(format!("--config={}", site.file("config.yaml").display()));
        command.arg(format!("--hostname-override={NODE}"));
        if let Some(tools) = &site.tools {
            tools.apply(&mut command);
        }
        command.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        // The process group includes a tool that outlives the killed proxy.
        let child = command.process_group(0).spawn().with_context(|| format!("starting {}", self.path.display()))?;
        Ok(MeasuredProxy { child, started: Instant::now(), log })
    }
}

// === impl MeasuredProxy ===

impl MeasuredProxy {
    /// Waits until the last rule of a first start is in force: the last write before [`QUIET`], with all services present after
    /// it. `None` if the time limit passes before.
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
            if now - children > CHILDREN_POLL {
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
            std::thread::sleep(POLL);
        }
        // A tool exits some time after its commit.
        watcher.look()?;
        self.start(last - self.started, child_mib, watcher.seen).map(Some)
    }

    /// Waits until its metrics report a sync, with or without writes, and then for [`QUIET`].
    pub(super) fn wait_for_sync(&mut self, site: &Site) -> anyhow::Result<Option<Start>> {
        let mut watcher = Watcher::new(site)?;
        let synced = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
        let mut child_mib = 0.0_f64;
        while !metrics().is_ok_and(|text| text.lines().any(|line| line.starts_with(synced) && !line.ends_with(" 0"))) {
            std::thread::sleep(CHILDREN_POLL);
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
        let of_children = self.children_times()?;
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

    /// CPU time of its child processes.
    pub(super) fn children_cpu(&self) -> anyhow::Result<Duration> {
        let (user, system) = self.children_times()?;
        Ok(user + system)
    }

    /// User and system time of its child processes: those that have ended, and those that run (the tool may wait for another text).
    fn children_times(&self) -> anyhow::Result<(Duration, Duration)> {
        let ended = children_cpu(self.child.id())?;
        // One may end in the meantime.
        let running = self.children().into_iter().filter_map(|child| stat_cpu(&format!("/proc/{child}/stat")).ok());
        Ok(running.fold(ended, |(user, system), more| (user + more.0, system + more.1)))
    }

    /// CPU time of each of its threads, by name.
    pub(super) fn threads_cpu(&self) -> anyhow::Result<Vec<(String, Duration)>> {
        threads_cpu(self.child.id())
    }

    /// Wake-ups of each of its threads, by name: voluntary context switches.
    pub(super) fn wakes(&self) -> anyhow::Result<Vec<(String, u64)>> {
        wakes(self.child.id())
    }

    /// CPU time of its threads and of its child processes.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        Ok(tasks_cpu(self.child.id())? + self.children_cpu()?)
    }

    /// A memory value of /proc/PID/status, in MiB.
    pub(super) fn memory_mib(&self, line: &str) -> anyhow::Result<f64> {
        memory_mib(&self.child.id().to_string(), line)
    }

    /// True until the time limit of a start; an error if the process has ended.
    fn is_awaited(&mut self) -> anyhow::Result<bool> {
        self.expect_alive()?;
        Ok(self.started.elapsed() < PATIENCE)
    }

    /// Fails if the process has ended, with its log.
    pub(super) fn expect_alive(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the proxy has ended, {status}:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
        Ok(())
    }

    /// Peak memory of the largest running child process, in MiB.
    fn largest_child(&self) -> f64 {
        // A child may end in the meantime.
        self.children().iter().filter_map(|child| memory_mib(child, "VmHWM").ok()).fold(0.0, f64::max)
    }

    pub(super) fn has_children(&self) -> bool {
        !self.children().is_empty()
    }

    /// Its running child processes.
    fn children(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        lists.flat_map(|list| list.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
    }
}

impl Drop for MeasuredProxy {
    fn drop(&mut self) {
        // The processes may have ended already.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

// === impl Watcher ===

impl<'a> Watcher<'a> {
    fn new(site: &'a Site) -> anyhow::Result<Self> {
        let mut socket = NftSocket::open()?;
        let first = socket.generation()?;
        if let Some(tools) = &site.tools {
            tools.ended()?;
        }
        Ok(Self { site, socket, first, seen: Steps::default() })
    }

    /// True if there were writes since the last call.
    fn look(&mut self) -> anyhow::Result<bool> {
        let commits = self.socket.generation()?.wrapping_sub(self.first);
        let ended = self.site.tools.as_ref().map_or(Ok(0), |tools| tools.ended())?;
        let seen = Steps { commits, runs: self.seen.runs + ended };
        Ok(std::mem::replace(&mut self.seen, seen) != seen)
    }

    /// True if the rules of all services are present.
    fn is_complete(&mut self) -> anyhow::Result<bool> {
        let workload = self.site.workload;
        if let Some(tools) = &self.site.tools {
            let all = RuleCount { dispatched: workload.services, translated: workload.services * workload.endpoints };
            return Ok(tools.rules()? == all);
        }
        let key = [&self.site.last_vip().octets()[..], &[6, 0, 0, 0], &[0, 80, 0, 0]].concat();
        // The map may not exist yet.
        if !self.socket.element(Family::V4, TABLE, MAP, &key).is_ok_and(|found| found.is_some()) {
            return Ok(false);
        }
        let mut count = 0;
        self.socket.elements(Family::V4, TABLE, MAP, &mut |_| count += 1)?;
        // The self-test has a Service of its own.
        Ok((workload.services..=workload.services + 1).contains(&count))
    }
}
