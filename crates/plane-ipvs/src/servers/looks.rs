//! Paces the looks for foreign changes: IPVS has no notifications.
//!
//! One dump lists all servers and shows those that are missing or have other settings. Destinations are in another listing, of
//! which each look reads a part: a *round* reads it to its end. The listing may be older than a change that this proxy makes meanwhile,
//! so a changed server is left to the next round: two of them are within a minute.
//!
//! That listing lacks the thresholds of destinations, and it leaves servers out, since the kernel finds each page by counting: one, if
//! another before it goes meanwhile, and many, if another network namespace has servers. So each look also reads servers one by one,
//! which costs more: a few of all, each within half an hour, and in turn with them those that the round before has left out. Looks
//! become rarer, and shorter, where they would cost more than their part of a core; a long list of servers doesn't keep destinations
//! from being read.

use std::collections::VecDeque;
use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::server::ServerId;

/// The times of the next looks, and the state of the round of looks at destinations.
#[derive(Debug)]
pub(crate) struct Looks {
    /// looks at the list of all servers
    pub(crate) list: Pace,
    /// looks at the destinations of some servers
    pub(crate) destinations: Pace,
    /// the server that was read one by one last
    last: Option<ServerId>,
    round: u32,
    /// servers of this round so far, other programs' included
    listed: usize,
    /// servers of the round before; 0 in the first
    last_listed: usize,
    /// servers that the round before has left out, the next one last
    left_out: Vec<ServerId>,
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
/// Looks that read a round's servers; another one finds the end of the listing. Both are within half a minute.
const LOOKS_PER_ROUND: usize = 15;
/// Looks within which each server is read by itself: less than half an hour.
const LOOKS_ONE_BY_ONE: usize = 900;
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

    /// The servers behind the one that was read last, from which on servers are to be read one by one.
    pub(crate) fn rest(&self) -> (Bound<ServerId>, Bound<ServerId>) {
        (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
    }

    /// The number of servers that one look reads one by one; `own` is the number of ours.
    pub(crate) fn count_one_by_one(own: usize) -> usize {
        own.div_ceil(LOOKS_ONE_BY_ONE)
    }

    /// The next server to be read by itself: of the rotation over all servers if it is its turn, otherwise of those that the round before has
    /// left out; of the other kind if there is none.
    pub(crate) fn next_one_by_one(
        &mut self,
        rotation: &mut VecDeque<ServerId>,
        is_rotations_turn: bool,
    ) -> Option<ServerId> {
        if !is_rotations_turn && let Some(id) = self.left_out.pop() {
            return Some(id);
        }
        let Some(id) = rotation.pop_front() else { return self.left_out.pop() };
        self.last = Some(id);
        Some(id)
    }

    /// True if servers that the round before has left out are still to be read.
    pub(crate) fn has_left_out(&self) -> bool {
        !self.left_out.is_empty()
    }

    /// The largest number of servers of the listing that one look reads; `own` is the number of ours.
    pub(crate) fn count(&self, own: usize) -> usize {
        let expected = self.last_listed.max(own);
        // The end of the listing comes now, or other programs have more servers than in the round before: only the processor time bounds
        // how far the look goes.
        if self.listed >= expected { usize::MAX } else { expected.div_ceil(LOOKS_PER_ROUND) }
    }

    /// A look has read another server.
    pub(crate) fn listed(&mut self) {
        self.listed += 1;
    }

    /// A look has reached the end of the listing, which has left out these servers; the last one is to be read first.
    pub(crate) fn end_round(&mut self, left_out: Vec<ServerId>) {
        self.left_out = left_out;
        self.round = self.round.wrapping_add(1);
        self.last_listed = std::mem::take(&mut self.listed);
    }

    /// The number of the round.
    pub(crate) fn round(&self) -> u32 {
        self.round
    }

    /// The processor time that one look's part of the listing may take at the shortest interval, with
    /// [`BUDGET_ONE_BY_ONE`](Self::BUDGET_ONE_BY_ONE) a thousandth of a core.
    pub(crate) const BUDGET: Duration = Duration::from_micros(1200);
    /// The processor time after which one look reads no further server by itself.
    pub(crate) const BUDGET_ONE_BY_ONE: Duration = Duration::from_micros(600);
    /// The number of servers and destinations of the listing between two readings of that time, each of which is a system call.
    pub(crate) const LINES_BETWEEN_CLOCKS: usize = 128;
}

impl Default for Looks {
    fn default() -> Self {
        let pace = |part| Pace { next: None, part };
        Self {
            list: pace(PART_OF_LIST),
            destinations: pace(PART_OF_DESTINATIONS),
            last: None,
            round: 0,
            listed: 0,
            last_listed: 0,
            left_out: Vec::new(),
        }
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
    fn server(port: u16) -> ServerId {
        ServerId { protocol: ferry_api::object::Protocol::Tcp, address: [192, 0, 2, 1].into(), port }
    }

    #[test]
    fn servers_in_rotation_and_those_left_out_take_turns() {
        let mut looks = Looks::default();
        looks.end_round(vec![server(9), server(8), server(7)]);
        let mut rotation = VecDeque::from([server(1), server(2)]);
        for (is_rotations_turn, next) in
            [(true, Some(1)), (false, Some(7)), (true, Some(2)), (true, Some(8)), (false, Some(9)), (false, None)]
        {
            let next = next.map(server);
            assert_eq!(looks.next_one_by_one(&mut rotation, is_rotations_turn), next);
        }
        assert_eq!(looks.rest(), (Bound::Excluded(server(2)), Bound::Unbounded), "those left out are out of turn");
    }

    #[test]
    fn a_look_lists_its_part_of_a_round_until_all_servers_that_are_known_were_listed() {
        let mut looks = Looks::default();
        assert_eq!(looks.count(451), 31);
        for _ in 0..450 {
            looks.listed();
        }
        assert_eq!((looks.count(451), looks.count(450)), (31, usize::MAX), "one is still to come, or none");
        for _ in 0..450 {
            looks.listed();
        }
        looks.end_round(Vec::new());
        assert_eq!(looks.count(450), 60, "others have as many");
    }
}
