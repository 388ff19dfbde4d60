//! The overview for programs: `/ui?format=json`.

use ferry_api::object::Family;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::PageSetup;
use super::json::VERSION;
use super::overview::{NotAsSpecified, Overview};
use super::services::Counts;
use crate::control::{Quarantined, service_of};
use crate::core::Desk;
use crate::health::TestState;
use crate::report::PastPass;
use crate::version;

/// State of the proxy of a node. Decoders ignore unknown fields, so that fields can be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// the version of the schema, 1
    pub version: u32,
    /// the program's version
    pub program: String,
    /// the node's name
    pub node: String,
    /// the effective mode
    pub mode: String,
    /// true if load balancers may send traffic to this node
    pub eligible: bool,
    /// the served IP families
    pub families: Vec<FamilyStatus>,
    /// the last periodic tests of the data path; empty without such tests
    #[serde(default)]
    pub self_test: Vec<TestStatus>,
    /// the kinds of objects; none with manifests
    pub kinds: Vec<KindStatus>,
    /// numbers of objects
    pub counts: Counts,
    /// units that the kernel rejects
    pub quarantined: Vec<Quarantined>,
    /// the first problems of objects
    pub problems: Vec<ObjectProblem>,
    /// the number of all others
    pub more_problems: usize,
    /// the last sync passes that changed something or failed, oldest first
    pub passes: Vec<PassStatus>,
}

/// Health of a family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyStatus {
    /// `IPv4` or `IPv6`
    pub family: String,
    /// false if a change has waited for more than twice the sync period
    pub healthy: bool,
    /// how long the oldest change that waits has waited; `None` if none waits
    pub waiting_seconds: Option<f64>,
    /// why the last sync pass failed, if a change waits
    #[serde(default)]
    pub reason: Option<String>,
}

/// The last test of the data path of a family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestStatus {
    /// `IPv4` or `IPv6`
    pub family: String,
    /// its duration; `None` if it failed
    pub seconds: Option<f64>,
    /// the number of failures in a row
    pub failures: u32,
    /// true if these are so many that `/healthz` answers 503
    pub failing: bool,
    /// why it failed
    pub error: Option<String>,
}

/// Freshness of a kind of objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KindStatus {
    /// the kind
    pub kind: String,
    /// its initial list has been complete
    pub synced: bool,
    /// a list or watch is open
    pub connected: bool,
    /// the time since the API server last sent anything about it; `None` for never
    pub contact_seconds: Option<f64>,
}

/// A problem of an object, which is not served as specified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectProblem {
    /// the kind of the object
    pub kind: String,
    /// its name, `NAMESPACE/NAME` if it has a namespace
    pub name: String,
    /// the field
    pub field: String,
    /// the problem with it
    pub problem: String,
    /// the Service that has the address instead, where known
    pub winner: Option<String>,
}

/// A sync pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassStatus {
    /// its end, by RFC 3339
    pub time: String,
    /// the engine's family
    pub family: String,
    /// the time that it took until all was in force
    pub seconds: f64,
    /// the number of operations on kernel objects
    pub operations: usize,
    /// the first units that came into force: `NAMESPACE/NAME` of a Service, null for what all Services share
    pub services: Vec<Option<String>>,
    /// the number of all units that came into force
    pub units: usize,
    /// the number of kernel objects that were repaired after foreign changes
    pub repairs: usize,
    /// why it failed
    pub error: Option<String>,
}

// === impl NodeStatus ===

impl NodeStatus {
    /// The state that the overview shows; takes the core's lock.
    pub(super) fn of(setup: &PageSetup, overview: Overview, desk: &Desk) -> Self {
        let counts = Counts::of(desk);
        let NotAsSpecified { problems, more } = NotAsSpecified::of(desk);
        let Overview { families, eligible, self_test, kinds, quarantined, passes } = overview;
        let families = families.into_iter().map(|found| FamilyStatus {
            family: found.family.to_string(),
            healthy: found.healthy,
            waiting_seconds: found.waiting,
            reason: found.reason,
        });
        let kinds = kinds.into_iter().map(|(kind, fresh)| KindStatus {
            kind: kind.to_string(),
            synced: fresh.synced,
            connected: fresh.connected,
            contact_seconds: fresh.contact.map(|age| age.as_secs_f64()),
        });
        let problems = problems.iter().map(|found| ObjectProblem {
            problem: found.problem().to_string(),
            kind: found.kind.to_string(),
            name: found.name.to_string(),
            field: found.field.clone(),
            winner: found.winner.as_ref().map(ToString::to_string),
        });
        Self {
            version: VERSION,
            program: version::full().to_string(),
            node: setup.node.clone(),
            mode: setup.mode.clone(),
            eligible,
            families: families.collect(),
            self_test: self_test.into_iter().flatten().map(TestStatus::of).collect(),
            kinds: kinds.collect(),
            counts,
            quarantined,
            problems: problems.collect(),
            more_problems: more,
            passes: passes.iter().map(PassStatus::of).collect(),
        }
    }
}

// === impl TestStatus ===

impl TestStatus {
    fn of((family, state): (Family, TestState)) -> Self {
        let (failures, failing) = (state.failures, state.is_failing());
        let (seconds, error) = match state.result {
            Ok(duration) => (Some(duration.as_secs_f64()), None),
            Err(error) => (None, Some(error)),
        };
        Self { family: family.to_string(), seconds, failures, failing, error }
    }
}

// === impl PassStatus ===

impl PassStatus {
    fn of(pass: &PastPass) -> Self {
        Self {
            time: Timestamp::try_from(pass.ended).map(|time| time.to_string()).unwrap_or_default(),
            family: pass.family.to_string(),
            seconds: pass.elapsed.as_secs_f64(),
            operations: pass.operations,
            services: pass.units.iter().map(service_of).collect(),
            units: pass.acknowledged,
            repairs: pass.repairs,
            error: pass.error.clone(),
        }
    }
}
