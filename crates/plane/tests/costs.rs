//! The cost of a repair: it compiles the units that may own the damaged object, and few others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::toy::world::World;
use crate::toy::{Toy, ToyCompile, ToyHint, ToyKey, base, context, service};
use ferry_conformance::costs::compiled_to_repair;
use ferry_model::{Context, Profile};
use ferry_plane::engine::Engine;
use ferry_plane::memory::MemoryKernel;
use ferry_plane::{Compile, Delta, SyncEngine, Unit, UnitId};

/// Counts the changes that are compiled as such, where a mode may leave out what is equal on both sides.
#[derive(Debug, Default)]
struct CountsChanges(Arc<AtomicUsize>);

impl Compile for CountsChanges {
    type Object = Toy;
    type Hint = ToyHint;
    const PROFILE: Profile = ToyCompile::PROFILE;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Toy>) {
        ToyCompile.compile(context, unit, out);
    }

    fn compile_change(&self, context: &Context, units: (&Unit, &Unit), before: &mut Vec<Toy>, after: &mut Vec<Toy>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        ToyCompile.compile_change(context, units, before, after);
    }
}

#[test]
fn a_repair_of_one_key_compiles_few_units() {
    let units = (0..100).map(|index| {
        let (name, unit) = service(index, &[2 * index, 2 * index + 1], &[index, 200]);
        (UnitId::Service(name), unit.map(Arc::new))
    });
    let units = units.chain([(UnitId::Base, Some(Arc::new(base())))]).collect();
    let delta = Delta { context: Some(Arc::new(context(1))), units };
    let compiled = compiled_to_repair(ToyCompile, delta, |key| matches!(key, ToyKey::Frontend(_)));
    assert_eq!(compiled.len(), 200);
    assert!(compiled.iter().all(|(_, units)| *units <= 10), "{:?}", compiled.iter().max_by_key(|(_, units)| units));
}

#[test]
fn a_change_is_compiled_as_one_where_the_context_is_the_same() {
    let changes = Arc::new(AtomicUsize::new(0));
    let mut engine = Engine::new(CountsChanges(Arc::clone(&changes)), MemoryKernel::default());
    let (mut world, now) = (World::new(), Instant::now());
    let mut context = world.delta().context;
    for (mark, endpoint, compiled_as_one) in [(1, 3, false), (1, 4, true), (2, 5, false)] {
        if world.mark != mark {
            world.mark = mark;
            context = world.delta().context;
        }
        world.endpoints[0].push(endpoint);
        changes.store(0, Ordering::Relaxed);
        engine.offer(Delta { context: context.clone(), ..world.delta() });
        assert!(engine.sync(now).error.is_none());
        assert_eq!(changes.load(Ordering::Relaxed) > 0, compiled_as_one, "mark {mark}");
    }
}
