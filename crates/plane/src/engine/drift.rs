//! What somebody else changed, and mending it.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::{Engine, KeyOf, Purpose, keys};
use crate::diff::difference_to_kernel;
use crate::{CommitError, Compile, Extent, Kernel, Object, Outcome};

/// What a repair looked at, and so what a second writer is fought over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// single objects
    Keys,
    /// all there is: who makes that necessary again and again is not told by the objects that were mended
    Everything,
}

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    pub(super) fn mend(
        &mut self,
        context: &Arc<Context>,
        now: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        if self.rivals.holds(&None, now) {
            return Ok(());
        }
        let Some(drift) = self.drift.clone() else { return Ok(()) };
        outcome.worked = true;
        match drift {
            Extent::All => self.sync_all(context, now, Purpose::Repair, outcome),
            Extent::Keys(keys) => {
                let keys: HashSet<KeyOf<C>> =
                    keys.into_iter().filter(|key| !self.rivals.holds(&Some(key.clone()), now)).collect();
                self.mend_keys(context, keys, now, outcome)
            }
        }
    }

    fn mend_keys(
        &mut self,
        context: &Arc<Context>,
        keys: HashSet<KeyOf<C>>,
        now: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        if !keys.is_empty() {
            self.references.forget_parked(keys.iter());
            let mut actual = match self.kernel.read_back(&Extent::Keys(keys.iter().cloned().collect())) {
                // More is damaged than these keys.
                Err(CommitError::Drifted { .. }) => return self.sync_all(context, now, Purpose::Repair, outcome),
                actual => actual?,
            };
            actual.sort_unstable();
            let nobody = BTreeSet::new();
            let target = self.target(context, &[], &nobody).filter(|object| keys.contains(&object.key()));
            let batch = difference_to_kernel(actual, target);
            let foreign = self::keys(&batch).collect();
            match if batch.is_empty() { Ok(()) } else { self.kernel.commit(&batch) } {
                Ok(()) => {
                    outcome.ops += batch.len();
                    self.count_repairs(foreign, Scale::Keys, now, outcome);
                }
                // More is damaged than these keys, or what was accepted before is refused now.
                Err(CommitError::Drifted { .. } | CommitError::Refused(_)) => {
                    return self.sync_all(context, now, Purpose::Repair, outcome);
                }
                Err(error @ (CommitError::Busy(_) | CommitError::Unusable(_))) => return Err(error),
            }
        }
        self.drift = None;
        Ok(())
    }

    pub(super) fn count_repairs(&mut self, keys: Vec<KeyOf<C>>, scale: Scale, now: Instant, outcome: &mut Outcome) {
        if keys.is_empty() {
            return;
        }
        outcome.repairs += keys.len();
        let room = Outcome::NAMED.saturating_sub(outcome.repaired.len());
        outcome.repaired.extend(keys.iter().take(room).map(ToString::to_string));
        if scale == Scale::Everything {
            if self.rivals.repaired(None, now) {
                outcome.contested.push("everything".to_owned());
            }
            return;
        }
        for key in keys {
            let name = key.to_string();
            if self.rivals.repaired(Some(key), now) {
                outcome.contested.push(name);
            }
        }
    }

    pub(super) fn found(&mut self, drift: Extent<KeyOf<C>>) {
        self.drift = Some(match (self.drift.take(), drift) {
            (Some(Extent::All), _) | (_, Extent::All) => Extent::All,
            (Some(Extent::Keys(mut known)), Extent::Keys(more)) => {
                known.extend(more);
                Extent::Keys(known)
            }
            (None, Extent::Keys(keys)) => Extent::Keys(keys),
        });
    }

    /// Objects that were left to a rival and whose time has come.
    pub(super) fn reclaim(&mut self, now: Instant) {
        for key in self.rivals.due(now) {
            self.found(key.map_or(Extent::All, |key| Extent::Keys(vec![key])));
        }
    }
}
