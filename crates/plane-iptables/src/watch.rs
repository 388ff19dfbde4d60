//! Detects foreign changes to our tables, and keeps the changed chains until the engine takes them.
//!
//! In the nft variant one listener for the whole process is notified of every change in the network namespace. Our own runs are
//! recognised by the generation, since the tool's sockets aren't known beforehand. A large run is made with the subscription
//! suspended. Of the writers of foreign changes, commands for single rules and chains are distinguished: other proxies write with
//! `iptables-restore`.
//!
//! The legacy variant has no notifications. The number and size of a table's entries are read four times a second, and a table
//! in which they differ from before is read. Changes that alter neither are found by reading all tables, once a minute.

use std::collections::BTreeSet;
use std::io;
use std::task::Waker;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::iptables::legacy::{self, TableInfo};
use ferry_kernel::iptables::{IptablesChainName, Table};
use ferry_kernel::nft::{Accounting, Changed, ForeignChanges, NftEvent, NftListener, NftSocket, ReadProgress};
use ferry_model::PerFamily;

use crate::mirror::{ChainOwnership, Mirror, at};
use crate::object::ChainId;

/// From this number of lines on, a run is made with the subscription suspended.
const QUIET_LINES: usize = 1000;

/// Interval of reading the sizes of legacy tables.
pub(crate) const SIZES_INTERVAL: Duration = Duration::from_millis(250);
/// Shortest interval of reading all legacy tables,
const READ_ALL: Duration = Duration::from_secs(60);
/// and that interval as a multiple of the duration of a read.
const READ_ALL_REST: u32 = 600;
/// The same of tables that others have changed.
const READ_REST: u32 = 10;

/// With more foreign-changed chains than this, everything is compared.
const TOUCHED: usize = 256;

/// Names of programs that change single rules and chains, as the kernel names the thread that committed a change: up to 15
/// characters of the executable's name.
const COMMANDS: [&str; 5] = ["iptables", "ip6tables", "iptables-nft", "ip6tables-nft", "nft"];

/// Engines of one process run the tool one after another.
pub type IptablesCommitLock = ferry_plane::CommitLock<ProcessListener>;

/// The listener of this process.
#[derive(Debug, Default)]
pub struct ProcessListener {
    listener: NftListener<Foreign>,
    /// reads the generation; open once joined
    socket: Option<NftSocket>,
    wakers: PerFamily<Option<Waker>>,
}

/// Foreign changes to the tables of both families.
#[derive(Debug, Default)]
struct Foreign(PerFamily<ChainChanges>);

/// The writers of foreign changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Writers {
    /// none, or only commands for single rules and chains: every difference from the desired state is damage
    #[default]
    Commands,
    /// another proxy, or an unknown program
    MaybeProxies,
}

/// Foreign changes of one family's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainChanges {
    /// chains, or what is in them
    pub(crate) chains: BTreeSet<ChainId>,
    /// or anything else
    pub(crate) everything: bool,
    /// a foreign commit came while the subscription was suspended
    pub(crate) unobserved: bool,
    /// of these changes
    pub(crate) writers: Writers,
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

/// Time and duration of the last read of tables.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    at: Option<Instant>,
    took: Duration,
}

type Sizes = [Option<TableInfo>; Table::ALL.len()];

// === impl ChainChanges ===

impl ChainChanges {
    /// Adds later changes.
    pub(crate) fn merge(&mut self, later: Self) {
        self.everything |= later.everything;
        self.unobserved |= later.unobserved;
        if later.writers == Writers::MaybeProxies {
            self.writers = later.writers;
        }
        self.chains.extend(later.chains);
        if self.chains.len() > TOUCHED {
            self.everything = true;
        }
        if self.everything {
            self.chains.clear();
        }
    }

    /// True if others changed nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.chains.is_empty() && !self.everything && !self.unobserved
    }

    fn note(&mut self, table: Table, what: &Changed) {
        let chain = match what {
            Changed::Chain { name, .. } | Changed::Rule { chain: name } => IptablesChainName::new(name),
            Changed::Table => {
                self.merge(Self { everything: true, writers: Writers::MaybeProxies, ..Self::default() });
                return;
            }
            // This mode has none.
            Changed::Set(_) | Changed::Elements { .. } | Changed::Other => return,
        };
        let id = chain.map(|name| ChainId { table, name });
        if let Some(id) = id.filter(|id| ChainOwnership::of(*id).is_some()) {
            self.merge(Self { chains: [id].into(), writers: Writers::MaybeProxies, ..Self::default() });
        }
    }
}

// === impl ProcessListener ===

impl ProcessListener {
    /// Subscribes in the network namespace of this thread. Fails if the kernel has no nf_tables.
    pub(crate) fn join(&mut self) -> io::Result<()> {
        if self.socket.is_none() {
            self.socket = Some(NftSocket::open_required()?);
        }
        self.listener.join()
    }

    /// Runs the tool with so many lines. Its changes aren't foreign if it committed as many transactions as `commits` returns;
    /// `None` if unknown.
    pub(crate) fn around<T>(
        &mut self,
        lines: usize,
        run: impl FnOnce() -> T,
        commits: impl FnOnce(&T) -> Option<usize>,
    ) -> io::Result<T> {
        self.join()?;
        let Some(socket) = &mut self.socket else { return Ok(run()) };
        let accounting = if lines > QUIET_LINES { Accounting::Quiet } else { Accounting::ByGeneration };
        let commits = |result: &T| commits(result).and_then(|commits| u32::try_from(commits).ok());
        let result = self.listener.around(accounting, socket, |_| run(), commits);
        self.wake();
        result
    }

    /// Foreign changes to the family's tables since the last call.
    pub(crate) fn news(&mut self, family: Family) -> io::Result<ChainChanges> {
        let changes = std::mem::take(self.listener.changes()?.0.of_mut(family));
        // The notifications of the other family were read, too.
        self.wake();
        Ok(changes)
    }

    /// Sets what is woken when there are foreign changes to the family's tables.
    pub(crate) fn wake_by(&mut self, family: Family, waker: &Waker) {
        *self.wakers.of_mut(family) = Some(waker.clone());
        self.wake();
    }

    /// Reads the notifications, and wakes the engines that they concern; both, if they can't be read.
    fn read(&mut self) -> ReadProgress {
        match self.listener.changes() {
            Ok(_) => self.wake(),
            Err(_) => self.wakers.v4.iter().chain(&self.wakers.v6).for_each(Waker::wake_by_ref),
        }
        self.listener.progress()
    }

    /// Wakes the engines of the families with foreign changes that were read, and not taken.
    fn wake(&self) {
        let foreign = &self.listener.read_changes().0;
        for family in Family::ALL.into_iter().filter(|family| !foreign.of(*family).is_empty()) {
            self.wakers.of(family).iter().for_each(Waker::wake_by_ref);
        }
    }
}

/// Returns the body of a thread that, in the nft variant, waits for foreign changes and wakes the engines that they concern, of
/// those that share this lock. It ends only if waiting fails, with that error.
///
/// # Errors
/// The system's error; `EPERM` without `CAP_NET_ADMIN`.
pub fn listener(commit_lock: IptablesCommitLock) -> io::Result<impl FnOnce() -> io::Error + Send + 'static> {
    let arrivals = commit_lock.take().listener.arrivals()?;
    Ok(move || arrivals.follow(|| commit_lock.take().read()))
}

// === impl Foreign ===

impl Foreign {
    /// Adds this to the changes of both families.
    fn add(&mut self, what: &ChainChanges) {
        self.0.v4.merge(what.clone());
        self.0.v6.merge(what.clone());
    }
}

impl ForeignChanges for Foreign {
    fn record(&mut self, event: &NftEvent) {
        let table = Table::ALL.into_iter().find(|table| table.name() == event.table);
        if let (Some(family), Some(table)) = (event.family, table) {
            self.0.of_mut(family).note(table, &event.what);
        }
    }

    fn committed_by(&mut self, process: &str) {
        if COMMANDS.contains(&process) {
            self.0.v4.writers = Writers::Commands;
            self.0.v6.writers = Writers::Commands;
        }
    }

    fn lost(&mut self, error: Option<&io::Error>) {
        if let Some(error) = error {
            tracing::debug!(%error, "Subscribing to nf_tables notifications failed");
        }
        self.add(&ChainChanges { everything: true, writers: Writers::MaybeProxies, ..ChainChanges::default() });
    }

    fn unobserved(&mut self) {
        self.add(&ChainChanges { unobserved: true, writers: Writers::MaybeProxies, ..ChainChanges::default() });
    }

    fn merge(&mut self, later: Self) {
        self.0.v4.merge(later.0.v4);
        self.0.v6.merge(later.0.v6);
    }
}

// === impl LegacyWatch ===

impl LegacyWatch {
    /// Detects foreign changes by the tables' sizes: before a run, and when none is under way.
    pub(crate) fn check(&mut self, family: Family) -> io::Result<()> {
        let now = sizes(family)?;
        if let Some(known) = self.known {
            let moved = Table::ALL.into_iter().filter(|table| known.get(at(*table)) != now.get(at(*table)));
            self.suspected.extend(moved);
        }
        self.known = Some(now);
        Ok(())
    }

    /// Accounts for a run that has changed our rules from `before` to `after`, and removed this number of foreign rules from each
    /// table: any other difference of the tables' sizes is a foreign change.
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

    /// Takes those of these tables that have foreign changes since their last read; the caller reads them now.
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
    /// True if both the time and the multiple of the read's duration have passed.
    fn is_over(self, least: Duration, rest: u32, now: Instant) -> bool {
        let wait = least.max(self.took.saturating_mul(rest));
        self.at.and_then(|at| now.checked_duration_since(at)).is_none_or(|since| since >= wait)
    }
}

/// The number of our entries in each table.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names;

    const SERVICES: ChainId = ChainId { table: Table::Nat, name: names::SERVICES };

    fn rule(family: Family, table: &str) -> NftEvent {
        let what = Changed::Rule { chain: names::SERVICES.to_string() };
        NftEvent { port_id: 7, family: Some(family), table: table.to_owned(), what }
    }

    /// One transaction that changed a rule of IPv4, by the named program.
    fn changed(process: Option<&str>) -> Foreign {
        let mut foreign = Foreign::default();
        foreign.record(&rule(Family::V4, "nat"));
        foreign.record(&rule(Family::V6, "raw"));
        if let Some(process) = process {
            foreign.committed_by(process);
        }
        foreign
    }

    #[test]
    fn commands_are_distinguished_from_proxies() {
        for (process, writers) in [
            (Some("iptables"), Writers::Commands),
            (Some("ip6tables-nft"), Writers::Commands),
            (Some("nft"), Writers::Commands),
            (Some("iptables-restor"), Writers::MaybeProxies),
            (Some("kube-proxy"), Writers::MaybeProxies),
            (None, Writers::MaybeProxies),
        ] {
            let Foreign(changes) = changed(process);
            assert_eq!((changes.v4.writers, &changes.v4.chains), (writers, &[SERVICES].into()), "{process:?}");
            assert!(changes.v6.is_empty(), "no table of ours");
        }
    }

    #[test]
    fn what_a_proxy_may_have_changed_too_is_its_change() {
        for later in [changed(Some("iptables-restor")), changed(None)] {
            let mut changes = changed(Some("iptables"));
            changes.merge(changed(Some("iptables")));
            assert_eq!(changes.0.v4.writers, Writers::Commands);
            changes.merge(later);
            changes.merge(changed(Some("iptables")));
            assert_eq!(changes.0.v4.writers, Writers::MaybeProxies);
        }
        let mut changes = changed(Some("iptables"));
        changes.lost(None);
        assert!(changes.0.v4.everything && changes.0.v6.everything && changes.0.v6.writers == Writers::MaybeProxies);
        let mut changes = changed(Some("nft"));
        changes.unobserved();
        assert!(changes.0.v4.unobserved && changes.0.v4.writers == Writers::MaybeProxies);
    }

    #[test]
    fn more_chains_than_are_compared_one_by_one_are_everything() {
        let mut changes = ChainChanges::default();
        for number in 0..=TOUCHED {
            let name = IptablesChainName::new(&format!("KUBE-SVC-{number:016}")).unwrap();
            let chains = [ChainId { table: Table::Nat, name }].into();
            changes.merge(ChainChanges { chains, ..ChainChanges::default() });
            assert_eq!(changes.everything, number >= TOUCHED);
        }
        assert!(changes.chains.is_empty());
    }
}
