use ferry_api::object::Family;
use ferry_kernel::iptables::Target;

use super::*;
use crate::encode::tests::{after, balancing, create, delete, endpoint_chain, own, services, vip};
use crate::mirror::Mirror;

/// The sections, each with the chains of nat that it writes or deletes as a whole.
fn sections(batch: &Batch<IptObject>, mirror: &Mirror) -> Vec<(&'static str, Vec<ChainId>)> {
    let plan = RunPlan::new(Family::V4, Backend::Nft, batch, mirror, true);
    let chains = |items: &[Item]| items.iter().filter_map(|item| plan.chain(*item)).collect();
    let section = |part: &RunSection| match part {
        RunSection::Ahead(items) => ("ahead", chains(items)),
        RunSection::Behind(items) => ("behind", chains(items)),
        RunSection::Of(table, _) => {
            let work = plan.work(*table).unwrap();
            (table.name(), chains(&[&work.written[..], &work.gone].concat()))
        }
    };
    plan.parts.iter().map(section).collect()
}

fn counts(batch: &Batch<IptObject>, mirror: &Mirror) -> Vec<(&'static str, usize)> {
    sections(batch, mirror).into_iter().map(|(name, chains)| (name, chains.len())).collect()
}

fn chains(numbers: std::ops::Range<usize>) -> Vec<IptObject> {
    numbers.map(|number| own(endpoint_chain(number), &[Target::Return])).collect()
}

fn entry(port: u16) -> IptObject {
    vip(services(), 1, port, Target::Return)
}

#[test]
fn chains_of_up_to_a_thousand_names_are_written_in_their_tables_section() {
    let with_entry = |chains: Vec<IptObject>| create([chains, vec![entry(80)]].concat());
    let nothing = Mirror::default();
    assert_eq!(counts(&with_entry(chains(0..1000)), &nothing), [("nat", 1000)]);
    assert_eq!(counts(&with_entry(chains(0..1001)), &nothing), [("ahead", 1000), ("ahead", 1), ("nat", 0)]);
    let jumps = |count: usize| (0..10).map(|number| balancing(number, 100..100 + count)).collect();
    assert_eq!(counts(&with_entry(jumps(99)), &nothing), [("nat", 10)], "a chain and its jumps are a hundred names");
    assert_eq!(counts(&with_entry(jumps(100)), &nothing), [("ahead", 9), ("ahead", 1), ("nat", 0)]);
}

#[test]
fn sections_have_more_names_where_the_kernel_validates_many_entries() {
    let entries = |count: u16| after((0..count).map(entry).collect());
    let with_entry = |count| create([chains(0..count), vec![entry(5000)]].concat());
    for (there, room) in [(3364, 1000), (3600, 1020), (4900, 1190)] {
        assert_eq!(counts(&with_entry(room), &entries(there)), [("nat", room)]);
        assert_eq!(counts(&with_entry(room + 1), &entries(there)), [("ahead", room), ("ahead", 1), ("nat", 0)]);
    }
}

#[test]
fn changed_chains_are_written_behind_new_ones_and_in_sections_if_they_are_many() {
    for (changed, new, wanted) in [
        (1000, 0, vec![("nat", 1000)]),
        (200, 900, vec![("ahead", 900), ("nat", 200)]),
        (1000, 1, vec![("ahead", 1), ("nat", 1000)]),
        (1001, 1, vec![("ahead", 1), ("ahead", 1000), ("ahead", 1), ("nat", 0)]),
        (2500, 1, vec![("ahead", 1), ("ahead", 1000), ("ahead", 1000), ("ahead", 500), ("nat", 0)]),
    ] {
        let mirror = after(chains(0..changed));
        let batch =
            Batch { replace: chains(0..changed), ..create([chains(5000..5000 + new), vec![entry(80)]].concat()) };
        assert_eq!(counts(&batch, &mirror), wanted, "{changed} {new}");
    }
}

#[test]
fn new_chains_are_ordered_by_rank_and_by_their_names_read_backwards() {
    let clusters = (0..9).map(|number| balancing(number, 100..200));
    let all: Vec<IptObject> = clusters.chain(chains(0..200)).collect();
    let batch = Batch { create: all, ..Batch::default() };
    let written: Vec<ChainId> =
        sections(&batch, &Mirror::default()).into_iter().flat_map(|(_, chains)| chains).collect();
    let mut wanted = written.clone();
    wanted.sort_by_key(|id| {
        (id.name.as_str().starts_with("KUBE-SVC"), id.name.as_str().chars().rev().collect::<String>())
    });
    assert_eq!((written.len(), &written), (209, &wanted));
    assert_eq!(written.first().zip(written.get(1)), Some((&endpoint_chain(0), &endpoint_chain(100))));
}

#[test]
fn more_than_500_chains_that_go_go_in_sections_behind() {
    for (gone, wanted) in [
        (500, vec![("nat", 500)]),
        (501, vec![("nat", 0), ("behind", 500), ("behind", 1)]),
        (1000, vec![("nat", 0), ("behind", 500), ("behind", 500)]),
    ] {
        let all = || [chains(0..gone), vec![entry(80)]].concat();
        assert_eq!(counts(&delete(all()), &after(all())), wanted);
    }
}
