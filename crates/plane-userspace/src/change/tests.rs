//! Checks of a compiler: the objects of a change are those in which the two states may differ.

use std::sync::Arc;

use ferry_api::object::{Family, Protocol};
use ferry_conformance::states;
use ferry_model::{FrontendAddr, FrontendKind};
use ferry_plane::{Compile, Unit};

pub(crate) const TCP_AND_UDP: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// The objects of one state, then those of the other.
pub(crate) type BothSides<C> = [Vec<<C as Compile>::Object>; 2];

/// Two ports at the same cluster IP, over these protocols, with an external IP each; their endpoints in both scopes.
pub(crate) fn service(endpoints: &[u8], external: [u8; 2], protocols: [Protocol; 2]) -> Arc<Unit> {
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

/// The objects of the two sides of a change, and those of both states as a whole.
pub(crate) fn compiled<C: Compile>(compiler: &C, before: &Unit, after: &Unit) -> (BothSides<C>, BothSides<C>) {
    let context = states::context_for(Family::V4, &C::PROFILE);
    let [mut of_change, mut whole] = [(); 2].map(|()| [Vec::new(), Vec::new()]);
    let [old, new] = &mut of_change;
    compiler.compile_change(&context, (before, after), old, new);
    for (unit, out) in [before, after].into_iter().zip(&mut whole) {
        compiler.compile(&context, unit, out);
    }
    (of_change, whole)
}

/// The objects that only one side has.
pub(crate) fn difference<O: PartialEq + Clone>([before, after]: &[Vec<O>; 2]) -> [Vec<O>; 2] {
    let without = |of: &[O], other: &[O]| of.iter().filter(|object| !other.contains(object)).cloned().collect();
    [without(before, after), without(after, before)]
}

/// Frontends that differ are compiled with all others of the Service, which may share their objects.
#[track_caller]
pub(crate) fn compiles_frontends_that_differ<C: Compile>(compiler: &C) {
    let before = service(&[1, 2], [2, 3], TCP_AND_UDP);
    for after in [
        service(&[1, 2], [2, 4], TCP_AND_UDP),
        service(&[1, 3], [4, 3], TCP_AND_UDP),
        service(&[1, 2], [2, 3], [Protocol::Tcp; 2]),
    ] {
        let (of_change, whole) = compiled(compiler, &before, &after);
        assert_eq!(of_change, whole);
        assert_ne!(difference(&whole), [vec![], vec![]]);
    }
}

/// A port that comes, goes or changes its name changes frontends.
#[track_caller]
pub(crate) fn compiles_frontends_of_other_ports<C: Compile>(compiler: &C) {
    let both = service(&[1], [2, 3], TCP_AND_UDP);
    let Unit::Service(state) = &*both else { panic!("{both:?}") };
    let (mut one, mut renamed) = (state.clone(), state.clone());
    one.ports.truncate(1);
    renamed.ports[1].name = "other".into();
    for after in [one, renamed] {
        let (of_change, whole) = compiled(compiler, &both, &Unit::Service(after));
        assert_eq!(of_change, whole);
        assert_ne!(difference(&whole), [vec![], vec![]]);
    }
}
