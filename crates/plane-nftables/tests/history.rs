//! This mode's objects on a kernel in memory: any history of services that come, change and go, of faults, losses and
//! contexts ends in the objects of one full build, and no step refers to what does not exist.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by panic")]

mod common;
mod settled;
mod world;

use std::time::{Duration, Instant};

use common::pool;
use ferry_api::object::Family;
use ferry_model::Pool;
use ferry_plane::SyncEngine;
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Fault, MemoryKernel};
use ferry_plane_nftables::{NftKey, Nftables};
use proptest::prelude::*;
use settled::{TestEngine, settle, settled};
use world::World;

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
    Busy,
    Lose(usize),
    Sync,
    Tend,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let endpoints = || prop::collection::btree_set(1..9u8, 1..5).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let step = prop_oneof![
        6 => (0..6usize, endpoints(), endpoints(), any::<bool>())
            .prop_map(|(service, cluster, local, sticky)| Step::Change { service, cluster, local, sticky }),
        2 => (0..6usize).prop_map(Step::Gone),
        1 => (0..3u8).prop_map(Step::Context),
        1 => Just(Step::Busy),
        1 => any::<usize>().prop_map(Step::Lose),
        5 => Just(Step::Sync),
        2 => Just(Step::Tend),
    ];
    prop::collection::vec(step, 1..25)
}

fn fresh(world: &World, now: Instant) -> TestEngine {
    let mut engine = Engine::new(Nftables::new(world.family), MemoryKernel::default());
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{outcome:?}");
    engine
}

fn step(engine: &mut TestEngine, world: &mut World, step: Step, now: Instant) {
    match step {
        Step::Change { service, cluster, local, sticky } => world.change(service, &cluster, &local, sticky),
        Step::Gone(service) => {
            if let Some((_, state, _)) = world.services.get_mut(service) {
                *state = None;
            }
        }
        Step::Context(number) => world.context = number,
        Step::Busy => return engine.kernel_mut().faults.push_back(Fault::Busy),
        Step::Lose(index) => {
            let elements: Vec<NftKey> =
                engine.kernel().objects.keys().filter(|key| matches!(key, NftKey::Element(_))).copied().collect();
            if let Some(key) = elements.get(index % elements.len().max(1)) {
                engine.kernel_mut().lose(key);
            }
            return;
        }
        Step::Sync => return drop(engine.sync(now)),
        Step::Tend => return drop(engine.tend(now)),
    }
    engine.offer(world.delta());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_in_the_objects_of_one_full_build(history in steps(), v6 in any::<bool>()) {
        let family = if v6 { Family::V6 } else { Family::V4 };
        let mut world = World::new(family);
        let mut now = Instant::now();
        let mut engine = fresh(&world, now);
        for one in history {
            now += Duration::from_millis(300);
            step(&mut engine, &mut world, one, now);
            prop_assert_eq!(&engine.kernel().violations, &Vec::<String>::new());
        }
        engine.offer(world.delta());
        settle(&mut engine, now);
        prop_assert_eq!(settled(&engine), settled(&fresh(&world, now)));
    }
}

#[test]
fn a_replaced_endpoint_is_one_slot_and_its_hairpin_pairs() {
    let world = World::new(Family::V4);
    let now = Instant::now();
    let mut engine = fresh(&world, now);
    let mut next = world.clone();
    let Some((_, Some(state), _)) = next.services.iter_mut().find(|(id, ..)| id.to_string().ends_with("demo/plain"))
    else {
        panic!("there is such a service")
    };
    for port in &mut state.ports {
        port.cluster = pool(Family::V4, &[1, 9, 3]);
        port.local = Pool::new([]);
    }
    engine.offer(next.delta());
    let outcome = engine.sync(now);
    // A cluster IP, a node port and a load balancer address keep slots of their own; one new hairpin pair.
    assert_eq!(outcome.ops, 4, "{outcome:?}");
}
