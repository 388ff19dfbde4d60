//! What the tests of every mode share. A mode says in [`Mode`] what can't be asked of its compiler; its own tests are then calls
//! of the functions here that are named like them.
//!
//! - `case`, `cluster`: what a proxy knows, out of the case folders or made from a seed; `golden`: the files with what is wanted
//! - `decided`: what the model decides of it, and the objects that do it; `matrix`: the packets that everything is tried with
//! - `proxy`, `memory`: a proxy of one family on a kernel in memory; `states`, `world`: states of every kind, without objects
//! - `cases`, `clusters`, `transitions`, `shapes`, `history`, `costs`: the tests; `twin`: two engines on one kernel
//!
//! For tests only, so it fails the way tests do: by panicking. It knows no mode, and needs no privilege.
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
pub mod proxy;
pub mod shapes;
pub mod states;
pub mod transitions;
pub mod twin;
pub mod world;

pub use case::Case;
pub use cluster::{Cluster, Random};
pub use decided::Decided;
pub use memory::good;
pub use mode::{KeyOf, Mode, ObjectOf};
pub use proxy::Proxy;
pub use world::World;
