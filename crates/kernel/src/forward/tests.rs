//! Chains written by the tools, in namespaces of a real kernel.

use std::process::Command;

use super::*;
use crate::netns::Namespace;

const COMMENT: &str = "kube-proxy";

fn tool(line: &str) -> String {
    let mut words = line.split_whitespace().map(|word| word.replace('~', " "));
    let program = words.next().unwrap();
    // Every namespace has legacy tables of its own, and needs no lock.
    let output = Command::new(program).args(words).env("XTABLES_LOCKFILE", "/dev/null").output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn nft(script: &str) {
    let script = script.replace('\n', ";");
    let output = Command::new("nft").arg(&script).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

fn in_namespace(test: impl FnOnce(&mut ForwardChains) + Send) {
    Namespace::new().unwrap().run(|| test(&mut ForwardChains::open(COMMENT).unwrap())).unwrap();
}

fn only(chains: &mut ForwardChains) -> ForwardChain {
    let [chain] = <[_; 1]>::try_from(chains.nft().unwrap()).unwrap();
    chain
}

/// The connections that a chain loses: established, translated.
fn lost(chain: &ForwardChain) -> (bool, bool) {
    (chain.loses(Traffic::Established), chain.loses(Traffic::Translated))
}

/// Rules by `iptables`, and what is lost in a chain with each.
const RULES: &[(&[&str], (bool, bool))] = &[
    (&[], (true, true)),
    (&["-A FORWARD -j ACCEPT"], (false, false)),
    (&["-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"], (false, true)),
    (&["-A FORWARD -m conntrack --ctstate ESTABLISHED -m comment --comment of~others -j ACCEPT"], (false, true)),
    (&["-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT"], (true, false)),
    (&["-A FORWARD -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT"], (false, false)),
    // under a condition
    (&["-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"], (true, true)),
    (&["-A FORWARD -p tcp -j ACCEPT"], (true, true)),
    (&["-A FORWARD -m conntrack ! --ctstate INVALID -j ACCEPT"], (true, true)),
    (&["-A FORWARD -m conntrack --ctstate ESTABLISHED --ctstatus ASSURED -j ACCEPT"], (true, true)),
    // behind a rule that decides
    (&["-A FORWARD -j DROP", "-A FORWARD -j ACCEPT"], (true, true)),
    (&["-A FORWARD -j REJECT", "-A FORWARD -j ACCEPT"], (true, true)),
    (&["-A FORWARD -p udp -j REJECT", "-A FORWARD -m conntrack --ctstate DNAT,ESTABLISHED -j ACCEPT"], (false, false)),
    // in other chains
    (&["-N ONE", "-N TWO", "-A FORWARD -j ONE", "-A ONE -j TWO", "-A TWO -j ACCEPT"], (false, false)),
    (&["-N ONE", "-A FORWARD -i eth0 -j ONE", "-A ONE -j ACCEPT"], (true, true)),
    (&["-N ONE", "-A FORWARD -j ONE", "-A ONE -j RETURN", "-A ONE -j ACCEPT"], (true, true)),
    (&["-N ONE", "-A FORWARD -j ONE", "-A ONE -j RETURN", "-A FORWARD -j ACCEPT"], (false, false)),
    (&["-N ONE", "-A FORWARD -g ONE", "-A FORWARD -j ACCEPT"], (true, true)),
    (&["-N ONE", "-A FORWARD -j ONE", "-A ONE -j DROP", "-A FORWARD -j ACCEPT"], (true, true)),
    (&["-P FORWARD ACCEPT"], (false, false)),
];

/// Networks, of IPv4 and of IPv6: (range, another one).
const NETWORKS: [(&str, &str); 2] = [("10.244.0.0/16", "10.96.0.0/17"), ("fd00:10:244::/56", "fd00:10:96::/112")];

fn assert_rules(variant: &str, read: fn(&mut ForwardChains, Family) -> ForwardChain) {
    for (family, name, (network, other)) in
        [(Family::V4, "iptables", NETWORKS[0]), (Family::V6, "ip6tables", NETWORKS[1])]
    {
        let from = |range: &str| format!("-A FORWARD -s {range} -m comment --comment flanneld -j ACCEPT");
        let to = |range: &str| format!("-A FORWARD -d {range} -j ACCEPT");
        let own: Vec<(Vec<String>, (bool, bool))> = vec![
            (vec![from(network), to(network)], (false, false)),
            (vec![from(other), to(other)], (false, false)),
            (vec![from(network), to(other)], (true, true)),
            (vec![from(network)], (true, true)),
        ];
        let shared = RULES.iter().map(|(rules, lost)| (rules.iter().map(ToString::to_string).collect(), *lost));
        for (rules, expected) in shared.chain(own) {
            in_namespace(|chains| {
                tool(&format!("{name}-{variant} -P FORWARD DROP"));
                rules.iter().for_each(|rule| drop(tool(&format!("{name}-{variant} {rule}"))));
                let chain = read(chains, family);
                assert_eq!(lost(&chain), expected, "{variant} {family} {rules:?}");
                assert!(chain.place().covers(family) && !chain.place().covers(other_than(family)));
                assert_eq!(chain.own_rules(), 0);
            });
        }
    }
}

fn other_than(family: Family) -> Family {
    if family == Family::V4 { Family::V6 } else { Family::V4 }
}

#[test]
fn rules_of_iptables_nft_are_understood() {
    assert_rules("nft", |chains, _| only(chains));
}

#[test]
fn rules_of_iptables_legacy_are_understood() {
    assert_rules("legacy", |chains, family| chains.legacy(family).unwrap().unwrap());
}

#[test]
fn legacy_tables_are_not_created_by_a_look() {
    in_namespace(|chains| {
        for family in Family::ALL {
            assert!(chains.legacy(family).unwrap().is_none());
            assert_eq!(legacy::tables(family).unwrap(), Vec::<String>::new());
        }
    });
}

#[test]
fn rules_of_nft_are_understood() {
    for (rules, expected) in [
        ("", (true, true)),
        ("ct state vmap { established : accept, related : accept, invalid : drop }", (false, true)),
        ("ct state vmap { established : drop, new : accept }", (true, true)),
        ("ct state { established, new } accept", (false, false)),
        ("ct state established,related counter accept", (false, true)),
        ("ct state established log prefix \"x\" accept", (false, true)),
        ("ct state != established accept", (true, true)),
        ("ct status dnat accept", (true, false)),
        ("ct status dnat counter reject\nct state established,new accept", (false, false)),
        ("tcp dport 80 accept\nmeta nfproto ipv4 ct state established accept", (true, true)),
        ("counter\nlog\nreject with icmpx admin-prohibited\naccept", (true, true)),
    ] {
        in_namespace(|chains| {
            nft("add table inet fw\nadd chain inet fw onward { type filter hook forward priority 10; policy drop; }");
            rules.lines().for_each(|rule| nft(&format!("add rule inet fw onward {rule}")));
            let chain = only(chains);
            assert_eq!(lost(&chain), expected, "{rules}");
            assert!(Family::ALL.into_iter().all(|family| chain.place().covers(family)));
        });
    }
}

#[test]
fn only_chains_that_see_forwarded_packets_count() {
    in_namespace(|chains| {
        nft("add table ip one\nadd chain ip one in { type filter hook input priority 0; policy drop; }");
        nft("add chain ip one jumped");
        nft("add table ip asleep { flags dormant; }");
        nft("add chain ip asleep onward { type filter hook forward priority 0; policy drop; }");
        nft("add table bridge two\nadd chain bridge two onward { type filter hook forward priority 0; policy drop; }");
        assert!(chains.nft().unwrap().is_empty());
        nft("add chain ip one onward { type filter hook forward priority 0; }");
        assert_eq!(
            (lost(&only(chains)), only(chains).place().to_string()),
            ((false, false), "chain onward of table ip one".to_owned())
        );
        nft("chain ip one onward { policy drop; }");
        assert_eq!(lost(&only(chains)), (true, true));
    });
}

#[test]
fn the_rule_is_written_once_and_removed() {
    for traffic in [Traffic::Established, Traffic::Translated] {
        in_namespace(|chains| {
            nft("add table inet fw\nadd chain inet fw onward { type filter hook forward priority 10; policy drop; }");
            nft("add rule inet fw onward tcp dport 22 accept");
            tool("iptables-nft -P FORWARD DROP");
            tool("ip6tables-nft -A FORWARD -p tcp -j DROP");
            tool("ip6tables-nft -P FORWARD DROP");
            for chain in chains.nft().unwrap() {
                assert!(chain.loses(traffic) && !chain.has_own_rule(traffic));
                chains.accept(&chain, traffic).unwrap();
            }
            let written = chains.nft().unwrap();
            assert_eq!(written.len(), 3);
            for chain in &written {
                // Own rules are left aside.
                assert!(chain.loses(traffic) && chain.has_own_rule(traffic) && chain.own_rules() == 1);
            }
            let states = traffic.states().names();
            let rule = format!("-A FORWARD -m conntrack --ctstate {states} -m comment --comment {COMMENT} -j ACCEPT");
            assert_eq!(tool("iptables-nft -S FORWARD").lines().skip(1).collect::<Vec<_>>(), [&rule]);
            assert!(tool("ip6tables-nft -S FORWARD").ends_with(&format!("{rule}\n")));
            let listed = tool("nft list chain inet fw onward");
            let expected = match traffic {
                Traffic::Established => "ct state established,related accept comment \"kube-proxy\"",
                Traffic::Translated => "ct status dnat accept comment \"kube-proxy\"",
            };
            assert!(listed.lines().rev().nth(2).unwrap().contains(expected), "{listed}");
            written.iter().for_each(|chain| chains.withdraw(chain).unwrap());
            assert!(chains.nft().unwrap().iter().all(|chain| chain.own_rules() == 0));
        });
    }
}

/// The tool writes a comment as a match where it has read it as user data, and adds counters.
#[test]
fn the_rule_is_known_again_after_the_tool_has_rewritten_it() {
    in_namespace(|chains| {
        tool("iptables-nft -P FORWARD DROP");
        let chain = only(chains);
        chains.accept(&chain, Traffic::Translated).unwrap();
        let saved = tool("iptables-nft-save");
        let file = std::env::temp_dir().join(format!("ferry-forward-{}", std::process::id()));
        std::fs::write(&file, saved).unwrap();
        tool(&format!("iptables-nft-restore {}", file.display()));
        std::fs::remove_file(file).unwrap();
        assert!(only(chains).has_own_rule(Traffic::Translated));
    });
}

#[test]
fn the_rule_stands_where_packets_reach_it() {
    in_namespace(|chains| {
        nft("add table ip fw\nadd chain ip fw onward { type filter hook forward priority 0; policy drop; }");
        for rule in ["udp dport 53 accept", "drop", "ct status dnat accept comment \"kube-proxy\""] {
            nft(&format!("add rule ip fw onward {rule}"));
        }
        let chain = only(chains);
        assert!(chain.own_rules() == 1 && !chain.has_own_rule(Traffic::Translated), "behind the drop");
        chains.accept(&chain, Traffic::Translated).unwrap();
        assert!(only(chains).has_own_rule(Traffic::Translated));
        let listed = tool("nft list chain ip fw onward");
        let rules: Vec<&str> = listed.lines().skip(3).map(str::trim).filter(|line| *line != "}").collect();
        assert_eq!(rules, ["udp dport 53 accept", "ct status dnat accept comment \"kube-proxy\"", "drop"]);
        // another mode's
        let chain = only(chains);
        assert!(!chain.has_own_rule(Traffic::Established));
        chains.accept(&chain, Traffic::Established).unwrap();
        assert!(only(chains).has_own_rule(Traffic::Established));
    });
}

#[test]
fn the_command_is_one_that_works() {
    in_namespace(|chains| {
        for program in ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"] {
            tool(&format!("{program} -P FORWARD DROP"));
        }
        nft("add table inet fw\nadd chain inet fw onward { type filter hook forward priority 10; policy drop; }");
        let all = |chains: &mut ForwardChains| {
            let legacy = Family::ALL.map(|family| chains.legacy(family).unwrap().unwrap());
            chains.nft().unwrap().into_iter().chain(legacy).collect::<Vec<_>>()
        };
        for traffic in [Traffic::Established, Traffic::Translated] {
            let before = all(chains);
            assert_eq!(before.iter().filter(|chain| chain.loses(traffic)).count(), 5);
            before.iter().for_each(|chain| drop(tool(&chain.place().command(traffic))));
            assert!(all(chains).iter().all(|chain| !chain.loses(traffic)));
        }
    });
}

#[test]
fn a_legacy_chain_cant_be_written() {
    in_namespace(|chains| {
        tool("iptables-legacy -P FORWARD DROP");
        let chain = chains.legacy(Family::V4).unwrap().unwrap();
        let error = chains.accept(&chain, Traffic::Translated).unwrap_err();
        assert!(matches!(error, CommitFailure::Io(error) if error.kind() == io::ErrorKind::Unsupported));
    });
}

/// Any byte of a table may be any other.
#[test]
fn damaged_entries_are_errors_or_other_rules() {
    let entries = Namespace::new().unwrap().run(|| {
        tool("iptables-legacy -N ONE");
        tool("iptables-legacy -A FORWARD -m conntrack --ctstate ESTABLISHED -j ONE");
        tool("iptables-legacy -A FORWARD -s 10.0.0.0/8 -j ACCEPT");
        tool("iptables-legacy -A FORWARD -g ONE");
        legacy::filter_entries(Family::V4).unwrap().unwrap()
    });
    let entries = entries.unwrap();
    assert!(entries::evaluate_forward(Family::V4, &entries).is_ok());
    let mut errors = 0;
    for at in 0..entries.bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = entries.clone();
            damaged.bytes[at] = value;
            errors += usize::from(entries::evaluate_forward(Family::V4, &damaged).is_err());
        }
    }
    for end in 0..entries.bytes.len() {
        let mut cut = entries.clone();
        cut.bytes.truncate(end);
        errors += usize::from(entries::evaluate_forward(Family::V4, &cut).is_err());
    }
    assert!(errors > 0);
    let beyond = Entries { forward_policy: entries.bytes.len(), ..entries };
    assert!(entries::evaluate_forward(Family::V4, &beyond).is_err());
}
