//! What engines did, told to people: metrics, logs, health.

mod changes;
mod pulse;
mod turns;

pub use changes::Changes;
pub use pulse::{Pulse, Pulses};
pub use turns::{Report, Reporter, Turn};
