//! The cost of a repair in this mode.

mod mode;

use ferry_conformance::costs;
use mode::ThisMode;

#[test]
fn a_repair_of_one_key_compiles_few_units() {
    costs::a_repair_of_one_key_compiles_few_units::<ThisMode>();
}

#[test]
fn hints_lead_to_the_units() {
    costs::hints_lead_to_the_units::<ThisMode>();
}
