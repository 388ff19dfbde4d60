//! Any history of added, changed and deleted services, of faults, lost objects and changed contexts ends in the objects of one
//! full build, also on the real kernel, in both variants.

use std::time::{Duration, Instant};

use crate::machine::{Machine, assert_same, settle, wanted};
use crate::wrapper::Wrapper;
use ferry_api::object::Family;
use ferry_conformance::history::{HistoryStep, steps};
use ferry_conformance::{World, good};
use ferry_kernel::iptables::Backend;
use ferry_kernel::netns::Namespace;
use ferry_model::Profile;
use ferry_plane::SyncEngine;
use ferry_plane_iptables::{IptObject, IptablesEngine};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn fresh(machine: &Machine, world: &World) -> IptablesEngine {
    let mut engine = machine.engine();
    engine.offer(world.delta());
    good(engine.sync(Instant::now()));
    engine
}

/// Another program deletes one object.
fn lose(machine: &Machine, object: &IptObject) {
    let chain_of = |id: &ferry_plane_iptables::object::ChainId| {
        let (table, name) = (id.table.name(), id.name.as_str());
        let listing = machine.run("", &["-t", table, "-S", name], "");
        (table, name.to_owned(), listing.0 && listing.1.contains("-A "))
    };
    match object {
        IptObject::Chain(id, _) | IptObject::SharedChain(id) => {
            if let (table, name, true) = chain_of(id) {
                machine.iptables(&format!("-t {table} -F {name}"));
            }
        }
        IptObject::OwnedRules(key, _) => {
            if let (table, name, true) = chain_of(&key.chain) {
                machine.iptables(&format!("-t {table} -D {name} 1"));
            }
        }
        IptObject::SourceSet(..) | IptObject::RouteLocalnet | IptObject::ForeignRule(..) => {}
    }
}

/// Shell code: once, the tool commits the first section and reports a failure in the line behind it.
const FAILS_AFTER_FIRST_SECTION: &str = r#"
rm $FOLDER/fault-restore
text > $FOLDER/input
sed '/^COMMIT$/q' $FOLDER/input > $FOLDER/first
$REAL "$@" < $FOLDER/first || exit
echo "iptables-restore: line $(($(wc -l < $FOLDER/first) + 1)) failed" >&2
exit 1
"#;

fn step(
    machine: &Machine,
    wrapper: &Wrapper,
    engine: &mut IptablesEngine,
    world: &mut World,
    step: &HistoryStep,
    now: Instant,
) {
    if step.apply(world) {
        return engine.offer(world.delta());
    }
    match step {
        // Killed, once, after the first section is committed.
        HistoryStep::Busy => wrapper.fault("rm $FOLDER/fault-restore\nsed '/^COMMIT$/q' | $REAL \"$@\"\nkill -9 $$\n"),
        HistoryStep::HalfWay(..) => wrapper.fault(FAILS_AFTER_FIRST_SECTION),
        HistoryStep::Lose(index) => {
            let objects = wanted(engine);
            if let Some(object) = objects.get(index % objects.len().max(1)) {
                lose(machine, object);
            }
        }
        HistoryStep::Sync => drop(engine.sync(now)),
        _ => drop(engine.tend(now)),
    }
}

fn run_through(backend: Backend, family: Family, history: &[HistoryStep]) {
    let namespace = || Namespace::new().expect("root and CAP_SYS_ADMIN are needed");
    let mut world = World::new(family, Profile::IPTABLES);
    let ended = namespace()
        .run(|| {
            let mut machine = Machine::new(backend, family);
            let wrapper = Wrapper::new(&mut machine, "-restore");
            let mut engine = fresh(&machine, &world);
            let mut now = Instant::now();
            for one in history {
                now += Duration::from_millis(300);
                step(&machine, &wrapper, &mut engine, &mut world, one, now);
            }
            wrapper.fault(":\n");
            engine.offer(world.delta());
            settle(&mut engine, now);
            assert_same(&machine.read_back(), &wanted(&engine), "the kernel holds what is acknowledged");
            machine.saved()
        })
        .unwrap();
    let wanted = namespace()
        .run(|| {
            let machine = Machine::new(backend, family);
            drop(fresh(&machine, &world));
            machine.saved()
        })
        .unwrap();
    assert_eq!(ended, wanted);
}

/// The same histories in every run, so that failures are reproducible.
fn histories(backend: Backend, family: Family, seed: u8, count: usize) {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    for _ in 0..count {
        let history = steps(30).new_tree(&mut runner).unwrap().current();
        let shown = format!("{backend} {family}: {history:?}");
        let result = std::panic::catch_unwind(|| run_through(backend, family, &history));
        assert!(result.is_ok(), "{shown}");
    }
}

#[test]
fn any_history_ends_as_one_full_build_does_for_real() {
    std::thread::scope(|scope| {
        for (seed, backend) in (1..).zip(Backend::ALL) {
            for (more, family) in (0..).zip(Family::ALL) {
                scope.spawn(move || histories(backend, family, 10 * seed + more, 8));
            }
        }
    });
}
