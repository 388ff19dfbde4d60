//! A change compiles what it may differ in.

use ferry_conformance::states;
use ferry_model::{FrontendKind, Shadowed};

use super::*;
use crate::change::testing::{
    self, TCP_AND_UDP, compiled, compiles_frontends_of_other_ports, compiles_frontends_that_differ, difference,
};

#[test]
fn other_endpoints_compile_no_frontend() {
    let of = |endpoints| testing::service(endpoints, [2, 3], TCP_AND_UDP);
    let (of_change, whole) = compiled(&Binding::new(Family::V4, true), &of(&[1, 2]), &of(&[1, 3]));
    assert_eq!(difference(&of_change), difference(&whole));
    // The two ports share a cluster IP.
    assert!(whole.iter().all(|side| side.is_sorted_by(|one, next| one < next)), "each once, in order: {whole:?}");
    // One for each port: its frontends lead all clients to endpoints of one scope.
    assert!(of_change.iter().flatten().all(|object| matches!(object, BindObject::Port(..))), "{of_change:?}");
    assert_eq!(of_change.each_ref().map(Vec::len), [2, 2], "{of_change:?}");
    assert_eq!(whole[0].len(), 9, "three addresses, four listeners, two ports: {whole:?}");
}

#[test]
fn frontends_that_differ_are_compiled_with_all_that_may_share_their_objects() {
    compiles_frontends_that_differ(&Binding::new(Family::V4, true));
}

#[test]
fn a_port_that_comes_goes_or_changes_its_name_changes_frontends() {
    compiles_frontends_of_other_ports(&Binding::new(Family::V4, true));
}

#[test]
fn an_address_of_the_node_that_another_frontend_takes_changes_listeners() {
    let at_node = |shadowed: Option<IpAddr>| {
        let frontends =
            vec![states::frontend(FrontendKind::NodePort, FrontendAddr::NodePort(30_080), states::EXTERNAL)];
        let pool = states::pool(Family::V4, &[1]);
        let mut port = states::port(ferry_api::object::Protocol::Tcp, pool.clone(), pool, frontends);
        port.shadowed = shadowed.map(|address| Box::new(Shadowed { addresses: [address].into() }));
        states::service("web", vec![port]).1.unwrap()
    };
    let taken = Some(states::address(Family::V4, 0, 1));
    let (of_change, whole) = compiled(&Binding::new(Family::V4, true), &at_node(None), &at_node(taken));
    assert_eq!(of_change, whole);
    assert_ne!(difference(&whole), [vec![], vec![]]);
}
