//! The operating system's part of connections and exec plugins, a file for each system.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(super) use linux::{ProcessGroup, limit_unacknowledged};
#[cfg(windows)]
pub(super) use windows::{ProcessGroup, limit_unacknowledged};
