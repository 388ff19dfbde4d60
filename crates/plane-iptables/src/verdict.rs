//! What a failure of the tool means for the engine.

use std::collections::BTreeSet;
use std::io;

use ferry_kernel::iptables::{ChainName, Failure, Tool};
use ferry_plane::{CommitError, Object as _, Op};

use crate::encode::Script;
use crate::object::{ChainId, EntryKey, IptObject, Owner};
use crate::plan::{Item, Plan};

/// What the tool said to a line that it refused.
struct Refusal<'a> {
    plan: &'a Plan<'a>,
    script: &'a Script,
    line: usize,
    text: &'a str,
    missing: bool,
}

/// A failure where nothing was refused.
pub(crate) fn of_failure(failure: Failure) -> CommitError {
    match failure {
        // Whoever asks has to know that there may be something all the same.
        Failure::NoPermission { .. } => CommitError::Unusable(io::Error::new(io::ErrorKind::PermissionDenied, failure)),
        Failure::Missing { .. } | Failure::TooOld { .. } | Failure::NoTable { .. } | Failure::NoLockFile { .. } => {
            CommitError::Unusable(io::Error::other(failure))
        }
        Failure::Locked { .. }
        | Failure::TimedOut { .. }
        | Failure::Killed { .. }
        | Failure::Garbage { .. }
        | Failure::Exhausted { .. }
        | Failure::Refused { .. }
        | Failure::Io { .. } => CommitError::Busy(io::Error::other(failure)),
    }
}

/// What a failure to write this script means.
pub(crate) fn of_script(failure: Failure, tool: &Tool, plan: &Plan<'_>, script: &Script) -> CommitError {
    match failure {
        Failure::Refused { line: None, .. } => CommitError::Refused(Vec::new()),
        Failure::Refused { line: Some(line), text, missing, .. } => {
            Refusal { plan, script, line, text: &text, missing }.verdict(tool)
        }
        other => of_failure(other),
    }
}

// === impl Refusal ===

impl Refusal<'_> {
    fn verdict(&self, tool: &Tool) -> CommitError {
        let line = self.script.line(self.line).unwrap_or_default();
        let item = self.script.operation(self.line);
        match (line.split(' ').next().unwrap_or_default(), item) {
            ("-A" | "-I", Some(item)) if !self.lacks(tool, line) => self.refused(item),
            ("COMMIT", _) => self.of_section(),
            _ => self.drifted(item),
        }
    }

    fn refused(&self, item: Item) -> CommitError {
        if let Some(IptObject::Entry(EntryKey { owner: Owner::Jump(_), .. }, _)) = self.plan.object(item) {
            // The kernel blames what leads from a hook to a rule that is not for this hook, whosever it is.
            return CommitError::Refused(Vec::new());
        }
        CommitError::Refused(vec![(item.op, item.index, self.error())])
    }

    fn error(&self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, self.text.to_owned())
    }

    fn drifted(&self, item: Option<Item>) -> CommitError {
        let object = item.and_then(|item| self.plan.object(item)).map(|object| object.key().to_string());
        CommitError::Drifted { object: object.unwrap_or_else(|| self.text.to_owned()) }
    }

    /// Nothing is wrong with any line, but with all of them together. Where a chain is missing, either it was there before,
    /// or the rules that lead to it are wrong.
    fn of_section(&self) -> CommitError {
        let quoted = self.text.split('\'').nth(1).and_then(ChainName::new);
        let (Some(name), true) = (quoted, self.missing) else { return CommitError::Refused(Vec::new()) };
        let Some(table) = self.script.table(self.line) else { return CommitError::Refused(Vec::new()) };
        let id = ChainId { table, name };
        if self.plan.mirror.chain(id).is_some() || self.plan.mirror.place(id).is_some() {
            return CommitError::Drifted { object: name.to_string() };
        }
        let leads = format!("-j {name}");
        let lines = self.script.text().lines().zip(1..).filter(|(line, _)| line.ends_with(&leads));
        let items: BTreeSet<Item> = lines.filter_map(|(_, line)| self.script.operation(line)).collect();
        let made = |item: &Item| item.op != Op::Delete;
        CommitError::Refused(items.into_iter().filter(made).map(|item| (item.op, item.index, self.error())).collect())
    }

    /// Whether the chain of a rule, or the one that it leads to, was there and is no more.
    fn lacks(&self, tool: &Tool, line: &str) -> bool {
        let Some(table) = self.script.table(self.line) else { return false };
        let mut words = line.split(' ').skip(1);
        let place = words.next().and_then(ChainName::new);
        let target = line.rsplit_once(" -j ").and_then(|(_, target)| ChainName::new(target));
        [place, target].into_iter().flatten().any(|name| {
            let id = ChainId { table, name };
            let remembered = self.plan.mirror.chain(id).is_some() || self.plan.mirror.place(id).is_some();
            remembered && matches!(tool.list(table, name, &mut |_| {}), Ok(false))
        })
    }
}
