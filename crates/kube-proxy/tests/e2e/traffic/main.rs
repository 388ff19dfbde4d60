//! Real connections through the built executable, between network namespaces.
//!
//! One lab and one proxy serve all groups, one after another; a group brings its manifests. Groups that meddle with the
//! machine itself build a lab of their own.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the helpers of a test fail as tests do, and print what they measured"
)]

mod affinity;
mod change;
mod forward;
mod frontends;
mod health;
mod iptables;
mod machine;
mod modes;
mod plan;
mod policy;
mod reload;
mod render;
mod repair;
mod restart;
mod snapshot;
mod sources;
mod support;
mod symptoms;
mod trace;
mod userspace;
mod verify;
