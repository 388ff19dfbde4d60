//! Linux.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use anyhow::bail;
use ferry_kernel::capability;
use ferry_kernel::link::{self, AddressMonitor};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::signal::unix::{SignalKind, signal};

use crate::core::Input;

/// Addresses often change several at a time.
const SETTLE: Duration = Duration::from_millis(20);
/// Before listening to changes is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The host's name, as upstream makes a node name of it: trimmed, in lower case. `None` if nothing is left.
pub fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase();
    (!name.is_empty()).then_some(name)
}

/// Waits until the first process of a container is asked to end, and says with which exit code. Any other process is ended by
/// the signal itself; the kernel spares the first one of a namespace unless it asks for the signal.
///
/// # Errors
/// When the system doesn't let it ask.
pub async fn asked_to_end() -> io::Result<i32> {
    if std::process::id() != 1 {
        return std::future::pending().await;
    }
    let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
    let (mut terminated, mut interrupted) = (signal(terminate)?, signal(interrupt)?);
    let kind = tokio::select! {
        _ = terminated.recv() => terminate,
        _ = interrupted.recv() => interrupt,
    };
    Ok(128 + kind.as_raw_value())
}

/// All addresses of the interfaces, ordered.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = link::addresses()?.into_iter().map(|local| local.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Tells the core about every change from `known` on, until the core ends.
pub fn follow_addresses(mut known: Vec<IpAddr>, core: &SyncSender<Input>) {
    loop {
        if let Err(error) = follow(&mut known, core) {
            if error.kind() == io::ErrorKind::BrokenPipe {
                return;
            }
            tracing::warn!(err = %error, "Listening to changes of local addresses failed, trying again");
            std::thread::sleep(RETRY);
        }
    }
}

/// Fails with `BrokenPipe` when the core has ended.
fn follow(known: &mut Vec<IpAddr>, core: &SyncSender<Input>) -> io::Result<()> {
    let mut monitor = AddressMonitor::open()?;
    loop {
        let now = addresses()?;
        if now != *known {
            tracing::debug!(addresses = now.len(), "Local addresses changed");
            known.clone_from(&now);
            core.send(Input::Addresses(now)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        while !monitor.changed()? {
            match poll(&mut [PollFd::new(&monitor, PollFlags::IN)], None) {
                Ok(_) => std::thread::sleep(SETTLE),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Fails, and says what to do, if this process may not change the network.
pub fn require_net_admin() -> anyhow::Result<()> {
    if !capability::net_admin()? {
        bail!("the capability CAP_NET_ADMIN is missing: run as root, or give it to the unit or container");
    }
    Ok(())
}

/// Sets how readily the kernel ends this process when memory runs out. Without the privilege it stays as it is.
pub fn set_oom_score(score: i32) {
    let result = i16::try_from(score).map_err(io::Error::other).and_then(ferry_kernel::memory::set_oom_score_adj);
    if let Err(error) = result {
        tracing::debug!(score, err = %error, "The OOM score could not be set");
    }
}
