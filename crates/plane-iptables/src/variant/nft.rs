//! The nft variant: chains and rules of nf_tables, of whose changes netlink notifies, and which a table may hold in a form that the
//! tool can't show.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::iptables::{self, ChainName, Failure, Rule, Table, Tool};

use super::{Change, Observation, Restored, Variant, line_of};
use crate::base;
use crate::mirror::{Kind, Mirror, few_chains};
use crate::names::Class;
use crate::object::{ChainId, IptKey, IptObject, OwnedRulesKey};
use crate::read;
use crate::sort::{Found, Sorter};
use crate::watch::{Heard, Turn};

/// When to look again after the other family had the turn.
const CONTENDED: Duration = Duration::from_millis(20);

/// Beyond so many chains, reading the whole table is cheaper.
const SINGLE_READS: usize = 16;

/// How long the tool may take to show a table.
const PATIENCE: Duration = Duration::from_secs(20);

/// From so many chains on, in whatever table, it takes longer to show a table than to show its few chains one by one: the
/// tool fetches all tables first.
const MANY: usize = 2000;

/// Chains of ours in a table, at most, that are listed one by one.
const LISTED: usize = 300;

/// What the tool says of a table, or of a chain, that holds what it can't show.
const HIDDEN: &str = "is incompatible";

/// One family's tables; the listener is the process's.
#[derive(Debug)]
pub(super) struct Nft {
    turn: Turn,
}

// === impl Nft ===

impl Nft {
    pub(super) fn new(turn: Turn) -> Self {
        Self { turn }
    }
}

impl Variant for Nft {
    fn listen(&mut self) -> io::Result<()> {
        self.turn.take().join()
    }

    fn changes(&mut self, family: Family) -> io::Result<Heard> {
        self.turn.take().news(family)
    }

    fn tend(&mut self, family: Family, now: Instant) -> io::Result<Observation> {
        match self.turn.try_take() {
            Some(mut watch) => Ok(Observation { touched: watch.news(family)?, ..Observation::default() }),
            // The other family has the turn: soon again.
            None => Ok(Observation { wake: Some(now + CONTENDED), ..Observation::default() }),
        }
    }

    /// None: the notifications name the chains.
    fn take_changed(&mut self, _: &BTreeSet<Table>) -> BTreeSet<Table> {
        BTreeSet::new()
    }

    fn put_back(&mut self, _: BTreeSet<Table>) {}

    fn was_read(&mut self, _: &BTreeSet<Table>, _: Duration) {}

    fn tables(&self, tool: &Tool, wanted: &[Table]) -> Result<Found, Failure> {
        match saved(tool, wanted) {
            Err(Failure::Garbage { text, .. }) if text.contains(HIDDEN) => singly(tool, wanted),
            Err(Failure::TimedOut { .. }) => singly(tool, wanted),
            found => found,
        }
    }

    fn chains(&self, tool: &Tool, wanted: &BTreeSet<ChainId>) -> Result<Found, Failure> {
        if wanted.len() > SINGLE_READS {
            return read::chains_in_tables(wanted, |tables| self.tables(tool, tables));
        }
        let mut sorter = Sorter::new(tool.family());
        for chain in wanted {
            list(tool, &mut sorter, *chain)?;
        }
        Ok(sorter.found())
    }

    fn lost(&self, tool: &Tool, mirror: &Mirror) -> Result<Vec<IptKey>, Failure> {
        let failed = |error| Failure::Io { tool: read::saver(tool), error };
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

    fn run(&mut self, lines: usize, restore: &mut dyn FnMut() -> Restored) -> io::Result<Restored> {
        let committed = |(result, outline): &Restored| match result {
            Ok(_) => Some(outline.sections()),
            Err(failure) => line_of(failure).map(|line| outline.sections_before(line)),
        };
        self.turn.take().around(lines, restore, committed)
    }

    /// Nothing: the generation tells our own changes from those of others.
    fn account(&mut self, _: Family, _: Option<&Change<'_>>) -> io::Result<()> {
        Ok(())
    }
}

/// As the tool saves them.
fn saved(tool: &Tool, wanted: &[Table]) -> Result<Found, Failure> {
    read::each_table(tool, wanted, |sorter, table| {
        if table != Table::Nat && sorter.chains_seen() > MANY {
            return few_chains(table).try_for_each(|chain| list(tool, sorter, chain));
        }
        read::save(tool, sorter, table, |each| tool.save_within(PATIENCE, table, each))
    })
}

/// Reads one chain after the other: where the tool doesn't come to an end since others keep writing, or shows nothing of a
/// table since one rule in it, in whatever chain, was made otherwise than by iptables. Where there are many chains, those
/// of services are not looked into: to write them anew takes less time.
fn singly(tool: &Tool, wanted: &[Table]) -> Result<Found, Failure> {
    let chains =
        iptables::nft::chains(tool.family()).map_err(|error| Failure::Io { tool: read::saver(tool), error })?;
    let named = |chain: &iptables::nft::Chain| {
        let id = ChainId { table: chain.table, name: ChainName::new(&chain.name)? };
        (wanted.contains(&chain.table) && Kind::of(id).is_some()).then_some(id)
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

fn list(tool: &Tool, sorter: &mut Sorter, chain: ChainId) -> Result<(), Failure> {
    sorter.begin(chain.table);
    let mut other = None;
    match tool.list(chain.table, chain.name, &mut |line| read::sort(sorter, line, &mut other)) {
        Err(Failure::Refused { text, .. }) if text.contains(HIDDEN) => {
            sorter.hidden(chain.name, entries_of(tool, chain)?);
        }
        listed => drop(listed?),
    }
    sorter.end();
    other.map_or(Ok(()), |other| Err(read::garbage(tool, other)))
}

/// Which of our entries are in a chain that can't be shown, and that is not ours alone. A place of ours is as good as empty:
/// it is written anew.
fn entries_of(tool: &Tool, chain: ChainId) -> Result<Vec<(OwnedRulesKey, Rule)>, Failure> {
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
