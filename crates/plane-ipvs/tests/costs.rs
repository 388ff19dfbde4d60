//! The cost of a repair in this mode.

use crate::mode::ThisMode;
use ferry_conformance::costs;

#[test]
fn a_repair_of_one_key_compiles_few_units() {
    costs::a_repair_of_one_key_compiles_few_units::<ThisMode>();
}

#[test]
fn hints_lead_to_the_units() {
    costs::hints_lead_to_the_units::<ThisMode>();
}
