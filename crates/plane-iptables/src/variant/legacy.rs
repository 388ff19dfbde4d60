//! The legacy variant (ip_tables): each table is one blob, read and replaced as a whole, without notifications of changes.

use std::collections::BTreeSet;
use std::io;
use std::task::Waker;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::iptables::{Table, Tool, ToolFailure};

use super::{Restored, TableChange, Variant};
use crate::mirror::Mirror;
use crate::object::{ChainId, IptKey};
use crate::read;
use crate::sort::Found;
use crate::watch::{ChainChanges, IptablesCommitLock, LegacyWatch, SIZES_INTERVAL};

/// One family's tables, with their last observed state.
#[derive(Debug)]
pub(super) struct Legacy {
    commit_lock: IptablesCommitLock,
    watch: LegacyWatch,
}

// === impl Legacy ===

impl Legacy {
    pub(super) fn new(commit_lock: IptablesCommitLock) -> Self {
        Self { commit_lock, watch: LegacyWatch::default() }
    }
}

impl Variant for Legacy {
    fn listen(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn changes(&mut self, family: Family) -> io::Result<ChainChanges> {
        self.watch.check(family)?;
        Ok(ChainChanges::default())
    }

    fn due(&mut self, now: Instant) -> BTreeSet<Table> {
        self.watch.due(now)
    }

    fn wake(&self, now: Instant) -> Option<Instant> {
        Some(now + SIZES_INTERVAL)
    }

    fn wake_by(&mut self, _: Family, _: &Waker) {}

    fn take_changed(&mut self, tables: &BTreeSet<Table>) -> BTreeSet<Table> {
        self.watch.take(tables)
    }

    fn put_back(&mut self, tables: BTreeSet<Table>) {
        self.watch.suspect(tables);
    }

    fn was_read(&mut self, tables: &BTreeSet<Table>, took: Duration) {
        self.watch.read(tables, took);
    }

    fn tables(&self, tool: &Tool, wanted: &[Table]) -> Result<Found, ToolFailure> {
        read::each_table(tool, wanted, |sorter, table| read::save(tool, sorter, table, |each| tool.save(table, each)))
    }

    /// Reads whole tables, since the tool fetches them in any case.
    fn chains(&self, tool: &Tool, wanted: &BTreeSet<ChainId>) -> Result<Found, ToolFailure> {
        read::chains_in_tables(wanted, |tables| self.tables(tool, tables))
    }

    /// Returns none, since the tool can print every rule.
    fn lost(&self, _: &Tool, _: &Mirror) -> Result<Vec<IptKey>, ToolFailure> {
        Ok(Vec::new())
    }

    fn run(&mut self, _: usize, restore: &mut dyn FnMut() -> Restored) -> io::Result<Restored> {
        // Without the commit lock, a family would wait for the other's lock and report it as held by another program.
        let _guard = self.commit_lock.take();
        Ok(restore())
    }

    fn account(&mut self, family: Family, change: Option<&TableChange<'_>>) -> io::Result<()> {
        match change {
            Some(change) => self.watch.account(family, change.before, change.after, change.foreign_rules),
            None => self.watch.check(family),
        }
    }
}
