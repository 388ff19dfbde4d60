//! The units that a failed commit is due to: they are found by the refused operations or by halving the batch, and wait in quarantine; the
//! others go on, except those that want what a waiting one holds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::{BatchOf, Engine};
use crate::attempt::{Change, halves, held_back, owners};
use crate::{Acked, CommitError, Compile, Kernel, UnitId};

/// Units, or groups, without resources one after the other after which the whole kernel counts as short of them.
const MOST_STARVED: usize = 8;

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    /// Removes units from the group that want a key which a waiting unit still holds: they wait too.
    pub(super) fn hold_back(&mut self, context: &Context, group: &mut Vec<Change>, now: Instant) {
        if self.quarantine.is_empty() {
            return;
        }
        let waiting: Vec<(&UnitId, Option<&Acked>)> = self
            .quarantine
            .all()
            .filter(|(id, _)| self.quarantine.waits(id, now))
            .map(|(id, _)| (id, self.acked.get(id)))
            .collect();
        let held = held_back(&self.compile, context, &waiting, group);
        for (id, holder) in held {
            let object = format!("what {holder} holds, which the kernel refuses to change");
            group.retain(|change| change.id != id);
            self.quarantine.put(id, Arc::new(CommitError::Drifted { object }), now);
        }
    }

    /// True if some units of the batch may be the cause of a failed commit. An object in use, or memory, may be free at the next
    /// attempt; if not, or if a unit was rejected before, the group is split as after a refusal that names no object. So an
    /// object that can't be deleted, or a unit that is too large, blocks no other unit.
    pub(super) fn blames_units(&self, error: &CommitError, group: &[Change]) -> bool {
        match error {
            CommitError::Refused(_) => true,
            CommitError::Resources(_) => {
                self.failures > 0 || group.iter().any(|change| self.quarantine.holds(&change.id))
            }
            CommitError::Drifted { .. } | CommitError::Busy(_) | CommitError::Unusable(_) => false,
        }
    }

    /// Passes over a group for which the kernel has no resources now, so that the groups behind it are tried in the same pass; the error is
    /// that of the pass. Fails with it where the next group would not be independent of this one, or the kernel as a whole is short.
    pub(super) fn pass_over(
        &mut self,
        error: CommitError,
        short: &mut Option<CommitError>,
    ) -> Result<Vec<Vec<Change>>, CommitError> {
        let is_short = matches!(error, CommitError::Resources(_));
        self.starved += usize::from(is_short);
        if !is_short || self.starved > MOST_STARVED || !self.unverified.is_empty() {
            return Err(error);
        }
        *short = Some(error);
        Ok(Vec::new())
    }

    /// Quarantines the units that caused a failed commit; returns the others as groups to try. Fails with the error if the
    /// kernel as a whole is short of resources.
    pub(super) fn set_apart(
        &mut self,
        context: &Context,
        mut group: Vec<Change>,
        batch: &BatchOf<C>,
        error: CommitError,
        now: Instant,
    ) -> Result<Vec<Vec<Change>>, CommitError> {
        self.starved += usize::from(group.len() == 1 && matches!(error, CommitError::Resources(_)));
        if self.starved > MOST_STARVED {
            return Err(error);
        }
        let mut refused = match &error {
            CommitError::Refused(refusals) => owners(&self.compile, context, &group, batch, refusals),
            CommitError::Resources(_)
            | CommitError::Busy(_)
            | CommitError::Drifted { .. }
            | CommitError::Unusable(_) => BTreeSet::new(),
        };
        if refused.is_empty() {
            let (first, second) = halves(&self.compile, context, group);
            if !second.is_empty() {
                return Ok(vec![first, second]);
            }
            refused.extend(first.iter().map(|change| change.id.clone()));
            group = first;
        }
        let error = Arc::new(error);
        for id in &refused {
            self.quarantine.put(id.clone(), Arc::clone(&error), now);
        }
        group.retain(|change| !refused.contains(&change.id));
        Ok(vec![group])
    }
}
