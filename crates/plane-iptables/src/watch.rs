//! What others do to our tables.
//!
//! In the nft variant one listener for the whole process hears of every change in the network namespace. Our own runs are told
//! apart by the generation, which each commit of anybody moves by one: if it has moved by as many as our run has committed,
//! then what was heard meanwhile was that run. A large run is made while nobody here listens, since each rule costs its
//! maker an event.
//!
//! The legacy variant tells nobody. How many entries a table has, and how large they are, is asked for now and then, and a
//! table of which that is other than before is read. What changes neither is found when all tables are, once a minute.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use ferry_kernel::iptables::legacy::{self, Info};
use ferry_kernel::iptables::{ChainName, Family, Table};
use ferry_kernel::nft::{self, Changed, Event, Monitor, Socket};
use ferry_model::PerFamily;

use crate::mirror::{Kind, Mirror, at};
use crate::object::ChainId;

/// From so many lines on, a run is made without listening.
const QUIET_LINES: usize = 1000;

/// How often all legacy tables are read, at most,
const READ_ALL: Duration = Duration::from_secs(60);
/// and how many times longer than that takes nobody does so again.
const READ_ALL_REST: u32 = 600;
/// The same of tables that others have changed.
const READ_REST: u32 = 10;

/// Beyond so many chains touched by others, everything is compared.
const TOUCHED: usize = 256;

/// Engines of one process run the tool one after another.
pub type Turn = ferry_plane::Turn<Watch>;

/// The listener, and what it heard.
#[derive(Debug, Default)]
pub struct Watch {
    /// open once somebody listens
    ear: Option<Ear>,
    heard: PerFamily<Heard>,
}

#[derive(Debug)]
struct Ear {
    monitor: Monitor,
    /// asks for the generation
    socket: Socket,
}

/// What others changed in one family's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// chains, or what is in them
    pub(crate) chains: BTreeSet<ChainId>,
    /// or anything else
    pub(crate) everything: bool,
    /// somebody committed something while nobody listened here
    pub(crate) unheard: bool,
}

/// The legacy tables of one family as they were seen last.
#[derive(Debug, Default)]
pub(crate) struct LegacyWatch {
    known: Option<Sizes>,
    suspected: BTreeSet<Table>,
    /// all tables
    all: Reading,
    /// those that others have changed
    some: Reading,
}

/// When tables were read last, and how long that took.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    at: Option<Instant>,
    took: Duration,
}

type Sizes = [Option<Info>; Table::ALL.len()];

// === impl Heard ===

impl Heard {
    /// Adds what was heard later.
    pub(crate) fn merge(&mut self, later: Self) {
        self.everything |= later.everything;
        self.unheard |= later.unheard;
        self.chains.extend(later.chains);
        if self.chains.len() > TOUCHED {
            self.everything = true;
        }
        if self.everything {
            self.chains.clear();
        }
    }

    fn note(&mut self, table: Table, what: &Changed) {
        let chain = match what {
            Changed::Chain(name) | Changed::Rule { chain: name } => ChainName::new(name),
            Changed::Table => {
                self.everything = true;
                return;
            }
            // This mode has none.
            Changed::Set(_) | Changed::Elements { .. } | Changed::Other => return,
        };
        let id = chain.map(|name| ChainId { table, name });
        if let Some(id) = id.filter(|id| Kind::of(*id).is_some()) {
            self.merge(Self { chains: [id].into(), ..Self::default() });
        }
    }
}

// === impl Watch ===

impl Watch {
    /// Listens from now on, in the network namespace of this thread.
    pub(crate) fn join(&mut self) -> io::Result<()> {
        if self.ear.is_none() {
            let mut monitor = Monitor::open()?;
            monitor.join()?;
            self.ear = Some(Ear { monitor, socket: Socket::open()? });
        }
        Ok(())
    }

    /// Runs the tool with so many lines. Its changes are no news, if as many commits were made as it has made by its result;
    /// `None` if that isn't known.
    pub(crate) fn around<T>(
        &mut self,
        lines: usize,
        run: impl FnOnce() -> T,
        commits: impl FnOnce(&T) -> Option<usize>,
    ) -> io::Result<T> {
        self.join()?;
        let Some(ear) = &mut self.ear else { return Ok(run()) };
        // In this order, so that another's commit in between is suspected once too often rather than never.
        let before = ear.socket.generation()?;
        let news = ear.read()?;
        merge(&mut self.heard, news);
        let quiet = lines > QUIET_LINES;
        if quiet {
            ear.monitor.leave()?;
        }
        let result = run();
        match ear.listen_again(quiet) {
            Ok((news, after)) => {
                let commits = commits(&result).and_then(|commits| u32::try_from(commits).ok());
                if commits.map(|commits| before.wrapping_add(commits)) != Some(after) {
                    merge(&mut self.heard, if quiet { unheard() } else { news });
                }
            }
            Err(error) => {
                // Better deaf and known to be than deaf: the next turn listens anew, and compares everything.
                tracing::debug!(%error, "changes of tables cannot be listened to");
                self.ear = None;
                merge(&mut self.heard, everything());
            }
        }
        Ok(result)
    }

    /// What others changed in the family's tables since the last call.
    pub(crate) fn news(&mut self, family: Family) -> io::Result<Heard> {
        match &mut self.ear {
            Some(ear) => {
                let news = ear.read()?;
                merge(&mut self.heard, news);
            }
            None => {
                self.join()?;
                merge(&mut self.heard, everything());
            }
        }
        Ok(std::mem::take(match family {
            Family::V4 => &mut self.heard.v4,
            Family::V6 => &mut self.heard.v6,
        }))
    }
}

// === impl Ear ===

impl Ear {
    fn read(&mut self) -> io::Result<PerFamily<Heard>> {
        let mut heard = PerFamily::default();
        let overrun = self.monitor.read(&mut |event| note(&mut heard, &event))?;
        Ok(if overrun.0 { everything() } else { heard })
    }

    /// What was heard during a run, and the generation after it.
    fn listen_again(&mut self, quiet: bool) -> io::Result<(PerFamily<Heard>, u32)> {
        if quiet {
            self.monitor.join()?;
        }
        let news = self.read()?;
        Ok((news, self.socket.generation()?))
    }
}

fn everything() -> PerFamily<Heard> {
    PerFamily::from_fn(|_| Heard { everything: true, ..Heard::default() })
}

fn unheard() -> PerFamily<Heard> {
    PerFamily::from_fn(|_| Heard { unheard: true, ..Heard::default() })
}

fn merge(heard: &mut PerFamily<Heard>, news: PerFamily<Heard>) {
    heard.v4.merge(news.v4);
    heard.v6.merge(news.v6);
}

fn note(heard: &mut PerFamily<Heard>, event: &Event) {
    let heard = match event.family {
        Some(nft::Family::Ip) => &mut heard.v4,
        Some(nft::Family::Ip6) => &mut heard.v6,
        _ => return,
    };
    if let Some(table) = Table::ALL.into_iter().find(|table| table.name() == event.table) {
        heard.note(table, &event.what);
    }
}

// === impl LegacyWatch ===

impl LegacyWatch {
    /// Looks whether others have changed anything: before a run, and when nothing is left of one.
    pub(crate) fn look(&mut self, family: Family) -> io::Result<()> {
        let now = sizes(family)?;
        if let Some(known) = self.known {
            let moved = Table::ALL.into_iter().filter(|table| known.get(at(*table)) != now.get(at(*table)));
            self.suspected.extend(moved);
        }
        self.known = Some(now);
        Ok(())
    }

    /// After a run that has changed what is ours from `before` to `after`, and removed so many rules of others from each
    /// table: if there is another difference, it isn't its own.
    pub(crate) fn account(
        &mut self,
        family: Family,
        before: [i64; 3],
        after: &Mirror,
        strays: [i64; 3],
    ) -> io::Result<()> {
        let now = sizes(family)?;
        for table in Table::ALL {
            let of = |sizes: &Sizes| sizes.get(at(table)).copied().flatten().map(|info| i64::from(info.entries));
            let (then, now) = (self.known.as_ref().and_then(of), of(&now));
            let wrote = entries(after, table)
                - before.get(at(table)).copied().unwrap_or(0)
                - strays.get(at(table)).copied().unwrap_or(0);
            // A table that was made just now has entries of its own.
            if let (Some(then), Some(now)) = (then, now)
                && now - then != wrote
            {
                self.suspected.insert(table);
            }
        }
        self.known = Some(now);
        Ok(())
    }

    /// Of these tables, those that others have changed and that nobody has read since; they are read now.
    pub(crate) fn take(&mut self, of: &BTreeSet<Table>) -> BTreeSet<Table> {
        let taken = &self.suspected & of;
        self.suspected.retain(|table| !of.contains(table));
        taken
    }

    /// Tables whose time it is to be read: what others have changed may be none of ours, and they may do so all the time.
    pub(crate) fn due(&mut self, now: Instant) -> BTreeSet<Table> {
        if self.all.at.is_none() {
            self.all.at = Some(now);
        }
        if self.all.is_over(READ_ALL, READ_ALL_REST, now) {
            self.all.at = Some(now);
            self.suspected.clear();
            return Table::ALL.into();
        }
        if self.suspected.is_empty() || !self.some.is_over(Duration::ZERO, READ_REST, now) {
            return BTreeSet::new();
        }
        self.some.at = Some(now);
        std::mem::take(&mut self.suspected)
    }

    /// So long it took to read these.
    pub(crate) fn read(&mut self, tables: &BTreeSet<Table>, took: Duration) {
        self.some.took = took;
        if tables.len() == Table::ALL.len() {
            self.all.took = took;
        }
    }

    /// These could not be read.
    pub(crate) fn suspect(&mut self, tables: BTreeSet<Table>) {
        self.suspected.extend(tables);
    }
}

// === impl Reading ===

impl Reading {
    /// Whether so much time has gone by, and so many times what it took.
    fn is_over(self, least: Duration, rest: u32, now: Instant) -> bool {
        let wait = least.max(self.took.saturating_mul(rest));
        self.at.and_then(|at| now.checked_duration_since(at)).is_none_or(|since| since >= wait)
    }
}

/// How many entries of each table are ours.
pub(crate) fn all_entries(mirror: &Mirror) -> [i64; 3] {
    Table::ALL.map(|table| entries(mirror, table))
}

/// A rule is one, a chain has one at its head and one at its end.
fn entries(mirror: &Mirror, table: Table) -> i64 {
    let size = mirror.size(table);
    i64::try_from(size.rules + 2 * size.chains).unwrap_or(i64::MAX)
}

fn sizes(family: Family) -> io::Result<Sizes> {
    let mut sizes = [None; Table::ALL.len()];
    for (size, table) in sizes.iter_mut().zip(Table::ALL) {
        *size = legacy::info(family, table)?;
    }
    Ok(sizes)
}
