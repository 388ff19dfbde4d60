//! Deletes stale conntrack entries after rule changes, and at each start.
//!
//! After each sync pass an engine's loop reports the frontends whose flows may be stale ([`FlowObserver`]): at a start all
//! frontends, and those that only adopted rules served. The thread `flows` (`cleaner`) lists the conntrack entries of these
//! frontends and deletes the stale ones. No other thread waits for it.
//!
//! The flow of a serving endpoint is never deleted, also if the endpoint was added meanwhile: before each deletion the cleaner
//! waits until every sync pass that had begun has reported (`SyncPasses`), and compares the entry with the newest rules. Each
//! frontend is checked three times, 0, 0.3 and 3.3 s after its change: packets that traversed the old rules may be entered late.
//!
//! This is Linux's: on another system no connection is translated (`untracked`).

#[cfg(target_os = "linux")]
mod cleaner;
#[cfg(target_os = "linux")]
mod flow_match;
#[cfg(target_os = "linux")]
mod late_answers;
#[cfg(target_os = "linux")]
mod matcher;
#[cfg(target_os = "linux")]
mod pace;
#[cfg(target_os = "linux")]
mod queue;
mod replies;
#[cfg(target_os = "linux")]
mod reports;
#[cfg(target_os = "linux")]
mod table;
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod testing;
#[cfg(target_os = "linux")]
mod unanswered;
#[cfg(not(target_os = "linux"))]
mod untracked;

#[cfg(target_os = "linux")]
pub use cleaner::start;
pub use replies::{Behind, Replies};
#[cfg(target_os = "linux")]
pub use reports::{FlowObserver, FlowReports};
#[cfg(not(target_os = "linux"))]
pub use untracked::{FlowObserver, FlowReports, start};
