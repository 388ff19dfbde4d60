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
use crate::backoff::Dice;

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
            // It changed while it was listed.
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
            self.witnesses.changed(witness);
        }
        if awaited > 0 && self.gone.is_empty() {
            (self.list_at, self.list_by) = (None, None);
        }
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

    /// The server hasn't come to the known version. True if that has been so for long enough to take it for restored; the
    /// next check follows in a while otherwise.
    pub(super) fn lags(&mut self, now: Instant, timing: &Timing, dice: &mut Dice) -> bool {
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
mod tests {
    use super::*;

    fn name(number: u64) -> ObjectName {
        ObjectName::new("n", &format!("o{number}"))
    }

    /// Versions 101 to 100 + `count`, of as many objects, all delivered up to version 200.
    fn followed(count: u64) -> History {
        let mut witnesses = Witnesses::default();
        // in no order, as a streaming list brings them
        for number in (1..=count).rev().step_by(2).chain((1..=count).rev().skip(1).step_by(2)) {
            witnesses.listed(&name(number), &(100 + number).to_string());
        }
        let mut history = History::default();
        history.restart(witnesses);
        history
    }

    #[test]
    fn the_newest_objects_of_a_list_are_the_witnesses() {
        let history = followed(20);
        let versions: Vec<&str> = history.witnesses.0.iter().filter_map(|known| known.version.as_deref()).collect();
        assert_eq!(versions, ["120", "119", "118", "117", "116", "115", "114", "113"]);
        let mut witnesses = Witnesses::default();
        witnesses.listed(&name(1), "no number");
        assert!(witnesses.0.is_empty());
        for version in ["101", "103", "102"] {
            witnesses.listed(&name(1), version);
        }
        assert_eq!(witnesses.0, [Witness { name: name(1), version: Some("103".into()) }]);
    }

    #[test]
    fn an_unchanged_witness_settles_it_and_a_changed_one_doesnt() {
        let mut history = followed(20);
        assert_eq!(history.found(Some("120"), "200"), Finding::Same);
        // changed since, deleted since, unchanged
        let mut asked = Vec::new();
        for (found, finding) in [(Some("201"), Finding::Open), (None, Finding::Open), (Some("117"), Finding::Same)] {
            asked.push(history.name().cloned());
            assert_eq!(history.found(found, "200"), finding);
        }
        assert_eq!(asked, [20, 19, 17].map(|number| Some(name(number))));
        assert_eq!(history.name(), Some(&name(20)), "the next round begins with the newest again");
    }

    #[test]
    fn a_change_that_the_watch_would_not_deliver_is_of_another_history() {
        for found in ["90", "119", "200"] {
            assert_eq!(followed(20).found(Some(found), "200"), Finding::Doubtful, "{found}");
        }
    }

    #[test]
    fn witnesses_that_have_all_changed_are_the_watchs_matter() {
        for count in [1, 2, 3, 4, 8, 20] {
            let mut history = followed(count);
            let mut checks = 1;
            while history.found(Some("201"), "200") == Finding::Open {
                checks += 1;
            }
            assert!(checks <= 4, "{checks} checks of {count}");
            let mut history = followed(count);
            (1..checks).for_each(|_| assert_eq!(history.found(Some("201"), "200"), Finding::Open));
            assert_eq!(history.found(Some("201"), "200"), Finding::Same, "{count}");
        }
    }

    #[test]
    fn what_is_gone_is_a_doubt_until_the_watch_delivers_its_deletion() {
        let deletion = |numbers: &[u64]| {
            let mut changes = Witnesses::default();
            numbers.iter().for_each(|number| changes.changed(Witness { name: name(*number), version: None }));
            changes
        };
        let doubted = || {
            let mut history = followed(3);
            for finding in [Finding::Open, Finding::Open, Finding::Doubtful] {
                assert_eq!(history.found(None, "200"), finding);
            }
            history.doubt(Instant::now(), &Timing::default(), &mut Dice::seeded(1));
            history
        };
        let mut history = doubted();
        history.changed(deletion(&[3, 7]));
        history.changed(deletion(&[2]));
        assert!(history.is_doubted());
        history.changed(deletion(&[1]));
        assert!(!history.is_doubted(), "the watch knows them");
        // One that is there in another version settles it for good.
        let mut history = followed(2);
        assert_eq!(history.found(None, "200"), Finding::Open);
        assert_eq!(history.found(Some("50"), "200"), Finding::Doubtful);
        history.doubt(Instant::now(), &Timing::default(), &mut Dice::seeded(1));
        history.changed(deletion(&[2, 1]));
        assert!(history.is_doubted());
    }

    #[test]
    fn a_deletion_leads_to_the_next_witness() {
        let deleted = |history: &mut History| history.witnesses.changed(Witness { name: name(99), version: None });
        // it is back as it was in the backup
        let mut history = followed(2);
        deleted(&mut history);
        assert_eq!(history.found(Some("150"), "200"), Finding::Doubtful);
        // still gone: that alone shows nothing of what was lost
        assert_eq!(history.found(None, "200"), Finding::Open);
        assert_eq!(history.found(Some("90"), "200"), Finding::Doubtful);
        assert_eq!(history.found(None, "200"), Finding::Open);
        assert_eq!(history.found(Some("102"), "200"), Finding::Same);
        // nothing else is known
        let mut history = History::default();
        deleted(&mut history);
        assert_eq!(history.found(None, "200"), Finding::Same);
    }

    #[test]
    fn a_kind_without_objects_agrees_with_a_server_without_any() {
        let mut history = History::default();
        assert_eq!(history.name(), None);
        assert_eq!(history.found(None, "200"), Finding::Same);
        assert_eq!(history.found(Some("5"), "200"), Finding::Doubtful);
    }

    #[test]
    fn a_list_can_be_put_off_only_up_to_a_bound() {
        let (timing, mut dice) = (Timing::default(), Dice::seeded(1));
        let mut history = followed(1);
        let start = Instant::now();
        let mut now = start;
        while !history.list_is_due(now) {
            history.doubt(now, &timing, &mut dice);
            now += Duration::from_secs(4);
            assert!(now < start + Duration::from_secs(130));
        }
        assert!(history.is_doubted());
        history.restart(Witnesses::default());
        assert!(!history.is_doubted());
    }

    #[test]
    fn a_server_that_lags_is_taken_for_restored_after_a_while_of_chance() {
        let timing = Timing::default();
        let mut ends = Vec::new();
        for seed in 0..20 {
            let (mut dice, mut history) = (Dice::seeded(seed), followed(1));
            let start = Instant::now();
            let (mut now, mut checks) = (start, 1);
            while !history.lags(now, &timing, &mut dice) {
                checks += 1;
                assert!(history.is_lagging() && !history.check_is_due(now));
                now += Duration::from_secs(history.seconds_left(now));
                assert!(history.check_is_due(now));
            }
            assert!((3..=8).contains(&checks), "{checks}");
            ends.push((now - start).as_secs());
        }
        assert!(ends.iter().all(|end| (20..=41).contains(end)), "{ends:?}");
        assert!(ends.iter().min() != ends.iter().max(), "{ends:?}");
        let (mut dice, mut history) = (Dice::seeded(1), followed(1));
        assert!(!history.lags(Instant::now(), &timing, &mut dice));
        assert_eq!(history.found(Some("101"), "200"), Finding::Same);
        assert!(!history.is_lagging(), "it has caught up");
    }
}
