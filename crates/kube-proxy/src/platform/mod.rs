//! The operating system: the machine's name and addresses, this process's limits, figures and signals, files and their
//! notifications, the parameters of connection tracking, conntrack entries, what packets meet, and the service manager. Linux and Windows have a file each, and a folder of
//! that name; `cargo xt layers` finds calls of either elsewhere.

mod client_flow;
mod figures;
#[cfg(target_os = "linux")]
mod linux;
mod notice;
pub mod polling;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
pub mod supervisor;
mod test_addresses;
#[cfg(target_os = "linux")]
mod tracking;
mod watched;
#[cfg(windows)]
mod windows;

pub use client_flow::ClientFlow;
pub use figures::ProcessFigures;
pub use notice::FileNotice;
pub use test_addresses::{TEST_PORT, TestAddresses};
pub use watched::{PacketEnd, WatchLimits, WatchedFlow, WatchedPacket};

#[cfg(target_os = "linux")]
pub use linux::{
    ControlFile, ControlListener, ControlStream, DirectoryWatch, FolderWatch, HandedOver, IS_REPLACEABLE, OpenSocket,
    Recording, Samples, TestNetwork, addresses, change_times, client_flows, connect_control, end_with_thread,
    expose_to_oom_killer, follow_addresses, hand_over_memory, handed_over, host_name, identity, is_at, lacks_subsystem,
    machine_name, make_private, memory_maps, mode_of_system, own_program, process_figures, raise_open_files,
    replace_program, require_net_admin, run_program, set_oom_score, share_one_arena, spare_files, supports,
    sync_folder, trim_memory, watch_flow, why_missing,
};
#[cfg(windows)]
pub use polling::DirectoryWatch;
#[cfg(target_os = "linux")]
pub use signals::{EndingSignal, asked_to_end, handle_signals, hang_ups, is_asked_to_end};
#[cfg(target_os = "linux")]
pub use tracking::{TCP_BE_LIBERAL, set_connection_tracking};
#[cfg(windows)]
pub use windows::{
    ControlFile, ControlListener, ControlStream, EndingSignal, FolderWatch, HandedOver, IS_REPLACEABLE, OpenSocket,
    Recording, Samples, ServiceInterfaces, TestNetwork, addresses, asked_to_end, can_add_addresses, change_times,
    client_flows, connect_control, end_with_thread, expose_to_oom_killer, follow_addresses, hand_over_memory,
    handed_over, handle_signals, hang_ups, host_name, identity, interface_of_services, is_asked_to_end, is_at,
    lacks_subsystem, machine_name, make_private, memory_maps, mode_of_system, own_program, process_figures,
    raise_open_files, replace_program, require_net_admin, run_program, service_addresses, set_connection_tracking,
    set_oom_score, share_one_arena, spare_files, supervisor, supports, sync_folder, trim_memory, watch_flow,
    why_missing,
};
