//! Two engines of this mode on one kernel in memory. In this mode a frontend is many objects, and an engine that gets two changes
//! as one may put an endpoint into another slot than one that gets both: now and then one repairs a little of what the other has
//! just written, but they end in the same state, rest there and treat nothing as contested.

#![expect(clippy::indexing_slicing, reason = "a test fails by panic")]

use std::time::Instant;

use crate::mode::ThisMode;
use ferry_api::object::Family;
use ferry_conformance::memory::half_way;
use ferry_conformance::states::pool;
use ferry_conformance::twin::{Schedule, Timing, Twin, at, there, timing};
use ferry_conformance::{Mode, World};
use ferry_model::Profile;
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, Fault, MemoryKernel, Side};
use ferry_plane::{Delta, SyncEngine};
use ferry_plane_nftables::object::{ElementKey, Value};
use ferry_plane_nftables::{NftKey, NftObject, Nftables};
use proptest::prelude::*;

/// The endpoints of a service.
#[derive(Clone, Debug)]
struct Change {
    timing: Timing,
    service: usize,
    cluster: Vec<u8>,
    local: Vec<u8>,
}

/// A foreign change by a third program, or a fault of the kernel.
#[derive(Clone, Debug)]
enum Harm {
    Lose(usize),
    /// the endpoints of two neighbouring slots are exchanged
    Swap(usize),
    /// a slot holds an endpoint of no service
    Dead(usize),
    Busy,
    HalfWay(usize, Failing),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let endpoints = || prop::collection::btree_set(1..7u8, 1..5).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let change = (timing(), prop_oneof![Just(1usize), Just(3), Just(4)], endpoints(), endpoints());
    let change = change.prop_map(|(timing, service, cluster, local)| Change { timing, service, cluster, local });
    prop::collection::vec(change, 1..25)
}

fn harms() -> impl Strategy<Value = Vec<(u64, Harm)>> {
    let harm = prop_oneof![
        2 => any::<usize>().prop_map(Harm::Lose),
        1 => any::<usize>().prop_map(Harm::Swap),
        1 => any::<usize>().prop_map(Harm::Dead),
    ];
    prop::collection::vec((0..2500u64, harm), 0..6)
}

fn busy() -> impl Strategy<Value = Vec<(u64, Harm)>> {
    let half_way = half_way().prop_map(|(operations, error)| Harm::HalfWay(operations, error));
    prop::collection::vec((0..2500u64, prop_oneof![Just(Harm::Busy), half_way]), 0..4)
}

fn schedule(world: &mut World, changes: &[Change]) -> Schedule {
    let deltas: Vec<(Timing, Delta)> = changes
        .iter()
        .map(|change| {
            world.change(change.service, &change.cluster, &change.local, false);
            (change.timing.clone(), world.delta())
        })
        .collect();
    Schedule::new(&deltas)
}

fn hurt(memory: &mut MemoryKernel<NftObject>, harm: &Harm) {
    let elements = memory.objects.values().filter_map(|object| match object {
        NftObject::Element(key, value) => Some((*key, *value)),
        _ => None,
    });
    let all: Vec<(ElementKey, Value)> = elements.collect();
    let is_slot = |key: &ElementKey| matches!(key, ElementKey::Slot { .. } | ElementKey::NodePortSlot { .. });
    let slots: Vec<(ElementKey, Value)> = all.iter().filter(|(key, _)| is_slot(key)).copied().collect();
    match harm {
        Harm::Lose(index) => memory.lose(&NftKey::Element(all[index % all.len()].0)),
        Harm::Swap(index) => {
            let (one, other) = (slots[index % slots.len()], slots[(index % slots.len() + 1) % slots.len()]);
            memory.foreign(NftObject::Element(one.0, other.1));
            memory.foreign(NftObject::Element(other.0, one.1));
        }
        Harm::Dead(index) => {
            let dead = pool(Family::V4, &[99]).0[0];
            memory.foreign(NftObject::Element(slots[index % slots.len()].0, Value::Endpoint(dead)));
        }
        Harm::Busy => memory.faults.push_back(Fault::Busy),
        Harm::HalfWay(operations, error) => {
            memory.faults.push_back(Fault::HalfWay { operations: *operations, error: *error });
        }
    }
}

/// The desired objects that exist; the endpoints of each frontend's slots in any order.
fn settled(memory: &MemoryKernel<NftObject>, wanted: &[NftObject]) -> Vec<NftObject> {
    ThisMode::comparable(there(memory, wanted))
}

/// Runs pairs of engines through these events and a time of rest; then the state is that of one full build.
fn play(
    count: usize,
    changes: &[Change],
    harms: &[(u64, Harm)],
    rest: u64,
) -> Result<Vec<Twin<Nftables>>, TestCaseError> {
    let start = Instant::now();
    let mut world = World::new(Family::V4, Profile::NFTABLES);
    let mut index = 0..;
    let mut twins = Vec::from(Side::pair().map(|side| {
        Twin::new(Nftables::new(Family::V4), side.with_news(), index.next().unwrap_or_default(), world.delta(), start)
    }));
    twins.truncate(count);
    let schedule = schedule(&mut world, changes);
    let end = harms.iter().map(|(clock, _)| *clock).max().unwrap_or(0).max(schedule.end + 80);
    for clock in 0..end + rest {
        for (_, harm) in harms.iter().filter(|(at, _)| *at == clock) {
            twins[0].engine.kernel().with(|memory| hurt(memory, harm));
        }
        for (twin, heard) in twins.iter_mut().zip(&schedule.heard) {
            twin.step(clock, at(start, clock), heard.get(&clock).cloned());
        }
    }
    if !harms.is_empty() && twins.iter().any(|twin| twin.contested > 0) {
        return Ok(twins); // what was damaged often is left alone for a while
    }
    let mut alone = Engine::new(Nftables::new(Family::V4), MemoryKernel::default());
    alone.offer(world.delta());
    prop_assert!(alone.sync(start).error.is_none());
    let wanted = alone.objects();
    let found = twins[0].engine.kernel().with(|memory| settled(memory, &wanted));
    prop_assert_eq!(found, settled(alone.kernel(), &wanted));
    prop_assert!(twins.iter().all(Twin::is_right), "acknowledged is what the kernel holds");
    Ok(twins)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn twins_agree_and_rest(changes in changes()) {
        let mut twins = play(2, &changes, &[], 2500)?;
        prop_assert_eq!(twins.iter().map(|twin| twin.contested + twin.errors).sum::<usize>(), 0);
        let repairs: usize = twins.iter().map(|twin| twin.repairs).sum();
        prop_assert!(repairs <= changes.len(), "{} repairs", repairs);
        let commits = |twins: &[Twin<Nftables>]| twins[0].engine.kernel().with(|memory| memory.commits);
        let before = commits(&twins);
        let start = Instant::now();
        for clock in 0..1000 {
            twins.iter_mut().for_each(|twin| twin.step(1_000_000 + clock, at(start, 1_000_000 + clock), None));
        }
        prop_assert_eq!(commits(&twins), before, "they rest");
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
    fn one_comes_to_rest_after_faults(changes in changes(), harms in harms(), busy in busy()) {
        play(1, &changes, &[harms, busy].concat(), 6000)?;
    }
}

/// The second engine's first write of the pool meets the first engine's, a millisecond old: it adopts that order of slots.
#[test]
fn a_change_that_another_engine_has_just_made_is_no_reason_for_repairs() {
    let timing = |lag, skipped| Timing { after: 0, lag, skipped };
    let changes = [
        Change { timing: timing([0, 0], true), service: 1, cluster: vec![1], local: vec![1] },
        Change { timing: timing([1, 1], false), service: 1, cluster: vec![1, 3, 4], local: vec![1] },
    ];
    let twins = play(2, &changes, &[], 2500).unwrap();
    assert_eq!(twins.iter().map(|twin| twin.repairs).sum::<usize>(), 0);
}
