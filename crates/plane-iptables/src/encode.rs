//! Encodes a plan as the input of `iptables-restore`.

use std::collections::BTreeSet;
use std::io;

use ferry_kernel::iptables::{IptablesChainName, Restore, Rule, Table, Target};
use ferry_plane::Batch;

use crate::base;
use crate::edits::Edit;
use crate::mirror::at;
use crate::names::{self, Class};
use crate::object::{self, ChainId, ChainRules, IptObject, OwnedRulesKey, RuleOwner};
use crate::plan::{Item, RunPlan, RunSection, Steps, Task, Work, is_last};

/// The input, with the operation of each line.
pub(crate) struct Script<'a> {
    /// the part that was not flushed yet
    restore: Restore,
    /// number of flushed lines
    flushed: usize,
    /// receives the text piece by piece. Without it, the text and the operations of its lines are kept
    sink: Option<&'a mut Sink<'a>>,
    write_result: io::Result<()>,
    /// first line of each operation; `None` for lines of no operation
    marks: Vec<(usize, Option<Item>)>,
    outline: Outline,
}

/// Receives a piece of the text.
pub(crate) type Sink<'a> = dyn FnMut(&str) -> io::Result<()> + 'a;

/// Summary of a text that is not kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outline {
    /// the last line of each section
    commits: Vec<usize>,
    written: [usize; Table::ALL.len()],
    /// length of the text
    pub(crate) bytes: usize,
}

/// Progress of the earlier attempts of a commit.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommitProgress {
    /// number of committed sections
    pub(crate) sections: usize,
    /// chains that foreign rules jump to: they are flushed, and not deleted
    pub(crate) stuck: BTreeSet<ChainId>,
    /// true if too many are stuck to find them one by one: no chain is deleted at all
    pub(crate) all_stuck: bool,
}

// === impl CommitProgress ===

impl CommitProgress {
    /// Chains that this batch deletes and that still exist, without rules.
    pub(crate) fn stuck_in(&self, batch: &Batch<IptObject>) -> BTreeSet<ChainId> {
        let deleted = batch.delete.iter().filter_map(|object| match object {
            IptObject::Chain(id, _) | IptObject::SharedChain(id) if !object::is_shared(object) => Some(*id),
            _ => None,
        });
        deleted.filter(|id| self.all_stuck || self.stuck.contains(id)).collect()
    }
}

/// Minimum bytes of a flushed piece of the text.
const FLUSH_BYTES: usize = 64 << 10;

// === impl Outline ===

impl Outline {
    /// Number of sections.
    pub(crate) fn sections(&self) -> usize {
        self.commits.len()
    }

    /// Number of sections that end before this line.
    pub(crate) fn sections_before(&self, line: usize) -> usize {
        self.commits.partition_point(|commit| *commit < line)
    }

    /// Number of rules that are written to this table.
    pub(crate) fn written(&self, table: Table) -> usize {
        self.written.get(at(table)).copied().unwrap_or(0)
    }
}

// === impl Script ===

impl Script<'static> {
    /// Encodes the text as a whole.
    pub(crate) fn new(plan: &RunPlan<'_>, progress: &CommitProgress) -> Self {
        let mut script = Self::begin(plan, None);
        script.parts(plan, progress);
        script.outline.bytes = script.restore.text().len();
        script
    }
}

/// A text that is kept as a whole.
pub(crate) type Whole = Script<'static>;

impl<'a> Script<'a> {
    /// Writes the text to `sink` piece by piece, so that it is never in memory as a whole.
    pub(crate) fn stream(plan: &RunPlan<'_>, progress: &CommitProgress, sink: &'a mut Sink<'a>) -> io::Result<Outline> {
        let mut script = Self::begin(plan, Some(sink));
        script.parts(plan, progress);
        script.flush();
        script.write_result.map(|()| script.outline)
    }

    fn begin(plan: &RunPlan<'_>, sink: Option<&'a mut Sink<'a>>) -> Self {
        let restore = Restore::new(plan.family);
        Self { restore, flushed: 0, sink, write_result: Ok(()), marks: Vec::new(), outline: Outline::default() }
    }

    fn parts(&mut self, plan: &RunPlan<'_>, progress: &CommitProgress) {
        for part in plan.parts.iter().skip(progress.sections) {
            self.part(plan, part, progress);
        }
    }

    pub(crate) fn text(&self) -> &str {
        self.restore.text()
    }

    pub(crate) fn outline(&self) -> &Outline {
        &self.outline
    }

    /// The operation of a line.
    pub(crate) fn operation(&self, line: usize) -> Option<Item> {
        let before = self.marks.partition_point(|(first, _)| *first <= line);
        self.marks.get(before.checked_sub(1)?)?.1
    }

    /// A line, counted from 1.
    pub(crate) fn line(&self, line: usize) -> Option<&str> {
        self.text().lines().nth(line.checked_sub(1)?)
    }

    /// The table of a line.
    pub(crate) fn table(&self, line: usize) -> Option<Table> {
        let name = self.text().lines().take(line).filter_map(|line| line.strip_prefix('*')).last()?;
        Table::ALL.into_iter().find(|table| table.name() == name)
    }

    fn flush(&mut self) {
        let Some(sink) = &mut self.sink else { return };
        if self.write_result.is_ok() {
            self.write_result = sink(self.restore.text());
        }
        self.outline.bytes += self.restore.text().len();
        self.flushed += self.restore.lines();
        self.restore.clear();
    }

    fn part(&mut self, plan: &RunPlan<'_>, part: &RunSection, progress: &CommitProgress) {
        let table = match part {
            RunSection::Of(table, _) => *table,
            RunSection::Ahead(_) | RunSection::Behind(_) => Table::Nat,
        };
        self.mark(None);
        self.restore.table(table);
        match part {
            RunSection::Ahead(items) => {
                self.declare(plan, items);
                self.fill(plan, table, items);
            }
            RunSection::Behind(items) => {
                self.declare(plan, items);
                self.remove(plan, items, progress);
            }
            RunSection::Of(_, steps) => {
                if let Some(work) = plan.work(table) {
                    self.table_steps(plan, table, work, *steps, progress);
                }
            }
        }
        self.mark(None);
        let line = self.flushed + self.restore.commit();
        self.outline.commits.push(line);
    }

    fn table_steps(&mut self, plan: &RunPlan<'_>, table: Table, work: &Work, steps: Steps, progress: &CommitProgress) {
        if steps.add() {
            self.declare(plan, &work.written);
        }
        if steps.remove() {
            self.declare(plan, &work.gone);
        }
        for (id, task) in &work.shared_chains {
            self.declare_shared_chain(*id, task, steps);
        }
        for (id, task) in &work.shared_chains {
            self.take(plan, *id, task, steps);
        }
        if steps.add() {
            self.fill(plan, table, &work.written);
            self.edit(plan, table, &work.edited);
        }
        for (id, task) in &work.shared_chains {
            self.put(plan, *id, task, steps);
        }
        if steps.remove() {
            self.remove(plan, &work.gone, progress);
            let chains: Vec<Item> = work.shared_chains.values().filter_map(|task| task.gone).collect();
            self.remove(plan, &chains, progress);
        }
    }

    fn mark(&mut self, item: Option<Item>) {
        if self.sink.is_some() {
            if self.restore.text().len() >= FLUSH_BYTES {
                self.flush();
            }
            return;
        }
        let line = self.restore.lines() + 1;
        if self.marks.last().is_none_or(|(_, last)| *last != item) {
            self.marks.push((line, item));
        }
    }

    // --- chains as a whole

    fn declare(&mut self, plan: &RunPlan<'_>, items: &[Item]) {
        for item in items {
            if let Some(id) = plan.chain(*item) {
                self.mark(Some(*item));
                self.restore.declare(id.name);
            }
        }
    }

    fn fill(&mut self, plan: &RunPlan<'_>, table: Table, items: &[Item]) {
        for item in items {
            if let Some(IptObject::Chain(id, ChainRules(rules))) = plan.object(*item) {
                self.mark(Some(*item));
                for rule in rules {
                    if plan.large && is_comment_implied(id.name, rule) {
                        self.restore.append_uncommented(id.name, rule);
                    } else {
                        self.restore.append(id.name, rule);
                    }
                }
                self.count(table, rules.len());
            }
        }
    }

    fn edit(&mut self, plan: &RunPlan<'_>, table: Table, edited: &[(Item, Vec<Edit>)]) {
        for (item, edits) in edited {
            let Some(id) = plan.chain(*item) else { continue };
            self.mark(Some(*item));
            let rules = plan.rules_of(*item);
            let text = |index: usize| {
                let mut text = String::new();
                if let Some(rule) = rules.get(index) {
                    if plan.large && is_comment_implied(id.name, rule) {
                        rule.print_uncommented(plan.family, &mut text);
                    } else {
                        rule.print(plan.family, &mut text);
                    }
                }
                text
            };
            for edit in edits {
                match *edit {
                    Edit::Replace { position, index } => self.restore.replace_text_at(id.name, position, &text(index)),
                    Edit::Insert { position, index } => self.restore.insert_text_at(id.name, position, &text(index)),
                    Edit::Append { index } => self.restore.append_text(id.name, &text(index)),
                    Edit::Delete { position } => self.restore.delete_at(id.name, position),
                };
            }
            self.count(table, edits.len());
        }
    }

    fn remove(&mut self, plan: &RunPlan<'_>, items: &[Item], progress: &CommitProgress) {
        for item in items {
            if let Some(id) = plan.chain(*item).filter(|id| !progress.all_stuck && !progress.stuck.contains(id)) {
                self.mark(Some(*item));
                self.restore.remove(id.name);
            }
        }
    }

    // --- places

    fn declare_shared_chain(&mut self, id: ChainId, task: &Task, steps: Steps) {
        let made = task.made.filter(|_| steps.add());
        let gone = task.gone.filter(|_| steps.remove());
        let fresh = task.fresh && steps.add();
        if fresh || gone.is_some() || task.rewrites(steps) {
            self.mark(made.or(gone));
            self.restore.declare(id.name);
        } else if made.is_some() {
            // Declaring it would flush it, and the kubelet may have created it just now.
            self.mark(made);
            self.restore.create(id.name);
        }
    }

    fn take(&mut self, plan: &RunPlan<'_>, id: ChainId, task: &Task, steps: Steps) {
        // A chain that is empty, or gets deleted, has no rules that go one by one.
        if task.rewrites(steps) {
            return;
        }
        let replaced = task.put.iter().filter(|_| steps.add());
        let taken = task.take.iter().filter(|item| steps.remove() && !plan.went_before(task, **item, steps));
        for item in replaced.chain(taken) {
            if let Some(lines) = plan.old(*item) {
                self.mark(Some(*item));
                for line in lines.iter() {
                    self.restore.delete_text(id.name, line);
                }
            }
        }
    }

    fn put(&mut self, plan: &RunPlan<'_>, id: ChainId, task: &Task, steps: Steps) {
        if task.rewrites(steps) {
            return self.rewrite(plan, id, task, steps);
        }
        if !steps.add() {
            return;
        }
        let is_jump = |item: &Item| matches!(owner_of(plan, *item), Some(RuleOwner::Jump(_)));
        if !task.fresh && task.put.first().is_some_and(is_jump) {
            return self.put_jumps(plan, id, task);
        }
        for item in &task.put {
            let Some((key, lines)) = plan.owned(*item) else { continue };
            self.mark(Some(*item));
            if task.fresh || is_last(key.owner) {
                for line in lines.iter() {
                    self.restore.append_text(id.name, line);
                }
            } else {
                for line in lines.iter().rev() {
                    self.restore.insert_text(id.name, line);
                }
            }
            self.count(id.table, lines.count());
        }
    }

    /// Inserts jumps at the top of a built-in chain, which has no other rules of ours, and above them those that belong there; not the one
    /// that the kubelet makes, too.
    fn put_jumps(&mut self, plan: &RunPlan<'_>, id: ChainId, task: &Task) {
        let position = |owner: RuleOwner| base::jump_position(&OwnedRulesKey { chain: id, owner });
        let touched = task.put.iter().chain(&task.take).filter_map(|item| owner_of(plan, *item));
        let touched: BTreeSet<RuleOwner> = touched.collect();
        let inserted = task.put.iter().filter_map(|item| Some((*item, plan.owned(*item)?)));
        let mut jumps: Vec<_> =
            inserted.map(|(item, (key, lines))| (base::jump_position(&key), lines, Some(item))).collect();
        let lowest = jumps.iter().map(|(position, ..)| *position).min().flatten();
        let stays = plan.mirror.shared_chain(id).into_iter().flat_map(|chain| chain.owned()).filter(|(owner, _)| {
            !touched.contains(owner) && **owner != RuleOwner::Jump(names::FIREWALL) && position(**owner) > lowest
        });
        jumps.extend(stays.map(|(owner, lines)| (position(*owner), lines.clone(), None)));
        jumps.sort_by_key(|(position, ..)| *position);
        for (_, lines, item) in jumps {
            self.mark(item);
            for line in lines.iter().rev() {
                if item.is_none() {
                    self.restore.delete_text(id.name, line);
                }
                self.restore.insert_text(id.name, line);
            }
            self.count(id.table, lines.count());
        }
    }

    /// Writes all rules of a shared chain anew.
    fn rewrite(&mut self, plan: &RunPlan<'_>, id: ChainId, task: &Task, steps: Steps) {
        let Some(chain) = plan.mirror.shared_chain(id) else { return };
        let owner_of = |item: &Item| owner_of(plan, *item);
        let gone: BTreeSet<RuleOwner> = task.take.iter().filter(|_| steps.remove()).filter_map(owner_of).collect();
        let changed: BTreeSet<RuleOwner> = task.put.iter().filter_map(owner_of).collect();
        let (mut last, mut others): (Vec<Item>, Vec<Item>) = (Vec::new(), Vec::new());
        for item in &task.put {
            let list = if owner_of(item).is_some_and(is_last) { &mut last } else { &mut others };
            list.push(*item);
        }
        let mut kept: Vec<_> = chain.owned().iter().filter(|(owner, _)| !changed.contains(owner)).collect();
        kept.retain(|(owner, _)| !gone.contains(owner));
        self.append_items(plan, id, &others);
        self.mark(None);
        for (_, lines) in &kept {
            for line in lines.iter() {
                self.restore.append_text(id.name, line);
            }
            self.count(id.table, lines.count());
        }
        self.append_items(plan, id, &last);
    }

    fn append_items(&mut self, plan: &RunPlan<'_>, id: ChainId, items: &[Item]) {
        for item in items {
            if let Some((_, lines)) = plan.owned(*item) {
                self.mark(Some(*item));
                for line in lines.iter() {
                    self.restore.append_text(id.name, line);
                }
                self.count(id.table, lines.count());
            }
        }
    }

    fn count(&mut self, table: Table, rules: usize) {
        if let Some(written) = self.outline.written.get_mut(at(table)) {
            *written += rules;
        }
    }
}

/// True if the comment of a rule adds nothing to the names in it.
fn is_comment_implied(chain: IptablesChainName, rule: &Rule) -> bool {
    match Class::of(chain) {
        Some(Class::Endpoint) => true,
        Some(Class::Cluster | Class::Local) => {
            matches!(rule.target, Target::Jump(to) if Class::of(to) == Some(Class::Endpoint))
        }
        _ => false,
    }
}

/// The owner of the rules that an operation writes or deletes in a shared chain.
fn owner_of(plan: &RunPlan<'_>, item: Item) -> Option<RuleOwner> {
    match plan.object(item) {
        Some(IptObject::OwnedRules(key, _)) => Some(key.owner),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
