//! Windows: host name and addresses, files, figures and signals, and the program as a service.

mod console;
mod control;
mod figures;
mod files;
mod folders;
mod program;
mod service;
pub mod supervisor;
mod test_network;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use anyhow::Context as _;
use ferry_api::config::{Conntrack, MODE_IPTABLES, MODE_IPVS, MODE_NFTABLES, MODE_USERSPACE, MODE_WINUSERSPACE};
use ferry_api::object::Family;
use ferry_kernel::interface::{AddressRecord, OwnedAddresses};
use ferry_kernel::windows::{addresses, machine};
use ferry_model::Packet;
use ferry_plane::RuleTexts;

pub use ferry_kernel::windows::addresses::IpHelper as ServiceInterfaces;

pub use console::{handle_signals, hang_ups, is_asked_to_end};
pub use control::{ControlFile, ControlListener, ControlStream, connect_control};
pub use figures::process_figures;
pub use files::{change_times, identity, is_at, make_private, sync_folder};
pub use folders::FolderWatch;
pub use program::{
    HandedOver, IS_REPLACEABLE, OpenSocket, Recording, Samples, end_with_thread, hand_over_memory, handed_over,
    lacks_subsystem, memory_maps, own_program, replace_program, share_one_arena, supports, trim_memory,
};
pub use service::{EndingSignal, asked_to_end, run_program};
pub use test_network::TestNetwork;

use crate::input::Input;
use crate::platform::client_flow::ClientFlow;
use crate::platform::watched::{WatchLimits, WatchedFlow};

/// Interval of looks at the addresses. The system's notifications call a function on a thread of its own, which has no safe
/// interface; the table is small.
const LOOK: Duration = Duration::from_secs(2);
/// The variable that names the interface of the addresses of Services in upstream's mode winuserspace.
const INTERFACE_VARIABLE: &str = "INTERFACE_TO_ADD_SERVICE_IP";
/// The usual interfaces for these addresses: loopback's, and the internal one of HNS, which upstream's mode uses.
const INTERFACES: [&str; 2] = ["Loopback Pseudo-Interface 1", "vEthernet (HNS Internal NIC)"];
/// Pause before the next attempt to list addresses.
const RETRY: Duration = Duration::from_secs(10);

/// The mode that this name stands for on this system: the one that listens on the addresses of Services is the default, and
/// `userspace` means it.
pub fn mode_of_system(mode: String) -> String {
    if mode.is_empty() || mode == MODE_USERSPACE { MODE_WINUSERSPACE.to_owned() } else { mode }
}

/// Why the system can't have this mode; `None` if it could.
pub fn why_missing(mode: &str) -> Option<&'static str> {
    [MODE_IPTABLES, MODE_IPVS, MODE_NFTABLES]
        .contains(&mode)
        .then_some("programs the Linux kernel: use winuserspace on Windows")
}

/// The host's name as upstream derives a node name from it: trimmed, in lower case. `None` if nothing is left.
pub fn host_name() -> Option<String> {
    let name = machine_name().trim().to_lowercase();
    (!name.is_empty()).then_some(name)
}

/// The host's name, unchanged; empty if the system doesn't tell.
pub fn machine_name() -> String {
    machine::host_name().unwrap_or_default()
}

/// All addresses of the node's interfaces, ordered. Those that are never a source are the program's own service addresses, wherever
/// they are, so that no interface has to be left out.
///
/// # Errors
/// The system's.
pub fn addresses(_own_devices: &[&str]) -> io::Result<Vec<IpAddr>> {
    let all = addresses::all()?.into_iter().filter(|local| !local.never_source);
    let mut addresses: Vec<IpAddr> = all.map(|local| local.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Sends the core every change from `known` on, until the core ends.
pub fn follow_addresses(mut known: Vec<IpAddr>, own_devices: &[&str], core: &SyncSender<Input>) {
    loop {
        match addresses(own_devices) {
            Ok(now) if now == known => std::thread::sleep(LOOK),
            Ok(now) => {
                tracing::debug!(addresses = now.len(), "Local addresses changed");
                known.clone_from(&now);
                if core.send(Input::Addresses(now)).is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(err = %error, "Listing local addresses failed, retrying");
                std::thread::sleep(RETRY);
            }
        }
    }
}

/// The interface that gets the addresses of Services: the configured one, or that of upstream's variable of the environment, or the first
/// of the usual ones that this machine has.
///
/// # Errors
/// If there is none: the interfaces of this machine, and what to do.
pub fn interface_of_services(configured: &str) -> anyhow::Result<String> {
    let known = addresses::interfaces().context("listing interfaces")?;
    let wanted = match std::env::var(INTERFACE_VARIABLE) {
        _ if !configured.is_empty() => vec![configured.to_owned()],
        Ok(named) if !named.is_empty() => vec![named],
        Ok(_) | Err(_) => INTERFACES.map(str::to_owned).to_vec(),
    };
    let found = wanted.iter().find(|name| known.contains(name));
    found.cloned().with_context(|| {
        format!(
            "no interface {} for the addresses of Services: name one of {} as userspaceInterface",
            wanted.join(" or "),
            known.join(", ")
        )
    })
}

/// The addresses of Services that this program has added to this interface, and those of a run that has crashed.
///
/// # Errors
/// If there is no such interface, or the record of addresses can't be read: the text names it.
pub fn service_addresses(interface: &str, family: Family) -> anyhow::Result<OwnedAddresses<ServiceInterfaces>> {
    let folder = std::env::var_os("ProgramData").map_or_else(std::env::temp_dir, PathBuf::from).join("kube-proxy");
    std::fs::create_dir_all(&folder).with_context(|| format!("making the folder {}", folder.display()))?;
    let record = AddressRecord::new(folder.join(format!("addresses-{}", family.to_string().to_lowercase())));
    Ok(OwnedAddresses::open(ServiceInterfaces, interface, record)?)
}

/// True if the system can give addresses to interfaces.
pub fn can_add_addresses() -> bool {
    addresses::can_add()
}

/// The privileges that a mode needs are found out by it: service addresses take those of an administrator.
///
/// # Errors
/// None.
pub fn require_net_admin() -> anyhow::Result<()> {
    Ok(())
}

/// Windows has no such score.
pub fn set_oom_score(_score: i32) {}

/// Windows kills no process when memory is short.
pub fn expose_to_oom_killer(_process: u32) {}

/// Windows has no limit of open files and sockets but memory.
pub fn raise_open_files() {}

/// Windows has no such limit, so that none is spare.
///
/// # Errors
/// None.
pub fn spare_files<F>(_file: &F, _reserves: u64) -> io::Result<()> {
    Ok(())
}

/// Windows reports nothing about packets.
pub fn watch_flow(_packet: &Packet, _limits: WatchLimits, _words: &RuleTexts) -> io::Result<WatchedFlow> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "needs nf_tables: see explain"))
}

/// Windows translates no connection of a Service: no flow has an entry.
pub fn client_flows(_packet: &Packet) -> io::Result<Vec<ClientFlow>> {
    Ok(Vec::new())
}

/// Windows tracks no connections for the proxy: their parameters are Linux's.
pub fn set_connection_tracking(_config: &Conntrack) {}
