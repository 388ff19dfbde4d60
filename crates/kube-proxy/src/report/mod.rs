//! Turns reports of engines and of the core into metrics and log lines, on the main thread.

mod changes;
mod history;
mod inbox;
mod queue;
mod reporter;

pub use changes::ChangeReporter;
pub use history::PastPass;
pub use inbox::{Inbox, SharedInbox};
pub use queue::Reports;
pub use reporter::{Report, Reporter, SyncPass};
