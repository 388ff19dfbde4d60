//! Commits that fail half-way: objects from before stay, other units are still committed, and the remains are not taken for
//! foreign changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::toy::{Toy, ToyCompile, ToyKey, base, context, served, service};
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, Fault, MemoryKernel};
use ferry_plane::{Delta, SyncEngine, Unit, UnitId};

type ToyEngine = Engine<ToyCompile, MemoryKernel<Toy>>;

/// Services: a number, the last octets of the VIPs and those of the endpoints.
type Services<'a> = &'a [(u8, &'a [u8], &'a [u8])];

const MS: Duration = Duration::from_millis(1);

fn units(services: Services<'_>) -> impl Iterator<Item = (UnitId, Option<Arc<Unit>>)> {
    services.iter().map(|(index, vips, endpoints)| {
        let (name, unit) = service(*index, vips, endpoints);
        (UnitId::Service(name), unit.map(Arc::new))
    })
}

fn offer(engine: &mut ToyEngine, services: Services<'_>) {
    engine.offer(Delta { context: None, units: units(services).collect() });
}

/// An engine that has committed these.
fn started(services: Services<'_>, now: Instant) -> ToyEngine {
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    let base = (UnitId::Base, Some(Arc::new(base())));
    engine.offer(Delta { context: Some(Arc::new(context(1))), units: units(services).chain([base]).collect() });
    assert!(engine.sync(now).error.is_none());
    engine
}

/// A new engine over what an earlier one committed, and the base offered.
fn restarted(services: Services<'_>, now: Instant) -> ToyEngine {
    let objects = std::mem::take(&mut started(services, now).kernel_mut().objects);
    let mut engine = Engine::new(ToyCompile, MemoryKernel { objects, ..MemoryKernel::default() });
    let base = (UnitId::Base, Some(Arc::new(base())));
    engine.offer(Delta { context: Some(Arc::new(context(1))), units: [base].into() });
    engine
}

fn fails(engine: &mut ToyEngine, operations: usize, error: Failing) {
    engine.kernel_mut().faults.push_back(Fault::HalfWay { operations, error });
}

fn is_there(engine: &ToyEngine, vip: u8) -> bool {
    engine.kernel().objects.contains_key(&ToyKey::Frontend(vip))
}

fn assert_in_order(engine: &ToyEngine) {
    assert_eq!(engine.kernel().violations, Vec::<String>::new());
}

#[test]
fn what_an_earlier_run_left_of_a_refused_unit_stays() {
    let now = Instant::now();
    let mut engine = restarted(&[(1, &[1], &[7])], now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(1)];
    offer(&mut engine, &[(1, &[1], &[7, 8])]);
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    engine.kernel_mut().refused.clear();
    fails(&mut engine, 1, Failing::RefusedSilently);
    fails(&mut engine, 1, Failing::RefusedSilently);
    for second in 1..3 {
        assert_eq!(engine.sync(now + second * 1000 * MS).unserved, []);
        assert!(is_there(&engine, 1), "it serves on");
    }
    assert_in_order(&engine);
}

#[test]
fn what_was_made_stays_while_what_was_there_refers_to_it() {
    for error in [Failing::Refused, Failing::RefusedSilently] {
        for operations in 0..6 {
            let now = Instant::now();
            let mut engine = restarted(&[(1, &[1, 2], &[7])], now);
            offer(&mut engine, &[(1, &[1, 2], &[7, 8])]);
            fails(&mut engine, operations, error);
            engine.sync(now);
            assert!(is_there(&engine, 1) && is_there(&engine, 2));
            assert_in_order(&engine);
        }
    }
}

#[test]
fn a_leftover_that_cannot_be_deleted_holds_up_nobody() {
    let now = Instant::now();
    let mut engine = started(&[(1, &[1], &[1]), (2, &[2], &[1])], now);
    // The host is made, and stays in use; the frontend is refused.
    offer(&mut engine, &[(1, &[1], &[9])]);
    engine.kernel_mut().in_use = vec![ToyKey::Host(9)];
    fails(&mut engine, 1, Failing::Refused);
    engine.sync(now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(1)];
    engine.tend(now + 250 * MS);
    offer(&mut engine, &[(2, &[2], &[5]), (3, &[3], &[1])]);
    let turn = (2..20).find(|turn| {
        engine.tend(now + *turn * 250 * MS);
        is_there(&engine, 3)
    });
    assert!(turn.is_some());
}

#[test]
fn a_way_back_that_is_refused_costs_its_own_unit_only() {
    let now = Instant::now();
    let mut engine = started(&[(1, &[1], &[1]), (2, &[2], &[1])], now);
    offer(&mut engine, &[(1, &[1], &[2])]);
    fails(&mut engine, 2, Failing::RefusedSilently);
    engine.kernel_mut().faults.push_back(Fault::Busy);
    let outcome = engine.sync(now);
    assert!(outcome.error.is_some() && outcome.quarantined.len() == 1, "{outcome:?}");
    engine.kernel_mut().refused = vec![ToyKey::Frontend(1)];
    offer(&mut engine, &[(2, &[2], &[3]), (3, &[3], &[3]), (4, &[4], &[3]), (5, &[5], &[3])]);
    let outcome = engine.sync(now + 50 * MS);
    assert!(outcome.quarantined.len() <= 1, "{outcome:?}");
    assert!((3..6).all(|vip| is_there(&engine, vip)));
}

#[test]
fn a_way_back_that_is_refused_without_a_name_costs_its_own_unit_only() {
    let now = Instant::now();
    let vips: Vec<[u8; 1]> = (1..31).map(|vip| [vip]).collect();
    let all = |endpoints: &'static [u8]| -> Vec<(u8, &[u8], &[u8])> {
        vips.iter().map(|vip| (vip[0], &vip[..], endpoints)).collect()
    };
    let mut engine = started(&all(&[1]), now);
    offer(&mut engine, &all(&[2]));
    fails(&mut engine, 2, Failing::RefusedSilently);
    engine.kernel_mut().faults.push_back(Fault::RefuseSilently(vec![ToyKey::Frontend(1)]));
    let outcome = engine.sync(now);
    assert!(outcome.quarantined.len() <= 1, "{outcome:?}");
}

#[test]
fn own_changes_are_no_repair() {
    let now = Instant::now();
    let mut engine = started(&[(1, &[1, 2], &[1])], now);
    engine.kernel_mut().lose(&ToyKey::Frontend(2));
    engine.tend(now + 10 * MS);
    offer(&mut engine, &[(1, &[1, 2], &[1, 3])]);
    fails(&mut engine, 4, Failing::Busy);
    let outcome = engine.tend(now + 400 * MS);
    assert!(outcome.repairs <= 1, "{outcome:?}");
}

#[test]
fn a_kernel_without_memory_that_fails_half_way_is_not_asked_for_each_unit() {
    let now = Instant::now();
    let vips: Vec<[u8; 1]> = (20..220).map(|vip| [vip]).collect();
    let all: Vec<(u8, &[u8], &[u8])> = vips.iter().map(|vip| (vip[0], &vip[..], &[1_u8][..])).collect();
    let mut engine = started(&[], now);
    offer(&mut engine, &all);
    (0..3000).for_each(|_| fails(&mut engine, 0, Failing::Resources));
    assert!(engine.sync(now).error.is_some());
    let before = engine.kernel().attempts;
    assert!(engine.sync(now + 50 * MS).error.is_some());
    let attempts = engine.kernel().attempts - before;
    assert!(attempts < 60, "{attempts}");
}

#[test]
fn repairs_in_parts_keep_the_order() {
    for _ in 0..20 {
        let now = Instant::now();
        let mut engine = restarted(&[(1, &[1], &[1]), (2, &[2], &[7, 8]), (3, &[3], &[9])], now);
        engine.kernel_mut().in_use = vec![ToyKey::Frontend(3)];
        offer(&mut engine, &[(1, &[1], &[1])]);
        assert!(engine.sync(now).error.is_some());
        (1..20).for_each(|turn| drop(engine.tend(now + turn * 100 * MS)));
        assert_in_order(&engine);
    }
}

#[test]
fn a_frontend_that_was_made_and_is_taken_back_is_reported_as_unserved() {
    let now = Instant::now();
    let mut engine = started(&[(1, &[1], &[1])], now);
    offer(&mut engine, &[(2, &[2, 3], &[1])]);
    fails(&mut engine, 1, Failing::Refused);
    let outcome = engine.sync(now);
    assert_eq!(outcome.unserved, [served(2)], "connections may have used it");
}

#[test]
fn without_a_base_everything_waits() {
    for (fault, refused) in [(Failing::Refused, 0), (Failing::RefusedSilently, 1), (Failing::RefusedSilently, 0)] {
        let now = Instant::now();
        let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
        let base = (UnitId::Base, Some(Arc::new(base())));
        let services: Services<'_> = &[(1, &[1], &[1]), (2, &[2], &[1]), (3, &[3], &[1, 2])];
        engine.offer(Delta { context: Some(Arc::new(context(1))), units: units(services).chain([base]).collect() });
        engine.kernel_mut().refused = vec![ToyKey::Base; refused];
        (0..8).for_each(|_| fails(&mut engine, 0, fault));
        let outcome = engine.sync(now);
        assert_eq!(outcome.quarantined.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), [UnitId::Base]);
        assert!(engine.acked().is_empty());
        engine.kernel_mut().faults.clear();
        engine.kernel_mut().refused.clear();
        assert_eq!(engine.sync(now + 1000 * MS).acked.len(), 4);
        assert_in_order(&engine);
    }
}

#[test]
fn what_only_found_objects_refer_to_stays_with_them() {
    for silently in [false, true] {
        let now = Instant::now();
        let mut engine = restarted(&[(1, &[1], &[7]), (2, &[2], &[5]), (3, &[3], &[6])], now);
        let holds = |engine: &ToyEngine, host| engine.kernel().objects.contains_key(&ToyKey::Host(host));
        offer(&mut engine, &[(1, &[1], &[8]), (3, &[3], &[6, 4])]);
        if silently {
            engine.kernel_mut().faults.push_back(Fault::RefuseSilently(vec![ToyKey::Frontend(1)]));
        } else {
            engine.kernel_mut().refused = vec![ToyKey::Frontend(1)];
        }
        assert_eq!(engine.sync(now).quarantined.len(), 1);
        assert!(is_there(&engine, 1) && holds(&engine, 7), "it serves on");
        assert!(!is_there(&engine, 2), "nobody wants this");
        assert_in_order(&engine);
        // Others go on.
        offer(&mut engine, &[(3, &[3], &[4])]);
        assert_eq!(engine.sync(now + 10 * MS).acked.len(), 1);
        assert_in_order(&engine);
        engine.kernel_mut().refused.clear();
        engine.kernel_mut().faults.clear();
        assert_eq!(engine.sync(now + 1000 * MS).acked.len(), 1);
        assert!(is_there(&engine, 1) && holds(&engine, 8));
        assert!([5, 6, 7].iter().all(|host| !holds(&engine, *host)), "what was kept for it goes with it");
        assert_in_order(&engine);
    }
}

#[test]
fn a_foreign_change_of_what_a_refused_unit_still_has_deletes_nothing() {
    let now = Instant::now();
    let mut engine = restarted(&[(1, &[1], &[7])], now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(1)];
    offer(&mut engine, &[(1, &[1], &[7, 8])]);
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    for (turn, key) in (0..).zip([ToyKey::Frontend(1), ToyKey::Host(7)]) {
        engine.kernel_mut().touched.push(key);
        engine.tend(now + turn * 300 * MS);
        engine.tend(now + (turn + 1) * 300 * MS);
        assert!(is_there(&engine, 1), "{key:?}: it serves on");
        assert!(engine.kernel().objects.contains_key(&ToyKey::Host(7)), "{key:?}");
    }
    assert_in_order(&engine);
}

#[test]
fn another_units_change_takes_a_refused_unit_back_to_its_last_good_state() {
    let now = Instant::now();
    let mut engine = started(&[(1, &[1], &[1]), (2, &[2], &[1])], now);
    offer(&mut engine, &[(1, &[1], &[2]), (2, &[2], &[3])]);
    // Both hosts are made, the first frontend is refused.
    fails(&mut engine, 2, Failing::Refused);
    let outcome = engine.sync(now);
    assert_eq!((outcome.error.is_none(), outcome.quarantined.len()), (true, 1), "{outcome:?}");
    let objects = &engine.kernel().objects;
    let slots = [1, 2].map(|vip| objects.get(&ToyKey::Frontend(vip)).map(|frontend| frontend.slots().to_vec()));
    assert_eq!(slots, [Some(vec![1]), Some(vec![3])]);
    assert!(!objects.contains_key(&ToyKey::Host(2)));
    assert_in_order(&engine);
}

#[test]
fn damage_beside_objects_of_unknown_state_is_repaired_after_them() {
    let start = Instant::now();
    let at = |millis| start + millis * MS;
    let mut engine = started(&[(1, &[1, 2, 3, 4], &[1]), (2, &[5], &[1])], start);
    // One of two frontends is deleted, and the way back fails for a while.
    offer(&mut engine, &[(1, &[1, 2], &[1])]);
    fails(&mut engine, 1, Failing::Refused);
    engine.kernel_mut().faults.extend((0..3).map(|_| Fault::Busy));
    assert!(engine.sync(at(0)).error.is_some());
    [1, 5].iter().for_each(|vip| engine.kernel_mut().lose(&ToyKey::Frontend(*vip)));
    assert!(engine.tend(at(10)).error.is_some());
    let outcome = engine.tend(at(250));
    assert!(outcome.error.is_some());
    assert_eq!(outcome.repaired, ["Frontend(5)"], "of another unit");
    let outcome = engine.tend(at(500));
    assert!(outcome.error.is_none(), "{outcome:?}");
    assert_eq!(outcome.repaired, ["Frontend(1)"]);
    assert!((1..6).all(|vip| is_there(&engine, vip)));
    assert_in_order(&engine);
}

#[test]
fn a_way_back_without_resources_leads_to_a_full_comparison_the_second_time() {
    let now = Instant::now();
    let mut engine = started(&[(1, &[1], &[1]), (2, &[2], &[1])], now);
    offer(&mut engine, &[(1, &[1], &[9])]);
    engine.kernel_mut().in_use = vec![ToyKey::Host(9)];
    fails(&mut engine, 1, Failing::Refused);
    let outcome = engine.sync(now);
    assert_eq!((outcome.error.is_some(), outcome.full), (true, false), "it may be free in a moment: {outcome:?}");
    let outcome = engine.sync(now + 50 * MS);
    assert_eq!((outcome.error.is_some(), outcome.full), (false, true), "what is in use is left: {outcome:?}");
}

#[test]
fn what_was_made_of_a_refused_change_goes_again_also_without_a_base() {
    let now = Instant::now();
    let mut engine = Engine::new(ToyCompile, MemoryKernel::default());
    engine.offer(Delta { context: Some(Arc::new(context(1))), units: units(&[(1, &[1], &[1])]).collect() });
    assert!(engine.sync(now).error.is_none());
    offer(&mut engine, &[(1, &[1], &[2])]);
    fails(&mut engine, 1, Failing::Refused);
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    assert!(!engine.kernel().objects.contains_key(&ToyKey::Host(2)));
}

#[test]
fn what_was_made_beside_an_earlier_runs_objects_of_the_unit_stays_with_them() {
    let now = Instant::now();
    let mut engine = restarted(&[(1, &[1], &[7])], now);
    offer(&mut engine, &[(1, &[1, 2], &[7, 8])]);
    // A pick chain, a host and the second frontend are made, the replacement of the first one is refused.
    fails(&mut engine, 3, Failing::Refused);
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    assert!(is_there(&engine, 1) && is_there(&engine, 2));
    assert!(engine.kernel().objects.contains_key(&ToyKey::Host(8)));
    assert_in_order(&engine);
}

#[test]
fn what_nobody_wants_goes_at_once_if_a_refused_unit_has_nothing_of_an_earlier_run() {
    let now = Instant::now();
    let mut engine = restarted(&[(2, &[2], &[5])], now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(1)];
    offer(&mut engine, &[(1, &[1], &[7])]);
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    assert!(!is_there(&engine, 2) && !engine.kernel().objects.contains_key(&ToyKey::Host(5)));
}

#[test]
fn what_was_kept_for_a_refused_unit_goes_in_the_pass_that_repairs_it() {
    let now = Instant::now();
    let mut engine = restarted(&[(1, &[1], &[7]), (2, &[2], &[5])], now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(1)];
    offer(&mut engine, &[(1, &[1], &[8])]);
    assert_eq!(engine.sync(now).quarantined.len(), 1);
    let hosts = |engine: &ToyEngine| [5, 7, 8].map(|host| engine.kernel().objects.contains_key(&ToyKey::Host(host)));
    assert_eq!(hosts(&engine), [true, true, false]);
    engine.kernel_mut().refused.clear();
    assert!(engine.repair(now + 1000 * MS).error.is_none());
    assert_eq!(hosts(&engine), [false, false, true]);
    assert_in_order(&engine);
}

#[test]
fn a_foreign_object_of_a_refused_change_stays_if_the_unit_has_nothing_else_in_force() {
    for (before, after, stays) in [(&[][..], &[9][..], true), (&[1], &[1, 9], false)] {
        let now = Instant::now();
        let mut engine = started(&[(1, before, &[1])], now);
        engine.kernel_mut().refused = vec![ToyKey::Frontend(9)];
        offer(&mut engine, &[(1, after, &[1])]);
        assert_eq!(engine.sync(now).quarantined.len(), 1);
        engine.kernel_mut().foreign(Toy::foreign(9));
        engine.tend(now);
        let outcome = engine.tend(now + 200 * MS);
        assert_eq!((is_there(&engine, 9), outcome.repairs), (stays, usize::from(!stays)), "{after:?} after {before:?}");
    }
}

#[test]
fn what_a_unit_gives_up_goes_also_if_the_next_one_that_wants_it_is_refused() {
    let now = Instant::now();
    let mut engine = started(&[(1, &[1, 2], &[7])], now);
    engine.kernel_mut().refused = vec![ToyKey::Frontend(3)];
    offer(&mut engine, &[(1, &[1], &[7]), (2, &[2, 3], &[8])]);
    let outcome = engine.repair(now);
    assert_eq!((outcome.acked.len(), outcome.quarantined.len()), (1, 1), "{outcome:?}");
    assert_eq!([1, 2, 3].map(|vip| is_there(&engine, vip)), [true, false, false]);
    assert_in_order(&engine);
}

/// A frontend is made, then its unit can neither be completed nor taken back.
#[test]
fn what_a_unit_without_good_state_may_refer_to_stays_until_it_has_one() {
    let now = Instant::now();
    let mut engine = started(&[(1, &[1], &[1]), (2, &[2], &[1])], now);
    // Host 2 and frontend 3 are made, and frontend 1 is deleted.
    offer(&mut engine, &[(1, &[3], &[2])]);
    fails(&mut engine, 3, Failing::Busy);
    assert!(engine.sync(now).error.is_some());
    // Frontend 1 is wanted again, and refused.
    engine.kernel_mut().refused = vec![ToyKey::Frontend(1)];
    offer(&mut engine, &[(1, &[1, 3], &[2])]);
    assert_eq!(engine.sync(now + 50 * MS).quarantined.len(), 1);
    assert_eq!([1, 3].map(|vip| is_there(&engine, vip)), [false, true]);
    for endpoints in [&[2, 5][..], &[1]] {
        offer(&mut engine, &[(2, &[2], endpoints)]);
        let outcome = engine.sync(now + 60 * MS);
        assert_eq!((outcome.error.is_none(), outcome.acked.len()), (true, 1), "{outcome:?}");
    }
    let hosts = |engine: &ToyEngine| [2, 5].map(|host| engine.kernel().objects.contains_key(&ToyKey::Host(host)));
    assert_eq!(hosts(&engine), [true, true], "the one is needed, the other might be");
    engine.kernel_mut().refused.clear();
    assert!(engine.sync(now + 5000 * MS).error.is_none());
    assert_eq!(hosts(&engine), [true, false]);
    assert!((1..4).all(|vip| is_there(&engine, vip)));
    assert_in_order(&engine);
}
