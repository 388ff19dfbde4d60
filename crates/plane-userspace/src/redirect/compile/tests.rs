//! A change compiles what it may differ in.

use ferry_conformance::states;

use super::*;

/// Two ports at the same cluster IP, over TCP and UDP, with an external IP each; their endpoints in both scopes.
fn service(endpoints: &[u8], external: [u8; 2], protocols: [Protocol; 2]) -> Arc<Unit> {
    let address = |last| states::address(Family::V4, 96, last);
    let port = |number: u16, (external, protocol): (u8, Protocol)| {
        let cluster = FrontendAddr::Vip(address(1), number);
        let frontends = vec![
            states::frontend(FrontendKind::ClusterIp, cluster, states::EXTERNAL),
            states::frontend(FrontendKind::ExternalIp, FrontendAddr::Vip(address(external), number), states::EXTERNAL),
        ];
        let pool = states::pool(Family::V4, endpoints);
        let mut port = states::port(protocol, pool.clone(), pool, frontends);
        port.name = format!("port-{number}").into();
        port
    };
    let ports = [80, 81].into_iter().zip(external.into_iter().zip(protocols)).map(|(number, of)| port(number, of));
    states::service("web", ports.collect()).1.unwrap()
}

type Objects = Vec<UserspaceObject>;

/// The objects of the two sides of a change, and those of both states as a whole.
fn compiled(before: &Unit, after: &Unit) -> ([Objects; 2], [Objects; 2]) {
    let (compiler, context) = (Relaying::new(Family::V4), states::context(Family::V4));
    let [mut of_change, mut whole] = [(); 2].map(|()| [Objects::new(), Objects::new()]);
    let [old, new] = &mut of_change;
    compiler.compile_change(&context, (before, after), old, new);
    for (unit, out) in [before, after].into_iter().zip(&mut whole) {
        compiler.compile(&context, unit, out);
    }
    (of_change, whole)
}

/// The objects that only one side has.
fn difference([before, after]: &[Objects; 2]) -> [Objects; 2] {
    let without = |of: &Objects, other: &Objects| of.iter().filter(|object| !other.contains(object)).cloned().collect();
    [without(before, after), without(after, before)]
}

const TCP_AND_UDP: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

#[test]
fn other_endpoints_compile_no_frontend() {
    let (before, after) = (service(&[1, 2], [2, 3], TCP_AND_UDP), service(&[1, 3], [2, 3], TCP_AND_UDP));
    let (of_change, whole) = compiled(&before, &after);
    assert_eq!(difference(&of_change), difference(&whole));
    let is_of_port = |object: &UserspaceObject| !matches!(object, UserspaceObject::Route(..));
    assert!(of_change.iter().flatten().all(is_of_port), "{of_change:?}");
    // Of TCP a port with each scope that is used; of UDP also its listener, and the element that lets packets reach it.
    assert_eq!(of_change.each_ref().map(Vec::len), [4, 4], "{of_change:?}");
    assert!(whole[0].len() > 8, "{whole:?}");
}

#[test]
fn frontends_that_differ_are_compiled_with_all_that_may_share_their_objects() {
    let before = service(&[1, 2], [2, 3], TCP_AND_UDP);
    for after in [
        service(&[1, 2], [2, 4], TCP_AND_UDP),
        service(&[1, 3], [4, 3], TCP_AND_UDP),
        service(&[1, 2], [2, 3], [Protocol::Tcp; 2]),
    ] {
        let (of_change, whole) = compiled(&before, &after);
        assert_eq!(of_change, whole);
        assert_ne!(difference(&whole), [vec![], vec![]]);
    }
}

#[test]
fn a_port_that_comes_goes_or_changes_its_name_changes_frontends() {
    let both = service(&[1], [2, 3], TCP_AND_UDP);
    let Unit::Service(state) = &*both else { panic!("{both:?}") };
    let (mut one, mut renamed) = (state.clone(), state.clone());
    one.ports.truncate(1);
    renamed.ports[1].name = "other".into();
    for after in [one, renamed] {
        let (of_change, whole) = compiled(&both, &Unit::Service(after));
        assert_eq!(of_change, whole);
    }
}
