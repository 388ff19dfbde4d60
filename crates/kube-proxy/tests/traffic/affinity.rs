//! Session affinity ClientIP.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use ferry_testkit::lab::client_address;
use ferry_testkit::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_testkit::{Checks, Family, Manifests, Place, Protocol, Service, Stage};

use crate::support::stage;

/// Of the memories that are to run out.
const TIMEOUT: Duration = Duration::from_secs(3);
const ALL_PODS: [Place; 3] = [Place::PodA, Place::PodB, Place::Far];

/// Which endpoint each client has.
type Picks = BTreeMap<IpAddr, String>;

/// Sixteen clients, eight of each family: that all of them pick alike by chance happens once in forty million times.
fn clients() -> Vec<IpAddr> {
    Family::ALL.into_iter().flat_map(|family| (20..28).map(move |number| client_address(family, number))).collect()
}

/// Each client connects so many times; what it got, if that was always the same.
fn picks(
    stage: &Stage<'_>,
    checks: &mut Checks,
    what: &str,
    protocol: Protocol,
    times: usize,
    at: impl Fn(Family) -> SocketAddr,
) -> Picks {
    let mut picks = Picks::new();
    for source in clients() {
        let client = stage.lab.from(Place::Client).bound_to(source);
        let tally = client.ask(protocol, at(Family::of(source)), times);
        let endpoints = tally.endpoints();
        checks.that(tally.all_answered() && endpoints.len() == 1, || format!("{what}, {source}: {tally}"));
        if let Some((endpoint, _)) = endpoints.first_key_value() {
            picks.insert(source, (*endpoint).to_owned());
        }
    }
    picks
}

fn cluster(number: u16) -> impl Fn(Family) -> SocketAddr {
    move |family| at_cluster_ip(family, number)
}

fn node_port(port: u16) -> impl Fn(Family) -> SocketAddr {
    move |family| at_node_port(family, port)
}

fn sticky(name: &str, number: u8, seconds: u32) -> Service {
    Service::new(name, number.into()).node_port(30000 + u16::from(number)).external_ip(number).affinity(seconds)
}

#[test]
fn a_client_keeps_its_endpoint_whichever_frontend_it_uses() {
    let manifests = Manifests::new().with(sticky("sticky", 30, 10800), &ALL_PODS);
    let stage = stage(&manifests);
    let mut checks = Checks::new();
    let first = picks(&stage, &mut checks, "cluster IP", Protocol::Tcp, 10, cluster(30));
    let distinct: std::collections::BTreeSet<_> = first.values().collect();
    checks.that(distinct.len() > 1, || format!("all clients have one endpoint: {first:?}"));
    let second = picks(&stage, &mut checks, "node port", Protocol::Tcp, 5, node_port(30030));
    checks.that(first == second, || {
        format!("the node port doesn't know what the cluster IP does: {first:?}, {second:?}")
    });
    let third = picks(&stage, &mut checks, "external IP", Protocol::Tcp, 5, |family| at_external_ip(family, 30));
    checks.that(first == third, || {
        format!("the external IP doesn't know what the cluster IP does: {first:?}, {third:?}")
    });
}

#[test]
fn services_that_share_all_endpoints_keep_apart_memories() {
    let manifests =
        Manifests::new().with(sticky("sticky", 30, 10800), &ALL_PODS).with(sticky("twin", 31, 10800), &ALL_PODS);
    let stage = stage(&manifests);
    let mut checks = Checks::new();
    // learnt through the node port here, and through the cluster IP there
    let one = picks(&stage, &mut checks, "one", Protocol::Tcp, 5, node_port(30030));
    let other = picks(&stage, &mut checks, "other", Protocol::Tcp, 5, cluster(31));
    checks.that(one != other, || format!("both services have the same memory: {one:?}"));
    let again = picks(&stage, &mut checks, "one again", Protocol::Tcp, 5, cluster(30));
    checks.that(one == again, || format!("the other service disturbed it: {one:?}, {again:?}"));
    let again = picks(&stage, &mut checks, "other again", Protocol::Tcp, 5, node_port(30031));
    checks.that(other == again, || format!("the other service disturbed it: {other:?}, {again:?}"));
}

#[test]
fn a_memory_is_refreshed_by_use_and_runs_out_without() {
    let service = Service::new("brief", 32).protocols(&[Protocol::Tcp, Protocol::Udp]).affinity(3);
    let stage = stage(&Manifests::new().with(service, &ALL_PODS));
    let mut checks = Checks::new();
    let look = |checks: &mut Checks, what: &str| {
        [Protocol::Tcp, Protocol::Udp].map(|protocol| picks(&stage, checks, what, protocol, 1, cluster(32)))
    };
    let first = look(&mut checks, "first");
    for round in 0..3 {
        sleep(Duration::from_secs(2));
        let now = look(&mut checks, "refreshed");
        checks.that(now == first, || format!("after {} s of use: {first:?}, {now:?}", 2 * (round + 1)));
    }
    sleep(TIMEOUT + Duration::from_millis(700));
    let late = look(&mut checks, "late");
    for (first, late) in first.iter().zip(&late) {
        checks.that(late != first, || format!("nothing was forgotten: {late:?}"));
    }
}

#[test]
fn a_client_of_a_removed_endpoint_moves_once_and_stays() {
    let service = sticky("sticky", 33, 10800);
    let two = Manifests::new().with(service.clone(), &[Place::PodB, Place::Far]);
    let three = Manifests::new().with(service, &ALL_PODS);
    let mut stage = stage(&three);
    let mut checks = Checks::new();
    let before = picks(&stage, &mut checks, "before", Protocol::Tcp, 3, cluster(33));
    stage.set(&two);
    let after = picks(&stage, &mut checks, "after", Protocol::Tcp, 10, cluster(33));
    for (client, endpoint) in &after {
        let had = before.get(client);
        checks.that(endpoint != "pod-a:8080", || format!("{client} still has the removed endpoint"));
        let had_it = had.is_some_and(|had| had == "pod-a:8080");
        checks.that(had_it || had == Some(endpoint), || format!("{client} moved without need: {had:?} to {endpoint}"));
    }
    // the endpoint is back, with no claim to its former clients
    stage.set(&three);
    let back = picks(&stage, &mut checks, "back", Protocol::Tcp, 3, node_port(30033));
    checks.that(back == after, || format!("clients moved when an endpoint came: {after:?}, {back:?}"));
}

#[test]
fn affinity_holds_under_policy_local_too() {
    let service = sticky("edge", 34, 10800).external_local();
    let stage = stage(&Manifests::new().with(service, &ALL_PODS));
    let mut checks = Checks::new();
    let external = |family| at_external_ip(family, 34);
    let first = picks(&stage, &mut checks, "external IP", Protocol::Tcp, 10, external);
    checks.that(first.values().all(|endpoint| endpoint != "far:8080"), || format!("not local: {first:?}"));
    let distinct: std::collections::BTreeSet<_> = first.values().collect();
    checks.that(distinct.len() == 2, || format!("all clients have one endpoint: {first:?}"));
    let second = picks(&stage, &mut checks, "node port", Protocol::Tcp, 5, node_port(30034));
    checks.that(first == second, || {
        format!("the node port doesn't know what the external IP does: {first:?}, {second:?}")
    });
    for family in Family::ALL {
        for from in [Place::PodB, Place::Node] {
            let tally = stage.lab.from(from).tcp(external(family), 10);
            checks.that(tally.all_answered() && tally.endpoints().len() == 1, || {
                format!("{family} external IP from {from:?}, the short way: {tally}")
            });
        }
    }
}

#[test]
fn affinity_switched_on_and_off_takes_effect() {
    let plain = Service::new("turning", 35);
    let mut stage = stage(&Manifests::new().with(plain.clone(), &ALL_PODS));
    let mut checks = Checks::new();
    stage.set(&Manifests::new().with(plain.clone().affinity(10800), &ALL_PODS));
    picks(&stage, &mut checks, "on", Protocol::Tcp, 10, cluster(35));
    stage.set(&Manifests::new().with(plain, &ALL_PODS));
    for family in Family::ALL {
        let client = stage.lab.from(Place::Client).bound_to(client_address(family, 20));
        let tally = client.tcp(at_cluster_ip(family, 35), 40);
        checks.that(tally.all_answered() && tally.endpoints().len() == 3, || format!("{family}, off: {tally}"));
    }
    let ruleset = ferry_testkit::nft::list(stage.node());
    checks.that(!ruleset.contains("dynamic"), || format!("a memory is left:\n{ruleset}"));
}
