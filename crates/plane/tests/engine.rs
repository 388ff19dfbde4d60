//! The engine on a kernel in memory: any history of deltas, faults, foreign changes and context changes ends in the
//! state of one full build, and at no step an object refers to a missing one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::toy::world::{Change, World, changes};
use crate::toy::{OTHER_VIP, Toy, ToyCompile, ToyKey, base, context, served, service};
use ferry_conformance::memory::{half_way, settle};
use ferry_conformance::property::inputs;
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, Fault, MemoryKernel, Side};
use ferry_plane::{CommitError, Delta, Extent, Next, SyncEngine, UnitId};
use proptest::prelude::*;

type ToyEngine = Engine<ToyCompile, MemoryKernel<Toy>>;

#[derive(Clone, Debug)]
enum Step {
    World(Change),
    Busy,
    Refuse { vip: u8, silently: bool },
    HalfWay { operations: usize, error: Failing },
    Lose(u8),
    Flush,
    Foreign(u8),
    Sync,
    Tend,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        9 => changes().prop_map(Step::World),
        1 => Just(Step::Busy),
        1 => (0..8u8, any::<bool>()).prop_map(|(vip, silently)| Step::Refuse { vip, silently }),
        2 => half_way().prop_map(|(operations, error)| Step::HalfWay { operations, error }),
        1 => any::<u8>().prop_map(Step::Lose),
        1 => Just(Step::Flush),
        1 => (0..12u8).prop_map(Step::Foreign),
        4 => Just(Step::Sync),
        2 => Just(Step::Tend),
    ];
    prop::collection::vec(step, 1..40)
}

/// What is there, without spare parts and without the order of slots.
fn settled(engine: &ToyEngine) -> Vec<Toy> {
    let wanted: Vec<ToyKey> = engine.objects().iter().map(ferry_plane::Object::key).collect();
    let objects = engine.kernel().objects.values().cloned();
    objects
        .filter(|object| wanted.contains(&ferry_plane::Object::key(object)) || !object.is_pick())
        .map(Toy::sorted)
        .collect()
}

fn step(engine: &mut ToyEngine, world: &mut World, step: Step, now: Instant) {
    match step {
        Step::World(change) => world.apply(change),
        Step::Busy => return engine.kernel_mut().faults.push_back(Fault::Busy),
        Step::Refuse { vip, silently: false } => {
            return engine.kernel_mut().faults.push_back(Fault::Refuse(vec![ToyKey::Frontend(vip)]));
        }
        Step::Refuse { vip, silently: true } => {
            return engine.kernel_mut().faults.push_back(Fault::RefuseSilently(vec![ToyKey::Frontend(vip)]));
        }
        Step::HalfWay { operations, error } => {
            return engine.kernel_mut().faults.push_back(Fault::HalfWay { operations, error });
        }
        Step::Lose(index) => {
            let frontends: Vec<ToyKey> =
                engine.kernel().objects.keys().filter(|key| matches!(key, ToyKey::Frontend(_))).cloned().collect();
            if let Some(key) = frontends.get(usize::from(index) % frontends.len().max(1)) {
                engine.kernel_mut().lose(key);
            }
            return;
        }
        Step::Flush => return engine.kernel_mut().flush(),
        Step::Foreign(vip) => return engine.kernel_mut().foreign(Toy::foreign(vip)),
        Step::Sync => return drop(engine.sync(now)),
        Step::Tend => return drop(engine.tend(now)),
    }
    engine.offer(world.delta());
}

/// A full build of the same world by an engine that starts now.
fn built_from_nothing(world: &World, now: Instant) -> ToyEngine {
    built_by_portions(1000, world, now)
}

fn built_by_portions(portion: usize, world: &World, now: Instant) -> ToyEngine {
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default()).with_portion(portion);
    engine.offer(world.delta());
    assert!(engine.sync(now).error.is_none());
    engine
}

/// How many new units go in together.
fn portion() -> impl Strategy<Value = usize> {
    prop_oneof![Just(1000), Just(3)]
}

proptest! {
    #![proptest_config(inputs(600))]

    #[test]
    fn any_history_ends_in_the_state_of_one_full_build(history in steps(), portion in portion()) {
        let mut world = World::new();
        let mut engine = built_by_portions(portion, &world, Instant::now());
        let mut now = Instant::now();
        for one in history {
            now += Duration::from_millis(300);
            step(&mut engine, &mut world, one, now);
            // A foreign object or a flush breaks references by itself; only our own steps are held to the order.
        }
        engine.offer(world.delta());
        settle(&mut engine, now);
        let fresh = built_from_nothing(&world, now);
        prop_assert_eq!(settled(&engine), settled(&fresh));
    }

    #[test]
    fn nothing_refers_to_what_does_not_exist(history in steps(), portion in portion()) {
        let mut world = World::new();
        let mut engine = built_by_portions(portion, &world, Instant::now());
        let mut now = Instant::now();
        for one in history {
            now += Duration::from_millis(300);
            if !matches!(one, Step::Lose(_) | Step::Flush | Step::Foreign(_)) {
                step(&mut engine, &mut world, one, now);
            }
            prop_assert_eq!(&engine.kernel().violations, &Vec::<String>::new());
        }
    }

    #[test]
    fn a_restart_with_unchanged_objects_commits_nothing(history in steps(), portion in portion()) {
        let mut world = World::new();
        let mut engine = built_by_portions(portion, &world, Instant::now());
        let mut now = Instant::now();
        for one in history {
            now += Duration::from_millis(300);
            step(&mut engine, &mut world, one, now);
        }
        engine.offer(world.delta());
        let now = settle(&mut engine, now);
        let left = std::mem::take(&mut engine.kernel_mut().objects);
        let kernel = MemoryKernel { objects: left, ..MemoryKernel::default() };
        let mut next = Engine::new(ToyCompile, kernel).with_portion(portion);
        next.offer(world.delta());
        let outcome = next.sync(now);
        prop_assert!(outcome.error.is_none());
        prop_assert_eq!(next.kernel().commits, 0, "{:?}", outcome);
    }
}

#[test]
fn what_is_acknowledged_says_what_it_was_before() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    engine.offer(world.delta());
    let first = engine.sync(now);
    assert!(first.unserved.is_empty() && !first.acked.is_empty(), "nobody was there before: {first:?}");
    assert!(first.acked.iter().all(|acked| acked.before.is_none() && acked.after.is_some()));
    let in_force = |engine: &ToyEngine| {
        let mut all = Vec::new();
        engine.each_unit(&mut |unit| all.push(unit.clone()));
        all
    };
    let old = in_force(&engine);
    world.owners[0] = 1;
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    for acked in &outcome.acked {
        assert!(acked.before.as_deref().is_none_or(|before| old.contains(before)), "{acked:?}");
        assert!(acked.after.as_deref().is_none_or(|after| in_force(&engine).contains(after)), "{acked:?}");
    }
    assert!(outcome.acked.iter().any(|acked| acked.before != acked.after), "{outcome:?}");
    let kernel = MemoryKernel { objects: std::mem::take(&mut engine.kernel_mut().objects), ..MemoryKernel::default() };
    let mut next = Engine::new(ToyCompile, kernel);
    next.offer(world.delta());
    let adopted = next.sync(now);
    assert!(adopted.acked.iter().all(|acked| acked.before.is_none()), "what was before isn't known: {adopted:?}");
    assert_eq!(adopted.unserved, []);
}

/// Offers services: a number, the last octets of the VIPs and those of the endpoints.
fn offer(engine: &mut ToyEngine, services: &[(u8, &[u8], &[u8])]) {
    let units = services.iter().map(|(index, vips, endpoints)| {
        let (name, unit) = service(*index, vips, endpoints);
        (UnitId::Service(name), unit.map(Arc::new))
    });
    let base = (UnitId::Base, Some(Arc::new(base())));
    engine.offer(Delta { context: Some(Arc::new(context(1))), units: units.chain([base]).collect() });
}

/// A frontend that is gone when the proxy comes back has no unit that would say so; what was there says it.
#[test]
fn what_nobody_serves_any_more_is_known_after_a_restart() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    offer(&mut engine, &[(1, &[1, 2], &[7]), (2, &[3], &[7]), (3, &[4], &[8])]);
    assert!(engine.sync(now).unserved.is_empty());
    let kernel = MemoryKernel { objects: std::mem::take(&mut engine.kernel_mut().objects), ..MemoryKernel::default() };
    let mut next = Engine::new(ToyCompile, kernel);
    // the second service is gone, the first has lost an address, the third got one and another endpoint; and the kernel doesn't
    // take it at once
    next.kernel_mut().faults.push_back(Fault::Busy);
    offer(&mut next, &[(1, &[2], &[7]), (3, &[4, 5], &[9])]);
    let failed = next.sync(now);
    assert!(failed.error.is_some() && failed.acked.is_empty());
    let mut outcome = next.sync(now);
    outcome.unserved.sort_unstable();
    assert_eq!(outcome.unserved, [served(1), served(3)]);
    assert!(next.sync(now).unserved.is_empty(), "once");
    let mut retired = Vec::new();
    (Box::new(next) as Box<dyn SyncEngine>).retire(&mut retired).unwrap();
    retired.sort_unstable();
    assert_eq!(retired, [served(2), served(4), served(5)]);
}

#[test]
fn what_is_pending_goes_on_while_nobody_hears_what_others_do() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    world.endpoints[0] = vec![8];
    engine.kernel_mut().faults.push_back(Fault::Busy);
    engine.offer(world.delta());
    assert!(engine.sync(now).error.is_some());
    engine.kernel_mut().deaf = true;
    let outcome = engine.tend(now);
    assert!(outcome.error.is_some(), "{outcome:?}");
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(0)].slots(), [8]);
    engine.kernel_mut().deaf = false;
    assert!(engine.tend(now).error.is_none());
}

#[test]
fn a_vip_changes_hands_by_one_replace() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    world.owners[0] = 1;
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert_eq!(outcome.ops, 1, "{outcome:?}");
}

#[test]
fn a_refused_unit_keeps_its_last_good_state_and_the_others_go_on() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(2)];
    world.endpoints[1] = vec![7];
    world.endpoints[0] = vec![8];
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert_eq!(outcome.quarantined.len(), 1);
    let frontend = |vip| engine.kernel().objects[&ToyKey::Frontend(vip)].slots().to_vec();
    assert_eq!(frontend(2), [2, 3], "the last good state");
    assert_eq!(frontend(3), [2, 3], "the unit stays whole");
    assert_eq!(frontend(0), [8]);
}

#[test]
fn what_was_accepted_and_is_refused_after_a_flush_harms_its_unit_alone() {
    let world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(2)];
    engine.kernel_mut().flush();
    let outcome = engine.repair(now);
    assert!(outcome.error.is_none(), "{outcome:?}");
    assert_eq!(outcome.quarantined.len(), 1, "{outcome:?}");
    let there = |vip| engine.kernel().objects.contains_key(&ToyKey::Frontend(vip));
    assert!(there(0) && there(4) && !there(2) && !there(3));
    engine.kernel_mut().refused.clear();
    settle(&mut engine, now);
    assert_eq!(settled(&engine), settled(&built_from_nothing(&world, now)));
}

#[test]
fn what_a_unit_shared_that_is_refused_after_a_flush_is_made_anew_with_it() {
    let mut world = World::new();
    world.endpoints[1] = vec![7]; // wanted by nobody else
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().flush();
    engine.tend(now);
    let refuse = || Fault::Refuse(vec![ToyKey::Frontend(2)]);
    engine.kernel_mut().faults.extend([refuse(), refuse(), Fault::Busy]);
    assert!(engine.tend(now + Duration::from_millis(200)).error.is_some());
    engine.tend(now + Duration::from_millis(300));
    engine.tend(now + Duration::from_secs(2));
    assert!(engine.kernel().objects.contains_key(&ToyKey::Host(7)));
}

#[test]
fn a_shared_object_of_a_new_context_does_not_stay_as_a_waiting_unit_has_it() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(6)]; // service 3, which alone has no endpoints
    world.mark = 2;
    world.endpoints[0] = vec![]; // now service 0 has none either
    world.endpoints[3] = vec![1];
    engine.offer(world.delta());
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    assert_eq!(engine.kernel().objects[&ToyKey::Pick(0)], Toy::Pick { count: 0, mark: 2 });
}

#[test]
fn a_second_writer_of_everything_is_left_alone_for_a_while() {
    let mut world = World::new();
    let mut now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    let (mut repaired, mut contested) = (0, 0);
    for _ in 0..8 {
        now += Duration::from_secs(1);
        engine.kernel_mut().flush();
        let outcome = engine.repair(now);
        repaired += u32::from(outcome.repairs > 0);
        contested += outcome.contested.len();
    }
    assert_eq!((repaired, contested), (3, 1));
    // What changes meanwhile is not left to anybody, also if it is time for a repair.
    world.endpoints[0] = vec![9];
    engine.offer(world.delta());
    let outcome = engine.repair(now);
    assert!(outcome.error.is_none() && !outcome.acked.is_empty(), "{outcome:?}");
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(0)].slots(), [9]);
}

#[test]
fn who_wants_what_a_refused_unit_holds_waits_with_it() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(3)];
    world.endpoints[1] = vec![7]; // refused because of VIP 3 ...
    world.owners[2] = 0; // ... so it can't give VIP 2 to service 0
    world.endpoints[2] = vec![9]; // no other service's business
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert_eq!(outcome.quarantined.len(), 2, "{outcome:?}");
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(2)].slots(), [2, 3]);
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(4)].slots(), [9], "the others go on");
    engine.kernel_mut().refused.clear();
    assert!(engine.sync(now + Duration::from_secs(5)).quarantined.is_empty());
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(2)].slots(), [1, 2]);
}

#[test]
fn a_silent_refusal_is_found_by_halving() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    for endpoints in &mut world.endpoints {
        *endpoints = vec![9];
    }
    engine.kernel_mut().faults.push_back(Fault::RefuseSilently(vec![ToyKey::Frontend(4)]));
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert_eq!(outcome.quarantined.len(), 1, "{outcome:?}");
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(0)].slots(), [9]);
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(6)].slots(), [9]);
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(4)].slots(), [4]);
}

#[test]
fn a_second_writer_that_keeps_on_is_left_alone_for_a_while() {
    let world = World::new();
    let mut now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    let mut contested = 0;
    for round in 0..6 {
        now += Duration::from_secs(1);
        engine.kernel_mut().lose(&ToyKey::Frontend(0));
        assert_eq!(engine.tend(now).repairs, 0, "it is looked at twice");
        let outcome = engine.tend(now + Duration::from_millis(200));
        assert_eq!(outcome.repairs, usize::from(round < 3), "round {round}");
        contested += outcome.contested.len();
    }
    assert_eq!(contested, 1);
    let outcome = engine.tend(now + Duration::from_secs(30));
    assert_eq!(outcome.repairs, 1, "one more try after the pause");
}

#[test]
fn an_idle_object_that_units_of_two_contexts_wanted_is_written_again() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    // The first service waits with the old context, the second one writes their shared object with the new one.
    engine.kernel_mut().refused = vec![ToyKey::Frontend(0)];
    world.mark = 2;
    world.endpoints[0] = vec![7, 8];
    engine.offer(world.delta());
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    let mark = |engine: &ToyEngine| match engine.kernel().objects[&ToyKey::Pick(2)] {
        Toy::Pick { mark, .. } => mark,
        ref other => panic!("{other}"),
    };
    assert_eq!(mark(&engine), 2);
    // Both leave it, the first one last; then a third one wants it as the first did.
    for (owners, endpoints) in [(vec![0, 0, 1, 1, 2, 2, 3, 3], vec![5]), (vec![3, 3, 1, 1, 2, 2, 3, 3], vec![5])] {
        engine.kernel_mut().refused = if owners[0] == 0 { vec![ToyKey::Frontend(0)] } else { Vec::new() };
        (world.owners, world.endpoints[1]) = (owners, endpoints);
        engine.offer(world.delta());
        assert!(engine.sync(now).error.is_none());
    }
    world.mark = 1;
    world.endpoints[2] = vec![4, 6];
    engine.offer(world.delta());
    assert!(engine.sync(now).error.is_none());
    assert_eq!(mark(&engine), 1);
    assert_eq!(settled(&engine), settled(&built_from_nothing(&world, now)));
}

#[test]
fn a_repair_names_the_units_whose_packets_may_have_passed_by() {
    let service = |index| UnitId::Service(service(index, &[], &[]).0);
    let lost = |keys: &[ToyKey]| {
        let mut now = Instant::now();
        let mut engine = built_from_nothing(&World::new(), now);
        keys.iter().for_each(|key| engine.kernel_mut().lose(key));
        engine.tend(now);
        now += Duration::from_millis(200);
        engine.tend(now).damaged
    };
    assert_eq!(lost(&[]), None);
    assert_eq!(lost(&[ToyKey::Frontend(0)]), Some(Extent::Keys(vec![service(0)])));
    assert_eq!(lost(&[ToyKey::Frontend(7), ToyKey::Frontend(1)]), Some(Extent::Keys(vec![service(0), service(3)])));
    assert_eq!(lost(&[ToyKey::Host(2)]), Some(Extent::All), "two services want it");
    assert_eq!(lost(&[ToyKey::Base]), Some(Extent::All), "all services need it");
}

#[test]
fn a_deleted_foreign_object_or_a_full_repair_concerns_all_units() {
    let now = Instant::now();
    let mut engine = built_from_nothing(&World::new(), now);
    engine.kernel_mut().foreign(Toy::foreign(99));
    engine.tend(now);
    let outcome = engine.tend(now + Duration::from_millis(200));
    assert_eq!((outcome.repairs, outcome.damaged), (1, Some(Extent::All)));
    engine.kernel_mut().lose(&ToyKey::Frontend(0));
    assert_eq!(engine.repair(now).damaged, Some(Extent::All));
}

#[test]
fn after_a_flush_a_vip_passes_from_the_last_service_to_the_first() {
    for by_repair in [false, true] {
        let mut world = World::new();
        let now = Instant::now();
        let mut engine = built_by_portions(3, &world, now);
        engine.kernel_mut().flush();
        world.owners[6] = 0; // it was service 3's
        world.mark = 2; // every unit is pending
        engine.offer(world.delta());
        let outcome = if by_repair { engine.repair(now) } else { engine.sync(now) };
        assert!(outcome.error.is_none(), "{outcome:?}");
        settle(&mut engine, now);
        assert_eq!(settled(&engine), settled(&built_from_nothing(&world, now)));
    }
}

#[test]
fn a_silent_refusal_in_a_first_load_is_found_within_the_portion() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default()).with_portion(4);
    engine.kernel_mut().faults.push_back(Fault::RefuseSilently(vec![ToyKey::Frontend(0)]));
    let services = (0..12).map(|index| service(index, &[index], &[1]));
    let mut delta = World::new().delta();
    delta.units = services.map(|(name, unit)| (UnitId::Service(name), unit.map(Arc::new))).collect();
    delta.units.insert(UnitId::Base, Some(Arc::new(base())));
    engine.offer(delta);
    let outcome = engine.sync(now);
    assert_eq!((outcome.quarantined.len(), outcome.acked.len()), (1, 12), "{outcome:?}");
    // Of the first portion 4, 2 and 1 units. Of the next one 4, then 2, 1 and 1, and the other 2. Two more portions.
    assert_eq!(engine.kernel().attempts, 10);
}

/// Two endpoints in the other order in one of two frontends.
fn reordered() -> (ToyEngine, World, Instant) {
    let mut world = World::new();
    world.endpoints[0] = vec![1, 2, 3];
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().foreign(Toy::Frontend { vip: 0, slots: vec![2, 1, 3] });
    (engine, world, now)
}

#[test]
fn what_follows_the_kernels_order_and_is_not_committed_is_mended_soon() {
    let (mut engine, mut world, now) = reordered();
    engine.tend(now);
    world.owners[2] = 0; // a third frontend of service 0, in the old order as yet
    engine.offer(world.delta());
    engine.sync(now);
    let mut now = settle(&mut engine, now);
    let reversed: Vec<u8> = engine.kernel().objects[&ToyKey::Frontend(0)].slots().iter().rev().copied().collect();
    engine.kernel_mut().foreign(Toy::Frontend { vip: 0, slots: reversed.clone() });
    engine.kernel_mut().foreign(Toy::Frontend { vip: 1, slots: reversed });
    engine.tend(now);
    engine.kernel_mut().faults.push_back(Fault::Busy);
    now += Duration::from_millis(200);
    assert!(engine.tend(now).error.is_some());
    now += Duration::from_millis(250);
    engine.tend(now);
    let mut wanted = engine.objects();
    wanted.dedup();
    let there: Vec<Toy> = engine.kernel().objects.values().filter(|object| wanted.contains(object)).cloned().collect();
    assert_eq!(there, wanted, "what is acknowledged is what the kernel holds");
}

#[test]
fn one_damaged_frontend_does_not_change_the_others() {
    let (mut engine, _, now) = reordered();
    engine.tend(now);
    let outcome = engine.tend(now + Duration::from_millis(200));
    assert_eq!(outcome.repaired, ["Frontend(0)"]);
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(0)].slots(), [1, 2, 3]);
}

#[test]
fn a_conflict_is_settled_by_what_the_change_is_about() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().lose(&ToyKey::Frontend(0)); // what the change is about
    engine.kernel_mut().lose(&ToyKey::Host(2)); // so is this, but another service wants it as well
    engine.kernel_mut().lose(&ToyKey::Frontend(4)); // this is not
    world.endpoints[0] = vec![1];
    let mut delta = world.delta();
    delta.units.retain(|id, _| id.to_string().ends_with("service-0"));
    engine.offer(delta);
    let outcome = engine.sync(now);
    assert!(outcome.error.is_none() && !outcome.full && outcome.repairs == 0, "{outcome:?}");
    let there = |engine: &ToyEngine, key| engine.kernel().objects.contains_key(&key);
    assert!(there(&engine, ToyKey::Frontend(0)) && there(&engine, ToyKey::Frontend(1)));
    assert!(!there(&engine, ToyKey::Host(2)) && !there(&engine, ToyKey::Frontend(4)), "it may be another proxy's work");
    engine.tend(now);
    engine.tend(now + Duration::from_millis(200));
    assert_eq!(settled(&engine), settled(&built_from_nothing(&world, now)));
}

#[test]
fn damage_is_mended_while_changes_keep_meeting_conflicts() {
    // The long way is taken while a unit waits that was accepted under another context.
    for long in [false, true] {
        let mut world = World::new();
        let start = Instant::now();
        let mut engine = built_from_nothing(&world, start);
        if long {
            engine.kernel_mut().refused = vec![ToyKey::Frontend(6)];
            world.mark = 2;
            world.endpoints[3] = vec![1];
            engine.offer(world.delta());
            assert_eq!(engine.sync(start).quarantined.len(), 1);
        }
        engine.kernel_mut().lose(&ToyKey::Frontend(4));
        let mut clock = 0;
        while !engine.kernel().objects.contains_key(&ToyKey::Frontend(4)) {
            assert!(clock < 600, "not mended");
            let now = start + Duration::from_millis(clock);
            engine.kernel_mut().lose(&ToyKey::Frontend(0));
            world.endpoints[0] = vec![if clock % 100 == 0 { 5 } else { 6 }];
            let mut delta = world.delta();
            delta.units.retain(|id, _| id.to_string().ends_with("service-0"));
            engine.offer(delta);
            assert_eq!(engine.sync(now).full, long);
            if clock % 250 == 0 {
                engine.tend(now);
            }
            clock += 50;
        }
    }
}

#[test]
fn a_change_that_fails_keeps_nobody_from_mending() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().busy = vec![ToyKey::Frontend(0)];
    world.endpoints[0] = vec![5];
    engine.offer(world.delta());
    assert!(engine.sync(now).error.is_some());
    engine.kernel_mut().lose(&ToyKey::Frontend(4));
    assert!(engine.tend(now).error.is_some());
    let outcome = engine.tend(now + Duration::from_millis(200));
    assert!(outcome.error.is_some() && outcome.repairs == 1, "{outcome:?}");
    engine.kernel_mut().lose(&ToyKey::Frontend(4));
    let outcome = engine.repair(now + Duration::from_millis(400));
    assert!(outcome.error.is_some(), "a comparison of everything makes the changes, too: {outcome:?}");
    let outcome = engine.tend(now + Duration::from_millis(600));
    assert!(outcome.error.is_some() && outcome.repairs == 1, "{outcome:?}");
    engine.kernel_mut().busy.clear();
    settle(&mut engine, now);
    assert_eq!(settled(&engine), settled(&built_from_nothing(&world, now)));
}

#[test]
fn an_object_that_cannot_be_deleted_holds_up_its_unit_alone() {
    let mut world = World::new();
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    let mut engine = built_from_nothing(&world, start);
    engine.kernel_mut().in_use = vec![ToyKey::Host(4)];
    world.endpoints[2] = vec![5];
    world.endpoints[0] = vec![8];
    engine.offer(world.delta());
    let outcome = engine.sync(at(0));
    assert!(outcome.error.is_some() && outcome.quarantined.is_empty(), "it may be free in a moment: {outcome:?}");
    let outcome = engine.sync(at(50));
    assert!(outcome.error.is_none() && outcome.quarantined.len() == 1, "{outcome:?}");
    assert!(matches!(&*outcome.quarantined[0].1, CommitError::Resources(_)), "the reason is kept: {outcome:?}");
    let slots = |engine: &ToyEngine, vip| engine.kernel().objects[&ToyKey::Frontend(vip)].slots().to_vec();
    assert_eq!(slots(&engine, 0), [8]);
    assert_eq!(slots(&engine, 4), [4], "the last good state");
    // When it is tried again it doesn't hold up the others a second time.
    world.endpoints[0] = vec![9];
    engine.offer(Delta { context: None, units: world.delta().units.into_iter().take(2).collect() });
    let outcome = engine.sync(at(2000));
    assert!(outcome.error.is_none() && outcome.quarantined.len() == 1, "{outcome:?}");
    assert_eq!(slots(&engine, 0), [9]);
    engine.kernel_mut().in_use.clear();
    settle(&mut engine, at(2000));
    assert_eq!(settled(&engine), settled(&built_from_nothing(&world, start)));
}

#[test]
fn a_unit_that_is_too_large_holds_up_no_other() {
    let mut world = World::new();
    let start = Instant::now();
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    // In a first load, in an incremental sync, and where everything is compared.
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default()).with_portion(3);
    engine.kernel_mut().starved = vec![ToyKey::Frontend(4)];
    engine.offer(world.delta());
    assert!(engine.sync(at(0)).error.is_some());
    let outcome = engine.sync(at(50));
    assert!(outcome.error.is_none() && outcome.quarantined.len() == 1, "{outcome:?}");
    let there = |engine: &ToyEngine, vip| engine.kernel().objects.contains_key(&ToyKey::Frontend(vip));
    assert!(there(&engine, 0) && there(&engine, 6) && !there(&engine, 4));
    engine.kernel_mut().starved = vec![ToyKey::Frontend(0)];
    world.endpoints[0] = vec![8];
    world.endpoints[3] = vec![9];
    engine.offer(world.delta());
    assert!(engine.sync(at(100)).error.is_some(), "there may be memory in a moment");
    let outcome = engine.sync(at(150));
    assert!(outcome.error.is_none() && outcome.quarantined.len() == 1, "{outcome:?}");
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(6)].slots(), [9]);
    engine.kernel_mut().starved.clear();
    // Resources may be there again at any time: no unit waits longer than ten seconds.
    let outcome = engine.sync(at(11_000));
    assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{outcome:?}");
    assert_eq!(settled(&engine), settled(&built_from_nothing(&world, start)));
}

#[test]
fn units_that_pass_frontends_on_are_refused_together_and_the_others_go_in() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().faults.push_back(Fault::RefuseSilently(vec![ToyKey::Frontend(0)]));
    // The first service alone is refused; the others exchange their frontends, and are most of the batch.
    world.endpoints[0] = vec![9];
    world.owners = vec![0, 0, 2, 2, 3, 3, 1, 1];
    engine.offer(Delta { context: None, units: world.delta().units.into_iter().skip(1).collect() });
    let outcome = engine.sync(now);
    let refused: Vec<&UnitId> = outcome.quarantined.iter().map(|(id, _)| id).collect();
    assert_eq!(refused, [&UnitId::Service(service(0, &[], &[]).0)], "{outcome:?}");
    assert_eq!(outcome.acked.len(), 3, "{outcome:?}");
}

#[test]
fn a_kernel_without_memory_is_not_asked_for_each_unit() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    engine.offer(World::new().delta());
    assert!(engine.sync(now).error.is_none());
    engine.kernel_mut().starved = (20..60).map(ToyKey::Frontend).collect();
    let services = (20..60).map(|index| service(index, &[index], &[1]));
    let units = services.map(|(name, unit)| (UnitId::Service(name), unit.map(Arc::new))).collect();
    engine.offer(Delta { context: None, units });
    assert!(engine.sync(now).error.is_some());
    let before = engine.kernel().attempts;
    let outcome = engine.sync(now + Duration::from_millis(50));
    assert!(outcome.error.is_some() && outcome.quarantined.len() == 8, "{outcome:?}");
    assert!(engine.kernel().attempts - before < 30, "{}", engine.kernel().attempts - before);
    engine.kernel_mut().starved.clear();
    settle(&mut engine, now);
    assert_eq!((20..60).filter(|vip| engine.kernel().objects.contains_key(&ToyKey::Frontend(*vip))).count(), 40);
}

#[test]
fn groups_behind_one_without_resources_are_tried_in_the_same_pass() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default()).with_portion(4);
    engine.offer(World::new().delta());
    settle(&mut engine, now);
    engine.kernel_mut().starved = vec![ToyKey::Frontend(21)];
    let services = (20..32).map(|index| service(index, &[index], &[1]));
    let units = services.map(|(name, unit)| (UnitId::Service(name), unit.map(Arc::new))).collect();
    engine.offer(Delta { context: None, units });
    let outcome = engine.sync(now);
    let there = |engine: &ToyEngine| {
        (20..32).filter(|vip| engine.kernel().objects.contains_key(&ToyKey::Frontend(*vip))).collect::<Vec<u8>>()
    };
    assert!(matches!(outcome.error.as_deref(), Some(CommitError::Resources(_))), "{outcome:?}");
    assert_eq!(there(&engine), (24..32).collect::<Vec<_>>(), "the first of three groups waits");
    assert_eq!((outcome.acked.len(), outcome.next), (8, Next::RetryAfter(Duration::from_millis(50))));
    let outcome = engine.sync(now + Duration::from_millis(50));
    assert!(outcome.error.is_none() && outcome.quarantined.len() == 1, "{outcome:?}");
    assert_eq!(there(&engine), (20..32).filter(|vip| *vip != 21).collect::<Vec<_>>());
}

#[test]
fn what_an_earlier_run_left_and_cannot_be_deleted_holds_up_nothing() {
    let world = World::new();
    let start = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    engine.kernel_mut().objects.insert(ToyKey::Base, Toy::Base);
    engine.kernel_mut().objects.insert(ToyKey::Host(77), Toy::Host(77));
    engine.kernel_mut().in_use = vec![ToyKey::Host(77)];
    engine.offer(world.delta());
    assert!(engine.sync(start).error.is_some());
    let outcome = engine.sync(start + Duration::from_millis(50));
    assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{outcome:?}");
    assert!(engine.kernel().objects.contains_key(&ToyKey::Frontend(0)));
    // It is reported as long as it is there, and damage is repaired beside it.
    engine.kernel_mut().lose(&ToyKey::Frontend(0));
    engine.tend(start + Duration::from_millis(100));
    let failed = engine.tend(start + Duration::from_millis(400));
    assert!(failed.error.is_some(), "{failed:?}");
    let outcome = engine.tend(start + Duration::from_millis(600));
    assert!(outcome.error.is_some() && outcome.repairs == 1, "{outcome:?}");
    assert!(engine.kernel().objects.contains_key(&ToyKey::Frontend(0)));
    engine.kernel_mut().in_use.clear();
    settle(&mut engine, start);
    assert_eq!(settled(&engine), settled(&built_from_nothing(&world, start)));
}

#[test]
fn a_refused_unit_that_failed_half_way_goes_back_to_its_last_good_state() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = built_from_nothing(&world, now);
    world.endpoints[1] = vec![7];
    world.endpoints[0] = vec![8];
    engine.offer(world.delta());
    // Two hosts made and one frontend of service 0 replaced, then one of service 1 is refused.
    engine.kernel_mut().faults.push_back(Fault::HalfWay { operations: 4, error: Failing::Refused });
    engine.kernel_mut().refused = vec![ToyKey::Frontend(3)];
    let outcome = engine.sync(now);
    assert!(outcome.error.is_none() && outcome.quarantined.len() == 1 && outcome.repairs == 0, "{outcome:?}");
    let slots = |engine: &ToyEngine, vip| engine.kernel().objects[&ToyKey::Frontend(vip)].slots().to_vec();
    assert_eq!((slots(&engine, 0), slots(&engine, 2), slots(&engine, 3)), (vec![8], vec![2, 3], vec![2, 3]));
    assert!(!engine.kernel().objects.contains_key(&ToyKey::Host(7)), "nothing is left of the refused change");
    let wanted = engine.objects();
    assert!(engine.kernel().objects.values().all(|object| wanted.contains(object) || object.is_pick()));
}

#[test]
fn what_failed_half_way_is_completed_and_not_made_twice() {
    for error in [Failing::Busy, Failing::Drifted, Failing::Resources, Failing::Unusable] {
        for operations in 0..8 {
            let mut world = World::new();
            let now = Instant::now();
            let mut engine = built_from_nothing(&world, now);
            world.endpoints = vec![vec![8], vec![9], vec![], vec![1, 2]];
            engine.offer(world.delta());
            engine.kernel_mut().faults.push_back(Fault::HalfWay { operations, error });
            let first = engine.sync(now);
            assert_eq!(first.error.is_some(), error != Failing::Drifted, "{first:?}");
            let outcome = engine.sync(now + Duration::from_millis(50));
            assert!(outcome.error.is_none() && outcome.quarantined.is_empty() && outcome.repairs == 0, "{outcome:?}");
            assert_eq!(engine.kernel().violations, Vec::<String>::new());
            assert_eq!(settled(&engine), settled(&built_from_nothing(&world, now)), "{error:?} after {operations}");
        }
    }
}

#[test]
fn a_plan_says_what_a_repair_would_do_and_changes_nothing() {
    let (mut engine, _, now) = reordered();
    engine.kernel_mut().foreign(Toy::Frontend { vip: 1, slots: vec![2, 1, 3] });
    let before = engine.objects();
    assert!(engine.plan().unwrap().is_empty(), "another order is no damage");
    assert_eq!(engine.objects(), before);
    assert_eq!(engine.repair(now).ops, 0);
}

/// Where the kernel can't do all or nothing, some may be gone.
#[test]
fn retiring_names_what_was_served_also_if_it_fails() {
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    offer(&mut engine, &[(1, &[1, 2], &[7])]);
    assert!(engine.sync(Instant::now()).error.is_none());
    engine.kernel_mut().faults.push_back(Fault::Busy);
    let mut retired = Vec::new();
    assert!((Box::new(engine) as Box<dyn SyncEngine>).retire(&mut retired).is_err());
    retired.sort_unstable();
    assert_eq!(retired, [served(1), served(2)]);
}

#[test]
fn retiring_leaves_nothing() {
    let engine = built_from_nothing(&World::new(), Instant::now());
    let objects = engine.kernel().objects.len();
    assert!(objects > 0);
    let mut engine = Box::new(engine);
    assert!(engine.plan().unwrap().is_empty());
    assert_eq!((engine as Box<dyn SyncEngine>).retire(&mut Vec::new()).unwrap(), objects);
}

#[test]
fn retiring_from_an_empty_kernel_commits_nothing() {
    let [side, other] = Side::<Toy>::pair();
    let engine = Box::new(Engine::new(ToyCompile, side)) as Box<dyn SyncEngine>;
    assert_eq!(engine.retire(&mut Vec::new()).unwrap(), 0);
    assert_eq!(other.with(|memory| memory.attempts), 0);
}

#[test]
fn a_service_that_goes_is_taken_down_from_the_top() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    offer(&mut engine, &[(1, &[1, 2], &[7, 8]), (2, &[3], &[9])]);
    assert!(engine.sync(now).error.is_none());
    offer(&mut engine, &[(1, &[], &[])]);
    let outcome = engine.sync(now);
    assert_eq!((outcome.ops, outcome.error.is_none()), (4, true), "two hosts and two frontends: {outcome:?}");
    assert!([1, 2].iter().all(|vip| !engine.kernel().objects.contains_key(&ToyKey::Frontend(*vip))));
    assert_eq!(engine.kernel().violations, Vec::<String>::new());
}

#[test]
fn what_another_proxy_has_made_is_not_made_again() {
    let (mut world, now) = (World::new(), Instant::now());
    let mut engines = Side::pair().map(|side| Engine::new(ToyCompile, side.with_news()));
    for engine in &mut engines {
        engine.offer(world.delta());
        assert!(engine.sync(now).error.is_none());
    }
    world.endpoints[0] = vec![1];
    let operations = engines.each_mut().map(|engine| {
        engine.offer(world.delta());
        let outcome = engine.sync(now);
        assert!(outcome.error.is_none() && !outcome.acked.is_empty(), "{outcome:?}");
        outcome.ops
    });
    assert_eq!(operations, [2, 0], "two frontends");
}

#[test]
fn a_context_that_changes_no_object_costs_no_operation() {
    let (world, now) = (World::new(), Instant::now());
    let mut engine = built_from_nothing(&world, now);
    let node_name = "another".into();
    let renamed = Arc::new(ferry_model::Context { node_name, ..context(world.mark) });
    engine.offer(Delta { context: Some(renamed), units: [].into() });
    let outcome = engine.sync(now);
    assert_eq!((outcome.ops, outcome.acked.len()), (0, 5), "{outcome:?}");
}

#[test]
fn a_kernel_short_of_resources_is_asked_for_nine_groups_at_most() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default()).with_portion(1);
    engine.offer(World::new().delta());
    settle(&mut engine, now);
    engine.kernel_mut().starved = (20..40).map(ToyKey::Frontend).collect();
    let services = (20..40).map(|index| service(index, &[index], &[1]));
    let units = services.map(|(name, unit)| (UnitId::Service(name), unit.map(Arc::new))).collect();
    engine.offer(Delta { context: None, units });
    let before = engine.kernel().attempts;
    let outcome = engine.sync(now);
    assert!(matches!(outcome.error.as_deref(), Some(CommitError::Resources(_))), "{outcome:?}");
    assert_eq!(engine.kernel().attempts - before, 9);
}

#[test]
fn a_unit_too_large_for_the_first_commit_waits_alone() {
    let (world, now) = (World::new(), Instant::now());
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    engine.kernel_mut().starved = vec![ToyKey::Frontend(4)];
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert!(outcome.error.is_some() && outcome.quarantined.is_empty(), "it may fit in a moment: {outcome:?}");
    let outcome = engine.sync(now + Duration::from_millis(50));
    let waiting: Vec<&UnitId> = outcome.quarantined.iter().map(|(id, _)| id).collect();
    assert_eq!(waiting, [&UnitId::Service(service(2, &[], &[]).0)], "{outcome:?}");
    assert_eq!(outcome.acked.len(), 4, "{outcome:?}");
}

#[test]
fn a_full_repair_counts_what_it_mends_and_not_what_it_has_to_leave() {
    let (world, now) = (World::new(), Instant::now());
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().objects.insert(ToyKey::Host(77), Toy::Host(77));
    engine.kernel_mut().in_use = vec![ToyKey::Host(77)];
    engine.kernel_mut().objects.remove(&ToyKey::Frontend(0));
    assert!(engine.repair(now).error.is_some());
    let outcome = engine.repair(now + Duration::from_millis(50));
    assert_eq!((outcome.error.is_none(), outcome.repaired), (true, vec!["Frontend(0)".to_owned()]));
    assert!(engine.kernel().objects.contains_key(&ToyKey::Host(77)));
}

#[test]
fn what_a_replaced_foreign_object_served_is_unserved() {
    let (world, now) = (World::new(), Instant::now());
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().objects.insert(ToyKey::Base, Toy::OtherBase);
    engine.kernel_mut().objects.insert(ToyKey::Frontend(0), Toy::foreign(0));
    let outcome = engine.repair(now);
    assert_eq!(
        (outcome.repairs, outcome.unserved),
        (2, vec![served(OTHER_VIP)]),
        "the frontend's successor serves the same"
    );
}

/// A unit waits that was accepted under another context, so that a conflict leads to a comparison of everything. Another one
/// changes whose object was lost unnoticed. `beside`: lost unnoticed, too.
fn conflict_with_everything(beside: Option<u8>) -> (ToyEngine, Instant) {
    let (mut world, now) = (World::new(), Instant::now());
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(6)];
    world.mark = 2;
    world.endpoints[3] = vec![1];
    engine.offer(world.delta());
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    for vip in beside.into_iter().chain([0]) {
        engine.kernel_mut().objects.remove(&ToyKey::Frontend(vip));
    }
    world.endpoints[0] = vec![5];
    let mut delta = world.delta();
    delta.units.retain(|id, _| id.to_string().ends_with("service-0"));
    engine.offer(delta);
    (engine, now)
}

#[test]
fn in_a_conflict_other_differences_are_confirmed_before_they_are_repaired() {
    let (mut engine, now) = conflict_with_everything(Some(4));
    let there = |engine: &ToyEngine, vip| engine.kernel().objects.contains_key(&ToyKey::Frontend(vip));
    let outcome = engine.sync(now);
    assert!(outcome.error.is_none() && outcome.full && outcome.repairs == 0, "{outcome:?}");
    assert!(there(&engine, 0) && !there(&engine, 4));
    let outcome = engine.tend(now + Duration::from_millis(200));
    assert_eq!(outcome.repaired, ["Frontend(4)"]);
}

#[test]
fn a_change_refused_in_a_conflict_is_tried_with_the_other_differences_if_there_are_some() {
    for (beside, waiting) in [(Some(4), 1), (None, 2)] {
        let (mut engine, now) = conflict_with_everything(beside);
        let no_fault = Fault::Refuse(Vec::new());
        engine.kernel_mut().faults.extend([no_fault, Fault::Refuse(vec![ToyKey::Frontend(0)])]);
        let outcome = engine.sync(now);
        assert!(outcome.error.is_none() && engine.kernel().faults.is_empty(), "{outcome:?}");
        assert_eq!((outcome.quarantined.len(), outcome.repairs), (waiting, usize::from(beside.is_some())));
    }
}

#[test]
fn a_change_refused_when_a_conflict_is_settled_waits_alone() {
    let (mut world, now) = (World::new(), Instant::now());
    let mut engine = built_from_nothing(&world, now);
    engine.kernel_mut().objects.remove(&ToyKey::Frontend(0));
    let no_fault = Fault::Refuse(Vec::new());
    engine.kernel_mut().faults.extend([no_fault, Fault::Refuse(vec![ToyKey::Frontend(0)])]);
    world.endpoints[0] = vec![8];
    world.endpoints[2] = vec![9];
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert!(outcome.error.is_none() && !outcome.full && engine.kernel().faults.is_empty(), "{outcome:?}");
    let waiting: Vec<&UnitId> = outcome.quarantined.iter().map(|(id, _)| id).collect();
    assert_eq!(waiting, [&UnitId::Service(service(0, &[], &[]).0)]);
    assert_eq!(engine.kernel().objects[&ToyKey::Frontend(4)].slots(), [9]);
}

#[test]
fn a_repair_leaves_objects_of_the_same_unit_whose_time_has_not_come() {
    let (world, start) = (World::new(), Instant::now());
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    // The second object is reported as the first one's comparison is due.
    let mut engine = built_from_nothing(&world, start);
    engine.kernel_mut().lose(&ToyKey::Frontend(0));
    engine.tend(at(0));
    engine.kernel_mut().lose(&ToyKey::Frontend(1));
    assert_eq!(engine.tend(at(200)).repaired, ["Frontend(0)"]);
    assert_eq!(engine.tend(at(400)).repaired, ["Frontend(1)"]);
    // It is contested.
    let mut engine = built_from_nothing(&world, start);
    for second in 0..3 {
        engine.kernel_mut().lose(&ToyKey::Frontend(1));
        engine.tend(at(1000 * second));
        assert_eq!(engine.tend(at(1000 * second + 200)).repairs, 1);
    }
    [0, 1].iter().for_each(|vip| engine.kernel_mut().lose(&ToyKey::Frontend(*vip)));
    engine.tend(at(3000));
    assert_eq!(engine.tend(at(3200)).repaired, ["Frontend(0)"]);
    assert_eq!(engine.tend(at(13_000)).repaired, ["Frontend(1)"], "after its pause");
}
