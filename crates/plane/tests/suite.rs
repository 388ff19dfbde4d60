//! Tests of the contract and the engine, in one program: each compiles the engine for a mode of its own.
#![expect(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may look at the clock, to have a first instant, and fail by panic"
)]

mod contract;
mod costs;
mod engine;
mod half_way;
mod inspector;
mod layered;
mod toy;
mod twins;
mod waiting;
