//! Paces the looks for foreign changes: IPVS has no notifications.
//!
//! One dump lists all servers and shows those that are missing or have other settings. Destinations need a dump for each server:
//! a few are read at each look, so that all come round within a minute. Each of the two becomes rarer where it would cost more
//! than its part of a core, so that a long list of servers doesn't keep destinations from being read.

use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::server::ServerId;

/// The times of the next looks, and the server whose destinations were read last.
#[derive(Debug)]
pub(crate) struct Looks {
    /// looks at the list of all servers
    pub(crate) list: Pace,
    /// looks at the destinations of some
    pub(crate) destinations: Pace,
    last: Option<ServerId>,
}

/// When one kind of look is due.
#[derive(Debug)]
pub(crate) struct Pace {
    next: Option<Instant>,
    /// the divisor of a core's time that these looks may take
    part: u32,
}

/// Interval of looks: a deleted server is back within two seconds.
const INTERVAL: Duration = Duration::from_millis(1800);
/// Looks within which the destinations of all servers are read: a minute.
const LOOKS_PER_ROUND: usize = 33;
/// The longest interval.
const LONGEST: Duration = Duration::from_secs(60);
/// The part of a core's time that looks at the list may take: one hundredth, as a dump of 18 ms would, which is one of many thousand
/// servers.
const PART_OF_LIST: u32 = 100;
/// And looks at destinations: one thousandth.
const PART_OF_DESTINATIONS: u32 = 1000;

// === impl Looks ===

impl Looks {
    /// The time of the next look; `None` without servers.
    pub(crate) fn wake(&mut self, servers: usize, now: Instant) -> Option<Instant> {
        if servers == 0 {
            (self.list.next, self.destinations.next) = (None, None);
            return None;
        }
        let next = |pace: &mut Pace| *pace.next.get_or_insert(now + INTERVAL);
        Some(next(&mut self.list).min(next(&mut self.destinations)))
    }

    /// The servers behind the one that was read last, from which on destinations are to be read.
    pub(crate) fn rest(&self) -> (Bound<ServerId>, Bound<ServerId>) {
        (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
    }

    /// The number of servers whose destinations one look reads.
    pub(crate) fn count(servers: usize) -> usize {
        servers.div_ceil(LOOKS_PER_ROUND)
    }

    /// The destinations of this server were read last.
    pub(crate) fn reached(&mut self, last: ServerId) {
        self.last = Some(last);
    }

    /// The processor time that a look at destinations may take at the shortest interval.
    pub(crate) const fn budget() -> Duration {
        Duration::from_micros(1800)
    }
}

impl Default for Looks {
    fn default() -> Self {
        let pace = |part| Pace { next: None, part };
        Self { list: pace(PART_OF_LIST), destinations: pace(PART_OF_DESTINATIONS), last: None }
    }
}

// === impl Pace ===

impl Pace {
    /// True if a look is due. The next is put off by the shortest interval then, so that one that fails isn't repeated without a
    /// pause.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        let is_due = self.next.is_some_and(|next| next <= now);
        if is_due {
            self.done(now, Duration::ZERO);
        }
        is_due
    }

    /// Schedules the next look after one that took so much processor time.
    pub(crate) fn done(&mut self, now: Instant, used: Duration) {
        self.next = Some(now + (used * self.part).clamp(INTERVAL, LONGEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_comes_within_two_seconds_and_costs_its_part() {
        let (mut looks, now) = (Looks::default(), Instant::now());
        assert_eq!(looks.wake(0, now), None);
        assert!(!looks.list.begin(now));
        let first = looks.wake(7, now).unwrap();
        assert!(first - now < Duration::from_secs(2));
        assert_eq!(looks.wake(7, now + INTERVAL / 2), Some(first), "it isn't put off");
        assert!(!looks.list.begin(now) && looks.list.begin(first) && looks.destinations.begin(first));
        assert!(!looks.list.begin(first), "one that fails isn't repeated at once");
        looks.destinations.done(now, LONGEST);
        for (used, pause) in [(18, INTERVAL), (100, Duration::from_secs(10))] {
            looks.list.done(now, Duration::from_millis(used));
            assert_eq!(looks.wake(7, now), Some(now + pause));
        }
        looks.list.done(now, LONGEST);
        looks.destinations.done(now, Duration::from_millis(10));
        assert_eq!(looks.wake(7, now), Some(now + Duration::from_secs(10)));
        looks.destinations.done(now, Duration::from_secs(1));
        assert_eq!(looks.wake(7, now), Some(now + LONGEST));
        assert_eq!(looks.wake(0, now), None, "no servers, no looks");
    }

    #[test]
    fn an_expensive_list_leaves_the_looks_at_destinations_as_they_are() {
        let (mut looks, now) = (Looks::default(), Instant::now());
        looks.list.done(now, LONGEST);
        looks.destinations.done(now, Duration::from_micros(300));
        assert_eq!(looks.wake(7, now), Some(now + INTERVAL));
        assert!(!looks.list.begin(now + INTERVAL) && looks.destinations.begin(now + INTERVAL));
    }
}
