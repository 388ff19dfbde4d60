//! Any history of services that come, change and go, of faults, losses and contexts ends in the objects of one full build:
//! on a kernel in memory, where no step refers to what does not exist, and on the real one in both variants.

use std::time::{Duration, Instant};

use crate::machine::{FEATURES, Machine, assert_same, good, settle, wanted};
use crate::world::World;
use crate::wrapper::Wrapper;
use ferry_api::object::Family;
use ferry_kernel::iptables::Backend;
use ferry_kernel::netns::Namespace;
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Fault, MemoryKernel};
use ferry_plane::{Next, Object, SyncEngine};
use ferry_plane_iptables::{IptKey, IptObject, Iptables, IptablesEngine};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

type MemoryEngine = Engine<Iptables, MemoryKernel<IptObject>>;

#[derive(Clone, Debug)]
enum Step {
    /// this service gets these endpoints, and affinity or not
    Change {
        service: usize,
        cluster: Vec<u8>,
        local: Vec<u8>,
        sticky: bool,
    },
    Gone(usize),
    Context(u8),
    /// the next commit fails
    Busy,
    /// somebody else removes this
    Lose(usize),
    Sync,
    Tend,
}

fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    let endpoints = || prop::collection::btree_set(1..9u8, 1..5).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let step = prop_oneof![
        6 => (0..6usize, endpoints(), endpoints(), any::<bool>())
            .prop_map(|(service, cluster, local, sticky)| Step::Change { service, cluster, local, sticky }),
        2 => (0..6usize).prop_map(Step::Gone),
        1 => (0..3u8).prop_map(Step::Context),
        1 => Just(Step::Busy),
        2 => any::<usize>().prop_map(Step::Lose),
        5 => Just(Step::Sync),
        2 => Just(Step::Tend),
    ];
    prop::collection::vec(step, 1..length)
}

/// What changes the world; false if the step is none of these.
fn turn_world(world: &mut World, step: &Step) -> bool {
    match step {
        Step::Change { service, cluster, local, sticky } => world.change(*service, cluster, local, *sticky),
        Step::Gone(service) => {
            if let Some((_, state, _)) = world.services.get_mut(*service) {
                *state = None;
            }
        }
        Step::Context(number) => world.context = *number,
        Step::Busy | Step::Lose(_) | Step::Sync | Step::Tend => return false,
    }
    true
}

// --- in memory

fn fresh_in_memory(world: &World, now: Instant) -> MemoryEngine {
    let mut engine = Engine::new(Iptables::new(world.family, FEATURES), MemoryKernel::default());
    engine.offer(world.delta());
    good(engine.sync(now));
    engine
}

fn step_in_memory(engine: &mut MemoryEngine, world: &mut World, step: &Step, now: Instant) {
    if turn_world(world, step) {
        return engine.offer(world.delta());
    }
    match step {
        Step::Busy => engine.kernel_mut().faults.push_back(Fault::Busy),
        Step::Lose(index) => {
            let entries: Vec<IptKey> =
                engine.kernel().objects.keys().filter(|key| matches!(key, IptKey::Entry(_))).cloned().collect();
            if let Some(key) = entries.get(index % entries.len().max(1)) {
                engine.kernel_mut().lose(key);
            }
        }
        Step::Sync => drop(engine.sync(now)),
        _ => drop(engine.tend(now)),
    }
}

fn settle_in_memory(engine: &mut MemoryEngine, mut now: Instant) {
    engine.kernel_mut().faults.clear();
    for _ in 0..60 {
        now += Duration::from_secs(400);
        let outcome = engine.tend(now);
        if outcome.error.is_none() && outcome.next == Next::Idle && !outcome.worked {
            return;
        }
    }
    panic!("does not settle");
}

/// What is there, except for what stays when nobody wants it any more.
fn settled(engine: &MemoryEngine) -> Vec<IptObject> {
    let mut wanted = engine.objects();
    wanted.sort();
    let there: Vec<IptObject> = engine.kernel().objects.values().cloned().collect();
    assert_same(&there, &wanted, "the kernel holds what is acknowledged");
    wanted
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_in_the_objects_of_one_full_build(history in steps(25), v6 in any::<bool>()) {
        let family = if v6 { Family::V6 } else { Family::V4 };
        let mut world = World::new(family);
        let mut now = Instant::now();
        let mut engine = fresh_in_memory(&world, now);
        for one in &history {
            now += Duration::from_millis(300);
            step_in_memory(&mut engine, &mut world, one, now);
            prop_assert_eq!(&engine.kernel().violations, &Vec::<String>::new());
        }
        engine.offer(world.delta());
        settle_in_memory(&mut engine, now);
        prop_assert_eq!(settled(&engine), settled(&fresh_in_memory(&world, now)));
    }
}

// --- for real

fn fresh(machine: &Machine, world: &World) -> IptablesEngine {
    let mut engine = machine.engine();
    engine.offer(world.delta());
    good(engine.sync(Instant::now()));
    engine
}

/// Somebody else removes what one object is about.
fn lose(machine: &Machine, object: &IptObject) {
    let chain_of = |id: &ferry_plane_iptables::object::ChainId| {
        let (table, name) = (id.table.name(), id.name.as_str());
        let listing = machine.run("", &["-t", table, "-S", name], "");
        (table, name.to_owned(), listing.0 && listing.1.contains("-A "))
    };
    match object {
        IptObject::Chain(id, _) | IptObject::Place(id) => {
            if let (table, name, true) = chain_of(id) {
                machine.iptables(&format!("-t {table} -F {name}"));
            }
        }
        IptObject::Entry(key, _) => {
            if let (table, name, true) = chain_of(&key.place) {
                machine.iptables(&format!("-t {table} -D {name} 1"));
            }
        }
        IptObject::RouteLocalnet | IptObject::Stray(..) => {}
    }
}

fn step(
    machine: &Machine,
    wrapper: &Wrapper,
    engine: &mut IptablesEngine,
    world: &mut World,
    step: &Step,
    now: Instant,
) {
    if turn_world(world, step) {
        return engine.offer(world.delta());
    }
    match step {
        // Killed, once, when the first section is committed.
        Step::Busy => wrapper.fault("rm $FOLDER/fault-restore\nsed '/^COMMIT$/q' | $REAL \"$@\"\nkill -9 $$\n"),
        Step::Lose(index) => {
            let objects = wanted(engine);
            if let Some(object) = objects.get(index % objects.len().max(1)) {
                lose(machine, object);
            }
        }
        Step::Sync => drop(engine.sync(now)),
        _ => drop(engine.tend(now)),
    }
}

fn run_through(backend: Backend, family: Family, history: &[Step]) {
    let namespace = || Namespace::new().expect("root and CAP_SYS_ADMIN are needed");
    let mut world = World::new(family);
    let ended = namespace()
        .run(|| {
            let mut machine = Machine::new(backend, family);
            let wrapper = Wrapper::new(&mut machine, "-restore");
            let mut engine = fresh(&machine, &world);
            let mut now = Instant::now();
            for one in history {
                now += Duration::from_millis(300);
                step(&machine, &wrapper, &mut engine, &mut world, one, now);
            }
            wrapper.fault(":\n");
            engine.offer(world.delta());
            settle(&mut engine, now);
            assert_same(&machine.read_back(), &wanted(&engine), "the kernel holds what is acknowledged");
            machine.saved()
        })
        .unwrap();
    let wanted = namespace()
        .run(|| {
            let machine = Machine::new(backend, family);
            drop(fresh(&machine, &world));
            machine.saved()
        })
        .unwrap();
    assert_eq!(ended, wanted);
}

/// Histories that are the same at every run, so that a failure can be looked at.
fn histories(backend: Backend, family: Family, seed: u8, count: usize) {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    for _ in 0..count {
        let history = steps(30).new_tree(&mut runner).unwrap().current();
        let shown = format!("{backend} {family}: {history:?}");
        let result = std::panic::catch_unwind(|| run_through(backend, family, &history));
        assert!(result.is_ok(), "{shown}");
    }
}

#[test]
fn any_history_ends_as_one_full_build_does_for_real() {
    std::thread::scope(|scope| {
        for (seed, backend) in (1..).zip(Backend::ALL) {
            for (more, family) in (0..).zip(Family::ALL) {
                scope.spawn(move || histories(backend, family, 10 * seed + more, 8));
            }
        }
    });
}

#[test]
fn an_endpoint_replaced_is_one_chain_that_comes_one_that_goes_and_those_that_lead_there() {
    let world = World::new(Family::V4);
    let now = Instant::now();
    let mut engine = fresh_in_memory(&world, now);
    let mut next = world.clone();
    let plain = next.services.iter().position(|(id, ..)| id.to_string().ends_with("demo/plain")).unwrap();
    next.change(plain, &[1, 9, 3], &[], false);
    engine.offer(next.delta());
    let outcome = engine.sync(now);
    assert_eq!(outcome.ops, 3, "{outcome:?}");
    assert!(engine.objects().iter().any(|object| !object.spare()));
}
