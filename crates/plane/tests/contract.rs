//! The engine's use of modes and kernels: modes that answer only some questions or have objects that stay, and a kernel that isn't
//! ready at first.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::toy::world::World;
use crate::toy::{Toy, ToyCompile, ToyHint, ToyKey, base, context, served, service};
use ferry_model::{BaseState, Context, Profile};
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, Fault, MemoryKernel};
use ferry_plane::{
    Batch, Before, CommitError, CommitFailure, Compile, Delta, Drift, Extent, Kernel, Next, Served, SyncEngine, Unit,
    UnitId,
};

/// A mode whose units can't be asked for what they want.
#[derive(Debug)]
struct Unasked;

impl Compile for Unasked {
    type Object = Toy;
    type Hint = ToyHint;
    const PROFILE: Profile = Profile::NFTABLES;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Toy>) {
        ToyCompile.compile(context, unit, out);
    }

    fn hints(&self, key: &ToyKey, hints: &mut Vec<ToyHint>) {
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

/// A mode whose units can be asked for what they want, but whose keys name nothing to ask for.
#[derive(Debug)]
struct Unhinted;

impl Compile for Unhinted {
    type Object = Toy;
    type Hint = ToyHint;
    const PROFILE: Profile = Profile::NFTABLES;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Toy>) {
        ToyCompile.compile(context, unit, out);
    }

    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&ToyHint) -> bool) -> bool {
        ToyCompile.may_want(unit, asked)
    }
}

#[test]
fn an_object_without_hints_may_be_any_units() {
    let now = Instant::now();
    let mut engine = Engine::new(Unhinted, MemoryKernel::default());
    engine.offer(World::new().delta());
    assert!(engine.sync(now).error.is_none());
    engine.kernel_mut().lose(&ToyKey::Frontend(4));
    engine.tend(now);
    assert_eq!(engine.tend(now + Duration::from_millis(200)).repaired, ["Frontend(4)"]);
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(4)].slots(), [4]);
}

#[test]
fn the_objects_of_a_delta_are_those_of_its_units_under_its_context() {
    let (name, unit) = service(1, &[3], &[7]);
    let units = [(UnitId::Service(name), unit.map(Arc::new)), (UnitId::Base, Some(Arc::new(base())))];
    let delta = Delta { context: Some(Arc::new(context(2))), units: units.into() };
    let frontend = Toy::Frontend { vip: 3, slots: vec![7] };
    assert_eq!(delta.compiled(&ToyCompile), [Toy::Base, Toy::Host(7), Toy::Pick { count: 1, mark: 2 }, frontend]);
    assert_eq!(Delta { context: None, ..delta }.compiled(&ToyCompile), []);
}

/// A mode whose base has an object that stays at clean-up.
#[derive(Debug)]
struct Guarded;

impl Compile for Guarded {
    type Object = Toy;
    type Hint = ToyHint;
    const PROFILE: Profile = Profile::NFTABLES;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Toy>) {
        ToyCompile.compile(context, unit, out);
        out.extend(matches!(unit, Unit::Base(_)).then_some(Toy::Guard));
    }

    fn place(&self, _: &mut Unit, _: Before<'_, Toy>) {
        unreachable!("the mode doesn't say that it places");
    }
}

/// An engine over these objects of an earlier run.
fn guarded(objects: impl IntoIterator<Item = Toy>) -> Engine<Guarded, MemoryKernel<Toy>> {
    let objects = objects.into_iter().map(|toy| (ferry_plane::Object::key(&toy), toy)).collect();
    let mut engine = Engine::new(Guarded, MemoryKernel { objects, ..MemoryKernel::default() });
    engine.offer(World::new().delta());
    engine
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

#[test]
fn while_everything_is_contested_only_what_stays_at_clean_up_is_repaired() {
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    let mut engine = guarded([]);
    assert!(engine.sync(start).error.is_none());
    for second in 0..3 {
        engine.kernel_mut().flush();
        let outcome = engine.repair(at(1000 * second));
        assert_eq!(outcome.contested.len(), usize::from(second == 2), "{outcome:?}");
    }
    [ToyKey::Guard, ToyKey::Frontend(0)].iter().for_each(|key| engine.kernel_mut().lose(key));
    engine.tend(at(3000));
    assert_eq!(engine.tend(at(3200)).repaired, ["Guard"]);
    engine.kernel_mut().touched.push(ToyKey::Guard);
    engine.tend(at(4000));
    assert_eq!(engine.tend(at(4200)).repairs, 0, "it is there");
    assert!(!engine.kernel().objects.contains_key(&ToyKey::Frontend(0)));
    assert_eq!(engine.tend(at(12_000)).repaired, ["Frontend(0)"], "after the pause");
}

#[test]
fn a_repair_where_nothing_is_placed_compares_only_what_was_touched() {
    let now = Instant::now();
    let mut engine = guarded([]);
    assert!(engine.sync(now).error.is_none());
    engine.kernel_mut().lose(&ToyKey::Frontend(0));
    engine.kernel_mut().objects.remove(&ToyKey::Frontend(1));
    engine.tend(now);
    assert_eq!(engine.tend(now + Duration::from_millis(200)).repaired, ["Frontend(0)"]);
    assert_eq!(engine.repair(now + Duration::from_millis(300)).repaired, ["Frontend(1)"]);
}

#[test]
fn a_kernel_that_holds_only_what_stays_at_clean_up_is_loaded_by_portions() {
    for (left, commits) in [(vec![], 3), (vec![Toy::Guard], 3), (vec![Toy::Guard, Toy::foreign(0)], 1)] {
        let mut engine = guarded(left.clone()).with_portion(2);
        let outcome = engine.sync(Instant::now());
        assert_eq!((outcome.error.is_none(), outcome.acked.len()), (true, 5), "{outcome:?}");
        assert_eq!(engine.kernel().commits, commits, "{left:?}");
    }
}

#[test]
fn what_stays_at_clean_up_is_no_base_of_an_earlier_run() {
    for (left, acked) in [(Toy::Guard, 0), (Toy::OtherBase, 4)] {
        let mut engine = guarded([left]);
        engine.kernel_mut().refused = vec![ToyKey::Base];
        let outcome = engine.sync(Instant::now());
        assert_eq!((outcome.acked.len(), outcome.quarantined.len()), (acked, 1), "{outcome:?}");
    }
}

/// A mode whose base has more objects if it serves localhost, one of which others may refer to.
#[derive(Debug)]
struct Growing;

const LOCALHOST: u8 = 200;

impl Compile for Growing {
    type Object = Toy;
    type Hint = ToyHint;
    const PROFILE: Profile = Profile::NFTABLES;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Toy>) {
        ToyCompile.compile(context, unit, out);
        if matches!(unit, Unit::Base(base) if base.localhost) {
            out.extend([Toy::Guard, Toy::foreign(LOCALHOST)]);
        }
    }
}

/// The base alone.
fn growing(localhost: bool) -> Delta {
    let Unit::Base(base) = base() else { panic!("a base") };
    let units = [(UnitId::Base, Some(Arc::new(Unit::Base(BaseState { localhost, ..base }))))];
    Delta { context: Some(Arc::new(context(1))), units: units.into() }
}

#[test]
fn what_was_made_of_a_refused_base_stays() {
    let mut engine = Engine::new(Growing, MemoryKernel::default());
    engine.offer(growing(true));
    engine.kernel_mut().faults.push_back(Fault::HalfWay { operations: 3, error: Failing::RefusedSilently });
    let outcome = engine.sync(Instant::now());
    assert_eq!((outcome.quarantined.len(), outcome.unserved), (1, vec![]));
    let there: Vec<&ToyKey> = engine.kernel().objects.keys().collect();
    assert_eq!(there, [&ToyKey::Base, &ToyKey::Guard, &ToyKey::Frontend(LOCALHOST)]);
}

#[test]
fn remains_of_another_state_of_a_base_that_waits_stay() {
    let now = Instant::now();
    let mut engine = Engine::new(Growing, MemoryKernel::default());
    engine.offer(Delta { units: [].into(), ..growing(true) });
    assert!(engine.sync(now).error.is_none());
    engine.offer(growing(true));
    engine.kernel_mut().faults.push_back(Fault::HalfWay { operations: 3, error: Failing::RefusedSilently });
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    engine.kernel_mut().refused = vec![ToyKey::Base];
    engine.offer(growing(false));
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    engine.kernel_mut().touched.push(ToyKey::Guard);
    engine.tend(now);
    assert_eq!(engine.tend(now + Duration::from_millis(200)).repairs, 0);
    assert!(engine.kernel().objects.contains_key(&ToyKey::Guard));
}

/// A kernel that lacks something at first, and has foreign rules.
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

    fn foreign_serves(&mut self) -> Vec<Served> {
        vec![served(77)]
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
    for (second, unserved) in [(10, vec![served(77)]), (20, vec![])] {
        let outcome = engine.sync(start + Duration::from_secs(second));
        assert_eq!(
            (outcome.error.is_none(), outcome.unserved),
            (true, unserved),
            "foreign rules are replaced at the start"
        );
        assert!(!engine.kernel().kernel.objects.is_empty() && engine.kernel().attempts == 2);
        assert_eq!(pending(&engine), []);
    }
}

#[test]
fn foreign_rules_that_are_replaced_at_the_start_count_in_no_repair() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, Unprepared { attempts: 1, ..Unprepared::default() });
    engine.offer(World::new().delta());
    assert_eq!(engine.sync(now).unserved, [served(77)]);
    let outcome = engine.repair(now);
    assert!(outcome.full && outcome.unserved.is_empty(), "{outcome:?}");
}
