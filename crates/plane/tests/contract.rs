//! The engine's use of modes and kernels: modes that answer only some questions or have objects that stay, and a kernel that isn't
//! ready at first.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::toy::world::World;
use crate::toy::{Toy, ToyCompile, ToyKey};
use ferry_model::{Context, Profile};
use ferry_plane::engine::Engine;
use ferry_plane::memory::MemoryKernel;
use ferry_plane::{Batch, CommitError, CommitFailure, Compile, Drift, Extent, Kernel, Next, SyncEngine, Unit};

/// A mode whose units can't be asked for what they want.
#[derive(Debug)]
struct Unasked;

impl Compile for Unasked {
    type Object = Toy;
    type Hint = crate::toy::ToyHint;
    const PROFILE: Profile = Profile::NFTABLES;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Toy>) {
        ToyCompile.compile(context, unit, out);
    }

    fn hints(&self, key: &ToyKey, hints: &mut Vec<crate::toy::ToyHint>) {
        ToyCompile.hints(key, hints);
    }
}

#[test]
fn without_an_answer_any_unit_may_want_an_object() {
    let now = Instant::now();
    let mut engine = Engine::new(Unasked, MemoryKernel::default());
    engine.offer(World::new().delta());
    assert!(engine.sync(now).error.is_none());
    let before = engine.kernel().objects.clone();
    engine.kernel_mut().lose(&ToyKey::Frontend(4));
    engine.tend(now);
    assert_eq!(engine.tend(now + Duration::from_millis(200)).repairs, 1);
    assert_eq!(engine.kernel().objects, before);
    assert_eq!(engine.acked().len(), 5, "the base, and four services");
}

/// A mode whose base has an object that stays at clean-up.
#[derive(Debug)]
struct Guarded;

impl Compile for Guarded {
    type Object = Toy;
    type Hint = crate::toy::ToyHint;
    const PROFILE: Profile = Profile::NFTABLES;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Toy>) {
        ToyCompile.compile(context, unit, out);
        out.extend(matches!(unit, Unit::Base(_)).then_some(Toy::Guard));
    }
}

#[test]
fn the_repair_of_what_stays_at_clean_up_is_never_suspended() {
    let mut now = Instant::now();
    let mut engine = Engine::new(Guarded, MemoryKernel::default());
    engine.offer(World::new().delta());
    assert!(engine.sync(now).error.is_none());
    for round in 0..8 {
        now += Duration::from_secs(1);
        engine.kernel_mut().lose(&ToyKey::Guard);
        engine.kernel_mut().lose(&ToyKey::Base);
        engine.tend(now);
        let outcome = engine.tend(now + Duration::from_millis(200));
        assert_eq!(outcome.repairs, if round < 3 { 2 } else { 1 }, "round {round}");
        assert!(engine.kernel().objects.contains_key(&ToyKey::Guard));
    }
}

/// A kernel that lacks something at first.
#[derive(Debug, Default)]
struct Unprepared {
    kernel: MemoryKernel<Toy>,
    attempts: u32,
    waker: Option<Waker>,
}

impl Kernel<Toy> for Unprepared {
    fn prepare(&mut self) -> Result<(), CommitError> {
        self.attempts += 1;
        match self.attempts {
            1 => Err(CommitError::Unusable(std::io::ErrorKind::Unsupported.into())),
            _ => Ok(()),
        }
    }

    fn read_back(&mut self, extent: &Extent<ToyKey>) -> Result<Vec<Toy>, CommitError> {
        self.kernel.read_back(extent)
    }

    fn commit(&mut self, batch: &Batch<Toy>) -> Result<(), CommitFailure> {
        self.kernel.commit(batch)
    }

    fn tend(&mut self, now: Instant) -> Result<Drift<ToyKey>, CommitError> {
        self.kernel.tend(now)
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.waker = Some(waker.clone());
    }
}

#[test]
fn a_kernel_is_prepared_until_it_is_ready_and_then_no_more() {
    let start = Instant::now();
    let mut engine = Engine::new(ToyCompile, Unprepared::default());
    engine.offer(World::new().delta());
    let outcome = engine.sync(start);
    assert!(matches!(outcome.error.as_deref(), Some(CommitError::Unusable(_))), "{outcome:?}");
    assert_eq!(outcome.next, Next::RetryAfter(Duration::from_secs(10)));
    assert!(engine.kernel().kernel.objects.is_empty());
    let pending = |engine: &Engine<ToyCompile, Unprepared>| {
        let mut pending = Vec::new();
        engine.each_pending(&mut |id| pending.push(id.clone()));
        pending
    };
    assert_eq!(pending(&engine).len(), 5, "the base, and four services");
    engine.wake_by(Waker::noop());
    assert!(engine.kernel().waker.is_some());
    for second in [10, 20] {
        assert!(engine.sync(start + Duration::from_secs(second)).error.is_none());
        assert!(!engine.kernel().kernel.objects.is_empty() && engine.kernel().attempts == 2);
        assert_eq!(pending(&engine), []);
    }
}
