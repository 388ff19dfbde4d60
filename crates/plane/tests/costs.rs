//! The cost of a repair: it compiles the units that may own the damaged object, and few others.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    dead_code,
    reason = "a test may fail by panic; it needs a part of the toy"
)]

mod toy;

use std::sync::Arc;

use ferry_conformance::costs::compiled_to_repair;
use ferry_plane::{Delta, UnitId};
use toy::{ToyCompile, ToyKey, base, context, service};

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
