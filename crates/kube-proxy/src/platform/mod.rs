//! The machine: its name, its addresses, this process's limits, its words for errors.

#[cfg(target_os = "linux")]
mod linux;
mod words;

#[cfg(target_os = "linux")]
pub use linux::{
    TCP_BE_LIBERAL, addresses, asked_to_end, follow_addresses, host_name, machine_name, raise_open_files,
    require_net_admin, set_oom_score, spare_files, track_liberally,
};
pub(crate) use words::reason;
