//! Units of desired state, and changes of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ferry_api::object::ObjectName;
use ferry_model::{BaseState, Context, ServiceState};

use crate::Compile;

/// The grain of change, error and quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// tables, hooks, sets of node addresses
    Base(BaseState),
    /// one Service
    Service(ServiceState),
}

/// Names a unit within one engine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnitId {
    /// the base objects
    Base,
    /// a Service
    Service(ObjectName),
}

/// Changes of the desired state. Merging two keeps the later context and the later units.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// a new context diffs every unit
    pub context: Option<Arc<Context>>,
    /// `None`: gone
    pub units: BTreeMap<UnitId, Option<Arc<Unit>>>,
}

/// The acknowledged state of a unit; a quarantined unit stays with the context under which it was accepted.
#[derive(Clone, Debug)]
pub struct Acked {
    /// the unit, placed
    pub unit: Arc<Unit>,
    /// the context with which it was compiled
    pub context: Arc<Context>,
}

// === impl UnitId ===

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => f.write_str("base"),
            Self::Service(name) => write!(f, "service {name}"),
        }
    }
}

// === impl Delta ===

impl Delta {
    /// The objects that this compiler makes of its units, those of the base first. The order of a pool is the model's: nothing is in force
    /// before. None without a context.
    pub fn compiled<C: Compile>(&self, compiler: &C) -> Vec<C::Object> {
        let mut objects = Vec::new();
        if let Some(context) = &self.context {
            self.units.values().flatten().for_each(|unit| compiler.compile(context, unit, &mut objects));
        }
        objects
    }
}
