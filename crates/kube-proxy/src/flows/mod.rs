//! Deletes stale conntrack entries after rule changes, and at each start.
//!
//! After each sync pass an engine's loop reports the frontends whose flows may be stale ([`FlowObserver`]): at a start all
//! frontends, and those that only adopted rules served. The thread `flows` ([`Cleaner`]) lists the conntrack entries of these
//! frontends and deletes the stale ones. No other thread waits for it.
//!
//! The flow of a serving endpoint is never deleted, also if the endpoint was added meanwhile: before each deletion the cleaner
//! waits until every sync pass that had begun has reported (`SyncPasses`), and compares the entry with the newest rules. Each
//! frontend is checked three times, 0, 0.3 and 3.3 s after its change: packets that traversed the old rules may be entered late.

mod cleaner;
mod matcher;
mod pace;
mod queue;
mod replies;
mod reports;
mod table;
#[cfg(test)]
pub(crate) mod testing;
mod unanswered;

pub use cleaner::Cleaner;
pub use replies::{Behind, Replies};
pub use reports::{FlowObserver, FlowReports};
