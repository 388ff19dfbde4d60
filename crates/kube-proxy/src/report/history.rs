//! History of the last sync passes that changed, repaired or failed something, for the status page.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use ferry_api::object::Family;
use ferry_model::PerFamily;
use ferry_plane::UnitId;

use super::reporter::SyncPass;

/// A sync pass that brought something into force, repaired something, or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastPass {
    /// the engine's family
    pub family: Family,
    /// its end
    pub ended: SystemTime,
    /// the time from its begin to the last rule
    pub elapsed: Duration,
    /// the first of the units that came into force
    pub units: Vec<UnitId>,
    /// the number of all of them
    pub acknowledged: usize,
    /// the number of operations on kernel objects
    pub operations: usize,
    /// the number of kernel objects that were repaired after foreign changes
    pub repairs: usize,
    /// some of them by name
    pub repaired: Vec<String>,
    /// kernel objects that another program keeps changing
    pub contested: Vec<String>,
    /// why it failed
    pub error: Option<String>,
}

/// The last such passes.
#[derive(Debug, Default)]
pub(super) struct PassHistory {
    /// oldest first
    passes: VecDeque<PastPass>,
    /// why the last pass of each family failed, if it did
    failures: PerFamily<Option<String>>,
}

/// Passes that are kept: what fits on a page, some 10 KiB.
const KEPT: usize = 60;
/// Units of a pass that are kept.
const UNITS: usize = 3;

// === impl PassHistory ===

impl PassHistory {
    /// Records a pass, unless it did nothing.
    pub(super) fn note(&mut self, pass: &SyncPass) {
        let SyncPass { family, outcome, ended, .. } = pass;
        let error = outcome.error.as_ref().map(ToString::to_string);
        self.failures.of_mut(*family).clone_from(&error);
        let did = outcome.ops > 0 || outcome.repairs > 0 || !outcome.acked.is_empty() || !outcome.contested.is_empty();
        if !did && error.is_none() {
            return;
        }
        if self.passes.len() == KEPT {
            self.passes.pop_front();
        }
        self.passes.push_back(PastPass {
            family: *family,
            ended: *ended,
            elapsed: outcome.elapsed,
            units: outcome.acked.iter().take(UNITS).map(|unit| unit.id.clone()).collect(),
            acknowledged: outcome.acked.len(),
            operations: outcome.ops,
            repairs: outcome.repairs,
            repaired: outcome.repaired.clone(),
            contested: outcome.contested.clone(),
            error,
        });
    }

    /// The passes, oldest first.
    pub(super) fn passes(&self) -> impl DoubleEndedIterator<Item = &PastPass> {
        self.passes.iter()
    }

    /// Why the last pass of this family failed, if it did.
    pub(super) fn failure(&self, family: Family) -> Option<&str> {
        self.failures.of(family).as_deref()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use ferry_plane::{CommitError, Outcome};

    use super::*;

    fn pass(outcome: Outcome) -> SyncPass {
        SyncPass { family: Family::V4, outcome, pending: 0, synced: true, settled: true, ended: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn the_last_passes_that_did_something_are_kept() {
        let mut history = PassHistory::default();
        history.note(&pass(Outcome { worked: true, full: true, ..Outcome::default() }));
        assert_eq!(history.passes().count(), 0);
        for ops in 1..=KEPT + 5 {
            history.note(&pass(Outcome { ops, ..Outcome::default() }));
        }
        let kept: Vec<usize> = history.passes().map(|pass| pass.operations).collect();
        assert_eq!((kept.len(), kept.first(), kept.last()), (KEPT, Some(&6), Some(&(KEPT + 5))));
    }

    #[test]
    fn a_failure_is_that_of_the_last_pass_even_if_it_did_nothing() {
        let mut history = PassHistory::default();
        let error = Some(Arc::new(CommitError::Unusable(io::Error::other("no buffer space"))));
        history.note(&pass(Outcome { error, ..Outcome::default() }));
        assert!(history.failure(Family::V4).is_some_and(|why| why.contains("no buffer space")));
        assert_eq!(history.failure(Family::V6), None);
        history.note(&pass(Outcome { worked: true, full: true, ..Outcome::default() }));
        assert_eq!((history.failure(Family::V4), history.passes().count()), (None, 1));
    }
}
