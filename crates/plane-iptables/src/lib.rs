//! The iptables mode: upstream's chains, names and rules, written by `iptables-restore` in either variant of the tool (nft,
//! legacy).
//!
//! A Service's rules are in chains of its own (`KUBE-SVC-…`, `KUBE-SEP-…` and others). Packets get there by single rules in
//! shared chains (`KUBE-SERVICES` and others), which built-in chains jump to. So there are two kinds of objects with rules:
//! chains of one unit with all their rules, and the rules of one owner in a shared chain.
//!
//! # The way of a batch
//!
//! 1. The engine (crate `ferry-plane`) calls [`Iptables`], this mode's compiler. `place` orders the endpoints of long pools, so
//!    that a change touches few rules of a chain.
//! 2. [`compile`] turns the old and the new unit into objects. [`base`] compiles shared chains and jumps. For each port of a
//!    Service, `shape` maps the treatment of a frontend to a chain or a refusal, `dispatch` writes its rules in shared chains,
//!    and `chains` the port's own chains, from the inputs in `port`, with rules written by `rules`.
//! 3. The engine diffs both lists of objects and passes the batch to `kernel`, the half that touches the kernel.
//! 4. `kernel` first takes the foreign changes that `watch` has received; `variant` hides the differences of the two variants.
//!    `plan` compares the batch with `mirror`, the copy of the rules that the kernel holds, and divides it into sections;
//!    `knowledge` tracks which parts of the mirror are valid. `edits` replaces single rules of long chains by position.
//! 5. `encode` writes the plan as the tool's input, and the tool runs once. `verdict` maps a failure to the engine's error, by
//!    the line that the tool names. `counters` counts runs for the metrics.
//!    Before it, `sets` makes the ipsets that rules name, and deletes others after it.
//! 6. At a start, after foreign changes and for repairs, `read` parses the output of `iptables-save` by lines, `sort` turns the
//!    lines into objects, and `drift` finds the keys that differ from the mirror. `hint` narrows
//!    down the units that may want a key, so that a repair compiles few of them.
//!
//! Read first: [`object`] (objects, owners, ranks) and [`names`] (the chains and their purpose), then `compile`, `plan`,
//! `encode` and `kernel`. [docs/modes/iptables.md](../../../docs/modes/iptables.md) shows the resulting ruleset.
//!
//! # Beside the way
//!
//! - [`backend`] chooses the variant of the tool, [`features`] holds the facts of the machine that rules depend on, and
//!   [`in_use()`] detects rules that already serve. `of_others` removes chains that only upstream's other modes have,
//!   `without_tool` those of this mode where the tool is missing.
//! - For tests and people: `ruleset` assembles objects into chains, `trace` simulates them on a packet, [`render`] prints them,
//!   `testing` checks their invariants, and `refers` lists the references between them.

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
mod loopback;
mod mirror;
pub mod names;
pub mod object;
mod of_others;
mod place;
mod plan;
mod port;
mod read;
#[cfg(feature = "testing")]
mod refers;
pub mod render;
mod rules;
mod ruleset;
mod sets;
mod shape;
mod sort;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
mod variant;
mod verdict;
mod watch;
mod without_tool;

use std::sync::Arc;

use ferry_kernel::iptables::Tool;
use ferry_plane::engine::Engine;

pub use compile::Iptables;
pub use counters::Counters;
pub use features::{Features, why_no_sets};
pub use in_use::in_use;
pub use kernel::{IptablesKernel, retire_of_ipvs, retire_of_userspace, retire_sets};
pub use loopback::open_loopback;
pub use object::{IptKey, IptObject};
pub use watch::{IptablesCommitLock, listener};
pub use without_tool::retire_without_tool;

/// The engine of this mode.
pub type IptablesEngine = Engine<Iptables, IptablesKernel>;

/// Creates an engine that removes the rules of the tool's variant and family. Ipsets stay ([`retire_sets`]).
pub fn retiring(tool: Tool) -> IptablesEngine {
    let family = tool.family();
    let kernel = IptablesKernel::new(tool, IptablesCommitLock::default(), Arc::default());
    Engine::new(Iptables::new(family, Features::default()), kernel.without_sets())
}

/// Creates the engine of the tool's family, for the network namespace of the thread that uses it. Engines of one process share
/// the `commit_lock`.
pub fn engine(
    features: Features,
    tool: Tool,
    commit_lock: IptablesCommitLock,
    counters: Arc<Counters>,
) -> IptablesEngine {
    let family = tool.family();
    Engine::new(Iptables::new(family, features), IptablesKernel::new(tool, commit_lock, counters))
}
