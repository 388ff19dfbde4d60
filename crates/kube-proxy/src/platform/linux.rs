//! Linux: host name, addresses, limits of open files, OOM score and capabilities; files and their notifications, figures of the
//! process, and the program itself.

mod client_flows;
mod control;
mod directory;
mod figures;
mod files;
mod flow;
mod folders;
mod program;
mod test_network;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _};
use std::process::ExitCode;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use anyhow::bail;
use ferry_api::config::MODE_WINUSERSPACE;
use ferry_kernel::capability;
use ferry_kernel::link::{self, AddressMonitor};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use client_flows::client_flows;
pub use control::{ControlFile, ControlListener, ControlStream, connect_control};
pub use directory::DirectoryWatch;
pub use figures::process_figures;
pub use files::{change_times, identity, is_at, make_private, sync_folder};
pub use flow::watch_flow;
pub use folders::FolderWatch;
pub use program::{
    HandedOver, IS_REPLACEABLE, OpenSocket, Recording, Samples, end_with_thread, hand_over_memory, handed_over,
    lacks_subsystem, memory_maps, own_program, replace_program, share_one_arena, supports, trim_memory,
};
pub use test_network::TestNetwork;

use crate::input::Input;

/// Delay after a notification, since addresses often change several at a time.
const SETTLE: Duration = Duration::from_millis(20);
/// Maximum number of open files: two thousand listeners for health checks with all the connections that each may have.
const OPEN_FILES: u64 = 65_536;
/// One reserve of open files; a quarter of the limit where that is less.
const RESERVE: u64 = 256;
/// Pause before the next attempt to monitor addresses.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the program with this process's command line.
pub fn run_program(program: fn(Vec<OsString>) -> ExitCode) -> ExitCode {
    program(std::env::args_os().collect())
}

/// The mode that this name stands for on this system: itself.
pub fn mode_of_system(mode: String) -> String {
    mode
}

/// Why the system can't have this mode; `None` if it could.
pub fn why_missing(mode: &str) -> Option<&'static str> {
    (mode == MODE_WINUSERSPACE).then_some(
        "adds Service addresses to an interface of Windows: use userspace, iptables, ipvs or nftables on Linux",
    )
}

/// The host's name as upstream derives a node name from it: trimmed, in lower case. `None` if nothing is left.
pub fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase();
    (!name.is_empty()).then_some(name)
}

/// The host's name, unchanged.
pub fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// All addresses of the node's devices, ordered; without those of the devices of these names.
pub fn addresses(own_devices: &[&str]) -> io::Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = link::addresses(own_devices)?.into_iter().map(|local| local.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Sends the core every change from `known` on, until the core ends.
pub fn follow_addresses(mut known: Vec<IpAddr>, own_devices: &[&str], core: &SyncSender<Input>) {
    loop {
        if let Err(error) = follow(&mut known, own_devices, core) {
            if error.kind() == io::ErrorKind::BrokenPipe {
                return;
            }
            tracing::warn!(err = %error, "Monitoring local addresses failed, retrying");
            std::thread::sleep(RETRY);
        }
    }
}

/// Fails with `BrokenPipe` when the core has ended.
fn follow(known: &mut Vec<IpAddr>, own_devices: &[&str], core: &SyncSender<Input>) -> io::Result<()> {
    let mut monitor = AddressMonitor::open(own_devices)?;
    loop {
        let now = addresses(own_devices)?;
        if now != *known {
            tracing::debug!(addresses = now.len(), "Local addresses changed");
            known.clone_from(&now);
            core.send(Input::Addresses(now)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        while !monitor.changed()? {
            match poll(&mut [PollFd::new(&monitor, PollFlags::IN)], None) {
                Ok(_) => std::thread::sleep(SETTLE),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Fails with advice if this process may not change the network.
pub fn require_net_admin() -> anyhow::Result<()> {
    if !capability::net_admin()? {
        bail!("missing capability CAP_NET_ADMIN: run as root, or grant it to the systemd unit or container");
    }
    Ok(())
}

/// Sets this process's OOM score adjustment. Without the privilege it is not changed.
pub fn set_oom_score(score: i32) {
    let result = i16::try_from(score).map_err(io::Error::other).and_then(ferry_kernel::memory::set_oom_score_adj);
    if let Err(error) = result {
        tracing::debug!(score, err = %error, "Setting the OOM score failed");
    }
}

/// Lets the system kill this child process before others when memory is short, though this process is spared.
pub fn expose_to_oom_killer(process: u32) {
    if let Err(error) = ferry_kernel::memory::expose_to_oom_killer(process) {
        tracing::debug!(process, err = %error, "Raising the OOM score of a child process failed");
    }
}

/// Raises the limit of open files to the permitted maximum, `OPEN_FILES` at most. The default may be low: 1024 if systemd
/// starts the process, fewer than the listeners of a thousand services' health checks.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        tracing::debug!(files = wanted, err = %error, "Raising the limit of open files failed");
    }
}

/// Fails for a file that is among the last ones that this process may open, with the kernel's error for a reached limit. This
/// number of `reserves` of 256 files each (or a quarter of the limit if that is low) is kept for more important files: the first
/// reserve for manifests, credentials, the API server, netlink and probes.
pub fn spare_files(file: &impl AsFd, reserves: u64) -> io::Result<()> {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    // The kernel gives a file the lowest number that is free.
    let number = u64::try_from(file.as_fd().as_raw_fd()).unwrap_or_default();
    if number + reserves * RESERVE.min(limit / 4) < limit { Ok(()) } else { Err(Errno::MFILE.into()) }
}
