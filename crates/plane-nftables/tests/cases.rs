//! The case folders in this mode: golden rulesets, each accepted by the kernel as it is, and for each case and each packet
//! of the matrix the rules do what the model decides.
//!
//! `FERRY_ACCEPT=1 cargo test -p ferry-plane-nftables --test cases` writes the rulesets; read the difference like code.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by panic")]

#[path = "../../model/tests/case/mod.rs"]
mod case;
mod matrix;

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use case::Case;
use ferry_api::object::Family;
use ferry_kernel::netns::Namespace;
use ferry_model::decide::decide;
use ferry_model::{BaseState, Context, Profile, ServiceState, facts, resolve};
use ferry_plane::{Compile, Delta, Extent, Kernel, SyncEngine, Trace, Unit, UnitId};
use ferry_plane_nftables::{CommitTurn, NftObject, Nftables, NftablesKernel, engine, render};

/// A case in one family, decided.
struct Decided {
    context: Context,
    base: BaseState,
    states: Vec<ServiceState>,
}

fn decided(case: &Case, family: Family) -> Decided {
    let context = facts::context(&case.settings, case.store.node());
    let (base, _) =
        facts::base(&case.settings, &context, &case.local_addresses, &case.store, &Profile::NFTABLES, family);
    let resolved = case
        .store
        .service_names()
        .map(|name| resolve(&case.store.objects(name), case.store.claims(), &context, &Profile::NFTABLES, family).0);
    let states = resolved.filter(|state| !state.ports.is_empty()).collect();
    Decided { context, base, states }
}

fn compiled(family: Family, decided: &Decided) -> Vec<NftObject> {
    let nftables = Nftables::new(family);
    let mut objects = Vec::new();
    nftables.compile(&decided.context, &Unit::Base(decided.base.clone()), &mut objects);
    for state in &decided.states {
        nftables.compile(&decided.context, &Unit::Service(state.clone()), &mut objects);
    }
    objects
}

#[test]
fn the_rulesets_are_what_each_case_wants() {
    let accept = std::env::var_os("FERRY_ACCEPT").is_some_and(|value| value == "1");
    let mut differing = String::new();
    for case in Case::all() {
        let text = Family::ALL.map(|family| render::ruleset(family, &compiled(family, &decided(&case, family))));
        let text = without_fixed_sets(&text.join("\n"));
        let file = case.folder.join("want.nft");
        let wanted = fs::read_to_string(&file).unwrap_or_default();
        if accept && text != wanted {
            fs::write(&file, &text).unwrap();
        } else if text != wanted {
            let first = text.lines().zip(wanted.lines()).find(|(got, wanted)| got != wanted);
            writeln!(differing, "{}: first difference {first:?}", case.name).unwrap();
        }
    }
    assert!(differing.is_empty(), "FERRY_ACCEPT=1 writes what is new:\n{differing}");
}

/// Sets without elements are the same in every case, and stand in the tests of this crate's base.
fn without_fixed_sets(text: &str) -> String {
    let mut kept: Vec<String> = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    for line in text.lines() {
        let opens = line.starts_with("\tset ") || line.starts_with("\tmap ");
        if opens || !block.is_empty() {
            block.push(line);
            if line == "\t}" {
                let dynamic = block.iter().any(|line| line.contains("elements") || line.contains("dynamic"));
                if dynamic {
                    kept.extend(block.iter().map(|line| (*line).to_owned()));
                } else {
                    kept.pop();
                }
                block.clear();
            }
        } else {
            kept.push(line.to_owned());
        }
    }
    kept.join("\n") + "\n"
}

#[test]
fn the_rules_do_what_the_model_decides() {
    let mut packets = 0;
    for case in Case::all() {
        for family in Family::ALL {
            let decided = decided(&case, family);
            let objects = compiled(family, &decided);
            let nftables = Nftables::new(family);
            for packet in matrix::packets(family, &case, &decided.states, &decided.base) {
                let wanted = decide(&decided.states, &decided.base, &packet, &decided.context, &Profile::NFTABLES);
                let found = nftables.trace(&objects, &packet, &decided.context);
                assert_eq!(found, wanted, "{} {family}: {packet:?}", case.name);
                packets += 1;
            }
        }
    }
    assert!(packets > 10_000, "only {packets} packets");
}

#[test]
fn the_kernel_takes_every_ruleset() {
    for family in Family::ALL {
        Namespace::new().unwrap().run(|| each_case_in_the_kernel(family)).unwrap();
    }
}

/// One engine goes from case to case, so that every transition is made too.
fn each_case_in_the_kernel(family: Family) {
    let mut engine = engine(family, CommitTurn::default()).unwrap();
    let mut known: Vec<UnitId> = Vec::new();
    for case in Case::all() {
        let decided = decided(&case, family);
        let mut delta = Delta { context: Some(Arc::new(decided.context.clone())), ..Delta::default() };
        delta.units.extend(known.drain(..).map(|id| (id, None)));
        delta.units.insert(UnitId::Base, Some(Arc::new(Unit::Base(decided.base.clone()))));
        for state in &decided.states {
            let id = UnitId::Service(state.name.clone());
            known.push(id.clone());
            delta.units.insert(id, Some(Arc::new(Unit::Service(state.clone()))));
        }
        engine.offer(delta);
        let outcome = engine.sync(Instant::now());
        assert!(outcome.error.is_none() && outcome.quarantined.is_empty(), "{}: {outcome:?}", case.name);
        let mut wanted = engine.objects();
        wanted.dedup();
        let mut reader = NftablesKernel::open(family, CommitTurn::default()).unwrap();
        let found = reader.read_back(&Extent::All).unwrap();
        let unwanted = |object: &&NftObject| !ferry_plane::Object::spare(*object) && !wanted.contains(object);
        assert_eq!(found.iter().find(unwanted), None, "{}", case.name);
        assert_eq!(wanted.iter().find(|object| !found.contains(object)), None, "{}", case.name);
    }
}
