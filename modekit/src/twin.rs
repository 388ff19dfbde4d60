//! One or two engines on one kernel in memory, by the millisecond.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferry_plane::engine::Engine;
use ferry_plane::memory::{MemoryKernel, Refers, Side};
use ferry_plane::{Compile, Delta, Next, Object, Outcome, SyncEngine};
use proptest::prelude::*;

/// How often an engine looks after its kernel.
const TEND: u64 = 250;

/// When a change is made, how long until each engine hears of it, and whether the second one hears only of what follows
/// soon.
#[derive(Clone, Debug)]
pub struct Timing {
    /// so many milliseconds after the one before
    pub after: u64,
    /// milliseconds until each engine gets it
    pub lag: [u64; 2],
    /// the second engine gets only the next change, if that follows soon
    pub skipped: bool,
}

/// What each engine hears, by the millisecond.
#[derive(Debug, Default)]
pub struct Schedule {
    /// by each of both
    pub heard: [BTreeMap<u64, Delta>; 2],
    /// when the last change is made; each has heard of it 80 ms later
    pub end: u64,
}

/// One of one or two engines, and what it has met.
pub struct Twin<C: Compile> {
    /// the engine
    pub engine: Engine<C, Side<C::Object>>,
    /// when the next turn is due
    tend: u64,
    /// objects it has mended
    pub repairs: usize,
    /// objects it has left alone for a while
    pub contested: usize,
    /// turns that failed
    pub errors: usize,
    /// turns that compared everything
    pub full: usize,
}

/// Changes that overlap, and that are far apart.
pub fn timing() -> impl Strategy<Value = Timing> {
    (0..120u64, [0..80u64, 0..80u64], prop::bool::weighted(0.3)).prop_map(|(after, lag, skipped)| Timing {
        after,
        lag,
        skipped,
    })
}

/// The instant of a millisecond.
pub fn at(start: Instant, clock: u64) -> Instant {
    start + Duration::from_millis(clock)
}

/// What is there and wanted: without spare parts that lie there.
pub fn there<O: Refers>(memory: &MemoryKernel<O>, wanted: &[O]) -> Vec<O> {
    let objects = memory.objects.values();
    objects.filter(|object| !object.spare() || wanted.contains(object)).cloned().collect()
}

// === impl Schedule ===

impl Schedule {
    /// Of changes in their order.
    pub fn new(changes: &[(Timing, Delta)]) -> Self {
        let mut schedule = Self::default();
        let mut last = [0, 0];
        for (index, (timing, delta)) in changes.iter().enumerate() {
            schedule.end += timing.after;
            let follows = changes.get(index + 1).is_some_and(|(next, _)| next.after < 40);
            for (side, last) in last.iter_mut().enumerate() {
                // Changes come in their order, and the last one always comes.
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
    /// One that has started; the other one's turns lie between its own.
    pub fn new(compile: C, side: Side<C::Object>, index: u64, delta: Delta, now: Instant) -> Self {
        let mut engine = Engine::new(compile, side);
        engine.offer(delta);
        assert!(engine.sync(now).error.is_none());
        Self { engine, tend: 1 + 120 * index, repairs: 0, contested: 0, errors: 0, full: 0 }
    }

    /// One millisecond.
    pub fn step(&mut self, clock: u64, now: Instant, heard: Option<Delta>) {
        if let Some(delta) = heard {
            self.engine.offer(delta);
            let outcome = self.engine.sync(now);
            self.note(clock, &outcome);
        }
        if clock >= self.tend {
            let outcome = self.engine.tend(now);
            self.tend = clock + TEND;
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
            self.tend = self.tend.min(clock + millis.max(1));
        }
    }

    /// Whether the kernel holds what this engine believes it holds.
    pub fn is_right(&self) -> bool {
        let mut wanted = self.engine.objects();
        wanted.dedup();
        self.engine.kernel().with(|memory| there(memory, &wanted) == wanted)
    }
}
