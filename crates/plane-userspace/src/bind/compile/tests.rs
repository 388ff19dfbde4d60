//! A change compiles what it may differ in.

use ferry_api::object::Protocol;
use ferry_conformance::states;
use ferry_model::{FrontendKind, Shadowed};

use super::*;
use crate::change::tests::{
    TCP_AND_UDP, compiled, compiles_frontends_of_other_ports, compiles_frontends_that_differ, difference, service,
};

#[test]
fn other_endpoints_compile_no_frontend() {
    let of = |endpoints| service(endpoints, [2, 3], TCP_AND_UDP);
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
        let mut port = states::port(Protocol::Tcp, pool.clone(), pool, frontends);
        port.shadowed = shadowed.map(|address| Box::new(Shadowed { addresses: [address].into() }));
        states::service("web", vec![port]).1.unwrap()
    };
    let taken = Some(states::address(Family::V4, 0, 1));
    let (of_change, whole) = compiled(&Binding::new(Family::V4, true), &at_node(None), &at_node(taken));
    assert_eq!(of_change, whole);
    assert_ne!(difference(&whole), [vec![], vec![]]);
}

/// The objects of a change of endpoints, whatever becomes of the frontends, are those in which the states differ.
#[test]
fn other_endpoints_of_frontends_that_are_absent_refused_or_split_compile_no_frontend() {
    let (binds, serves_what_is_there) = (Binding::new(Family::V4, true), Binding::new(Family::V4, false));
    let refused = Treatment::all(Action::Drop);
    for (compiler, treatments, ports) in [
        (binds, vec![states::SPLIT], 2),
        (binds, vec![states::EXTERNAL, states::LOCAL], 2),
        // Its endpoints keep their connections.
        (binds, vec![refused], 1),
        (binds, vec![refused, states::LOCAL], 1),
        (serves_what_is_there, vec![states::EXTERNAL], 0),
        (serves_what_is_there, vec![refused], 0),
    ] {
        let of = |endpoints| {
            let frontends = (1..).zip(&treatments).map(|(last, treatment)| {
                let at = FrontendAddr::Vip(states::address(Family::V4, 96, last), 80);
                states::frontend(FrontendKind::ExternalIp, at, *treatment)
            });
            let pool = states::pool(Family::V4, endpoints);
            let port = states::port(Protocol::Tcp, pool.clone(), pool, frontends.collect());
            states::service("web", vec![port]).1.unwrap()
        };
        let (of_change, whole) = compiled(&compiler, &of(&[1, 2]), &of(&[1, 3]));
        assert_eq!(difference(&of_change), difference(&whole), "{treatments:?}");
        assert!(of_change.iter().flatten().all(|object| matches!(object, BindObject::Port(..))), "{of_change:?}");
        assert_eq!(of_change.each_ref().map(Vec::len), [ports; 2], "{treatments:?}: {of_change:?}");
    }
}
