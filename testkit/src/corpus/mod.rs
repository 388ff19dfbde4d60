//! The corpus of cases, in real packets: what the model decides about each connection is what becomes of it, with the
//! executable's rules in a real kernel, in whatever mode.
//!
//! The machines are built once ([`Terrain`]); a [`Corpus`] swaps the objects of a running proxy, and restarts it only
//! where the configuration or the node's own addresses differ. Each [`Situation`] is tried with every frontend from
//! everywhere, all connections at once.

mod ask;
mod icmp;
mod judge;
mod plan;
mod remember;
mod served;
mod server;
mod stage;
mod terrain;
mod trial;

use ferry_model::Store;

pub use plan::{edges, written};
pub use remember::Remembers;
pub use stage::Corpus;
pub use terrain::Terrain;

/// What a proxy knows.
#[derive(Debug)]
pub struct Situation {
    /// what it is called in complaints
    pub name: String,
    /// the configuration; its mode is replaced
    pub config: String,
    /// all objects, as a manifest
    pub manifest: String,
    /// the same, read; without our Node, if that is missing
    pub store: Store,
}

/// What came of a situation.
#[derive(Debug, Default)]
pub struct Findings {
    /// how many connections were made
    pub connections: usize,
    /// what was not as decided, with what was
    pub faults: Vec<String>,
}
