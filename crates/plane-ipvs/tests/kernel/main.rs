//! The engine on a real kernel, each test in a network namespace of its own; the oracles are `ipvsadm`, `nft` and `ip`. Not every
//! machine's kernel has IPVS, so the tests run in virtual machines: `cargo xt vm`.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panic")]

mod adoption;
mod common;
mod costs;
mod draining;
mod drift;
mod flows;
mod foreign;
#[path = "../mode/mod.rs"]
mod mode;
mod order;
mod retirement;
mod schedulers;
mod written;
