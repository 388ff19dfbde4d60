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

use ferry_model::{Profile, Store};

use crate::iptables::Backend;

pub use plan::{edges, written};
pub use remember::Remembers;
pub use stage::Corpus;
pub use terrain::Terrain;

/// A mode of the executable.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// as the configuration calls it
    pub name: &'static str,
    /// the section of the configuration that holds its settings
    pub section: &'static str,
    /// how it differs from others
    pub profile: Profile,
    /// how session affinity works
    pub remembers: Remembers,
    /// the variant of iptables that the machine's kubelet uses, if the mode goes by it
    pub backend: Option<Backend>,
}

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

// === impl Mode ===

impl Mode {
    /// The nftables mode.
    pub const NFTABLES: Self = Self {
        name: "nftables",
        section: "nftables",
        profile: Profile::NFTABLES,
        remembers: Remembers::ByPolicy,
        backend: None,
    };

    /// The iptables mode beside a kubelet with this variant.
    pub const fn iptables(backend: Backend) -> Self {
        Self {
            name: "iptables",
            section: "iptables",
            profile: Profile::IPTABLES,
            remembers: Remembers::ByEndpoint,
            backend: Some(backend),
        }
    }
}
