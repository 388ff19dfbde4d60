use ferry_kernel::iptables::{Backend, Table};
use ferry_plane::Batch;

use super::*;
use crate::encode::tests::{V4, after, balancing, create, endpoint_chain, id, own, refusing, services, vip};
use crate::encode::{CommitProgress, Script};
use crate::mirror::Mirror;

/// Lines that the tool refused, by their beginning, with its message.
struct Refusal<'a> {
    lines: &'a [&'a str],
    text: &'a str,
    missing: bool,
}

/// In short, the engine's error for a refusal of this batch; these chains are missing now.
fn verdict(batch: &Batch<IptObject>, mirror: &Mirror, fresh: bool, gone: &[ChainId], refusal: &Refusal<'_>) -> String {
    let plan = RunPlan::new(V4, Backend::Nft, batch, mirror, true);
    let script = Script::new(&plan, &CommitProgress::default());
    let number = |begin: &&str| {
        let found = script.text().lines().zip(1..).find(|(line, _)| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("{begin}: {}", script.text())).1
    };
    let lines: Vec<usize> = refusal.lines.iter().map(number).collect();
    let failure = ToolFailure::Refused {
        tool: "iptables-restore".to_owned(),
        line: lines.first().copied(),
        lines,
        text: refusal.text.to_owned(),
        missing: refusal.missing,
    };
    short(of_script(failure, &|id| gone.contains(&id), &plan, &script, fresh))
}

fn short(error: CommitError) -> String {
    match error {
        CommitError::Drifted { object } => format!("drifted: {object}"),
        CommitError::Refused(operations) => {
            let operation = |(op, index, error)| format!(" {op:?} {index} ({error})");
            format!("refused:{}", operations.into_iter().map(operation).collect::<String>())
        }
        CommitError::Resources(error) => format!("resources: {error}"),
        CommitError::Busy(error) => format!("busy: {error}"),
        CommitError::Unusable(error) => format!("unusable: {error}"),
    }
}

fn refused<'a>(lines: &'a [&'a str]) -> Refusal<'a> {
    Refusal { lines, text: "no", missing: false }
}

#[test]
fn a_refused_rule_is_blamed_unless_its_chain_or_target_has_gone() {
    let (chain, other) = (endpoint_chain(1), endpoint_chain(2));
    let jump = vip(services(), 1, 80, Target::Jump(chain.name));
    let places = || vec![IptObject::SharedChain(services()), IptObject::SharedChain(refusing())];
    let rule = own(other, &[Target::Jump(chain.name)]);
    let line = format!("-A {} ", other.name);
    let there = || after([places(), vec![own(chain, &[Target::Return])]].concat());
    let blamed = "refused: Create 0 (no)";
    let drifted = &*format!("drifted: chain nat {}", other.name);
    for (mirror, fresh, gone, wanted) in [
        (there(), true, None, blamed),
        (there(), false, None, blamed),
        (there(), true, Some(chain), drifted),
        (there(), false, Some(chain), drifted),
        (there(), true, Some(other), blamed),
        (there(), false, Some(other), drifted),
        // It never existed: the batch is wrong.
        (after(places()), true, Some(chain), blamed),
        (after(places()), false, Some(chain), drifted),
        // Of another table.
        (there(), false, Some(ChainId { table: Table::Filter, ..chain }), blamed),
    ] {
        let batch = create(vec![rule.clone()]);
        let gone: Vec<ChainId> = gone.into_iter().collect();
        assert_eq!(verdict(&batch, &mirror, fresh, &gone, &refused(&[&line])), wanted, "fresh: {fresh}, {gone:?}");
    }
    // The shared chain itself.
    let batch = create(vec![vip(refusing(), 1, 80, Target::Reject)]);
    let mirror = after([places(), vec![vip(refusing(), 2, 80, Target::Drop)]].concat());
    let line = refused(&["-I KUBE-SERVICES "]);
    assert_eq!(verdict(&batch, &mirror, true, &[], &line), "refused: Create 0 (no)");
    let wanted = "drifted: rules in filter KUBE-SERVICES for 10.96.0.1:80 TCP";
    assert_eq!(verdict(&batch, &mirror, true, &[refusing()], &line), wanted);
    // Of several that are refused together, those that jump are not blamed.
    let batch = create(vec![jump, vip(refusing(), 1, 80, Target::Reject), vip(refusing(), 3, 80, Target::Drop)]);
    let mirror =
        after([places(), vec![vip(refusing(), 2, 80, Target::Drop), vip(services(), 2, 80, Target::Return)]].concat());
    let lines =
        ["-I KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j REJECT", "-I KUBE-SERVICES -d 10.96.0.3/32"];
    let jumping = &*format!("-I KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j {}", chain.name);
    for (lines, wanted) in [
        (vec![lines[0]], "refused: Create 1 (no)"),
        (lines.to_vec(), "refused: Create 1 (no) Create 2 (no)"),
        (vec![lines[0], jumping, "*nat", lines[1], "COMMIT"], "refused: Create 1 (no) Create 2 (no)"),
        (vec![jumping, lines[1]], "refused: Create 2 (no)"),
        (vec![jumping], "refused:"),
    ] {
        assert_eq!(verdict(&batch, &mirror, true, &[], &refused(&lines)), wanted, "{lines:?}");
    }
}

#[test]
fn what_names_a_rule_or_chain_that_is_there_no_more_shows_drift() {
    let (old, new) = (balancing(1, 100..120), balancing(1, 99..120));
    let gone = vip(refusing(), 2, 80, Target::Drop);
    let mirror =
        after(vec![IptObject::SharedChain(refusing()), gone.clone(), vip(refusing(), 3, 80, Target::Drop), old]);
    let chain = new.key().chain().unwrap();
    let batch = Batch { create: Vec::new(), replace: vec![new], delete: vec![gone] };
    let edit = format!("-I {} 1 ", chain.name);
    let wanted = format!("drifted: chain {chain}");
    assert_eq!(verdict(&batch, &mirror, true, &[], &refused(&[&edit])), wanted, "an edit by position");
    assert_eq!(verdict(&batch, &mirror, true, &[chain], &refused(&[&edit])), wanted);
    let wanted = "drifted: rules in filter KUBE-SERVICES for 10.96.0.2:80 TCP";
    assert_eq!(verdict(&batch, &mirror, true, &[], &refused(&["-D KUBE-SERVICES "])), wanted);
    // A line of no operation.
    assert_eq!(verdict(&batch, &mirror, true, &[], &refused(&["*nat"])), "drifted: no");
}

#[test]
fn a_section_is_refused_for_what_leads_to_a_chain_that_never_existed() {
    let missing = endpoint_chain(7);
    let to = Target::Jump(missing.name);
    let batch = Batch {
        create: vec![own(endpoint_chain(1), &[Target::Return]), own(endpoint_chain(2), &[Target::Return, to])],
        replace: vec![vip(services(), 1, 80, to)],
        delete: vec![vip(services(), 2, 80, to)],
    };
    let there = |more: &[IptObject]| {
        let mut objects = vec![IptObject::SharedChain(services()), vip(services(), 1, 80, Target::Return)];
        objects.extend([vip(services(), 2, 80, to), vip(services(), 3, 80, Target::Return)]);
        objects.extend(more.iter().cloned());
        after(objects)
    };
    let text = format!("Chain '{}' does not exist", missing.name);
    let refusal = |missing| Refusal { lines: &["COMMIT"], text: &text, missing };
    let (plain, known) = (there(&[]), there(&[own(missing, &[Target::Return])]));
    let blamed = format!("refused: Create 1 ({text}) Replace 0 ({text})");
    let drifted = format!("drifted: {}", missing.name);
    for (mirror, fresh, wanted) in
        [(&plain, true, &blamed), (&plain, false, &drifted), (&known, true, &drifted), (&known, false, &drifted)]
    {
        assert_eq!(verdict(&batch, mirror, fresh, &[], &refusal(true)), *wanted, "fresh: {fresh}");
    }
    assert_eq!(verdict(&batch, &plain, true, &[], &refusal(false)), "refused:", "for another reason");
    assert_eq!(verdict(&batch, &plain, true, &[], &Refusal { text: "no", ..refusal(true) }), "refused:", "unnamed");
    let shared = Refusal { text: "Chain 'KUBE-SERVICES' does not exist", ..refusal(true) };
    assert_eq!(verdict(&batch, &plain, true, &[], &shared), "drifted: KUBE-SERVICES");
    let of_filter = Refusal { text: "Chain 'KUBE-NODEPORTS' does not exist", ..refusal(true) };
    let other = after(vec![IptObject::SharedChain(id(Table::Filter, "KUBE-NODEPORTS"))]);
    assert_eq!(verdict(&batch, &other, true, &[], &of_filter), "refused:", "there is one in another table");
}

#[test]
fn a_failure_at_no_line_blames_no_operation() {
    let (batch, mirror) = (create(vec![vip(refusing(), 1, 80, Target::Reject)]), Mirror::default());
    for (text, wanted) in [
        ("Can't open socket to ipset.", "refused:"),
        ("out of patience", "busy: iptables-restore refused: out of patience"),
    ] {
        assert_eq!(verdict(&batch, &mirror, true, &[], &Refusal { lines: &[], text, missing: false }), wanted);
    }
}
