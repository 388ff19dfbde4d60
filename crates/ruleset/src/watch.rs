//! Detects foreign changes to a mode's tables, by key and by writer, and keeps them until the engine takes them. One listener serves
//! the whole process, whose engines commit one after another.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::io;
use std::task::Waker;

use ferry_api::object::Family;
use ferry_kernel::nft::{
    self, Accounting, Changed, CommitFailure, ForeignChanges, NftBatch, NftEvent, NftListener, NftSocket, ReadProgress,
};
use ferry_model::PerFamily;
use ferry_plane::{Drift, Extent, thread_name};

/// With more foreign changes than this, everything is compared.
const TOUCHED: usize = 1024;

/// A commit with more operations (a set of source ranges counts by its elements) is best made with
/// [`ProcessListener::commit_quietly`].
pub const QUIET_ELEMENTS: usize = 256;

/// A mode's table of the same name in both families, and the keys of the objects in it.
pub trait TableKeys: 'static {
    /// The identity of an object.
    type Key: Ord + Debug + Send;

    /// The name of the table.
    const TABLE: &'static str;

    /// Keys of the objects that a change affects; `None` if any object may be affected.
    fn keys_of(family: Family, what: &Changed) -> Option<Vec<Self::Key>>;
}

/// By this lock the engines of one process commit one after another.
pub type CommitLock<T> = ferry_plane::CommitLock<ProcessListener<T>>;

/// The listener of this process, and the wakers of its engines.
#[derive(Debug)]
pub struct ProcessListener<T: TableKeys> {
    listener: NftListener<Foreign<T>>,
    wakers: PerFamily<Option<Waker>>,
    /// woken by changes of other tables
    elsewhere: Option<Waker>,
}

/// Foreign changes to the tables of both families.
struct Foreign<T: TableKeys> {
    /// also by unknown writers
    by_proxies: PerFamily<Touched<T::Key>>,
    by_others: PerFamily<Touched<T::Key>>,
    /// a chain or a rule of another table may have changed
    elsewhere: bool,
}

/// Foreign changes to one family's table.
#[derive(Debug)]
struct Touched<K> {
    keys: BTreeSet<K>,
    /// or anything else
    everything: bool,
}

/// Returns the body of a thread that waits for foreign changes and wakes the engines that they concern, of those that share this
/// lock. It ends only if waiting fails, with that error.
///
/// # Errors
/// The system's error; `EPERM` without `CAP_NET_ADMIN`.
pub fn listener<T: TableKeys>(commit_lock: CommitLock<T>) -> io::Result<impl FnOnce() -> io::Error + Send + 'static> {
    let arrivals = commit_lock.take().listener.arrivals()?;
    Ok(move || arrivals.follow(|| commit_lock.take().read()))
}

// === impl ProcessListener ===

impl<T: TableKeys> ProcessListener<T> {
    /// Subscribes, in the network namespace of this thread; commits by this socket are no foreign changes.
    ///
    /// # Errors
    /// The system's error; `EPERM` without `CAP_NET_ADMIN`.
    pub fn join(&mut self, socket: &NftSocket) -> io::Result<()> {
        self.listener.own(socket);
        self.listener.join()
    }

    /// Sets what is woken when there are foreign changes to the family's table.
    pub fn wake_by(&mut self, family: Family, waker: &Waker) {
        *self.wakers.of_mut(family) = Some(waker.clone());
        self.wake();
    }

    /// Sets what is woken when tables, chains or rules of other tables may have changed, of any family. What this
    /// process commits by other sockets than its engines' counts as well.
    pub fn wake_for_other_tables(&mut self, waker: Waker) {
        self.elsewhere = Some(waker);
    }

    /// Commits with the subscription suspended: while any process listens, each element costs the committing process an event.
    ///
    /// # Errors
    /// The failure of the commit, or of the subscription.
    pub fn commit_quietly(
        &mut self,
        socket: &mut NftSocket,
        batch: NftBatch,
    ) -> Result<nft::CommitStats, CommitFailure> {
        let commits = |result: &Result<_, _>| Some(u32::from(result.is_ok()));
        let result = self.listener.around(Accounting::Quiet, socket, |socket| socket.commit(batch), commits);
        self.wake();
        result.map_err(CommitFailure::Io)?
    }

    /// Foreign changes to the family's table since the last call.
    ///
    /// # Errors
    /// The system's error of reading the notifications.
    pub fn news(&mut self, family: Family) -> io::Result<Drift<T::Key>> {
        let foreign = self.changes()?;
        let by_proxies = std::mem::take(foreign.by_proxies.of_mut(family)).extent();
        let by_others = std::mem::take(foreign.by_others.of_mut(family)).extent();
        // The notifications of the other family were read, too.
        self.wake();
        Ok(Drift { by_proxies, by_others })
    }

    /// Reads the notifications, and wakes the engines that they concern; both, if they can't be read.
    fn read(&mut self) -> ReadProgress {
        match self.changes() {
            Ok(_) => self.wake(),
            Err(_) => {
                let wakers = self.wakers.v4.iter().chain(&self.wakers.v6).chain(&self.elsewhere);
                wakers.for_each(Waker::wake_by_ref);
            }
        }
        self.listener.progress()
    }

    /// Reads the notifications; returns the foreign changes, for the caller to take.
    fn changes(&mut self) -> io::Result<&mut Foreign<T>> {
        let foreign = self.listener.changes()?;
        if std::mem::take(&mut foreign.elsewhere) {
            self.elsewhere.iter().for_each(Waker::wake_by_ref);
        }
        Ok(foreign)
    }

    /// Wakes the engines of the families with foreign changes that were read, and not taken.
    fn wake(&self) {
        let foreign = self.listener.read_changes();
        for family in Family::ALL {
            if !foreign.by_proxies.of(family).is_empty() || !foreign.by_others.of(family).is_empty() {
                self.wakers.of(family).iter().for_each(Waker::wake_by_ref);
            }
        }
    }
}

impl<T: TableKeys> Default for ProcessListener<T> {
    fn default() -> Self {
        Self { listener: NftListener::default(), wakers: PerFamily::default(), elsewhere: None }
    }
}

// === impl Foreign ===

impl<T: TableKeys> Default for Foreign<T> {
    fn default() -> Self {
        Self { by_proxies: PerFamily::default(), by_others: PerFamily::default(), elsewhere: false }
    }
}

impl<T: TableKeys> Debug for Foreign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by_proxies, by_others, elsewhere } = self;
        let mut all = f.debug_struct("Foreign");
        all.field("by_proxies", by_proxies).field("by_others", by_others).field("elsewhere", elsewhere).finish()
    }
}

impl<T: TableKeys> ForeignChanges for Foreign<T> {
    fn record(&mut self, event: &NftEvent) {
        let Some(family) = event.family.filter(|_| event.table == T::TABLE) else {
            self.elsewhere |= matches!(event.what, Changed::Table | Changed::Chain { .. } | Changed::Rule { .. });
            return;
        };
        let touched = self.by_proxies.of_mut(family);
        match T::keys_of(family, &event.what) {
            Some(keys) if touched.keys.len() < TOUCHED => touched.keys.extend(keys),
            Some(_) | None => touched.everything = true,
        }
    }

    fn committed_by(&mut self, process: &str) {
        if !Family::ALL.map(thread_name).contains(&process) {
            let by_others = std::mem::take(&mut self.by_proxies);
            self.by_others.v4.merge(by_others.v4);
            self.by_others.v6.merge(by_others.v6);
        }
    }

    fn lost(&mut self, _: Option<&io::Error>) {
        self.by_proxies.v4.everything = true;
        self.by_proxies.v6.everything = true;
        self.elsewhere = true;
    }

    fn unobserved(&mut self) {
        self.lost(None);
    }

    fn merge(&mut self, later: Self) {
        self.by_proxies.v4.merge(later.by_proxies.v4);
        self.by_proxies.v6.merge(later.by_proxies.v6);
        self.by_others.v4.merge(later.by_others.v4);
        self.by_others.v6.merge(later.by_others.v6);
        self.elsewhere |= later.elsewhere;
    }
}

// === impl Touched ===

impl<K> Default for Touched<K> {
    fn default() -> Self {
        Self { keys: BTreeSet::new(), everything: false }
    }
}

impl<K: Ord> Touched<K> {
    fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.everything
    }

    fn merge(&mut self, later: Self) {
        self.keys.extend(later.keys);
        self.everything |= later.everything || self.keys.len() > TOUCHED;
        if self.everything {
            self.keys.clear();
        }
    }

    fn extent(self) -> Option<Extent<K>> {
        let keys: Vec<K> = self.keys.into_iter().collect();
        if self.everything { Some(Extent::All) } else { (!keys.is_empty()).then_some(Extent::Keys(keys)) }
    }
}

#[cfg(test)]
mod tests {
    use ferry_kernel::nft::{Element, Octets, OwnedData};

    use super::*;

    const TABLE: &str = "ours";

    /// A table with chains `ext-…` and one set, of addresses.
    #[derive(Debug)]
    enum Ours {}

    impl TableKeys for Ours {
        type Key = Vec<u8>;
        const TABLE: &'static str = TABLE;

        fn keys_of(_: Family, what: &Changed) -> Option<Vec<Vec<u8>>> {
            match what {
                Changed::Chain { name: chain, deleted: true } | Changed::Rule { chain } => {
                    chain.starts_with("ext-").then(|| vec![chain.clone().into_bytes()])
                }
                Changed::Elements { elements, .. } => {
                    Some(elements.iter().map(|element| element.key.to_vec()).collect())
                }
                Changed::Table | Changed::Set(_) | Changed::Chain { .. } | Changed::Other => None,
            }
        }
    }

    fn foreign(events: impl IntoIterator<Item = (Option<Family>, &'static str, Changed)>) -> Foreign<Ours> {
        let mut foreign = Foreign::default();
        for (family, table, what) in events {
            foreign.record(&NftEvent { port_id: 7, family, table: table.to_owned(), what });
        }
        foreign
    }

    fn rule(chain: &str) -> Changed {
        Changed::Rule { chain: chain.to_owned() }
    }

    /// A cluster IP, one element of a set of addresses.
    fn cluster_ip(last: u16) -> Changed {
        let [high, low] = last.to_be_bytes();
        let key = Octets::new(&[10, 96, high, low]).unwrap();
        let element = Element { key, key_end: None, data: OwnedData::None, interval_end: false };
        Changed::Elements { set: "cluster-ips".to_owned(), elements: vec![element] }
    }

    fn summary(foreign: &Foreign<Ours>) -> [(usize, bool); 2] {
        of(&foreign.by_proxies)
    }

    fn of(touched: &PerFamily<Touched<Vec<u8>>>) -> [(usize, bool); 2] {
        Family::ALL.map(|family| (touched.of(family).keys.len(), touched.of(family).everything))
    }

    #[test]
    fn changes_are_noted_by_family_and_key_in_our_table_alone() {
        let (v4, v6) = (Some(Family::V4), Some(Family::V6));
        let changes = foreign([
            (v4, TABLE, rule("ext-3")),
            (v4, TABLE, rule("ext-3")),
            (v4, TABLE, cluster_ip(1)),
            (v4, "other", rule("ext-4")),
            (None, TABLE, rule("ext-5")),
        ]);
        assert_eq!(summary(&changes), [(2, false), (0, false)]);
        assert!(changes.elsewhere && !foreign([(v4, TABLE, rule("ext-3"))]).elsewhere);
        assert!(!foreign([(v4, "other", cluster_ip(1))]).elsewhere, "elements of others are none of ours");
        assert_eq!(summary(&foreign([(v6, TABLE, Changed::Table)])), [(0, false), (0, true)]);
        assert_eq!(summary(&foreign([(v4, TABLE, rule("of nobody"))])), [(0, true), (0, false)]);
        let chain = |deleted| Changed::Chain { name: "ext-3".to_owned(), deleted };
        assert_eq!(summary(&foreign([(v4, TABLE, chain(true))])), [(1, false), (0, false)]);
        assert_eq!(summary(&foreign([(v4, TABLE, chain(false))])), [(0, true), (0, false)], "it may be renamed");
    }

    #[test]
    fn beyond_a_number_of_keys_everything_is_compared() {
        let of = |count: usize| foreign((0..count).map(|n| (Some(Family::V4), TABLE, cluster_ip(n as u16))));
        assert_eq!(summary(&of(TOUCHED)), [(TOUCHED, false), (0, false)]);
        assert_eq!(summary(&of(TOUCHED + 1)), [(TOUCHED, true), (0, false)]);
    }

    #[test]
    fn what_was_lost_or_unobserved_may_be_anything_in_both_families() {
        for (lost, everything) in [(false, false), (true, true)] {
            let mut changes = foreign([(Some(Family::V4), TABLE, rule("ext-3"))]);
            let mut later = foreign([(Some(Family::V6), TABLE, rule("ext-4"))]);
            if lost {
                later.lost(None);
            }
            changes.merge(later);
            let keys = usize::from(!everything);
            assert_eq!(summary(&changes), [(keys, everything), (keys, everything)]);
            assert_eq!(changes.elsewhere, lost);
        }
        let mut changes = Foreign::<Ours>::default();
        changes.unobserved();
        assert_eq!(summary(&changes), [(0, true), (0, true)]);
    }

    #[test]
    fn only_engines_of_proxies_are_proxies() {
        for (process, is_proxy) in [("sync-v4", true), ("sync-v6", true), ("nft", false), ("sync-v", false)] {
            let mut changes = foreign([(Some(Family::V4), TABLE, rule("ext-3"))]);
            changes.committed_by(process);
            let (counted, none) = ([(1, false), (0, false)], [(0, false), (0, false)]);
            let wanted = if is_proxy { (counted, none) } else { (none, counted) };
            assert_eq!((of(&changes.by_proxies), of(&changes.by_others)), wanted, "{process}");
        }
    }

    #[test]
    fn many_transactions_together_are_everything() {
        let mut changes = Foreign::<Ours>::default();
        for half in 0..2 {
            let keys = 0..TOUCHED / 2 + half;
            let mut later = foreign(keys.map(|n| (Some(Family::V4), TABLE, cluster_ip((n + half * TOUCHED) as u16))));
            later.committed_by("nft");
            changes.merge(later);
        }
        assert_eq!(of(&changes.by_others), [(0, true), (0, false)]);
    }
}
