//! Tests with random histories: services of every kind are added, changed and removed, mixed with failing commits, foreign
//! changes and new contexts, on the kernel in memory, which records references to missing objects as violations.

use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, Fault, MemoryKernel};
use ferry_plane::{Compile, Outcome, SyncEngine};
use proptest::prelude::*;

use crate::memory::{MemoryEngine, good, half_way, settle, settled};
use crate::mode::{KeyOf, Mode};
use crate::property::inputs;
use crate::world::{CONTEXTS, World};

/// One step of a history.
#[derive(Clone, Debug)]
pub enum HistoryStep {
    /// changes a service's endpoints and affinity
    Change {
        /// its index
        service: usize,
        /// the last bytes of the endpoints' addresses
        cluster: Vec<u8>,
        /// the same for the endpoints on this node
        local: Vec<u8>,
        /// with affinity
        sticky: bool,
    },
    /// removes this service
    Gone(usize),
    /// changes the context
    Context(u8),
    /// the next commit fails
    Busy,
    /// the next commit fails after this many operations
    HalfWay(usize, Failing),
    /// another program deletes the object with this index
    Lose(usize),
    /// commits pending changes
    Sync,
    /// an idle pass without a change
    Tend,
}

/// Strategy for histories of fewer than `length` steps.
pub fn steps(length: usize) -> impl Strategy<Value = Vec<HistoryStep>> {
    let endpoints = || prop::collection::btree_set(1..9u8, 1..5).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let step = prop_oneof![
        6 => (0..6usize, endpoints(), endpoints(), any::<bool>())
            .prop_map(|(service, cluster, local, sticky)| HistoryStep::Change { service, cluster, local, sticky }),
        2 => (0..6usize).prop_map(HistoryStep::Gone),
        1 => (0..CONTEXTS).prop_map(HistoryStep::Context),
        1 => Just(HistoryStep::Busy),
        2 => half_way().prop_map(|(operations, error)| HistoryStep::HalfWay(operations, error)),
        2 => any::<usize>().prop_map(HistoryStep::Lose),
        5 => Just(HistoryStep::Sync),
        2 => Just(HistoryStep::Tend),
    ];
    prop::collection::vec(step, 1..length)
}

// === impl HistoryStep ===

impl HistoryStep {
    /// Applies a step to the world; false if the step doesn't affect it.
    pub fn apply(&self, world: &mut World) -> bool {
        match self {
            Self::Change { service, cluster, local, sticky } => world.change(*service, cluster, local, *sticky),
            Self::Gone(service) => {
                if let Some((_, state, _)) = world.services.get_mut(*service) {
                    *state = None;
                }
            }
            Self::Context(number) => world.context = *number,
            Self::Busy | Self::HalfWay(..) | Self::Lose(_) | Self::Sync | Self::Tend => return false,
        }
        true
    }
}

/// An engine that has synced this world into an empty kernel.
fn fresh<M: Mode>(world: &World, now: Instant) -> MemoryEngine<M> {
    let mut engine = Engine::new(M::compiler(world.family, false), MemoryKernel::default());
    engine.offer(world.delta());
    good(engine.sync(now));
    engine
}

fn step<M: Mode>(engine: &mut MemoryEngine<M>, world: &mut World, step: &HistoryStep, now: Instant) {
    if step.apply(world) {
        return engine.offer(world.delta());
    }
    match step {
        HistoryStep::Busy => engine.kernel_mut().faults.push_back(Fault::Busy),
        HistoryStep::HalfWay(operations, error) => {
            engine.kernel_mut().faults.push_back(Fault::HalfWay { operations: *operations, error: *error });
        }
        HistoryStep::Lose(index) => lose::<M>(engine, *index),
        HistoryStep::Sync => drop(engine.sync(now)),
        _ => drop(engine.tend(now)),
    }
}

fn lose<M: Mode>(engine: &mut MemoryEngine<M>, index: usize) {
    let leaves = leaves::<M>(engine);
    if let Some(key) = leaves.get(index % leaves.len().max(1)) {
        engine.kernel_mut().lose(key);
    }
}

/// The keys in the kernel that other programs delete in these tests.
fn leaves<M: Mode>(engine: &MemoryEngine<M>) -> Vec<KeyOf<M>> {
    engine.kernel().objects.keys().filter(|key| M::is_leaf(key)).cloned().collect()
}

/// With 100 histories.
pub fn any_history_ends_in_the_objects_of_one_full_build<M: Mode>() {
    proptest!(inputs(100), |(history in steps(25), v6 in any::<bool>())| {
        let family = if v6 { Family::V6 } else { Family::V4 };
        let mut world = World::new(family, <M::Compiler as Compile>::PROFILE);
        let mut now = Instant::now();
        let mut engine = fresh::<M>(&world, now);
        for one in &history {
            now += Duration::from_millis(300);
            step::<M>(&mut engine, &mut world, one, now);
            prop_assert_eq!(&engine.kernel().violations, &Vec::<String>::new());
        }
        engine.offer(world.delta());
        settle(&mut engine, now);
        prop_assert_eq!(settled::<M>(&engine), settled::<M>(&fresh::<M>(&world, now)));
    });
}

/// Replaces one of the three endpoints of the service demo/plain; returns the engine and the outcome.
pub fn replace_one_endpoint<M: Mode>() -> (MemoryEngine<M>, Outcome) {
    let mut world = World::new(Family::V4, <M::Compiler as Compile>::PROFILE);
    let now = Instant::now();
    let mut engine = fresh::<M>(&world, now);
    let plain = world.services.iter().position(|(id, ..)| id.to_string().ends_with("demo/plain")).unwrap();
    world.change(plain, &[1, 9, 3], &[], false);
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    (engine, outcome)
}

/// An engine finds the objects of an earlier run, and one service, whose endpoints have changed since, is refused. When every object is
/// compared because another program may have changed it, the objects stay that those of the refused service refer to.
pub fn a_repair_keeps_what_a_refused_service_refers_to<M: Mode>() {
    let mut world = World::new(Family::V4, <M::Compiler as Compile>::PROFILE);
    let now = Instant::now();
    let found = fresh::<M>(&world, now).kernel().objects.clone();
    let plain = world.services.iter().position(|(id, ..)| id.to_string().ends_with("demo/plain")).unwrap();
    world.change(plain, &[9], &[], false);
    let wanted = fresh::<M>(&world, now).kernel().objects.clone();
    let changed = wanted.into_iter().filter(|(key, object)| found.get(key) != Some(object));
    let refused = changed.map(|(key, _)| key).collect();
    let kernel = MemoryKernel { objects: found.clone(), refused, ..MemoryKernel::default() };
    let mut engine = Engine::new(M::compiler(world.family, false), kernel);
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert_eq!(outcome.quarantined.len(), 1, "{outcome:?}");
    let referred = || found.keys().filter(|key| !M::is_leaf(key));
    for touched in found.keys().map(|key| vec![key.clone()]).chain([found.keys().cloned().collect()]) {
        engine.kernel_mut().touched = touched;
        let outcome = engine.tend(now);
        assert!(outcome.error.is_none(), "{outcome:?}");
        engine.tend(now + Duration::from_millis(300));
        assert_eq!(engine.kernel().violations, Vec::<String>::new());
        let lost: Vec<_> = referred().filter(|key| !engine.kernel().objects.contains_key(key)).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }
}

/// Another program deletes an object of a service, and a commit that deletes the service fails half-way: no step refers to a missing
/// object, the repair of that object included, and nothing is left of the service.
pub fn a_loss_beside_a_deletion_that_fails_half_way<M: Mode>() {
    let world = World::new(Family::V4, <M::Compiler as Compile>::PROFILE);
    let all = leaves::<M>(&fresh::<M>(&world, Instant::now()));
    for service in 0..world.services.len() {
        let mut without = world.clone();
        HistoryStep::Gone(service).apply(&mut without);
        let others = leaves::<M>(&fresh::<M>(&without, Instant::now()));
        for lost in (0..all.len()).filter(|index| !others.contains(&all[*index])) {
            lose_one_and_delete::<M>(world.clone(), service, lost);
        }
    }
}

fn lose_one_and_delete<M: Mode>(mut world: World, service: usize, lost: usize) {
    let mut now = Instant::now();
    let mut engine = fresh::<M>(&world, now);
    let fault = HistoryStep::HalfWay(1 + lost % 4, Failing::Resources);
    for one in [HistoryStep::Lose(lost), HistoryStep::Tend, fault, HistoryStep::Gone(service), HistoryStep::Tend] {
        now += Duration::from_millis(300);
        step::<M>(&mut engine, &mut world, &one, now);
        assert_eq!(engine.kernel().violations, Vec::<String>::new(), "service {service}, object {lost}");
    }
    settle(&mut engine, now);
    assert_eq!(settled::<M>(&engine), settled::<M>(&fresh::<M>(&world, now)), "service {service}, object {lost}");
}
