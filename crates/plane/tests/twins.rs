//! Two engines that keep the same kernel, as two proxies of one node do during an update: each hears of every change in its
//! own time, and may hear of several as one. They end in the same state, without a fight and without a repair.

#![expect(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    dead_code,
    reason = "a test may look at the clock, to have a first instant, and fail by panic; it needs a part of the toy"
)]

mod toy;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferry_plane::engine::Engine;
use ferry_plane::memory::MemoryKernel;
use ferry_plane::{Batch, CommitError, Delta, Extent, Kernel, Next, Object as _, SyncEngine, Tended, UnitId};
use proptest::prelude::*;
use toy::{Toy, ToyCompile, ToyKey, base, context, service};

const MS: Duration = Duration::from_millis(1);
/// How often an engine looks after its kernel.
const TEND: u64 = 250;

#[derive(Debug, Default)]
struct Shared {
    memory: MemoryKernel<Toy>,
    /// what the other one did since the last look of each
    touched: [Vec<ToyKey>; 2],
}

/// One of two ways to the same kernel.
#[derive(Clone, Debug)]
struct Side {
    shared: Arc<Mutex<Shared>>,
    index: usize,
}

impl Kernel<Toy> for Side {
    fn prepare(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<ToyKey>) -> Result<Vec<Toy>, CommitError> {
        self.shared.lock().unwrap().memory.read_back(extent)
    }

    fn commit(&mut self, batch: &Batch<Toy>) -> Result<(), CommitError> {
        let mut shared = self.shared.lock().unwrap();
        shared.memory.commit(batch)?;
        let keys = batch.create.iter().chain(&batch.replace).chain(&batch.delete).map(Toy::key);
        shared.touched[1 - self.index].extend(keys);
        Ok(())
    }

    fn tend(&mut self, _now: Instant) -> Result<Tended<ToyKey>, CommitError> {
        let touched = std::mem::take(&mut self.shared.lock().unwrap().touched[self.index]);
        Ok(Tended { wake: None, drift: (!touched.is_empty()).then_some(Extent::Keys(touched)) })
    }
}

/// One change: endpoints of one of three services, how long until each engine hears of it, and whether the second one
/// hears only of what follows soon.
#[derive(Clone, Debug)]
struct Change {
    after: u64,
    service: u8,
    endpoints: Vec<u8>,
    lag: [u64; 2],
    skipped: bool,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change =
        (0..120u64, 0..3u8, prop::collection::vec(1..7u8, 0..4), [0..80u64, 0..80u64], prop::bool::weighted(0.3));
    let change =
        change.prop_map(|(after, service, endpoints, lag, skipped)| Change { after, service, endpoints, lag, skipped });
    prop::collection::vec(change, 1..40)
}

fn delta(endpoints: &[Vec<u8>]) -> Delta {
    let mut units = vec![(UnitId::Base, Some(Arc::new(base())))];
    for (index, endpoints) in (0..).zip(endpoints) {
        let (name, unit) = service(index, &[2 * index, 2 * index + 1], endpoints);
        units.push((UnitId::Service(name), unit.map(Arc::new)));
    }
    Delta { context: Some(Arc::new(context(1))), units: units.into_iter().collect() }
}

/// What is to happen to each engine, by the millisecond: a change that it hears of.
fn schedule(changes: &[Change]) -> (Vec<BTreeMap<u64, Delta>>, Delta, u64) {
    let mut endpoints = vec![vec![1, 2], vec![3], vec![]];
    let mut heard = vec![BTreeMap::new(), BTreeMap::new()];
    let mut at = [0, 0];
    let mut clock = 0;
    for (index, change) in changes.iter().enumerate() {
        clock += change.after;
        endpoints[usize::from(change.service)].clone_from(&change.endpoints);
        for side in 0..2 {
            // Changes come in their order, and the last one always comes.
            at[side] = at[side].max(clock + change.lag[side]);
            let follows = changes.get(index + 1).is_some_and(|next| next.after < 40);
            if side == 0 || !change.skipped || !follows {
                heard[side].insert(at[side], delta(&endpoints));
            }
        }
    }
    (heard, delta(&endpoints), clock)
}

struct Run {
    engine: Engine<ToyCompile, Side>,
    tend: u64,
    repairs: usize,
    contested: usize,
}

impl Run {
    fn new(shared: &Arc<Mutex<Shared>>, index: usize, now: Instant) -> Self {
        let mut engine = Engine::new(ToyCompile, Side { shared: Arc::clone(shared), index });
        engine.offer(delta(&[vec![1, 2], vec![3], vec![]]));
        assert!(engine.sync(now).error.is_none());
        Self { engine, tend: 1 + 120 * index as u64, repairs: 0, contested: 0 }
    }

    /// One millisecond.
    fn step(&mut self, clock: u64, now: Instant, heard: Option<&Delta>) {
        if let Some(delta) = heard {
            self.engine.offer(delta.clone());
            let outcome = self.engine.sync(now);
            self.note(clock, &outcome);
        }
        if clock >= self.tend {
            let outcome = self.engine.tend(now);
            self.tend = clock + TEND;
            self.note(clock, &outcome);
        }
    }

    fn note(&mut self, clock: u64, outcome: &ferry_plane::Outcome) {
        assert!(outcome.error.is_none(), "{outcome:?}");
        self.repairs += outcome.repairs;
        self.contested += outcome.contested.len();
        if let Next::RetryAfter(pause) = outcome.next {
            let millis = u64::try_from(pause.as_millis()).unwrap();
            self.tend = self.tend.min(clock + millis.max(1));
        }
    }
}

fn settled(memory: &MemoryKernel<Toy>) -> Vec<Toy> {
    memory.objects.values().filter(|object| !object.is_pick()).cloned().map(Toy::sorted).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn twins_agree_and_never_repair_each_other(changes in changes(), lost in prop::option::of(0..6u8)) {
        let start = Instant::now();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let mut twins = [Run::new(&shared, 0, start), Run::new(&shared, 1, start)];
        let (heard, last, end) = schedule(&changes);
        for clock in 0..end + 1500 {
            for (twin, heard) in twins.iter_mut().zip(&heard) {
                twin.step(clock, start + MS * u32::try_from(clock).unwrap(), heard.get(&clock));
            }
        }
        prop_assert_eq!(twins.iter().map(|twin| (twin.repairs, twin.contested)).collect::<Vec<_>>(), [(0, 0), (0, 0)]);
        let commits = shared.lock().unwrap().memory.commits;

        // both would mend what a third one damages, and that is no fight either
        if let Some(vip) = lost {
            let mut shared = shared.lock().unwrap();
            shared.memory.lose(&ToyKey::Frontend(vip));
            shared.touched.iter_mut().for_each(|touched| touched.push(ToyKey::Frontend(vip)));
        }
        for clock in end + 1500..end + 4000 {
            twins.iter_mut().for_each(|twin| twin.step(clock, start + MS * u32::try_from(clock).unwrap(), None));
        }
        prop_assert_eq!(twins.iter().map(|twin| twin.contested).sum::<usize>(), 0);
        let memory = &shared.lock().unwrap().memory;
        prop_assert_eq!(memory.commits - commits, usize::from(lost.is_some()), "they rest");
        let mut alone = Engine::new(ToyCompile, MemoryKernel::default());
        alone.offer(last);
        prop_assert!(alone.sync(start).error.is_none());
        prop_assert_eq!(settled(memory), settled(alone.kernel()));
    }
}
