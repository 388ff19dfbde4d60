//! Rate limit of passes, by CPU time.

use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_model::PerFamily;

/// Passes use at most this fraction (1/20) of a core's time.
const SHARE: u32 = 20;
/// Maximum allowance that accumulates, so that changes after a quiet time are checked without a pause: a dozen passes over a
/// table of the usual size.
const SAVINGS: Duration = Duration::from_millis(150);
/// The longest pause, whatever the last pass has cost.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// First pause after a failure, doubling from then on.
const RETRY: Duration = Duration::from_millis(500);
/// Longest pause after failures.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// An allowance of CPU time that grows with time and that passes use up (token bucket).
#[derive(Debug)]
pub(super) struct Pace {
    /// when the allowance is, or was, used up entirely: passes may begin after that
    empty: Instant,
    /// after the last failure, by family
    retries: PerFamily<Retry>,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Instant,
    pause: Duration,
}

// === impl Pace ===

impl Pace {
    /// With the full allowance: a start checks everything, and changes may follow at once.
    pub(super) fn new(now: Instant) -> Self {
        let empty = now.checked_sub(SAVINGS * SHARE).unwrap_or(now);
        Self { empty, retries: PerFamily::from_fn(|_| Retry { at: now, pause: RETRY }) }
    }

    /// Earliest time of the next pass over this family.
    pub(super) fn ready(&self, family: Family) -> Instant {
        self.empty.max(self.retries.of(family).at)
    }

    /// Accounts the CPU time of a pass, successful or not.
    pub(super) fn spend(&mut self, now: Instant, time: Duration) {
        let saved = now.saturating_duration_since(self.empty).min(SAVINGS * SHARE);
        let spent = time.saturating_mul(SHARE);
        self.empty = match spent.checked_sub(saved) {
            Some(debt) => now + debt.min(LONGEST_REST),
            // an instant before the clock's beginning can't be represented
            None => now.checked_sub(saved.saturating_sub(spent)).unwrap_or(now),
        };
    }

    /// Resets the pause after a successful pass over this family.
    pub(super) fn passed(&mut self, family: Family) {
        self.retries.of_mut(family).pause = RETRY;
    }

    /// Schedules a retry after a failed pass; `hopeless`: retries will fail until an operator intervenes.
    pub(super) fn failed(&mut self, family: Family, now: Instant, hopeless: bool) {
        let retry = self.retries.of_mut(family);
        retry.at = now + if hopeless { LONGEST_RETRY } else { retry.pause };
        retry.pause = (retry.pause * 2).min(LONGEST_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn passes_cost_a_twentieth() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(pace.ready(Family::V4) <= start);
        pace.spend(start, SAVINGS);
        assert_eq!(pace.ready(Family::V4), start, "a start has some to spend");
        pace.spend(start, 3 * MS);
        for family in [Family::V4, Family::V6] {
            assert_eq!(pace.ready(family), start + 60 * MS);
        }
        pace.spend(start + 60 * MS, 3000 * MS);
        assert_eq!(pace.ready(Family::V4), start + 60 * MS + LONGEST_REST);
    }

    #[test]
    fn after_a_quiet_time_several_may_follow_each_other() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut now = start + Duration::from_secs(600);
        let mut passes = 0;
        while pace.ready(Family::V4) <= now {
            now += 12 * MS;
            pace.spend(now, 12 * MS);
            passes += 1;
        }
        assert_eq!(passes, 14, "what was saved up");
        // from then on a twentieth
        let (rested, mut used) = (now, Duration::ZERO);
        while now < rested + Duration::from_secs(60) {
            now = now.max(pace.ready(Family::V6)) + 12 * MS;
            pace.spend(now, 12 * MS);
            used += 12 * MS;
        }
        assert!(used <= Duration::from_secs(3) + 24 * MS, "{used:?}");
        assert!(used >= Duration::from_millis(2800), "{used:?}");
    }

    #[test]
    fn failures_wait_longer_and_longer_and_hold_up_nobody_else() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        let mut waits = Vec::new();
        for _ in 0..9 {
            pace.failed(Family::V6, now, false);
            waits.push((pace.ready(Family::V6) - now).as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        assert!(pace.ready(Family::V4) <= now);
        pace.passed(Family::V6);
        pace.failed(Family::V6, now, false);
        assert_eq!(pace.ready(Family::V6), now + RETRY);
        pace.failed(Family::V6, now, true);
        assert_eq!(pace.ready(Family::V6), now + LONGEST_RETRY);
    }
}
