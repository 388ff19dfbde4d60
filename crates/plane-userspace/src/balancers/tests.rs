use ferry_api::object::{ObjectName, Protocol};
use ferry_conformance::states::pool;
use ferry_relay::{Endpoint, Removal, Worker};

use super::*;
use crate::shared::tests::shared;

/// Longer than any test takes.
const GRACE: Duration = Duration::from_secs(600);

/// No balancers, with the threads of their relay, which don't run: no grace period ends.
fn balancers() -> (Balancers, Vec<Worker>) {
    let (shared, workers) = shared(Removal::Grace(GRACE));
    (Balancers::new(Family::V4, shared), workers)
}

fn port(name: &str, scope: Scope) -> PortId {
    PortId { service: ObjectName::new("demo", name), name: "".into(), protocol: Protocol::Tcp, scope }
}

/// The specification of a port with these endpoints, and those in the slices that aren't chosen.
fn spec(endpoints: &[u8], kept: &[u8]) -> PortSpec {
    let [pool, kept, none] = [endpoints, kept, &[]].map(|last| pool(Family::V4, last).0);
    PortSpec { affinity_seconds: None, pool, kept: [kept, none] }
}

/// The endpoints of a port that is served, as connections hold them.
fn serve(balancers: &mut Balancers, id: &PortId, spec: &PortSpec) -> Arc<[Arc<Endpoint>]> {
    balancers.serve(id, spec).endpoints()
}

#[test]
fn endpoints_of_a_port_that_comes_back_keep_their_connections_in_any_scope() {
    let scopes = [Scope::Cluster, Scope::Local];
    for (before, after) in scopes.into_iter().flat_map(|before| scopes.map(|after| (before, after))) {
        let (mut balancers, _workers) = balancers();
        let held = serve(&mut balancers, &port("web", before), &spec(&[1, 2, 3], &[]));
        // Its last endpoint has left the slices.
        balancers.close(&port("web", before));
        assert!(held.iter().all(|endpoint| endpoint.is_removed() && !endpoint.lingers()));
        let now = serve(&mut balancers, &port("web", after), &spec(&[1], &[2]));
        let [first, second, third] = &held[..] else { panic!("{held:?}") };
        assert!(Arc::ptr_eq(&now[0], first) && !first.is_removed(), "{before:?} {after:?}: chosen again");
        assert!(second.is_removed() && second.lingers(), "{before:?} {after:?}: in the slices again");
        assert!(third.is_removed() && !third.lingers(), "{before:?} {after:?}: its grace period goes on");
    }
}

#[test]
fn endpoints_of_both_scopes_come_back() {
    let (mut balancers, _workers) = balancers();
    let ids = [Scope::Cluster, Scope::Local].map(|scope| port("web", scope));
    let held = ids.each_ref().map(|id| serve(&mut balancers, id, &spec(&[1], &[])));
    ids.iter().for_each(|id| balancers.close(id));
    let now = serve(&mut balancers, &ids[0], &spec(&[1], &[]));
    let ends = |endpoint: &Endpoint| endpoint.is_removed() && !endpoint.lingers();
    assert!(held.iter().all(|endpoints| !ends(&endpoints[0])), "{held:?}");
    assert!(held.iter().any(|endpoints| Arc::ptr_eq(&endpoints[0], &now[0])), "{now:?}");
}

#[test]
fn another_port_has_endpoints_of_its_own() {
    let (mut balancers, _workers) = balancers();
    let held = serve(&mut balancers, &port("web", Scope::Cluster), &spec(&[1], &[]));
    balancers.close(&port("web", Scope::Cluster));
    let other = serve(&mut balancers, &port("other", Scope::Cluster), &spec(&[1], &[]));
    assert!(!Arc::ptr_eq(&held[0], &other[0]) && held[0].is_removed());
}

#[test]
fn a_port_keeps_the_connections_of_the_scope_that_is_closed() {
    let (mut balancers, _workers) = balancers();
    let [cluster, local] = [Scope::Cluster, Scope::Local].map(|scope| port("web", scope));
    for (stays, goes) in [(&cluster, &local), (&local, &cluster)] {
        serve(&mut balancers, stays, &spec(&[1], &[2]));
        let held = serve(&mut balancers, goes, &spec(&[2], &[1]));
        balancers.close(goes);
        assert!(!held[0].is_removed() || held[0].lingers(), "{goes}: it is in the slices: {held:?}");
        balancers.close(stays);
    }
}

#[test]
fn the_ports_that_are_served_are_found_and_listed() {
    let (mut balancers, _workers) = balancers();
    let ids = ["first", "second"].map(|name| port(name, Scope::Cluster));
    for id in &ids {
        serve(&mut balancers, id, &spec(&[1], &[]));
    }
    assert!(balancers.iter().map(|(id, _)| id).eq(&ids));
    balancers.close(&ids[0]);
    assert_eq!(ids.each_ref().map(|id| balancers.get(id).is_some()), [false, true]);
    assert!(balancers.iter().map(|(id, _)| id).eq(&ids[1..]));
}

#[test]
fn the_ports_of_an_engine_that_ends_leave_the_directory() {
    let (mut balancers, _workers) = balancers();
    let directory = balancers.shared.directory.clone();
    serve(&mut balancers, &port("closed", Scope::Cluster), &spec(&[1], &[]));
    serve(&mut balancers, &port("web", Scope::Local), &spec(&[1], &[]));
    balancers.close(&port("closed", Scope::Cluster));
    assert!(directory.serves(Family::V4).eq([port("web", Scope::Local)]));
    drop(balancers);
    assert_eq!(directory.serves(Family::V4).count(), 0);
}

/// A balancer with an endpoint that is removed as soon as nothing holds it.
fn with_endpoint() -> Balancer {
    let balancer = Balancer::new(None, DEFAULT_PENALTY);
    balancer.replace(&[([192, 0, 2, 1], 80).into()], []);
    balancer
}

#[test]
fn ports_that_are_gone_are_forgotten_with_their_endpoints() {
    let mut gone = GonePorts::default();
    for number in 0..4 * FIRST_SWEEP {
        gone.insert(&port(&format!("web-{number}"), Scope::Cluster), &with_endpoint());
        assert!(gone.of_ports.len() <= FIRST_SWEEP, "{number}");
    }
}

/// Otherwise a Service that goes would cost a look at all that went before.
#[test]
fn ports_that_are_gone_and_still_held_are_looked_through_each_time_their_number_doubles() {
    let mut gone = GonePorts::default();
    let (mut sweeps, mut before) = (Vec::new(), 0);
    let mut held = Vec::new();
    for number in 0..=4 * FIRST_SWEEP {
        let balancer = with_endpoint();
        held.extend(balancer.known());
        gone.insert(&port(&format!("web-{number}"), Scope::Cluster), &balancer);
        if gone.next_sweep != before {
            before = gone.next_sweep;
            sweeps.push(number);
        }
    }
    assert_eq!(sweeps, [0, FIRST_SWEEP, 2 * FIRST_SWEEP, 4 * FIRST_SWEEP]);
}
