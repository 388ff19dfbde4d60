//! Session affinity ClientIP.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use ferry_lab::lab::client_address;
use ferry_lab::objects::{EndpointCondition, at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::{Checks, Family, LabMachine, Manifests, Protocol, Stage, TestService};

use crate::support::stage;

/// Affinity timeout of the services whose affinity expires.
const TIMEOUT: Duration = Duration::from_secs(3);
const ALL_PODS: [LabMachine; 3] = [LabMachine::PodA, LabMachine::PodB, LabMachine::Far];

/// Endpoint by client.
type Picks = BTreeMap<IpAddr, String>;

/// Sixteen clients, eight of each family: that all of them pick alike by chance happens once in forty million times.
fn clients() -> Vec<IpAddr> {
    Family::ALL.into_iter().flat_map(|family| (20..28).map(move |number| client_address(family, number))).collect()
}

/// Each client connects several times; returns its endpoint if that was always the same.
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
        let client = stage.lab.from(LabMachine::Client).bound_to(source);
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

fn external(number: u8) -> impl Fn(Family) -> SocketAddr {
    move |family| at_external_ip(family, number)
}

/// The clients that had one of these endpoints.
fn of(picks: &Picks, endpoints: &[&str]) -> Picks {
    let has = |endpoint: &String| endpoints.contains(&endpoint.as_str());
    picks.iter().filter(|(_, endpoint)| has(endpoint)).map(|(client, endpoint)| (*client, endpoint.clone())).collect()
}

/// Checks that clients in both have the same endpoint.
fn agree(checks: &mut Checks, what: &str, had: &Picks, has: &Picks) {
    let same = had.iter().all(|(client, endpoint)| has.get(client) == Some(endpoint));
    checks.that(same && !had.is_empty(), || format!("{what}: had {had:?}, has {has:?}"));
}

fn sticky(name: &str, number: u8, seconds: u32) -> TestService {
    TestService::new(name, number.into()).node_port(30000 + u16::from(number)).external_ip(number).affinity(seconds)
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
    let service = TestService::new("brief", 32).protocols(&[Protocol::Tcp, Protocol::Udp]).affinity(3);
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
    let two = Manifests::new().with(service.clone(), &[LabMachine::PodB, LabMachine::Far]);
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
        for from in [LabMachine::PodB, LabMachine::Node] {
            let tally = stage.lab.from(from).tcp(external(family), 10);
            checks.that(tally.all_answered() && tally.endpoints().len() == 1, || {
                format!("{family} external IP from {from:?}, the short way: {tally}")
            });
        }
    }
}

#[test]
fn what_ends_at_this_node_is_remembered_under_either_policy() {
    const HERE: [&str; 2] = ["pod-a:8080", "pod-b:8080"];
    let both = [Protocol::Tcp, Protocol::Udp];
    let service = |name, number| sticky(name, number, 10800).protocols(&both).external_local();
    let manifests =
        Manifests::new().with(service("from-cluster", 36), &ALL_PODS).with(service("from-local", 37), &ALL_PODS);
    let stage = stage(&manifests);
    let mut checks = Checks::new();
    for protocol in both {
        // first by the cluster IP: who got an endpoint of this node keeps it everywhere
        let inner = picks(&stage, &mut checks, "cluster IP first", protocol, 5, cluster(36));
        let outer = picks(&stage, &mut checks, "then external IP", protocol, 5, external(36));
        agree(&mut checks, "external IP after cluster IP", &of(&inner, &HERE), &outer);
        checks.that(of(&outer, &HERE).len() == outer.len(), || format!("policy Local led away: {outer:?}"));
        let ports = picks(&stage, &mut checks, "then node port", protocol, 3, node_port(30036));
        agree(&mut checks, "node port after external IP", &outer, &ports);
        // who got one elsewhere has two memories: one for each policy
        let again = picks(&stage, &mut checks, "cluster IP again", protocol, 3, cluster(36));
        agree(&mut checks, "cluster IP after external IP", &inner, &again);
        // first by the node port, of another service with the same endpoints
        let outer = picks(&stage, &mut checks, "node port first", protocol, 5, node_port(30037));
        let inner = picks(&stage, &mut checks, "then cluster IP", protocol, 5, cluster(37));
        agree(&mut checks, "cluster IP after node port", &outer, &inner);
        let first = picks(&stage, &mut checks, "the first service again", protocol, 1, external(36));
        agree(&mut checks, "the first service after the second", &ports, &first);
        checks.that(first != outer, || format!("both services have one memory: {first:?}"));
    }
}

#[test]
fn either_policy_refreshes_what_both_remember() {
    let service = |name, number| sticky(name, number, 3).external_local();
    let two = [LabMachine::PodA, LabMachine::PodB];
    let stage = stage(&Manifests::new().with(service("inner", 38), &two).with(service("outer", 39), &two));
    let mut checks = Checks::new();
    let inner = picks(&stage, &mut checks, "cluster IP", Protocol::Tcp, 1, cluster(38));
    let outer = picks(&stage, &mut checks, "external IP", Protocol::Tcp, 1, external(39));
    for _ in 0..3 {
        sleep(Duration::from_secs(2));
        let used = picks(&stage, &mut checks, "refreshed by the other", Protocol::Tcp, 1, external(38));
        agree(&mut checks, "external IP after cluster IP", &inner, &used);
        let used = picks(&stage, &mut checks, "refreshed by the other", Protocol::Tcp, 1, cluster(39));
        agree(&mut checks, "cluster IP after external IP", &outer, &used);
    }
    // six seconds after the first and only use
    let again = picks(&stage, &mut checks, "cluster IP again", Protocol::Tcp, 1, cluster(38));
    agree(&mut checks, "cluster IP, refreshed by the external IP", &inner, &again);
    let again = picks(&stage, &mut checks, "external IP again", Protocol::Tcp, 1, external(39));
    agree(&mut checks, "external IP, refreshed by the cluster IP", &outer, &again);
    sleep(TIMEOUT + Duration::from_millis(700));
    let late = picks(&stage, &mut checks, "late", Protocol::Tcp, 1, external(38));
    checks.that(late != inner, || format!("nothing was forgotten: {late:?}"));
}

#[test]
fn an_endpoint_that_goes_moves_its_clients_under_both_policies() {
    let service = sticky("edge", 45, 10800).external_local();
    let with = |at: &[LabMachine]| Manifests::new().with(service.clone(), at);
    let mut stage = stage(&with(&ALL_PODS));
    let mut checks = Checks::new();
    let look = |stage: &Stage<'_>, checks: &mut Checks, what: &str| {
        let inner = picks(stage, checks, &format!("{what}, cluster IP"), Protocol::Tcp, 3, cluster(45));
        let outer = picks(stage, checks, &format!("{what}, node port"), Protocol::Tcp, 3, node_port(30045));
        [inner, outer]
    };
    let before = look(&stage, &mut checks, "before");
    stage.set(&with(&[LabMachine::PodB, LabMachine::Far]));
    let after = look(&stage, &mut checks, "after");
    for (before, after) in before.iter().zip(&after) {
        agree(&mut checks, "clients of those that stayed", &of(before, &["pod-b:8080", "far:8080"]), after);
        checks.that(of(after, &["pod-a:8080"]).is_empty(), || format!("some still have what is gone: {after:?}"));
    }
    checks.that(of(&after[1], &["pod-b:8080"]).len() == after[1].len(), || format!("not local: {:?}", after[1]));
    // the last one here goes: from outside nothing answers, and the cluster IP leads away
    stage.set(&with(&[LabMachine::Far]));
    let away = picks(&stage, &mut checks, "none here", Protocol::Tcp, 2, cluster(45));
    checks.that(of(&away, &["far:8080"]).len() == away.len(), || format!("{away:?}"));
    for family in Family::ALL {
        let silence = stage.lab.from(LabMachine::Client).silence(Protocol::Tcp, at_external_ip(family, 45));
        checks.silent(&format!("{family} external IP, none here"), &silence);
    }
}

#[test]
fn affinity_holds_under_internal_policy_local() {
    let service = sticky("inner", 46, 10800).protocols(&[Protocol::Tcp, Protocol::Udp]).internal_local();
    let stage = stage(&Manifests::new().with(service, &ALL_PODS));
    let mut checks = Checks::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let inner = picks(&stage, &mut checks, "cluster IP", protocol, 6, cluster(46));
        checks.that(of(&inner, &["far:8080"]).is_empty(), || format!("policy Local led away: {inner:?}"));
        let outer = picks(&stage, &mut checks, "external IP", protocol, 4, external(46));
        agree(&mut checks, "external IP after cluster IP", &inner, &outer);
    }
    for family in Family::ALL {
        for from in [LabMachine::PodA, LabMachine::PodB, LabMachine::Node] {
            let tally = stage.lab.from(from).tcp(at_cluster_ip(family, 46), 10);
            let one = tally.endpoints().len() == 1 && !tally.endpoints().contains_key("far:8080");
            checks.that(tally.all_answered() && one, || format!("{family} cluster IP from {from:?}: {tally}"));
        }
    }
}

#[test]
fn another_timeout_holds_from_the_next_connection_on() {
    let service = |seconds| sticky("aging", 47, seconds).external_local();
    let with = |seconds| Manifests::new().with(service(seconds), &[LabMachine::PodA, LabMachine::PodB]);
    let mut stage = stage(&with(3));
    let mut checks = Checks::new();
    let first = picks(&stage, &mut checks, "brief", Protocol::Tcp, 1, external(47));
    stage.set(&with(10800));
    let longer = picks(&stage, &mut checks, "long", Protocol::Tcp, 1, external(47));
    agree(&mut checks, "the change of the timeout forgets nobody", &first, &longer);
    sleep(TIMEOUT + Duration::from_millis(700));
    let late = picks(&stage, &mut checks, "long, late", Protocol::Tcp, 1, cluster(47));
    agree(&mut checks, "the longer timeout", &first, &late);
    stage.set(&with(3));
    let brief = picks(&stage, &mut checks, "brief again", Protocol::Tcp, 1, external(47));
    agree(&mut checks, "the change of the timeout forgets nobody", &first, &brief);
    sleep(TIMEOUT + Duration::from_millis(700));
    let late = picks(&stage, &mut checks, "brief, late", Protocol::Tcp, 1, external(47));
    checks.that(late != first, || format!("nothing was forgotten: {late:?}"));
}

#[test]
fn a_terminating_endpoint_keeps_its_clients_only_where_none_is_ready() {
    let service = sticky("ending", 48, 10800).external_local();
    let with = |a, b, far| {
        let endpoints =
            service.endpoints(8080, &[]).and(LabMachine::PodA, a).and(LabMachine::PodB, b).and(LabMachine::Far, far);
        Manifests::new().with_endpoints(service.clone(), endpoints)
    };
    use EndpointCondition::{Ready, Terminating, Unready};
    let mut stage = stage(&with(Ready, Ready, Unready));
    let mut checks = Checks::new();
    let first = picks(&stage, &mut checks, "both ready", Protocol::Tcp, 3, external(48));
    stage.set(&with(Terminating, Ready, Unready));
    let moved = picks(&stage, &mut checks, "one ready", Protocol::Tcp, 3, cluster(48));
    checks.that(of(&moved, &["pod-b:8080"]).len() == moved.len(), || format!("not to the ready one: {moved:?}"));
    agree(&mut checks, "clients of the ready one", &of(&first, &["pod-b:8080"]), &moved);
    // none is ready: both serve until they end, and who has one keeps it
    stage.set(&with(Terminating, Terminating, Unready));
    let last = picks(&stage, &mut checks, "none ready", Protocol::Tcp, 3, external(48));
    agree(&mut checks, "clients of the one that was ready last", &moved, &last);
    // ready elsewhere: the cluster IP goes there, and policy Local stays with what serves here
    stage.set(&with(Terminating, Terminating, Ready));
    let away = picks(&stage, &mut checks, "ready elsewhere", Protocol::Tcp, 3, cluster(48));
    checks.that(of(&away, &["far:8080"]).len() == away.len(), || format!("not to the ready one: {away:?}"));
    let here = picks(&stage, &mut checks, "ending here", Protocol::Tcp, 3, external(48));
    agree(&mut checks, "clients of what serves here", &last, &here);
}

#[test]
fn affinity_switched_on_and_off_takes_effect() {
    let plain = TestService::new("turning", 35);
    let mut stage = stage(&Manifests::new().with(plain.clone(), &ALL_PODS));
    let mut checks = Checks::new();
    stage.set(&Manifests::new().with(plain.clone().affinity(10800), &ALL_PODS));
    picks(&stage, &mut checks, "on", Protocol::Tcp, 10, cluster(35));
    stage.set(&Manifests::new().with(plain, &ALL_PODS));
    for family in Family::ALL {
        let client = stage.lab.from(LabMachine::Client).bound_to(client_address(family, 20));
        let tally = client.tcp(at_cluster_ip(family, 35), 40);
        checks.that(tally.all_answered() && tally.endpoints().len() == 3, || format!("{family}, off: {tally}"));
    }
    let ruleset = ferry_lab::nft::list(stage.node());
    checks.that(!ruleset.contains("dynamic"), || format!("a memory is left:\n{ruleset}"));
}
