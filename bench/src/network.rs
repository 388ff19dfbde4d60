//! The network of a measurement: runs `ip`, prepares a namespace for many short connections, and marks the variant of iptables.

use std::process::Command;

use anyhow::{Context as _, ensure};
use ferry_kernel::iptables::Backend;

/// Runs `ip` in the network namespace of this thread.
///
/// # Errors
/// If it fails, with what it says.
pub(crate) fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments).output().context("running ip")?;
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Leaves more ports to connections of this thread's namespace. Those that have ended keep theirs for a minute, or for a second if they
/// may be used again.
///
/// # Errors
/// The system's.
pub(crate) fn allow_many_connections() -> std::io::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 65000")?;
    std::fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1")
}

/// Creates the chain by which a kubelet marks the variant of the machine's tools, in both families of this thread's namespace.
///
/// # Errors
/// If the tool fails.
pub(crate) fn mark_variant(backend: Backend) -> anyhow::Result<()> {
    for base in ["iptables", "ip6tables"] {
        let tool = format!("{base}-{backend}");
        let status = Command::new(&tool).args(["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]).status()?;
        ensure!(status.success(), "{tool}: {status}");
    }
    Ok(())
}
