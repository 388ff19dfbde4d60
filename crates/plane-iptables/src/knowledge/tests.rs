//! Knowledge after reads, commits and notifications.

use ferry_kernel::iptables::{IptablesChainName, Rule};

use super::*;
use crate::names;
use crate::object::{ChainRules, LONG};

fn shared() -> ChainId {
    ChainId { table: Table::Nat, name: names::SERVICES }
}

fn known(knowledge: &mut Knowledge) -> &mut KnownTables {
    knowledge.known().unwrap()
}

fn touched(chains: &[ChainId]) -> ChainChanges {
    ChainChanges { chains: chains.iter().copied().collect(), ..ChainChanges::default() }
}

#[test]
fn that_nothing_is_known_is_reported_once() {
    let mut knowledge = Knowledge::START;
    assert!(!knowledge.report(), "the engine reads everything at its start anyway");
    knowledge = Knowledge::of_all(Mirror::default(), false);
    assert!(!knowledge.report());
    knowledge = Knowledge::UNCERTAIN;
    assert!(knowledge.report());
    assert!(!knowledge.report());
    assert!(knowledge.take().is_none() && !knowledge.report(), "taking nothing changes nothing");
}

#[test]
fn what_is_taken_and_not_put_back_is_unknown() {
    let mut knowledge = Knowledge::of_all(Mirror::default(), false);
    let known = knowledge.take().unwrap();
    assert!(knowledge.known().is_none() && knowledge.size(Table::Nat).is_none());
    knowledge = Knowledge::Known(known);
    assert!(knowledge.size(Table::Nat).is_some());
}

#[test]
fn a_write_ends_freshness_and_makes_nothing_readable() {
    for (unreadable, depth) in [(false, Depth::Whole), (true, Depth::Unreadable)] {
        let mut knowledge = Knowledge::of_all(Mirror::default(), unreadable);
        let known = known(&mut knowledge);
        assert!(known.fresh && known.depth == depth);
        let batch = Batch { create: vec![IptObject::SharedChain(shared())], ..Batch::default() };
        known.written(Family::V4, &batch, &BTreeSet::new());
        assert!(!known.fresh && known.depth == depth);
        assert!(known.mirror.shared_chain(shared()).is_some());
    }
}

#[test]
fn a_touched_chain_is_stale_until_it_was_compared_or_read() {
    let mut knowledge = Knowledge::of_all(Mirror::default(), false);
    let known = known(&mut knowledge);
    let (chain, key) = (shared(), IptKey::SharedChain(shared()));
    known.touch(touched(&[chain]));
    assert!(known.possible_drift.stale_chains.contains(&chain));
    known.compared(&[chain].into(), std::slice::from_ref(&key));
    assert!(known.possible_drift.stale_chains.contains(&chain), "it differs");
    known.compared(&[chain].into(), &[]);
    assert!(known.possible_drift.stale_chains.is_empty());
    known.touch(touched(&[chain]));
    known.renew(&[chain].into(), Mirror::default(), Vec::new(), &[]);
    assert!(known.possible_drift.stale_chains.is_empty());
}

#[test]
fn what_was_read_for_a_comparison_is_used_once_until_something_changes() {
    let mut knowledge = Knowledge::of_all(Mirror::default(), false);
    let known = known(&mut knowledge);
    let (chains, others) = (BTreeSet::from([shared()]), BTreeSet::new());
    let read = || Some((BTreeSet::from([shared()]), Found::default()));
    known.possible_drift.read_to_compare = read();
    known.touch(touched(&[]));
    assert!(known.take_read_to_compare(&chains).is_some(), "nothing has changed");
    assert!(known.take_read_to_compare(&chains).is_none(), "once");
    known.possible_drift.read_to_compare = read();
    assert!(known.take_read_to_compare(&others).is_none(), "of these chains only");
    known.possible_drift.read_to_compare = read();
    known.touch(touched(&[shared()]));
    assert!(known.take_read_to_compare(&chains).is_none(), "others have changed something");
    known.possible_drift.read_to_compare = read();
    known.written(Family::V4, &Batch::default(), &BTreeSet::new());
    assert!(known.take_read_to_compare(&chains).is_none(), "written");
}

#[test]
fn after_unobserved_commits_every_shared_chain_is_stale() {
    let mut knowledge = Knowledge::of_all(Mirror::default(), false);
    let known = known(&mut knowledge);
    known.touch(ChainChanges { unobserved: true, ..ChainChanges::default() });
    let all: BTreeSet<ChainId> = base::shared_chains().collect();
    assert_eq!(known.possible_drift.stale_chains, all);
}

#[test]
fn a_chain_that_others_may_have_changed_is_edited_by_position_no_more() {
    let long = ChainId { table: Table::Nat, name: IptablesChainName::new("KUBE-SVC-XPGD46QRK7WJZT7O").unwrap() };
    let other = ChainId { name: IptablesChainName::new("KUBE-SVL-XPGD46QRK7WJZT7O").unwrap(), ..long };
    for (changes, kept) in [
        (ChainChanges::default(), (true, true)),
        (touched(&[long]), (false, true)),
        (ChainChanges { unobserved: true, ..ChainChanges::default() }, (false, false)),
        (ChainChanges { everything: true, ..ChainChanges::default() }, (false, false)),
    ] {
        let mut mirror = Mirror::default();
        for id in [long, other] {
            mirror.put_chain(id, &ChainRules(vec![Rule::default(); LONG].into()));
        }
        let mut knowledge = Knowledge::of_all(mirror, false);
        let known = known(&mut knowledge);
        known.touch(changes);
        let is_kept = |id| known.mirror.sequence(id).is_some();
        assert_eq!((is_kept(long), is_kept(other)), kept);
    }
}

#[test]
fn the_engine_is_woken_for_what_it_does_not_know_yet() {
    assert!(!Knowledge::START.is_unreported() && Knowledge::UNCERTAIN.is_unreported());
    let after = |change: &dyn Fn(&mut KnownTables)| {
        let mut knowledge = Knowledge::of_all(Mirror::default(), false);
        change(known(&mut knowledge));
        knowledge.is_unreported()
    };
    assert!(!after(&|_| {}));
    assert!(after(&|known| known.touch(touched(&[shared()]))));
    assert!(after(&|known| known.differ(vec![IptKey::RouteLocalnet])));
    assert!(!after(&|known| known.differ(Vec::new())));
}

#[test]
fn what_differs_is_reported_and_its_shared_chain_is_stale() {
    let mut knowledge = Knowledge::of_all(Mirror::default(), false);
    let known = known(&mut knowledge);
    let own = ChainId { table: Table::Nat, name: names::MARK_MASQ };
    let keys = [IptKey::Chain(own), IptKey::SharedChain(shared())];
    known.differ(keys.to_vec());
    assert_eq!(known.possible_drift.unreported, keys.into());
    assert_eq!(known.possible_drift.stale_chains, [shared()].into());
}

#[test]
fn what_was_asked_for_is_not_reported_again() {
    let mut knowledge = Knowledge::of_all(Mirror::default(), false);
    let known = known(&mut knowledge);
    let other = ChainId { table: Table::Filter, ..shared() };
    let (asked, besides) = (IptKey::SharedChain(shared()), IptKey::SharedChain(other));
    let chains = [shared(), other].into();
    let differing = vec![asked.clone(), besides.clone()];
    known.renew(&chains, Mirror::default(), differing, &[asked]);
    assert_eq!(known.possible_drift.unreported, [besides].into());
}
