//! Abstracts the differences of the two variants of the tool: reading tables, accounting for our runs, detecting foreign changes.

mod legacy;
mod nft;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::task::Waker;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::iptables::{Backend, RestoreOutcome, Table, Tool, ToolFailure};

use crate::encode::Outline;
use crate::mirror::Mirror;
use crate::object::{ChainId, IptKey};
use crate::sort::Found;
use crate::watch::{ChainChanges, IptablesCommitLock};

use legacy::Legacy;
use nft::Nft;

/// Result of a run of `iptables-restore`, with a summary of its input.
pub(crate) type Restored = (Result<RestoreOutcome, ToolFailure>, Outline);

/// One of the two variants, for one family. Engines of one process run the tool one after another.
pub(crate) trait Variant: fmt::Debug + Send {
    /// Subscribes to notifications, if the variant has them.
    fn listen(&mut self) -> io::Result<()>;

    /// Foreign changes since the last call. Waits while the other family runs the tool.
    fn changes(&mut self, family: Family) -> io::Result<ChainChanges>;

    /// Tables that must be read, since they may have foreign changes.
    fn due(&mut self, now: Instant) -> BTreeSet<Table>;

    /// Time of the next check for foreign changes; `None` if notifications wake the engine.
    fn wake(&self, now: Instant) -> Option<Instant>;

    /// Sets what notifications wake, if the variant has them.
    fn wake_by(&mut self, family: Family, waker: &Waker);

    /// Takes those of these tables that have unspecified foreign changes: they must be read.
    fn take_changed(&mut self, tables: &BTreeSet<Table>) -> BTreeSet<Table>;

    /// Returns tables that could not be read.
    fn put_back(&mut self, tables: BTreeSet<Table>);

    /// Notes the duration of a read of these tables.
    fn was_read(&mut self, tables: &BTreeSet<Table>, took: Duration);

    /// Reads tables as a whole.
    fn tables(&self, tool: &Tool, wanted: &[Table]) -> Result<Found, ToolFailure>;

    /// Reads these chains, each as a whole.
    fn chains(&self, tool: &Tool, wanted: &BTreeSet<ChainId>) -> Result<Found, ToolFailure>;

    /// Keys of chains of units that are missing or empty, determined without the tool, which can't print their rules.
    fn lost(&self, tool: &Tool, mirror: &Mirror) -> Result<Vec<IptKey>, ToolFailure>;

    /// Runs the tool with an input of about this number of lines. Its changes are not reported as foreign.
    fn run(&mut self, lines: usize, restore: &mut dyn FnMut() -> Restored) -> io::Result<Restored>;

    /// Accounts for a commit that made this change; `None` if nothing or an unknown part of it is in force.
    fn account(&mut self, family: Family, change: Option<&TableChange<'_>>) -> io::Result<()>;
}

/// Change of the tables by a commit.
#[derive(Debug)]
pub(crate) struct TableChange<'a> {
    /// number of our kernel entries in each table before
    pub(crate) before: [i64; Table::ALL.len()],
    /// the tables after it
    pub(crate) after: &'a Mirror,
    /// number of foreign rules that it deleted from each table
    pub(crate) foreign_rules: [i64; Table::ALL.len()],
}

/// Creates the variant of a tool.
pub(crate) fn of(tool: &Tool, commit_lock: IptablesCommitLock) -> Box<dyn Variant> {
    match tool.backend() {
        Backend::Nft => Box::new(Nft::new(commit_lock)),
        Backend::Legacy => Box::new(Legacy::new(commit_lock)),
    }
}

/// The line at which the tool failed.
pub(crate) fn line_of(failure: &ToolFailure) -> Option<usize> {
    match failure {
        ToolFailure::Refused { line, .. } | ToolFailure::Exhausted { line, .. } => *line,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failure_at_a_line_tells_one() {
        let (tool, text) = (|| "iptables-restore".to_owned(), || "line 7 failed".to_owned());
        let refused =
            |line| ToolFailure::Refused { tool: tool(), line, lines: vec![7, 9], text: text(), missing: false };
        for (failure, wanted) in [
            (refused(Some(7)), Some(7)),
            (refused(None), None),
            (ToolFailure::Exhausted { tool: tool(), line: Some(12), text: text() }, Some(12)),
            // Of the output, not of the input.
            (ToolFailure::UnexpectedOutput { tool: tool(), line: 7, text: text() }, None),
            (ToolFailure::Killed { tool: tool(), signal: 9 }, None),
        ] {
            assert_eq!(line_of(&failure), wanted, "{failure:?}");
        }
    }
}
