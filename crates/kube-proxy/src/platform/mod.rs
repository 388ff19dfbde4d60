//! The machine: its name, its addresses, this process's limits, its words for errors.

#[cfg(target_os = "linux")]
mod linux;
mod words;

#[cfg(target_os = "linux")]
pub use linux::{addresses, asked_to_end, follow_addresses, host_name, require_net_admin, set_oom_score};
pub(crate) use words::reason;
