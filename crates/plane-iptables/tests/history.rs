//! This mode's objects on a kernel in memory: any history of added, changed and deleted services, of faults, lost objects and
//! changed contexts ends in the objects of one full build, and no step refers to a missing object.

use crate::mode::ThisMode;
use ferry_conformance::history;
use ferry_plane::Object;

#[test]
fn any_history_ends_in_the_objects_of_one_full_build() {
    history::any_history_ends_in_the_objects_of_one_full_build::<ThisMode>();
}

#[test]
fn a_repair_keeps_what_a_refused_service_refers_to() {
    history::a_repair_keeps_what_a_refused_service_refers_to::<ThisMode>();
}

#[test]
fn a_loss_beside_a_deletion_that_fails_half_way() {
    history::a_loss_beside_a_deletion_that_fails_half_way::<ThisMode>();
}

#[test]
fn an_endpoint_replaced_is_one_chain_that_comes_one_that_goes_and_those_that_lead_there() {
    let (engine, outcome) = history::replace_one_endpoint::<ThisMode>();
    assert_eq!(outcome.ops, 3, "{outcome:?}");
    assert!(engine.objects().iter().any(|object| !object.spare()));
}
