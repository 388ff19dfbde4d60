//! Deletes stale conntrack entries after rule changes, and at each start.
//!
//! An engine's loop tells, after each turn, which frontends got new rules for their flows ([`Witness`]): at a start all of them,
//! and what adopted rules served that no unit wants. The thread `flows`
//! ([`Cleaner`]) lists what the kernel remembers of flows to these, and removes those that are wrong. Nobody waits for it.
//!
//! A flow that is right is never removed, also one to an endpoint that came meanwhile: before each removal the cleaner waits
//! until every turn that had begun by then has told what it did (`Turns`), and looks at the flow once more by the newest
//! rules. A frontend is looked at twice, the second time for packets that were on their way
//! through the kernel when its rules changed.

mod cleaner;
mod matcher;
mod pace;
mod queue;
mod shared;
mod table;
#[cfg(test)]
pub(crate) mod testing;

pub use cleaner::Cleaner;
pub use shared::{Shared, Witness};
