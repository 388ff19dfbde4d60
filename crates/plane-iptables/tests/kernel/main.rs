//! The engine on the real kernel, in both variants of the tool and both families, each test in a network namespace of its own
//! with a lock file of its own.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panic")]

mod faults;
mod history;
mod large;
mod legacy;
mod long;
mod machine;
#[path = "../mode/mod.rs"]
mod mode;
mod news;
mod objects;
mod sets;
mod tables;
mod takeover;
mod wrapper;
