//! The machine: its name, its addresses, this process's limits and signals, the parameters of connection tracking, and systemd.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
pub mod supervisor;
#[cfg(target_os = "linux")]
mod tracking;

#[cfg(target_os = "linux")]
pub use linux::{
    addresses, follow_addresses, host_name, machine_name, raise_open_files, require_net_admin, set_oom_score,
    spare_files,
};
#[cfg(target_os = "linux")]
pub use signals::{asked_to_end, handle_signals, hang_ups, is_asked_to_end};
#[cfg(target_os = "linux")]
pub use tracking::{TCP_BE_LIBERAL, set_connection_tracking};
