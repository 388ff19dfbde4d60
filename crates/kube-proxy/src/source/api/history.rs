//! Detects after an outage that the API server's history isn't the one followed before, as after a restore from a backup.
//!
//! An etcd that was restored from a backup continues its resource versions from the backup. A watch from a version of the lost
//! future then stays silent, and deletions of that future are never delivered. A *witness* is an object and the version of its
//! last delivered change: while the server returns it unchanged, the histories agree up to that version.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ferry_api::object::ObjectName;
use ferry_api::wire::stream::compare_versions;

use super::timing::SourceTiming;
use ferry_client::backoff::Jitter;

/// An object's last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) name: ObjectName,
    /// the object's version; `None` for a deleted one
    pub(super) version: Option<Box<str>>,
}

/// The last changes of distinct objects, newest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Witnesses(VecDeque<Witness>);

/// Checks of the server's history.
#[derive(Debug, Default)]
pub(super) struct HistoryChecks {
    witnesses: Witnesses,
    /// index of the witness of the next check
    place: usize,
    /// witnesses missing at the last checks: the watch delivers their deletions if the history continues
    gone: Vec<ObjectName>,
    /// time of the next full list
    list_at: Option<Instant>,
    /// latest time of that list
    list_by: Option<Instant>,
    lag: Option<Lag>,
    /// the known version when the server began to lag: events of watches since then may be of another history, and prove nothing
    /// about this one
    frozen: Option<Box<str>>,
    /// the last changes since then
    later: Witnesses,
}

/// The server hasn't reached the known version.
#[derive(Clone, Copy, Debug)]
struct Lag {
    /// the next check
    check_at: Instant,
    /// end of the lag that is tolerated: from then on the server counts as restored from a backup
    until: Instant,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// the histories agree
    Same,
    /// the witness has changed since; another one must be checked
    Open,
    /// the histories differ, unless the watch delivers the deletions of the missing witnesses
    Doubtful,
}

/// Witnesses that are kept. Checks use the newest, then the second, fourth and eighth: at most four requests.
const MOST: usize = 8;

// === impl Witnesses ===

impl Witnesses {
    /// Adds a change that is newer than all others.
    pub(super) fn changed(&mut self, witness: Witness) {
        self.0.retain(|known| known.name != witness.name);
        self.0.push_front(witness);
        self.0.truncate(MOST);
    }

    /// Adds an object of a list, whose objects are unordered. Objects without a numeric version are ignored.
    pub(super) fn listed(&mut self, name: &ObjectName, version: &str) {
        if compare_versions(version, version).is_none() {
            return;
        }
        let is_newer = |known: &Witness| {
            let known = known.version.as_deref().unwrap_or_default();
            compare_versions(version, known) == Some(Ordering::Greater)
        };
        let place = self.0.iter().position(is_newer).unwrap_or(self.0.len());
        if let Some(other) = self.0.iter().position(|known| known.name == *name) {
            if other < place {
                return;
            }
            // The object changed during the list.
            self.0.remove(other);
        }
        if place < MOST {
            self.0.insert(place, Witness { name: name.clone(), version: Some(version.into()) });
            self.0.truncate(MOST);
        }
    }
}

// === impl HistoryChecks ===

impl HistoryChecks {
    /// Adds changes that are newer than all others.
    pub(super) fn changed(&mut self, changes: Witnesses) {
        let awaited = self.gone.len();
        for witness in changes.0.into_iter().rev() {
            self.gone.retain(|name| *name != witness.name);
            let all = if self.frozen.is_some() { &mut self.later } else { &mut self.witnesses };
            all.changed(witness);
        }
        if awaited > 0 && self.gone.is_empty() {
            (self.list_at, self.list_by) = (None, None);
        }
    }

    /// Begins another round of checks with the newest witness, since another server, or a restored one, may answer. The results
    /// of the round so far are dropped; a full list that is already due stays due, whatever the watch delivers.
    pub(super) fn again(&mut self) {
        self.place = 0;
        self.gone.clear();
    }

    /// Begins anew after a complete list; `witnesses` are its objects that changed last.
    pub(super) fn restart(&mut self, witnesses: Witnesses) {
        *self = Self { witnesses, ..Self::default() };
    }

    /// The name of the object to check; `None` if no object is known.
    pub(super) fn name(&self) -> Option<&ObjectName> {
        self.witnesses.0.get(self.place).map(|witness| &witness.name)
    }

    /// Evaluates a check: the object has the version `found`, or doesn't exist, and everything up to `known` has been delivered.
    pub(super) fn found(&mut self, found: Option<&str>, known: &str) -> Finding {
        self.lag = None;
        if self.place == 0 {
            self.gone.clear();
        }
        let witness = self.witnesses.0.get(self.place);
        let seen = witness.and_then(|witness| witness.version.as_deref());
        let known = self.frozen.as_deref().unwrap_or(known);
        let order = found.and_then(|found| compare_versions(found, known));
        let is_same = seen.is_some() && seen == found;
        // A watch from the known version would not deliver such a change.
        let is_other = !is_same && matches!(order, Some(Ordering::Less | Ordering::Equal));
        if found.is_none() && seen.is_some() {
            self.gone.extend(witness.map(|witness| witness.name.clone()));
        }
        let last = self.witnesses.0.len().saturating_sub(1);
        if !is_same && !is_other && self.place < last {
            self.place = (2 * self.place + 1).min(last);
            return Finding::Open;
        }
        self.place = 0;
        if is_same || is_other {
            self.gone.clear();
        }
        self.frozen = None;
        for witness in std::mem::take(&mut self.later).0.into_iter().rev() {
            self.witnesses.changed(witness);
        }
        if is_other || !self.gone.is_empty() { Finding::Doubtful } else { Finding::Same }
    }

    /// Schedules a full list with jitter, since all nodes may need one. Further doubts postpone it only up to a bound.
    pub(super) fn doubt(&mut self, now: Instant, timing: &SourceTiming, jitter: &mut Jitter) {
        let bound = Duration::from_millis(timing.verify_millis.end.saturating_mul(2));
        let by = *self.list_by.get_or_insert(now + bound);
        let wait = Duration::from_millis(jitter.among(&timing.verify_millis));
        self.list_at = Some((now + wait).min(by));
    }

    /// Notes that the server is behind this version, up to which everything has been delivered. True if it has lagged long enough
    /// to count as restored from a backup; schedules the next check otherwise.
    pub(super) fn lags(&mut self, known: &str, now: Instant, timing: &SourceTiming, jitter: &mut Jitter) -> bool {
        self.frozen.get_or_insert_with(|| known.into());
        let until = match self.lag {
            Some(lag) if now >= lag.until => return true,
            Some(lag) => lag.until,
            None => now + Duration::from_millis(jitter.among(&timing.lag_millis)),
        };
        let wait = Duration::from_millis(jitter.among(&timing.lag_check_millis));
        self.lag = Some(Lag { check_at: (now + wait).min(until), until });
        false
    }

    /// True during a round of checks.
    pub(super) fn is_under_way(&self) -> bool {
        self.place > 0
    }

    /// True if a full list is scheduled.
    pub(super) fn is_doubted(&self) -> bool {
        self.list_at.is_some()
    }

    /// True if the server lagged at the last check.
    pub(super) fn is_lagging(&self) -> bool {
        self.lag.is_some()
    }

    /// True if it is time for the list.
    pub(super) fn list_is_due(&self, now: Instant) -> bool {
        self.list_at.is_some_and(|at| now >= at)
    }

    /// True if it is time to check again whether the server still lags.
    pub(super) fn check_is_due(&self, now: Instant) -> bool {
        self.lag.is_some_and(|lag| now >= lag.check_at)
    }

    /// Seconds until a list or a check is due.
    pub(super) fn seconds_left(&self, now: Instant) -> u64 {
        let moments = [self.list_at, self.lag.map(|lag| lag.check_at)];
        let left = moments.into_iter().flatten().min();
        left.map_or(u64::MAX, |at| at.saturating_duration_since(now).as_secs() + 1)
    }
}

#[cfg(test)]
mod tests;
