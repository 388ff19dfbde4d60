//! Tests of the cost of a repair: it compiles the affected units, and few others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_model::{Context, FrontendAddr, FrontendKind, Profile};
use ferry_plane::engine::Engine;
use ferry_plane::memory::{MemoryKernel, Refers};
use ferry_plane::{Before, Compile, Delta, Object, SyncEngine, Unit, UnitId};

use crate::memory::good;
use crate::mode::{KeyOf, Mode};
use crate::states::{self, everything_for};

/// A compiler that counts its compiled units.
#[derive(Debug)]
pub struct Counting<C> {
    compile: C,
    compiled: Arc<AtomicUsize>,
}

/// An engine with a counting compiler.
pub type CountingEngine<C> = Engine<Counting<C>, MemoryKernel<<C as Compile>::Object>>;

impl<C: Compile> Compile for Counting<C> {
    type Object = C::Object;
    type Hint = C::Hint;
    const PROFILE: Profile = C::PROFILE;
    const PORTION: usize = C::PORTION;
    const PLACES: bool = C::PLACES;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<C::Object>) {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        self.compile.compile(context, unit, out);
    }

    fn hints(&self, key: &<C::Object as Object>::Key, hints: &mut Vec<C::Hint>) {
        self.compile.hints(key, hints);
    }

    fn may_want(&self, unit: &Unit, asked: &dyn Fn(&C::Hint) -> bool) -> bool {
        self.compile.may_want(unit, asked)
    }

    fn place(&self, next: &mut Unit, before: Before<'_, C::Object>) {
        self.compile.place(next, before);
    }
}

/// Loses each object in turn; returns the number of units compiled to repair it.
pub fn compiled_to_repair<C>(
    compile: C,
    delta: Delta,
    is_lost: impl Fn(&<C::Object as Object>::Key) -> bool,
) -> Vec<(<C::Object as Object>::Key, usize)>
where
    C: Compile<Object: Refers<Key: Send> + Send> + Send,
{
    let compiled = Arc::new(AtomicUsize::new(0));
    let compile = Counting { compile, compiled: Arc::clone(&compiled) };
    let mut engine: CountingEngine<C> = Engine::new(compile, MemoryKernel::default());
    let mut now = Instant::now();
    engine.offer(delta);
    good(engine.sync(now));
    let keys: Vec<_> = engine.kernel().objects.keys().filter(|key| is_lost(key)).cloned().collect();
    let repair = |key: &<C::Object as Object>::Key| {
        engine.kernel_mut().lose(key);
        compiled.store(0, Ordering::Relaxed);
        let mut repairs = 0;
        for _ in 0..4 {
            now += Duration::from_millis(200);
            repairs += good(engine.tend(now)).repairs;
        }
        assert!(repairs == 1 && engine.kernel().objects.contains_key(key), "{key} is repaired");
        compiled.load(Ordering::Relaxed)
    };
    let costs: Vec<usize> = keys.iter().map(repair).collect();
    keys.into_iter().zip(costs).collect()
}

/// A service of every kind, and `services` equal ones.
fn many(family: Family, profile: &Profile, services: u16) -> Delta {
    let mut delta = everything_for(family, profile);
    for index in 0..services {
        let at = FrontendAddr::Vip(states::address(family, 97, 1), 1000 + index);
        let frontend = states::frontend(FrontendKind::ClusterIp, at, states::INTERNAL);
        let [cluster, local] = [&[1, 2, 3][..], &[]].map(|last| states::pool(family, last));
        let (id, unit) = states::service(
            &format!("alike-{index}"),
            vec![states::port(Protocol::Tcp, cluster, local, vec![frontend])],
        );
        delta.units.insert(id, unit);
    }
    delta
}

/// Independent of the number of services: only the units that the key may belong to are compiled, a few times each.
pub fn a_repair_of_one_key_compiles_few_units<M: Mode>() {
    for family in Family::ALL {
        let units = many(family, &M::Compiler::PROFILE, 300);
        let compiled = compiled_to_repair(M::compiler(family, false), units, |key: &KeyOf<M>| M::is_leaf(key));
        assert!(compiled.len() > 300, "{} keys", compiled.len());
        assert!(compiled.iter().all(|(_, units)| *units <= 10), "{:?}", compiled.iter().max_by_key(|(_, units)| units));
    }
}

/// The hints of each object's key lead to its unit, and are never empty.
pub fn hints_lead_to_the_units<M: Mode>() {
    for family in Family::ALL {
        let compiler = M::compiler(family, true);
        let delta = everything_for(family, &M::Compiler::PROFILE);
        let context = delta.context.unwrap();
        for (id, unit) in &delta.units {
            assert_found(&compiler, &context, id, unit.as_ref().unwrap());
        }
    }
}

/// Checks that the hints of each of the unit's objects lead to the unit.
pub fn assert_found<C: Compile>(compiler: &C, context: &Context, id: &UnitId, unit: &Unit) {
    let mut objects = Vec::new();
    compiler.compile(context, unit, &mut objects);
    let keys: BTreeSet<_> = objects.iter().map(Object::key).collect();
    for key in keys {
        let mut hints = Vec::new();
        compiler.hints(&key, &mut hints);
        assert!(!hints.is_empty(), "{key}");
        assert!(compiler.may_want(unit, &|asked| hints.contains(asked)), "{id}: {key}");
    }
}
