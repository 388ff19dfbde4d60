//! Two engines on the same kernel, like two proxies of one node during an update: each receives every change at its own time, and
//! several of them perhaps as one. They end in the same state without contested objects, and here, where a frontend is one
//! object, without a repair. Damage by a third program is repaired meanwhile.

use std::sync::Arc;
use std::time::Instant;

use crate::toy::{Toy, ToyCompile, ToyKey, base, context, service};
use ferry_conformance::memory::half_way;
use ferry_conformance::property::inputs;
use ferry_conformance::twin::{ChangeTiming, Schedule, Twin, at, there, timing};
use ferry_conformance::twins::SUSPENDED;
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, Fault, MemoryKernel, Side};
use ferry_plane::{Delta, SyncEngine, UnitId};
use proptest::prelude::*;

/// Endpoints of one of three services.
type Change = (ChangeTiming, u8, Vec<u8>);

/// What a third one does, or the kernel.
#[derive(Clone, Debug)]
enum Harm {
    Lose(u8),
    Foreign(u8),
    Reorder(u8),
    Flush,
    /// no harm: another context
    Mark(u32),
    Busy,
    HalfWay(usize, Failing),
    Refuse(u8),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec((timing(), 0..3u8, prop::collection::vec(1..7u8, 0..4)), 1..40)
}

fn harms() -> impl Strategy<Value = Vec<(u64, Harm)>> {
    let harm = prop_oneof![
        4 => (0..6u8).prop_map(Harm::Lose),
        3 => (0..8u8).prop_map(Harm::Foreign),
        3 => (0..6u8).prop_map(Harm::Reorder),
        1 => Just(Harm::Flush),
        3 => (1..4u32).prop_map(Harm::Mark),
    ];
    prop::collection::vec((0..3000u64, harm), 0..6)
}

fn faults() -> impl Strategy<Value = Vec<(u64, Harm)>> {
    let half_way = half_way().prop_map(|(operations, error)| Harm::HalfWay(operations, error));
    let fault = prop_oneof![2 => Just(Harm::Busy), 2 => half_way, 1 => (0..6u8).prop_map(Harm::Refuse)];
    prop::collection::vec((0..3000u64, fault), 0..4)
}

fn delta(endpoints: &[Vec<u8>]) -> Delta {
    let mut units = vec![(UnitId::Base, Some(Arc::new(base())))];
    for (index, endpoints) in (0..).zip(endpoints) {
        let (name, unit) = service(index, &[2 * index, 2 * index + 1], endpoints);
        units.push((UnitId::Service(name), unit.map(Arc::new)));
    }
    Delta { context: Some(Arc::new(context(1))), units: units.into_iter().collect() }
}

fn start_state() -> Vec<Vec<u8>> {
    vec![vec![1, 2], vec![3], vec![]]
}

/// What is heard when, and how it ends.
fn schedule(changes: &[Change]) -> (Schedule, Delta) {
    let mut endpoints = start_state();
    let deltas: Vec<(ChangeTiming, Delta)> = changes
        .iter()
        .map(|(timing, service, next)| {
            endpoints[usize::from(*service)].clone_from(next);
            (timing.clone(), delta(&endpoints))
        })
        .collect();
    (Schedule::new(&deltas), delta(&endpoints))
}

fn started(start: Instant) -> [Twin<ToyCompile>; 2] {
    let mut index = 0..;
    Side::pair().map(|side| Twin::new(ToyCompile, side, index.next().unwrap_or_default(), delta(&start_state()), start))
}

fn hurt(memory: &mut MemoryKernel<Toy>, harm: &Harm) {
    match harm {
        Harm::Lose(vip) => memory.lose(&ToyKey::Frontend(*vip)),
        Harm::Foreign(vip) => memory.foreign(Toy::foreign(*vip)),
        Harm::Reorder(vip) => {
            if let Some(Toy::Frontend { vip, mut slots }) = memory.objects.get(&ToyKey::Frontend(*vip)).cloned() {
                slots.reverse();
                memory.foreign(Toy::Frontend { vip, slots });
            }
        }
        Harm::Flush => memory.flush(),
        Harm::Mark(_) => {}
        Harm::Busy => memory.faults.push_back(Fault::Busy),
        Harm::HalfWay(operations, error) => {
            memory.faults.push_back(Fault::HalfWay { operations: *operations, error: *error });
        }
        Harm::Refuse(vip) => memory.faults.push_back(Fault::Refuse(vec![ToyKey::Frontend(*vip)])),
    }
}

/// Without the order of slots.
fn settled(memory: &MemoryKernel<Toy>, wanted: &[Toy]) -> Vec<Toy> {
    there(memory, wanted).into_iter().map(Toy::sorted).collect()
}

/// So many of two engines live through this, and have rested for so long; then all is as one full build makes it.
fn play(count: usize, changes: &[Change], harms: &[(u64, Harm)], rest: u64) -> Result<(), TestCaseError> {
    let start = Instant::now();
    let mut twins = Vec::from(started(start));
    twins.truncate(count);
    let (schedule, last) = schedule(changes);
    let mut current = Arc::new(context(1));
    let end = harms.iter().map(|(clock, _)| *clock).max().unwrap_or(0).max(schedule.end + 80);
    let (mut clock, mut until) = (0, end + rest);
    while clock < until {
        for (_, harm) in harms.iter().filter(|(at, _)| *at == clock) {
            twins[0].engine.kernel().with(|memory| hurt(memory, harm));
            if let Harm::Mark(mark) = harm {
                current = Arc::new(context(*mark));
                let delta = Delta { context: Some(Arc::clone(&current)), ..Delta::default() };
                twins.iter_mut().for_each(|twin| twin.step(clock, at(start, clock), Some(delta.clone())));
            }
        }
        for (twin, heard) in twins.iter_mut().zip(&schedule.heard) {
            let heard = heard.get(&clock).map(|delta| Delta { context: Some(Arc::clone(&current)), ..delta.clone() });
            twin.step(clock, at(start, clock), heard);
        }
        clock += 1;
        if clock == end + rest && twins.iter().any(|twin| twin.contested > 0) {
            until += SUSPENDED;
        }
    }
    let mut alone = Engine::new(ToyCompile, MemoryKernel::default());
    alone.offer(Delta { context: Some(current), ..last });
    prop_assert!(alone.sync(start).error.is_none());
    let wanted = alone.objects();
    let found = twins[0].engine.kernel().with(|memory| settled(memory, &wanted));
    prop_assert_eq!(found, settled(alone.kernel(), &wanted));
    prop_assert!(twins.iter().all(Twin::is_right), "acknowledged is what the kernel holds");
    Ok(())
}

proptest! {
    #![proptest_config(inputs(300))]

    #[test]
    fn twins_agree_and_never_repair_each_other(changes in changes(), lost in prop::option::of(0..6u8)) {
        let start = Instant::now();
        let mut twins = started(start);
        let (schedule, last) = schedule(&changes);
        let rested = schedule.end + 1500;
        for clock in 0..rested {
            for (twin, heard) in twins.iter_mut().zip(&schedule.heard) {
                twin.step(clock, at(start, clock), heard.get(&clock).cloned());
            }
        }
        let counts = |twin: &Twin<ToyCompile>| (twin.repairs, twin.contested, twin.errors);
        prop_assert_eq!(twins.iter().map(counts).collect::<Vec<_>>(), [(0, 0, 0), (0, 0, 0)]);
        let commits = twins[0].engine.kernel().with(|memory| memory.commits);

        // both would mend what a third one damages, and that is no fight either
        if let Some(vip) = lost {
            twins[0].engine.kernel().with(|memory| memory.lose(&ToyKey::Frontend(vip)));
        }
        for clock in rested..rested + 2500 {
            twins.iter_mut().for_each(|twin| twin.step(clock, at(start, clock), None));
        }
        prop_assert_eq!(twins.iter().map(|twin| twin.contested).sum::<usize>(), 0);
        let mut alone = Engine::new(ToyCompile, MemoryKernel::default());
        alone.offer(last);
        prop_assert!(alone.sync(start).error.is_none());
        let wanted = alone.objects();
        twins[0].engine.kernel().with(|memory| {
            prop_assert_eq!(memory.commits - commits, usize::from(lost.is_some()), "they rest");
            prop_assert_eq!(settled(memory, &wanted), settled(alone.kernel(), &wanted));
            Ok(())
        })?;
    }

    #[test]
    fn one_mends_what_is_damaged_in_time(changes in changes(), harms in harms()) {
        play(1, &changes, &harms, 2500)?;
    }

    #[test]
    fn two_mend_what_is_damaged_in_time(changes in changes(), harms in harms()) {
        play(2, &changes, &harms, 2500)?;
    }

    #[test]
    fn one_comes_to_rest_after_faults(changes in changes(), harms in harms(), faults in faults()) {
        play(1, &changes, &[harms, faults].concat(), 6000)?;
    }

    #[test]
    fn two_come_to_rest_after_faults(changes in changes(), harms in harms(), faults in faults()) {
        play(2, &changes, &[harms, faults].concat(), 6000)?;
    }
}
