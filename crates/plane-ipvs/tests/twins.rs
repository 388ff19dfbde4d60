//! Two engines of this mode on one kernel in memory: damage, faults, and changes that each hears of at another time.

use crate::mode::ThisMode;
use ferry_conformance::twins;

#[test]
fn two_engines_agree_and_rest() {
    twins::two_agree_and_rest::<ThisMode>(30, |_changes| 0);
}

#[test]
fn damage_is_mended_in_time() {
    twins::damage_is_mended_in_time::<ThisMode>(30);
}

#[test]
fn an_engine_comes_to_rest_after_faults() {
    twins::one_comes_to_rest_after_faults::<ThisMode>(30);
}
