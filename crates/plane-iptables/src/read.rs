//! Reads the actual state back: parses the tool's output into objects, without holding the text as a whole.

use std::collections::{BTreeSet, HashSet};

use ferry_kernel::iptables::{IptablesChainName, OutputLine, Table, Tool, ToolFailure};
use ferry_plane::Object as _;

use crate::mirror::ChainOwnership;
use crate::object::{ChainId, IptKey, IptObject};
use crate::sort::{Found, Sorter};

/// The chains that must be read for these keys.
pub(crate) fn chains_of(keys: &[IptKey]) -> BTreeSet<ChainId> {
    keys.iter().filter_map(chain_of_key).collect()
}

/// Keeps the objects with these keys, and the foreign rules in the chains that were read for them.
pub(crate) fn only(objects: &mut Vec<IptObject>, keys: &[IptKey]) {
    let keys: HashSet<&IptKey> = keys.iter().collect();
    objects.retain(|object| matches!(object, IptObject::ForeignRule(..)) || keys.contains(&object.key()));
}

/// Reads these tables one after another by `read`: nat first, with the many chains.
pub(crate) fn each_table(
    tool: &Tool,
    wanted: &[Table],
    mut read: impl FnMut(&mut Sorter, Table) -> Result<(), ToolFailure>,
) -> Result<Found, ToolFailure> {
    let mut sorter = Sorter::new(tool.family());
    for table in Table::ALL.into_iter().rev().filter(|table| wanted.contains(table)) {
        read(&mut sorter, table)?;
    }
    Ok(sorter.found())
}

/// Sorts the lines of one table, as printed by `save`.
pub(crate) fn save(
    tool: &Tool,
    sorter: &mut Sorter,
    table: Table,
    save: impl FnOnce(&mut dyn FnMut(OutputLine<'_>)) -> Result<(), ToolFailure>,
) -> Result<(), ToolFailure> {
    sorter.begin(table);
    let mut other = None;
    save(&mut |line| sort(sorter, line, &mut other))?;
    sorter.end();
    other.map_or(Ok(()), |other| Err(unexpected(tool, other)))
}

/// Reads the tables of these chains by `tables`, and keeps the objects in these chains.
pub(crate) fn chains_in_tables(
    wanted: &BTreeSet<ChainId>,
    tables: impl FnOnce(&[Table]) -> Result<Found, ToolFailure>,
) -> Result<Found, ToolFailure> {
    let mut of: Vec<Table> = wanted.iter().map(|chain| chain.table).collect();
    of.dedup();
    let mut found = tables(&of)?;
    found.objects.retain(|object| chain_of_key(&object.key()).is_some_and(|chain| wanted.contains(&chain)));
    Ok(found)
}

/// Passes a line to the sorter; an unexpected one goes to `other`.
pub(crate) fn sort(sorter: &mut Sorter, line: OutputLine<'_>, other: &mut Option<String>) {
    match line {
        OutputLine::Chain { name, builtin: _ } => {
            if let Some(name) = IptablesChainName::new(name) {
                sorter.chain(name);
            }
        }
        OutputLine::Rule { chain, text } => {
            if let Some(name) = IptablesChainName::new(chain)
                && !sorter.rule(name, text)
            {
                *other = Some(format!("-A {chain} {text}"));
            }
        }
        OutputLine::Table(_) | OutputLine::Commit | OutputLine::Other => {}
    }
}

/// The failure of a tool with this unexpected output.
pub(crate) fn unexpected(tool: &Tool, text: String) -> ToolFailure {
    ToolFailure::UnexpectedOutput { tool: format!("{} ({})", saver(tool), tool.family()), line: 0, text }
}

/// The name of the program that prints tables.
pub(crate) fn saver(tool: &Tool) -> String {
    format!("iptables-{}-save", tool.backend())
}

fn chain_of_key(key: &IptKey) -> Option<ChainId> {
    key.chain().filter(|id| ChainOwnership::of(*id).is_some())
}
