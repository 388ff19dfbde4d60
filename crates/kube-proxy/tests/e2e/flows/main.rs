//! What becomes of flows that the kernel remembers when the rules behind them change, seen by clients that keep their
//! source port, and by the connection table itself.
//!
//! One lab and one proxy serve all groups, one after another.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the helpers of a test fail as tests do, and print what they measured"
)]

mod appearing;
mod bystanders;
mod established;
mod leaving;
mod restarts;
mod support;
