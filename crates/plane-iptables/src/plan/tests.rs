use ferry_kernel::iptables::Target;

use super::*;
use crate::encode::tests::{
    V4, after, balancing, create, delete, endpoint_chain, id, jump, node_ports, own, refusing, services, text, vip,
};
use crate::names;
use crate::object::ChainRules;

fn foreign(chain: ChainId) -> IptObject {
    IptObject::ForeignRule(chain, "-j RETURN".into())
}

fn replace(objects: Vec<IptObject>) -> Batch<IptObject> {
    Batch { replace: create(objects).create, ..Batch::default() }
}

fn written(batch: &Batch<IptObject>, mirror: &Mirror) -> String {
    text(Backend::Nft, batch, mirror)
}

/// The part of the batch in the first sections: none, one, and so on up to all.
fn parts(batch: &Batch<IptObject>, mirror: &Mirror) -> Vec<Batch<IptObject>> {
    let plan = RunPlan::new(V4, Backend::Nft, batch, mirror, true);
    (0..=plan.parts.len()).map(|sections| plan.batch_of(&plan.items_in(sections))).collect()
}

#[test]
fn the_operations_of_the_first_sections_are_the_part_that_they_write() {
    let [changed, new, old] = [1, 2, 3].map(endpoint_chain);
    let serve = |last, chain: ChainId| vip(services(), last, 80, Target::Jump(chain.name));
    let mirror = after(vec![
        own(changed, &[Target::Return]),
        own(old, &[Target::Return]),
        balancing(9, 100..120),
        node_ports(),
        serve(1, changed),
        serve(2, old),
        vip(refusing(), 7, 80, Target::Drop),
        vip(refusing(), 8, 80, Target::Drop),
    ]);
    let refuse = vip(refusing(), 2, 80, Target::Reject);
    let external = IptObject::SharedChain(id(Table::Filter, "KUBE-EXTERNAL-SERVICES"));
    let batch = Batch {
        create: vec![own(new, &[Target::Return]), external.clone(), serve(3, new), refuse.clone()],
        replace: vec![own(changed, &[Target::Accept]), balancing(9, 99..120), serve(1, new)],
        delete: vec![serve(2, old), vip(refusing(), 8, 80, Target::Drop), own(old, &[Target::Return])],
    };
    let refusals = Batch { create: vec![external, refuse], ..Batch::default() };
    let added = Batch { delete: Vec::new(), ..batch.clone() };
    let removed = Batch { delete: vec![serve(2, old), own(old, &[Target::Return])], ..batch.clone() };
    assert_eq!(parts(&batch, &mirror), [Batch::default(), refusals, added, removed, batch]);
}

#[test]
fn chains_in_sections_of_their_own_are_operations_of_these() {
    let all: Vec<IptObject> = (0..1001).map(|number| own(endpoint_chain(number), &[Target::Return])).collect();
    let lens =
        |batch: &Batch<IptObject>, mirror: &Mirror| parts(batch, mirror).iter().map(Batch::len).collect::<Vec<_>>();
    let entry = vip(services(), 1, 80, Target::Jump(endpoint_chain(7).name));
    let with_entry = |chains: &[IptObject]| [chains, std::slice::from_ref(&entry)].concat();
    let (many, some) = (with_entry(&all), with_entry(&all[..501]));
    assert_eq!(lens(&create(many), &Mirror::default()), [0, 1000, 1001, 1002]);
    assert_eq!(lens(&delete(some.clone()), &after(some)), [0, 1, 501, 502]);
}

#[test]
fn the_size_is_the_number_of_rules_and_chains_without_those_that_stay() {
    let mirror = after(vec![
        IptObject::SharedChain(services()),
        vip(services(), 1, 80, Target::Return),
        vip(services(), 2, 80, Target::Return),
        node_ports(),
        balancing(1, 100..120),
    ]);
    let batch = Batch {
        create: vec![
            own(endpoint_chain(1), &[Target::Return, Target::Accept]),
            IptObject::SharedChain(refusing()),
            vip(refusing(), 1, 80, Target::Drop),
        ],
        replace: vec![balancing(1, 99..120)],
        delete: vec![foreign(services()), IptObject::SharedChain(services())],
    };
    let size = |edits| RunPlan::new(V4, Backend::Nft, &batch, &mirror, edits).size();
    assert_eq!((size(false), size(true)), (3 + 1 + 1 + 22 + 1 + 4, 3 + 1 + 1 + 2 + 1 + 4));
}

#[test]
fn an_empty_chain_is_written_if_it_is_missing_or_has_rules() {
    let chain = endpoint_chain(1);
    let declared = format!("*nat\n:{} - [0:0]\n", chain.name);
    for (before, next, wanted) in [
        (Vec::new(), own(chain, &[]), format!("{declared}COMMIT\n")),
        (vec![own(chain, &[])], own(chain, &[]), String::new()),
        (vec![own(chain, &[Target::Return])], own(chain, &[]), format!("{declared}COMMIT\n")),
        (
            vec![own(chain, &[])],
            own(chain, &[Target::Return]),
            format!("{declared}-A {} -m comment --comment x -j RETURN\nCOMMIT\n", chain.name),
        ),
    ] {
        assert_eq!(written(&replace(vec![next.clone()]), &after(before.clone())), wanted, "{before:?}, {next:?}");
    }
}

#[test]
fn a_long_chain_with_the_same_rules_is_not_written() {
    let same = balancing(1, 100..120);
    let (batch, mirror) = (replace(vec![same.clone()]), after(vec![same]));
    let plan = RunPlan::new(V4, Backend::Nft, &batch, &mirror, true);
    assert!(!plan.has_edits() && plan.parts.is_empty());
}

#[test]
fn rules_in_a_chain_that_goes_go_with_it_even_if_it_has_gone_before() {
    let firewall = ChainId { table: Table::Filter, name: names::FIREWALL };
    let all = |chain| delete(vec![foreign(chain), IptObject::SharedChain(chain)]);
    let removed = "*filter\n:KUBE-SERVICES - [0:0]\n-X KUBE-SERVICES\nCOMMIT\n";
    let kept = "*filter\n-D KUBE-FIREWALL -j RETURN\nCOMMIT\n";
    for (chain, is_there, wanted) in [
        (refusing(), true, removed),
        (refusing(), false, ""),
        // The kubelet's stays.
        (firewall, true, kept),
    ] {
        let there = if is_there { vec![IptObject::SharedChain(chain)] } else { Vec::new() };
        assert_eq!(written(&all(chain), &after(there)), wanted, "{chain} {is_there}");
    }
}

#[test]
fn a_built_in_chain_is_never_emptied_whatever_is_deleted_from_it() {
    let input = ChainId { table: Table::Filter, name: base::INPUT };
    let numbered = |number: usize| IptObject::ForeignRule(input, format!("-j KUBE-SERVICES{number}").into());
    let jumps = vec![jump(input, names::NODE_PORTS), jump(input, names::EXTERNAL_SERVICES)];
    let mirror = after(jumps.clone());
    let gone = (0..20).map(numbered).chain(jumps).collect();
    let script = written(&delete(gone), &mirror);
    assert_eq!((script.matches("-D INPUT ").count(), script.lines().count()), (22, 24), "{script}");
}

#[test]
fn a_shared_chain_is_written_anew_from_where_that_is_cheaper() {
    let entry = |number| vip(services(), 1, number, Target::Return);
    for (length, most) in [(10, 4), (250, 50)] {
        let all = (0..length).map(entry).chain([IptObject::SharedChain(services())]).collect();
        let mirror = after(all);
        for (count, is_anew) in [(most, false), (most + 1, true)] {
            let script = written(&delete((0..count).map(entry).collect()), &mirror);
            assert_eq!(script.contains(":KUBE-SERVICES"), is_anew, "{count} of {length}");
        }
    }
}

/// Only a foreign rule has gone with the section that wrote the chain anew: it has kept what is to be deleted after it.
#[test]
fn rules_of_owners_are_deleted_after_their_chain_was_written_anew() {
    let all = |target| (1..8).map(move |last| vip(refusing(), last, 80, target));
    let lost = vip(refusing(), 9, 80, Target::Drop);
    let mirror = after(all(Target::Drop).chain([lost.clone()]).collect());
    let batch = Batch { delete: vec![lost, foreign(refusing())], ..replace(all(Target::Reject).collect()) };
    let script = written(&batch, &mirror);
    let (anew, then) = script.split_once("COMMIT\n").unwrap();
    let rule = "KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m tcp --dport 80 -j DROP";
    assert!(
        anew.starts_with("*filter\n:KUBE-SERVICES - [0:0]\n") && anew.contains(&format!("-A {rule}\n")),
        "{script}"
    );
    assert_eq!(then, format!("*filter\n-D {rule}\nCOMMIT\n"));
}

#[test]
fn a_replaced_chain_that_is_missing_counts_as_an_added_one() {
    let chains = |numbers: std::ops::Range<usize>| numbers.map(|number| own(endpoint_chain(number), &[Target::Return]));
    let mirror = after(chains(0..999).collect());
    let is_large = |create: usize, replace: usize| {
        let create = chains(2000..2000 + create).collect();
        let batch = Batch { create, replace: chains(3000..3000 + replace).collect(), ..Batch::default() };
        RunPlan::new(V4, Backend::Nft, &batch, &mirror, true).large
    };
    for (create, replace, wanted) in [(0, 1, false), (0, 2, true), (1, 1, true), (1, 0, false)] {
        assert_eq!(is_large(create, replace), wanted, "{create} {replace}");
    }
}

#[test]
fn deletions_get_a_section_of_their_own_only_where_a_rule_is_named_beside_them() {
    let [one, gone] = [1, 3].map(endpoint_chain);
    let serve = |last| vip(services(), last, 80, Target::Jump(one.name));
    let mirror = after(vec![
        IptObject::SharedChain(services()),
        own(one, &[Target::Return]),
        own(gone, &[Target::Return]),
        balancing(1, 100..120),
        serve(1),
        serve(2),
    ]);
    let (whole, edited) = (own(one, &[Target::Accept]), balancing(1, 99..120));
    for (write, remove, sections) in [
        (&whole, vec![own(gone, &[])], 1),
        (&edited, vec![own(gone, &[])], 2),
        (&edited, Vec::new(), 1),
        (&whole, vec![serve(2)], 2),
        (&whole, vec![serve(2), own(gone, &[])], 2),
        (&whole, vec![serve(1), serve(2), IptObject::SharedChain(services())], 1),
    ] {
        let batch = Batch { delete: delete(remove).delete, ..replace(vec![write.clone()]) };
        let script = written(&batch, &mirror);
        assert_eq!(script.matches("COMMIT\n").count(), sections, "{script}");
    }
}

#[test]
fn the_first_and_the_last_chain_of_a_table_are_a_section() {
    let canary = IptObject::Chain(id(Table::Mangle, "KUBE-PROXY-CANARY"), ChainRules::default());
    let declared = "*mangle\n:KUBE-PROXY-CANARY - [0:0]\n";
    assert_eq!(written(&create(vec![canary.clone()]), &Mirror::default()), format!("{declared}COMMIT\n"));
    let removed = format!("{declared}-X KUBE-PROXY-CANARY\nCOMMIT\n");
    assert_eq!(written(&delete(vec![canary.clone()]), &after(vec![canary])), removed);
}
