//! Samples: at least one rule of each kind that this program writes, with its text.

use super::*;

const JUMP: &str = "-j KUBE-SVC-7AEEELSGPX43WHBU";
/// The ipset of the samples.
pub(super) const SET: &str = "FERRY-SRC-7AEEELSGPX43WHBU";
const COMMENT: &str = r#"-m comment --comment "ns/svc:http cluster IP""#;

/// A rule, and its text as printed by the tools.
type Sample = (Rule, String);

/// All samples of a family.
pub(super) fn rules(family: Family) -> Vec<Sample> {
    let both_ways = [false, true].into_iter().flat_map(invertible);
    [comments(), addresses(family), extensions(family), targets(family)]
        .into_iter()
        .flatten()
        .chain(both_ways)
        .collect()
}

fn rule<const N: usize>(matches: [Match; N], target: Target) -> Rule {
    Rule { matches: matches.into(), target, ..Rule::default() }
}

fn comment() -> Match {
    Match::comment("ns/svc:http cluster IP")
}

fn chain() -> Target {
    Target::Jump(name("KUBE-SVC-7AEEELSGPX43WHBU"))
}

fn comments() -> Vec<Sample> {
    let long = "x y".repeat(85);
    vec![
        (Rule::default(), String::new()),
        (rule([comment()], Target::None), COMMENT.to_owned()),
        (rule([Match::comment("plain_-09")], chain()), format!("-m comment --comment plain_-09 {JUMP}")),
        (rule([Match::comment("")], chain()), format!(r#"-m comment --comment "" {JUMP}"#)),
        (
            rule([Match::comment(r#"it's "a" \ of é 日"#)], chain()),
            format!(r#"-m comment --comment "it\'s \"a\" \\ of é 日" {JUMP}"#),
        ),
        (rule([Match::comment(&long)], chain()), format!(r#"-m comment --comment "{long}" {JUMP}"#)),
    ]
}

fn addresses(family: Family) -> Vec<Sample> {
    let (pods, one, loopback) = match family {
        Family::V4 => ("10.180.0.0/16", "10.96.0.1/32", "127.0.0.0/8"),
        Family::V6 => ("fd00:10:180::/56", "fd00:10:96::1/128", "::1/128"),
    };
    let only = |net: &str| AddressMatch::only(net.parse().unwrap());
    let except = |net: &str| AddressMatch::except(net.parse().unwrap());
    let frontend = Rule {
        source: except(pods),
        destination: only(one),
        protocol: Some(PortProtocol::Tcp),
        ..rule([comment(), Match::Port(Some(80))], chain())
    };
    let local = rule([comment(), Match::DestinationLocal], Target::Accept);
    vec![
        (frontend, format!("! -s {pods} -d {one} -p tcp {COMMENT} -m tcp --dport 80 {JUMP}")),
        (Rule { source: only(one), ..rule([comment()], Target::Return) }, format!("-s {one} {COMMENT} -j RETURN")),
        (
            Rule { destination: except(loopback), ..local },
            format!("! -d {loopback} {COMMENT} -m addrtype --dst-type LOCAL -j ACCEPT"),
        ),
    ]
}

fn extensions(family: Family) -> Vec<Sample> {
    let list = || Box::new(name("KUBE-SEP-7AEEELSGPX43WHBU"));
    let recent = match family {
        Family::V4 => "--name KUBE-SEP-7AEEELSGPX43WHBU --mask 255.255.255.255 --rsource",
        Family::V6 => "--name KUBE-SEP-7AEEELSGPX43WHBU --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource",
    };
    let node_port = rule([Match::Port(Some(65_535)), account("localhost_nps_accepted_pkts")], chain());
    vec![
        (rule([comment(), Match::SourceLocal], chain()), format!("{COMMENT} -m addrtype --src-type LOCAL {JUMP}")),
        (
            rule([Match::CtState { inverted: false, states: CtStates::New }, comment()], chain()),
            format!("-m conntrack --ctstate NEW {COMMENT} {JUMP}"),
        ),
        (
            rule([Match::Random(1 << 30)], chain()),
            format!("-m statistic --mode random --probability 0.50000000000 {JUMP}"),
        ),
        (
            rule([comment(), Match::RecentlySeen { seconds: 10_800, list: list() }], chain()),
            format!("{COMMENT} -m recent --rcheck --seconds 10800 --reap {recent} {JUMP}"),
        ),
        (
            rule([Match::InSet { set: Box::new(name(SET)) }, comment()], chain()),
            format!("-m set --match-set {SET} src {COMMENT} {JUMP}"),
        ),
        (rule([Match::SeeNow { list: list() }], Target::Accept), format!("-m recent --set {recent} -j ACCEPT")),
        (
            Rule { protocol: Some(PortProtocol::Tcp), ..node_port },
            format!("-p tcp -m tcp --dport 65535 -m nfacct --nfacct-name localhost_nps_accepted_pkts {JUMP}"),
        ),
        (rule([account("a.counter")], Target::Return), r#"-m nfacct --nfacct-name "a.counter" -j RETURN"#.to_owned()),
    ]
}

fn targets(family: Family) -> Vec<Sample> {
    let (reject, endpoint) = match family {
        Family::V4 => ("icmp-port-unreachable", "10.180.1.90:8080"),
        Family::V6 => ("icmp6-port-unreachable", "[fd00:10:180:1::5a]:8080"),
    };
    let with = |protocol, rule| Rule { protocol: Some(protocol), ..rule };
    let dnat = Target::Dnat(endpoint.parse().unwrap());
    let bare = |target, text: &str| (rule([], target), text.to_owned());
    vec![
        (
            with(PortProtocol::Udp, rule([Match::DestinationLocal, Match::Port(Some(0))], Target::Reject)),
            format!("-p udp -m addrtype --dst-type LOCAL -m udp --dport 0 -j REJECT --reject-with {reject}"),
        ),
        (
            with(PortProtocol::Sctp, rule([Match::Port(None)], dnat)),
            format!("-p sctp -m sctp -j DNAT --to-destination {endpoint}"),
        ),
        bare(Target::Masquerade { random_fully: true }, "-j MASQUERADE --random-fully"),
        bare(Target::Masquerade { random_fully: false }, "-j MASQUERADE"),
        bare(Target::SetXmark { value: 0x4000, mask: 0 }, "-j MARK --set-xmark 0x4000/0x0"),
        bare(Target::SetXmark { value: u32::MAX, mask: u32::MAX }, "-j MARK --set-xmark 0xffffffff/0xffffffff"),
    ]
}

fn invertible(inverted: bool) -> Vec<Sample> {
    let prefix = if inverted { "! " } else { "" };
    let states = [
        (CtStates::Invalid, "INVALID"),
        (CtStates::RelatedEstablished, "RELATED,ESTABLISHED"),
        (CtStates::RelatedEstablishedDnat, "RELATED,ESTABLISHED,DNAT"),
    ]
    .map(|(states, text)| {
        let rule = rule([Match::CtState { inverted, states }], Target::Drop);
        (rule, format!("-m conntrack {prefix}--ctstate {text} -j DROP"))
    });
    let marks = [(0x4000, 0x4000, "0x4000/0x4000"), (0, 1 << 31, "0x0/0x80000000"), (7, u32::MAX, "0x7")].map(
        |(value, mask, text)| {
            let rule = rule([Match::Mark { inverted, value, mask }], Target::Accept);
            (rule, format!("-m mark {prefix}--mark {text} -j ACCEPT"))
        },
    );
    let inputs = ["cali+", "eth0.100"].map(|interface| {
        let input = Some(Box::new(InterfaceMatch { name: interface.into(), inverted }));
        (Rule { input, ..rule([comment()], chain()) }, format!("{prefix}-i {interface} {COMMENT} {JUMP}"))
    });
    states.into_iter().chain(marks).chain(inputs).collect()
}

fn account(name: &str) -> Match {
    Match::Account(name.into())
}

/// The counters used by the samples.
pub(super) const COUNTERS: [&str; 2] = ["localhost_nps_accepted_pkts", "a.counter"];

/// True if the rule's target and matches are allowed in a table.
pub(super) fn belongs(table: Table, rule: &Rule) -> bool {
    match rule.target {
        Target::Dnat(_) | Target::Masquerade { .. } => table == Table::Nat,
        Target::Reject => table == Table::Filter,
        Target::Drop => table != Table::Nat, // refused by the tools
        Target::SetXmark { .. } => table != Table::Filter,
        _ => true,
    }
}
