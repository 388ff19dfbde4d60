//! The relay over real sockets, on Linux each test in a network namespace of its own, which needs root, `nft` and `ip`: streams
//! against a model, faults of endpoints, changes while connections are open, gates, datagrams, limits, session
//! affinity.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panic"
)]

#[cfg(target_os = "linux")]
mod affinity;
mod changes;
mod datagrams;
#[cfg(target_os = "linux")]
mod exhaustion;
mod faults;
#[cfg(target_os = "linux")]
mod gates;
mod kit;
mod limits;
#[cfg(target_os = "linux")]
mod processes;
mod running;
#[cfg(target_os = "linux")]
mod sockets;
mod streams;
mod system;
