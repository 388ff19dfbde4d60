//! From the event's bytes to the commit: one change at a time.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferry_api::object::Family;
use ferry_kernel::nft::Monitor;
use ferry_testkit::api::Told;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::site::Site;
use super::tools::Tools;

/// The longest that a change may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long each change took.
pub(super) struct Latencies {
    /// from just before its event was written
    pub(super) from_begin: Vec<Duration>,
    /// from when its last byte was
    pub(super) from_end: Vec<Duration>,
}

/// Who tells that a change is in force.
enum Listener<'a> {
    /// The kernel, of its commits to a table: just before it answers the proxy or its tool.
    Kernel(Monitor, &'static str),
    /// The end of the tool: legacy tables tell nobody.
    Tool(&'a Tools),
}

/// Makes that many changes with pauses between.
pub(super) fn measure(site: &Site, count: usize, pause: Duration) -> anyhow::Result<Latencies> {
    let mut listener = Listener::new(site)?;
    let mut latencies = Latencies { from_begin: Vec::new(), from_end: Vec::new() };
    for _ in 0..count {
        listener.forget()?;
        let version = site.replace();
        let committed = listener.wait()?;
        let told = told(site, version)?;
        latencies.from_begin.push(committed.saturating_duration_since(told.begun));
        // The proxy may be faster than the server's return from writing.
        latencies.from_end.push(committed.saturating_duration_since(told.ended));
        std::thread::sleep(pause);
    }
    Ok(latencies)
}

/// The server notes it after writing, which may be after the proxy's commit.
fn told(site: &Site, version: u64) -> anyhow::Result<Told> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some(told) = site.told().filter(|told| told.version == version) {
            return Ok(told);
        }
        std::thread::yield_now();
    }
    None.context("the server has not told of the change")
}

// === impl Listener ===

impl<'a> Listener<'a> {
    fn new(site: &'a Site) -> anyhow::Result<Self> {
        let table = match (site.shape.mode.table, &site.tools) {
            (Some(table), _) => table,
            (None, Some(tools)) => return Ok(Self::Tool(tools)),
            (None, None) => bail!("nothing shows changes in mode {}", site.shape.mode),
        };
        let mut monitor = Monitor::open()?;
        monitor.join()?;
        Ok(Self::Kernel(monitor, table))
    }

    /// What has been told until now.
    fn forget(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Kernel(monitor, _) => drop(monitor.read(&mut |_| {})?),
            Self::Tool(tools) => drop(tools.ended()?),
        }
        Ok(())
    }

    /// Until something happens to the proxy's table.
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
            let _ = monitor.read(&mut |event| is_it |= event.family == Some(Family::V4) && event.table == *table)?;
            if is_it {
                return Ok(now);
            }
        }
    }
}
