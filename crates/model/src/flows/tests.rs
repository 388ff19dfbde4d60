use ferry_api::object::ObjectName;

use super::*;
use crate::state::{Frontend, FrontendKind, NodePortAddresses, Scope, Snat, SourceRanges, Treatment};

const VIP: &str = "10.96.0.20:53";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn pool(endpoints: &[&str]) -> Pool {
    let endpoint = |text: &&str| Endpoint { address: address(text).ip(), port: address(text).port() };
    Pool::new(endpoints.iter().map(endpoint).collect::<Vec<_>>())
}

fn frontend(text: &str, treatment: Treatment) -> Frontend {
    let (kind, at) = match text.parse::<u16>() {
        Ok(port) => (FrontendKind::NodePort, FrontendAddr::NodePort(port)),
        Err(_) => (FrontendKind::ClusterIp, FrontendAddr::Vip(address(text).ip(), address(text).port())),
    };
    Frontend { kind, at, sources: SourceRanges::Any, treatment }
}

/// A service with one port that forwards to the Cluster pool where it can.
fn service(protocol: Protocol, cluster: &[&str], lingering: &[&str], frontends: &[&str]) -> ServiceState {
    let action = match cluster {
        [] => Action::Reject,
        _ => Action::Forward { to: Scope::Cluster, snat: Snat::Keep },
    };
    let port = PortState {
        name: "".into(),
        protocol,
        affinity: None,
        cluster: pool(cluster),
        local: Pool::default(),
        lingering: pool(lingering),
        balance: None,
        shadowed: None,
        frontends: frontends.iter().map(|text| frontend(text, Treatment::all(action))).collect(),
    };
    ServiceState { name: ObjectName::new("default", "web"), ports: vec![port], health_check: None }
}

fn flow(protocol: Protocol, answers_from: &str, answered: bool) -> Flow {
    Flow { protocol, destination: address(VIP), answers_from: address(answers_from), answered }
}

/// The one rule, and which of these flows to the VIP may stay.
fn verdicts(
    before: Option<&ServiceState>,
    after: Option<&ServiceState>,
    protocol: Protocol,
    flows: &[&str],
) -> (bool, Vec<bool>) {
    let rules = flow_rules(before, after, false);
    assert_eq!(rules.len(), 1, "{rules:?}");
    assert_eq!((rules[0].protocol, rules[0].at), (protocol, FrontendAddr::Vip(address(VIP).ip(), address(VIP).port())));
    let allowed = flows.iter().map(|from| rules[0].right.allows(&flow(protocol, from, true))).collect();
    (rules[0].due, allowed)
}

const A: &str = "10.244.1.10:53";
const B: &str = "10.244.2.10:53";
const C: &str = "10.244.3.10:53";

#[test]
fn an_endpoint_that_goes_takes_its_flows_along() {
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        let before = service(protocol, &[A, B], &[], &[VIP]);
        let after = service(protocol, &[B], &[], &[VIP]);
        assert_eq!(verdicts(Some(&before), Some(&after), protocol, &[A, B, VIP]), (true, vec![false, true, false]));
    }
}

#[test]
fn an_endpoint_that_still_serves_keeps_its_flows() {
    let before = service(Protocol::Udp, &[A, B], &[], &[VIP]);
    let after = service(Protocol::Udp, &[B], &[A], &[VIP]);
    assert_eq!(verdicts(Some(&before), Some(&after), Protocol::Udp, &[A, B]), (false, vec![true, true]));
    let gone = service(Protocol::Udp, &[B], &[], &[VIP]);
    assert_eq!(verdicts(Some(&after), Some(&gone), Protocol::Udp, &[A, B]), (true, vec![false, true]));
}

#[test]
fn endpoints_that_come_are_only_told() {
    let before = service(Protocol::Udp, &[A], &[], &[VIP]);
    let after = service(Protocol::Udp, &[C, A, B], &[], &[VIP]);
    assert_eq!(verdicts(Some(&before), Some(&after), Protocol::Udp, &[A, B, C]), (false, vec![true, true, true]));
}

/// An answer from before it went may have made an entry that blocks its new flows.
#[test]
fn endpoints_that_come_are_due_where_client_ports_are_kept() {
    let before = service(Protocol::Udp, &[A], &[B], &[VIP]);
    let is_due = |after: &ServiceState| flow_rules(Some(&before), Some(after), true)[0].due;
    assert!(is_due(&service(Protocol::Udp, &[A, C], &[B], &[VIP])));
    assert!(is_due(&service(Protocol::Udp, &[B, A], &[], &[VIP])), "one that lingered had no new flows");
    assert!(!is_due(&service(Protocol::Udp, &[A], &[C, B], &[VIP])), "one that lingers gets none");
    let mut of_both = before.clone();
    of_both.ports[0].local = of_both.ports[0].cluster.clone();
    assert!(is_due(&of_both), "the other scope's flows were not led there");
}

#[test]
fn the_last_endpoint_the_frontend_and_the_service_take_all_flows_along() {
    let before = service(Protocol::Udp, &[A], &[], &[VIP]);
    let empty = service(Protocol::Udp, &[], &[], &[VIP]);
    let elsewhere = service(Protocol::Udp, &[A], &[], &["10.96.0.21:53"]);
    assert_eq!(verdicts(Some(&before), Some(&empty), Protocol::Udp, &[A, VIP]), (true, vec![false, false]));
    // the present owner of the address is irrelevant
    assert_eq!(verdicts(Some(&before), None, Protocol::Udp, &[A, VIP]), (true, vec![false, true]));
    let rules = flow_rules(Some(&before), Some(&elsewhere), false);
    assert_eq!(rules.iter().map(|rule| rule.due).collect::<Vec<_>>(), [true, true]);
    assert!(!rules[0].right.allows(&flow(Protocol::Udp, A, true)));
}

/// The node itself may reach a host outside of the cluster that has the address.
#[test]
fn what_passes_by_a_service_without_endpoints_stays_until_there_are_some() {
    let mut empty = service(Protocol::Udp, &[], &[], &[VIP]);
    empty.ports[0].frontends[0].treatment.host = Action::Pass;
    let after = service(Protocol::Udp, &[A], &[], &[VIP]);
    assert_eq!(verdicts(None, Some(&empty), Protocol::Udp, &[A, VIP]), (true, vec![false, true]));
    assert_eq!(verdicts(Some(&empty), Some(&after), Protocol::Udp, &[A, VIP]), (true, vec![true, false]));
}

/// An endpoint that serves, but isn't ready, gets no new flows and keeps those it has.
#[test]
fn what_passes_by_a_service_stays_beside_the_flows_of_endpoints_that_linger() {
    let before = service(Protocol::Udp, &[A, B], &[], &[VIP]);
    let mut lingers = service(Protocol::Udp, &[], &[A], &[VIP]);
    lingers.ports[0].frontends[0].treatment.host = Action::Pass;
    assert_eq!(verdicts(None, Some(&lingers), Protocol::Udp, &[A, B, VIP]), (true, vec![true, false, true]));
    assert_eq!(verdicts(Some(&before), Some(&lingers), Protocol::Udp, &[A, B, VIP]), (true, vec![true, false, true]));
    assert_eq!(verdicts(Some(&lingers), Some(&before), Protocol::Udp, &[A, VIP]), (true, vec![true, false]));
}

/// No endpoint goes, and the listener of a relaying proxy does.
#[test]
fn flows_are_due_when_a_frontend_leads_to_another_scope() {
    let local = |to| {
        let mut service = service(Protocol::Udp, &["10.1.0.1:53"], &[], &[VIP]);
        service.ports[0].local = pool(&["10.1.0.1:53"]);
        service.ports[0].frontends[0].treatment = Treatment::all(Action::Forward { to, snat: Snat::Keep });
        service
    };
    let (before, after) = (local(Scope::Local), local(Scope::Cluster));
    let due = |before, after| verdicts(Some(before), Some(after), Protocol::Udp, &["10.1.0.1:53"]);
    assert_eq!(due(&before, &after), (true, vec![true]));
    assert_eq!(due(&before, &before), (false, vec![true]));
}

#[test]
fn what_came_before_the_first_endpoint_goes() {
    let empty = service(Protocol::Udp, &[], &[], &[VIP]);
    let after = service(Protocol::Udp, &[A], &[], &[VIP]);
    for before in [Some(&empty), None] {
        assert_eq!(verdicts(before, Some(&after), Protocol::Udp, &[VIP, A]), (true, vec![false, true]));
    }
}

/// Another owner may have had the address, and its flows in the conntrack table.
#[test]
fn a_new_frontend_that_refuses_leaves_no_flow() {
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        let empty = service(protocol, &[], &[], &[VIP]);
        assert_eq!(verdicts(None, Some(&empty), protocol, &[A, VIP]), (true, vec![false, false]));
    }
}

#[test]
fn tcp_loses_only_what_nobody_translated_or_answered() {
    let empty = service(Protocol::Tcp, &[], &[], &[VIP, "30053"]);
    let one = service(Protocol::Tcp, &[A], &[], &[VIP, "30053"]);
    let other = service(Protocol::Tcp, &[B], &[], &[VIP, "30053"]);
    for before in [Some(&empty), None] {
        let rules = flow_rules(before, Some(&one), false);
        assert_eq!(rules.len(), 2);
        for rule in rules {
            assert!(rule.due && rule.right.allows(&flow(Protocol::Tcp, VIP, true)));
            assert!(rule.right.allows(&flow(Protocol::Tcp, A, false)));
            assert!(!rule.right.allows(&flow(Protocol::Tcp, VIP, false)));
        }
    }
    for after in [Some(&other), Some(&empty), None] {
        assert_eq!(
            flow_rules(Some(&one), after, true),
            [],
            "established connections and their ends are TCP's own matter"
        );
    }
}

#[test]
fn nothing_is_due_without_a_change() {
    for state in
        [service(Protocol::Udp, &[A, B], &[C], &[VIP, "30053"]), service(Protocol::Udp, &[], &[], &[VIP, "30053"])]
    {
        for keeps_client_ports in [false, true] {
            let rules = flow_rules(Some(&state), Some(&state.clone()), keeps_client_ports);
            let due: Vec<bool> = rules.iter().map(|rule| rule.due).collect();
            assert_eq!(due, [false, false], "a rule replaces the queued one of each frontend");
        }
    }
}

#[test]
fn slots_may_be_ordered_anew() {
    let before = service(Protocol::Udp, &[A, B, C], &[], &[VIP]);
    let after = service(Protocol::Udp, &[C, A, B], &[], &[VIP]);
    assert!(!verdicts(Some(&before), Some(&after), Protocol::Udp, &[A, B, C]).0);
}

#[test]
fn flows_that_the_proxy_answers_are_its_own() {
    const NODE: &str = "192.0.2.10:40000";
    let node = address(NODE).ip();
    let is_local = |address: IpAddr| address.is_loopback() || address == node;
    for protocol in Protocol::ALL {
        for (answers_from, own) in [(NODE, true), ("127.0.0.1:40000", true), (A, false), (VIP, false)] {
            let flow = flow(protocol, answers_from, true);
            assert_eq!(ReplyOwner::Proxy.is_answered_by_proxy(&flow, is_local), own, "{answers_from}");
            assert!(!ReplyOwner::Endpoint.is_answered_by_proxy(&flow, is_local), "an endpoint may be on this machine");
        }
        let untranslated = Flow { destination: address(NODE), ..flow(protocol, NODE, false) };
        assert!(!ReplyOwner::Proxy.is_answered_by_proxy(&untranslated, is_local), "no rule has led it to the proxy");
    }
}

fn packet(to: &str, protocol: Protocol, local: bool) -> Packet {
    Packet {
        source: address("10.244.0.1:1").ip(),
        source_local: false,
        interface: Some("veth0".to_owned()),
        destination: address(to).ip(),
        destination_local: local,
        protocol,
        port: address(to).port(),
    }
}

fn base(node_ports: NodePortAddresses) -> BaseState {
    BaseState { node_ports, localhost: false, service_cidrs: Vec::new(), affinity: false }
}

/// The flows that these rules keep.
fn kept(rules: &[RightFlows], flows: &[&str]) -> Vec<bool> {
    let udp = |from: &&str| flow(Protocol::Udp, from, true);
    flows.iter().map(udp).map(|flow| rules.iter().any(|rule| rule.allows(&flow))).collect()
}

#[test]
fn a_flow_is_judged_by_the_frontends_that_match_its_packets() {
    let services = [
        service(Protocol::Udp, &["10.244.0.5:53"], &[], &[VIP, "30053"]),
        service(Protocol::Tcp, &["10.244.0.6:53"], &[], &[VIP]),
    ];
    let node = "192.0.2.1:30053";
    let rules = |base: &BaseState, packet: &Packet| rules_at(&services, base, packet, &Profile::NFTABLES);
    let primary = base(NodePortAddresses::Only([address(node).ip()].into()));
    let flows = ["10.244.0.5:53", "10.244.0.9:53"];
    assert_eq!(kept(&rules(&primary, &packet(VIP, Protocol::Udp, false)), &flows), [true, false]);
    assert_eq!(kept(&rules(&primary, &packet(node, Protocol::Udp, true)), &flows), [true, false]);
    for other in [
        packet("192.0.2.2:30053", Protocol::Udp, true),
        packet("127.0.0.1:30053", Protocol::Udp, true),
        packet("10.96.0.20:54", Protocol::Udp, false),
        packet(VIP, Protocol::Sctp, false),
    ] {
        assert_eq!(rules(&primary, &other), [], "{other:?}");
    }
    assert_eq!(rules(&primary, &packet(VIP, Protocol::Tcp, false)), [RightFlows::Answered]);
    assert_eq!(rules(&base(NodePortAddresses::All), &packet("192.0.2.2:30053", Protocol::Udp, true)).len(), 1);
}

#[test]
fn a_flow_that_may_pass_its_frontend_may_be_that_of_the_node_port() {
    let at_node = "192.0.2.1:30053";
    let mut passes = service(Protocol::Udp, &[], &["10.244.0.7:53"], &[at_node]);
    passes.ports[0].frontends[0].treatment = Treatment::all(Action::Pass);
    let services = [passes, service(Protocol::Udp, &["10.244.0.5:53"], &[], &["30053"])];
    let rules =
        rules_at(&services, &base(NodePortAddresses::All), &packet(at_node, Protocol::Udp, true), &Profile::NFTABLES);
    assert_eq!(rules.len(), 2);
    assert_eq!(kept(&rules, &["10.244.0.7:53", "10.244.0.5:53", "10.244.0.9:53"]), [true, true, false]);
}
