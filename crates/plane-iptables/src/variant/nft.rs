//! The nft variant: chains and rules of nf_tables, with netlink notifications of changes. Tables may hold rules that the tool
//! can't print.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::task::Waker;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::iptables::nft::IptablesChain;
use ferry_kernel::iptables::{self, IptablesChainName, Rule, Table, Tool, ToolFailure};

use super::{Restored, TableChange, Variant, line_of};
use crate::base;
use crate::mirror::{ChainOwnership, Mirror, few_chains};
use crate::names::Class;
use crate::object::{ChainId, IptKey, IptObject, OwnedRulesKey};
use crate::read;
use crate::sort::{Found, Sorter};
use crate::watch::{ChainChanges, IptablesCommitLock};

/// Most chains that are read one by one; beyond that, reading the whole table is cheaper.
const SINGLE_READS: usize = 16;

/// Timeout of the tool for printing a table.
const PATIENCE: Duration = Duration::from_secs(20);

/// With more chains than this in all tables, printing a table takes longer than printing its few chains one by one: the tool
/// fetches all tables first.
const MANY: usize = 2000;

/// Most chains of ours whose rules are listed one by one.
const LISTED: usize = 300;

/// Part of the tool's error for a table or chain with rules that it can't print.
const HIDDEN: &str = "is incompatible";

/// One family's tables; the listener is shared by the process.
#[derive(Debug)]
pub(super) struct Nft {
    commit_lock: IptablesCommitLock,
}

// === impl Nft ===

impl Nft {
    pub(super) fn new(commit_lock: IptablesCommitLock) -> Self {
        Self { commit_lock }
    }
}

impl Variant for Nft {
    fn listen(&mut self) -> io::Result<()> {
        self.commit_lock.take().join()
    }

    fn changes(&mut self, family: Family) -> io::Result<ChainChanges> {
        self.commit_lock.take().news(family)
    }

    /// None: the notifications name the chains.
    fn due(&mut self, _: Instant) -> BTreeSet<Table> {
        BTreeSet::new()
    }

    fn wake(&self, _: Instant) -> Option<Instant> {
        None
    }

    fn wake_by(&mut self, family: Family, waker: &Waker) {
        self.commit_lock.take().wake_by(family, waker);
    }

    /// Returns none, since notifications name the chains.
    fn take_changed(&mut self, _: &BTreeSet<Table>) -> BTreeSet<Table> {
        BTreeSet::new()
    }

    fn put_back(&mut self, _: BTreeSet<Table>) {}

    fn was_read(&mut self, _: &BTreeSet<Table>, _: Duration) {}

    fn tables(&self, tool: &Tool, wanted: &[Table]) -> Result<Found, ToolFailure> {
        match saved(tool, wanted) {
            Err(ToolFailure::UnexpectedOutput { text, .. }) if text.contains(HIDDEN) => singly(tool, wanted),
            Err(ToolFailure::TimedOut { .. }) => singly(tool, wanted),
            found => found,
        }
    }

    fn chains(&self, tool: &Tool, wanted: &BTreeSet<ChainId>) -> Result<Found, ToolFailure> {
        if wanted.len() > SINGLE_READS {
            return read::chains_in_tables(wanted, |tables| self.tables(tool, tables));
        }
        let mut sorter = Sorter::new(tool.family());
        for chain in wanted {
            list(tool, &mut sorter, *chain)?;
        }
        Ok(sorter.found())
    }

    fn lost(&self, tool: &Tool, mirror: &Mirror) -> Result<Vec<IptKey>, ToolFailure> {
        let failed = |error| ToolFailure::Io { tool: read::saver(tool), error };
        let chains = iptables::nft::chains(tool.family()).map_err(failed)?;
        let there: HashMap<(Table, &str), &IptablesChain> =
            chains.iter().map(|chain| ((chain.table, chain.name.as_str()), chain)).collect();
        let mut lost = Vec::new();
        for (id, rules) in mirror.chains() {
            let is_whole = match there.get(&(id.table, id.name.as_str())) {
                Some(_) if rules == 0 => true,
                Some(chain) => match iptables::nft::has_rules(tool.family(), chain) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                    has_rules => has_rules.map_err(failed)?,
                },
                None => false,
            };
            if !is_whole {
                lost.push(IptKey::Chain(id));
            }
        }
        Ok(lost)
    }

    fn run(&mut self, lines: usize, restore: &mut dyn FnMut() -> Restored) -> io::Result<Restored> {
        let committed = |(result, outline): &Restored| match result {
            Ok(_) => Some(outline.sections()),
            Err(failure) => line_of(failure).map(|line| outline.sections_before(line)),
        };
        self.commit_lock.take().around(lines, restore, committed)
    }

    /// Does nothing, since the generation distinguishes our changes from foreign ones.
    fn account(&mut self, _: Family, _: Option<&TableChange<'_>>) -> io::Result<()> {
        Ok(())
    }
}

/// Reads tables from the output of iptables-save.
fn saved(tool: &Tool, wanted: &[Table]) -> Result<Found, ToolFailure> {
    read::each_table(tool, wanted, |sorter, table| {
        if table != Table::Nat && sorter.chains_seen() > MANY {
            return few_chains(table).try_for_each(|chain| list(tool, sorter, chain));
        }
        read::save(tool, sorter, table, |each| tool.save_within(PATIENCE, table, each))
    })
}

/// Reads the chains one by one: for tables that the tool can't print, because it doesn't terminate while others keep writing, or
/// because one rule, in any chain, was made by another tool than iptables. With many chains, the rules of service chains are not
/// read: writing them anew takes less time.
fn singly(tool: &Tool, wanted: &[Table]) -> Result<Found, ToolFailure> {
    let chains =
        iptables::nft::chains(tool.family()).map_err(|error| ToolFailure::Io { tool: read::saver(tool), error })?;
    let named = |chain: &IptablesChain| {
        let id = ChainId { table: chain.table, name: IptablesChainName::new(&chain.name)? };
        (wanted.contains(&chain.table) && ChainOwnership::of(id).is_some()).then_some(id)
    };
    let ids: Vec<ChainId> = chains.iter().filter_map(named).collect();
    let unreadable = ids.len() > LISTED;
    let mut sorter = Sorter::new(tool.family());
    for id in &ids {
        if unreadable && Class::of(id.name).is_some_and(Class::is_of_service) {
            sorter.begin(id.table);
            sorter.hidden(id.name, Vec::new());
        } else {
            list(tool, &mut sorter, *id)?;
        }
    }
    Ok(Found { unreadable, ..sorter.found() })
}

fn list(tool: &Tool, sorter: &mut Sorter, chain: ChainId) -> Result<(), ToolFailure> {
    sorter.begin(chain.table);
    let mut other = None;
    match tool.list(chain.table, chain.name, &mut |line| read::sort(sorter, line, &mut other)) {
        Err(ToolFailure::Refused { text, .. }) if text.contains(HIDDEN) => {
            sorter.hidden(chain.name, entries_of(tool, chain)?);
        }
        listed => drop(listed?),
    }
    sorter.end();
    other.map_or(Ok(()), |other| Err(read::unexpected(tool, other)))
}

/// Our rules in a chain that the tool can't print and that others use too. Those of a shared chain of ours are the ones that were known
/// before: it is written anew.
fn entries_of(tool: &Tool, chain: ChainId) -> Result<Vec<(OwnedRulesKey, Rule)>, ToolFailure> {
    let mut entries = base::JUMPS.iter().map(|jump| (jump.key(), jump.rule())).collect::<Vec<_>>();
    if let IptObject::OwnedRules(key, rules) = base::guard() {
        entries.extend(rules.into_iter().map(|rule| (key, rule)));
    }
    entries.retain(|(key, _)| key.chain == chain);
    let mut found = Vec::new();
    for (key, rule) in entries {
        let mut text = String::new();
        rule.print(tool.family(), &mut text);
        if tool.check(chain.table, chain.name, &text)? {
            found.push((key, rule));
        }
    }
    Ok(found)
}
