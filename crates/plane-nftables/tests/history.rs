//! This mode's objects on a kernel in memory: any history of added, changed and deleted services, of faults, lost objects and
//! changed contexts ends in the objects of one full build, and no step refers to a missing object.

use crate::mode::ThisMode;
use ferry_conformance::history;

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
fn a_replaced_endpoint_is_one_slot_of_each_frontend() {
    let (_, outcome) = history::replace_one_endpoint::<ThisMode>();
    // A cluster IP, a node port and a load balancer address keep slots of their own.
    assert_eq!(outcome.ops, 3, "{outcome:?}");
}
