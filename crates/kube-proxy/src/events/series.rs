//! Aggregates repeated events to series, and limits events per object.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::EventTiming;
use super::event::{EventRecord, EventRepeats, KubeEvent, Regarding};

/// Recent events. Written events are limited per object, kept ones in total.
#[derive(Debug)]
pub(super) struct RecentEvents {
    silence: Duration,
    refresh: Duration,
    known: HashMap<Arc<KubeEvent>, WrittenEvent>,
    guard: Guard,
    /// number in the last Event's name; each is unique
    last_name: i128,
}

/// An event that was written.
#[derive(Debug)]
struct WrittenEvent {
    /// the Event with its current series
    record: EventRecord,
    /// number of occurrences
    count: u32,
    /// number of occurrences that the server has
    told: u32,
    /// time of the last occurrence
    last: Instant,
    /// time of the last write of the series
    refreshed: Instant,
}

/// A request to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// creates an Event
    Create(EventRecord),
    /// updates an Event's series
    Patch(EventRecord),
}

/// Token bucket per object.
#[derive(Debug)]
struct Guard {
    burst: u32,
    refill: Duration,
    /// Per object, the time at which the refill has paid for all written events.
    paid: HashMap<Regarding, Instant>,
}

/// Most events, and objects, that are kept.
const MOST: usize = 1024;

// === impl RecentEvents ===

impl RecentEvents {
    pub(super) fn new(timing: &EventTiming) -> Self {
        Self {
            silence: timing.silence,
            refresh: timing.refresh,
            known: HashMap::new(),
            guard: Guard { burst: timing.burst, refill: timing.refill, paid: HashMap::new() },
            last_name: 0,
        }
    }

    /// Adds an occurrence of an event, and its request to `writes` if there is one. False if the object's limit drops the event.
    pub(super) fn observe(&mut self, event: KubeEvent, time: Timestamp, now: Instant, writes: &mut Vec<Write>) -> bool {
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
        let name = EventRecord::name(&event.regarding, self.number(&event, time));
        let event = Arc::new(event);
        let record = EventRecord { event: Arc::clone(&event), name, time, series: None };
        writes.push(Write::Create(record.clone()));
        self.known.insert(event, WrittenEvent { record, count: 1, told: 1, last: now, refreshed: now });
        true
    }

    /// The number in the name of a new Event.
    fn number(&mut self, event: &KubeEvent, time: Timestamp) -> i128 {
        event.common_number().unwrap_or_else(|| {
            // The clock may not have advanced, or may have been set back.
            self.last_name = time.as_nanosecond().max(self.last_name + 1);
            self.last_name
        })
    }

    /// Ends series without recent repeats, and adds the requests that refresh the others.
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

    /// Time of the next [`Self::tidy`].
    pub(super) fn due(&self) -> Option<Instant> {
        let due = |known: &WrittenEvent| {
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

// === impl WrittenEvent ===

impl WrittenEvent {
    /// Counts another occurrence.
    fn happened(&mut self, time: Timestamp, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.last = now;
        self.record.series = Some(EventRepeats { count: self.count, last: time });
    }

    /// The request that writes the current series.
    fn tell(&mut self, now: Instant) -> Write {
        (self.told, self.refreshed) = (self.count, now);
        Write::Patch(self.record.clone())
    }
}

// === impl Guard ===

impl Guard {
    /// Takes a token of the object's bucket; false if it is empty.
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

    /// Removes full buckets; at the limit also the fullest one of the others.
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
        series: RecentEvents,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self { series: RecentEvents::new(&EventTiming::default()), start: Instant::now() }
        }

        /// The requests after an event at this time after the start.
        fn observe(&mut self, event: KubeEvent, at: Duration) -> Vec<Write> {
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

    /// C (create) or P (patch), and the count.
    fn shape(writes: &[Write]) -> Vec<(char, u32)> {
        let count = |record: &EventRecord| record.series.map_or(1, |series| series.count);
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
        let series = Some(EventRepeats { count: 2, last: time(60, 0) });
        assert_eq!(
            second,
            [Write::Patch(EventRecord { series, ..created.clone() })],
            "a series begins with the second"
        );
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
        // an event without repeats ends without a request
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
