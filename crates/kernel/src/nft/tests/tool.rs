//! Comparison with the `nft` tool: it lists our rulesets, loads its listings, and writes the same user data.

use std::process::{Command, Output, Stdio};

use super::ruleset::{Layout, V4, V6};
use super::userdata::{SetUserdata, TypeofExpr};
use super::*;

/// Runs commands of the tool in the current namespace.
pub(super) fn nft(commands: &str) {
    let output = run_nft(commands);
    assert!(output.status.success(), "{}\n{commands}", String::from_utf8_lossy(&output.stderr));
}

fn run_nft(commands: &str) -> Output {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool nft must be installed");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), commands.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn list() -> String {
    let output = Command::new("nft").args(["list", "ruleset"]).output().expect("the tool nft must be installed");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Removes two additions of the tool: user data of sets that need no declaration, and a conversion of the byte order of one
/// byte, without effect, before a lookup in an interval set.
fn without_additions_of_the_tool(mut found: ReadBack) -> ReadBack {
    let declared = |set: &Set| ["endpoints", "nodeport-endpoints"].contains(&set.name.as_str());
    let strip = |set: Set| if declared(&set) { set } else { Set { userdata: Vec::new(), ..set } };
    found.sets = std::mem::take(&mut found.sets).into_iter().map(strip).collect();
    for rule in found.rules.values_mut().flatten() {
        rule.exprs.retain(|expr| !matches!(expr, Expr::Opaque { name, .. } if name == "byteorder"));
    }
    found
}

fn lists_and_loads(layout: Layout, with_update: bool) {
    let family = layout.family;
    let mut ruleset = layout.ruleset();
    if with_update {
        ruleset.chains.iter_mut().find(|(chain, _)| chain.name == "learn").unwrap().1.push(layout.update_rule());
    }
    let mut socket = NftSocket::open().unwrap();
    commit(&mut socket, family, |batch| {
        batch.add_table(Some("a comment"));
        write(batch, &ruleset);
    })
    .unwrap();
    let text = list();
    commit(&mut socket, family, NftBatch::delete_table).unwrap();
    nft(&text);
    assert_eq!(list(), text);
    let found = without_additions_of_the_tool(read_back(&mut socket, family));
    let wanted = expected(&ruleset);
    for (name, rules) in &wanted.rules {
        assert_eq!(found.rules.get(name), Some(rules), "{name} in\n{text}");
    }
    assert_eq!(found, wanted);
    assert_eq!(socket.table(family, TABLE).unwrap().unwrap().comment.as_deref(), Some("a comment"));
}

#[test]
fn ipv4_lists_and_loads() {
    isolated(|| lists_and_loads(V4, true));
}

/// Without the rule that changes a map with keys of 16 bytes: version 1.0.6 cannot load it.
#[test]
fn ipv6_lists_and_loads() {
    isolated(|| lists_and_loads(V6, false));
}

#[test]
fn ipv6_lists_with_the_rule_that_changes_a_map() {
    isolated(|| {
        let mut ruleset = V6.ruleset();
        ruleset.chains.iter_mut().find(|(chain, _)| chain.name == "learn").unwrap().1.push(V6.update_rule());
        commit(&mut NftSocket::open().unwrap(), Family::V6, |batch| {
            batch.add_table(None);
            write(batch, &ruleset);
        })
        .unwrap();
        let text = list();
        assert!(text.contains("update @affinity-1 { ip6 saddr : ip6 daddr . th dport"), "{text}");
    });
}

#[test]
fn the_user_data_of_maps_equals_the_tools() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        for (layout, name) in [(V4, "ip"), (V6, "ip6")] {
            let key = "meta l4proto . th dport . numgen random mod 131072";
            nft(&format!(
                "table {name} {TABLE} {{
                    map a {{ typeof {name} daddr . {key} : {name} daddr . th dport; }}
                    map b {{ typeof {key} : {name} daddr . th dport; }}
                    map c {{ typeof {name} daddr . {key} : {name} daddr . th dport; comment \"what it is for\"; }}
                    set d {{ typeof {name} saddr . th sport; }}
                    set e {{ typeof {name} saddr; comment \"plain\"; }}
                    set f {{ typeof meta l4proto; }}
                    map g {{ typeof numgen inc mod 4 offset 7 : {name} daddr; }}
                }}"
            ));
            let saddr = if name == "ip" { userdata::PayloadField::IpSaddr } else { userdata::PayloadField::Ip6Saddr };
            let daddr = if name == "ip" { userdata::PayloadField::IpDaddr } else { userdata::PayloadField::Ip6Daddr };
            let [saddr, daddr, sport] = [saddr, daddr, userdata::PayloadField::ThSport].map(TypeofExpr::Payload);
            let slot = TypeofExpr::Numgen { random: false, modulus: 4, offset: 7 };
            let wanted = [
                layout.endpoints_notes(true),
                layout.endpoints_notes(false),
                SetUserdata { comment: Some("what it is for"), ..layout.endpoints_notes(true) },
                SetUserdata { key: Some(TypeofExpr::Concat(vec![saddr.clone(), sport])), ..SetUserdata::default() },
                SetUserdata { key: Some(saddr), comment: Some("plain"), ..SetUserdata::default() },
                SetUserdata { key: Some(TypeofExpr::L4Proto), ..SetUserdata::default() },
                SetUserdata { key: Some(slot), data: Some(daddr), comment: None },
            ];
            let found = read_back(&mut socket, layout.family).sets;
            assert_eq!(found.len(), wanted.len());
            for (set, wanted) in found.iter().zip(wanted) {
                assert_eq!(set.userdata, userdata::set(&wanted), "{name} {}", set.name);
                assert_eq!(userdata::set_comment(&set.userdata).as_deref(), wanted.comment);
            }
        }
    });
}

#[test]
fn the_user_data_of_tables_equals_the_tools() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        commit(&mut socket, Family::V4, |batch| batch.add_table(Some("from us"))).unwrap();
        assert!(list().contains("comment \"from us\""));
        nft(&format!("table ip6 {TABLE} {{ comment \"from the tool\"; }}"));
        let table = socket.table(Family::V6, TABLE).unwrap().unwrap();
        assert_eq!(table.comment.as_deref(), Some("from the tool"));
    });
}

/// Elements added by the tool have the same encoding as ours.
#[test]
fn elements_of_the_tool_are_identical() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let ruleset = V4.ruleset();
        commit(&mut socket, Family::V4, |batch| {
            batch.add_table(None);
            ruleset.sets.iter().for_each(|set| batch.add_set(set));
        })
        .unwrap();
        nft(&format!(
            "add element ip {TABLE} endpoints {{ 192.0.2.1 . tcp . 80 . 65536 : 192.0.2.200 . 8080 }}
             add element ip {TABLE} source-ranges {{ 192.0.2.1 . tcp . 80 . 192.0.2.64/26 }}
             add element ip {TABLE} hairpin {{ 192.0.2.200 . 192.0.2.200 }}"
        ));
        let of =
            |set: &'static str| ruleset.elements.iter().filter(move |(of, _)| *of == set).map(|(_, element)| element);
        for (set, element) in [
            ("endpoints", of("endpoints").nth(1)),
            ("source-ranges", of("source-ranges").next()),
            ("hairpin", of("hairpin").next()),
        ] {
            assert_eq!(elements(&mut socket, Family::V4, set).iter().next(), element, "{set}");
        }
    });
}
