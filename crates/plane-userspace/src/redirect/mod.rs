//! The way `redirect`: one nf_tables table per family of constant shape leads connections to listeners of the relay.
//!
//! A changed endpoint changes a list in this process and nothing in the kernel. A Service costs elements of sets and maps, no rules.
//!
//! # The way of a batch
//!
//! 1. The engine (crate `ferry-plane`) calls [`Relaying`], this way's compiler. `compile` turns a unit into objects: `shape` maps
//!    a frontend's treatment to a verdict and to scopes of endpoints, `base` compiles the table with its `rules`. [`object`] defines
//!    objects, keys and ranks, [`element`] the elements, `names` and `vocabulary` the table.
//! 2. The engine diffs both lists of objects and passes the batch to the kernel half, two layers: the relay (`relay`) below the
//!    table ([`ferry_ruleset::table`]), so that listeners are open before packets are led to them, and closed afterwards.
//! 3. [`Doors`] has the ports of open listeners, which elements of the table contain.
//!
//! Read first: [`object`] and [`element`], then `rules` and `compile`.
//!
//! For tests and people: `trace` simulates the objects on a packet, [`render`] prints them, `hint` narrows down the units that may
//! want a key, and `refers` lists the references between objects.

mod base;
mod compile;
mod doors;
pub mod element;
mod hint;
mod kernel;
pub mod names;
pub mod object;
#[cfg(feature = "testing")]
mod refers;
mod relay;
pub mod render;
mod rules;
mod shape;
mod trace;
mod vocabulary;

pub use compile::Relaying;
pub use doors::Doors;
pub use element::Userspace;
pub use ferry_ruleset::watch::listener;
pub use kernel::{UserspaceCommitLock, UserspaceEngine, engine};
pub use object::{UserspaceKey, UserspaceObject};
