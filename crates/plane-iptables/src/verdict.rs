//! Maps failures of the tool to the engine's errors.

use std::collections::BTreeSet;
use std::io;

use ferry_kernel::errno::ErrorClass;
use ferry_kernel::iptables::{IptablesChainName, Rule, Target, ToolFailure};
use ferry_plane::{CommitError, Object as _, Op};

use crate::encode::Whole;
use crate::object::{ChainId, IptObject};
use crate::plan::{Item, RunPlan};

/// The tool's error for a line that it refused.
struct RefusedLine<'a> {
    plan: &'a RunPlan<'a>,
    script: &'a Whole,
    is_missing: &'a dyn Fn(ChainId) -> bool,
    /// true if everything has just been read: a reference to a missing chain is an error in the batch
    fresh: bool,
    line: usize,
    /// this line, and others that were refused with it
    lines: &'a [usize],
    text: &'a str,
    missing: bool,
}

/// Maps a failure without a refused line.
pub(crate) fn of_failure(failure: ToolFailure) -> CommitError {
    match failure {
        // The error kind distinguishes this from "nothing is there": rules may exist.
        ToolFailure::NoPermission { .. } => {
            CommitError::Unusable(io::Error::new(io::ErrorKind::PermissionDenied, failure))
        }
        ToolFailure::Missing { .. }
        | ToolFailure::TooOld { .. }
        | ToolFailure::NoTable { .. }
        | ToolFailure::NoLockFile { .. } => CommitError::Unusable(io::Error::other(failure)),
        ToolFailure::Exhausted { .. } => CommitError::Resources(io::Error::other(failure)),
        ToolFailure::Locked { .. }
        | ToolFailure::TimedOut { .. }
        | ToolFailure::Killed { .. }
        | ToolFailure::UnexpectedOutput { .. }
        | ToolFailure::Refused { .. }
        | ToolFailure::Io { .. } => CommitError::Busy(io::Error::other(failure)),
    }
}

/// Maps an error of a socket.
pub(crate) fn of_io(error: io::Error) -> CommitError {
    if ErrorClass::of(&error).is_unusable() { CommitError::Unusable(error) } else { CommitError::Busy(error) }
}

/// Maps a failure of a run with this script. `is_missing` asks the tool whether a chain is missing.
pub(crate) fn of_script(
    failure: ToolFailure,
    is_missing: &dyn Fn(ChainId) -> bool,
    plan: &RunPlan<'_>,
    script: &Whole,
    fresh: bool,
) -> CommitError {
    match failure {
        ToolFailure::Refused { line: Some(line), lines, text, missing, .. } => {
            RefusedLine { plan, script, is_missing, fresh, line, lines: &lines, text: &text, missing }.verdict()
        }
        // A set that a rule names is missing, or the tool can't ask for it; which rule isn't said.
        ToolFailure::Refused { line: None, text, .. } if text.contains("ipset") => CommitError::Refused(Vec::new()),
        // A script that is too large for the time or the memory that a run gets: in smaller parts, if this comes again.
        failure @ (ToolFailure::TimedOut { .. } | ToolFailure::Killed { .. }) => {
            CommitError::Resources(io::Error::other(failure))
        }
        other => of_failure(other),
    }
}

// === impl RefusedLine ===

impl RefusedLine<'_> {
    fn verdict(&self) -> CommitError {
        let line = self.script.line(self.line).unwrap_or_default();
        let item = self.script.operation(self.line);
        let mut words = line.split(' ');
        let command = words.next().unwrap_or_default();
        // An edit of a position that is missing. If the rule itself is invalid, the next attempt shows it: it makes no edits.
        let is_edit = words.nth(1).is_some_and(|word| word.parse::<usize>().is_ok());
        match (command, item) {
            ("-A" | "-I", Some(item)) if !is_edit && !self.lacks(line) => self.refused(item),
            ("COMMIT", _) => self.of_section(),
            _ => self.drifted(item),
        }
    }

    /// The kernel also rejects jumps to a rule that is invalid in the hook, whichever unit owns that rule. So rules that jump are
    /// not blamed; if there are no others, the culprit is unknown.
    fn refused(&self, item: Item) -> CommitError {
        let adds = |line: &str| line.starts_with("-A ") || line.starts_with("-I ");
        let others = self.lines.iter().filter(|line| self.script.line(**line).is_some_and(adds));
        let others = others.filter_map(|line| self.script.operation(*line));
        let items: BTreeSet<Item> = others.chain([item]).filter(|item| !self.leads_on(*item)).collect();
        CommitError::Refused(items.into_iter().map(|item| (item.op, item.index, self.error())).collect())
    }

    fn leads_on(&self, item: Item) -> bool {
        let jumps = |rule: &Rule| matches!(rule.target, Target::Jump(_));
        matches!(self.plan.object(item), Some(IptObject::OwnedRules(_, rules)) if rules.iter().any(jumps))
    }

    fn error(&self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, self.text.to_owned())
    }

    fn drifted(&self, item: Option<Item>) -> CommitError {
        let object = item.and_then(|item| self.plan.object(item)).map(|object| object.key().to_string());
        CommitError::Drifted { object: object.unwrap_or_else(|| self.text.to_owned()) }
    }

    /// The kernel refused a section as a whole, not a line. If a chain is missing, either it has been deleted meanwhile, or the
    /// rules that jump to it are wrong.
    fn of_section(&self) -> CommitError {
        let quoted = self.text.split('\'').nth(1).and_then(IptablesChainName::new);
        let (Some(name), true) = (quoted, self.missing) else { return CommitError::Refused(Vec::new()) };
        let Some(table) = self.script.table(self.line) else { return CommitError::Refused(Vec::new()) };
        let id = ChainId { table, name };
        if self.remembers(id) {
            return CommitError::Drifted { object: name.to_string() };
        }
        let leads = format!("-j {name}");
        let lines = self.script.text().lines().zip(1..).filter(|(line, _)| line.ends_with(&leads));
        let items: BTreeSet<Item> = lines.filter_map(|(_, line)| self.script.operation(line)).collect();
        let made = |item: &Item| item.op != Op::Delete;
        CommitError::Refused(items.into_iter().filter(made).map(|item| (item.op, item.index, self.error())).collect())
    }

    /// True if a chain may have existed until a moment ago.
    fn remembers(&self, id: ChainId) -> bool {
        !self.fresh || self.plan.mirror.chain(id).is_some() || self.plan.mirror.shared_chain(id).is_some()
    }

    /// True if the chain of a rule, or the one that it jumps to, existed and is missing now.
    fn lacks(&self, line: &str) -> bool {
        let Some(table) = self.script.table(self.line) else { return false };
        let mut words = line.split(' ').skip(1);
        let chain = words.next().and_then(IptablesChainName::new);
        let target = line.rsplit_once(" -j ").and_then(|(_, target)| IptablesChainName::new(target));
        [chain, target].into_iter().flatten().any(|name| {
            let id = ChainId { table, name };
            self.remembers(id) && (self.is_missing)(id)
        })
    }
}

#[cfg(test)]
mod tests;
