//! The ipvs mode: a virtual server for each frontend, the service addresses on a device of their own, and beside them one nf_tables
//! table per family of constant shape, which marks for masquerading, restricts sources and refuses.
//!
//! No child process runs, and no iptables rule or ipset exists. A changed endpoint is a message to IPVS and touches the table only
//! if it is the first or the last one of a Service.
//!
//! # The way of a batch
//!
//! 1. The engine (crate `ferry-plane`) calls [`Ipvs`], this mode's compiler. [`compile`] turns a unit into objects: `shape` maps
//!    a frontend's treatment to a verdict and a scope, `base` compiles the table. [`object`] defines objects, keys and ranks.
//! 2. The engine diffs both lists of objects and passes the batch to [`kernel`], three layers: `table`, `servers` and `device`.
//!    Creations and replacements go up, so that a packet is marked or refused before a server can take it, and a server is there
//!    before its address. Deletions come down.
//! 3. `table` encodes (`encode`, `wire`, `layout`) and sends nf_tables transactions. `servers` plans commands for IPVS: `plan` by
//!    comparison with the kernel, `drain` for endpoints that keep their connections. `device` adds and removes addresses.
//!    `failures` maps refusals of single requests to operations.
//! 4. At a start, after foreign changes and for repairs, `read` reads the table back, `servers` the virtual servers, of which
//!    `ledger` knows which are ours (`admission` decides on those in the way), and `device` the addresses. `hint` narrows down the
//!    units that may want a key.
//! 5. Foreign changes are notified of the table and of the device (`watch`). IPVS has no notifications: `looks` paces the looks.
//!
//! Read first: [`object`], then `compile`, `servers/mod.rs` and `table`. [docs/modes/ipvs.md](../../../docs/modes/ipvs.md) shows
//! the result.
//!
//! # Beside the way
//!
//! - `setup` sets kernel parameters, `probe` tests once whether the kernel supports the table.
//! - [`retire`] removes the servers and addresses once another mode serves, and [`retire::in_use`] detects servers of an earlier run.
//! - For tests and people: `trace` simulates the objects on a packet, [`render`] prints them, and `refers` lists the references
//!   between them.

mod base;
pub mod compile;
mod device;
mod encode;
mod failures;
mod hint;
pub mod kernel;
mod layout;
pub mod names;
pub mod object;
mod probe;
mod read;
#[cfg(feature = "testing")]
mod refers;
pub mod render;
pub mod retire;
pub mod server;
mod servers;
mod setup;
mod shape;
mod table;
mod trace;
mod watch;
mod wire;

use std::io;

use ferry_api::object::Family;
use ferry_plane::engine::Engine;

pub use base::Pings;
pub use compile::Ipvs;
pub use ferry_ruleset::watch::listener;
pub use kernel::{IpvsKernel, Options, Shared};
pub use object::{IpvsKey, IpvsObject};
pub use server::{ServerId, VirtualServer};
pub use servers::{ForwardingReports, SchedulerReports, ServerOptions};
pub use table::IpvsCommitLock;
pub use trace::Tracer;
pub use watch::DeviceWatch;

/// The engine of this mode.
pub type IpvsEngine = Engine<Ipvs, IpvsKernel>;

/// Opens the engine of one family, in the network namespace of this thread. Engines of one process share `shared`.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] with an advice if the kernel lacks IPVS; `EPERM` without `CAP_NET_ADMIN`; any other error of
/// opening the sockets.
pub fn engine(family: Family, shared: &Shared, options: Options) -> io::Result<IpvsEngine> {
    Ok(Engine::new(Ipvs::new(family, options.pings), kernel::open(family, shared, options)?))
}
