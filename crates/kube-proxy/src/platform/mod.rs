//! The machine: its name, its addresses, this process's limits.

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
pub use linux::{addresses, follow_addresses, host_name, require_net_admin, set_oom_score};
