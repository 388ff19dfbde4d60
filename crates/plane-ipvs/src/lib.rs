//! The ipvs mode: a virtual server for each frontend, the service addresses on a device of their own, and beside them one nf_tables
//! table per family of constant shape, which marks for masquerading, restricts sources and refuses.
//!
//! No child process runs, and no iptables rule or ipset exists. A changed endpoint is a message to IPVS and touches the table only
//! if it is the first or the last one of a Service.
//!
//! # The way of a batch
//!
//! 1. The engine (crate `ferry-plane`) calls [`Ipvs`], this mode's compiler. [`compile`] turns a unit into objects: `shape` maps
//!    a frontend's treatment to a verdict and a scope, `base` compiles the table. [`object`] defines objects, keys and ranks,
//!    [`element`] the elements of the table, [`names`] and `vocabulary` the table.
//! 2. The engine diffs both lists of objects and passes the batch to [`kernel`], three layers: the table
//!    ([`ferry_ruleset::table`]), `servers` and `device`. Creations and replacements go up, so that a packet is marked or refused
//!    before a server can take it, and a server is there before its address. Deletions come down.
//! 3. The table's layer sends nf_tables transactions. `servers` plans commands for IPVS: `plan` by comparison with the kernel,
//!    `drain` for endpoints that keep their connections. `device` adds and removes addresses. `failures` maps refusals of single
//!    requests to operations.
//! 4. At a start, after foreign changes and for repairs, each layer reads its objects back. `servers/ledger` decides which virtual
//!    servers are ours, `servers/admission` decides on those in the way. `hint` narrows down the units that may want a key.
//! 5. Foreign changes are notified of the table and of the device (`watch`). IPVS has no notifications: `looks` paces the looks.
//!
//! Read first: [`object`] and [`element`], then `compile` and `servers/mod.rs`. [docs/modes/ipvs.md](../../../docs/modes/ipvs.md) shows
//! the result.
//!
//! # Beside the way
//!
//! - `setup` sets kernel parameters.
//! - [`retire`] removes the servers and addresses once another mode serves, and [`retire::in_use`] detects servers of an earlier run.
//! - For tests and people: `trace` simulates the objects on a packet, [`render`] prints them, and `refers` lists the references
//!   between them.

mod base;
pub mod compile;
mod device;
pub mod element;
mod failures;
mod hint;
pub mod kernel;
pub mod names;
pub mod object;
#[cfg(feature = "testing")]
mod refers;
pub mod render;
pub mod retire;
pub mod server;
mod servers;
mod setup;
mod shape;
mod trace;
mod vocabulary;
mod watch;

use ferry_api::object::Family;
use ferry_plane::CommitError;
use ferry_plane::engine::Engine;

pub use base::Pings;
pub use compile::Ipvs;
pub use element::IpvsTable;
pub use ferry_ruleset::watch::listener;
pub use kernel::{IpvsCommitLock, IpvsKernel, IpvsOptions, Shared};
pub use object::{IpvsKey, IpvsObject};
pub use server::{ServerId, VirtualServer};
pub use servers::{ForwardingReports, SchedulerReports, ServerOptions, ServersLock};
pub use watch::DeviceWatch;

/// The engine of this mode.
pub type IpvsEngine = Engine<Ipvs, IpvsKernel>;

/// Opens the engine of one family, in the network namespace of this thread. Engines of one process share `shared`.
///
/// # Errors
/// [`CommitError::Unusable`] with advice if the kernel lacks nf_tables or IPVS, and without `CAP_NET_ADMIN`; otherwise by the class of
/// the system's error.
pub fn engine(family: Family, shared: &Shared, options: IpvsOptions) -> Result<IpvsEngine, CommitError> {
    Ok(Engine::new(Ipvs::new(family, options.pings), kernel::open(family, shared, options)?))
}
