//! What the kernel holds of ours, as objects, from what the tool prints. The text is never held as a whole.

use std::collections::{BTreeSet, HashSet};

use ferry_kernel::iptables::{self, Backend, ChainName, Failure, Line, Rule, Table, Tool};

use crate::base;
use crate::mirror::{Kind, Mirror};
use crate::names::Class;
use crate::object::{ChainId, EntryKey, IptKey, IptObject};
use crate::sort::Sorter;

/// Beyond so many chains, reading the whole table is cheaper.
const SINGLE_READS: usize = 16;

/// Chains of ours in a table, at most, that are listed one by one.
const LISTED: usize = 300;

/// What the tool says of a table, or of a chain, that holds what it can't show.
const HIDDEN: &str = "is incompatible";

/// What was read.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) objects: Vec<IptObject>,
    /// the same, as the next change needs it
    pub(crate) mirror: Mirror,
}

/// Reads all three tables.
pub(crate) fn all(tool: &Tool) -> Result<Found, Failure> {
    tables(tool, &Table::ALL)
}

/// Reads these chains, in whole.
pub(crate) fn chains(tool: &Tool, chains: &BTreeSet<ChainId>) -> Result<Found, Failure> {
    // The legacy variant fetches the whole table, whatever it is asked for.
    if chains.len() > SINGLE_READS || tool.backend() == Backend::Legacy {
        let mut wanted: Vec<Table> = chains.iter().map(|chain| chain.table).collect();
        wanted.dedup();
        let mut found = tables(tool, &wanted)?;
        found.objects.retain(|object| chain_of(object).is_some_and(|chain| chains.contains(&chain)));
        return Ok(found);
    }
    let mut sorter = Sorter::new(tool.family());
    for chain in chains {
        list(tool, &mut sorter, *chain)?;
    }
    Ok(sorter.found())
}

/// The chains that must be read for these keys.
pub(crate) fn chains_of(keys: &[IptKey]) -> BTreeSet<ChainId> {
    keys.iter().filter_map(chain_of_key).collect()
}

/// Of what was read, what stands under these keys; and what doesn't belong into the chains that were read for them.
pub(crate) fn only(objects: &mut Vec<IptObject>, keys: &[IptKey]) {
    use ferry_plane::Object as _;
    let keys: HashSet<&IptKey> = keys.iter().collect();
    objects.retain(|object| matches!(object, IptObject::Stray(..)) || keys.contains(&object.key()));
}

/// Reads these tables.
pub(crate) fn tables(tool: &Tool, wanted: &[Table]) -> Result<Found, Failure> {
    let mut sorter = Sorter::new(tool.family());
    for table in wanted {
        sorter.begin(*table);
        let mut other = None;
        match tool.save(*table, &mut |line| sort(&mut sorter, line, &mut other)) {
            Err(Failure::Garbage { text, .. }) if tool.backend() == Backend::Nft && text.contains(HIDDEN) => {
                singly(tool, &mut sorter, *table)?;
            }
            saved => saved?,
        }
        sorter.end();
        if let Some(other) = other {
            return Err(garbage(tool, other));
        }
    }
    Ok(sorter.found())
}

/// Reads one chain after the other: one rule that somebody has made otherwise than by iptables, in any chain of the table,
/// and the tool shows nothing of the table as a whole. Where there are many chains, those of services are not looked into:
/// to write them anew takes less time.
fn singly(tool: &Tool, sorter: &mut Sorter, table: Table) -> Result<(), Failure> {
    let chains = iptables::nft::chains(tool.family())
        .map_err(|error| Failure::Io { tool: format!("iptables-{}-save", tool.backend()), error })?;
    let names = chains.iter().filter(|chain| chain.table == table).filter_map(|chain| ChainName::new(&chain.name));
    let ids: Vec<ChainId> = names.map(|name| ChainId { table, name }).filter(|id| Kind::of(*id).is_some()).collect();
    for id in &ids {
        if ids.len() > LISTED && Class::of(id.name).is_some_and(Class::is_of_service) {
            sorter.hidden(id.name, Vec::new());
        } else {
            list(tool, sorter, *id)?;
        }
    }
    Ok(())
}

fn list(tool: &Tool, sorter: &mut Sorter, chain: ChainId) -> Result<(), Failure> {
    sorter.begin(chain.table);
    let mut other = None;
    match tool.list(chain.table, chain.name, &mut |line| sort(sorter, line, &mut other)) {
        Err(Failure::Refused { text, .. }) if tool.backend() == Backend::Nft && text.contains(HIDDEN) => {
            sorter.hidden(chain.name, entries_of(tool, chain)?);
        }
        listed => drop(listed?),
    }
    sorter.end();
    other.map_or(Ok(()), |other| Err(garbage(tool, other)))
}

/// Which of our entries are in a chain that can't be shown, and that is not ours alone. A place of ours is as good as empty:
/// it is written anew.
fn entries_of(tool: &Tool, chain: ChainId) -> Result<Vec<(EntryKey, Rule)>, Failure> {
    let mut entries = base::JUMPS.iter().map(|jump| (jump.key(), jump.rule())).collect::<Vec<_>>();
    if let IptObject::Entry(key, rules) = base::guard() {
        entries.extend(rules.into_iter().map(|rule| (key, rule)));
    }
    entries.retain(|(key, _)| key.place == chain);
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

fn sort(sorter: &mut Sorter, line: Line<'_>, other: &mut Option<String>) {
    match line {
        Line::Chain { name, builtin: _ } => {
            if let Some(name) = ChainName::new(name) {
                sorter.chain(name);
            }
        }
        Line::Rule { chain, text } => {
            if let Some(name) = ChainName::new(chain)
                && !sorter.rule(name, text)
            {
                *other = Some(format!("-A {chain} {text}"));
            }
        }
        Line::Table(_) | Line::Commit | Line::Other => {}
    }
}

fn garbage(tool: &Tool, text: String) -> Failure {
    Failure::Garbage { tool: format!("iptables-{}-save ({})", tool.backend(), tool.family()), line: 0, text }
}

fn chain_of_key(key: &IptKey) -> Option<ChainId> {
    let id = match key {
        IptKey::Chain(id) | IptKey::Place(id) | IptKey::Stray(id, _) => *id,
        IptKey::Entry(key) => key.place,
        IptKey::RouteLocalnet => return None,
    };
    Kind::of(id).map(|_| id)
}

fn chain_of(object: &IptObject) -> Option<ChainId> {
    use ferry_plane::Object as _;
    chain_of_key(&object.key())
}
