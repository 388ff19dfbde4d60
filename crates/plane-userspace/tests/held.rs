//! Service ports whose frontends lead to no endpoint, in both ways: the balancer stays, with the established connections to endpoints that are
//! still in the slices.

use ferry_api::object::{Family, Protocol};
use ferry_conformance::states::{self, pool};
use ferry_model::{Action, Context, FrontendAddr, FrontendKind, PortState, Profile, Scope, Snat, Treatment};
use ferry_plane::Compile;
use ferry_plane_userspace::bind::{BindObject, Binding};
use ferry_plane_userspace::port::{PortId, PortSpec};
use ferry_plane_userspace::redirect::{Relaying, UserspaceObject};

/// A port whose frontends are all treated alike.
fn port(family: Family, protocol: Protocol, [cluster, local, lingering]: [&[u8]; 3], action: Action) -> PortState {
    let vip = FrontendAddr::Vip(states::address(family, 96, 1), 80);
    let frontends = [(FrontendKind::ClusterIp, vip), (FrontendKind::NodePort, FrontendAddr::NodePort(30_001))]
        .map(|(kind, at)| states::frontend(kind, at, Treatment::all(action)));
    let port = states::port(protocol, pool(family, cluster), pool(family, local), frontends.into());
    PortState { lingering: pool(family, lingering), ..port }
}

fn compiled<C: Compile>(compiler: &C, context: &Context, port: PortState) -> Vec<C::Object> {
    let (_, unit) = states::service("web", vec![port]);
    let mut objects = Vec::new();
    unit.iter().for_each(|unit| compiler.compile(context, unit, &mut objects));
    objects
}

/// The service ports of each way.
fn service_ports(family: Family, port: &PortState) -> [Vec<(PortId, PortSpec)>; 3] {
    let redirect = compiled(&Relaying::new(family), &states::context_for(family, &Profile::USERSPACE), port.clone());
    let redirect = redirect.into_iter().filter_map(|object| match object {
        UserspaceObject::Port(id, spec) => Some((id, spec)),
        UserspaceObject::Listener(_) | UserspaceObject::Route(..) | UserspaceObject::Table(_) => None,
    });
    // With and without the right to bind addresses.
    let [binding, confined] = [true, false].map(|binds| {
        let context = states::context_for(family, &Profile::USERSPACE_BIND);
        let bind = compiled(&Binding::new(family, binds), &context, port.clone());
        let ports = bind.into_iter().filter_map(|object| match object {
            BindObject::Port(id, spec) => Some((id, spec)),
            BindObject::Origins(_) | BindObject::Address(_) | BindObject::Listener(..) => None,
        });
        ports.collect()
    });
    [redirect.collect(), binding, confined]
}

#[test]
fn a_port_with_listed_endpoints_stays_where_no_frontend_leads_to_any() {
    let none: &[u8] = &[];
    for family in Family::ALL {
        for (pools, action) in [
            ([none, none, &[1]], Action::Reject),
            ([none, none, &[1]], Action::Drop),
            ([&[1], none, none], Action::Drop),
            ([none, &[1], none], Action::Drop),
        ] {
            for ports in service_ports(family, &port(family, Protocol::Tcp, pools, action)) {
                let [(id, spec)] = &ports[..] else { panic!("{family} {pools:?} {action:?}: {ports:?}") };
                assert_eq!(id.scope, Scope::Cluster);
                assert_eq!(*spec.pool, *pool(family, pools[0]).0);
                assert_eq!(spec.kept, [pools[1], pools[2]].map(|last| pool(family, last).0));
            }
        }
    }
}

/// A process without the right to bind addresses serves nothing at a cluster IP, so there is no connection to keep.
#[test]
fn a_port_out_of_reach_holds_nothing() {
    let none: &[u8] = &[];
    for family in Family::ALL {
        let mut state = port(family, Protocol::Tcp, [none, none, &[1]], Action::Reject);
        state.frontends =
            state.frontends.iter().filter(|frontend| frontend.kind == FrontendKind::ClusterIp).cloned().collect();
        let [redirect, bind, confined] = service_ports(family, &state);
        assert_eq!([redirect.len(), bind.len(), confined.len()], [1, 1, 0]);
    }
}

#[test]
fn a_port_that_holds_no_connections_goes() {
    let none: &[u8] = &[];
    for family in Family::ALL {
        let unlisted = port(family, Protocol::Tcp, [none; 3], Action::Reject);
        // Associations end with their listener.
        let datagrams = port(family, Protocol::Udp, [none, none, &[1]], Action::Reject);
        for port in [unlisted, datagrams] {
            assert_eq!(service_ports(family, &port), [const { Vec::new() }; 3], "{family} {port:?}");
        }
    }
}

#[test]
fn a_port_that_is_led_to_has_no_other_scope() {
    for family in Family::ALL {
        let forward = Action::Forward { to: Scope::Local, snat: Snat::Masquerade };
        let local = port(family, Protocol::Tcp, [&[1, 2], &[1], &[3]], forward);
        for ports in service_ports(family, &local) {
            let [(id, spec)] = &ports[..] else { panic!("{family}: {ports:?}") };
            assert_eq!(id.scope, Scope::Local);
            assert_eq!(spec.kept, [pool(family, &[1, 2]).0, pool(family, &[3]).0]);
        }
    }
}
