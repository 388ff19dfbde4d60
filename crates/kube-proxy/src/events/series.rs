//! Which events are told, and which are only counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Timing;
use super::event::{Count, Event, Record, Regarding};

/// What happened lately. What is told is bounded per object, what is remembered in all.
#[derive(Debug)]
pub(super) struct Series {
    silence: Duration,
    refresh: Duration,
    known: HashMap<Arc<Event>, Known>,
    guard: Guard,
    /// of the last name that was given; no two are the same
    last_name: i128,
}

/// An event that was told.
#[derive(Debug)]
struct Known {
    /// with the series as it is now
    record: Record,
    /// how often it happened
    count: u32,
    /// how often it happened as far as the server was told
    told: u32,
    /// when it happened last
    last: Instant,
    /// when the series was told last
    refreshed: Instant,
}

/// What to tell the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// a new Event
    Create(Record),
    /// its series has come so far
    Patch(Record),
}

/// Bounds how many events of one object are told: some at once, then one now and then.
#[derive(Debug)]
struct Guard {
    burst: u32,
    refill: Duration,
    /// When all that was told of an object would have been told at the rate of the refill.
    paid: HashMap<Regarding, Instant>,
}

/// Events, and objects, that are remembered.
const MOST: usize = 1024;

// === impl Series ===

impl Series {
    pub(super) fn new(timing: &Timing) -> Self {
        Self {
            silence: timing.silence,
            refresh: timing.refresh,
            known: HashMap::new(),
            guard: Guard { burst: timing.burst, refill: timing.refill, paid: HashMap::new() },
            last_name: 0,
        }
    }

    /// An event happened. Adds what is to be told; false if it is one too many of its object and isn't told at all.
    pub(super) fn observe(&mut self, event: Event, time: Timestamp, now: Instant, writes: &mut Vec<Write>) -> bool {
        self.tidy(now, writes);
        if let Some(known) = self.known.get_mut(&event) {
            known.happened(time, now);
            if known.count == 2 {
                writes.push(known.tell(now));
            }
            return true;
        }
        if !self.guard.admits(&event.regarding, now) {
            return false;
        }
        if self.known.len() >= MOST {
            self.forget_oldest(now, writes);
        }
        let name = Record::name(&event.regarding, self.number(&event, time));
        let event = Arc::new(event);
        let record = Record { event: Arc::clone(&event), name, time, series: None };
        writes.push(Write::Create(record.clone()));
        self.known.insert(event, Known { record, count: 1, told: 1, last: now, refreshed: now });
        true
    }

    /// The number in the name of a new Event.
    fn number(&mut self, event: &Event, time: Timestamp) -> i128 {
        event.common_number().unwrap_or_else(|| {
            // Clocks may stand still or go back.
            self.last_name = time.as_nanosecond().max(self.last_name + 1);
            self.last_name
        })
    }

    /// Ends the series that nothing was added to for long, and adds what is to be told of the others.
    pub(super) fn tidy(&mut self, now: Instant, writes: &mut Vec<Write>) {
        let (silence, refresh) = (self.silence, self.refresh);
        self.known.retain(|_, known| {
            let over = known.last + silence <= now;
            if known.told < known.count && (over || known.refreshed + refresh <= now) {
                writes.push(known.tell(now));
            }
            !over
        });
    }

    /// When [`Self::tidy`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = |known: &Known| {
            let end = known.last + self.silence;
            if known.told < known.count { end.min(known.refreshed + self.refresh) } else { end }
        };
        self.known.values().map(due).min()
    }

    fn forget_oldest(&mut self, now: Instant, writes: &mut Vec<Write>) {
        let oldest = self.known.iter().min_by_key(|(_, known)| known.last).map(|(event, _)| Arc::clone(event));
        if let Some(mut known) = oldest.and_then(|event| self.known.remove(&event))
            && known.told < known.count
        {
            writes.push(known.tell(now));
        }
    }
}

// === impl Known ===

impl Known {
    /// Once more.
    fn happened(&mut self, time: Timestamp, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.last = now;
        self.record.series = Some(Count { count: self.count, last: time });
    }

    /// How far the series has come.
    fn tell(&mut self, now: Instant) -> Write {
        (self.told, self.refreshed) = (self.count, now);
        Write::Patch(self.record.clone())
    }
}

// === impl Guard ===

impl Guard {
    /// Whether one more may be told of the object.
    fn admits(&mut self, object: &Regarding, now: Instant) -> bool {
        let paid = self.paid.get(object).map_or(now, |paid| (*paid).max(now));
        if paid.saturating_duration_since(now) > self.refill * self.burst.saturating_sub(1) {
            return false;
        }
        if self.paid.len() >= MOST && !self.paid.contains_key(object) {
            self.forget(now);
        }
        self.paid.insert(object.clone(), paid + self.refill);
        true
    }

    /// Forgets what has no effect any more, or else what has the least.
    fn forget(&mut self, now: Instant) {
        self.paid.retain(|_, paid| *paid > now);
        if self.paid.len() >= MOST
            && let Some(least) = self.paid.iter().min_by_key(|(_, paid)| **paid).map(|(object, _)| object.clone())
        {
            self.paid.remove(&least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{event, noted, time};
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    /// A series, and its clocks.
    struct Bench {
        series: Series,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self { series: Series::new(&Timing::default()), start: Instant::now() }
        }

        /// What is told when this happens so long after the start.
        fn observe(&mut self, event: Event, at: Duration) -> Vec<Write> {
            let mut writes = Vec::new();
            let seconds = i64::try_from(at.as_secs()).unwrap();
            assert!(self.series.observe(event, time(seconds, 0), self.start + at, &mut writes));
            writes
        }

        fn tidy(&mut self, at: Duration) -> Vec<Write> {
            let mut writes = Vec::new();
            self.series.tidy(self.start + at, &mut writes);
            writes
        }

        fn due(&self) -> Option<Duration> {
            self.series.due().map(|due| due - self.start)
        }
    }

    /// C or P, and the count.
    fn shape(writes: &[Write]) -> Vec<(char, u32)> {
        let count = |record: &Record| record.series.map_or(1, |series| series.count);
        let shape = |write: &Write| match write {
            Write::Create(record) => ('C', count(record)),
            Write::Patch(record) => ('P', count(record)),
        };
        writes.iter().map(shape).collect()
    }

    #[test]
    fn repeats_are_a_series() {
        let mut bench = Bench::new();
        let first = bench.observe(event("web"), Duration::ZERO);
        let Write::Create(created) = &first[0] else { panic!("{first:?}") };
        assert_eq!((first.len(), created.series), (1, None));
        let second = bench.observe(event("web"), MINUTE);
        let series = Some(Count { count: 2, last: time(60, 0) });
        assert_eq!(second, [Write::Patch(Record { series, ..created.clone() })], "a series begins with the second");
        for minute in 2..6 {
            assert_eq!(bench.observe(event("web"), minute * MINUTE), [], "and is counted from then on");
        }
        // refreshed after half an hour
        for minute in 6..31 {
            assert_eq!(bench.observe(event("web"), minute * MINUTE), []);
        }
        assert_eq!(bench.due(), Some(31 * MINUTE));
        assert_eq!(shape(&bench.tidy(31 * MINUTE)), [('P', 31)]);
        assert_eq!(bench.observe(event("web"), 32 * MINUTE), []);
        // ended after six minutes
        assert_eq!(bench.due(), Some(38 * MINUTE));
        assert_eq!(bench.tidy(37 * MINUTE), []);
        assert_eq!(shape(&bench.tidy(38 * MINUTE)), [('P', 32)]);
        assert_eq!((bench.due(), bench.series.known.len()), (None, 0));
        assert_eq!(shape(&bench.observe(event("web"), 39 * MINUTE)), [('C', 1)]);
    }

    #[test]
    fn what_comes_after_the_silence_is_new() {
        let mut bench = Bench::new();
        for minute in 0..3 {
            bench.observe(event("web"), minute * MINUTE);
        }
        assert_eq!(shape(&bench.observe(event("web"), 8 * MINUTE)), [('P', 3), ('C', 1)]);
        // one that wasn't repeated ends without a word
        assert_eq!(bench.tidy(14 * MINUTE), []);
        assert_eq!(bench.due(), None);
    }

    #[test]
    fn another_note_is_another_event() {
        let mut bench = Bench::new();
        let mut names = Vec::new();
        for (service, note) in [("web", "a"), ("web", "b"), ("api", "a")] {
            let writes = bench.observe(noted(service, note), Duration::ZERO);
            let [Write::Create(record)] = &writes[..] else { panic!("{writes:?}") };
            names.push(record.name.clone());
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3, "at the same moment, and yet each has a name");
    }

    #[test]
    fn a_storm_is_cut_off() {
        let mut bench = Bench::new();
        let mut told = |service: &str, note: u32, at: Duration| {
            let mut writes = Vec::new();
            let at = bench.start + at;
            let admitted = bench.series.observe(noted(service, &note.to_string()), time(0, 0), at, &mut writes);
            assert_eq!(admitted, !writes.is_empty());
            admitted
        };
        assert_eq!((0..100).filter(|note| told("web", *note, Duration::ZERO)).count(), 25);
        assert!(told("web", 0, Duration::ZERO), "a repeat costs nothing");
        assert!(told("api", 0, Duration::ZERO), "another object isn't touched");
        let minutes = |range: std::ops::Range<u32>| range.map(|minute| minute * MINUTE);
        let admitted: Vec<_> = minutes(1..21).filter(|at| told("web", 1000 + at.as_secs() as u32, *at)).collect();
        assert_eq!(admitted, [5, 10, 15, 20].map(|minute| minute * MINUTE));
        assert_eq!((0..100).filter(|note| told("web", 9000 + note, 1000 * MINUTE)).count(), 25);
    }

    #[test]
    fn nothing_grows_without_bound() {
        let mut bench = Bench::new();
        bench.observe(event("first"), Duration::ZERO);
        bench.observe(event("first"), Duration::ZERO);
        bench.observe(event("first"), Duration::ZERO);
        let mut told = Vec::new();
        for number in 0..3000_u32 {
            told.extend(bench.observe(event(&format!("s{number}")), number * Duration::from_millis(1) + MINUTE));
        }
        assert_eq!(told.len(), 3001, "one was forgotten and had something to tell");
        assert_eq!(shape(&told).iter().filter(|shape| **shape == ('P', 3)).count(), 1);
        assert_eq!((bench.series.known.len(), bench.series.guard.paid.len()), (MOST, MOST));
    }
}
