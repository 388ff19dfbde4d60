//! An engine that keeps its units and programs nothing, for tests of the program on a system without a mode: sources, threads,
//! servers and reports work as with any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use ferry_api::config::MODE_WINUSERSPACE;
use ferry_api::object::Family;
use ferry_model::Profile;
use ferry_plane::{Acknowledged, Batch, CommitError, Delta, Outcome, Served, SyncEngine, Unit, UnitId};
use prometheus::Registry;

use super::{Engines, Leftovers, Opening, Plane};
use crate::metrics::mode::ModeMetrics;

pub(super) const PLANE: Plane = Plane {
    mode: MODE_WINUSERSPACE,
    profile: Profile::NFTABLES,
    paced: false,
    domains: &[],
    metrics: &[],
    devices: &[],
    open,
    initialize: |_| Ok(()),
    remove_leftovers: |_| Ok(Leftovers::None),
    in_use: |_| Ok(false),
    needs_net_admin: false,
};

/// The units of one family.
#[derive(Default)]
struct Memory {
    units: BTreeMap<UnitId, Arc<Unit>>,
    pending: BTreeMap<UnitId, Option<Arc<Unit>>>,
}

/// Of this mode there is none.
#[derive(Debug)]
struct NoMetrics;

fn open(opening: &Opening<'_>) -> anyhow::Result<Engines> {
    let open = |&family| (family, Ok::<Box<dyn SyncEngine>, _>(Box::new(Memory::default())));
    Ok(Engines {
        families: opening.families.iter().map(open).collect(),
        metrics: Box::new(|_: &Registry| Ok(Box::new(NoMetrics))),
        domains: &[],
        serving: None,
        way: None,
    })
}

// === impl NoMetrics ===

impl ModeMetrics for NoMetrics {
    fn failed(&self, _family: Family) {}
    fn refresh(&self) {}
}

// === impl Memory ===

impl SyncEngine for Memory {
    fn offer(&mut self, delta: Delta) {
        self.pending.extend(delta.units);
    }

    fn sync(&mut self, _now: Instant) -> Outcome {
        let mut outcome = Outcome { worked: true, ..Outcome::default() };
        for (id, after) in std::mem::take(&mut self.pending) {
            let before = match &after {
                Some(unit) => self.units.insert(id.clone(), Arc::clone(unit)),
                None => self.units.remove(&id),
            };
            outcome.ops += 1;
            outcome.acked.push(Acknowledged { id, before, after });
        }
        outcome
    }

    fn repair(&mut self, now: Instant) -> Outcome {
        Outcome { full: true, ..self.sync(now) }
    }

    fn tend(&mut self, _now: Instant) -> Outcome {
        Outcome::default()
    }

    fn wake_by(&mut self, _waker: &Waker) {}

    fn each_unit(&self, see: &mut dyn FnMut(&Unit)) {
        self.units.values().for_each(|unit| see(unit));
    }

    fn each_pending(&self, see: &mut dyn FnMut(&UnitId)) {
        self.pending.keys().for_each(see);
    }

    fn plan(&mut self) -> Result<Batch<String>, CommitError> {
        Ok(Batch::default())
    }

    fn retire(self: Box<Self>, _served: &mut Vec<Served>) -> Result<usize, CommitError> {
        Ok(self.units.len())
    }
}
