//! Pauses of the engine: the retries of rejected units and after failed turns, and the events that end a pause early.

use std::time::{Duration, Instant};

use crate::toy::world::World;
use crate::toy::{Toy, ToyCompile, ToyKey};
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, Fault, MemoryKernel, Side};
use ferry_plane::{CommitError, Next, SyncEngine, UnitId};

type ToyEngine = Engine<ToyCompile, MemoryKernel<Toy>>;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn started(world: &World, now: Instant) -> ToyEngine {
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    engine.offer(world.delta());
    assert!(engine.sync(now).error.is_none());
    engine
}

/// Service 1 changes, and the kernel refuses it.
fn refused(world: &mut World, now: Instant) -> ToyEngine {
    let mut engine = started(world, now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(2)];
    world.endpoints[1] = vec![7];
    engine.offer(world.delta());
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    engine
}

fn slots(engine: &ToyEngine, vip: u8) -> Vec<u8> {
    engine.kernel().objects[&ToyKey::Frontend(vip)].slots().to_vec()
}

#[test]
fn a_refused_unit_is_tried_again_at_once_when_it_changes_or_the_context_does() {
    for new_context in [false, true] {
        let mut world = World::new();
        let now = Instant::now();
        let mut engine = refused(&mut world, now);
        engine.kernel_mut().refused.clear();
        assert_eq!(engine.sync(now + MS).quarantined.len(), 1, "unchanged, it waits");
        assert_eq!(slots(&engine, 2), [2, 3]);
        let mut delta = world.delta();
        if new_context {
            world.mark = 2;
            delta.units.clear();
            delta.context = world.delta().context;
        } else {
            world.endpoints[1] = vec![8];
            delta = world.delta();
        }
        engine.offer(delta);
        let outcome = engine.sync(now + 2 * MS);
        assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{outcome:?}");
        assert_eq!(slots(&engine, 2), if new_context { [7] } else { [8] });
    }
}

#[test]
fn a_refused_unit_waits_twice_as_long_each_time_up_to_five_minutes() {
    let mut world = World::new();
    let mut now = Instant::now();
    let mut engine = refused(&mut world, now);
    for wanted in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
        let Next::RetryAfter(wait) = engine.sync(now).next else { panic!("no wake for a unit in quarantine") };
        assert_eq!(wait, wanted * SECOND);
        let attempts = engine.kernel().attempts;
        engine.sync(now + wait - MS);
        assert_eq!(engine.kernel().attempts, attempts, "not before its time");
        now += wait;
        assert_eq!(engine.sync(now).quarantined.len(), 1);
        assert!(engine.kernel().attempts > attempts);
    }
}

#[test]
fn a_failed_sync_pass_is_repeated_after_twice_the_time_up_to_ten_seconds() {
    let mut world = World::new();
    let mut now = Instant::now();
    let mut engine = started(&world, now);
    engine.kernel_mut().busy = vec![ToyKey::Frontend(0)];
    world.endpoints[0] = vec![9];
    engine.offer(world.delta());
    for wanted in [50, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
        let outcome = engine.sync(now);
        assert!(outcome.error.is_some());
        assert_eq!(outcome.next, Next::RetryAfter(wanted * MS));
        now += wanted * MS;
    }
    engine.kernel_mut().busy.clear();
    assert_eq!(engine.sync(now).next, Next::Idle);
    engine.kernel_mut().faults.push_back(Fault::Busy);
    world.endpoints[0] = vec![8];
    engine.offer(world.delta());
    assert_eq!(engine.sync(now).next, Next::RetryAfter(50 * MS), "it begins anew after a success");
}

#[test]
fn a_change_by_an_unknown_writer_is_compared_within_a_moment() {
    let world = World::new();
    let now = Instant::now();
    let mut engine = started(&world, now);
    engine.kernel_mut().lose(&ToyKey::Frontend(0));
    let Next::RetryAfter(wait) = engine.tend(now).next else { panic!("no comparison") };
    assert!(wait <= 200 * MS, "{wait:?}");
    assert_eq!(engine.tend(now + wait).repairs, 1);
}

#[test]
fn damage_by_a_program_that_is_no_proxy_is_mended_at_once() {
    let world = World::new();
    let now = Instant::now();
    let [side, _] = Side::pair();
    let mut engine = Engine::new(ToyCompile, side);
    engine.offer(world.delta());
    assert!(engine.sync(now).error.is_none());
    engine.kernel().with(|memory| memory.lose(&ToyKey::Frontend(0)));
    let outcome = engine.tend(now);
    assert_eq!((outcome.repairs, outcome.next), (1, Next::Idle));
    engine.kernel().with(MemoryKernel::flush);
    // It goes on: its last change is waited for.
    let outcome = engine.tend(now + 100 * MS);
    assert_eq!((outcome.repairs, outcome.next), (0, Next::RetryAfter(150 * MS)));
    assert!(engine.tend(now + 250 * MS).repairs > 1);
}

#[test]
fn an_object_that_is_touched_all_the_time_is_looked_at_all_the_same() {
    let world = World::new();
    let start = Instant::now();
    let mut engine = started(&world, start);
    for tenths in 0..20 {
        engine.kernel_mut().lose(&ToyKey::Frontend(0));
        if engine.tend(start + tenths * 100 * MS).repairs > 0 {
            return;
        }
    }
    panic!("not mended in two seconds");
}

#[test]
fn a_restart_keeps_what_a_refused_unit_had_in_force() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = started(&world, now);
    let kernel = MemoryKernel {
        objects: std::mem::take(&mut engine.kernel_mut().objects),
        refused: vec![ToyKey::Frontend(2)],
        ..MemoryKernel::default()
    };
    world.endpoints[1] = vec![7];
    world.owners[3] = 2; // so that one object of the refused unit is another's now
    let mut next = Engine::new(ToyCompile, kernel);
    next.offer(world.delta());
    let outcome = next.sync(now);
    assert_eq!(outcome.quarantined.len(), 1, "{outcome:?}");
    assert_eq!(slots(&next, 2), [2, 3], "the old frontend serves on");
    assert_eq!(slots(&next, 3), [4]);
}

#[test]
fn a_wanted_spare_object_that_an_earlier_run_left_costs_nothing() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = started(&world, now);
    world.endpoints[0] = vec![1, 2, 3];
    engine.offer(world.delta());
    engine.sync(now);
    world.endpoints[0] = vec![1, 2];
    engine.offer(world.delta());
    engine.sync(now);
    assert!(engine.kernel().objects.contains_key(&ToyKey::Pick(3)), "it stays for the next one");
    let kernel = MemoryKernel { objects: std::mem::take(&mut engine.kernel_mut().objects), ..MemoryKernel::default() };
    let mut next = Engine::new(ToyCompile, kernel);
    next.offer(world.delta());
    assert_eq!(next.sync(now).ops, 0);
    world.endpoints[0] = vec![1, 2, 3];
    next.offer(world.delta());
    // Host 3 is there for service 1; two frontends are replaced.
    assert_eq!(next.sync(now).ops, 2);
}

#[test]
fn a_spare_object_that_is_wanted_again_is_still_there() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = started(&world, now);
    for endpoints in [vec![1, 2, 3], vec![1, 2]] {
        world.endpoints[0] = endpoints;
        engine.offer(world.delta());
        assert!(engine.sync(now).error.is_none());
    }
    let attempts = engine.kernel().attempts;
    world.endpoints[0] = vec![1, 2, 3];
    engine.offer(world.delta());
    assert_eq!(engine.sync(now).ops, 2, "the two frontends");
    assert_eq!(engine.kernel().attempts, attempts + 1, "no conflict with the kernel's");
}

#[test]
fn a_plan_names_what_is_lost() {
    let world = World::new();
    let mut engine = started(&world, Instant::now());
    engine.kernel_mut().lose(&ToyKey::Frontend(5));
    let plan = engine.plan().unwrap();
    let damaged: Vec<_> = plan.units.iter().filter(|(_, operations)| !operations.is_empty()).collect();
    assert!(damaged.len() == 1 && plan.len() == 1, "{plan:?}");
    assert!(damaged[0].1.create[0].contains("vip: 5"), "{plan:?}");
    assert!(plan.units.len() > 1, "those without operations are there, too");
}

#[test]
fn a_chain_of_hand_overs_waits_as_a_whole_for_its_last_link() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = started(&world, now);
    // Service 0 takes a VIP of service 1, that takes one of service 2, and the kernel refuses another one of that.
    engine.kernel_mut().refused = vec![ToyKey::Frontend(5)];
    world.owners[2] = 0;
    world.owners[4] = 1;
    world.endpoints[2] = vec![9];
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert_eq!(outcome.quarantined.len(), 3, "{outcome:?}");
    assert_eq!((slots(&engine, 2), slots(&engine, 4)), (vec![2, 3], vec![4]), "nothing has changed hands");
    engine.kernel_mut().refused.clear();
    let outcome = engine.sync(now + 2 * SECOND);
    assert!(outcome.quarantined.is_empty() && outcome.error.is_none(), "{outcome:?}");
    assert_eq!((slots(&engine, 2), slots(&engine, 4)), (vec![1, 2], vec![2, 3]));
}

#[test]
fn a_conflict_is_settled_also_where_a_change_needs_what_others_lost() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = started(&world, now);
    // Host 4 is service 2's, lost unnoticed; service 0 begins to want it, too.
    engine.kernel_mut().objects.remove(&ToyKey::Host(4));
    engine.kernel_mut().objects.remove(&ToyKey::Frontend(4));
    world.endpoints[0] = vec![4];
    engine.offer(world.delta());
    let outcome = engine.sync(now);
    assert!(outcome.error.is_none(), "{outcome:?}");
    engine.repair(now + SECOND);
    assert_eq!(slots(&engine, 0), [4]);
    assert!(engine.kernel().objects.contains_key(&ToyKey::Host(4)));
    assert!(engine.kernel().objects.contains_key(&ToyKey::Frontend(4)));
}

#[test]
fn a_mark_that_changes_and_changes_back_while_a_unit_is_refused_leaves_no_mixture() {
    let mut world = World::new();
    world.mark = 3;
    let start = Instant::now();
    let mut engine = started(&world, start);
    let mut now = start;
    engine.kernel_mut().refused = vec![ToyKey::Frontend(6)]; // service 3
    for mark in [2, 3] {
        world.mark = mark;
        world.endpoints[3] = vec![if mark == 2 { 5 } else { 6 }];
        engine.offer(world.delta());
        assert_eq!(engine.sync(now).quarantined.len(), 1);
        now += 10 * MS;
    }
    engine.kernel_mut().lose(&ToyKey::Pick(1));
    engine.tend(now);
    let outcome = engine.tend(now + SECOND / 2);
    assert!(outcome.error.is_none(), "{outcome:?}");
    assert_eq!(engine.kernel().objects[&ToyKey::Pick(1)], Toy::Pick { count: 1, mark: 3 });
    engine.kernel_mut().refused.clear();
    engine.sync(now + 20 * SECOND);
    let marks = engine.kernel().objects.values().filter_map(|object| match object {
        Toy::Pick { mark, count } if *count < 3 => Some(*mark),
        _ => None,
    });
    assert!(marks.into_iter().all(|mark| mark == 3), "{:?}", engine.kernel().objects);
}

#[test]
fn a_shared_object_is_repaired_as_the_current_context_wants_it() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = started(&world, now);
    // Service 0 shares the pick chain of two endpoints with service 1, and stays behind with the earlier mark.
    engine.kernel_mut().refused = vec![ToyKey::Frontend(0)];
    world.mark = 2;
    world.endpoints[0] = vec![5, 6];
    engine.offer(world.delta());
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    engine.kernel_mut().lose(&ToyKey::Pick(2));
    engine.tend(now);
    assert_eq!(engine.tend(now + SECOND / 2).repairs, 1);
    assert_eq!(engine.kernel().objects[&ToyKey::Pick(2)], Toy::Pick { count: 2, mark: 2 });
}

#[test]
fn a_kernel_that_changes_under_each_full_sync_is_left_until_the_next_turn() {
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    engine.offer(World::new().delta());
    let drifted = || Fault::HalfWay { operations: 0, error: Failing::Drifted };
    engine.kernel_mut().faults.extend((0..9).map(|_| drifted()));
    let outcome = engine.sync(Instant::now());
    assert!(matches!(outcome.error.as_deref(), Some(CommitError::Drifted { .. })), "{outcome:?}");
    assert_eq!((engine.kernel().attempts, outcome.next), (2, Next::RetryAfter(50 * MS)));
}

#[test]
fn services_go_on_over_a_base_that_is_refused_since_it_was_damaged() {
    let mut world = World::new();
    let now = Instant::now();
    let mut engine = started(&world, now);
    engine.kernel_mut().foreign(Toy::OtherBase);
    engine.kernel_mut().refused = vec![ToyKey::Base];
    engine.tend(now);
    assert_eq!(engine.tend(now + SECOND / 2).quarantined.len(), 1);
    world.endpoints[0] = vec![9];
    let mut delta = world.delta();
    delta.units.remove(&UnitId::Base);
    engine.offer(delta);
    assert_eq!(engine.sync(now + SECOND / 2).quarantined.len(), 1, "the base waits");
    assert_eq!(slots(&engine, 0), [9]);
    engine.kernel_mut().touched.push(ToyKey::Base);
    engine.tend(now + SECOND / 2);
    engine.tend(now + SECOND);
    assert!(engine.kernel().objects.contains_key(&ToyKey::Base), "touched once more, it stays");
}

#[test]
fn a_unit_whose_time_has_come_but_that_needs_the_base_waits_as_long_as_the_base() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    engine.offer(World::new().delta());
    engine.kernel_mut().refused = vec![ToyKey::Base, ToyKey::Frontend(2)];
    assert_eq!(engine.sync(now).quarantined.len(), 2);
    engine.kernel_mut().refused = vec![ToyKey::Base];
    assert_eq!(engine.sync(now + SECOND).next, Next::RetryAfter(2 * SECOND));
    assert_eq!(engine.tend(now + 2 * SECOND).next, Next::RetryAfter(SECOND), "also after a look in between");
    engine.kernel_mut().refused.clear();
    let outcome = engine.sync(now + 3 * SECOND);
    assert!(outcome.quarantined.is_empty() && outcome.next == Next::Idle, "{outcome:?}");
}

#[test]
fn units_that_are_tried_apart_from_the_base_follow_it() {
    for refused in [vec![ToyKey::Base], vec![ToyKey::Base, ToyKey::Frontend(4)]] {
        let now = Instant::now();
        let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
        engine.offer(World::new().delta());
        engine.kernel_mut().refused = refused;
        assert!(engine.sync(now).acked.is_empty());
        engine.kernel_mut().refused.clear();
        engine.kernel_mut().faults.push_back(Fault::RefuseSilently(vec![ToyKey::Frontend(6)]));
        let outcome = engine.sync(now + SECOND);
        assert_eq!((outcome.acked.len(), outcome.quarantined.len()), (4, 1), "{outcome:?}");
    }
}

/// Nothing is notified here: what a pass has read itself must not be forgotten when it fails.
#[test]
fn damage_that_a_failed_pass_came_upon_is_repaired() {
    let no_fault = || Fault::Refuse(Vec::new());
    // The commit, its reconciliation and the full sync, until one fails.
    let full = vec![no_fault(), Fault::HalfWay { operations: 0, error: Failing::Drifted }, Fault::Busy];
    for (faults, lost) in [(vec![no_fault(), Fault::Busy], 1), (full, 5)] {
        let mut world = World::new();
        let now = Instant::now();
        let mut engine = started(&world, now);
        for vip in [0, lost] {
            engine.kernel_mut().objects.remove(&ToyKey::Frontend(vip));
        }
        engine.kernel_mut().faults.extend(faults);
        let before = world.delta();
        world.endpoints[0] = vec![9];
        engine.offer(world.delta());
        assert!(engine.sync(now).error.is_some());
        assert!(engine.kernel().faults.is_empty());
        // The change is withdrawn.
        engine.offer(before);
        for turn in 1..4 {
            engine.tend(now + turn * SECOND);
        }
        for vip in [0, lost] {
            assert!(engine.kernel().objects.contains_key(&ToyKey::Frontend(vip)), "{vip} of 0 and {lost}");
        }
    }
}

#[test]
fn a_unit_that_is_tried_apart_from_the_base_alone_follows_it() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    let mut delta = World::new().delta();
    delta.units.retain(|id, _| *id == UnitId::Base || id.to_string().ends_with("service-3"));
    engine.offer(delta);
    engine.kernel_mut().refused = vec![ToyKey::Base];
    assert!(engine.sync(now).acked.is_empty());
    engine.kernel_mut().refused.clear();
    engine.kernel_mut().faults.push_back(Fault::RefuseSilently(vec![ToyKey::Frontend(6)]));
    let outcome = engine.sync(now + SECOND);
    assert_eq!(
        (outcome.acked.len(), outcome.quarantined.len()),
        (1, 1),
        "the base is there, the service refused: {outcome:?}"
    );
}

#[test]
fn services_go_on_over_an_earlier_runs_base_that_cannot_be_replaced() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    engine.kernel_mut().objects.insert(ToyKey::Base, Toy::OtherBase);
    engine.kernel_mut().refused = vec![ToyKey::Base];
    engine.offer(World::new().delta());
    let outcome = engine.sync(now);
    assert_eq!((outcome.acked.len(), outcome.quarantined.len()), (4, 1), "{outcome:?}");
}
