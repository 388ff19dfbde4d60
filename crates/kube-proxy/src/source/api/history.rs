//! Detects, after the server was away, that its history isn't the one that was followed.
//!
//! An etcd that was restored from a backup counts its resource versions on from the backup. A watch from a version of the
//! lost future then stays silent, and deletions of that future are never delivered. A *witness* is an object and the
//! version of its last delivered change: while the server returns it unchanged, the histories agree up to that version.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ferry_api::object::ObjectName;
use ferry_api::wire::stream::compare_versions;

use super::timing::Timing;
use ferry_client::backoff::Dice;

/// An object's last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) name: ObjectName,
    /// of the object; `None` for one that was deleted
    pub(super) version: Option<Box<str>>,
}

/// The last changes of different objects, the newest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Witnesses(VecDeque<Witness>);

/// Checks of the server's history.
#[derive(Debug, Default)]
pub(super) struct History {
    witnesses: Witnesses,
    /// the witness that the next check is about
    place: usize,
    /// witnesses that weren't there at the last checks: the watch delivers their deletions if the history goes on
    gone: Vec<ObjectName>,
    /// when to list anew
    list_at: Option<Instant>,
    /// the latest time for that
    list_by: Option<Instant>,
    lag: Option<Lag>,
    /// the known version when the server began to lag: what a watch delivers meanwhile may be of another history, and shows
    /// nothing of this one
    frozen: Option<Box<str>>,
    /// the last changes since then
    later: Witnesses,
}

/// The server hasn't come to the known version.
#[derive(Clone, Copy, Debug)]
struct Lag {
    /// the next check
    check_at: Instant,
    /// it counts as restored from a backup from then on
    until: Instant,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// the histories agree
    Same,
    /// the witness has changed since; another one is to be checked
    Open,
    /// the histories differ, or do so unless the watch delivers the deletions of the witnesses that are gone
    Doubtful,
}

/// Objects that are remembered. Checks are about the newest, then the second, fourth and eighth: at most four requests.
const MOST: usize = 8;

// === impl Witnesses ===

impl Witnesses {
    /// The change of an object that came after all others.
    pub(super) fn changed(&mut self, witness: Witness) {
        self.0.retain(|known| known.name != witness.name);
        self.0.push_front(witness);
        self.0.truncate(MOST);
    }

    /// An object of a list, whose objects come in no order. One without a number for a version is left out.
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

// === impl History ===

impl History {
    /// These changes came after all others.
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

    /// The next round of checks begins with the newest witness, since another server, or a restored one, may answer it. What
    /// the round so far found counts no more; a list that is to follow from it comes, whatever the watch delivers.
    pub(super) fn again(&mut self) {
        self.place = 0;
        self.gone.clear();
    }

    /// A list is complete, and these objects of it changed last.
    pub(super) fn restart(&mut self, witnesses: Witnesses) {
        *self = Self { witnesses, ..Self::default() };
    }

    /// The name of the object to check; `None` where no object is known.
    pub(super) fn name(&self) -> Option<&ObjectName> {
        self.witnesses.0.get(self.place).map(|witness| &witness.name)
    }

    /// The check's object has this version, or isn't there, while everything up to `known` has been delivered.
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

    /// Lists anew in a while, at a time of chance, since all nodes may be in that case. Further doubts put it off only up
    /// to a bound.
    pub(super) fn doubt(&mut self, now: Instant, timing: &Timing, dice: &mut Dice) {
        let bound = Duration::from_millis(timing.verify_millis.end.saturating_mul(2));
        let by = *self.list_by.get_or_insert(now + bound);
        let wait = Duration::from_millis(dice.among(&timing.verify_millis));
        self.list_at = Some((now + wait).min(by));
    }

    /// The server hasn't come to this version, up to which everything has been delivered. True if that has been so for long
    /// enough to take it for restored; the next check follows in a while otherwise.
    pub(super) fn lags(&mut self, known: &str, now: Instant, timing: &Timing, dice: &mut Dice) -> bool {
        self.frozen.get_or_insert_with(|| known.into());
        let until = match self.lag {
            Some(lag) if now >= lag.until => return true,
            Some(lag) => lag.until,
            None => now + Duration::from_millis(dice.among(&timing.lag_millis)),
        };
        let wait = Duration::from_millis(dice.among(&timing.lag_check_millis));
        self.lag = Some(Lag { check_at: (now + wait).min(until), until });
        false
    }

    /// True if a round of checks has begun and not ended.
    pub(super) fn is_under_way(&self) -> bool {
        self.place > 0
    }

    /// True if a list is to come, at its time.
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
