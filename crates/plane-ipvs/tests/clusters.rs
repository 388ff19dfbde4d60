//! Random plausible clusters in this mode: the compiled objects give every packet the model's verdict, and any history, resolved
//! event by event, ends in the objects of one full build.

use crate::mode::ThisMode;
use ferry_conformance::{clusters, shapes, transitions};

#[test]
fn the_rules_do_what_the_model_decides() {
    clusters::the_rules_do_what_the_model_decides::<ThisMode>();
}

#[test]
fn any_history_ends_as_one_full_build_does() {
    clusters::any_history_ends_as_one_full_build_does::<ThisMode>();
}

#[test]
fn any_case_may_follow_any_other() {
    transitions::any_case_may_follow_any_other::<ThisMode>();
}

#[test]
fn a_service_leaves_nothing_of_what_it_was() {
    shapes::a_service_leaves_nothing_of_what_it_was::<ThisMode>();
}
