//! Simulates one or two engines on one kernel in memory, in steps of a millisecond.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferry_plane::engine::Engine;
use ferry_plane::memory::{MemoryKernel, Refers, Side};
use ferry_plane::{Compile, Delta, Next, Object, Outcome, SyncEngine};
use proptest::prelude::*;

/// Pause in milliseconds between two reads of notifications.
const PAUSE: u64 = 100;
/// Pause in milliseconds after a failed pass, however long the engine would wait: faults are single ones here.
const RETRY: u64 = 250;

/// Time of a change, and its delivery to each engine.
#[derive(Clone, Debug)]
pub struct ChangeTiming {
    /// milliseconds after the previous change
    pub after: u64,
    /// milliseconds until each engine receives it
    pub lag: [u64; 2],
    /// the second engine receives only the next change, if that follows within 40 ms
    pub skipped: bool,
}

/// The changes that each engine receives, by millisecond.
#[derive(Debug, Default)]
pub struct Schedule {
    /// by each of both
    pub heard: [BTreeMap<u64, Delta>; 2],
    /// time of the last change; both engines have received it 80 ms later
    pub end: u64,
}

/// An engine in the simulation, with counters of its passes.
pub struct Twin<C: Compile> {
    /// the engine
    pub engine: Engine<C, Side<C::Object>>,
    /// time of the pass that the engine has asked for
    tend: Option<u64>,
    /// time of the next read of notifications
    listens: u64,
    /// milliseconds by which its reads follow those of the other engine
    offset: u64,
    /// repaired objects
    pub repairs: usize,
    /// contested objects, whose repair was delayed
    pub contested: usize,
    /// failed passes
    pub errors: usize,
    /// full syncs
    pub full: usize,
}

/// Strategy for overlapping and separate changes.
pub fn timing() -> impl Strategy<Value = ChangeTiming> {
    (0..120u64, [0..80u64, 0..80u64], prop::bool::weighted(0.3)).prop_map(|(after, lag, skipped)| ChangeTiming {
        after,
        lag,
        skipped,
    })
}

/// The instant of a millisecond.
pub fn at(start: Instant, clock: u64) -> Instant {
    start + Duration::from_millis(clock)
}

/// The kernel's objects without unused spare objects.
pub fn there<O: Refers>(memory: &MemoryKernel<O>, wanted: &[O]) -> Vec<O> {
    let objects = memory.objects.values();
    objects.filter(|object| !object.spare() || wanted.contains(object)).cloned().collect()
}

// === impl Schedule ===

impl Schedule {
    /// The schedule of these changes, in order.
    pub fn new(changes: &[(ChangeTiming, Delta)]) -> Self {
        let mut schedule = Self::default();
        let mut last = [0, 0];
        for (index, (timing, delta)) in changes.iter().enumerate() {
            schedule.end += timing.after;
            let follows = changes.get(index + 1).is_some_and(|(next, _)| next.after < 40);
            for (side, last) in last.iter_mut().enumerate() {
                // Changes are delivered in order, and the last one always is.
                *last = (*last).max(schedule.end + timing.lag[side]);
                if side == 0 || !timing.skipped || !follows {
                    schedule.heard[side].insert(*last, delta.clone());
                }
            }
        }
        schedule
    }
}

// === impl Twin ===

impl<C> Twin<C>
where
    C: Compile + Send,
    C::Object: Refers + Send,
    <C::Object as Object>::Key: Send,
{
    /// Starts an engine. `index` milliseconds separate the reads of two engines.
    pub fn new(compile: C, side: Side<C::Object>, index: u64, delta: Delta, now: Instant) -> Self {
        let mut engine = Engine::new(compile, side);
        engine.offer(delta);
        assert!(engine.sync(now).error.is_none());
        Self { engine, tend: None, listens: 0, offset: index, repairs: 0, contested: 0, errors: 0, full: 0 }
    }

    /// Simulates one millisecond.
    pub fn step(&mut self, clock: u64, now: Instant, heard: Option<Delta>) {
        if let Some(delta) = heard {
            self.engine.offer(delta);
            let outcome = self.engine.sync(now);
            self.note(clock, &outcome);
        }
        if self.engine.kernel().is_notified() && clock >= self.listens {
            self.listens = clock + PAUSE + self.offset;
            self.tend = Some(clock + self.offset);
        }
        if self.tend.is_some_and(|due| clock >= due) {
            self.tend = None;
            let outcome = self.engine.tend(now);
            self.note(clock, &outcome);
        }
    }

    fn note(&mut self, clock: u64, outcome: &Outcome) {
        self.repairs += outcome.repairs;
        self.contested += outcome.contested.len();
        self.errors += usize::from(outcome.error.is_some());
        self.full += usize::from(outcome.full);
        if let Next::RetryAfter(pause) = outcome.next {
            let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            let longest = if outcome.error.is_some() { RETRY } else { u64::MAX };
            let due = clock + millis.clamp(1, longest);
            self.tend = Some(self.tend.map_or(due, |known| known.min(due)));
        }
    }

    /// True if the kernel holds this engine's desired objects.
    pub fn is_right(&self) -> bool {
        let mut wanted = self.engine.objects();
        wanted.dedup();
        self.engine.kernel().with(|memory| there(memory, &wanted) == wanted)
    }
}
