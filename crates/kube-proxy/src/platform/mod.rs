//! The machine: its name, its addresses, and this process's limits.

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
pub use linux::{
    TCP_BE_LIBERAL, addresses, asked_to_end, follow_addresses, host_name, machine_name, raise_open_files,
    require_net_admin, set_oom_score, spare_files, track_liberally,
};
