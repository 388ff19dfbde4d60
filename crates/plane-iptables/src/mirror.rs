//! The mirror: a copy in memory of the parts of the kernel's rules that the next change is computed from. These are the text of
//! each rule in shared chains, the names of all chains, and hashes of the rules of long chains, which are edited by position.
//! Other chains are written whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use ferry_api::object::Family;
use ferry_kernel::iptables::{Rule, Table};
use ferry_plane::Batch;

use crate::base;
use crate::edits::Sequence;
use crate::names::{self, Class};
use crate::object::{self, ChainId, ChainRules, IptObject, OwnedRulesKey, RuleOwner};

/// The tables of one family; by default, without anything of ours.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    shared_chains: BTreeMap<ChainId, SharedChain>,
    /// chains that are one unit's
    chains: HashMap<ChainId, ChainDigest>,
    /// the order of rules in long chains without foreign changes
    sequences: HashMap<ChainId, Sequence>,
    endpoints: usize,
    sizes: [Size; Table::ALL.len()],
}

/// Digest of the rules of a chain of one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainDigest {
    /// their number
    rules: u32,
    /// 32-bit content hash; the probability of a collision is about 2⁻³²
    hash: u32,
}

/// A chain with rules of several owners.
#[derive(Debug, Default)]
pub(crate) struct SharedChain {
    exists: bool,
    /// The tool can't print it, because of another program's rule: the owners' rules are those that were known before. Any change writes all
    /// of them.
    hidden: bool,
    owned: BTreeMap<RuleOwner, PrintedRules>,
    rules: usize,
}

/// Rules as the tool prints them behind the chain's name, with line ends between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrintedRules(Box<str>);

/// The size of our part of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// chains that we have made
    pub(crate) chains: usize,
    /// rules in them, and in others
    pub(crate) rules: usize,
}

/// The kind of a chain, which decides about its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainOwnership {
    /// one unit's: written whole, or edited by position if it is long
    Own,
    /// holds entries, and nothing else
    Shared,
    /// `KUBE-FIREWALL`: the kubelet's, too
    Firewall,
    /// the table's own, where others have rules
    BuiltIn,
}

// === impl ChainOwnership ===

impl ChainOwnership {
    /// Of this chain; `None`: it is none of our business.
    pub(crate) fn of(id: ChainId) -> Option<Self> {
        let built_in = match id.table {
            Table::Mangle => false,
            Table::Filter => matches!(id.name, base::INPUT | base::FORWARD | base::OUTPUT),
            Table::Nat => matches!(id.name, base::PREROUTING | base::OUTPUT | base::POSTROUTING),
        };
        if built_in {
            return Some(Self::BuiltIn);
        }
        if id.name == names::FIREWALL {
            return (id.table == Table::Filter).then_some(Self::Firewall);
        }
        names::is_ours(id.table, id.name).then(|| match Class::of(id.name) {
            Some(Class::Shared) => Self::Shared,
            _ => Self::Own,
        })
    }
}

/// The chains of a table without chains of services (not nat), as far as this mode reads them.
pub(crate) fn few_chains(table: Table) -> impl Iterator<Item = ChainId> {
    let names = [
        base::INPUT,
        base::FORWARD,
        base::OUTPUT,
        names::CANARY,
        names::FORWARD,
        names::SERVICES,
        names::EXTERNAL_SERVICES,
        names::NODE_PORTS,
        names::PROXY_FIREWALL,
        names::FIREWALL,
    ];
    names.into_iter().map(move |name| ChainId { table, name }).filter(|id| ChainOwnership::of(*id).is_some())
}

// === impl PrintedRules ===

impl PrintedRules {
    /// As these rules are printed.
    pub(crate) fn of(family: Family, rules: &[Rule]) -> Self {
        let mut text = String::new();
        for (index, rule) in rules.iter().enumerate() {
            if index > 0 {
                text.push('\n');
            }
            rule.print(family, &mut text);
        }
        Self(text.into())
    }

    /// Of a text with line ends between rules.
    pub(crate) fn new(text: String) -> Self {
        Self(text.into())
    }

    /// One after the other.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('\n').filter(|line| !line.is_empty())
    }

    /// Their number.
    pub(crate) fn count(&self) -> usize {
        self.iter().count()
    }
}

// === impl ChainDigest ===

impl ChainDigest {
    /// Of these rules.
    pub(crate) fn of(rules: &ChainRules) -> Self {
        let mut hasher = DefaultHasher::new();
        rules.hash(&mut hasher);
        let [.., a, b, c, d] = hasher.finish().to_ne_bytes();
        Self { rules: u32::try_from(rules.0.len()).unwrap_or(u32::MAX), hash: u32::from_ne_bytes([a, b, c, d]) }
    }

    fn count(self) -> usize {
        usize::try_from(self.rules).unwrap_or(usize::MAX)
    }
}

// === impl SharedChain ===

impl SharedChain {
    /// The rules of each owner; those of [`RuleOwner::NodePorts`] behind all others.
    pub(crate) fn owned(&self) -> &BTreeMap<RuleOwner, PrintedRules> {
        &self.owned
    }

    /// The number of rules.
    pub(crate) fn rules(&self) -> usize {
        self.rules
    }

    fn put(&mut self, owner: RuleOwner, lines: PrintedRules) -> (usize, usize) {
        let added = lines.count();
        let removed = self.owned.insert(owner, lines).map_or(0, |before| before.count());
        self.rules = self.rules + added - removed;
        (added, removed)
    }

    fn take(&mut self, owner: RuleOwner) -> usize {
        let removed = self.owned.remove(&owner).map_or(0, |before| before.count());
        self.rules -= removed;
        removed
    }
}

// === impl Mirror ===

impl Mirror {
    /// The size of our part of this table.
    pub(crate) fn size(&self, table: Table) -> Size {
        self.sizes.get(at(table)).copied().unwrap_or_default()
    }

    /// The number of endpoint chains.
    pub(crate) fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// The number of rules of a unit's chain; `None` without the chain.
    pub(crate) fn chain(&self, id: ChainId) -> Option<usize> {
        self.chains.get(&id).map(|content| content.count())
    }

    /// All chains of one unit, and how many rules each has.
    pub(crate) fn chains(&self) -> impl Iterator<Item = (ChainId, usize)> {
        self.chains.iter().map(|(id, content)| (*id, content.count()))
    }

    /// Chains of one unit that the other has not, or with other rules; and the other way round.
    pub(crate) fn chains_unlike<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = ChainId> + 'a {
        let unlike = |one: &'a Self, other: &'a Self| {
            let differs = move |(id, content): &(&ChainId, &ChainDigest)| other.chains.get(id) != Some(content);
            one.chains.iter().filter(differs).map(|(id, _)| *id)
        };
        unlike(self, other).chain(unlike(other, self).filter(|id| !self.chains.contains_key(id)))
    }

    /// The order of rules in a long chain without foreign changes.
    pub(crate) fn sequence(&self, id: ChainId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    /// Foreign change of this chain: its next change writes it as a whole.
    pub(crate) fn forget_sequence(&mut self, id: ChainId) {
        self.sequences.remove(&id);
    }

    /// Foreign changes of unknown chains.
    pub(crate) fn forget_sequences(&mut self) {
        self.sequences.clear();
    }

    /// A chain with entries, where there is one.
    pub(crate) fn shared_chain(&self, id: ChainId) -> Option<&SharedChain> {
        self.shared_chains
            .get(&id)
            .filter(|place| place.exists || ChainOwnership::of(id) == Some(ChainOwnership::BuiltIn))
    }

    /// The rules of an entry.
    pub(crate) fn owned(&self, key: &OwnedRulesKey) -> Option<&PrintedRules> {
        self.shared_chain(key.chain)?.owned.get(&key.owner)
    }

    // --- changes

    pub(crate) fn put_chain(&mut self, id: ChainId, rules: &ChainRules) {
        self.take_chain(id);
        self.put_content(id, ChainDigest::of(rules));
        self.sequences.extend(Sequence::of(id, rules).map(|sequence| (id, sequence)));
    }

    fn put_content(&mut self, id: ChainId, content: ChainDigest) {
        self.chains.insert(id, content);
        self.endpoints += usize::from(Class::of(id.name) == Some(Class::Endpoint));
        self.resize(id.table, |size| {
            size.chains += 1;
            size.rules += content.count();
        });
    }

    fn take_chain(&mut self, id: ChainId) {
        let Some(content) = self.chains.remove(&id) else { return };
        self.sequences.remove(&id);
        self.endpoints -= usize::from(Class::of(id.name) == Some(Class::Endpoint));
        self.resize(id.table, |size| {
            size.chains -= 1;
            size.rules -= content.count();
        });
    }

    pub(crate) fn put_shared_chain(&mut self, id: ChainId) {
        let place = self.shared_chains.entry(id).or_default();
        if !std::mem::replace(&mut place.exists, true) {
            self.resize(id.table, |size| size.chains += 1);
        }
    }

    /// True if the tool can't print the rules of this chain.
    pub(crate) fn is_hidden(&self, id: ChainId) -> bool {
        self.shared_chains.get(&id).is_some_and(|chain| chain.hidden)
    }

    /// The tool can't print the rules of this chain.
    pub(crate) fn hide(&mut self, id: ChainId) {
        self.shared_chains.entry(id).or_default().hidden = true;
    }

    /// All rules of this chain were written.
    fn show(&mut self, id: ChainId) {
        if let Some(chain) = self.shared_chains.get_mut(&id) {
            chain.hidden = false;
        }
    }

    /// The rules that `known` has in the chains that the tool can't print here. They become part of this mirror, too.
    pub(crate) fn complete_hidden(&mut self, known: &Self) -> Vec<(OwnedRulesKey, PrintedRules)> {
        let hidden: Vec<ChainId> =
            self.shared_chains.iter().filter(|(_, chain)| chain.hidden).map(|(id, _)| *id).collect();
        let rules_of = |chain: ChainId| {
            let owned = known.shared_chain(chain).into_iter().flat_map(SharedChain::owned);
            owned.map(move |(owner, lines)| (OwnedRulesKey { chain, owner: *owner }, lines.clone()))
        };
        let all: Vec<_> = hidden.into_iter().flat_map(rules_of).collect();
        all.iter().for_each(|(key, lines)| self.put_owned(*key, lines.clone()));
        all
    }

    fn take_shared_chain(&mut self, id: ChainId) {
        let Some(place) = self.shared_chains.remove(&id) else { return };
        self.resize(id.table, |size| {
            size.chains -= usize::from(place.exists);
            size.rules -= place.rules;
        });
    }

    pub(crate) fn put_owned(&mut self, key: OwnedRulesKey, lines: PrintedRules) {
        let (added, removed) = self.shared_chains.entry(key.chain).or_default().put(key.owner, lines);
        self.resize(key.chain.table, |size| size.rules = size.rules + added - removed);
    }

    fn take_owned(&mut self, key: &OwnedRulesKey) {
        let removed = self.shared_chains.get_mut(&key.chain).map_or(0, |place| place.take(key.owner));
        self.resize(key.chain.table, |size| size.rules -= removed);
    }

    /// The batch was written; these chains are empty, but could not be removed.
    pub(crate) fn apply(&mut self, family: Family, batch: &Batch<IptObject>, stuck: &BTreeSet<ChainId>) {
        let all = batch.create.iter().chain(&batch.replace).chain(&batch.delete);
        all.filter_map(object::with_rules_in).for_each(|chain| self.show(chain));
        for object in batch.create.iter().chain(&batch.replace) {
            match object {
                IptObject::Chain(id, rules) => self.put_chain(*id, rules),
                IptObject::SharedChain(id) => self.put_shared_chain(*id),
                IptObject::OwnedRules(key, rules) => {
                    if ChainOwnership::of(key.chain) == Some(ChainOwnership::Shared) {
                        // A missing chain is made with its first rules.
                        self.put_shared_chain(key.chain);
                    }
                    self.put_owned(*key, PrintedRules::of(family, rules));
                }
                IptObject::SourceSet(..) | IptObject::RouteLocalnet | IptObject::ForeignRule(..) => {}
            }
        }
        for object in batch.delete.iter().filter(|object| !object::is_shared(object)) {
            match object {
                IptObject::Chain(id, _) => self.take_chain(*id),
                IptObject::SharedChain(id) => self.take_shared_chain(*id),
                IptObject::OwnedRules(key, _) => self.take_owned(key),
                IptObject::SourceSet(..) | IptObject::RouteLocalnet | IptObject::ForeignRule(..) => {}
            }
        }
        for id in stuck {
            match ChainOwnership::of(*id) {
                Some(ChainOwnership::Own) => self.put_chain(*id, &ChainRules::default()),
                Some(ChainOwnership::Shared) => self.put_shared_chain(*id),
                Some(ChainOwnership::Firewall | ChainOwnership::BuiltIn) | None => {}
            }
        }
    }

    /// These chains were read anew.
    pub(crate) fn renew(&mut self, chains: &BTreeSet<ChainId>, mut read: Self) {
        for id in chains {
            self.take_chain(*id);
            self.take_shared_chain(*id);
            if let Some(content) = read.chains.get(id).copied() {
                self.put_content(*id, content);
                self.sequences.extend(read.sequences.remove(id).map(|sequence| (*id, sequence)));
            }
            let Some(place) = read.shared_chains.remove(id) else { continue };
            if place.exists {
                self.put_shared_chain(*id);
            }
            for (owner, lines) in place.owned {
                self.put_owned(OwnedRulesKey { chain: *id, owner }, lines);
            }
            if place.hidden {
                self.hide(*id);
            }
        }
    }

    fn resize(&mut self, table: Table, change: impl FnOnce(&mut Size)) {
        if let Some(size) = self.sizes.get_mut(at(table)) {
            change(size);
        }
    }
}

/// The index of a table in an array of all.
pub(crate) fn at(table: Table) -> usize {
    match table {
        Table::Mangle => 0,
        Table::Filter => 1,
        Table::Nat => 2,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ferry_api::object::Protocol;
    use ferry_kernel::iptables::Target;

    use super::*;

    #[test]
    fn a_shared_chain_is_there_from_its_first_rules_on() {
        let chain = ChainId { table: Table::Filter, name: names::SERVICES };
        let rules = |last: u8| {
            let owner = RuleOwner::Vip(IpAddr::from([10, 96, 0, last]), 80, Protocol::Tcp);
            let rule = Rule { target: Target::Reject, ..Rule::default() };
            IptObject::OwnedRules(OwnedRulesKey { chain, owner }, [rule].into())
        };
        let mut mirror = Mirror::default();
        let batch = Batch { create: vec![rules(1), rules(2)], ..Batch::default() };
        mirror.apply(Family::V4, &batch, &BTreeSet::new());
        assert_eq!(mirror.shared_chain(chain).map(SharedChain::rules), Some(2));
        let Size { chains, rules } = mirror.size(Table::Filter);
        assert_eq!((chains, rules), (1, 2));
    }

    #[test]
    fn rules_are_the_same_whether_they_were_written_or_read() {
        let rule = |target| Rule { target, ..Rule::default() };
        let rules = [rule(Target::Return), rule(Target::Drop), rule(Target::Accept)];
        for (count, read) in [(0, ""), (1, "-j RETURN"), (3, "-j RETURN\n-j DROP\n-j ACCEPT")] {
            let written = PrintedRules::of(Family::V4, &rules[..count]);
            assert_eq!(written, PrintedRules::new(read.to_owned()));
            assert_eq!(written.count(), count);
        }
    }

    #[test]
    fn a_shared_chain_takes_its_rules_along() {
        let chain = ChainId { table: Table::Filter, name: names::SERVICES };
        let there = || {
            let mut mirror = Mirror::default();
            mirror.put_shared_chain(chain);
            let owner = RuleOwner::Vip(IpAddr::from([10, 96, 0, 1]), 80, Protocol::Tcp);
            mirror.put_owned(OwnedRulesKey { chain, owner }, PrintedRules::new("-j RETURN\n-j DROP".to_owned()));
            mirror
        };
        assert_eq!(there().size(Table::Filter), Size { chains: 1, rules: 2 });
        let (mut deleted, mut lost) = (there(), there());
        let batch = Batch { delete: vec![IptObject::SharedChain(chain)], ..Batch::default() };
        deleted.apply(Family::V4, &batch, &BTreeSet::new());
        lost.renew(&[chain].into(), Mirror::default());
        for mirror in [deleted, lost] {
            assert!(mirror.shared_chain(chain).is_none());
            assert_eq!(mirror.size(Table::Filter), Size::default());
        }
    }
}
