use std::net::IpAddr;

use ferry_api::object::Family;
use ferry_api::object::Protocol as Of;
use ferry_kernel::iptables::{AddressMatch, Backend, Match, PortProtocol};
use ferry_plane::{Batch, Object};

use super::*;
use crate::base;
use crate::mirror::{Mirror, PrintedRules};
use crate::names;
use crate::object::OwnedRulesKey;

pub(crate) const V4: Family = Family::V4;

pub(crate) fn name(text: &str) -> IptablesChainName {
    IptablesChainName::new(text).unwrap()
}

pub(crate) fn id(table: Table, text: &str) -> ChainId {
    ChainId { table, name: name(text) }
}

pub(crate) fn endpoint_chain(number: usize) -> ChainId {
    let hash: String = format!("{number:016}").chars().map(|digit| char::from(b'A' + digit as u8 - b'0')).collect();
    id(Table::Nat, &format!("KUBE-SEP-{hash}"))
}

pub(crate) fn own(id: ChainId, targets: &[Target]) -> IptObject {
    let rule = |target: &Target| Rule { target: *target, matches: [Match::comment("x")].into(), ..Rule::default() };
    IptObject::Chain(id, ChainRules(targets.iter().map(rule).collect()))
}

pub(crate) fn vip(place: ChainId, last: u8, port: u16, target: Target) -> IptObject {
    let address = IpAddr::from([10, 96, 0, last]);
    let rule = Rule {
        destination: AddressMatch::only(address.into()),
        protocol: Some(PortProtocol::Tcp),
        matches: [Match::Port(Some(port))].into(),
        target,
        ..Rule::default()
    };
    IptObject::OwnedRules(OwnedRulesKey { chain: place, owner: RuleOwner::Vip(address, port, Of::Tcp) }, [rule].into())
}

pub(crate) fn node_ports() -> IptObject {
    let rule = Rule { target: Target::Jump(names::NODE_PORTS), ..Rule::default() };
    IptObject::OwnedRules(OwnedRulesKey { chain: services(), owner: RuleOwner::NodePorts(None) }, [rule].into())
}

pub(crate) fn jump(from: ChainId, to: IptablesChainName) -> IptObject {
    let rule = Rule { target: Target::Jump(to), ..Rule::default() };
    IptObject::OwnedRules(OwnedRulesKey { chain: from, owner: RuleOwner::Jump(to) }, [rule].into())
}

pub(crate) fn services() -> ChainId {
    id(Table::Nat, "KUBE-SERVICES")
}

pub(crate) fn refusing() -> ChainId {
    id(Table::Filter, "KUBE-SERVICES")
}

pub(crate) fn create(objects: Vec<IptObject>) -> Batch<IptObject> {
    let mut create = objects;
    create.sort_by_key(Object::rank);
    Batch { create, ..Batch::default() }
}

pub(crate) fn delete(objects: Vec<IptObject>) -> Batch<IptObject> {
    let mut delete = objects;
    delete.sort_by_key(|object| std::cmp::Reverse(object.rank()));
    Batch { delete, ..Batch::default() }
}

/// The mirror after these objects were written to empty tables.
pub(crate) fn after(objects: Vec<IptObject>) -> Mirror {
    let mut mirror = Mirror::default();
    mirror.apply(V4, &create(objects), &BTreeSet::new());
    mirror
}

pub(crate) fn text(backend: Backend, batch: &Batch<IptObject>, mirror: &Mirror) -> String {
    Script::new(&RunPlan::new(V4, backend, batch, mirror, true), &CommitProgress::default()).text().to_owned()
}

#[test]
fn what_refuses_comes_before_what_translates_goes_and_goes_after_it_has_come() {
    let chain = endpoint_chain(1);
    let serve = vip(services(), 1, 80, Target::Jump(chain.name));
    let refuse = vip(refusing(), 1, 80, Target::Reject);
    let places = || vec![IptObject::SharedChain(services()), IptObject::SharedChain(refusing()), node_ports()];
    let own = own(chain, &[Target::Return]);
    // it loses its endpoint
    let mirror = after([places(), vec![own.clone(), serve.clone()]].concat());
    let batch = Batch { create: vec![refuse.clone()], replace: Vec::new(), delete: vec![serve.clone(), own.clone()] };
    let refusal =
        "KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable";
    let dispatch = format!("KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j {}", chain.name);
    let chain = chain.name;
    assert_eq!(
        text(Backend::Nft, &batch, &mirror),
        format!(
            "*filter\n:KUBE-SERVICES - [0:0]\n-A {refusal}\nCOMMIT\n*nat\n:{chain} - [0:0]\n-D {dispatch}\n-X {chain}\nCOMMIT\n"
        )
    );
    // it gets one
    let mirror = after([places(), vec![refuse.clone(), vip(refusing(), 2, 80, Target::Drop)]].concat());
    let batch = Batch { create: vec![own, serve], replace: Vec::new(), delete: vec![refuse] };
    assert_eq!(
        text(Backend::Legacy, &batch, &mirror),
        format!(
            "*nat\n:{chain} - [0:0]\n-A {chain} -m comment --comment x -j RETURN\n-I {dispatch}\nCOMMIT\n\
             *filter\n-D {refusal}\nCOMMIT\n"
        )
    );
}

/// The tool would fetch the rules of all chains that are filled in the same section.
#[test]
fn rules_are_deleted_in_a_section_of_their_own_after_all_others() {
    let chains = [1, 2, 3].map(endpoint_chain);
    let [kept, new, old] = chains.map(|chain| chain.name);
    let target = |chain: IptablesChainName| Target::Jump(chain);
    let mirror = after(vec![
        IptObject::SharedChain(services()),
        node_ports(),
        own(chains[0], &[Target::Return]),
        own(chains[2], &[Target::Return]),
        vip(services(), 1, 80, target(kept)),
        vip(services(), 2, 80, target(old)),
    ]);
    let batch = Batch {
        create: vec![own(chains[1], &[Target::Return]), vip(services(), 3, 80, target(new))],
        replace: vec![own(chains[0], &[Target::Accept]), vip(services(), 1, 80, target(new))],
        delete: vec![vip(services(), 2, 80, target(old)), own(chains[2], &[Target::Return])],
    };
    let rule = |last: u8, chain| format!("KUBE-SERVICES -d 10.96.0.{last}/32 -p tcp -m tcp --dport 80 -j {chain}");
    let script = text(Backend::Nft, &batch, &mirror);
    let sections: Vec<&str> = script.split_inclusive("COMMIT\n").collect();
    // A rule and its replacement are in one step; rules that jump to a chain are deleted before the chain.
    assert_eq!(sections.len(), 2, "{script}");
    assert!(
        sections[0].contains(&format!("-D {}\n", rule(1, kept)))
            && sections[0].contains(&format!("-I {}\n", rule(1, new)))
    );
    assert!(sections[0].contains(&format!(":{new} - ")) && !sections[0].contains(old.as_str()), "{script}");
    assert_eq!(sections[1], format!("*nat\n:{old} - [0:0]\n-D {}\n-X {old}\nCOMMIT\n", rule(2, old)));
    // The legacy variant writes the whole table for each section.
    assert_eq!(text(Backend::Legacy, &batch, &mirror).matches("COMMIT\n").count(), 1);
}

#[test]
fn node_ports_are_the_last_whatever_comes() {
    let target = Target::Jump(endpoint_chain(1).name);
    // all at once
    let all = || {
        vec![
            IptObject::SharedChain(services()),
            node_ports(),
            vip(services(), 1, 80, target),
            vip(services(), 2, 80, target),
        ]
    };
    let script = text(Backend::Nft, &create(all()), &Mirror::default());
    assert!(script.ends_with("-A KUBE-SERVICES -j KUBE-NODEPORTS\nCOMMIT\n"), "{script}");
    // one more
    let script = text(Backend::Nft, &create(vec![vip(services(), 3, 80, target)]), &after(all()));
    assert!(script.starts_with("*nat\n-I KUBE-SERVICES -d 10.96.0.3/32"), "{script}");
    // changed
    let mut changed = node_ports();
    if let IptObject::OwnedRules(_, rules) = &mut changed {
        rules[0].matches = [Match::DestinationLocal].into();
    }
    let many = || all().into_iter().chain((10..250).map(|last| vip(services(), last, 80, target))).collect::<Vec<_>>();
    let batch = Batch { replace: vec![changed.clone()], ..Batch::default() };
    let last = "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n";
    let script = text(Backend::Nft, &batch, &after(many()));
    assert_eq!(script, format!("*nat\n-D KUBE-SERVICES -j KUBE-NODEPORTS\n{last}"));
    // written anew, with the added rules and without the deleted ones
    let delete = (10..200).map(|last| vip(services(), last, 80, target)).collect();
    let batch = Batch { create: vec![vip(services(), 3, 80, target)], replace: vec![changed], delete };
    let script = text(Backend::Nft, &batch, &after(many()));
    assert!(script.starts_with("*nat\n:KUBE-SERVICES - [0:0]\n-A ") && script.ends_with(last), "{script}");
    assert_eq!(script.lines().count(), 3 + 1 + 2 + 1 + 50);
}

#[test]
fn a_few_go_one_by_one_and_many_by_writing_the_rest() {
    let target = Target::Jump(endpoint_chain(1).name);
    let entry = |number: u16| vip(services(), 1, number, target);
    let there = |length: u16| {
        let entries = (0..length).map(entry);
        after(entries.chain([IptObject::SharedChain(services())]).collect())
    };
    for (length, few, many) in [(1000, 80, 100), (5000, 110, 130), (100, 20, 40)] {
        let mirror = there(length);
        for (count, rewritten) in [(few, false), (many, true)] {
            let script = text(Backend::Nft, &delete((0..count).map(entry).collect()), &mirror);
            assert_eq!(script.contains(":KUBE-SERVICES"), rewritten, "{count} of {length}");
        }
    }
    let foreign = |last: u16| IptObject::ForeignRule(services(), format!("-s 192.0.2.{last}/32 -j RETURN").into());
    for (count, rewritten) in [(80, false), (100, true)] {
        let script = text(Backend::Nft, &delete((0..count).map(foreign).collect()), &there(1000));
        assert_eq!(script.contains(":KUBE-SERVICES"), rewritten, "{count} foreign ones");
    }
}

#[test]
fn jumps_come_in_their_order_and_the_kubelets_chain_is_never_emptied() {
    let input = ChainId { table: Table::Filter, name: base::INPUT };
    let firewall = ChainId { table: Table::Filter, name: names::FIREWALL };
    let objects = vec![
        IptObject::SharedChain(firewall),
        jump(input, names::PROXY_FIREWALL),
        jump(input, names::FIREWALL),
        jump(input, names::EXTERNAL_SERVICES),
        jump(input, names::NODE_PORTS),
    ];
    assert_eq!(
        text(Backend::Nft, &create(objects.clone()), &Mirror::default()),
        "*filter\n-N KUBE-FIREWALL\n-I INPUT -j KUBE-EXTERNAL-SERVICES\n-I INPUT -j KUBE-NODEPORTS\n\
         -I INPUT -j KUBE-PROXY-FIREWALL\n-I INPUT -j KUBE-FIREWALL\nCOMMIT\n"
    );
    let script = text(Backend::Nft, &delete(objects.clone()), &after(objects));
    assert!(!script.contains("KUBE-FIREWALL"), "{script}");
    assert_eq!(script.matches("-D INPUT").count(), 3);
}

#[test]
fn a_new_jump_stands_below_those_that_belong_above_it() {
    let input = ChainId { table: Table::Filter, name: base::INPUT };
    let jumps = |to: &[IptablesChainName]| to.iter().map(|to| jump(input, *to)).collect::<Vec<_>>();
    let (external, ports) = (names::EXTERNAL_SERVICES, names::NODE_PORTS);
    let (balancers, kubelets) = (names::PROXY_FIREWALL, names::FIREWALL);
    let cases: [(&[_], &[_], &[_], &[&str]); 4] = [
        (&[ports, balancers, kubelets], &[external], &[], &["-I e", "-D p", "-I p", "-D b", "-I b"]),
        (&[external, ports, kubelets], &[balancers], &[], &["-I b"]),
        (&[ports], &[external, balancers], &[], &["-I e", "-D p", "-I p", "-I b"]),
        (&[ports, balancers], &[external], &[balancers], &["-I e", "-D p", "-I p", "COMMIT", "*filter", "-D b"]),
    ];
    for (there, new, gone, wanted) in cases {
        let batch = Batch { create: jumps(new), replace: Vec::new(), delete: jumps(gone) };
        let script = text(Backend::Nft, &batch, &after(jumps(there)));
        let mut short = script.replace(" INPUT -j", "");
        for (chain, letter) in [(external, "e"), (ports, "p"), (balancers, "b"), (kubelets, "k")] {
            short = short.replace(chain.as_str(), letter);
        }
        assert_eq!(short, format!("*filter\n{}\nCOMMIT\n", wanted.join("\n")), "{there:?}, {new:?}, {gone:?}");
    }
}

#[test]
fn a_chain_that_foreign_rules_jump_to_is_emptied_and_stays() {
    let kubelets = IptObject::SharedChain(ChainId { table: Table::Filter, name: names::FIREWALL });
    let chains = [1, 2].map(endpoint_chain);
    let [one, two] = chains.map(|chain| chain.name);
    let all =
        vec![own(chains[0], &[Target::Return]), own(chains[1], &[]), IptObject::SharedChain(services()), kubelets];
    let (mirror, batch) = (after(all.clone()), delete(all));
    let plan = RunPlan::new(V4, Backend::Legacy, &batch, &mirror, true);
    let emptied = format!(":{one} - [0:0]\n:{two} - [0:0]\n:KUBE-SERVICES - [0:0]\n");
    let progress = |stuck: &[ChainId], all_stuck| CommitProgress {
        stuck: stuck.iter().copied().collect(),
        all_stuck,
        ..CommitProgress::default()
    };
    let every: BTreeSet<ChainId> = [chains[0], chains[1], services()].into();
    for (progress, removed, stuck) in [
        (progress(&[], false), format!("-X {one}\n-X {two}\n-X KUBE-SERVICES\n"), BTreeSet::new()),
        (progress(&[chains[0]], false), format!("-X {two}\n-X KUBE-SERVICES\n"), [chains[0]].into()),
        (progress(&[services()], false), format!("-X {one}\n-X {two}\n"), [services()].into()),
        (progress(&[chains[0]], true), String::new(), every),
    ] {
        let script = Script::new(&plan, &progress);
        assert_eq!(script.text(), format!("*nat\n{emptied}{removed}COMMIT\n"));
        assert_eq!(progress.stuck_in(&batch), stuck, "the kubelet's chain is none of ours to delete");
    }
}

#[test]
fn many_chains_come_in_sections_where_that_is_faster() {
    let chains: Vec<IptObject> = (0..1201).map(|number| own(endpoint_chain(number), &[Target::Return])).collect();
    let mut all = chains.clone();
    all.extend([
        IptObject::SharedChain(services()),
        node_ports(),
        vip(services(), 1, 80, Target::Jump(endpoint_chain(7).name)),
    ]);
    let sections = |text: &str| text.matches("COMMIT\n").count();
    let (nothing, batch) = (Mirror::default(), create(all.clone()));
    let script = text(Backend::Nft, &batch, &nothing);
    assert_eq!(sections(&script), 3, "sections of a thousand names");
    assert!(script.rsplit("*nat").next().unwrap().contains("-A KUBE-SERVICES"), "what leads there comes last");
    assert!(!script.contains("--comment"), "they are many");
    assert_eq!(sections(&text(Backend::Legacy, &batch, &nothing)), 1);
    let script = text(Backend::Nft, &delete(all.clone()), &after(all));
    assert_eq!(sections(&script), 4);
    assert!(script.split("*nat").nth(1).unwrap().contains("-X KUBE-SERVICES"), "what leads there goes first");
}

/// A chain that jumps to these endpoints.
pub(crate) fn balancing(number: usize, endpoints: std::ops::Range<usize>) -> IptObject {
    let ChainId { name, .. } = endpoint_chain(number);
    let cluster = id(Table::Nat, &name.as_str().replace("KUBE-SEP-", "KUBE-SVC-"));
    let jumps: Vec<Target> = endpoints.map(|endpoint| Target::Jump(endpoint_chain(endpoint).name)).collect();
    own(cluster, &jumps)
}

#[test]
fn targets_of_jumps_count_as_names_of_a_section() {
    let all: Vec<IptObject> = (0..50).map(|number| balancing(number, 100..199)).collect();
    let script = text(Backend::Nft, &create(all.clone()), &Mirror::default());
    assert_eq!(script.matches("COMMIT\n").count(), 5, "ten chains with a hundred names each");
    assert_eq!(text(Backend::Legacy, &create(all), &Mirror::default()).matches("COMMIT\n").count(), 1);
}

#[test]
fn a_long_chain_is_edited_by_position() {
    let (old, new, gone) = (balancing(1, 100..120), balancing(1, 99..120), own(endpoint_chain(5), &[Target::Return]));
    let there = after(vec![old, gone.clone()]);
    let batch = Batch { replace: vec![new.clone()], delete: vec![gone], ..Batch::default() };
    let chain = new.key().chain().unwrap().name;
    let (to, left) = (endpoint_chain(99).name, endpoint_chain(5).name);
    assert_eq!(
        text(Backend::Nft, &batch, &there),
        format!(
            "*nat\n-I {chain} 1 -m comment --comment x -j {to}\nCOMMIT\n*nat\n:{left} - [0:0]\n-X {left}\nCOMMIT\n"
        )
    );
    assert!(
        text(Backend::Legacy, &batch, &there).contains(&format!(":{chain} - [0:0]\n")),
        "all is read and written anyway"
    );
    let mut touched = after(vec![balancing(1, 100..120)]);
    touched.forget_sequence(new.key().chain().unwrap());
    let batch = Batch { replace: vec![new], ..Batch::default() };
    assert!(text(Backend::Nft, &batch, &touched).contains(&format!(":{chain} - [0:0]\n")), "others have touched it");
    let plan = RunPlan::new(V4, Backend::Nft, &batch, &there, false);
    assert!(!plan.has_edits() && RunPlan::new(V4, Backend::Nft, &batch, &there, true).has_edits());
}

#[test]
fn lines_tell_their_operation() {
    let chain = endpoint_chain(1);
    let batch = create(vec![
        own(chain, &[Target::Return, Target::Accept]),
        IptObject::SharedChain(services()),
        vip(services(), 1, 80, Target::Jump(chain.name)),
    ]);
    let mirror = Mirror::default();
    let plan = RunPlan::new(V4, Backend::Nft, &batch, &mirror, true);
    let script = Script::new(&plan, &CommitProgress::default());
    for (number, line) in (1..).zip(script.text().lines()) {
        let object = script.operation(number).and_then(|item| plan.object(item));
        let expected = match line {
            "*nat" | "COMMIT" => None,
            line if line.contains("KUBE-SERVICES -d") => batch.create.get(2),
            line if line.contains("KUBE-SERVICES") => batch.create.get(1),
            _ => batch.create.first(),
        };
        assert_eq!(object, expected, "{line}");
        assert_eq!((script.line(number), script.table(number)), (Some(line), Some(Table::Nat)));
    }
    assert_eq!(script.outline().written(Table::Nat), 3);
    assert_eq!((script.outline().sections_before(7), script.outline().sections_before(8)), (0, 1));
}

#[test]
fn what_is_there_already_is_not_written_and_what_is_not_there_does_not_go() {
    let objects = vec![
        IptObject::SharedChain(services()),
        node_ports(),
        vip(services(), 1, 80, Target::Return),
        IptObject::Chain(id(Table::Mangle, "KUBE-PROXY-CANARY"), ChainRules::default()),
    ];
    assert_eq!(text(Backend::Nft, &create(objects.clone()), &after(objects.clone())), "");
    let lost = vip(services(), 2, 80, Target::Return);
    assert_eq!(text(Backend::Nft, &delete(vec![lost]), &after(objects.clone())), "", "no section without content");
    assert_eq!(text(Backend::Nft, &delete(objects), &Mirror::default()), "");
}

/// Two rules of one owner, such as a counter and the drop behind it.
fn counted(last: u8, first: Target, second: Target) -> IptObject {
    let (IptObject::OwnedRules(key, one), IptObject::OwnedRules(_, two)) =
        (vip(refusing(), last, 80, first), vip(refusing(), last, 80, second))
    else {
        panic!()
    };
    IptObject::OwnedRules(key, [one, two].concat().into())
}

#[test]
fn rules_of_one_entry_keep_their_order_in_a_place_that_is_not_empty() {
    let mirror = after(vec![IptObject::SharedChain(refusing()), vip(refusing(), 9, 80, Target::Drop)]);
    let rule = |target: &str| format!("KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j {target}");
    // Each is inserted at the head of the chain.
    let script = text(Backend::Nft, &create(vec![counted(1, Target::Return, Target::Drop)]), &mirror);
    assert_eq!(script, format!("*filter\n-I {}\n-I {}\nCOMMIT\n", rule("DROP"), rule("RETURN")));
    let script = text(
        Backend::Nft,
        &create(vec![IptObject::SharedChain(refusing()), counted(1, Target::Return, Target::Drop)]),
        &Mirror::default(),
    );
    let written = format!("-A {}\n-A {}\nCOMMIT\n", rule("RETURN"), rule("DROP"));
    assert_eq!(script, format!("*filter\n:KUBE-SERVICES - [0:0]\n{written}"));
}

#[test]
fn comments_are_left_out_beyond_a_thousand_endpoints() {
    let chains = |range: std::ops::Range<usize>| range.map(|number| own(endpoint_chain(number), &[Target::Return]));
    let commented = |batch: &Batch<IptObject>, mirror: &Mirror| text(Backend::Nft, batch, mirror).contains("--comment");
    assert!(commented(&create(chains(0..1000).collect()), &Mirror::default()));
    assert!(!commented(&create(chains(0..1001).collect()), &Mirror::default()));
    // A changed one counts once, wherever it is in the batch, and a deleted one not at all.
    let there = after(chains(0..999).collect());
    let changed = || own(endpoint_chain(7), &[Target::Accept]);
    let batch = |new: usize, gone: usize| Batch {
        create: chains(2000..2000 + new).collect(),
        replace: vec![changed()],
        delete: chains(0..gone).collect(),
    };
    for (new, gone, wanted) in [(0, 0, true), (1, 0, true), (2, 0, false), (2, 1, true), (3, 1, false)] {
        assert_eq!(commented(&batch(new, gone), &there), wanted, "999, {new} more, {gone} less");
    }
    assert!(commented(&create(vec![changed(), own(endpoint_chain(2000), &[Target::Return])]), &there));
    // The deletion of a missing chain doesn't count.
    let absent =
        Batch { create: chains(2000..2002).collect(), delete: chains(3000..3001).collect(), ..Batch::default() };
    assert!(!commented(&absent, &there));
}

#[test]
fn only_comments_that_repeat_names_are_left_out() {
    let many = after((0..1001).map(|number| own(endpoint_chain(number), &[Target::Return])).collect());
    let hash = &endpoint_chain(7).name.as_str()["KUBE-SEP-".len()..].to_owned();
    let (endpoint, mark) = (Target::Jump(endpoint_chain(7).name), Target::Jump(names::MARK_MASQ));
    for (class, target, wanted) in [
        ("KUBE-SEP-", mark, false),
        ("KUBE-SVC-", endpoint, false),
        ("KUBE-SVL-", endpoint, false),
        ("KUBE-SVC-", mark, true),
        ("KUBE-SVL-", mark, true),
        ("KUBE-EXT-", mark, true),
        ("KUBE-FW-", Target::Drop, true),
    ] {
        let batch = create(vec![own(id(Table::Nat, &format!("{class}{hash}")), &[target])]);
        assert_eq!(text(Backend::Nft, &batch, &many).contains("--comment"), wanted, "{class} {target:?}");
    }
}

#[test]
fn a_place_counts_the_rules_of_its_entries() {
    let mut mirror = after(vec![IptObject::SharedChain(refusing()), counted(1, Target::Return, Target::Drop)]);
    let rules = |mirror: &Mirror| (mirror.shared_chain(refusing()).unwrap().rules(), mirror.size(Table::Filter).rules);
    assert_eq!(rules(&mirror), (2, 2));
    let batch = Batch {
        create: vec![counted(2, Target::Return, Target::Drop)],
        replace: vec![vip(refusing(), 1, 80, Target::Drop)],
        ..Batch::default()
    };
    mirror.apply(V4, &batch, &BTreeSet::new());
    assert_eq!(rules(&mirror), (3, 3), "one became shorter, one came");
    mirror.apply(V4, &delete(vec![counted(2, Target::Return, Target::Drop)]), &BTreeSet::new());
    assert_eq!(rules(&mirror), (1, 1));
}

#[test]
fn chains_of_either_mirror_alone_differ() {
    let [same, changed, lost, foreign] = [1, 2, 3, 4].map(endpoint_chain);
    let ours = after([same, changed, lost].map(|chain| own(chain, &[Target::Return])).into());
    let found =
        after(vec![own(same, &[Target::Return]), own(changed, &[Target::Accept]), own(foreign, &[Target::Return])]);
    let unlike: BTreeSet<ChainId> = ours.chains_unlike(&found).collect();
    assert_eq!(unlike, [changed, lost, foreign].into());
    assert_eq!(ours.chains_unlike(&found).count(), unlike.len(), "each once");
    assert_eq!(ours.chains_unlike(&ours).count(), 0);
}

#[test]
fn the_mirror_counts() {
    let mut mirror = after(vec![
        IptObject::SharedChain(services()),
        node_ports(),
        own(endpoint_chain(1), &[Target::Return, Target::Accept]),
        own(id(Table::Filter, "KUBE-FORWARD"), &[Target::Return]),
    ]);
    let sizes = |mirror: &Mirror| Table::ALL.map(|table| (mirror.size(table).chains, mirror.size(table).rules));
    assert_eq!((sizes(&mirror), mirror.endpoints()), ([(0, 0), (1, 1), (2, 3)], 1));
    mirror.put_chain(endpoint_chain(1), &ChainRules(vec![Rule::default(); 5].into()));
    assert_eq!((sizes(&mirror), mirror.endpoints()), ([(0, 0), (1, 1), (2, 6)], 1));
    let gone = delete(vec![own(endpoint_chain(1), &[]), node_ports(), IptObject::SharedChain(services())]);
    mirror.apply(V4, &gone, &BTreeSet::new());
    assert_eq!((sizes(&mirror), mirror.endpoints()), ([(0, 0), (1, 1), (0, 0)], 0));
    let mut read = Mirror::default();
    read.put_shared_chain(services());
    read.put_owned(
        OwnedRulesKey { chain: services(), owner: RuleOwner::NodePorts(None) },
        PrintedRules::new("a\nb".to_owned()),
    );
    mirror.renew(&[services(), id(Table::Filter, "KUBE-FORWARD")].into(), read);
    assert_eq!(sizes(&mirror), [(0, 0), (0, 0), (1, 2)]);
}

#[test]
fn pieces_together_are_the_whole() {
    let mut all: Vec<IptObject> = (0..3000).map(|number| own(endpoint_chain(number), &[Target::Return])).collect();
    all.extend([IptObject::SharedChain(services()), node_ports(), IptObject::SharedChain(refusing())]);
    let (batch, mirror) = (create(all), Mirror::default());
    for backend in [Backend::Nft, Backend::Legacy] {
        let plan = RunPlan::new(V4, backend, &batch, &mirror, true);
        let whole = Script::new(&plan, &CommitProgress::default());
        let mut pieces = Vec::new();
        let outline = Script::stream(&plan, &CommitProgress::default(), &mut |piece| {
            pieces.push(piece.to_owned());
            Ok(())
        })
        .unwrap();
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() < 2 * FLUSH_BYTES));
        let (_, full) = pieces.split_last().unwrap();
        assert!(full.iter().all(|piece| piece.len() >= FLUSH_BYTES), "only the last one is short");
        assert_eq!(pieces.concat(), whole.text());
        assert_eq!(outline.commits, whole.outline().commits);
        assert_eq!((outline.bytes, outline.written), (whole.text().len(), whole.outline().written));
        let lines = (1..).zip(whole.text().lines());
        let commits: Vec<usize> = lines.filter(|(_, line)| *line == "COMMIT").map(|(number, _)| number).collect();
        assert_eq!(commits, outline.commits);
        assert_eq!(outline.sections(), commits.len());
        let stopped = Script::stream(&plan, &CommitProgress::default(), &mut |_| Err(io::ErrorKind::TimedOut.into()));
        assert_eq!(stopped.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}

/// The tool prints bytes of a comment that are no UTF-8; their replacement is in no rule, so the rule is not found by its text.
#[test]
fn what_can_not_be_named_goes_with_its_place() {
    let comment = "-p tcp -m comment --comment \"\u{fffd}\" -m tcp --dport 80 -j DROP";
    assert!(Rule::parse(V4, comment).is_some());
    let foreign = || IptObject::ForeignRule(refusing(), comment.into());
    let others = vec![IptObject::SharedChain(refusing()), vip(refusing(), 2, 80, Target::Drop)];
    let kept = "-A KUBE-SERVICES -d 10.96.0.2/32 -p tcp -m tcp --dport 80 -j DROP\n";
    let script = text(Backend::Nft, &delete(vec![foreign()]), &after(others.clone()));
    assert_eq!(script, format!("*filter\n:KUBE-SERVICES - [0:0]\n{kept}COMMIT\n"));
    // Likewise the old rules of an owner.
    let mut mirror = after(others);
    let entry = vip(refusing(), 1, 80, Target::Reject);
    let IptObject::OwnedRules(key, _) = &entry else { panic!() };
    mirror.put_owned(*key, PrintedRules::new(format!("-d 10.96.0.1/32 {comment}")));
    let script = text(Backend::Nft, &Batch { replace: vec![entry.clone()], ..Batch::default() }, &mirror);
    let rule =
        "-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable\n";
    assert_eq!(script, format!("*filter\n:KUBE-SERVICES - [0:0]\n{rule}{kept}COMMIT\n"));
    let script = text(Backend::Nft, &delete(vec![entry]), &mirror);
    assert_eq!(script, format!("*filter\n:KUBE-SERVICES - [0:0]\n{kept}COMMIT\n"));
}

#[test]
fn what_goes_with_its_place_does_not_go_again() {
    let all = |target: Target| (1..8).map(move |last| vip(refusing(), last, 80, target));
    let mirror = after(all(Target::Drop).chain([IptObject::SharedChain(refusing())]).collect());
    let foreign = IptObject::ForeignRule(refusing(), "-j RETURN".into());
    let batch = Batch { create: Vec::new(), replace: all(Target::Reject).collect(), delete: vec![foreign.clone()] };
    let script = text(Backend::Nft, &batch, &mirror);
    assert!(script.contains(":KUBE-SERVICES") && !script.contains("-D "), "{script}");
    assert_eq!(script.matches("COMMIT").count(), 1, "no section without content: {script}");
    let script = text(Backend::Nft, &delete(vec![foreign]), &mirror);
    assert_eq!(script, "*filter\n-D KUBE-SERVICES -j RETURN\nCOMMIT\n");
}

/// Also a change without a rule to delete, and the deletion of the rule that hides the others, which has no text.
#[test]
fn a_chain_that_cannot_be_printed_is_written_anew_with_all_its_rules() {
    let target = |number: usize| Target::Jump(endpoint_chain(number).name);
    let known = || vec![vip(services(), 1, 80, target(1)), vip(services(), 2, 80, target(2)), node_ports()];
    let hidden = || {
        let mut mirror = after(known());
        mirror.hide(services());
        mirror
    };
    let rules = |text: &str| text.lines().filter(|line| line.starts_with("-A KUBE-SERVICES")).count();
    let foreign = IptObject::ForeignRule(services(), "(a rule that iptables can't print)".into());
    for (batch, wanted) in [
        (create(vec![vip(services(), 3, 80, target(3))]), 4),
        (delete(vec![vip(services(), 2, 80, target(2))]), 2),
        (delete(vec![foreign]), 3),
        (create(vec![vip(services(), 2, 80, target(2))]), 3),
    ] {
        let mut mirror = hidden();
        let written = text(Backend::Nft, &batch, &mirror);
        assert!(written.contains(":KUBE-SERVICES") && rules(&written) == wanted, "{written}");
        assert!(!written.contains("-D KUBE-SERVICES") && !written.contains("-I KUBE-SERVICES"), "{written}");
        assert!(written.trim_end().ends_with("-A KUBE-SERVICES -j KUBE-NODEPORTS\nCOMMIT"), "{written}");
        mirror.apply(V4, &batch, &BTreeSet::new());
        assert!(
            !mirror.is_hidden(services())
                && mirror.shared_chain(services()).is_some_and(|chain| chain.rules() == wanted)
        );
    }
}
