//! Foreign changes, until what they left has been compared with the desired state.
//!
//! A second proxy of the same node (during a rolling update, for example) makes the same changes as this engine, a moment earlier
//! or later. A difference right after its commit is mostly a change that this engine is about to make too; a difference that
//! lasts is drift. Other programs don't make such changes: a difference after their commit is drift at once. If it concerns several objects, it
//! is drift once a mode's pause between commands is over. Programs that go on committing are waited for.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::{Drift, Extent};

/// From the last change of another proxy, or of an unknown writer, to the comparison. Another proxy may get a change of the API
/// server that much earlier.
const CONFIRM: Duration = Duration::from_millis(200);
/// From the last change of another program to the comparison, if it isn't the first one for a while.
const SETTLE: Duration = Duration::from_millis(150);
/// After this time without a change by other programs the next one is the first of a series, and waits for less.
const CALM: Duration = Duration::from_secs(1);
/// From the first change, however many follow.
const LONGEST: Duration = Duration::from_millis(1500);

/// Objects that may be damaged, each with the time of the comparison.
#[derive(Debug)]
pub(super) struct DriftCandidates<K> {
    keys: HashMap<K, Suspicion>,
    all: Option<Suspicion>,
    /// the last change by a program that is no proxy
    disturbed: Option<Instant>,
    /// from such a change to the comparison, if it is the first one for a while, and of several objects
    first_pause: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Suspicion {
    since: Instant,
    due: Instant,
}

// === impl DriftCandidates ===

impl<K: Hash + Eq + Clone> DriftCandidates<K> {
    /// None; `first_pause`: see [`crate::Compile::REPAIR_PAUSE`].
    pub(super) fn new(first_pause: Duration) -> Self {
        Self { keys: HashMap::new(), all: None, disturbed: None, first_pause }
    }

    /// Notes foreign changes, and plans their comparison.
    pub(super) fn touched(&mut self, drift: Drift<K>, now: Instant) {
        if let Some(extent) = drift.by_proxies {
            self.postpone(CONFIRM, now);
            self.suspect(extent, CONFIRM, now);
        }
        if let Some(extent) = drift.by_others {
            let is_calm = self.disturbed.is_none_or(|last| now.saturating_duration_since(last) >= CALM);
            self.disturbed = Some(now);
            let is_one = matches!(&extent, Extent::Keys(keys) if keys.len() == 1);
            let first_pause = if is_one { Duration::ZERO } else { self.first_pause };
            let pause = if is_calm { first_pause } else { SETTLE };
            if !self.first_pause.is_zero() {
                self.postpone(pause, now);
            }
            self.suspect(extent, pause, now);
        }
    }

    /// Postpones the candidates that still wait, and those that became due less than the mode's pause ago: one writer's changes
    /// come in pieces, and are compared together. Rules of one chain that are repaired in pieces would get another order.
    fn postpone(&mut self, pause: Duration, now: Instant) {
        let first_pause = self.first_pause;
        let waiting = self.keys.values_mut().chain(&mut self.all).filter(|suspicion| suspicion.due + first_pause > now);
        waiting.for_each(|suspicion| suspicion.again(pause, now));
    }

    /// Marks these for a comparison once they have not changed for this pause.
    fn suspect(&mut self, extent: Extent<K>, pause: Duration, now: Instant) {
        let fresh = Suspicion { since: now, due: now };
        match extent {
            Extent::All => self.all.get_or_insert(fresh).again(pause, now),
            Extent::Keys(keys) => {
                keys.into_iter().for_each(|key| self.keys.entry(key).or_insert(fresh).again(pause, now));
            }
        }
    }

    /// Marks these for a comparison now.
    pub(super) fn check(&mut self, extent: Extent<K>, now: Instant) {
        let at_once = Suspicion { since: now, due: now };
        match extent {
            Extent::All => self.all = Some(at_once),
            Extent::Keys(keys) => self.keys.extend(keys.into_iter().map(|key| (key, at_once))),
        }
    }

    /// The candidates to compare now.
    pub(super) fn due(&self, now: Instant) -> Option<Extent<K>> {
        if self.all.is_some_and(|suspicion| suspicion.due <= now) {
            return Some(Extent::All);
        }
        let keys: Vec<K> = self.keys.iter().filter(|(_, of)| of.due <= now).map(|(key, _)| key.clone()).collect();
        (!keys.is_empty()).then_some(Extent::Keys(keys))
    }

    /// True if the key is a candidate whose comparison is not due yet.
    pub(super) fn waits(&self, key: &K, now: Instant) -> bool {
        self.keys.get(key).is_some_and(|suspicion| suspicion.due > now)
    }

    /// True if any of these is suspected of drift.
    pub(super) fn concern(&self, mut keys: impl Iterator<Item = K>) -> bool {
        self.all.is_some() || !self.keys.is_empty() && keys.any(|key| self.keys.contains_key(&key))
    }

    /// Clears the due candidates after their comparison.
    pub(super) fn clear_due(&mut self, now: Instant) {
        self.keys.retain(|_, suspicion| suspicion.due > now);
    }

    /// Records the result of a comparison of `looked` (`None`: of everything): `wrong` keys differ, the others match. The
    /// differing keys are compared again; those that were already due for it, at their time.
    pub(super) fn found(&mut self, looked: Option<&HashSet<K>>, wrong: HashSet<K>, now: Instant) {
        if looked.is_none() {
            self.all = None;
        }
        self.keys.retain(|key, _| looked.is_some_and(|looked| !looked.contains(key)) || wrong.contains(key));
        for key in wrong {
            self.keys.entry(key).or_insert(Suspicion { since: now, due: now + CONFIRM });
        }
    }

    /// Time of the next comparison.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.keys.values().chain(&self.all).map(|suspicion| suspicion.due).min()
    }
}

// === impl Suspicion ===

impl Suspicion {
    /// It was changed again. A comparison that is planned for later is not brought forward: both writers' changes are there.
    fn again(&mut self, pause: Duration, now: Instant) {
        self.due = self.due.max(now + pause).min(self.since + LONGEST);
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs a first instant")]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn by_proxies(key: u8) -> Drift<u8> {
        Drift::by_proxies(Extent::Keys(vec![key]))
    }

    fn by_others(key: u8) -> Drift<u8> {
        Drift { by_proxies: None, by_others: Some(Extent::Keys(vec![key])) }
    }

    /// Changes so many milliseconds after the start, and the time of the next comparison after all of them.
    fn wake(changes: impl IntoIterator<Item = (u32, Drift<u8>)>) -> Duration {
        let start = Instant::now();
        let mut candidates = DriftCandidates::new(Duration::ZERO);
        changes.into_iter().for_each(|(millis, drift)| candidates.touched(drift, start + millis * MS));
        candidates.wake().map(|wake| wake - start).unwrap()
    }

    #[test]
    fn a_proxys_change_is_confirmed_and_another_programs_is_not() {
        assert_eq!(wake([(0, by_proxies(1))]), CONFIRM);
        assert_eq!(wake([(0, by_others(1))]), Duration::ZERO);
        assert_eq!(wake([(0, Drift { by_proxies: None, by_others: Some(Extent::All) })]), Duration::ZERO);
    }

    #[test]
    fn other_programs_that_go_on_are_waited_for() {
        let first = |candidates: &mut DriftCandidates<u8>, start| {
            candidates.touched(by_others(1), start);
            candidates.clear_due(start);
            assert_eq!(candidates.wake(), None);
        };
        for (millis, pause) in [(100, SETTLE), (999, SETTLE), (1000, Duration::ZERO)] {
            let (start, mut candidates) = (Instant::now(), DriftCandidates::new(Duration::ZERO));
            first(&mut candidates, start);
            candidates.touched(by_others(2), start + millis * MS);
            assert_eq!(candidates.wake(), Some(start + millis * MS + pause), "{millis} ms");
        }
    }

    #[test]
    fn where_a_change_may_be_one_of_several_commands_they_are_compared_together() {
        let (start, pause) = (Instant::now(), 25 * MS);
        let several = || Drift { by_proxies: None, by_others: Some(Extent::Keys(vec![0, 1])) };
        for (change, wait) in [(by_others(1), Duration::ZERO), (several(), pause)] {
            let mut candidates = DriftCandidates::new(pause);
            candidates.touched(change, start);
            assert_eq!(candidates.wake(), Some(start + wait), "one object is no flush");
        }
        let mut candidates = DriftCandidates::new(pause);
        candidates.touched(several(), start);
        // It is read when the first one's comparison is due, and the last one when all are.
        let read = start + pause;
        candidates.touched(by_others(2), read);
        assert_eq!((candidates.wake(), candidates.due(read)), (Some(read + SETTLE), None), "the first one waits on");
        let read = read + SETTLE;
        candidates.touched(Drift { by_proxies: None, by_others: Some(Extent::All) }, read);
        assert_eq!((candidates.wake(), candidates.due(read)), (Some(read + SETTLE), None));
        candidates.touched(by_others(3), read + SETTLE);
        assert_eq!(candidates.due(read + SETTLE), None, "a full comparison waits on, too");
        assert_eq!(candidates.due(start + LONGEST), Some(Extent::All));
    }

    #[test]
    fn a_candidate_that_was_due_a_pause_ago_is_not_postponed() {
        let (start, pause) = (Instant::now(), 25 * MS);
        for (millis, due) in [(224, None), (225, Some(Extent::Keys(vec![0])))] {
            let mut candidates = DriftCandidates::new(pause);
            candidates.touched(by_proxies(0), start);
            let now = start + millis * MS;
            candidates.touched(Drift { by_proxies: None, by_others: Some(Extent::Keys(vec![1, 2])) }, now);
            assert_eq!(candidates.due(now), due, "due after 200 ms, the change after {millis} ms");
        }
    }

    #[test]
    fn where_a_change_is_one_transaction_another_objects_change_postpones_nothing() {
        let (start, mut candidates) = (Instant::now(), DriftCandidates::new(Duration::ZERO));
        candidates.touched(by_others(1), start);
        candidates.clear_due(start);
        candidates.touched(by_others(2), start + 100 * MS);
        candidates.touched(by_others(3), start + 200 * MS);
        assert_eq!(candidates.wake(), Some(start + 100 * MS + SETTLE));
    }

    #[test]
    fn what_two_writers_changed_waits_for_the_proxy() {
        assert_eq!(wake([(0, by_proxies(1)), (50, by_others(1))]), CONFIRM);
        assert_eq!(wake([(0, by_others(1)), (50, by_proxies(1))]), 50 * MS + CONFIRM);
        assert_eq!(wake([(0, by_proxies(1)), (50, by_others(2))]), 50 * MS, "another object doesn't");
    }

    #[test]
    fn what_is_changed_for_ever_is_compared_all_the_same() {
        for change in [by_proxies, by_others] {
            assert!(wake((0..30).map(|tenths| (tenths * 100, change(1)))) <= LONGEST);
        }
    }

    #[test]
    fn a_candidate_waits_until_its_comparison_is_due() {
        let (start, mut candidates) = (Instant::now(), DriftCandidates::new(Duration::ZERO));
        candidates.touched(by_proxies(1), start);
        assert!(candidates.waits(&1, start + CONFIRM - MS) && !candidates.waits(&2, start));
        assert_eq!(candidates.due(start + CONFIRM - MS), None);
        assert!(!candidates.waits(&1, start + CONFIRM));
        assert_eq!(candidates.due(start + CONFIRM), Some(Extent::Keys(vec![1])));
    }
}
