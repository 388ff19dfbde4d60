//! The userspace mode: the proxy accepts the connections to Services itself, and relays them to endpoints (crate `ferry-relay`). One
//! nf_tables table per family of constant shape leads them there.
//!
//! A changed endpoint changes a list in this process and nothing in the kernel. A Service costs elements of sets and maps, no rules.
//!
//! # The way of a batch
//!
//! 1. The engine (crate `ferry-plane`) calls [`Relaying`], this mode's compiler. `compile` turns a unit into objects: `shape` maps
//!    a frontend's treatment to a verdict and to scopes of endpoints, `base` compiles the table with its `rules`. [`object`] defines
//!    objects, keys and ranks, [`element`] the elements, `names` and `vocabulary` the table.
//! 2. The engine diffs both lists of objects and passes the batch to the kernel half, two layers: the relay (`relay`) below the
//!    table ([`ferry_ruleset::table`]), so that listeners are open before packets are led to them, and closed afterwards.
//! 3. [`Doors`] has the ports of open listeners, which elements of the table contain. [`Readings`] has the counters, by port of a
//!    Service, [`Datagrams`] what is behind UDP listeners.
//!
//! 4. [`Onward`] passes on connections that wait in the sockets of a process before, once another mode serves.
//!
//! The way [`bind`] has its own objects, compiler and layers, and no table: see there.
//!
//! Read first: [`object`] and [`element`], then `rules` and `compile`. [docs/modes/userspace.md](../../../docs/modes/userspace.md) shows the result.
//!
//! For tests and people: `trace` simulates the objects on a packet, [`render`] prints them, `hint` narrows down the units that may
//! want a key, and `refers` lists the references between objects.

mod balancers;
mod base;
pub mod bind;
mod compile;
mod datagrams;
mod doors;
pub mod element;
mod failing;
mod hint;
mod kernel;
pub mod names;
pub mod object;
mod onward;
pub mod port;
mod readings;
#[cfg(feature = "testing")]
mod refers;
mod relay;
pub mod render;
mod rules;
mod shape;
mod shared;
mod trace;
mod vocabulary;

pub use compile::Relaying;
pub use datagrams::Datagrams;
pub use doors::Doors;
pub use element::Userspace;
pub use failing::{ListenerReports, Report};
pub use ferry_relay::{Config, Inheritance, Relay, Removal, Totals, Worker, raise_limit};
pub use ferry_ruleset::watch::listener;
pub use kernel::{UserspaceCommitLock, UserspaceEngine, engine};
pub use object::{UserspaceKey, UserspaceObject};
pub use onward::Onward;
pub use readings::{Directory, EndpointReading, PortReading, Readings};
pub use shared::{ListenerNames, SharedRelay, is_gate};
pub use trace::Tracer;
