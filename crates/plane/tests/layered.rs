//! Three kernels under one engine, each with faults of its own: any history ends in the state of one full build, and at no
//! step an object refers to one that is missing, in whatever layer.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::toy::world::{Change, World, changes};
use crate::toy::{Toy, ToyCompile, ToyKey, served};
use ferry_conformance::memory::{half_way, rest};
use ferry_conformance::property::inputs;
use ferry_plane::engine::Engine;
use ferry_plane::layered::{Layer, Layered};
use ferry_plane::memory::{Failing, Fault, MemoryKernel};
use ferry_plane::{
    Applied, Batch, CommitError, CommitFailure, Delta, Drift, Extent, Kernel, Object, Op, Served, SyncEngine, Unit,
    UnitId,
};
use proptest::prelude::*;

/// One layer: a view on a memory that all share, so that references between layers are checked, with faults of its own.
#[derive(Clone)]
struct View {
    memory: Arc<Mutex<MemoryKernel<Toy>>>,
    faults: Arc<Mutex<VecDeque<Fault<ToyKey>>>>,
    touched: Arc<Mutex<Vec<ToyKey>>>,
    acknowledged: Arc<Mutex<Vec<Toy>>>,
    rank: u8,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rank(key: &ToyKey) -> u8 {
    match key {
        ToyKey::Base | ToyKey::Guard => 0,
        ToyKey::Pick(_) | ToyKey::Host(_) => 1,
        ToyKey::Frontend(_) => 2,
    }
}

impl Kernel<Toy> for View {
    fn prepare(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<ToyKey>) -> Result<Vec<Toy>, CommitError> {
        let mut objects = locked(&self.memory).read_back(extent)?;
        objects.retain(|object| object.rank() == self.rank);
        Ok(objects)
    }

    fn commit(&mut self, batch: &Batch<Toy>) -> Result<(), CommitFailure> {
        assert!(batch.operations().all(|(_, _, object)| object.rank() == self.rank), "{batch:?}");
        let mut memory = locked(&self.memory);
        std::mem::swap(&mut memory.faults, &mut locked(&self.faults));
        let result = memory.commit(batch);
        std::mem::swap(&mut memory.faults, &mut locked(&self.faults));
        result
    }

    fn acknowledged(&mut self, objects: &[Toy]) {
        locked(&self.acknowledged).extend(objects.iter().filter(|object| object.rank() == self.rank).cloned());
    }

    fn tend(&mut self, _: Instant) -> Result<Drift<ToyKey>, CommitError> {
        let touched = std::mem::take(&mut *locked(&self.touched));
        Ok(if touched.is_empty() { Drift::default() } else { Drift::by_proxies(Extent::Keys(touched)) })
    }
}

impl Layer<Toy> for View {
    fn holds(&self, key: &ToyKey) -> bool {
        rank(key) == self.rank
    }

    fn kernel(&mut self) -> &mut dyn Kernel<Toy> {
        self
    }
}

fn views() -> [View; 3] {
    let memory = Arc::new(Mutex::new(MemoryKernel::default()));
    [0, 1, 2].map(|rank| View {
        memory: Arc::clone(&memory),
        faults: Arc::default(),
        touched: Arc::default(),
        acknowledged: Arc::default(),
        rank,
    })
}

fn layered(views: &[View; 3]) -> Layered<Toy> {
    Layered::new(views.iter().cloned().map(|view| Box::new(view) as Box<dyn Layer<Toy>>).collect())
}

#[derive(Clone, Debug)]
enum Step {
    World(Change),
    Fails { layer: usize, operations: usize, error: Failing },
    Lose(u8),
    Sync,
    Tend,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        9 => changes().prop_map(Step::World),
        3 => (0..3usize, half_way())
            .prop_map(|(layer, (operations, error))| Step::Fails { layer, operations, error }),
        1 => any::<u8>().prop_map(Step::Lose),
        4 => Just(Step::Sync),
        2 => Just(Step::Tend),
    ];
    prop::collection::vec(step, 1..40)
}

type LayeredEngine = Engine<ToyCompile, Layered<Toy>>;

fn settle(engine: &mut LayeredEngine, views: &[View; 3], now: Instant) {
    views.iter().for_each(|view| locked(&view.faults).clear());
    rest(engine, now);
}

/// The wanted objects that are there, without the order of slots.
fn settled(engine: &LayeredEngine, views: &[View; 3]) -> Vec<Toy> {
    let wanted: Vec<ToyKey> = engine.objects().iter().map(Object::key).collect();
    let memory = locked(&views[0].memory);
    let objects = memory.objects.values().cloned();
    objects.filter(|object| wanted.contains(&object.key()) || !object.is_pick()).map(Toy::sorted).collect()
}

fn built_from_nothing(world: &World, now: Instant) -> (LayeredEngine, [View; 3]) {
    let views = views();
    let mut engine = Engine::new(ToyCompile, layered(&views));
    engine.offer(world.delta());
    assert!(engine.sync(now).error.is_none());
    (engine, views)
}

proptest! {
    #![proptest_config(inputs(300))]

    #[test]
    fn any_history_ends_in_the_state_of_one_full_build(history in steps()) {
        let mut world = World::new();
        let mut now = Instant::now();
        let (mut engine, views) = built_from_nothing(&world, now);
        let mut damaged = false;
        for one in history {
            now += Duration::from_millis(300);
            match one {
                Step::World(change) => world.apply(change),
                Step::Fails { layer, operations, error } => {
                    locked(&views[layer].faults).push_back(Fault::HalfWay { operations, error });
                }
                Step::Lose(vip) => {
                    let key = ToyKey::Frontend(vip % 8);
                    damaged |= locked(&views[2].memory).objects.remove(&key).is_some();
                    locked(&views[2].touched).push(key);
                }
                Step::Sync => drop(engine.sync(now)),
                Step::Tend => drop(engine.tend(now)),
            }
            engine.offer(world.delta());
            if !damaged {
                prop_assert_eq!(&locked(&views[0].memory).violations, &Vec::<String>::new());
            }
        }
        settle(&mut engine, &views, now);
        let (fresh, other) = built_from_nothing(&world, now);
        prop_assert_eq!(settled(&engine, &views), settled(&fresh, &other));
    }
}

#[test]
fn a_batch_goes_up_with_what_is_made_and_comes_down_with_what_is_deleted() {
    let views = views();
    let mut layered = layered(&views);
    let first = Batch {
        create: vec![
            Toy::Base,
            Toy::Pick { count: 1, mark: 1 },
            Toy::Host(1),
            Toy::Frontend { vip: 0, slots: vec![1] },
        ],
        ..Batch::default()
    };
    layered.commit(&first).unwrap();
    let second = Batch {
        create: vec![Toy::Host(2)],
        replace: vec![Toy::Frontend { vip: 0, slots: vec![2] }],
        delete: vec![Toy::Host(1)],
    };
    layered.commit(&second).unwrap();
    let commits = || locked(&views[0].memory).commits;
    assert_eq!(commits(), 6, "one for each layer, and the middle one twice as it is entered and left");
    let third = Batch {
        create: vec![Toy::Frontend { vip: 1, slots: vec![2] }],
        replace: vec![],
        delete: vec![Toy::Frontend { vip: 0, slots: vec![2] }],
    };
    layered.commit(&third).unwrap();
    assert_eq!(commits(), 7, "the topmost one is left as it is entered");
    let memory = locked(&views[0].memory);
    assert_eq!(memory.violations, Vec::<String>::new());
    assert!(!memory.objects.contains_key(&ToyKey::Host(1)) && !memory.objects.contains_key(&ToyKey::Frontend(0)));
}

#[test]
fn a_failure_stops_the_batch_and_names_the_operations_of_the_whole() {
    let views = views();
    let mut layered = layered(&views);
    let create = vec![Toy::Base, Toy::Host(1), Toy::Host(2), Toy::Frontend { vip: 0, slots: vec![99] }];
    let batch = Batch { create, ..Batch::default() };
    let refuse = |key| Fault::Refuse(vec![key]);
    locked(&views[0].faults).push_back(refuse(ToyKey::Base));
    assert_eq!(layered.commit(&batch).unwrap_err().applied, Applied::Nothing);
    locked(&views[1].faults).push_back(refuse(ToyKey::Host(2)));
    let failure = layered.commit(&batch).unwrap_err();
    assert_eq!(failure.applied, Applied::Unknown, "the layer below has written");
    let CommitError::Refused(refusals) = failure.error else { panic!("{failure}") };
    assert_eq!(refusals.iter().map(|(op, index, _)| (*op, *index)).collect::<Vec<_>>(), [(Op::Create, 2)]);
    assert!(!locked(&views[0].memory).objects.contains_key(&ToyKey::Frontend(0)));
}

#[test]
fn what_no_layer_holds_is_refused_and_nothing_is_written() {
    let views = views();
    let mut layered = Layered::new(vec![Box::new(views[0].clone()) as Box<dyn Layer<Toy>>]);
    let batch = Batch { create: vec![Toy::Base, Toy::Host(1)], ..Batch::default() };
    let failure = layered.commit(&batch).unwrap_err();
    assert_eq!(failure.applied, Applied::Nothing);
    assert!(matches!(&failure.error, CommitError::Refused(list) if list.len() == 1 && list[0].1 == 1), "{failure:?}");
    assert!(locked(&views[0].memory).objects.is_empty());
}

/// A unit may change in what the comparison of its objects leaves out: no operation follows, but the kernel half learns it.
#[test]
fn layers_learn_the_objects_of_units_in_force() {
    let (now, views) = (Instant::now(), views());
    let mut engine = Engine::new(ToyCompile, layered(&views));
    let learned = |view: &View| std::mem::take(&mut *locked(&view.acknowledged));
    let web = |port_name: &str, endpoints: &[u8]| {
        let (name, unit) = crate::toy::service(1, &[1], endpoints);
        let Some(Unit::Service(mut state)) = unit else { panic!("a service") };
        state.ports[0].name = port_name.into();
        (UnitId::Service(name), Some(Arc::new(Unit::Service(state))))
    };
    let base = (UnitId::Base, Some(Arc::new(crate::toy::base())));
    let frontend = |endpoint| vec![Toy::Frontend { vip: 1, slots: vec![endpoint] }];
    engine.offer(Delta { context: Some(Arc::new(crate::toy::context(1))), units: [base, web("http", &[5])].into() });
    assert!(engine.sync(now).error.is_none());
    assert_eq!(learned(&views[2]), frontend(5), "at the start");
    assert_eq!(learned(&views[0]), [Toy::Base], "each layer its own");
    engine.offer(Delta { context: None, units: [web("other", &[5])].into() });
    let outcome = engine.sync(now);
    assert_eq!((outcome.ops, outcome.acked.len()), (0, 1), "{outcome:?}");
    assert_eq!(learned(&views[2]), frontend(5));
    assert_eq!(learned(&views[0]), [], "of the changed unit alone");
    assert_eq!(engine.repair(now).ops, 0);
    assert_eq!(learned(&views[2]), frontend(5), "after a full sync");
    locked(&views[2].faults).push_back(Fault::Busy);
    engine.offer(Delta { context: None, units: [web("other", &[6])].into() });
    assert!(engine.sync(now).error.is_some());
    assert_eq!(learned(&views[2]), [], "it is not in force");
    assert!(engine.tend(now).error.is_none());
    assert_eq!(learned(&views[2]), frontend(6));
}

/// A layer that records what it is asked, and has an answer of its own to everything.
struct Asked {
    number: u8,
    asked: Arc<Mutex<Vec<(u8, &'static str)>>>,
    wake: Option<Instant>,
    unusable: bool,
}

impl Asked {
    fn note(&self, what: &'static str) {
        locked(&self.asked).push((self.number, what));
    }

    fn drift(&self) -> Drift<ToyKey> {
        Drift::by_proxies(Extent::Keys(vec![ToyKey::Host(self.number)]))
    }
}

impl Kernel<Toy> for Asked {
    fn prepare(&mut self) -> Result<(), CommitError> {
        self.note("prepare");
        if self.unusable { Err(CommitError::Unusable(std::io::ErrorKind::Unsupported.into())) } else { Ok(()) }
    }

    fn read_back(&mut self, _: &Extent<ToyKey>) -> Result<Vec<Toy>, CommitError> {
        Ok(Vec::new())
    }

    fn foreign_serves(&mut self) -> Vec<Served> {
        vec![served(self.number)]
    }

    fn news(&mut self) -> Result<Drift<ToyKey>, CommitError> {
        Ok(self.drift())
    }

    fn commit(&mut self, _: &Batch<Toy>) -> Result<(), CommitFailure> {
        Ok(())
    }

    fn tend(&mut self, _: Instant) -> Result<Drift<ToyKey>, CommitError> {
        Ok(self.drift())
    }

    fn wake(&mut self, _: Instant) -> Option<Instant> {
        self.wake
    }

    fn wake_by(&mut self, _: &Waker) {
        self.note("wake_by");
    }
}

impl Layer<Toy> for Asked {
    fn holds(&self, _: &ToyKey) -> bool {
        false
    }

    fn kernel(&mut self) -> &mut dyn Kernel<Toy> {
        self
    }
}

#[test]
fn every_layer_is_asked_and_all_answers_count() {
    let (now, asked) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let later = |seconds| Some(now + Duration::from_secs(seconds));
    let layer = |(number, wake, unusable)| Asked { number, asked: Arc::clone(&asked), wake, unusable };
    let of = |layers: [(u8, Option<Instant>, bool); 3]| {
        Layered::new(layers.map(layer).into_iter().map(|layer| Box::new(layer) as Box<dyn Layer<Toy>>).collect())
    };
    let mut kernel = of([(1, later(5), false), (2, None, false), (3, later(2), false)]);
    let hosts = Some(Extent::Keys(vec![ToyKey::Host(1), ToyKey::Host(2), ToyKey::Host(3)]));
    assert_eq!(kernel.news().unwrap().by_proxies, hosts);
    assert_eq!(kernel.tend(now).unwrap().by_proxies, hosts);
    assert_eq!(kernel.foreign_serves(), [1, 2, 3].map(served));
    assert_eq!(kernel.wake(now), later(2));
    kernel.wake_by(Waker::noop());
    kernel.prepare().unwrap();
    assert_eq!(*locked(&asked), ["wake_by", "prepare"].map(|what| [1, 2, 3].map(|number| (number, what))).concat());
    assert!(format!("{kernel:?}").contains("layers: 3"));
    assert!(of([(1, None, false), (2, None, true), (3, None, false)]).prepare().is_err());
    assert_eq!(of([(1, None, false), (2, None, false), (3, None, false)]).wake(now), None);
}

/// A layer that records its commits; hosts and frontends of odd numbers wait, and a part with another base comes last.
struct Ordered {
    rank: u8,
    commits: Arc<Mutex<Vec<[usize; 4]>>>,
}

impl Kernel<Toy> for Ordered {
    fn prepare(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    fn read_back(&mut self, _: &Extent<ToyKey>) -> Result<Vec<Toy>, CommitError> {
        Ok(Vec::new())
    }

    fn commit(&mut self, batch: &Batch<Toy>) -> Result<(), CommitFailure> {
        let counts = [self.rank.into(), batch.create.len(), batch.replace.len(), batch.delete.len()];
        locked(&self.commits).push(counts);
        let last = batch.replace.len().checked_sub(1).filter(|_| batch.replace.contains(&Toy::Host(9)));
        let refusal = |index| (Op::Replace, index, std::io::ErrorKind::Other.into());
        last.map_or(Ok(()), |index| Err(CommitError::Refused(vec![refusal(index)]).into()))
    }

    fn tend(&mut self, _: Instant) -> Result<Drift<ToyKey>, CommitError> {
        Ok(Drift::default())
    }
}

impl Layer<Toy> for Ordered {
    fn holds(&self, key: &ToyKey) -> bool {
        rank(key) == self.rank
    }

    fn kernel(&mut self) -> &mut dyn Kernel<Toy> {
        self
    }

    /// The topmost layer refuses host 13, which is the middle one's.
    fn admit(&mut self, batch: &Batch<Toy>) -> Result<(), CommitError> {
        let refused = batch.create.iter().position(|toy| self.rank == 2 && *toy == Toy::Host(13));
        let refusal = |index| (Op::Create, index, std::io::ErrorKind::Other.into());
        refused.map_or(Ok(()), |index| Err(CommitError::Refused(vec![refusal(index)])))
    }

    fn waiting(&self, part: &Batch<Toy>) -> HashSet<ToyKey> {
        let waits = |replacement: &&Toy| matches!(replacement, Toy::Host(host) if host % 2 == 1);
        part.replace.iter().filter(waits).map(Object::key).collect()
    }

    fn comes_last(&self, part: &Batch<Toy>) -> bool {
        part.replace.contains(&Toy::OtherBase)
    }
}

#[test]
fn some_replacements_wait_and_some_parts_come_last() {
    let commits = Arc::new(Mutex::new(Vec::new()));
    let layer = |rank| Box::new(Ordered { rank, commits: Arc::clone(&commits) }) as Box<dyn Layer<Toy>>;
    let mut layered = Layered::new([0, 1, 2].map(layer).into());
    let taken = || std::mem::take(&mut *locked(&commits));
    let frontend = || Toy::Frontend { vip: 0, slots: vec![1] };
    let batch = |replace, delete| Batch { create: vec![frontend()], replace, delete };
    layered.commit(&batch(vec![Toy::Host(1), Toy::Host(2), Toy::Host(3)], vec![Toy::Host(4)])).unwrap();
    assert_eq!(taken(), [[1, 0, 1, 0], [2, 1, 0, 0], [1, 0, 2, 1]]);
    layered.commit(&batch(vec![Toy::OtherBase, Toy::Host(2)], vec![])).unwrap();
    assert_eq!(taken(), [[1, 0, 1, 0], [2, 1, 0, 0], [0, 0, 1, 0]]);
    layered.commit(&Batch { replace: vec![Toy::Host(1)], ..Batch::default() }).unwrap();
    assert_eq!(taken(), [[1, 0, 1, 0]], "nothing above waits for it");
    let failure = layered.commit(&batch(vec![Toy::Host(2), Toy::Host(1), Toy::Host(9)], vec![])).unwrap_err();
    let CommitError::Refused(refusals) = failure.error else { panic!("{failure}") };
    assert_eq!(refusals.iter().map(|(op, index, _)| (*op, *index)).collect::<Vec<_>>(), [(Op::Replace, 2)]);
    assert_eq!(failure.applied, Applied::Unknown);
}

#[test]
fn a_layer_refuses_a_batch_before_others_write() {
    let commits = Arc::new(Mutex::new(Vec::new()));
    let layer = |rank| Box::new(Ordered { rank, commits: Arc::clone(&commits) }) as Box<dyn Layer<Toy>>;
    let mut layered = Layered::new([0, 1, 2].map(layer).into());
    let create = vec![Toy::Host(1), Toy::Host(13), Toy::Frontend { vip: 0, slots: vec![1] }];
    let failure = layered.commit(&Batch { create, ..Batch::default() }).unwrap_err();
    let CommitError::Refused(refusals) = failure.error else { panic!("{failure}") };
    assert_eq!(refusals.iter().map(|(op, index, _)| (*op, *index)).collect::<Vec<_>>(), [(Op::Create, 1)]);
    assert_eq!(failure.applied, Applied::Nothing);
    assert!(locked(&commits).is_empty());
}

#[test]
fn a_layer_that_asks_for_nothing_keeps_its_place_below_others() {
    let (commits, [bottom, ..]) = (Arc::new(Mutex::new(Vec::new())), views());
    let above = Ordered { rank: 1, commits: Arc::clone(&commits) };
    let mut layered = Layered::new(vec![Box::new(bottom.clone()), Box::new(above)]);
    locked(&bottom.faults).push_back(Fault::Busy);
    let batch = Batch { create: vec![Toy::Base, Toy::Host(1)], ..Batch::default() };
    assert_eq!(layered.commit(&batch).unwrap_err().applied, Applied::Nothing);
    assert!(locked(&commits).is_empty(), "the lower one fails before the upper one writes");
    layered.commit(&batch).unwrap();
    assert_eq!(*locked(&commits), [[1, 1, 0, 0]]);
}
