use ferry_model::{MissingSchedulers, Scheduler};

use super::*;
use crate::render;

const FEATURES: Features = Features {
    counts_invalid: true,
    counts_localhost: true,
    drops_invalid: true,
    guards_loopback: false,
    has_sets: false,
    lacks_mangle: false,
};

fn text(family: Family, features: Features, mark: u32, base: &BaseState) -> String {
    let context = Context {
        node_name: "node-a".into(),
        zone: None,
        node_ip: None,
        node_addresses: [].into(),
        local_addresses: [].into(),
        relay_address: None,
        local: None,
        masquerade_all: false,
        masquerade_mark: mark,
        scheduler: Scheduler::default(),
        missing_schedulers: MissingSchedulers::new(),
    };
    let mut objects = Vec::new();
    compile(family, features, &context, base, &mut objects);
    render::ruleset(family, &objects)
}

fn state(node_ports: NodePortAddresses, localhost: bool) -> BaseState {
    BaseState { node_ports, localhost, service_cidrs: Vec::new(), affinity: false }
}

fn rules_of(text: &str, chain: &str) -> Vec<String> {
    let prefix = format!("-A {chain} ");
    text.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
}

#[test]
fn everything_on_a_fresh_machine() {
    let text = text(Family::V4, FEATURES, 0x4000, &state(NodePortAddresses::All, true));
    let wanted = "\
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:FORWARD ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A OUTPUT -j KUBE-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:PREROUTING ACCEPT [0:0]
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully
-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
COMMIT
# net.ipv4.conf.all.route_localnet = 1
";
    assert_eq!(text, wanted);
}

#[test]
fn a_machine_that_can_little() {
    let text = text(Family::V4, Features::default(), 1 << 31, &state(NodePortAddresses::All, false));
    assert_eq!(
        rules_of(&text, "KUBE-FORWARD"),
        [
            "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x80000000/0x80000000 -j ACCEPT",
            "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        ]
    );
    assert_eq!(
        rules_of(&text, "KUBE-POSTROUTING"),
        [
            "-m mark ! --mark 0x80000000/0x80000000 -j RETURN",
            "-j MARK --set-xmark 0x80000000/0x0",
            "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully",
        ]
    );
    assert!(rules_of(&text, "KUBE-FIREWALL").is_empty() && !text.contains("route_localnet"));
    assert_eq!(rules_of(&text, "INPUT").len(), 4, "the kubelet's chain is led to all the same");
}

#[test]
fn invalid_packets_may_be_dropped_uncounted() {
    let features = Features { drops_invalid: true, ..Features::default() };
    let text = text(Family::V6, features, 0x4000, &state(NodePortAddresses::All, false));
    assert_eq!(rules_of(&text, "KUBE-FORWARD")[0], "-m conntrack --ctstate INVALID -j DROP");
}

#[test]
fn a_table_that_is_not_there_gets_no_canary() {
    let of = |lacks_mangle| {
        let features = Features { lacks_mangle, ..FEATURES };
        text(Family::V4, features, 0x4000, &state(NodePortAddresses::All, true))
    };
    assert_eq!(format!("*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n{}", of(true)), of(false));
}

#[test]
fn where_node_ports_are_served() {
    let comment =
        "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\"";
    let of = |family, node_ports, localhost| {
        rules_of(&text(family, FEATURES, 0x4000, &state(node_ports, localhost)), "KUBE-SERVICES")
    };
    let all = |begin: &str| vec![format!("{begin}{comment} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")];
    assert_eq!(of(Family::V4, NodePortAddresses::All, true), all(""));
    assert_eq!(of(Family::V4, NodePortAddresses::All, false), all("! -d 127.0.0.0/8 "));
    for localhost in [false, true] {
        assert_eq!(of(Family::V6, NodePortAddresses::All, localhost), all("! -d ::1/128 "));
    }
    let only = |texts: &[&str]| NodePortAddresses::Only(texts.iter().map(|text| text.parse().unwrap()).collect());
    let each = |addresses: &[&str]| -> Vec<String> {
        addresses.iter().map(|address| format!("-d {address} {comment} -j KUBE-NODEPORTS")).collect()
    };
    let addresses = ["127.0.0.1", "192.0.2.10", "192.0.2.11"];
    assert_eq!(of(Family::V4, only(&addresses), true), each(&["127.0.0.1/32", "192.0.2.10/32", "192.0.2.11/32"]));
    assert_eq!(of(Family::V4, only(&addresses), false), each(&["192.0.2.10/32", "192.0.2.11/32"]));
    assert_eq!(of(Family::V6, only(&["::1", "2001:db8::10"]), true), each(&["2001:db8::10/128"]));
    assert!(of(Family::V4, only(&[]), true).is_empty());
}

#[test]
fn each_jump_has_its_turn() {
    for (index, jump) in JUMPS.iter().enumerate() {
        assert_eq!(jump_position(&jump.key()), Some(index));
    }
    let other = OwnedRulesKey { owner: RuleOwner::Guard, ..JUMPS[0].key() };
    assert_eq!(jump_position(&other), None);
}
