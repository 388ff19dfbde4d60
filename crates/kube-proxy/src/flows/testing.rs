//! An engine for tests that report the outcome of a sync pass.

use std::task::Waker;
use std::time::Instant;

use ferry_plane::{CommitError, Delta, Outcome, Plan, Served, SyncEngine, Unit, UnitId};

/// An engine that holds these units, and does nothing.
pub(crate) struct Holds(pub(crate) Vec<Unit>);

impl SyncEngine for Holds {
    fn offer(&mut self, _: Delta) {}
    fn sync(&mut self, _: Instant) -> Outcome {
        Outcome::default()
    }
    fn repair(&mut self, _: Instant) -> Outcome {
        Outcome::default()
    }
    fn tend(&mut self, _: Instant) -> Outcome {
        Outcome::default()
    }
    fn wake_by(&mut self, _: &Waker) {}
    fn each_unit(&self, see: &mut dyn FnMut(&Unit)) {
        self.0.iter().for_each(see);
    }
    fn each_pending(&self, _: &mut dyn FnMut(&UnitId)) {}
    fn plan(&mut self) -> Result<Plan, CommitError> {
        Ok(Plan::default())
    }
    fn retire(self: Box<Self>, _: &mut Vec<Served>) -> Result<usize, CommitError> {
        Ok(0)
    }
}
