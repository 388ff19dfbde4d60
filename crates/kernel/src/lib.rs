//! Kernel interfaces: netlink, nf_tables, iptables, ipset, IPVS, connection tracking, addresses, network namespaces, sysctls,
//! modules; on Windows: addresses and options of sockets.
//! Independent of Kubernetes and of the program above.
//!
//! - [`netlink`] has messages, sockets, sessions and notifications for all netlink protocols. Those are [`nft`] (nf_tables: typed
//!   objects, transactions, notifications), [`conntrack`] (dumps and deletions of entries), [`nfacct`] (counters of `iptables`
//!   rules), [`ipset`] (lists and deletions of sets), [`ipvs`] (virtual servers and destinations, in batches), [`link`] (interfaces
//!   and addresses) and [`dummy`] (the device of kind dummy that holds service addresses: its addresses in batches, and
//!   notifications of its changes). [`route`] adds routes of type `local`, lists them, and receives notifications of their changes;
//!   [`veth`] connects network namespaces.
//! - [`iptables`] runs the tools as child processes, prints and parses rules, and takes the xtables lock.
//! - [`connections`] lists the local addresses of open TCP connections.
//! - [`datagram`] receives and sends datagrams in batches, with their local addresses.
//! - [`forward`] reads what any table's chains in the hook `forward` do with packets of connections.
//! - [`sysctl`], [`module`] (whether a kernel module is loaded, loadable or absent), [`netns`], [`capability`], [`clock`]
//!   (processor time), [`memory`] (heap, OOM score), [`process`] (a new run in its place) and [`profile`] (samples of stacks) are about
//!   this process and its machine.
//! - [`errno`] classifies errors by the caller's next step; [`text`] escapes untrusted text for logs.
//!
//! Read first: `netlink/session.rs`, then `nft/mod.rs` and `nft/batch.rs`.
//!
//! The only crate with `unsafe` code. Everything is synchronous; messages of the kernel are decoded with bounds checks
//! throughout, so that no byte sequence causes a panic.

#[cfg(target_os = "linux")]
pub mod capability;
pub mod children;
#[cfg(target_os = "linux")]
pub mod clock;
#[cfg(target_os = "linux")]
pub mod connections;
#[cfg(target_os = "linux")]
pub mod conntrack;
#[cfg(target_os = "linux")]
pub mod datagram;
#[cfg(target_os = "linux")]
pub mod dummy;
#[cfg(target_os = "linux")]
pub mod errno;
#[cfg(target_os = "linux")]
pub mod forward;
pub mod interface;
#[cfg(target_os = "linux")]
pub mod ipset;
#[cfg(target_os = "linux")]
pub mod iptables;
#[cfg(target_os = "linux")]
pub mod ipvs;
#[cfg(target_os = "linux")]
pub mod link;
#[cfg(target_os = "linux")]
pub mod memory;
#[cfg(target_os = "linux")]
pub mod module;
#[cfg(target_os = "linux")]
pub mod netlink;
#[cfg(target_os = "linux")]
pub mod netns;
#[cfg(target_os = "linux")]
pub mod nfacct;
#[cfg(target_os = "linux")]
pub mod nft;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(target_os = "linux")]
pub mod profile;
#[cfg(target_os = "linux")]
pub mod route;
#[cfg(target_os = "linux")]
pub mod sysctl;
pub mod text;
#[cfg(target_os = "linux")]
pub mod veth;
#[cfg(windows)]
pub mod windows;
