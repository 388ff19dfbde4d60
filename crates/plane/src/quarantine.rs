//! Units that the kernel rejected, and the time of their next try.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{CommitError, UnitId};

/// The units that wait.
#[derive(Debug, Default)]
pub(crate) struct Quarantine(BTreeMap<UnitId, WaitingUnit>);

#[derive(Debug)]
struct WaitingUnit {
    until: Instant,
    tries: u32,
    error: Arc<CommitError>,
}

/// First and longest wait of a refused unit.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);
/// Longest wait of a unit without resources: those may be there again at any time.
const LONGEST_WITHOUT_RESOURCES: Duration = Duration::from_secs(10);

// === impl Quarantine ===

impl Quarantine {
    /// Puts a unit in, for longer each time.
    pub(crate) fn put(&mut self, id: UnitId, error: Arc<CommitError>, now: Instant) {
        let tries = self.0.get(&id).map_or(0, |waiting| waiting.tries);
        let longest = match *error {
            CommitError::Resources(_) => LONGEST_WITHOUT_RESOURCES,
            CommitError::Drifted { .. } | CommitError::Refused(_) | CommitError::Busy(_) | CommitError::Unusable(_) => {
                LONGEST
            }
        };
        let wait = FIRST.saturating_mul(1 << tries.min(16)).min(longest);
        self.0.insert(id, WaitingUnit { until: now + wait, tries: tries + 1, error });
    }

    /// Lets a unit out: it changed, went or was accepted.
    pub(crate) fn release(&mut self, id: &UnitId) {
        self.0.remove(id);
    }

    /// Lets every unit out.
    pub(crate) fn release_all(&mut self) {
        self.0.clear();
    }

    /// True if the unit still has to wait.
    pub(crate) fn waits(&self, id: &UnitId, now: Instant) -> bool {
        self.0.get(id).is_some_and(|waiting| waiting.until > now)
    }

    /// True if a unit is in quarantine, also if it may try again now.
    pub(crate) fn holds(&self, id: &UnitId) -> bool {
        self.0.contains_key(id)
    }

    /// Everybody in here, with the reason.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&UnitId, &Arc<CommitError>)> {
        self.0.iter().map(|(id, waiting)| (id, &waiting.error))
    }

    /// Time of the next unit's retry after a pass at this time.
    pub(crate) fn wake(&self, now: Instant) -> Option<Instant> {
        // A unit whose time has come and that is still here lacks the base, and is tried with it.
        self.0.values().map(|waiting| waiting.until).filter(|until| *until > now).min()
    }

    /// True if no unit is quarantined.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
