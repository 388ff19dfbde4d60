//! The text of rules against the `nft` tool, in a network namespace (root): the tool lists what was written as its text, and loads
//! that text as the same expressions.

#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use ferry_api::object::{Family, Protocol};
use ferry_kernel::netns::Namespace;
use ferry_kernel::nft::{BaseHook, Chain, ChainKind, Expr, FibAddress, Hook, NftBatch, NftSocket};
use ferry_model::LocalDetector;
use ferry_ruleset::encode::{fill_chain, fill_set};
use ferry_ruleset::layout::{Data, KeyPart, Layout};
use ferry_ruleset::rules::{Field, NODE_PORT, RuleWriter, VIP};
use ferry_ruleset::sources::Ranges;
use ferry_ruleset::text::TableText;
use ferry_ruleset::{Rules, TableRule};

const TABLE: &str = "ours";
const COMMENT: &str = "written by a test";

/// The sets and maps, by name.
fn sets() -> [(&'static str, Layout); 9] {
    use KeyPart::{Address, Octet, Port, Protocol, Slot};
    let of = Layout::new;
    let guarded = of(&[Address, Protocol, Port, Address], Data::None);
    [
        ("addresses", of(&[Address], Data::None)),
        ("clients", Layout { expires: true, size: Some(100), ..of(&[Address], Data::Endpoint) }),
        ("endpoints", of(&[Address, Protocol, Port, Slot(16)], Data::Endpoint)),
        ("guarded", Layout { interval: true, ..guarded }),
        ("node-ports", of(&[Protocol, Port], Data::Verdict)),
        ("octets", Layout { size: Some(256), ..of(&[Octet, Octet], Data::None) }),
        ("ports", of(&[Port], Data::None)),
        ("sources", Layout { interval: true, ..of(&[Address], Data::None) }),
        ("vips", of(&[Address, Protocol, Port], Data::Verdict)),
    ]
}

/// Rules of both kinds of chains.
fn rules(family: Family) -> Vec<TableRule> {
    let rule = || RuleWriter::new(family);
    let mut rules = vec![
        rule().original_direction().accept(),
        rule().icmp_echo_request().drop_it(),
        rule().tcp_port_in("ports").accept(),
        rule().tcp_without_syn().accept(),
        rule().destination_in_set("addresses").return_it(),
        rule().source_in_set("addresses").jump("other"),
        rule().source_outside("sources").drop_it(),
        rule().outgoing_not("lo").accept(),
        rule().outside_set(&[VIP, &[Field::Source]].concat(), "guarded").drop_it(),
        rule().in_set(&[Field::Destination], "addresses").goto("other"),
        rule().verdict_map(VIP, "vips"),
        rule().verdict_map(NODE_PORT, "node-ports"),
        rule().protocol(Protocol::Udp).translated().accept(),
        rule().unmarked(0x4000).return_it(),
        rule().set_mark(0x4000).end(),
        rule().flip_mark(0x4000).end(),
        rule().address_is_local(FibAddress::Source, false).destination_not_loopback().drop_it(),
    ];
    // The tool lists this rule of IPv6, but aborts when it loads it.
    rules.extend((family == Family::V4).then(|| rule().update("clients", Duration::from_secs(10)).end()));
    rules
}

/// Rules that translate, which only chains of type nat hold.
fn nat_rules(family: Family) -> Vec<TableRule> {
    let rule = || RuleWriter::new(family);
    let slot = [VIP, &[Field::Slot(2, 0)]].concat();
    let pods = LocalDetector::Bridge("cni0".to_owned());
    vec![
        rule().pods(&pods, false).unwrap().set_mark(0x4000).end(),
        rule().translate(&slot, "endpoints"),
        rule().translated().source_not_loopback().reaches_itself("octets").drop_it(),
    ]
}

fn chains(family: Family) -> Vec<(Chain, Rules)> {
    let base = |kind, hook, priority| Some(BaseHook { kind, hook, priority });
    let chain = |name: &str, hook, rules: Vec<TableRule>| (Chain { name: name.to_owned(), hook }, Rules(rules.into()));
    vec![
        chain("filter-forward", base(ChainKind::Filter, Hook::Forward, 10), rules(family)),
        chain("nat-prerouting", base(ChainKind::Nat, Hook::Prerouting, -100), nat_rules(family)),
        chain("other", None, Vec::new()),
    ]
}

fn ranges(family: Family) -> Ranges {
    let nets = match family {
        Family::V4 => ["10.0.0.0/8", "192.0.2.0/25"],
        Family::V6 => ["fd00::/16", "fd10::/64"],
    };
    Ranges::new(&nets.map(|net| net.parse().unwrap()))
}

fn write(family: Family) {
    let mut batch = NftBatch::new(family, TABLE);
    batch.add_table(Some(COMMENT));
    for (name, layout) in sets() {
        let set = layout.set(name.to_owned(), family);
        if name == "sources" { fill_set(&mut batch, &set, &ranges(family)) } else { batch.add_set(&set) }
    }
    let chains = chains(family);
    chains.iter().for_each(|(chain, _)| batch.add_chain(chain));
    chains.iter().for_each(|(chain, rules)| fill_chain(&mut batch, &chain.name, rules));
    NftSocket::open().unwrap().commit(batch).unwrap();
}

fn rendered(family: Family) -> String {
    let mut text = TableText::new(family, TABLE, COMMENT);
    let ranges: Vec<String> = ranges(family).as_slice().iter().map(ToString::to_string).collect();
    for (name, layout) in sets() {
        text.set(name, &layout, if name == "sources" { &ranges } else { &[] });
    }
    for (chain, rules) in chains(family) {
        text.chain(&chain.name, chain.hook, &rules);
    }
    text.finish()
}

fn nft(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("nft");
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "nft {arguments:?}: {input}");
    String::from_utf8(output.stdout).unwrap()
}

/// The rules, without what the tool adds to a lookup of concatenated ranges: it swaps the octets of a protocol's number, of which
/// there is one.
fn in_kernel(family: Family) -> Vec<(String, Vec<Expr>)> {
    let rules = NftSocket::open().unwrap().rules(family, TABLE, None).unwrap();
    let effective = |expr: &Expr| !matches!(expr, Expr::Opaque { name, .. } if name == "byteorder");
    rules.into_iter().map(|(chain, rule)| (chain, rule.exprs.into_iter().filter(effective).collect())).collect()
}

#[test]
fn the_tool_lists_and_loads_rules_as_their_text() {
    for family in Family::ALL {
        let test = || {
            write(family);
            let written: Vec<(String, Vec<Expr>)> = chains(family)
                .into_iter()
                .flat_map(|(chain, rules)| {
                    rules.0.iter().map(|rule| (chain.name.clone(), rule.exprs.clone())).collect::<Vec<_>>()
                })
                .collect();
            assert_eq!(in_kernel(family), written);
            let sets = || {
                let mut sets = NftSocket::open().unwrap().sets(family, TABLE).unwrap();
                sets.sort();
                // The tool writes its own.
                sets.iter_mut().for_each(|set| set.userdata.clear());
                sets
            };
            let (listed, sets_written) = (nft(&["list", "ruleset"], ""), sets());
            let lines: Vec<&str> = listed.lines().map(str::trim).collect();
            for rule in chains(family).iter().flat_map(|(_, rules)| rules.0.to_vec()) {
                assert!(lines.contains(&rule.text.as_str()), "{}\n{listed}", rule.text);
            }
            nft(&["flush", "ruleset"], "");
            nft(&["-f", "-"], &rendered(family));
            assert_eq!(in_kernel(family), written);
            assert_eq!(sets(), sets_written);
        };
        Namespace::new().unwrap().run(test).unwrap();
    }
}
