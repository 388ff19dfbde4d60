//! Runs an engine on the kernel in memory until it has no work left.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ferry_plane::engine::Engine;
use ferry_plane::memory::{Failing, MemoryKernel, Refers};
use ferry_plane::{Compile, Next, Object, Outcome, SyncEngine};
use proptest::prelude::*;

use crate::mode::{KeyOf, Mode, ObjectOf};

/// An engine of this mode on the kernel in memory.
pub type MemoryEngine<M> = Engine<<M as Mode>::Compiler, MemoryKernel<ObjectOf<M>>>;

/// Strategy for commits that fail half-way: after a number of operations, with an error.
pub fn half_way() -> impl Strategy<Value = (usize, Failing)> {
    (prop_oneof![3 => 0..8usize, 1 => 0..200usize], prop::sample::select(&Failing::ALL[..]))
}

/// Checks that a pass had no error.
pub fn good(outcome: Outcome) -> Outcome {
    assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{outcome:?}");
    outcome
}

/// Removes injected faults and runs the engine until it has no work left; returns the time then.
pub fn settle<C>(engine: &mut Engine<C, MemoryKernel<C::Object>>, now: Instant) -> Instant
where
    C: Compile<Object: Refers<Key: Send> + Send> + Send,
{
    engine.kernel_mut().faults.clear();
    rest(engine, now)
}

/// Runs the engine until it has no work left; returns the time then.
pub fn rest(engine: &mut impl SyncEngine, mut now: Instant) -> Instant {
    for _ in 0..60 {
        now += Duration::from_secs(400);
        let outcome = engine.tend(now);
        if outcome.error.is_none() && outcome.next == Next::Idle && !outcome.worked {
            return now;
        }
    }
    panic!("does not settle");
}

/// The kernel's objects without unused spare ones, for comparison with another engine's.
pub fn settled<M: Mode>(engine: &MemoryEngine<M>) -> Vec<ObjectOf<M>> {
    let mut wanted = engine.objects();
    let count = wanted.len();
    wanted.dedup();
    assert!(<ObjectOf<M> as Object>::SHARES || wanted.len() == count, "each object is one unit's");
    let keys: BTreeSet<KeyOf<M>> = wanted.iter().map(Object::key).collect();
    let there = engine.kernel().objects.values();
    let there: Vec<_> = there.filter(|object| keys.contains(&object.key()) || !object.spare()).cloned().collect();
    assert_eq!(there, wanted, "the kernel holds what is acknowledged");
    M::comparable(there)
}
