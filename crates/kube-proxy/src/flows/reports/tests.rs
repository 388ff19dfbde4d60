use std::net::IpAddr;

use ferry_api::object::Protocol;
use ferry_model::RightFlows;
use ferry_model::state::{
    Action, Endpoint, Frontend, NodePortAddresses, Pool, PortState, Scope, Snat, SourceRanges, Treatment,
};
use ferry_plane::mailbox::{Arrival, Mailbox};
use ferry_plane::{CommitError, UnitId};

use super::super::testing::Holds;
use super::*;

fn vip(n: u8, port: u16) -> (FrontendKind, FrontendAddr) {
    (FrontendKind::ExternalIp, FrontendAddr::Vip(IpAddr::from([10, 96, 0, n]), port))
}

fn node_port(port: u16) -> (FrontendKind, FrontendAddr) {
    (FrontendKind::NodePort, FrontendAddr::NodePort(port))
}

/// A Service with one port, these frontends and these endpoints.
fn unit(name: &str, protocol: Protocol, frontends: &[(FrontendKind, FrontendAddr)], endpoints: &[u8]) -> Arc<Unit> {
    let endpoint = |n: &u8| Endpoint { address: IpAddr::from([10, 1, 0, *n]), port: 53 };
    let forward = Action::Forward { to: Scope::Cluster, snat: Snat::Keep };
    let treatment = Treatment::all(if endpoints.is_empty() { Action::Reject } else { forward });
    Arc::new(Unit::Service(ServiceState {
        name: ObjectName::new("default", name),
        health_check: None,
        ports: vec![PortState {
            name: "".into(),
            protocol,
            affinity: None,
            cluster: Pool::new(endpoints.iter().map(endpoint).collect::<Vec<_>>()),
            local: Pool::default(),
            lingering: Pool::default(),
            balance: None,
            shadowed: None,
            frontends: frontends
                .iter()
                .map(|(kind, at)| Frontend { kind: *kind, at: *at, sources: SourceRanges::Any, treatment })
                .collect(),
        }],
    }))
}

fn base_unit(addresses: NodePortAddresses) -> Arc<Unit> {
    Arc::new(Unit::Base(BaseState {
        node_ports: addresses,
        localhost: false,
        service_cidrs: Vec::new(),
        affinity: false,
    }))
}

fn acked(before: Option<&Arc<Unit>>, after: Option<&Arc<Unit>>) -> Acknowledged {
    Acknowledged { id: UnitId::Base, before: before.cloned(), after: after.cloned() }
}

fn outcome(acked: Vec<Acknowledged>) -> Outcome {
    Outcome { acked, ..Outcome::default() }
}

/// The rules taken after such a pass: frontends, each with its number of endpoints.
fn queued(outcome: &Outcome, units: &[&Arc<Unit>]) -> Vec<(FrontendAddr, usize)> {
    queued_by(&Arc::new(FlowReports::default()), outcome, units)
}

fn queued_by(reports: &Arc<FlowReports>, outcome: &Outcome, units: &[&Arc<Unit>]) -> Vec<(FrontendAddr, usize)> {
    let mut observer = reports.observer(Family::V4);
    observer.begin();
    observer.end(outcome, &Holds(units.iter().map(|unit| Unit::clone(unit)).collect()));
    let taken = reports.take(Family::V4, Instant::now());
    assert!(reports.take(Family::V6, Instant::now()).right.is_empty());
    let count = |right: &RightFlows| match right {
        RightFlows::To(pools) | RightFlows::ToOrUntranslated(pools) => pools.iter().map(Pool::len).sum(),
        RightFlows::Answered | RightFlows::Untranslated => 0,
    };
    taken.right.iter().map(|((_, at), right)| (*at, count(right))).collect()
}

#[test]
fn an_endpoint_that_goes_is_told() {
    let frontends = [vip(1, 53)];
    let (two, one) = (unit("a", Protocol::Udp, &frontends, &[1, 2]), unit("a", Protocol::Udp, &frontends, &[1]));
    let at = frontends[0].1;
    assert_eq!(queued(&outcome(vec![acked(Some(&two), Some(&one))]), &[]), [(at, 1)]);
    assert_eq!(queued(&outcome(vec![acked(Some(&one), Some(&two))]), &[]), [], "one that comes is not");
    assert_eq!(queued(&outcome(vec![acked(Some(&two), None)]), &[]), [(at, 0)]);
    assert_eq!(queued(&outcome(vec![acked(Some(&two), Some(&two))]), &[]), []);
    assert_eq!(queued(&outcome(vec![acked(None, Some(&two))]), &[]), [(at, 2)], "at a start, whatever was adopted");
}

const UDP: Protocol = Protocol::Udp;

/// Rules were adopted, or another proxy's removed: translated flows of frontends without a service go.
#[test]
fn what_earlier_rules_served_is_told() {
    let (here, gone, port) = (vip(1, 53), vip(2, 53), node_port(30053));
    let one = unit("a", UDP, &[here, port], &[1]);
    let served = |protocol| {
        let all = [here, gone, port, node_port(30054)].map(|(_, at)| Served::Frontend(protocol, at));
        all.into_iter().chain([Served::NodePorts(IpAddr::from([192, 0, 2, 9]))]).collect::<Vec<_>>()
    };
    let on = |number| FrontendAddr::Vip(IpAddr::from([192, 0, 2, 9]), number);
    let wanted = [(here.1, 1), (gone.1, 0), (on(30053), 0), (on(30054), 0), (port.1, 1), (node_port(30054).1, 0)];
    let adopted = Outcome { unserved: served(UDP), ..outcome(vec![acked(None, Some(&one))]) };
    assert_eq!(queued(&adopted, &[&one]), wanted);
    let reports = Arc::new(FlowReports::default());
    let (mailbox, receiver) = Mailbox::new();
    reports.observer(Family::V4).wake_by(receiver.waker());
    reports.mislead(Family::V4, served(UDP));
    assert_eq!(receiver.wait(Some(Duration::ZERO)), Arrival::Woken, "the sync pass that reports it comes at once");
    drop(mailbox);
    assert_eq!(queued_by(&reports, &Outcome::default(), &[&one]), wanted);
    // the flows of TCP end by themselves
    let adopted = Outcome { unserved: served(Protocol::Tcp), ..Outcome::default() };
    assert_eq!(queued(&adopted, &[&one]), []);
}

/// Rules that a failed sync pass has removed are not found by the next one.
#[test]
fn frontends_of_rules_removed_by_a_failed_sync_pass_are_reported_by_the_next() {
    let (gone, port) = (vip(2, 53), node_port(30053));
    let one = unit("a", UDP, &[port], &[1]);
    let unserved = vec![Served::Frontend(UDP, gone.1), Served::NodePortsEverywhere];
    let error = Some(Arc::new(CommitError::Busy(std::io::ErrorKind::ResourceBusy.into())));
    let failed = Outcome { unserved, error, ..Outcome::default() };
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    let mut sync = |outcome: &Outcome, units: &[&Arc<Unit>]| {
        observer.begin();
        observer.end(outcome, &Holds(units.iter().map(|unit| Unit::clone(unit)).collect()));
        let taken = reports.take(Family::V4, Instant::now());
        reports.done(Family::V4);
        (taken.right.into_keys().map(|(_, at)| at).collect::<Vec<_>>(), taken.left.len())
    };
    sync(&failed, &[]);
    sync(&failed, &[]);
    assert_eq!(sync(&outcome(vec![acked(None, Some(&one))]), &[&one]), (vec![gone.1, port.1], 1));
    assert_eq!(sync(&outcome(vec![]), &[&one]), (vec![], 0), "once");
}

/// Of a frontend that is gone nothing is left, and the node port of its number decides where the address is the node's.
#[test]
fn a_node_port_is_told_with_an_address_of_its_number_that_goes() {
    let old = unit("a", UDP, &[vip(7, 30053)], &[1]);
    let other = unit("b", UDP, &[node_port(30053), node_port(30054)], &[2, 3]);
    let sync = outcome(vec![acked(Some(&old), None)]);
    assert_eq!(queued(&sync, &[&other]), [(vip(7, 30053).1, 0), (node_port(30053).1, 2)]);
}

#[test]
fn churn_of_tcp_takes_no_lock() {
    let frontends = [vip(1, 53), node_port(30053)];
    let unit = |endpoints: &[u8]| unit("a", Protocol::Tcp, &frontends, endpoints);
    let (two, one) = (unit(&[1, 2]), unit(&[1]));
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    let held = reports.lock();
    thread::scope(|scope| {
        let passes = scope.spawn(|| {
            for (before, after) in [(&two, &one), (&one, &two)] {
                observer.begin();
                observer.end(&outcome(vec![acked(Some(before), Some(after))]), &Holds(Vec::new()));
            }
        });
        let start = Instant::now();
        while !passes.is_finished() && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(POLL);
        }
        assert!(passes.is_finished(), "it waits for the lock");
        drop(held);
    });
}

#[test]
fn a_frontend_that_changes_hands_in_one_sync_pass_is_its_new_owners() {
    let at = [vip(1, 53)];
    let (old, new) = (unit("a", Protocol::Udp, &at, &[1, 2]), unit("b", Protocol::Udp, &at, &[3]));
    let bare = |name| unit(name, Protocol::Udp, &[], &[3]);
    let (from, to) = (acked(Some(&old), Some(&bare("a"))), acked(Some(&bare("b")), Some(&new)));
    assert_eq!(queued(&outcome(vec![from.clone(), to.clone()]), &[]), [(at[0].1, 1)]);
    assert_eq!(queued(&outcome(vec![to, from]), &[]), [(at[0].1, 1)]);
}

#[test]
fn after_a_repair_everything_that_packets_may_have_passed_by_is_looked_at() {
    let one = unit("a", Protocol::Udp, &[vip(1, 53), node_port(30053)], &[1]);
    let two = unit("b", Protocol::Tcp, &[vip(2, 80)], &[1]);
    let queued = |damaged| {
        let repaired = Outcome { damaged: Some(damaged), ..Outcome::default() };
        queued(&repaired, &[&one, &two, &base_unit(NodePortAddresses::All)])
    };
    assert_eq!(queued(Extent::All), [(vip(2, 80).1, 0), (vip(1, 53).1, 1), (node_port(30053).1, 1)]);
    let of = |name| UnitId::Service(ObjectName::new("default", name));
    assert_eq!(queued(Extent::Keys(vec![of("a")])), [(vip(1, 53).1, 1), (node_port(30053).1, 1)]);
    assert_eq!(queued(Extent::Keys(vec![of("b"), of("gone")])), [(vip(2, 80).1, 0)]);
    assert_eq!(queued(Extent::Keys(Vec::new())), []);
}

#[test]
fn after_other_rules_have_gone_everything_is_looked_at_once() {
    let one = Unit::clone(&unit("a", Protocol::Udp, &[vip(1, 53), node_port(30053)], &[1]));
    let (reports, now) = (Arc::new(FlowReports::default()), Instant::now());
    let mut observer = reports.observer(Family::V4);
    reports.mislead(Family::V4, Vec::new());
    reports.mislead(Family::V6, Vec::new());
    observer.end(&Outcome::default(), &Holds(vec![one.clone()]));
    assert_eq!(reports.take(Family::V4, Instant::now()).right.len(), 2);
    reports.done(Family::V4);
    observer.end(&Outcome::default(), &Holds(vec![one]));
    assert!(reports.take(Family::V4, now + POLL).right.is_empty(), "nothing new");
}

#[test]
fn other_addresses_of_node_ports_are_looked_at() {
    let only = |n: u8| base_unit(NodePortAddresses::Only(vec![IpAddr::from([192, 0, 2, n])]));
    let (one, two) = (only(1), only(2));
    let service = unit("a", Protocol::Udp, &[vip(1, 53), node_port(30053)], &[1]);
    let queued = |before, after| queued(&outcome(vec![acked(Some(before), Some(after))]), &[&service]);
    let went = FrontendAddr::Vip(IpAddr::from([192, 0, 2, 1]), 30053);
    assert_eq!(queued(&one, &two), [(went, 0), (node_port(30053).1, 1)]);
    assert_eq!(queued(&one, &only(1)), []);
}

#[test]
fn an_external_address_stands_before_a_node_port_of_its_number() {
    let at = [node_port(30053)];
    let (two, one) = (unit("a", Protocol::Udp, &at, &[1, 2]), unit("a", Protocol::Udp, &at, &[1]));
    let same = unit("b", Protocol::Udp, &[vip(7, 30053), vip(7, 53)], &[4, 5, 6]);
    let other = unit("c", Protocol::Tcp, &[vip(8, 30053)], &[4]);
    let sync = outcome(vec![acked(Some(&two), Some(&one))]);
    assert_eq!(queued(&sync, &[&one, &same, &other]), [(vip(7, 30053).1, 3), (at[0].1, 1)]);
}

#[test]
fn node_port_addresses_are_known_from_the_first_sync_pass_on() {
    let only = NodePortAddresses::Only(vec![IpAddr::from([192, 0, 2, 1])]);
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V6);
    observer.end(&outcome(vec![acked(None, Some(&base_unit(only.clone())))]), &Holds(Vec::new()));
    assert_eq!(reports.take(Family::V6, Instant::now()).node_ports, only);
    assert_eq!(reports.take(Family::V4, Instant::now()).node_ports, NodePortAddresses::All);
}

#[test]
fn what_is_in_force_is_uncertain_after_a_failed_sync_pass() {
    let frontends = [vip(1, 53)];
    let one = unit("a", Protocol::Udp, &frontends, &[1]);
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    let engine = Holds(Vec::new());
    let mut sync = |outcome: &Outcome| {
        observer.begin();
        observer.end(outcome, &engine);
    };
    let busy = Arc::new(CommitError::Busy(std::io::ErrorKind::WouldBlock.into()));
    sync(&Outcome { error: Some(busy), ..outcome(vec![acked(None, Some(&one))]) });
    assert!(!reports.settle(Family::V4));
    assert!(reports.settle(Family::V6));
    sync(&Outcome::default());
    assert!(reports.settle(Family::V4));
    assert_eq!(reports.wait(&Pace::new(Instant::now()), None), [Family::V4]);
}

#[test]
fn a_sync_pass_that_is_under_way_is_waited_for() {
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    observer.begin();
    let waits = Arc::clone(&reports);
    let waiting = thread::spawn(move || waits.settle(Family::V4));
    thread::sleep(POLL * 20);
    assert!(!waiting.is_finished());
    assert!(reports.settle(Family::V6), "only for the family's own");
    observer.end(&Outcome::default(), &Holds(Vec::new()));
    assert!(waiting.join().unwrap());
    assert!(reports.settle(Family::V4), "nothing is under way");
}

#[test]
fn the_cleaner_is_woken_when_something_is_due_and_it_has_rested() {
    let frontends = [vip(1, 53)];
    let one = unit("a", Protocol::Udp, &frontends, &[1]);
    let reports = Arc::new(FlowReports::default());
    let start = Instant::now();
    let mut pace = Pace::new(start);
    // more than the saved budget
    pace.spend(start, Duration::from_millis(155));
    let waits = Arc::clone(&reports);
    let waiting = thread::spawn(move || (waits.wait(&pace, None), Instant::now()));
    let mut observer = reports.observer(Family::V6);
    observer.end(&outcome(vec![acked(None, Some(&one))]), &Holds(Vec::new()));
    let (families, woken) = waiting.join().unwrap();
    assert_eq!(families, [Family::V6]);
    assert!(woken >= start + Duration::from_millis(100));
}
