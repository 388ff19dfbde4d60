//! The control socket: over it a subcommand gets the configuration, the objects and the state of the running proxy, so that it needs no
//! credentials, no port and no file. `server` answers in the proxy, `client` asks in the subcommand.
//!
//! The messages are HTTP over a Unix socket that only its owner and root may open: `GET /v1/state` is a [`RunningState`] as JSON,
//! `GET /v1/objects` all objects in the format of [`ferry_api::snapshot`]. Nothing can be changed by them. A change that an older
//! program can't read gets another first part of the path.

mod client;
mod server;

use std::collections::BTreeMap;

use ferry_api::object::Family;
use ferry_plane::UnitId;
use serde::{Deserialize, Serialize};

pub use client::{Found, Running};
pub use server::{Control, ControlSetup, serve};

/// What a running proxy says of itself. Fields may be added, and are passed over by programs that don't know them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningState {
    /// the program's version
    pub program: String,
    /// the number of the process
    pub process: u32,
    /// the node's name
    pub node: String,
    /// names this run of the process: another one has other objects
    pub run: String,
    /// the configuration as it was given
    pub configuration: GivenConfiguration,
    /// the effective mode, which may be a fallback
    pub mode: String,
    /// the effective way of traffic to the proxy, in mode userspace
    pub way: Option<String>,
    /// true if objects come from manifests, false if from an API server
    pub manifests: bool,
    /// the number of decisions about objects and addresses since the start; the answer of a subcommand changes with it
    pub decisions: u64,
    /// units that the kernel refuses
    pub quarantined: Vec<Quarantined>,
}

/// The configuration of a run before its defaults, which depend on the mode. A subcommand may ask about another mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenConfiguration {
    /// the text of the configuration file, if there is one
    pub file: Option<String>,
    /// the given flags that set something in it, by name, each with its values in order
    pub flags: BTreeMap<String, Vec<String>>,
}

/// A unit that the kernel refuses: its last accepted state stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// `IPv4` or `IPv6`
    pub family: String,
    /// the Service as `namespace/name`; `None` for what all Services share
    pub service: Option<String>,
    /// the kernel's error
    pub error: String,
}

/// The path of the state.
const STATE: &str = "/v1/state";
/// The path of all objects.
const OBJECTS: &str = "/v1/objects";

// === impl Quarantined ===

impl Quarantined {
    /// A unit of a family that the kernel refuses with this error.
    pub fn of((family, unit, error): (Family, &UnitId, &str)) -> Self {
        let service = match unit {
            UnitId::Base => None,
            UnitId::Service(name) => Some(name.to_string()),
        };
        Self { family: family.to_string(), service, error: error.to_owned() }
    }

    /// True for a unit of this family.
    pub fn is_of(&self, family: Family) -> bool {
        self.family == family.to_string()
    }
}
