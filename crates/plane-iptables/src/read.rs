//! What the kernel holds of ours, as objects, from what the tool prints. The text is never held as a whole.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::time::Duration;

use ferry_kernel::iptables::{self, Backend, ChainName, Failure, Line, Rule, Table, Tool};
use ferry_plane::Object as _;

use crate::base;
use crate::mirror::{Kind, Mirror, few_chains};
use crate::names::Class;
use crate::object::{ChainId, EntryKey, IptKey, IptObject};
use crate::sort::{Found, Sorter};

/// Beyond so many chains, reading the whole table is cheaper.
const SINGLE_READS: usize = 16;

/// How long the nft variant may take to show a table.
const PATIENCE: Duration = Duration::from_secs(20);

/// From so many chains on, in whatever table, it takes longer to show a table than to show its few chains one by one: the
/// tool fetches all tables first.
const MANY: usize = 2000;

/// Chains of ours in a table, at most, that are listed one by one.
const LISTED: usize = 300;

/// What the tool says of a table, or of a chain, that holds what it can't show.
const HIDDEN: &str = "is incompatible";

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
    let keys: HashSet<&IptKey> = keys.iter().collect();
    objects.retain(|object| matches!(object, IptObject::Stray(..)) || keys.contains(&object.key()));
}

/// Reads these tables.
pub(crate) fn tables(tool: &Tool, wanted: &[Table]) -> Result<Found, Failure> {
    match saved(tool, wanted) {
        Err(Failure::Garbage { text, .. }) if tool.backend() == Backend::Nft && text.contains(HIDDEN) => {
            singly(tool, wanted)
        }
        Err(Failure::TimedOut { .. }) if tool.backend() == Backend::Nft => singly(tool, wanted),
        found => found,
    }
}

/// As the tool saves them.
fn saved(tool: &Tool, wanted: &[Table]) -> Result<Found, Failure> {
    let mut sorter = Sorter::new(tool.family());
    // The one with the many chains first.
    for table in Table::ALL.iter().rev().filter(|table| wanted.contains(table)) {
        if tool.backend() == Backend::Nft && *table != Table::Nat && sorter.chains_seen() > MANY {
            for chain in few_chains(*table) {
                list(tool, &mut sorter, chain)?;
            }
            continue;
        }
        sorter.begin(*table);
        let mut other = None;
        let mut each = |line: Line<'_>| sort(&mut sorter, line, &mut other);
        match tool.backend() {
            Backend::Nft => tool.save_within(PATIENCE, *table, &mut each)?,
            Backend::Legacy => tool.save(*table, &mut each)?,
        }
        sorter.end();
        if let Some(other) = other {
            return Err(garbage(tool, other));
        }
    }
    Ok(sorter.found())
}

/// Reads one chain after the other: where the tool doesn't come to an end since others keep writing, or shows nothing of a
/// table since one rule in it, in whatever chain, was made otherwise than by iptables. Where there are many chains, those
/// of services are not looked into: to write them anew takes less time.
fn singly(tool: &Tool, wanted: &[Table]) -> Result<Found, Failure> {
    let chains = iptables::nft::chains(tool.family())
        .map_err(|error| Failure::Io { tool: format!("iptables-{}-save", tool.backend()), error })?;
    let named = |chain: &iptables::nft::Chain| {
        let id = ChainId { table: chain.table, name: ChainName::new(&chain.name)? };
        (wanted.contains(&chain.table) && Kind::of(id).is_some()).then_some(id)
    };
    let ids: Vec<ChainId> = chains.iter().filter_map(named).collect();
    let blind = ids.len() > LISTED;
    let mut sorter = Sorter::new(tool.family());
    for id in &ids {
        if blind && Class::of(id.name).is_some_and(Class::is_of_service) {
            sorter.begin(id.table);
            sorter.hidden(id.name, Vec::new());
        } else {
            list(tool, &mut sorter, *id)?;
        }
    }
    Ok(Found { blind, ..sorter.found() })
}

/// Chains of units that are gone or empty. It is what netlink tells of them, whatever the tool can show.
pub(crate) fn lost(tool: &Tool, mirror: &Mirror) -> Result<Vec<IptKey>, Failure> {
    let failed = |error| Failure::Io { tool: format!("iptables-{}-save", tool.backend()), error };
    let chains = iptables::nft::chains(tool.family()).map_err(failed)?;
    let there: HashMap<(Table, &str), &iptables::nft::Chain> =
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
    key.chain().filter(|id| Kind::of(*id).is_some())
}

fn chain_of(object: &IptObject) -> Option<ChainId> {
    chain_of_key(&object.key())
}
