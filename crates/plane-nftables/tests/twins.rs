//! Two engines of this mode on one kernel in memory. In this mode a frontend is many objects, and an engine that gets two changes
//! as one may put an endpoint into another slot than one that gets both: now and then one repairs a little of what the other has
//! just written.

use crate::mode::ThisMode;
use ferry_conformance::twin::ChangeTiming;
use ferry_conformance::twins::{self, EndpointChange};

#[test]
fn two_engines_agree_and_rest() {
    twins::two_agree_and_rest::<ThisMode>(100, |changes| changes);
}

#[test]
fn damage_is_mended_in_time() {
    twins::damage_is_mended_in_time::<ThisMode>(100);
}

#[test]
fn an_engine_comes_to_rest_after_faults() {
    twins::one_comes_to_rest_after_faults::<ThisMode>(100);
}

/// The second engine's first write of the pool meets the first engine's, a millisecond old: it adopts that order of slots.
#[test]
fn a_change_that_another_engine_has_just_made_is_no_reason_for_repairs() {
    let timing = |lag, skipped| ChangeTiming { after: 0, lag, skipped };
    let changes = [
        EndpointChange { timing: timing([0, 0], true), service: 1, cluster: vec![1], local: vec![1] },
        EndpointChange { timing: timing([1, 1], false), service: 1, cluster: vec![1, 3, 4], local: vec![1] },
    ];
    assert_eq!(twins::repairs_of_two::<ThisMode>(&changes), 0);
}
