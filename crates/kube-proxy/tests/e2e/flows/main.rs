//! Stale conntrack entries after rule changes, observed by clients that keep their source port and in the conntrack table.
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
