//! Contested objects, which another program keeps changing: after three repairs of one object within ten seconds its repair is
//! paused, longer each time.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Repairs of each object; `None` stands for everything at once (a flush).
#[derive(Debug)]
pub(crate) struct ContestedKeys<K>(HashMap<Option<K>, RepairHistory>);

#[derive(Debug, Default)]
struct RepairHistory {
    repairs: VecDeque<Instant>,
    held_until: Option<Instant>,
    holds: u32,
}

/// The number of repairs that count as a contest …
const REPAIRS: usize = 3;
/// … within this time.
const WINDOW: Duration = Duration::from_secs(10);
/// First and longest suspension of repairs.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
/// A history without a repair for this time is deleted.
const FORGET: Duration = Duration::from_secs(600);

// === impl ContestedKeys ===

impl<K> Default for ContestedKeys<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq + Clone> ContestedKeys<K> {
    /// True if the repair of an object is paused now.
    pub(crate) fn holds(&self, key: &Option<K>, now: Instant) -> bool {
        self.0.get(key).and_then(|history| history.held_until).is_some_and(|until| until > now)
    }

    /// Forgets objects without a repair for a long time.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.0.retain(|_, history| {
            history.held_until.is_some() || history.repairs.back().is_none_or(|at| *at + FORGET > now)
        });
    }

    /// Records a repair. True if the repair of the object is suspended from now on.
    pub(crate) fn repaired(&mut self, key: Option<K>, now: Instant) -> bool {
        let history = self.0.entry(key).or_default();
        history.repairs.push_back(now);
        while history.repairs.len() > REPAIRS {
            history.repairs.pop_front();
        }
        let fight =
            history.repairs.len() == REPAIRS && history.repairs.front().is_some_and(|first| *first + WINDOW > now);
        if fight {
            let wait = FIRST.saturating_mul(1 << history.holds.min(16)).min(LONGEST);
            history.held_until = Some(now + wait);
            history.holds += 1;
        }
        fight
    }

    /// Objects whose suspension has ended: each may be repaired once; if that is undone too, its repair is suspended again.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Option<K>> {
        let mut due = Vec::new();
        for (key, history) in &mut self.0 {
            if history.held_until.is_some_and(|until| until <= now) {
                history.held_until = None;
                history.repairs = std::iter::repeat_n(now, REPAIRS - 2).collect();
                due.push(key.clone());
            }
        }
        due
    }

    /// Time when the next pause ends.
    pub(crate) fn wake(&self) -> Option<Instant> {
        self.0.values().filter_map(|history| history.held_until).min()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs a first instant")]
mod tests {
    use super::*;

    #[test]
    fn three_repairs_in_ten_seconds_are_a_fight() {
        let mut contested_keys = ContestedKeys::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!contested_keys.repaired(Some(1), at(0)));
        assert!(!contested_keys.repaired(Some(1), at(8)));
        assert!(!contested_keys.repaired(Some(2), at(9)));
        assert!(!contested_keys.repaired(Some(1), at(11)), "the first is over ten seconds old");
        assert!(contested_keys.repaired(Some(1), at(12)));
        assert!(contested_keys.holds(&Some(1), at(21)));
        assert!(!contested_keys.holds(&Some(1), at(22)), "the pause is over");
        assert!(!contested_keys.holds(&Some(2), at(13)));
        for (last, is_fight) in [(9, true), (10, false)] {
            let mut contested_keys = ContestedKeys::default();
            let repairs = [0, 5, last].map(|second| contested_keys.repaired(Some(1), at(second)));
            assert_eq!(repairs, [false, false, is_fight], "the third after {last} s");
        }
    }

    #[test]
    fn a_lasting_fight_is_left_alone_for_longer() {
        let mut contested_keys = ContestedKeys::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..3 {
            contested_keys.repaired(Some(1), at(second));
        }
        assert_eq!(contested_keys.due(at(11)), vec![]);
        assert_eq!(contested_keys.due(at(12)), vec![Some(1)]);
        assert!(!contested_keys.repaired(Some(1), at(12)), "one try");
        assert!(contested_keys.repaired(Some(1), at(13)), "undone again");
        assert_eq!(contested_keys.wake(), Some(at(33)), "twice as long");
        let mut now = 33;
        for wait in [40, 80, 160, 300, 300, 300, 300] {
            assert_eq!(contested_keys.due(at(now)), vec![Some(1)]);
            assert!(!contested_keys.repaired(Some(1), at(now)));
            assert!(contested_keys.repaired(Some(1), at(now)));
            now += wait;
            assert_eq!(contested_keys.wake(), Some(at(now)), "five minutes at most");
        }
    }

    #[test]
    fn a_contest_is_forgotten_ten_minutes_after_its_last_repair() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (later, wait) in [(599, 20), (600, 10)] {
            let mut contested_keys = ContestedKeys::default();
            while !contested_keys.repaired(Some(1), at(0)) {}
            contested_keys.forget(at(3600));
            assert_eq!(contested_keys.due(at(10)), vec![Some(1)], "what is paused isn't forgotten");
            let now = 10 + later;
            contested_keys.forget(at(now));
            while !contested_keys.repaired(Some(1), at(now)) {}
            assert_eq!(contested_keys.wake(), Some(at(now + wait)), "{later} s after the last repair");
        }
    }
}
