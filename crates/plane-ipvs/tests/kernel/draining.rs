//! Graceful termination: an endpoint that goes keeps its TCP connections, with weight 0, while it is in the slices of its Service and
//! for the grace period after that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{pool, service};
use ferry_model::{Balance, PortState, Scheduler};
use ferry_plane::{SyncEngine, Unit, UnitId};
use ferry_plane_ipvs::IpvsEngine;

use crate::common::{
    GRACE, assert_idle, at, at_vip, change, endpoint, inside, only, open, port, servers, started_with, vip, wake, web,
};
use crate::flows::{Client, Connection, answer};

fn frontend(family: Family) -> SocketAddr {
    SocketAddr::new(vip(family, 60), 80)
}

/// The line of `ipvsadm` for an endpoint of the frontend.
fn line(family: Family, last: u8, weight: u32) -> String {
    format!("-a {} -r {} -m -w {weight}", at_vip(family, 60), endpoint(family, last))
}

fn offer(engine: &mut IpvsEngine, family: Family, endpoints: &[u8]) {
    engine.offer(change([web(family, "web", 60, endpoints)]));
    good(engine.sync(Instant::now()));
}

/// A service of these endpoints, and of others that are in its slices and get no new connections.
fn listing(family: Family, endpoints: &[u8], lingering: &[u8]) -> (UnitId, Option<Arc<Unit>>) {
    let port = port(family, Protocol::Tcp, 60, endpoints);
    service("web", vec![PortState { lingering: pool(family, lingering), ..port }])
}

/// Looks for what is due at this time, or a minute later: the longest interval of looks.
fn look(engine: &mut IpvsEngine, after: Instant) {
    assert_eq!(good(engine.tend(after + Duration::from_secs(60))).repairs, 0);
}

/// An engine with a service of endpoints 1 and 2, and a connection to each.
fn connected(family: Family) -> (IpvsEngine, Client, [Connection; 2]) {
    let client = Client::new(family);
    let mut delta = only(family, &[]);
    delta.units.extend([web(family, "web", 60, &[1, 2])]);
    let engine = started_with(family, delta);
    let mut connections = [(); 2].map(|()| client.connect(frontend(family)));
    connections.sort_by_key(|connection| connection.endpoint);
    assert_eq!(connections.each_ref().map(|connection| connection.endpoint), [1, 2]);
    (engine, client, connections)
}

fn assert_all_go_to(client: &Client, family: Family, endpoint: u8) {
    for _ in 0..4 {
        assert_eq!(client.connect(frontend(family)).endpoint, endpoint);
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_connection_outlives_its_endpoint() {
    inside(|family| {
        let (mut engine, client, [mut first, mut second]) = connected(family);
        offer(&mut engine, family, &[2]);
        assert!(servers().contains(&line(family, 1, 0)), "{:?}", servers());
        assert_all_go_to(&client, family, 2);
        let now = assert_idle(&mut engine, Instant::now(), 5, "it drains");
        assert!(first.lives() && second.lives());
        // A full comparison takes it for what it is.
        assert_eq!(good(engine.repair(now)).ops, 0);
        assert!(servers().contains(&line(family, 1, 0)));
        // It comes back.
        offer(&mut engine, family, &[1, 2]);
        assert!(servers().contains(&line(family, 1, 1)), "{:?}", servers());
        let ends: Vec<u8> = (0..4).map(|_| client.connect(frontend(family)).endpoint).collect();
        assert!(ends.contains(&1) && ends.contains(&2), "{ends:?}");
        assert!(first.lives());
        assert_idle(&mut engine, now, 5, "it serves");
        assert!(servers().contains(&line(family, 1, 1)));
    });
}

/// A hash keeps the place of an endpoint whose weight becomes 0, and IPVS would refuse the clients that it leads there.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn no_hash_leads_to_an_endpoint_that_drains() {
    for scheduler in [Scheduler::Sh, Scheduler::Mh] {
        inside(|family| {
            let client = Client::new(family);
            let hashed = |endpoints: &[u8]| {
                let mut port = port(family, Protocol::Tcp, 60, endpoints);
                port.balance = Some(Box::new(Balance { scheduler: Some(scheduler), weights: [].into() }));
                service("web", vec![port])
            };
            let mut delta = only(family, &[]);
            delta.units.extend([hashed(&[1, 2])]);
            let mut engine = started_with(family, delta);
            let mut connection = client.connect(frontend(family));
            let other = 3 - connection.endpoint;
            engine.offer(change([hashed(&[other])]));
            good(engine.sync(Instant::now()));
            assert!(servers().contains(&line(family, connection.endpoint, 0)), "{scheduler}: {:?}", servers());
            for _ in 0..16 {
                assert_eq!(client.connect(frontend(family)).endpoint, other, "{scheduler}");
            }
            assert!(connection.lives(), "{scheduler}");
        });
    }
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn an_endpoint_is_deleted_when_its_connections_have_ended() {
    inside(|family| {
        let (mut engine, client, [first, mut second]) = connected(family);
        offer(&mut engine, family, &[2]);
        first.reset();
        let limit = Instant::now() + Duration::from_secs(60);
        while servers().contains(&line(family, 1, 0)) {
            assert!(Instant::now() < limit, "{:?}", crate::common::run("ipvsadm", "-Lnc"));
            let now = Instant::now();
            let outcome = good(engine.tend(now));
            assert_eq!((outcome.repairs, outcome.ops), (0, 0), "{outcome:?}");
            std::thread::sleep(wake(&outcome, now).saturating_duration_since(Instant::now()));
        }
        assert!(second.lives());
        assert_all_go_to(&client, family, 2);
        let now = Instant::now();
        assert_eq!(good(engine.repair(now)).repairs, 0);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn an_endpoint_is_deleted_when_its_grace_period_is_over() {
    inside(|family| {
        let (mut engine, client, [mut first, mut second]) = connected(family);
        offer(&mut engine, family, &[2]);
        let left = Instant::now();
        good(engine.tend(left + GRACE - Duration::from_secs(10)));
        assert!(servers().contains(&line(family, 1, 0)) && first.lives());
        assert_eq!(good(engine.tend(left + GRACE + Duration::from_secs(60))).repairs, 0);
        assert!(!servers().contains(&line(family, 1, 0)), "{:?}", servers());
        assert!(!first.lives(), "it is reset");
        assert!(second.lives());
        assert_all_go_to(&client, family, 2);
    });
}

/// A Pod may take longer to terminate than the grace period, and a traffic policy or hints may deselect an endpoint that is well.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn the_grace_period_begins_when_the_endpoint_leaves_its_slices() {
    inside(|family| {
        let (mut engine, client, [mut first, mut second]) = connected(family);
        engine.offer(change([listing(family, &[2], &[1])]));
        assert_eq!(good(engine.sync(Instant::now())).ops, 1);
        let deselected = Instant::now();
        look(&mut engine, deselected + 2 * GRACE);
        assert_eq!(good(engine.repair(deselected + 3 * GRACE)).ops, 0);
        look(&mut engine, deselected + 4 * GRACE);
        assert!(servers().contains(&line(family, 1, 0)) && first.lives(), "{:?}", servers());
        // A restart knows that it is listed.
        let restarted = || {
            let mut delta = only(family, &[]);
            delta.units.extend([listing(family, &[2], &[1])]);
            let mut engine = open(family);
            engine.offer(delta);
            assert_eq!(good(engine.sync(Instant::now())).ops, 0);
            engine
        };
        drop(engine);
        let mut engine = restarted();
        look(&mut engine, Instant::now() + 4 * GRACE);
        assert!(servers().contains(&line(family, 1, 0)) && first.lives(), "{:?}", servers());
        // Nothing is written for an endpoint that leaves the slices. Another engine, whose looks are not so far ahead.
        drop(engine);
        let mut engine = restarted();
        engine.offer(change([listing(family, &[2], &[])]));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0);
        let left = Instant::now();
        look(&mut engine, left + GRACE - Duration::from_secs(120));
        assert!(servers().contains(&line(family, 1, 0)) && first.lives(), "{:?}", servers());
        look(&mut engine, left + GRACE);
        assert!(!servers().contains(&line(family, 1, 0)), "{:?}", servers());
        assert!(!first.lives() && second.lives());
        assert_all_go_to(&client, family, 2);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_restart_finds_what_drains() {
    inside(|family| {
        let (mut engine, client, [mut first, _second]) = connected(family);
        offer(&mut engine, family, &[2]);
        drop(engine);
        let mut engine = open(family);
        let mut delta = only(family, &[]);
        delta.units.extend([web(family, "web", 60, &[2])]);
        engine.offer(delta);
        let now = Instant::now();
        assert_eq!(good(engine.sync(now)).ops, 0);
        assert_idle(&mut engine, now, 5, "it drains");
        assert!(first.lives() && servers().contains(&line(family, 1, 0)));
        assert_all_go_to(&client, family, 2);
        // It comes back after another restart.
        drop(engine);
        let mut engine = open(family);
        let mut delta = only(family, &[]);
        delta.units.extend([web(family, "web", 60, &[1, 2])]);
        engine.offer(delta);
        assert_eq!(good(engine.sync(Instant::now())).ops, 1);
        assert!(servers().contains(&line(family, 1, 1)) && first.lives());
        // A new grace period begins at the restart.
        offer(&mut engine, family, &[2]);
        drop(engine);
        let mut engine = open(family);
        let mut delta = only(family, &[]);
        delta.units.extend([web(family, "web", 60, &[2])]);
        engine.offer(delta);
        good(engine.sync(Instant::now()));
        good(engine.tend(Instant::now() + GRACE + Duration::from_secs(60)));
        assert!(!servers().contains(&line(family, 1, 0)), "{:?}", servers());
        assert!(!first.lives());
    });
}

/// The last endpoint goes: new connections are refused by the table, established ones go on.
#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_service_without_endpoints_refuses_and_lets_connections_end() {
    inside(|family| {
        let (mut engine, client, connections) = connected(family);
        offer(&mut engine, family, &[]);
        assert!(client.is_refused(frontend(family)));
        for mut connection in connections {
            assert!(connection.lives());
        }
        assert_idle(&mut engine, Instant::now(), 3, "both drain");
        offer(&mut engine, family, &[2]);
        assert_all_go_to(&client, family, 2);
    });
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn endpoints_of_udp_are_deleted_at_once() {
    inside(|family| {
        let client = Client::new(family);
        let mut delta = only(family, &[]);
        delta.units.extend([service("dns", vec![port(family, Protocol::Udp, 60, &[1, 2])])]);
        let mut engine = started_with(family, delta);
        let flows = [(); 2].map(|()| client.flow(frontend(family)));
        let used = flows.each_ref().map(|flow| answer(flow).unwrap());
        assert!(used.contains(&1) && used.contains(&2), "{used:?}");
        engine.offer(change([service("dns", vec![port(family, Protocol::Udp, 60, &[2])])]));
        good(engine.sync(Instant::now()));
        let udp = at(Protocol::Udp, vip(family, 60), 80);
        let listed = servers();
        let of_server = listed.iter().filter(|line| line.starts_with(&format!("-a {udp}"))).collect::<Vec<_>>();
        assert_eq!(of_server, [&format!("-a {udp} -r {} -m -w 1", endpoint(family, 2))]);
        for flow in &flows {
            flow.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            // The first datagram may end the old connection, and gets no answer then.
            assert!((0..20).any(|_| answer(flow) == Some(2)));
        }
    });
}
