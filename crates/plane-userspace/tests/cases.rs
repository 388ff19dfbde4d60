//! The case folders in this mode: golden objects, and for each case and each packet of the matrix the verdict of the rules is the
//! model's. The corpus proves them with packets.
//!
//! `FERRY_ACCEPT=1 cargo test -p ferry-plane-userspace --test suite cases::` writes the expected files; review the diff like code.

use crate::mode::ThisMode;
use ferry_conformance::cases;

#[test]
fn the_rulesets_are_what_each_case_wants() {
    cases::the_rulesets_are_what_each_case_wants::<ThisMode>();
}

#[test]
fn the_rules_do_what_the_model_decides() {
    cases::the_rules_do_what_the_model_decides::<ThisMode>();
}

#[test]
fn objects_are_well_made() {
    cases::objects_are_well_made::<ThisMode>();
}
