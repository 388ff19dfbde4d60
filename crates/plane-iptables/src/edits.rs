//! Edits long chains by position: a changed endpoint rewrites one rule, and not the whole chain.
//!
//! The nft variant's time is proportional to the rules that it writes, and to the square of the chain names in one section.

use std::collections::HashSet;

use ferry_kernel::iptables::Table;

use crate::names::is_balancing;
use crate::object::{ChainId, ChainRules, LONG};

/// A chain is written as a whole if more than one rule in this number changes.
const SHARE: usize = 4;

/// The rules of a long chain in order, each as a 64-bit hash without its comments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequence(Box<[u64]>);

/// One change of a chain. Positions count from 1 and apply after all earlier edits; indices refer to the chain's new rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// replaces the rule at this position by the one with this index
    Replace { position: usize, index: usize },
    /// inserts a rule before the one at this position
    Insert { position: usize, index: usize },
    /// appends a rule
    Append { index: usize },
    /// deletes the rule at this position
    Delete { position: usize },
}

// === impl Sequence ===

impl Sequence {
    /// The sequence of a chain that balances between many endpoints; `None` for all others. Rules of other chains are not kept in
    /// the kernel's order when they are read back.
    pub(crate) fn of(id: ChainId, rules: &ChainRules) -> Option<Self> {
        let balances = id.table == Table::Nat && is_balancing(id.name);
        (balances && rules.0.len() >= LONG).then(|| Self(rules.hashes().collect()))
    }

    /// The edits that turn the chain's rules into these; `None` if writing the chain as a whole is cheaper. Edits proceed from
    /// the end of the chain to its beginning, so that each refers to a rule that existed before the first one.
    pub(crate) fn edits(&self, rules: &ChainRules) -> Option<Vec<Edit>> {
        let next: Vec<u64> = rules.hashes().collect();
        let (old_set, next_set): (HashSet<u64>, HashSet<u64>) =
            (self.0.iter().copied().collect(), next.iter().copied().collect());
        let kept = |list: &[u64], in_other: &HashSet<u64>| -> Vec<usize> {
            list.iter().enumerate().filter(|(_, hash)| in_other.contains(hash)).map(|(index, _)| index).collect()
        };
        let (old_kept, next_kept) = (kept(&self.0, &next_set), kept(&next, &old_set));
        let is_same = |(old, new): (&usize, &usize)| self.0.get(*old) == next.get(*new);
        if old_kept.len() != next_kept.len() || !old_kept.iter().zip(&next_kept).all(is_same) {
            return None;
        }
        let mut edits = Vec::new();
        let (mut old_end, mut next_end) = (self.0.len(), next.len());
        let kept = old_kept.into_iter().zip(next_kept).rev().map(Some);
        for pair in kept.chain([None]) {
            let (old_begin, next_begin) = pair.map_or((0, 0), |(old, new)| (old + 1, new + 1));
            gap(old_begin..old_end, next_begin..next_end, self.0.len(), &mut edits);
            (old_end, next_end) = pair.unwrap_or_default();
        }
        (edits.len() * SHARE <= next.len()).then_some(edits)
    }
}

/// The edits between two remaining rules.
fn gap(old: std::ops::Range<usize>, next: std::ops::Range<usize>, length: usize, edits: &mut Vec<Edit>) {
    let both = old.len().min(next.len());
    let behind = old.end;
    edits.extend(old.clone().skip(both).rev().map(|at| Edit::Delete { position: at + 1 }));
    edits.extend(next.clone().skip(both).enumerate().map(|(number, index)| {
        if behind == length { Edit::Append { index } } else { Edit::Insert { position: behind + number + 1, index } }
    }));
    edits.extend(old.zip(next).map(|(at, index)| Edit::Replace { position: at + 1, index }));
}

#[cfg(test)]
mod tests {
    use ferry_kernel::iptables::{IptablesChainName, Match, Rule};

    use super::*;

    fn rules(numbers: &[u32]) -> ChainRules {
        let rule = |number: &u32| Rule { matches: [Match::Random(*number)].into(), ..Rule::default() };
        ChainRules(numbers.iter().map(rule).collect())
    }

    fn sequence(numbers: &[u32]) -> Sequence {
        Sequence(rules(numbers).hashes().collect())
    }

    /// Applies the edits as the tool does.
    fn edited(old: &[u32], next: &[u32]) -> Option<Vec<u32>> {
        let mut chain = old.to_vec();
        for edit in sequence(old).edits(&rules(next))? {
            match edit {
                Edit::Replace { position, index } => chain[position - 1] = next[index],
                Edit::Insert { position, index } => {
                    assert!(old.contains(&chain[position - 1]), "an insertion refers to a rule that was there");
                    chain.insert(position - 1, next[index]);
                }
                Edit::Append { index } => chain.push(next[index]),
                Edit::Delete { position } => drop(chain.remove(position - 1)),
            }
        }
        Some(chain)
    }

    #[test]
    fn edits_make_the_chain() {
        let old: Vec<u32> = (0..40).collect();
        let without =
            |gone: &[u32]| -> Vec<u32> { old.iter().copied().filter(|number| !gone.contains(number)).collect() };
        let replaced = |pairs: &[(u32, u32)]| -> Vec<u32> {
            old.iter()
                .map(|number| pairs.iter().find(|(from, _)| from == number).map_or(*number, |(_, to)| *to))
                .collect()
        };
        let with = |at: usize, more: &[u32]| -> Vec<u32> {
            let mut list = old.clone();
            drop(list.splice(at..at, more.iter().copied()));
            list
        };
        for next in [
            old.clone(),
            without(&[0]),
            without(&[39]),
            without(&[3, 4, 20]),
            replaced(&[(0, 100), (17, 101), (39, 102)]),
            with(0, &[100]),
            with(40, &[100, 101]),
            with(7, &[100, 101, 102]),
            [&[100, 101], &old[3..38], &[102]].concat(),
        ] {
            assert_eq!(edited(&old, &next).as_ref(), Some(&next), "{next:?}");
        }
        let edits = sequence(&old).edits(&rules(&replaced(&[(17, 101)]))).unwrap();
        assert_eq!(edits, [Edit::Replace { position: 18, index: 17 }]);
    }

    #[test]
    fn a_chain_that_changes_much_or_in_its_order_is_written_as_a_whole() {
        let old: Vec<u32> = (0..20).collect();
        assert!(sequence(&old).edits(&rules(&(6..26).collect::<Vec<_>>())).is_none());
        let mut swapped = old.clone();
        swapped.swap(2, 3);
        assert!(sequence(&old).edits(&rules(&swapped)).is_none());
        assert!(sequence(&[1; 20]).edits(&rules(&[1; 19])).is_none(), "the same rule twice");
    }

    #[test]
    fn only_long_balancing_chains_of_nat_have_a_sequence() {
        let long: Vec<u32> = (0..16).collect();
        for (table, name, length, has_one) in [
            (Table::Nat, "KUBE-SVC-XPGD46QRK7WJZT7O", 16, true),
            (Table::Nat, "KUBE-SVL-XPGD46QRK7WJZT7O", 16, true),
            (Table::Nat, "KUBE-SVC-XPGD46QRK7WJZT7O", 15, false),
            (Table::Nat, "KUBE-SEP-XPGD46QRK7WJZT7O", 16, false),
            (Table::Filter, "KUBE-SVC-XPGD46QRK7WJZT7O", 16, false),
        ] {
            let id = ChainId { table, name: IptablesChainName::new(name).unwrap() };
            let kept = Sequence::of(id, &rules(&long[..length]));
            assert_eq!(kept, has_one.then(|| sequence(&long)), "{id}, {length} rules");
        }
    }
}
