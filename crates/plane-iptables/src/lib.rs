//! The iptables mode: upstream's chains, names and rules, by way of `iptables-restore`.
//!
//! - `object`: what is put into the kernel; `names`: how it is called there; `features`: what the machine can
//! - `backend`: which variant of the tool
//! - `base`: chains of the base, and what leads to ours; `compile`: a service, of which `shape` says how its frontends are
//!   served, `port` is what the next two need, `dispatch` how they are found or refused, and `chains` what serves them, in an order that `place` keeps;
//!   `hint`: which units may want a key; `rules`: how rules are written
//! - `kernel`: what touches the tables; `variant`: how the two variants of the tool differ in that; `mirror`: what is there, `knowledge` how far that
//!   can be relied on, and `plan` what a batch comes to against it, `edits` of long chains, `encode` as the
//!   tool's input; `read`, `sort`: what the tool prints, as objects; `watch`, `drift`: what others do; `verdict`: what
//!   failures mean; `counters`: for metrics
//! - `ruleset`: objects as the chains of a kernel; `trace`: what they do with a packet; `render`: as text; `testing`: what holds for
//!   the objects of any state

pub mod backend;
pub mod base;
mod chains;
pub mod compile;
mod counters;
mod dispatch;
mod drift;
mod edits;
mod encode;
pub mod features;
mod hint;
mod in_use;
mod kernel;
mod knowledge;
mod mirror;
pub mod names;
pub mod object;
mod place;
mod plan;
mod port;
mod read;
#[cfg(feature = "testing")]
mod refers;
pub mod render;
mod rules;
mod ruleset;
mod shape;
mod sort;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod variant;
mod verdict;
mod watch;

use std::sync::Arc;

use ferry_kernel::iptables::Tool;
use ferry_plane::engine::Engine;

pub use compile::Iptables;
pub use counters::Counters;
pub use features::Features;
pub use in_use::in_use;
pub use kernel::IptablesKernel;
pub use object::{IptKey, IptObject};
pub use trace::Tracer;
pub use watch::Turn;

/// The engine of this mode.
pub type IptablesEngine = Engine<Iptables, IptablesKernel>;

/// The engine of the tool's family, for the network namespace of the thread that uses it. Engines of one process share the
/// `turn`.
pub fn engine(features: Features, tool: Tool, turn: Turn, counters: Arc<Counters>) -> IptablesEngine {
    let family = tool.family();
    Engine::new(Iptables::new(family, features), IptablesKernel::new(tool, turn, counters))
}
