//! The corpus test: sends real packets through the executable's rules in a real kernel, in any mode, and compares the outcome
//! of each connection with the model's verdict.
//!
//! The machines are built once ([`Terrain`]); a [`Corpus`] replaces the objects of a running proxy, and restarts it only
//! if the configuration or the node's own addresses differ. In each [`Situation`], connections to every frontend from every
//! class of sources run concurrently.

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
pub use served::ObjectServer;
pub use stage::Corpus;
pub use terrain::Terrain;

/// A proxy's input: configuration and objects.
#[derive(Debug)]
pub struct Situation {
    /// its name in failure messages
    pub name: String,
    /// the configuration; its mode is overridden
    pub config: String,
    /// all objects, as a manifest
    pub manifest: String,
    /// the same objects, decoded; without the proxy's Node if the manifest lacks it
    pub store: Store,
}

/// Result of a situation.
#[derive(Debug, Default)]
pub struct SituationResult {
    /// number of connections made
    pub connections: usize,
    /// reports of outcomes that contradict the model, with the model's decisions
    pub faults: Vec<String>,
}
