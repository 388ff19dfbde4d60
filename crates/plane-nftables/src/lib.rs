//! The nftables mode: a constant shape, all state in elements.
//!
//! One table per family. `service-ips` maps VIP, protocol and port to a verdict that says everything about a service
//! port; the pick chains behind it, one per distinct endpoint count, draw a slot and look the endpoint up in `endpoints`.
//! So a changed endpoint is a changed element, whatever else there is.
//!
//! - `object`: what is put into the kernel; `names`: how it is called there
//! - `base`: table, sets, fixed chains; `layout`: keys and values of sets and maps
//! - `compile`: a service, of which `shape` says how its frontends are served; `chains` and `rules`: how rules are written
//! - `sources`: the source ranges of a load balancer, as a set of their own
//! - `place`: which endpoint stands in which slot; `hint`: which units may want a key
//! - `kernel`: commits and reads back; `ahead`: what a commit needs before it; `retired`: what is deleted after it; `watch`: what others do; `verdict`: what failures mean;
//!   `wire`: elements as bytes, of which `fields` are the parts
//! - `in_use`: whether an earlier run's rules serve; `serves`: which frontends elements stand for; `leftovers`: what is ours in a table of upstream's proxy
//! - `trace`: what the objects do with a packet; `render`: the objects as `nft` text

mod affinity;
mod ahead;
pub mod base;
mod chains;
pub mod compile;
mod encode;
mod fields;
mod hint;
mod in_use;
pub mod kernel;
mod layout;
pub mod leftovers;
pub mod names;
pub mod object;
mod place;
mod probe;
mod read;
#[cfg(feature = "testing")]
mod refers;
pub mod render;
mod retired;
mod rules;
mod serves;
mod shape;
mod sources;
mod trace;
mod verdict;
mod watch;
mod wire;

use std::io;

use ferry_api::object::Family;
use ferry_plane::engine::Engine;

pub use compile::Nftables;
pub use in_use::in_use;
pub use kernel::NftablesKernel;
pub use object::{NftKey, NftObject};
pub use sources::{AddressRange, Ranges};
pub use trace::Tracer;
pub use watch::CommitTurn;

/// The engine of this mode.
pub type NftablesEngine = Engine<Nftables, NftablesKernel>;

/// Opens the engine of one family, in the network namespace of this thread. Engines of one process share the `turn`.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`; whatever else the system says.
pub fn engine(family: Family, turn: CommitTurn) -> io::Result<NftablesEngine> {
    Ok(Engine::new(Nftables::new(family), NftablesKernel::open(family, turn)?))
}
