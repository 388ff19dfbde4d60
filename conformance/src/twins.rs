//! Tests with two engines of a mode on one kernel in memory, which another program damages and whose commits fail: they end in the
//! objects of one full build and rest there. Without damage they treat nothing as contested.

use std::time::Instant;

use ferry_api::object::Family;
use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, Fault, MemoryKernel, Side};
use ferry_plane::{Compile, Delta, Object as _, SyncEngine};
use proptest::prelude::*;

use crate::memory::half_way;
use crate::mode::{KeyOf, Mode, ObjectOf};
use crate::property::inputs;
use crate::twin::{ChangeTiming, Schedule, Twin, at, there, timing};
use crate::world::World;

/// Milliseconds after which the repair of what counts as contested, since it was damaged often, goes on at the latest: the first suspension, from
/// the last repair on, and the pause after its comparison.
pub const SUSPENDED: u64 = 11_000;

/// The endpoints of a service.
#[derive(Clone, Debug)]
pub struct EndpointChange {
    /// when, and when each engine receives it
    pub timing: ChangeTiming,
    /// its index
    pub service: usize,
    /// the last bytes of the endpoints' addresses
    pub cluster: Vec<u8>,
    /// the same for the endpoints on this node
    pub local: Vec<u8>,
}

/// A foreign change by a third program, or a fault of the kernel.
#[derive(Clone, Debug)]
enum Harm {
    /// an object is deleted
    Lose(usize),
    /// objects get other contents ([`Mode::spoiled`])
    Spoil(usize),
    Busy,
    HalfWay(usize, Failing),
}

fn changes() -> impl Strategy<Value = Vec<EndpointChange>> {
    let endpoints = || prop::collection::btree_set(1..7u8, 1..5).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let change = (timing(), prop_oneof![Just(1usize), Just(3), Just(4)], endpoints(), endpoints());
    let change =
        change.prop_map(|(timing, service, cluster, local)| EndpointChange { timing, service, cluster, local });
    prop::collection::vec(change, 1..25)
}

fn harms() -> impl Strategy<Value = Vec<(u64, Harm)>> {
    let harm = prop_oneof![any::<usize>().prop_map(Harm::Lose), any::<usize>().prop_map(Harm::Spoil)];
    prop::collection::vec((0..2500u64, harm), 0..6)
}

fn busy() -> impl Strategy<Value = Vec<(u64, Harm)>> {
    let half_way = half_way().prop_map(|(operations, error)| Harm::HalfWay(operations, error));
    prop::collection::vec((0..2500u64, prop_oneof![Just(Harm::Busy), half_way]), 0..4)
}

fn schedule(world: &mut World, changes: &[EndpointChange]) -> Schedule {
    let deltas: Vec<(ChangeTiming, Delta)> = changes
        .iter()
        .map(|change| {
            world.change(change.service, &change.cluster, &change.local, false);
            (change.timing.clone(), world.delta())
        })
        .collect();
    Schedule::new(&deltas)
}

fn hurt<M: Mode>(memory: &mut MemoryKernel<ObjectOf<M>>, harm: &Harm) {
    match harm {
        Harm::Lose(index) => {
            let leaves: Vec<KeyOf<M>> = memory.objects.keys().filter(|key| M::is_leaf(key)).cloned().collect();
            memory.lose(&leaves[index % leaves.len()]);
        }
        Harm::Spoil(index) => {
            let objects: Vec<ObjectOf<M>> = memory.objects.values().cloned().collect();
            let differs = |object: &ObjectOf<M>| memory.objects.get(&object.key()) != Some(object);
            // Objects that earlier damage has made equal are no damage to each other.
            let mut choices = (0..objects.len()).map(|more| M::spoiled(&objects, index.wrapping_add(more)));
            let spoiled = choices.find(|spoiled| spoiled.iter().any(differs));
            let Some(spoiled) = spoiled else { panic!("this mode's tests damage nothing") };
            spoiled.into_iter().for_each(|object| memory.foreign(object));
        }
        Harm::Busy => memory.faults.push_back(Fault::Busy),
        Harm::HalfWay(operations, error) => {
            memory.faults.push_back(Fault::HalfWay { operations: *operations, error: *error });
        }
    }
}

/// The desired objects that exist, as far as two histories with the same end have the same.
fn settled<M: Mode>(memory: &MemoryKernel<ObjectOf<M>>, wanted: &[ObjectOf<M>]) -> Vec<ObjectOf<M>> {
    M::comparable(there(memory, wanted))
}

/// Runs engines through these events and a time of rest; then the state is that of one full build.
fn play<M: Mode>(
    count: usize,
    changes: &[EndpointChange],
    harms: &[(u64, Harm)],
    rest: u64,
) -> Result<Vec<Twin<M::Compiler>>, TestCaseError> {
    let start = Instant::now();
    let compiler = || M::compiler(Family::V4, false);
    let mut world = World::new(Family::V4, <M::Compiler as Compile>::PROFILE);
    let mut index = 0..;
    let mut twins =
        Vec::from(Side::pair().map(|side| {
            Twin::new(compiler(), side.with_news(), index.next().unwrap_or_default(), world.delta(), start)
        }));
    twins.truncate(count);
    let schedule = schedule(&mut world, changes);
    let end = harms.iter().map(|(clock, _)| *clock).max().unwrap_or(0).max(schedule.end + 80);
    let mut until = end + rest;
    let mut clock = 0;
    while clock < until {
        for (_, harm) in harms.iter().filter(|(at, _)| *at == clock) {
            twins[0].engine.kernel().with(|memory| hurt::<M>(memory, harm));
        }
        for (twin, heard) in twins.iter_mut().zip(&schedule.heard) {
            twin.step(clock, at(start, clock), heard.get(&clock).cloned());
        }
        clock += 1;
        if clock == end + rest && twins.iter().any(|twin| twin.contested > 0) {
            until += SUSPENDED;
        }
    }
    let mut alone = Engine::new(compiler(), MemoryKernel::default());
    alone.offer(world.delta());
    prop_assert!(alone.sync(start).error.is_none());
    let wanted = alone.objects();
    let found = twins[0].engine.kernel().with(|memory| settled::<M>(memory, &wanted));
    prop_assert_eq!(found, settled::<M>(alone.kernel(), &wanted));
    prop_assert!(twins.iter().all(Twin::is_right), "acknowledged is what the kernel holds");
    Ok(twins)
}

/// The number of objects that two engines repair after these changes, each of what the other has just written.
///
/// # Panics
/// If they don't end in the same state.
pub fn repairs_of_two<M: Mode>(changes: &[EndpointChange]) -> usize {
    let twins = play::<M>(2, changes, &[], 2500).unwrap();
    twins.iter().map(|twin| twin.repairs).sum()
}

/// Two engines that hear of changes at different times agree and rest, in this number of histories. They repair at most so many
/// objects of each other for a number of changes.
pub fn two_agree_and_rest<M: Mode>(number: u32, most: impl Fn(usize) -> usize) {
    proptest!(inputs(number), |(changes in changes())| {
        let mut twins = play::<M>(2, &changes, &[], 2500)?;
        prop_assert_eq!(twins.iter().map(|twin| twin.contested + twin.errors).sum::<usize>(), 0);
        let repairs: usize = twins.iter().map(|twin| twin.repairs).sum();
        prop_assert!(repairs <= most(changes.len()), "{} repairs", repairs);
        let commits = |twins: &[Twin<M::Compiler>]| twins[0].engine.kernel().with(|memory| memory.commits);
        let before = commits(&twins);
        let start = Instant::now();
        for clock in 0..1000 {
            twins.iter_mut().for_each(|twin| twin.step(1_000_000 + clock, at(start, 1_000_000 + clock), None));
        }
        prop_assert_eq!(commits(&twins), before, "they rest");
    });
}

/// One engine, and two on one kernel, mend what another program damages, in this number of histories.
pub fn damage_is_mended_in_time<M: Mode>(number: u32) {
    proptest!(inputs(number), |(changes in changes(), harms in harms())| {
        for count in [1, 2] {
            play::<M>(count, &changes, &harms, 2500)?;
        }
    });
}

/// One engine comes to rest after damage and commits that fail, also half-way, in this number of histories.
pub fn one_comes_to_rest_after_faults<M: Mode>(number: u32) {
    proptest!(inputs(number), |(changes in changes(), harms in harms(), busy in busy())| {
        play::<M>(1, &changes, &[harms, busy].concat(), 6000)?;
    });
}
