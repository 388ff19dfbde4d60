//! Control socket: subcommands read configuration, objects and state of the running proxy over a Unix socket, without credentials. `server` is
//! the proxy's end, `client` the subcommand's.
//!
//! The messages are HTTP over a Unix socket that only its owner and root may open: `GET /v1/state` is a [`RunningState`] as JSON,
//! `GET /v1/objects` all objects in the format of [`ferry_api::snapshot`]. `POST /v1/self-test` tests the data path; all other requests only read.
//! An incompatible change gets another version in the path.

mod client;
mod server;

use std::collections::BTreeMap;

use ferry_api::object::Family;
use ferry_model::{MissingSchedulers, PerFamily};
use ferry_plane::UnitId;
use serde::{Deserialize, Serialize};

pub use client::{ProxyLookup, RunningProxy};
pub use server::{Control, ControlSetup, serve};

/// State of a running proxy. Decoders ignore unknown fields, so that fields can be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningState {
    /// the program's version
    pub program: String,
    /// the number of the process
    pub process: u32,
    /// the node's name
    pub node: String,
    /// identifies this run: it changes with each start and reload
    pub run: String,
    /// the configuration as it was given
    pub configuration: GivenConfiguration,
    /// the effective mode, which may be a fallback
    pub mode: String,
    /// the effective way of traffic to the proxy, in mode userspace
    pub way: Option<String>,
    /// true if objects come from manifests, false if from an API server
    pub manifests: bool,
    /// counts the hand-overs of desired state to the engines since the start: an unchanged count means unchanged objects
    pub hand_overs: u64,
    /// units in quarantine
    pub quarantined: Vec<Quarantined>,
    /// schedulers of IPVS that the kernel lacks, in mode ipvs
    #[serde(default)]
    pub missing_schedulers: Vec<MissingScheduler>,
}

/// Configuration of a run before defaults are applied: they depend on the mode, and `--mode` of a subcommand chooses another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenConfiguration {
    /// the text of the configuration file, if there is one
    pub file: Option<String>,
    /// the given flags that set something in it, by name, each with its values in order
    pub flags: BTreeMap<String, Vec<String>>,
}

/// A unit in quarantine: the kernel rejected its state, and the last accepted one stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// `IPv4` or `IPv6`
    pub family: String,
    /// the Service as `namespace/name`; `None` for what all Services share
    pub service: Option<String>,
    /// the kernel's error
    pub error: String,
}

/// A scheduler of IPVS that the kernel lacks: the configured one takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingScheduler {
    /// `IPv4` or `IPv6`
    pub family: String,
    /// its name
    pub scheduler: String,
    /// what to do
    pub advice: String,
}

/// The path of the state.
const STATE: &str = "/v1/state";
/// The path of a test of the data path.
const SELF_TEST: &str = "/v1/self-test";
/// The path of all objects.
const OBJECTS: &str = "/v1/objects";

/// The Service of a unit as `namespace/name`; `None` for the base.
pub fn service_of(unit: &UnitId) -> Option<String> {
    match unit {
        UnitId::Base => None,
        UnitId::Service(name) => Some(name.to_string()),
    }
}

// === impl RunningState ===

impl RunningState {
    /// The schedulers that the kernel lacks. Names that this version doesn't have are left out: it uses none of them.
    pub fn missing_schedulers(&self) -> PerFamily<MissingSchedulers> {
        let of = |family: Family| self.missing_schedulers.iter().filter(move |one| one.family == family.to_string());
        PerFamily::from_fn(|family| {
            of(family).filter_map(|one| Some((one.scheduler.parse().ok()?, one.advice.clone()))).collect()
        })
    }
}

// === impl MissingScheduler ===

impl MissingScheduler {
    /// Those of all families.
    pub fn all(missing: &PerFamily<MissingSchedulers>) -> Vec<Self> {
        let of = |family| {
            missing.of(family).iter().map(move |(scheduler, advice)| Self {
                family: Family::to_string(&family),
                scheduler: scheduler.name().to_owned(),
                advice: advice.clone(),
            })
        };
        Family::ALL.into_iter().flat_map(of).collect()
    }
}

// === impl Quarantined ===

impl Quarantined {
    /// A unit in quarantine, with its family and the kernel's error.
    pub fn of((family, unit, error): (Family, &UnitId, &str)) -> Self {
        Self { family: family.to_string(), service: service_of(unit), error: error.to_owned() }
    }

    /// True for a unit of this family.
    pub fn is_of(&self, family: Family) -> bool {
        self.family == family.to_string()
    }
}

#[cfg(test)]
mod tests {
    use ferry_model::Scheduler;

    use super::*;

    #[test]
    fn missing_schedulers_are_the_same_after_the_socket() {
        let mut missing = PerFamily::<MissingSchedulers>::default();
        missing.v6.insert(Scheduler::Mh, "load ip_vs_mh".to_owned());
        let mut all = MissingScheduler::all(&missing);
        // Newer programs may have more of them.
        all.push(MissingScheduler { scheduler: "later".to_owned(), ..all[0].clone() });
        let state = RunningState {
            program: String::new(),
            process: 1,
            node: String::new(),
            run: String::new(),
            configuration: GivenConfiguration::default(),
            mode: "ipvs".to_owned(),
            way: None,
            manifests: true,
            hand_overs: 1,
            quarantined: Vec::new(),
            missing_schedulers: all,
        };
        let text = serde_json::to_string(&state).unwrap();
        assert!(
            text.contains(r#""missingSchedulers":[{"family":"IPv6","scheduler":"mh","advice":"load ip_vs_mh"}"#),
            "{text}"
        );
        let state: RunningState = serde_json::from_str(&text).unwrap();
        assert_eq!(state.missing_schedulers(), missing);
    }
}
