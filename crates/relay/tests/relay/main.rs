//! The relay over real sockets, each test in a network namespace of its own: streams against a model, faults of endpoints, changes
//! while connections are open, gates, datagrams, limits. Needs root, `nft` and `ip`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panic"
)]

mod changes;
mod datagrams;
mod faults;
mod gates;
mod kit;
mod limits;
mod processes;
mod streams;
