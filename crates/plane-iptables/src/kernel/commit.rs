//! Commits a batch with one run of the tool, and determines which of its operations are in force after a failed run.

use std::collections::BTreeSet;
use std::io;

use ferry_kernel::iptables::{Match, Stdin, Table, ToolFailure};
use ferry_kernel::nfacct;
use ferry_plane::{Applied, Batch, CommitError, CommitFailure, Object as _};

use super::IptablesKernel;
use crate::encode::{CommitProgress, Outline, Script, Whole};
use crate::knowledge::Knowledge;
use crate::mirror::at;
use crate::object::{ChainId, IptKey, IptObject};
use crate::plan::RunPlan;
use crate::variant::{Restored, TableChange, line_of};
use crate::verdict::{of_io, of_script};
use crate::watch::all_entries;

/// If more chains than this can't be deleted since foreign rules jump to them, no chain is deleted.
const STUCK: usize = 32;

/// The part of a batch that is in force after a commit.
#[derive(Debug)]
enum Written {
    Nothing,
    /// all of it; these chains are empty, but could not be removed
    All {
        stuck: BTreeSet<ChainId>,
    },
    /// the operations of the sections before the one that failed
    Part {
        batch: Batch<IptObject>,
        stuck: BTreeSet<ChainId>,
    },
    /// the tool ended without naming the section that failed
    Unknown,
}

// === impl Written ===

impl Written {
    /// After a run that failed, and committed so many sections before that.
    fn part(plan: &RunPlan<'_>, progress: &CommitProgress, sections: usize) -> Self {
        let items = plan.items_in(sections);
        if items.is_empty() {
            return Self::Nothing;
        }
        let batch = plan.batch_of(&items);
        Self::Part { stuck: progress.stuck_in(&batch), batch }
    }

    /// The part of a batch that is in force, and the empty chains that could not be removed; `None`: nothing, or unknown.
    fn in_force<'a>(&'a self, whole: &'a Batch<IptObject>) -> Option<(&'a Batch<IptObject>, &'a BTreeSet<ChainId>)> {
        match self {
            Self::All { stuck } => Some((whole, stuck)),
            Self::Part { batch, stuck } => Some((batch, stuck)),
            Self::Nothing | Self::Unknown => None,
        }
    }

    fn applied(&self) -> Applied {
        match self {
            Self::Nothing => Applied::Nothing,
            Self::All { .. } | Self::Part { .. } | Self::Unknown => Applied::Unknown,
        }
    }
}

// === impl IptablesKernel ===

impl IptablesKernel {
    /// Writes a batch. After an error the mirror has what is in force of it, or is unknown.
    pub(super) fn write(&mut self, batch: &Batch<IptObject>) -> Result<(), CommitFailure> {
        self.note_changes()?;
        // Chains of one unit are flushed or deleted whatever they hold; only edits depend on their rules.
        let tables = self.variant.take_changed(&shared_chains(batch).map(|chain| chain.table).collect());
        self.look_closer(tables)?;
        let Some(mut known) = self.knowledge.take() else {
            let object = "what others have done, or a run that did not end well".to_owned();
            return Err(CommitError::Drifted { object }.into());
        };
        // Rules in these would be there twice, or be missing when they are to be deleted: another writer may have made the same
        // change.
        if let Some(chain) = shared_chains(batch).find(|chain| known.possible_drift.stale_chains.contains(chain)) {
            self.knowledge = Knowledge::Known(known);
            return Err(CommitError::Drifted { object: format!("{} {}", chain.table, chain.name) }.into());
        }
        let plan = RunPlan::new(self.family(), self.tool().backend(), batch, &known.mirror, self.edits);
        let edited = plan.has_edits();
        let (mut result, written) = self.write_plan(&plan, known.fresh);
        // A failed edit is drift or a rejected rule: the next attempt, without edits, finds out.
        self.edits = result.is_ok() || self.edits && !edited;
        let before = all_entries(&known.mirror);
        if let Some((batch, stuck)) = written.in_force(batch) {
            self.wrote = true;
            known.written(self.family(), batch, stuck);
            if edited && result.is_ok() {
                // A foreign change may have shifted the positions: the rule that jumps there is left.
                known.possible_drift.unreported.extend(stuck.iter().copied().map(IptKey::Chain));
            }
        }
        let foreign_rules = written.in_force(batch).map(|(batch, _)| foreign_rules(batch));
        let change = foreign_rules.map(|foreign_rules| TableChange { before, after: &known.mirror, foreign_rules });
        let accounted = self.variant.account(self.family(), change.as_ref());
        if !matches!(written, Written::Unknown) {
            self.knowledge = Knowledge::Known(known);
        }
        self.count_rules();
        result = result.and(accounted.map_err(of_io));
        result.map_err(|error| CommitFailure { error, applied: written.applied() })
    }

    /// Writes a plan. Returns its error and, in either case, the part of the batch that is in force.
    fn write_plan(&mut self, plan: &RunPlan<'_>, fresh: bool) -> (Result<(), CommitError>, Written) {
        let (mut progress, mut counted) = (CommitProgress::default(), false);
        if plan.parts.is_empty() {
            return (Ok(()), Written::Nothing);
        }
        let mut written = Table::ALL.map(|_| 0);
        loop {
            let write = |stdin: &mut Stdin<'_>| Script::stream(plan, &progress, &mut |piece| stdin.write(piece));
            let (result, outline) = self.run(plan.size(), write);
            for (count, table) in written.iter_mut().zip(Table::ALL) {
                *count += outline.written(table);
            }
            let Err(failure) = result else { break };
            self.counters.failed(self.wrote);
            let script = Script::new(plan, &progress);
            let committed = line_of(&failure).map(|line| script.outline().sections_before(line));
            let stuck = stuck_at(plan, &script, &failure);
            if let Some(committed) = committed.filter(|_| !stuck.is_empty() && !progress.all_stuck) {
                // They are emptied, and stay until no foreign rule jumps to them.
                progress.sections += committed;
                progress.stuck.extend(stuck);
                progress.all_stuck = progress.stuck.len() > STUCK;
                continue;
            }
            // A counter that a rule names may have gone with a flush.
            if let Some(committed) = committed.filter(|_| !std::mem::replace(&mut counted, true))
                && make_counters(plan.batch)
            {
                progress.sections += committed;
                continue;
            }
            let written = in_force(plan, &progress, &script, &failure, committed);
            let is_missing = |id: ChainId| matches!(self.tool().list(id.table, id.name, &mut |_| {}), Ok(false));
            return (Err(of_script(failure, &is_missing, plan, &script, fresh)), written);
        }
        for (count, table) in written.iter().zip(Table::ALL) {
            self.counters.set_written(table, *count);
        }
        (Ok(()), Written::All { stuck: progress.stuck_in(plan.batch) })
    }

    /// Runs the tool with a text of about so many lines.
    fn run(&mut self, lines: usize, mut write: impl FnMut(&mut Stdin<'_>) -> io::Result<Outline>) -> Restored {
        let mut restore = || {
            let mut outline = Outline::default();
            let result = self.restorer.restore_by(&mut |stdin| write(stdin).map(|of| outline = of));
            (result, outline)
        };
        let done = self.variant.run(lines, &mut restore);
        let (result, outline) = done.unwrap_or_else(|error| {
            (Err(ToolFailure::Io { tool: "iptables-restore".to_owned(), error }), Outline::default())
        });
        self.counters.ran(outline.bytes);
        match &result {
            Ok(run) => {
                self.counters.waited(run.lock_wait);
                if let Some(time) = run.gave_up {
                    tracing::info!(
                        family = %self.tool().family(),
                        retry_seconds = time.as_secs(),
                        "iptables-restore confirms no input within a second, starting it for each change, which is slower"
                    );
                }
            }
            Err(ToolFailure::Locked { bound, .. }) => self.counters.waited(*bound),
            Err(_) => {}
        }
        (result, outline)
    }
}

/// A run that failed in a section leaves the sections before it in force.
fn in_force(
    plan: &RunPlan<'_>,
    progress: &CommitProgress,
    script: &Whole,
    failure: &ToolFailure,
    committed: Option<usize>,
) -> Written {
    let committed = match failure {
        // Not run, or nothing read of what it was given.
        ToolFailure::Missing { .. }
        | ToolFailure::TooOld { .. }
        | ToolFailure::NoPermission { .. }
        | ToolFailure::NoLockFile { .. }
        | ToolFailure::Locked { .. } => 0,
        ToolFailure::Refused { .. } | ToolFailure::NoTable { .. } | ToolFailure::Exhausted { .. } => match committed {
            Some(committed) => committed,
            None if script.outline().sections() == 1 => 0,
            None => return Written::Unknown,
        },
        ToolFailure::TimedOut { .. }
        | ToolFailure::Killed { .. }
        | ToolFailure::UnexpectedOutput { .. }
        | ToolFailure::Io { .. } => {
            return Written::Unknown;
        }
    };
    Written::part(plan, progress, progress.sections + committed)
}

/// Makes the counters that rules of a batch name, and that may be there; false if there are none.
fn make_counters(batch: &Batch<IptObject>) -> bool {
    let rules = batch.create.iter().chain(&batch.replace).flat_map(|object| match object {
        IptObject::Chain(_, rules) => &*rules.0,
        IptObject::OwnedRules(_, rules) => rules,
        IptObject::SharedChain(_)
        | IptObject::SourceSet(..)
        | IptObject::RouteLocalnet
        | IptObject::ForeignRule(..) => &[],
    });
    let names: BTreeSet<&str> = rules
        .flat_map(|rule| &rule.matches)
        .filter_map(|each| match each {
            Match::Account(name) => Some(&**name),
            _ => None,
        })
        .collect();
    // If one can't be created, the next run fails with the same error.
    names.iter().for_each(|name| drop(nfacct::create(name)));
    !names.is_empty()
}

/// The chains that can't be deleted since foreign rules jump to them.
fn stuck_at(plan: &RunPlan<'_>, script: &Whole, failure: &ToolFailure) -> Vec<ChainId> {
    let ToolFailure::Refused { lines, .. } = failure else { return Vec::new() };
    let removes = |line: &&usize| script.line(**line).is_some_and(|line| line.starts_with("-X "));
    let items = lines.iter().filter(removes).filter_map(|line| script.operation(*line));
    items.filter_map(|item| plan.chain(item)).collect()
}

/// The keys of all operations of a batch.
fn keys(batch: &Batch<IptObject>) -> impl Iterator<Item = IptKey> {
    batch.create.iter().chain(&batch.replace).chain(&batch.delete).map(IptObject::key)
}

/// The chains in which a batch adds or removes single rules.
fn shared_chains(batch: &Batch<IptObject>) -> impl Iterator<Item = ChainId> {
    keys(batch).filter_map(|key| key.shared_chain())
}

/// Number of foreign rules that a batch deletes from each table.
fn foreign_rules(batch: &Batch<IptObject>) -> [i64; 3] {
    let mut foreign_rules = [0; 3];
    for object in &batch.delete {
        if let IptObject::ForeignRule(id, _) = object
            && let Some(count) = foreign_rules.get_mut(at(id.table))
        {
            *count += 1;
        }
    }
    foreign_rules
}
