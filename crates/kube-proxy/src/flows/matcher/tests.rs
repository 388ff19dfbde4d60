use ferry_kernel::conntrack::{FlowStatus, Tuple};
use ferry_model::FlowRule;

use super::super::queue::{AGAIN, FlowQueue, SyncRules};
use super::*;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn entry(protocol: Protocol, client: &str, to: &str, endpoint: &str) -> Entry {
    let (client, to, endpoint) = (address(client), address(to), address(endpoint));
    let tuple = |from: SocketAddr, to: SocketAddr| Tuple {
        source: from.ip(),
        destination: to.ip(),
        source_port: from.port(),
        destination_port: to.port(),
    };
    Entry {
        original: tuple(client, to),
        reply: tuple(endpoint, client),
        protocol: protocol.number(),
        status: FlowStatus::default(),
        id: 1,
        zone: 0,
    }
}

fn udp(to: &str, endpoint: &str) -> Entry {
    entry(Protocol::Udp, "10.0.0.9:4000", to, endpoint)
}

fn pool(endpoints: impl IntoIterator<Item = String>) -> Pool {
    let endpoints = endpoints.into_iter().map(|text| address(&text));
    Pool::new(endpoints.map(|at| Endpoint { address: at.ip(), port: at.port() }).collect::<Vec<_>>())
}

fn to(endpoints: &[&str]) -> RightFlows {
    let [first, rest @ ..] = endpoints else { return RightFlows::To([(); 3].map(|()| Pool::default())) };
    let rest = rest.iter().map(|text| (*text).to_owned());
    RightFlows::To([pool([(*first).to_owned()]), Pool::default(), pool(rest)])
}

fn vip(text: &str) -> FrontendAddr {
    FrontendAddr::Vip(address(text).ip(), address(text).port())
}

fn rules(node_ports: &NodePortAddresses, rules: &[(Protocol, FrontendAddr, RightFlows)]) -> FlowRules {
    let mut sync = SyncRules::default();
    sync.add(rules.iter().map(|(protocol, at, right)| FlowRule {
        protocol: *protocol,
        at: *at,
        right: right.clone(),
        due: true,
    }));
    let (mut queue, now) = (FlowQueue::default(), std::time::Instant::now());
    queue.serve_node_ports(node_ports, false);
    queue.offer(sync, now);
    queue.take(now);
    queue.done();
    queue.take(now + AGAIN)
}

const LOCAL: &[&str] = &["192.0.2.1", "192.0.2.2"];

fn matcher(protocol: Protocol, rules: &FlowRules) -> Matcher {
    let local: Vec<IpAddr> = LOCAL.iter().map(|text| text.parse().unwrap()).collect();
    Matcher::new((Family::V4, protocol), rules, (&local, &ReplyOwner::Endpoint.into()), Patience::FirstCheck)
}

#[test]
fn flows_to_a_frontend_must_lead_to_its_endpoints() {
    let rules = rules(
        &NodePortAddresses::All,
        &[
            (Protocol::Udp, vip("10.96.0.1:53"), to(&["10.1.0.1:53", "10.1.0.2:5353"])),
            (Protocol::Udp, vip("10.96.0.2:53"), to(&[])),
        ],
    );
    let matcher = matcher(Protocol::Udp, &rules);
    for (to, endpoint, wrong) in [
        ("10.96.0.1:53", "10.1.0.1:53", false),
        ("10.96.0.1:53", "10.1.0.2:5353", false),
        ("10.96.0.1:53", "10.1.0.2:53", true),
        ("10.96.0.1:53", "10.1.0.3:53", true),
        ("10.96.0.1:53", "10.96.0.1:53", true),
        ("10.96.0.2:53", "10.1.0.1:53", true),
        ("10.96.0.1:54", "10.1.0.3:53", false),
        ("10.96.0.3:53", "10.1.0.3:53", false),
    ] {
        assert_eq!(matcher.is_wrong(&udp(to, endpoint)), wrong, "{to} {endpoint}");
    }
    let zoned = Entry { zone: 3, ..udp("10.96.0.2:53", "10.1.0.1:53") };
    assert!(!matcher.is_wrong(&zoned));
}

#[test]
fn node_ports_are_those_of_the_nodes_addresses() {
    let at_port = [(Protocol::Udp, FrontendAddr::NodePort(30053), to(&["10.1.0.1:53"]))];
    let everywhere = rules(&NodePortAddresses::All, &at_port);
    assert!(need_local_addresses(&everywhere, ReplyOwner::Endpoint));
    let some = rules(&NodePortAddresses::Only(vec!["192.0.2.2".parse().unwrap()]), &at_port);
    let mut loopback_too = everywhere.clone();
    loopback_too.localhost = true;
    assert!(!need_local_addresses(&some, ReplyOwner::Endpoint));
    for (to, endpoint, anywhere, second) in [
        ("192.0.2.1:30053", "10.1.0.2:53", true, false),
        ("192.0.2.2:30053", "10.1.0.2:53", true, true),
        ("192.0.2.2:30053", "10.1.0.1:53", false, false),
        ("198.51.100.7:30053", "198.51.100.7:30053", false, false),
        ("127.0.0.1:30053", "127.0.0.1:30053", false, false),
    ] {
        let entry = udp(to, endpoint);
        assert_eq!(matcher(Protocol::Udp, &everywhere).is_wrong(&entry), anywhere, "{to} {endpoint}");
        assert_eq!(matcher(Protocol::Udp, &some).is_wrong(&entry), second, "{to} {endpoint}");
        let with_loopback = anywhere || to.starts_with("127.");
        assert_eq!(matcher(Protocol::Udp, &loopback_too).is_wrong(&entry), with_loopback, "{to} {endpoint}");
    }
}

#[test]
fn an_address_with_the_number_of_a_node_port_decides() {
    let both = rules(
        &NodePortAddresses::All,
        &[
            (Protocol::Udp, FrontendAddr::NodePort(30053), to(&["10.1.0.1:53"])),
            (Protocol::Udp, vip("192.0.2.1:30053"), to(&["10.1.0.2:53"])),
        ],
    );
    let matcher = matcher(Protocol::Udp, &both);
    assert!(!matcher.is_wrong(&udp("192.0.2.1:30053", "10.1.0.2:53")));
    assert!(matcher.is_wrong(&udp("192.0.2.1:30053", "10.1.0.1:53")));
    assert!(!matcher.is_wrong(&udp("192.0.2.2:30053", "10.1.0.1:53")));
}

#[test]
fn an_answer_that_may_be_on_its_way_is_waited_for_once() {
    let (mut queue, now, mut sync) = (FlowQueue::default(), std::time::Instant::now(), SyncRules::default());
    sync.add([FlowRule { protocol: Protocol::Udp, at: vip("10.96.0.1:53"), right: to(&["10.1.0.1:53"]), due: true }]);
    queue.offer(sync, now);
    let asked = udp("10.96.0.1:53", "10.1.0.2:53");
    let answered = Entry { status: FlowStatus::SEEN_REPLY, ..asked };
    let untranslated = udp("10.96.0.1:53", "10.96.0.1:53");
    for (at, wrong) in [(now, [false, true, true]), (now + AGAIN, [true, true, true])] {
        let matcher = matcher(Protocol::Udp, &queue.take(at));
        assert_eq!([asked, answered, untranslated].map(|entry| matcher.is_wrong(&entry)), wrong);
        queue.done();
    }
}

#[test]
fn of_tcp_only_what_nobody_translated_or_answered_is_wrong() {
    let rules = rules(
        &NodePortAddresses::All,
        &[
            (Protocol::Tcp, vip("10.96.0.1:53"), RightFlows::Answered),
            (Protocol::Udp, vip("10.96.0.1:53"), to(&["10.1.0.1:53"])),
        ],
    );
    assert_eq!(protocols(&rules), [Protocol::Udp, Protocol::Tcp]);
    let matcher = matcher(Protocol::Tcp, &rules);
    let asked = entry(Protocol::Tcp, "10.0.0.9:4000", "10.96.0.1:53", "10.96.0.1:53");
    assert!(matcher.is_wrong(&asked));
    assert!(!matcher.is_wrong(&Entry { status: FlowStatus::SEEN_REPLY, ..asked }));
    assert!(!matcher.is_wrong(&entry(Protocol::Tcp, "10.0.0.9:4000", "10.96.0.1:53", "10.1.0.7:53")));
    assert!(matcher.filters()[0].unanswered);
}

#[test]
fn many_endpoints_are_looked_up_as_few_are() {
    let all: Vec<String> = (0..=250).map(|n| format!("10.1.0.{n}:53")).collect();
    for count in [MANY - 1, MANY, all.len()] {
        let (first, second) = all[..count].split_at(count / 2);
        let pools = [pool(first.to_vec()), pool(second.to_vec()), Pool::default()];
        let right = RightFlows::To(pools.clone());
        let at = [vip("10.96.0.1:53"), vip("203.0.113.1:53"), FrontendAddr::NodePort(30053)];
        let passing = (Protocol::Udp, vip("203.0.113.2:53"), RightFlows::ToOrUntranslated(pools));
        let shared: Vec<_> = at.iter().map(|at| (Protocol::Udp, *at, right.clone())).chain([passing]).collect();
        let matcher = matcher(Protocol::Udp, &rules(&NodePortAddresses::All, &shared));
        let by_hash = matcher.addresses.values().filter(|rule| matches!(rule.right, Right::Among { .. })).count();
        assert_eq!(by_hash, if count < MANY { 0 } else { 3 });
        for endpoint in &all {
            let entry = udp("10.96.0.1:53", endpoint);
            assert_eq!(matcher.is_wrong(&entry), !right.allows(&matcher.flow(&entry)), "{count} {endpoint}");
            let passing = udp("203.0.113.2:53", endpoint);
            assert_eq!(matcher.is_wrong(&passing), !right.allows(&matcher.flow(&passing)), "{count} {endpoint}");
        }
        assert!(matcher.is_wrong(&udp("203.0.113.1:53", "203.0.113.1:53")));
        assert!(!matcher.is_wrong(&udp("203.0.113.2:53", "203.0.113.2:53")), "packets pass by");
        if let Some(FrontendRule { right: Right::Among { endpoints, .. }, .. }) = matcher.ports.get(&30053) {
            assert_eq!(Rc::strong_count(endpoints), 4, "one set for frontends of one port");
        }
    }
}

#[test]
fn the_kernel_is_asked_for_as_little_as_covers_all_rules() {
    let filter = |at: &[FrontendAddr]| {
        let all: Vec<_> = at.iter().map(|at| (Protocol::Udp, *at, to(&[]))).collect();
        let filter = matcher(Protocol::Udp, &rules(&NodePortAddresses::All, &all)).filters()[0];
        assert_eq!((filter.family, filter.protocol, filter.unanswered), (Family::V4, 17, false));
        (filter.destination.map(|address| address.to_string()), filter.port)
    };
    let one = || Some("10.96.0.1".to_owned());
    assert_eq!(filter(&[vip("10.96.0.1:53")]), (one(), Some(53)));
    assert_eq!(filter(&[vip("10.96.0.1:53"), vip("10.96.0.1:54")]), (one(), None));
    assert_eq!(filter(&[vip("10.96.0.1:53"), vip("10.96.0.2:53")]), (None, Some(53)));
    assert_eq!(filter(&[vip("10.96.0.1:53"), vip("10.96.0.2:54")]), (None, None));
    assert_eq!(filter(&[FrontendAddr::NodePort(53), vip("10.96.0.1:53")]), (None, Some(53)));
    assert_eq!(filter(&[FrontendAddr::NodePort(30053)]), (None, Some(30053)));
}

/// Whatever is wrong is asked for.
#[test]
fn what_is_wrong_is_within_the_filter() {
    let some = [vip("10.96.0.1:53"), vip("10.96.0.2:53"), vip("10.96.0.1:54"), FrontendAddr::NodePort(53)];
    for chosen in 1..16_usize {
        let at: Vec<_> = some.iter().enumerate().filter(|(n, _)| chosen & (1 << n) != 0).map(|(_, at)| *at).collect();
        let all: Vec<_> = at.iter().map(|at| (Protocol::Udp, *at, to(&["10.1.0.1:53"]))).collect();
        let rules = rules(&NodePortAddresses::All, &all);
        let matchers = [matcher(Protocol::Udp, &rules), keeping_ports(Protocol::Udp, &rules, Patience::FirstCheck)];
        let late = entry(Protocol::Udp, "10.1.0.1:53", "10.0.0.9:4000", "10.0.0.9:4000");
        let to = ["10.96.0.1:53", "10.96.0.1:54", "10.96.0.2:53", "192.0.2.1:53", "192.0.2.2:53"];
        for entry in to.into_iter().map(|to| udp(to, "10.1.0.9:53")).chain([late]) {
            for matcher in &matchers {
                let is_asked_for = matcher.filters().iter().any(|filter| filter.matches(&entry));
                assert!(!matcher.is_wrong(&entry) || is_asked_for, "{at:?} {entry:?}");
            }
        }
    }
}

/// The earlier owner of the address doesn't matter: packets to it match the node port now.
#[test]
fn an_address_that_nobody_serves_leaves_its_flows_to_the_node_port() {
    let all = [
        (Protocol::Udp, vip("192.0.2.1:30053"), RightFlows::Untranslated),
        (Protocol::Udp, vip("198.51.100.1:30053"), RightFlows::Untranslated),
        (Protocol::Udp, FrontendAddr::NodePort(30053), to(&["10.1.0.1:53"])),
    ];
    for (rules, port) in
        [(rules(&NodePortAddresses::All, &all), true), (rules(&NodePortAddresses::All, &all[..2]), false)]
    {
        let matcher = matcher(Protocol::Udp, &rules);
        for (to, endpoint, wrong) in [
            ("192.0.2.1:30053", "10.1.0.1:53", !port),
            ("192.0.2.1:30053", "10.1.0.2:53", true),
            ("192.0.2.1:30053", "192.0.2.1:30053", port),
            ("198.51.100.1:30053", "10.1.0.1:53", true),
            ("198.51.100.1:30053", "198.51.100.1:30053", false),
        ] {
            let answered = Entry { status: FlowStatus::SEEN_REPLY, ..udp(to, endpoint) };
            assert_eq!(matcher.is_wrong(&answered), wrong, "{to} {endpoint}, with the node port: {port}");
        }
    }
}

/// New flows to an address of the node that packets pass by find the node port.
#[test]
fn an_address_that_is_passed_by_leaves_new_flows_to_the_node_port() {
    let RightFlows::To(lingering) = to(&["10.1.0.7:53"]) else { panic!("endpoints") };
    let all = [
        (Protocol::Udp, vip("192.0.2.1:30053"), RightFlows::ToOrUntranslated(lingering)),
        (Protocol::Udp, FrontendAddr::NodePort(30053), to(&["10.1.0.1:53"])),
    ];
    for (count, by_port) in [(2, true), (1, false)] {
        let rules = rules(&NodePortAddresses::All, &all[..count]);
        let matcher = matcher(Protocol::Udp, &rules);
        for (endpoint, wrong) in
            [("10.1.0.7:53", false), ("192.0.2.1:30053", false), ("10.1.0.1:53", !by_port), ("10.1.0.2:53", true)]
        {
            assert_eq!(matcher.is_wrong(&udp("192.0.2.1:30053", endpoint)), wrong, "{count} {endpoint}");
        }
    }
}

/// Rules went that served node ports on every local address; now one serves them.
#[test]
fn node_ports_leave_the_local_addresses_that_are_not_listed() {
    let local = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let right = if protocol == Protocol::Udp { to(&["10.1.0.2:53"]) } else { RightFlows::Answered };
        for (node_ports, leaves) in
            [(NodePortAddresses::Only(local[..1].to_vec()), protocol == Protocol::Udp), (NodePortAddresses::All, false)]
        {
            let mut sync = SyncRules::default();
            sync.add([FlowRule { protocol, at: FrontendAddr::NodePort(30053), right: right.clone(), due: true }]);
            sync.leave_addresses();
            let (mut queue, now) = (FlowQueue::default(), std::time::Instant::now());
            queue.serve_node_ports(&node_ports, false);
            queue.offer(sync, now);
            queue.take(now);
            queue.done();
            let rules = queue.take(now + AGAIN);
            assert!(need_local_addresses(&rules, ReplyOwner::Endpoint) || !leaves);
            let matcher = Matcher::new(
                (Family::V4, protocol),
                &rules,
                (&local, &ReplyOwner::Endpoint.into()),
                Patience::FirstCheck,
            );
            let is_wrong = |to: &str, endpoint: &str| {
                let entry = entry(protocol, "10.0.0.9:4000", to, endpoint);
                assert!(matcher.filters()[0].matches(&entry), "{entry:?}");
                matcher.is_wrong(&entry)
            };
            assert!(!is_wrong("192.0.2.1:30053", "10.1.0.2:53"), "it serves");
            assert_eq!(is_wrong("192.0.2.2:30053", "10.1.0.2:53"), leaves);
            let serves = node_ports == NodePortAddresses::All;
            assert_eq!(is_wrong("192.0.2.2:30053", "192.0.2.2:30053"), serves, "past the proxy");
            assert!(!is_wrong("198.51.100.7:30053", "10.1.0.2:53"), "no address of ours");
        }
    }
}

#[test]
fn what_the_proxy_answers_is_left_alone_while_a_frontend_leads_to_it() {
    let pooled = (Protocol::Udp, vip("10.96.0.1:53"), to(&["10.1.0.1:53"]));
    let gone = (Protocol::Udp, vip("10.96.0.2:53"), RightFlows::Untranslated);
    let refusing = (Protocol::Udp, FrontendAddr::NodePort(30053), to(&[]));
    let rules = rules(&NodePortAddresses::All, &[pooled, gone, refusing]);
    assert!(need_local_addresses(&rules, ReplyOwner::Proxy));
    let local: Vec<IpAddr> = LOCAL.iter().map(|text| text.parse().unwrap()).collect();
    let [of_endpoints, of_proxy] = [ReplyOwner::Endpoint, ReplyOwner::Proxy].map(|replies| {
        Matcher::new((Family::V4, Protocol::Udp), &rules, (&local, &replies.into()), Patience::FirstCheck)
    });
    for (to, answers_from, wrong_by_rules, wrong) in [
        ("10.96.0.1:53", "192.0.2.1:40000", true, false),
        ("10.96.0.1:53", "127.0.0.1:40000", true, false),
        // Nothing leads to the proxy any more.
        ("10.96.0.2:53", "192.0.2.2:40000", true, true),
        ("192.0.2.1:30053", "192.0.2.1:40000", true, true),
        // By rules of another mode, and by none.
        ("10.96.0.1:53", "10.1.0.1:53", false, false),
        ("10.96.0.1:53", "10.1.0.2:53", true, true),
        ("10.96.0.2:53", "10.1.0.1:53", true, true),
        ("10.96.0.1:53", "10.96.0.1:53", true, true),
        ("192.0.2.1:30053", "192.0.2.1:30053", true, true),
    ] {
        let entry = udp(to, answers_from);
        assert_eq!(of_endpoints.is_wrong(&entry), wrong_by_rules, "{to} {answers_from}");
        assert_eq!(of_proxy.is_wrong(&entry), wrong, "{to} {answers_from}");
    }
}

#[test]
fn a_listener_that_leads_to_other_endpoints_has_stale_flows() {
    let rules = rules(&NodePortAddresses::All, &[(Protocol::Udp, vip("10.96.0.1:53"), to(&["10.1.0.1:53"]))]);
    let local: Vec<IpAddr> = LOCAL.iter().map(|text| text.parse().unwrap()).collect();
    let behind = |_: Family, port: u16| {
        let endpoint = |text: &str| {
            let at: SocketAddr = text.parse().unwrap();
            Endpoint { address: at.ip(), port: at.port() }
        };
        let own: Arc<[Endpoint]> = [endpoint("10.1.0.9:53"), endpoint("10.1.0.1:53")].into();
        match port {
            61_000 => Some(own),
            61_001 => Some([endpoint("10.1.0.2:53")].into()),
            61_002 => Some([].into()),
            _ => None,
        }
    };
    let replies = Replies { behind: Some(Arc::new(behind)), ..ReplyOwner::Proxy.into() };
    let matcher = Matcher::new((Family::V4, Protocol::Udp), &rules, (&local, &replies), Patience::FirstCheck);
    for (port, wrong) in [(61_000, false), (61_001, true), (61_002, true), (61_003, true)] {
        let entry = udp("10.96.0.1:53", &format!("192.0.2.1:{port}"));
        assert_eq!(matcher.is_wrong(&entry), wrong, "{port}");
    }
}

fn keeping_ports(protocol: Protocol, rules: &FlowRules, patience: Patience) -> Matcher {
    let replies = Replies { keeps_client_ports: true, ..ReplyOwner::Endpoint.into() };
    Matcher::new((Family::V4, protocol), rules, (&[], &replies), patience)
}

/// The client's next packet to that endpoint would get the same pair of tuples where it keeps its port.
#[test]
fn entries_made_by_late_answers_are_stale_where_client_ports_are_kept() {
    let [at, endpoint, client] = ["10.96.0.1:53", "10.1.0.1:53", "10.0.0.9:4000"];
    let rules = |protocol, cluster: &[&str], lingering: &[&str]| {
        let pools = [cluster, &[], lingering].map(|of| pool(of.iter().map(|text| (*text).to_owned())));
        rules(&NodePortAddresses::All, &[(protocol, vip(at), RightFlows::To(pools))])
    };
    let late = entry(Protocol::Udp, endpoint, client, client);
    let of_udp = rules(Protocol::Udp, &["10.1.0.2:53", endpoint], &["10.1.0.4:53"]);
    let matcher = keeping_ports(Protocol::Udp, &of_udp, Patience::None);
    assert!(matcher.is_wrong(&late));
    assert!(matcher.filters().iter().any(|filter| filter.matches(&late)));
    for other in [
        Entry { status: FlowStatus::SEEN_REPLY, ..late },
        Entry { zone: 1, ..late },
        // another endpoint's, one's that lingers, another program's at the same address, and what is translated
        entry(Protocol::Udp, "10.1.0.3:53", client, client),
        entry(Protocol::Udp, "10.1.0.4:53", client, client),
        entry(Protocol::Udp, "10.1.0.1:54", client, client),
        entry(Protocol::Udp, endpoint, client, "10.9.9.9:4000"),
        Entry { reply: Tuple { destination_port: 999, ..late.reply }, ..late },
    ] {
        assert_eq!(matcher.judge(&other), FlowMatch::Right, "{other:?}");
    }
    // Rules choose another port; and of an endpoint that serves no more nothing is blocked.
    assert!(!self::matcher(Protocol::Udp, &of_udp).is_wrong(&late));
    assert_eq!(self::matcher(Protocol::Udp, &of_udp).filters().len(), 1);
    let gone = rules(Protocol::Udp, &["10.1.0.2:53"], &[]);
    assert!(!keeping_ports(Protocol::Udp, &gone, Patience::None).is_wrong(&late));
    let (of_sctp, sctp) =
        (rules(Protocol::Sctp, &[endpoint], &[]), Entry { protocol: Protocol::Sctp.number(), ..late });
    assert!(!keeping_ports(Protocol::Sctp, &of_sctp, Patience::None).is_wrong(&sctp));
}

/// It may as well be a request of the endpoint itself.
#[test]
fn an_entry_of_a_late_answer_is_left_for_the_second_check() {
    let mut rules = rules(
        &NodePortAddresses::All,
        &["10.96.0.1:53", "10.96.0.2:53"].map(|at| (Protocol::Udp, vip(at), to(&["10.1.0.1:53"]))),
    );
    let judge = |rules: &FlowRules| {
        let late = entry(Protocol::Udp, "10.1.0.1:53", "10.0.0.9:4000", "10.0.0.9:4000");
        keeping_ports(Protocol::Udp, rules, Patience::FirstCheck).judge(&late)
    };
    assert_eq!(judge(&rules), FlowMatch::Stale);
    rules.again = rules.right.keys().copied().collect();
    assert_eq!(judge(&rules), FlowMatch::Unanswered);
    rules.again.remove(&(Protocol::Udp, vip("10.96.0.1:53")));
    assert_eq!(judge(&rules), FlowMatch::Stale, "it is the second check of one of the frontends");
}

#[test]
fn a_first_packet_on_its_way_to_a_listener_of_tcp_keeps_its_entry() {
    let at = "10.96.0.1:80";
    let rules = rules(&NodePortAddresses::All, &[(Protocol::Tcp, vip(at), RightFlows::Answered)]);
    let local: Vec<IpAddr> = LOCAL.iter().map(|text| text.parse().unwrap()).collect();
    // The listeners of UDP are known, those of TCP are not.
    let behind = |_: Family, _: u16| None;
    let replies = Replies { behind: Some(Arc::new(behind)), ..ReplyOwner::Proxy.into() };
    for patience in [Patience::FirstCheck, Patience::None] {
        let matcher = Matcher::new((Family::V4, Protocol::Tcp), &rules, (&local, &replies), patience);
        let of = |answers_from| entry(Protocol::Tcp, "192.0.2.1:4000", at, answers_from);
        assert_eq!(matcher.judge(&of("192.0.2.1:64083")), FlowMatch::Right, "{patience:?}");
        assert_eq!(matcher.judge(&of(at)), FlowMatch::Stale, "nobody has translated it, {patience:?}");
    }
}
