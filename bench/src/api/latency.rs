//! Measures latency from writing a watch event to the commit of its change, one change at a time.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferry_api::object::Family;
use ferry_kernel::nft::{Monitor, NftNotice};
use ferry_lab::api::Delivery;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::site::Site;
use super::tools::Tools;

/// Time limit of a change.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Latency of each change.
pub(super) struct Latencies {
    /// from just before its event was written
    pub(super) from_begin: Vec<Duration>,
    /// from just after its last byte was written
    pub(super) from_end: Vec<Duration>,
}

/// Source of the signal that a change is in force.
enum CommitSignal<'a> {
    /// nf_tables notifications of commits to a table, sent just before the kernel answers the proxy or its tool.
    Kernel(Monitor, &'static str),
    /// The end of the tool's process: legacy tables send no notifications.
    Tool(&'a Tools),
}

/// Makes `count` changes with pauses between them.
pub(super) fn measure(site: &Site, count: usize, pause: Duration) -> anyhow::Result<Latencies> {
    let mut signal = CommitSignal::new(site)?;
    let mut latencies = Latencies { from_begin: Vec::new(), from_end: Vec::new() };
    for _ in 0..count {
        signal.forget()?;
        let version = site.replace();
        let committed = signal.wait()?;
        let delivery = delivery(site, version)?;
        latencies.from_begin.push(committed.saturating_duration_since(delivery.begun));
        // The proxy may be faster than the server's return from writing.
        latencies.from_end.push(committed.saturating_duration_since(delivery.ended));
        std::thread::sleep(pause);
    }
    Ok(latencies)
}

/// The times of sending a change. The server records them after writing, which may be after the proxy's commit.
pub(super) fn delivery(site: &Site, version: u64) -> anyhow::Result<Delivery> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some(delivery) = site.last_delivery().filter(|delivery| delivery.version == version) {
            return Ok(delivery);
        }
        std::thread::yield_now();
    }
    None.context("the server has not sent the change")
}

// === impl CommitSignal ===

impl<'a> CommitSignal<'a> {
    fn new(site: &'a Site) -> anyhow::Result<Self> {
        let table = match (site.workload.mode.table, &site.tools) {
            (Some(table), _) => table,
            (None, Some(tools)) => return Ok(Self::Tool(tools)),
            (None, None) => bail!("nothing shows changes in mode {}", site.workload.mode),
        };
        let mut monitor = Monitor::open()?;
        monitor.join()?;
        Ok(Self::Kernel(monitor, table))
    }

    /// Discards the signals so far.
    fn forget(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Kernel(monitor, _) => drop(monitor.read(&mut |_| {})?),
            Self::Tool(tools) => drop(tools.ended()?),
        }
        Ok(())
    }

    /// Waits for a change of the proxy's table.
    fn wait(&mut self) -> anyhow::Result<Instant> {
        let (monitor, table) = match self {
            Self::Kernel(monitor, table) => (monitor, table),
            Self::Tool(tools) => {
                return tools.wait(PATIENCE)?.with_context(|| format!("no run of the tool after {PATIENCE:?}"));
            }
        };
        let timeout = Timespec::try_from(PATIENCE)?;
        loop {
            let readable = poll(&mut [PollFd::from_borrowed_fd(monitor.as_fd(), PollFlags::IN)], Some(&timeout))?;
            let now = Instant::now();
            anyhow::ensure!(readable > 0, "no commit after {PATIENCE:?}");
            let mut is_it = false;
            let _ = monitor.read(&mut |notice| match notice {
                NftNotice::Changed(event) => is_it |= event.family == Some(Family::V4) && event.table == *table,
                NftNotice::Committed { .. } => {}
            })?;
            if is_it {
                return Ok(now);
            }
        }
    }
}
