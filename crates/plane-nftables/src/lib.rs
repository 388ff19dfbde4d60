//! The nftables mode. One table per family has a constant set of chains; all state that depends on Services is in elements of
//! sets and maps.
//!
//! `service-ips` maps address, protocol and port of a frontend to a verdict. The pick chains behind it, one per kind and number
//! of endpoints and shared by all services, draw a slot and look up the endpoint in `endpoints` by frontend and slot. So a
//! changed endpoint is one changed element, however many Services there are.
//!
//! # The way of a batch
//!
//! 1. The engine (crate `ferry-plane`) calls [`Nftables`], this mode's compiler. `place` assigns the endpoints of the new unit
//!    to slots, so that remaining ones keep theirs.
//! 2. [`compile`] turns the old and the new unit into objects. [`base`] compiles the table, fixed chains and sets. For a
//!    Service, `shape` maps each frontend's treatment to chains and slots, `chains` writes the rules, and `restrictions` merges
//!    source ranges into sets, once per Service.
//! 3. The engine diffs both lists of objects and passes the batch to [`kernel`], the half that touches the kernel.
//! 4. `kernel` first takes the foreign changes that `watch` has received, and makes the preparatory commits of `ahead`. `encode`
//!    turns the batch into one netlink transaction, with keys and values from `wire` and `layout`. After a success, `affinity`
//!    purges stale entries of session affinity maps, and `retired` deletes objects that must outlive the commit for a while.
//! 5. At a start, after foreign changes and for repairs, `read` reads the objects back for the engine to compare.
//!    `hint` narrows down the units that may want a key, so that a repair compiles few of them.
//!
//! Read first: [`object`] (objects, keys, ranks) and [`names`] (the chains, sets and maps in the kernel, and their purpose),
//! then `compile`, `encode` and `kernel`. Crate `ferry-ruleset` has what this mode shares with others that own a table.
//! [docs/modes/nftables.md](../../../docs/modes/nftables.md) shows the resulting ruleset.
//!
//! # Beside the way
//!
//! - `probe` tests once whether the kernel supports this mode. [`in_use()`] detects rules of an earlier run that still serve,
//!   `serves` the frontends of a table, and [`leftovers`] removes our objects from a table that upstream's proxy has taken over.
//! - For tests and people: `trace` simulates the objects on a packet, [`render`] prints them as `nft` text, and `refers` lists
//!   the references between them.

mod affinity;
mod ahead;
pub mod base;
mod chains;
pub mod compile;
mod encode;
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
mod restrictions;
mod retired;
mod serves;
mod shape;
mod trace;
mod watch;
mod wire;

use ferry_api::object::Family;
use ferry_plane::CommitError;
use ferry_plane::engine::Engine;

pub use compile::Nftables;
pub use in_use::in_use;
pub use kernel::NftablesKernel;
pub use object::{NftKey, NftObject};
pub use watch::{NftablesCommitLock, NftablesTable};

pub use ferry_ruleset::watch::listener;

/// The engine of this mode.
pub type NftablesEngine = Engine<Nftables, NftablesKernel>;

/// Opens the engine of one family, in the network namespace of this thread. Engines of one process share the `commit_lock`.
///
/// # Errors
/// As [`NftablesKernel::open`].
pub fn engine(family: Family, commit_lock: NftablesCommitLock) -> Result<NftablesEngine, CommitError> {
    Ok(Engine::new(Nftables::new(family), NftablesKernel::open(family, commit_lock)?))
}
