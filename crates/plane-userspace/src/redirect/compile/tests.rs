//! A change compiles what it may differ in.

use super::*;
use crate::change::tests::{
    TCP_AND_UDP, compiled, compiles_frontends_of_other_ports, compiles_frontends_that_differ, difference, service,
};

#[test]
fn other_endpoints_compile_no_frontend() {
    let of = |endpoints| service(endpoints, [2, 3], TCP_AND_UDP);
    let (of_change, whole) = compiled(&Relaying::new(Family::V4), &of(&[1, 2]), &of(&[1, 3]));
    assert_eq!(difference(&of_change), difference(&whole));
    // The two ports share a cluster IP.
    assert!(whole.iter().all(|side| side.is_sorted_by(|one, next| one < next)), "each once, in order: {whole:?}");
    let is_of_port = |object: &UserspaceObject| !matches!(object, UserspaceObject::Route(..));
    assert!(of_change.iter().flatten().all(is_of_port), "{of_change:?}");
    // Of TCP a port with each scope that is used; of UDP also its listener, and the element that lets packets reach it.
    assert_eq!(of_change.each_ref().map(Vec::len), [4, 4], "{of_change:?}");
    assert!(whole[0].len() > 8, "{whole:?}");
}

#[test]
fn frontends_that_differ_are_compiled_with_all_that_may_share_their_objects() {
    compiles_frontends_that_differ(&Relaying::new(Family::V4));
}

#[test]
fn a_port_that_comes_goes_or_changes_its_name_changes_frontends() {
    compiles_frontends_of_other_ports(&Relaying::new(Family::V4));
}
