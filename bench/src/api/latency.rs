//! From the event's bytes to the commit: one change at a time.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferry_kernel::nft::{Family, Monitor};
use ferry_testkit::api::Told;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::site::Site;

/// The longest that a change may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long each change took.
pub(super) struct Latencies {
    /// from just before its event was written
    pub(super) from_begin: Vec<Duration>,
    /// from when its last byte was
    pub(super) from_end: Vec<Duration>,
}

/// Makes that many changes with pauses between. The end of each is when the kernel tells of its commit to this process:
/// it tells just before it answers the proxy.
pub(super) fn measure(site: &Site, count: usize, pause: Duration) -> anyhow::Result<Latencies> {
    let mut monitor = Monitor::open()?;
    monitor.join()?;
    let mut latencies = Latencies { from_begin: Vec::new(), from_end: Vec::new() };
    for _ in 0..count {
        let _ = monitor.read(&mut |_| {})?;
        let version = site.replace();
        let committed = wait(&mut monitor)?;
        let told = told(site, version)?;
        latencies.from_begin.push(committed - told.begun);
        // The proxy may be faster than the server's return from writing.
        latencies.from_end.push(committed.saturating_duration_since(told.ended));
        std::thread::sleep(pause);
    }
    Ok(latencies)
}

/// Until something happens to the proxy's table.
fn wait(monitor: &mut Monitor) -> anyhow::Result<Instant> {
    let timeout = Timespec::try_from(PATIENCE)?;
    loop {
        let readable = poll(&mut [PollFd::from_borrowed_fd(monitor.as_fd(), PollFlags::IN)], Some(&timeout))?;
        let now = Instant::now();
        anyhow::ensure!(readable > 0, "no commit after {PATIENCE:?}");
        let mut is_it = false;
        let _ = monitor.read(&mut |event| is_it |= event.family == Some(Family::Ip) && event.table == "kube-proxy")?;
        if is_it {
            return Ok(now);
        }
    }
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
