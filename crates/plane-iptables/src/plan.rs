//! Plans one `iptables-restore` run: diffs a batch against the mirror of the kernel's rules, per table, and splits it into
//! sections.

mod divide;

use std::collections::{BTreeMap, BTreeSet};

use ferry_api::object::Family;
use ferry_kernel::iptables::{Backend, Match, Rule, Table};
use ferry_plane::{Batch, Op};

use crate::base;
use crate::edits::Edit;
use crate::mirror::{ChainOwnership, Mirror, PrintedRules, at};
use crate::names::Class;
use crate::object::{self, ChainId, IptObject, OwnedRulesKey, RuleOwner};

/// Chains that one section removes, at most.
pub(crate) const PIECE_CHAINS: usize = 500;

/// Up to this number, rules are always deleted one by one, which keeps the packet counters of the others.
const FEW: usize = 4;

/// With more endpoint chains than this, redundant comments are left out to save space, as in upstream.
const LARGE: usize = 1000;

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Item {
    pub(crate) op: Op,
    pub(crate) index: usize,
}

/// The work of one run, divided into sections.
#[derive(Debug)]
pub(crate) struct RunPlan<'a> {
    pub(crate) family: Family,
    pub(crate) batch: &'a Batch<IptObject>,
    pub(crate) mirror: &'a Mirror,
    /// rules of endpoint chains, and jumps to them, have no comments
    pub(crate) large: bool,
    /// long chains with few changed rules are edited by position
    edits: bool,
    works: [Work; Table::ALL.len()],
    pub(crate) parts: Vec<RunSection>,
}

/// The work in one table.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// chains that are written with all their rules
    pub(crate) written: Vec<Item>,
    /// chains with a few changed rules
    pub(crate) edited: Vec<(Item, Vec<Edit>)>,
    pub(crate) gone: Vec<Item>,
    pub(crate) shared_chains: BTreeMap<ChainId, Task>,
}

/// The work in one shared chain.
#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) made: Option<Item>,
    pub(crate) gone: Option<Item>,
    /// it is empty or gets flushed: all its rules are written
    pub(crate) fresh: bool,
    pub(crate) put: Vec<Item>,
    pub(crate) take: Vec<Item>,
    /// number of existing rules, if it may be written anew
    length: Option<usize>,
    /// existing rules that `put` replaces
    replaced: Old,
    /// existing rules that `take` deletes
    taken: Old,
}

/// Existing rules that are to be deleted.
#[derive(Clone, Copy, Debug, Default)]
struct Old {
    count: usize,
    /// true if one of them may not be deletable by its text
    stubborn: bool,
}

/// A section of the tool's input, up to its COMMIT: the kernel applies all of it or nothing.
#[derive(Clone, Debug)]
pub(crate) enum RunSection {
    /// new chains, not jumped to yet; and changed ones if they are too many for the section of their table
    Ahead(Vec<Item>),
    /// additions and changes in this table, or deletions, or both
    Of(Table, Steps),
    /// deletions of chains that are not jumped to any more
    Behind(Vec<Item>),
}

/// Steps in a table's section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    Add,
    Remove,
    Both,
}

// === impl Steps ===

impl Steps {
    pub(crate) fn add(self) -> bool {
        matches!(self, Self::Add | Self::Both)
    }

    pub(crate) fn remove(self) -> bool {
        matches!(self, Self::Remove | Self::Both)
    }
}

// === impl RunPlan ===

impl<'a> RunPlan<'a> {
    /// Plans a batch for this variant of the tool. Without `edits`, all changed chains are written as a whole.
    pub(crate) fn new(
        family: Family,
        backend: Backend,
        batch: &'a Batch<IptObject>,
        mirror: &'a Mirror,
        edits: bool,
    ) -> Self {
        // The legacy variant reads and writes the whole table, whatever changes of it.
        let edits = edits && backend == Backend::Nft;
        let works = Default::default();
        let mut plan = Self { family, batch, mirror, large: false, edits, works, parts: Vec::new() };
        plan.large = plan.endpoints_after() > LARGE;
        let removed: BTreeSet<ChainId> = batch.delete.iter().filter_map(removed_shared_chain).collect();
        for (op, list) in [(Op::Create, &batch.create), (Op::Replace, &batch.replace)] {
            for (index, object) in list.iter().enumerate() {
                plan.note_written(Item { op, index }, object);
            }
        }
        for (index, object) in batch.delete.iter().enumerate().filter(|(_, object)| !object::is_shared(object)) {
            plan.note_gone(Item { op: Op::Delete, index }, object, &removed);
        }
        plan.finish_tasks();
        plan.divide(backend);
        plan
    }

    /// True if chains are edited by position.
    pub(crate) fn has_edits(&self) -> bool {
        self.works.iter().any(|work| !work.edited.is_empty())
    }

    /// Approximate number of rules in the input.
    pub(crate) fn size(&self) -> usize {
        let edited = self.works.iter().flat_map(|work| &work.edited);
        let spared: usize = edited.map(|(item, edits)| self.rules_of(*item).len().saturating_sub(edits.len())).sum();
        let rules = |objects: &[IptObject]| -> usize {
            let of = |object: &IptObject| match object {
                IptObject::Chain(_, rules) => 1 + rules.0.len(),
                IptObject::OwnedRules(_, rules) => rules.len(),
                IptObject::SharedChain(id) => 1 + self.mirror.shared_chain(*id).map_or(0, |chain| chain.rules()),
                IptObject::ForeignRule(..) | IptObject::SourceSet(..) | IptObject::RouteLocalnet => 1,
            };
            objects.iter().map(of).sum()
        };
        rules(&self.batch.create) + rules(&self.batch.replace) + rules(&self.batch.delete) - spared
    }

    /// All rules of a chain.
    pub(crate) fn rules_of(&self, item: Item) -> &'a [Rule] {
        match self.object(item) {
            Some(IptObject::Chain(_, rules)) => &rules.0,
            _ => &[],
        }
    }

    pub(crate) fn work(&self, table: Table) -> Option<&Work> {
        self.works.get(at(table))
    }

    /// The operations of the first `sections` sections.
    pub(crate) fn items_in(&self, sections: usize) -> BTreeSet<Item> {
        let mut items = BTreeSet::new();
        for part in self.parts.iter().take(sections) {
            match part {
                RunSection::Ahead(of) | RunSection::Behind(of) => items.extend(of),
                RunSection::Of(table, steps) => {
                    if let Some(work) = self.work(*table) {
                        work.collect(*steps, &mut items);
                    }
                }
            }
        }
        items
    }

    /// The part of the batch with these operations.
    pub(crate) fn batch_of(&self, items: &BTreeSet<Item>) -> Batch<IptObject> {
        let list = |of: Op, objects: &[IptObject]| -> Vec<IptObject> {
            let indices = items.iter().filter(|item| item.op == of).map(|item| item.index);
            indices.filter_map(|index| objects.get(index).cloned()).collect()
        };
        Batch {
            create: list(Op::Create, &self.batch.create),
            replace: list(Op::Replace, &self.batch.replace),
            delete: list(Op::Delete, &self.batch.delete),
        }
    }

    pub(crate) fn object(&self, item: Item) -> Option<&'a IptObject> {
        object(self.batch, item)
    }

    /// The chain that an operation creates or deletes as a whole.
    pub(crate) fn chain(&self, item: Item) -> Option<ChainId> {
        match self.object(item)? {
            IptObject::Chain(id, _) | IptObject::SharedChain(id) => Some(*id),
            IptObject::OwnedRules(..)
            | IptObject::ForeignRule(..)
            | IptObject::SourceSet(..)
            | IptObject::RouteLocalnet => None,
        }
    }

    /// The new text of an owner's rules.
    pub(crate) fn owned(&self, item: Item) -> Option<(OwnedRulesKey, PrintedRules)> {
        match self.object(item)? {
            IptObject::OwnedRules(key, rules) => Some((*key, PrintedRules::of(self.family, rules))),
            _ => None,
        }
    }

    /// The rules that an operation deletes from a shared chain first: the owner's existing rules, or a foreign rule.
    pub(crate) fn old(&self, item: Item) -> Option<PrintedRules> {
        match self.object(item)? {
            IptObject::OwnedRules(key, _) => self.mirror.owned(key).cloned(),
            IptObject::ForeignRule(_, text) => Some(PrintedRules::new(text.to_string())),
            _ => None,
        }
    }

    /// True if an earlier section writes the shared chain anew and has deleted this foreign rule with it.
    pub(crate) fn went_before(&self, task: &Task, item: Item, steps: Steps) -> bool {
        let is_foreign = matches!(self.object(item), Some(IptObject::ForeignRule(..)));
        is_foreign && steps == Steps::Remove && task.rewrites(Steps::Add)
    }

    fn work_mut(&mut self, table: Table) -> &mut Work {
        let [mangle, filter, nat] = &mut self.works;
        match table {
            Table::Mangle => mangle,
            Table::Filter => filter,
            Table::Nat => nat,
        }
    }

    fn task(&mut self, id: ChainId) -> &mut Task {
        self.work_mut(id.table).shared_chains.entry(id).or_default()
    }

    fn note_written(&mut self, item: Item, object: &IptObject) {
        match object {
            IptObject::Chain(id, rules) => {
                // Nothing to write, and the number of commits must be predictable.
                let is_there = rules.0.is_empty() && self.mirror.chain(*id) == Some(0);
                let sequence = self.mirror.sequence(*id).filter(|_| self.edits);
                match sequence.and_then(|sequence| sequence.edits(rules)) {
                    Some(edits) if edits.is_empty() => {}
                    Some(edits) => self.work_mut(id.table).edited.push((item, edits)),
                    None if is_there => {}
                    None => self.work_mut(id.table).written.push(item),
                }
            }
            IptObject::SharedChain(id) if self.mirror.shared_chain(*id).is_none() => self.task(*id).made = Some(item),
            IptObject::OwnedRules(key, rules) => {
                if self.mirror.is_hidden(key.chain)
                    || self.mirror.owned(key) != Some(&PrintedRules::of(self.family, rules))
                {
                    self.task(key.chain).put.push(item);
                }
            }
            IptObject::SharedChain(_)
            | IptObject::SourceSet(..)
            | IptObject::RouteLocalnet
            | IptObject::ForeignRule(..) => {}
        }
    }

    fn note_gone(&mut self, item: Item, object: &IptObject, removed: &BTreeSet<ChainId>) {
        match object {
            IptObject::Chain(id, _) if self.mirror.chain(*id).is_some() => self.work_mut(id.table).gone.push(item),
            IptObject::SharedChain(id) if self.mirror.shared_chain(*id).is_some() => self.task(*id).gone = Some(item),
            IptObject::OwnedRules(key, _) if !removed.contains(&key.chain) && self.mirror.owned(key).is_some() => {
                self.task(key.chain).take.push(item);
            }
            IptObject::ForeignRule(id, _) if !removed.contains(id) => self.task(*id).take.push(item),
            IptObject::Chain(..)
            | IptObject::SharedChain(_)
            | IptObject::OwnedRules(..)
            | IptObject::ForeignRule(..)
            | IptObject::SourceSet(..)
            | IptObject::RouteLocalnet => {}
        }
    }

    fn finish_tasks(&mut self) {
        let (family, mirror, batch) = (self.family, self.mirror, self.batch);
        for (id, task) in self.works.iter_mut().flat_map(|work| &mut work.shared_chains) {
            let is_empty = mirror.shared_chain(*id).is_none_or(|chain| chain.rules() == 0);
            task.fresh = ChainOwnership::of(*id) == Some(ChainOwnership::Shared)
                && is_empty
                && !(task.put.is_empty() && task.made.is_none());
            if task.fresh {
                // Existing rules are deleted when the chain is flushed.
                task.take.clear();
            }
            task.put.sort_by_key(|item| match object(batch, *item) {
                Some(IptObject::OwnedRules(key, _)) => (is_last(key.owner), base::jump_position(key)),
                _ => (false, None),
            });
            if ChainOwnership::of(*id) == Some(ChainOwnership::Shared) && !task.fresh && task.gone.is_none() {
                let old =
                    |items: &[Item]| Old::of(family, mirror, items.iter().filter_map(|item| object(batch, *item)));
                (task.replaced, task.taken) = (old(&task.put), old(&task.take));
                // Others' rules are in it that have no text.
                task.replaced.stubborn |= mirror.is_hidden(*id) && !task.put.is_empty();
                task.taken.stubborn |= mirror.is_hidden(*id) && !task.take.is_empty();
                task.length = Some(mirror.shared_chain(*id).map_or(0, |chain| chain.rules()));
            }
        }
    }

    fn endpoints_after(&self) -> usize {
        let count = |objects: &[IptObject], there: bool| {
            let is = |object: &&IptObject| match object {
                IptObject::Chain(id, _) => {
                    Class::of(id.name) == Some(Class::Endpoint) && self.mirror.chain(*id).is_some() == there
                }
                _ => false,
            };
            objects.iter().filter(is).count()
        };
        let added = count(&self.batch.create, false) + count(&self.batch.replace, false);
        (self.mirror.endpoints() + added).saturating_sub(count(&self.batch.delete, true))
    }
}

// === impl Work ===

impl Work {
    fn adds(&self) -> bool {
        !(self.written.is_empty() && self.edited.is_empty())
            || self.shared_chains.values().any(|task| task.made.is_some() || !task.put.is_empty())
    }

    fn removes(&self) -> bool {
        !self.gone.is_empty() || self.shared_chains.values().any(|task| task.gone.is_some() || !task.take.is_empty())
    }

    /// The operations of these steps.
    fn collect(&self, steps: Steps, items: &mut BTreeSet<Item>) {
        if steps.add() {
            items.extend(self.written.iter().chain(self.edited.iter().map(|(item, _)| item)));
        }
        if steps.remove() {
            items.extend(&self.gone);
        }
        for task in self.shared_chains.values() {
            if steps.add() {
                items.extend(task.made.iter().chain(&task.put));
            }
            if steps.remove() {
                items.extend(task.gone.iter().chain(&task.take));
            }
        }
    }

    /// True if deletions get a section of their own. For the first rule that is named by its text or its position
    /// iptables-nft-restore fetches the rules of all chains that the section names, those that it fills or removes included.
    fn splits(&self) -> bool {
        let deletes = |task: &Task| task.gone.is_none() && !task.take.is_empty();
        let removes = self.shared_chains.values().any(deletes) || !(self.edited.is_empty() || self.gone.is_empty());
        removes && !self.shared_chains.values().any(|task| task.rewrites(Steps::Both))
    }
}

// === impl Task ===

impl Task {
    /// True if these steps delete so many rules that writing the shared chain anew is cheaper: the cost of one deletion grows
    /// with the chain's length, that of writing with the rules that remain.
    pub(crate) fn rewrites(&self, steps: Steps) -> bool {
        let Some(length) = self.length else { return false };
        let of = |is: bool, old: Old| if is { old } else { Old::default() };
        let (replaced, taken) = (of(steps.add(), self.replaced), of(steps.remove(), self.taken));
        let removed = replaced.count + taken.count;
        // Measured: 0.1 ms and 0.4 µs per rule of the chain for a deletion, against 50 µs for each written rule.
        replaced.stubborn || taken.stubborn || removed > FEW && removed * (375 + length) > 125 * length
    }
}

// === impl Old ===

impl Old {
    /// The existing rules of these objects.
    fn of<'a>(family: Family, mirror: &Mirror, objects: impl Iterator<Item = &'a IptObject>) -> Self {
        let mut old = Self::default();
        for object in objects {
            match object {
                IptObject::OwnedRules(key, _) => {
                    let lines = mirror.owned(key);
                    old.count += lines.map_or(0, PrintedRules::count);
                    old.stubborn |= lines.is_some_and(|lines| lines.iter().any(is_garbled));
                }
                IptObject::ForeignRule(_, text) => {
                    old.count += 1;
                    old.stubborn |= is_stubborn(family, text);
                }
                IptObject::Chain(..)
                | IptObject::SharedChain(_)
                | IptObject::SourceSet(..)
                | IptObject::RouteLocalnet => {}
            }
        }
        old
    }
}

/// True if a foreign rule may not be deletable by its text: the tool doesn't find rules with `recent` and some other extensions
/// again.
fn is_stubborn(family: Family, text: &str) -> bool {
    let is_recent = |each: &Match| matches!(each, Match::RecentlySeen { .. } | Match::SeeNow { .. });
    is_garbled(text) || Rule::parse(family, text).is_none_or(|rule| rule.matches.iter().any(is_recent))
}

/// True if a comment in it was no UTF-8: then the rule differs from its text.
fn is_garbled(text: &str) -> bool {
    text.contains(char::REPLACEMENT_CHARACTER)
}

/// The object of an operation.
fn object(batch: &Batch<IptObject>, item: Item) -> Option<&IptObject> {
    let list = match item.op {
        Op::Create => &batch.create,
        Op::Replace => &batch.replace,
        Op::Delete => &batch.delete,
    };
    list.get(item.index)
}

/// True if the owner's rules come last in their shared chain.
pub(crate) fn is_last(owner: RuleOwner) -> bool {
    matches!(owner, RuleOwner::NodePorts(_) | RuleOwner::Guard)
}

/// The shared chain that the deletion of this object deletes.
fn removed_shared_chain(object: &IptObject) -> Option<ChainId> {
    match object {
        IptObject::SharedChain(id) if !object::is_shared(object) => Some(*id),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
