use super::*;

fn sorted(table: Table, lines: &str) -> (Vec<IptObject>, Mirror) {
    let mut sorter = Sorter::new(Family::V4);
    sorter.begin(table);
    for line in lines.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix(':') {
            sorter.chain(IptablesChainName::new(name).unwrap());
        } else {
            let (name, rule) = line.split_once(' ').unwrap();
            assert!(sorter.rule(IptablesChainName::new(name).unwrap(), rule), "{line}");
        }
    }
    sorter.end();
    let found = sorter.found();
    (found.objects, found.mirror)
}

fn printed(table: Table, lines: &str) -> Vec<String> {
    let short = |object: &IptObject| match object {
        IptObject::Chain(id, rules) => format!("chain {} {}", id.name, rules.0.len()),
        IptObject::SharedChain(id) => format!("chain {}", id.name),
        IptObject::OwnedRules(key, rules) => format!("{} {:?} {}", key.chain.name, key.owner, rules.len()),
        IptObject::ForeignRule(id, text) => format!("foreign {} {text}", id.name),
        IptObject::SourceSet(name, _) => name.to_string(),
        IptObject::RouteLocalnet => "route_localnet".to_owned(),
    };
    let mut printed: Vec<String> = sorted(table, lines).0.iter().map(short).collect();
    printed.sort();
    printed
}

const DISPATCH: &str = "KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"a/b cluster IP\" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O";
const LAST: &str = "KUBE-SERVICES -m comment --comment last -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS";

#[test]
fn rules_are_their_owners_and_others_are_foreign() {
    let found = printed(
        Table::Nat,
        &format!(
            ":PREROUTING\n:KUBE-SERVICES\n:KUBE-NODEPORTS\n:DOCKER\nPREROUTING -j DOCKER\nPREROUTING -j KUBE-SERVICES\n\
             DOCKER -j RETURN\n{DISPATCH}\nKUBE-SERVICES -s 192.0.2.1/32 -j RETURN\nKUBE-SERVICES --what is this\n{LAST}\n\
             KUBE-NODEPORTS -p udp -m comment --comment a/b:dns -m udp --dport 30053 -j KUBE-EXT-XPGD46QRK7WJZT7O"
        ),
    );
    assert_eq!(
        found,
        [
            "KUBE-NODEPORTS NodePort(30053, Udp) 1",
            "KUBE-SERVICES NodePorts(None) 1",
            "KUBE-SERVICES Vip(10.96.0.1, 80, Tcp) 1",
            "PREROUTING Jump(KUBE-SERVICES) 1",
            "chain KUBE-NODEPORTS",
            "chain KUBE-SERVICES",
            "foreign KUBE-SERVICES --what is this",
            "foreign KUBE-SERVICES -s 192.0.2.1/32 -j RETURN",
        ]
    );
}

#[test]
fn what_stands_twice_is_foreign_once_and_what_must_be_last_is_if_it_is_not() {
    let once = printed(Table::Nat, &format!(":KUBE-SERVICES\n{DISPATCH}\n{DISPATCH}\n{LAST}\n{LAST}"));
    assert_eq!(once.iter().filter(|line| line.starts_with("foreign")).count(), 2, "{once:?}");
    assert_eq!(once.len(), 5);
    let late = printed(Table::Nat, &format!(":KUBE-SERVICES\n{LAST}\n{DISPATCH}"));
    assert!(late.iter().any(|line| line.starts_with("foreign") && line.ends_with("KUBE-NODEPORTS")), "{late:?}");
    assert!(!late.iter().any(|line| line.contains("NodePorts(None)")), "{late:?}");
}

#[test]
fn the_kubelets_rules_are_not_ours() {
    let found = printed(
        Table::Filter,
        ":INPUT\n:KUBE-FIREWALL\nINPUT -j KUBE-FIREWALL\nINPUT -j KUBE-FIREWALL\nKUBE-FIREWALL -p udp -j DROP\n\
         KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" \
         -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
    );
    assert_eq!(found, ["INPUT Jump(KUBE-FIREWALL) 1", "KUBE-FIREWALL Guard 1", "chain KUBE-FIREWALL"]);
}

#[test]
fn chains_of_services_are_whole_without_comments_and_with_what_is_strange() {
    let (objects, mirror) = sorted(
        Table::Nat,
        ":KUBE-SEP-SXIVWICOYRO3J4NJ\n:KUBE-SVC-XPGD46QRK7WJZT7O\n:KUBE-SVC-short\n\
         KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment \"a/b -> 10.0.0.1:80\" -j KUBE-SEP-SXIVWICOYRO3J4NJ\n\
         KUBE-SVC-XPGD46QRK7WJZT7O -m quota --quota 5 -j RETURN",
    );
    assert_eq!(objects.len(), 2);
    assert_eq!((mirror.endpoints(), mirror.size(Table::Nat).chains, mirror.size(Table::Nat).rules), (1, 2, 2));
    let Some(IptObject::Chain(_, ChainRules(rules))) =
        objects.iter().find(|object| matches!(object, IptObject::Chain(_, rules) if rules.0.len() == 2))
    else {
        panic!("{objects:?}")
    };
    assert!(rules[0].matches.is_empty());
    assert_eq!(rules[1].target, Target::Jump(UNPARSABLE));
}

/// Upstream writes them in the Service's order; this mode sorts them.
#[test]
fn source_ranges_are_the_same_in_any_order() {
    let chain = "KUBE-FW-XPGD46QRK7WJZT7O";
    let range = |net: &str| format!("\n{chain} -s {net} -j KUBE-EXT-XPGD46QRK7WJZT7O");
    let [low, high, host] = ["10.0.0.0/8", "192.0.2.0/24", "203.0.113.7/32"].map(range);
    let bare = format!("\n{chain} -j KUBE-EXT-XPGD46QRK7WJZT7O");
    let objects = |rules: &str| sorted(Table::Nat, &format!(":{chain}{rules}")).0;
    let wanted = objects(&format!("{low}{high}{host}{bare}"));
    let [IptObject::Chain(_, ChainRules(rules))] = wanted.as_slice() else { panic!("{wanted:?}") };
    assert_eq!(rules.iter().filter(|rule| rule.source.is_some()).count(), 3);
    assert!(rules.iter().rev().skip(1).all(|rule| rule.source.is_some()), "the one for every source is last");
    for other in [[&bare, &host, &low, &high], [&host, &high, &low, &bare], [&high, &bare, &low, &host]] {
        assert_eq!(objects(&other.map(String::as_str).concat()), wanted);
    }
    // In other chains the order matters.
    let balancing = |rules: &str| sorted(Table::Nat, &format!(":{chain}{rules}").replace("KUBE-FW", "KUBE-SVC")).0;
    assert_ne!(balancing(&format!("{low}{high}")), balancing(&format!("{high}{low}")));
}

#[test]
fn a_rule_of_a_chain_that_was_not_named_is_no_listing() {
    let mut sorter = Sorter::new(Family::V4);
    sorter.begin(Table::Nat);
    let name = |text| IptablesChainName::new(text).unwrap();
    assert!(!sorter.rule(name("KUBE-SVC-XPGD46QRK7WJZT7O"), "-j RETURN"));
    sorter.chain(name("KUBE-SVC-XPGD46QRK7WJZT7O"));
    assert!(sorter.rule(name("KUBE-SVC-XPGD46QRK7WJZT7O"), "-j RETURN"));
    assert!(sorter.rule(name("OTHER"), "-j RETURN"));
    assert!(!sorter.rule(name("KUBE-SVC-XPGD46QRK7WJZT7O"), "-j RETURN"), "it had come to its end");
}

#[test]
fn a_chain_that_the_tool_cannot_print_differs_or_has_the_rules_that_are_known() {
    let id = |name: &str| ChainId { table: Table::Nat, name: IptablesChainName::new(name).unwrap() };
    let (own, shared) = (id("KUBE-SVC-XPGD46QRK7WJZT7O"), id("KUBE-SERVICES"));
    let key = OwnedRulesKey { chain: shared, owner: RuleOwner::NodePorts(None) };
    let rule = Rule { target: Target::Jump(names::NODE_PORTS), ..Rule::default() };
    let mut sorter = Sorter::new(Family::V4);
    sorter.begin(Table::Nat);
    sorter.hidden(own.name, Vec::new());
    sorter.hidden(shared.name, vec![(key, rule.clone())]);
    let Found { objects, mirror, .. } = sorter.found();
    let damaged = IptObject::Chain(own, ChainRules([unparsable()].into()));
    let hiding = IptObject::ForeignRule(shared, HIDING.into());
    assert_eq!(objects, [damaged, IptObject::SharedChain(shared), hiding, IptObject::OwnedRules(key, [rule].into())]);
    assert!(mirror.chain(own).is_some() && mirror.shared_chain(shared).is_some() && mirror.owned(&key).is_some());
}

#[test]
fn a_shared_chain_that_the_tool_cannot_print_keeps_the_rules_that_were_known() {
    let mut sorter = Sorter::new(Family::V4);
    sorter.begin(Table::Nat);
    sorter.chain(names::SERVICES);
    assert!(sorter.rule(names::SERVICES, DISPATCH.trim_start_matches("KUBE-SERVICES ")));
    sorter.end();
    let before = sorter.found();
    let mut sorter = Sorter::new(Family::V4);
    sorter.begin(Table::Nat);
    sorter.hidden(names::SERVICES, Vec::new());
    let hidden = sorter.found().completed(Family::V4, &before.mirror);
    let chain = ChainId { table: Table::Nat, name: names::SERVICES };
    assert_eq!(before.objects.len(), 2);
    for object in &before.objects {
        assert!(hidden.objects.contains(object), "{object:?}");
    }
    assert!(hidden.objects.contains(&IptObject::ForeignRule(chain, HIDING.into())));
    assert!(!before.mirror.is_hidden(chain) && hidden.mirror.is_hidden(chain));
    let owned = |found: &Found| found.mirror.shared_chain(chain).unwrap().owned().clone();
    assert_eq!(owned(&hidden), owned(&before));
    assert_eq!(owned(&before).len(), 1);
}

#[test]
fn a_rule_of_a_network_or_of_all_other_addresses_is_no_frontends() {
    for destination in ["-d 10.96.0.0/24", "! -d 10.96.0.1/32"] {
        let rule = DISPATCH.replace("-d 10.96.0.1/32", destination);
        let found = printed(Table::Nat, &format!(":KUBE-SERVICES\n{rule}"));
        assert!(found.iter().any(|line| line.starts_with("foreign")) && found.len() == 2, "{found:?}");
    }
}

#[test]
fn rules_of_table_filter_are_their_owners() {
    let refused = |chain: &str, to: &str| {
        let comment = "-p tcp -m comment --comment \"a/b has no endpoints\"";
        let port = "-m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable";
        match to {
            "LOCAL" => format!("{chain} {comment} -m addrtype --dst-type LOCAL {port}"),
            _ => format!("{chain} -d {to}/32 {comment} {port}"),
        }
    };
    let checked = |service: &str, port: u16, target: &str| {
        format!("KUBE-NODEPORTS -p tcp -m comment --comment \"{service}\" -m tcp --dport {port} -j {target}")
    };
    let lines = [
        ":KUBE-SERVICES\n:KUBE-EXTERNAL-SERVICES\n:KUBE-PROXY-FIREWALL\n:KUBE-NODEPORTS".to_owned(),
        refused("KUBE-SERVICES", "10.96.0.1"),
        refused("KUBE-SERVICES", "LOCAL"),
        refused("KUBE-EXTERNAL-SERVICES", "203.0.113.9"),
        refused("KUBE-EXTERNAL-SERVICES", "LOCAL"),
        refused("KUBE-PROXY-FIREWALL", "203.0.113.7"),
        checked("a/b:http health check node port", 32000, "ACCEPT"),
        checked("a/b:http health check node port", 32001, "DROP"),
        checked("a/b:http", 32002, "ACCEPT"),
        "KUBE-NODEPORTS -p tcp -m tcp --dport 32003 -j ACCEPT".to_owned(),
    ];
    let service = names::of_service(&object::ObjectName::new("a", "b"));
    assert_eq!(
        printed(Table::Filter, &lines.join("\n")),
        [
            "KUBE-EXTERNAL-SERVICES NodePort(80, Tcp) 1".to_owned(),
            "KUBE-EXTERNAL-SERVICES Vip(203.0.113.9, 80, Tcp) 1".to_owned(),
            format!("KUBE-NODEPORTS {:?} 1", RuleOwner::HealthCheck(32000, service)),
            "KUBE-PROXY-FIREWALL Vip(203.0.113.7, 80, Tcp) 1".to_owned(),
            "KUBE-SERVICES Vip(10.96.0.1, 80, Tcp) 1".to_owned(),
            "chain KUBE-EXTERNAL-SERVICES".to_owned(),
            "chain KUBE-NODEPORTS".to_owned(),
            "chain KUBE-PROXY-FIREWALL".to_owned(),
            "chain KUBE-SERVICES".to_owned(),
            format!("foreign {}", lines[7]),
            format!("foreign {}", lines[8]),
            format!("foreign {}", lines[9]),
            format!("foreign {}", lines[2]),
        ]
    );
}

#[test]
fn a_jump_to_the_kubelets_chain_for_some_packets_is_another_programs() {
    for condition in ["-s 192.0.2.1/32", "-d 192.0.2.1/32", "-i eth0", "-p tcp", "-m addrtype --dst-type LOCAL"] {
        assert_eq!(printed(Table::Filter, &format!("INPUT {condition} -j KUBE-FIREWALL")), [""; 0], "{condition}");
    }
    let said = printed(Table::Filter, "INPUT -m comment --comment x -j KUBE-FIREWALL");
    assert_eq!(said, ["INPUT Jump(KUBE-FIREWALL) 1"]);
}

#[test]
fn an_owners_rules_are_mirrored_line_by_line() {
    let lines = DISPATCH.replace("--comment \"a/b cluster IP\"", "--comment other");
    let (_, mirror) = sorted(Table::Nat, &format!(":KUBE-SERVICES\n{DISPATCH}\n{lines}"));
    let chain = ChainId { table: Table::Nat, name: names::SERVICES };
    let key = OwnedRulesKey { chain, owner: RuleOwner::Vip([10, 96, 0, 1].into(), 80, object::Protocol::Tcp) };
    let rule = |line: &str| line.trim_start_matches("KUBE-SERVICES ").to_owned();
    assert_eq!(mirror.owned(&key), Some(&PrintedRules::new(format!("{}\n{}", rule(DISPATCH), rule(&lines)))));
    assert_eq!(mirror.size(Table::Nat).rules, 2);
}

#[test]
fn chains_of_all_tables_read_so_far_are_counted() {
    let mut sorter = Sorter::new(Family::V4);
    assert_eq!(sorter.chains_seen(), 0);
    for (table, names, seen) in [
        (Table::Nat, &["KUBE-SERVICES", "KUBE-SVC-XPGD46QRK7WJZT7O", "DOCKER", "PREROUTING"][..], 2),
        (Table::Filter, &["KUBE-SERVICES", "KUBE-FORWARD"], 4),
    ] {
        sorter.begin(table);
        names.iter().for_each(|name| sorter.chain(IptablesChainName::new(name).unwrap()));
        sorter.end();
        assert_eq!(sorter.chains_seen(), seen, "{table}");
    }
}
