//! Conformance tests that every mode must pass. A mode implements [`Mode`] with what its compiler doesn't provide; its own
//! tests call the functions of the same names here.
//!
//! - `case`, `cluster`: a proxy's input, from the case folders or generated from a seed; `golden`: the expected files
//! - `decided`: the desired state and its compiled objects; `matrix`: the packets that every case is tried with
//! - `proxy`, `memory`: a proxy of one family on a kernel in memory; `states`, `world`: states of every kind, without objects
//! - `property`: the number of random inputs that each property is tried with
//! - `cases`, `clusters`, `transitions`, `shapes`, `history`, `costs`, `twins`: the tests; `twin`: one of two engines on a kernel
//!
//! For tests only, so errors are panics. Independent of modes; needs no privilege.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test kit fails by panicking")]

pub mod case;
pub mod cases;
pub mod cluster;
pub mod clusters;
pub mod costs;
pub mod decided;
pub mod golden;
pub mod history;
pub mod matrix;
pub mod memory;
mod mode;
pub mod property;
pub mod proxy;
pub mod shapes;
pub mod states;
pub mod transitions;
pub mod twin;
pub mod twins;
pub mod world;

pub use case::Case;
pub use cluster::{Cluster, Random};
pub use decided::Decided;
pub use memory::good;
pub use mode::{KeyOf, Mode, ObjectOf, neighbours};
pub use proxy::MemoryProxy;
pub use world::World;
