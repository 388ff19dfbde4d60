//! What engines did, told to people: metrics, logs, health.

mod changes;
mod inbox;
mod pulse;
mod queue;
mod turns;

pub use changes::Changes;
pub use inbox::{Inbox, SharedInbox};
pub use pulse::{Pulse, Pulses};
pub use queue::Reports;
pub use turns::{Report, Reporter, Turn};
