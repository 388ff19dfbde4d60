//! Detects foreign changes to our tables, by key and by writer, and keeps them until the engine takes them. One listener serves
//! the whole process, whose engines commit one after another.

use std::collections::BTreeSet;
use std::io;
use std::task::Waker;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, Accounting, Changed, CommitFailure, Event, ForeignChanges, Listener, Progress, Socket};
use ferry_model::PerFamily;
use ferry_plane::{CommitLock, Drift, Extent, thread_name};

use crate::names::{ChainName, SetName, TABLE};
use crate::object::NftKey;
use crate::wire;

/// With more foreign changes than this, everything is compared.
const TOUCHED: usize = 1024;

/// Engines of one process commit one after another.
pub type NftablesCommitLock = CommitLock<ProcessListener>;

/// The listener of this process, and the wakers of its engines.
#[derive(Debug, Default)]
pub struct ProcessListener {
    listener: Listener<Foreign>,
    wakers: PerFamily<Option<Waker>>,
}

/// Foreign changes to the tables of both families.
#[derive(Debug, Default)]
struct Foreign {
    /// also by unknown writers
    by_proxies: PerFamily<Touched>,
    by_others: PerFamily<Touched>,
}

/// Foreign changes to one family's table.
#[derive(Debug, Default)]
struct Touched {
    keys: BTreeSet<NftKey>,
    /// or anything else
    everything: bool,
}

/// Returns the body of a thread that waits for foreign changes and wakes the engines that they concern, of those that share this
/// lock. It ends only if waiting fails, with that error.
///
/// # Errors
/// The system's error; `EPERM` without `CAP_NET_ADMIN`.
pub fn listener(commit_lock: NftablesCommitLock) -> io::Result<impl FnOnce() -> io::Error + Send + 'static> {
    let arrivals = commit_lock.take().listener.arrivals()?;
    Ok(move || arrivals.follow(|| commit_lock.take().read()))
}

// === impl ProcessListener ===

impl ProcessListener {
    /// Subscribes, in the network namespace of this thread; commits by this socket are no foreign changes.
    pub(crate) fn join(&mut self, socket: &Socket) -> io::Result<()> {
        self.listener.own(socket);
        self.listener.join()
    }

    /// Sets what is woken when there are foreign changes to the family's table.
    pub(crate) fn wake_by(&mut self, family: Family, waker: &Waker) {
        *self.wakers.of_mut(family) = Some(waker.clone());
        self.wake();
    }

    /// Commits with the subscription suspended.
    pub(crate) fn commit_quietly(
        &mut self,
        socket: &mut Socket,
        batch: nft::Batch,
    ) -> Result<nft::CommitStats, CommitFailure> {
        let commits = |result: &Result<_, _>| Some(u32::from(result.is_ok()));
        let result = self.listener.around(Accounting::Quiet, socket, |socket| socket.commit(batch), commits);
        self.wake();
        result.map_err(CommitFailure::Io)?
    }

    /// Foreign changes to the family's table since the last call.
    pub(crate) fn news(&mut self, family: Family) -> io::Result<Drift<NftKey>> {
        let foreign = self.listener.changes()?;
        let by_proxies = std::mem::take(foreign.by_proxies.of_mut(family)).extent();
        let by_others = std::mem::take(foreign.by_others.of_mut(family)).extent();
        // The notifications of the other family were read, too.
        self.wake();
        Ok(Drift { by_proxies, by_others })
    }

    /// Reads the notifications, and wakes the engines that they concern; both, if they can't be read.
    fn read(&mut self) -> Progress {
        match self.listener.changes() {
            Ok(_) => self.wake(),
            Err(_) => self.wakers.v4.iter().chain(&self.wakers.v6).for_each(Waker::wake_by_ref),
        }
        self.listener.progress()
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

// === impl Foreign ===

impl ForeignChanges for Foreign {
    fn record(&mut self, event: &Event) {
        let Some(family) = event.family.filter(|_| event.table == TABLE) else { return };
        let touched = self.by_proxies.of_mut(family);
        match keys_of(family, &event.what) {
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
    }

    fn unobserved(&mut self) {
        self.lost(None);
    }

    fn merge(&mut self, later: Self) {
        self.by_proxies.v4.merge(later.by_proxies.v4);
        self.by_proxies.v6.merge(later.by_proxies.v6);
        self.by_others.v4.merge(later.by_others.v4);
        self.by_others.v6.merge(later.by_others.v6);
    }
}

// === impl Touched ===

impl Touched {
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

    fn extent(self) -> Option<Extent<NftKey>> {
        let keys: Vec<NftKey> = self.keys.into_iter().collect();
        if self.everything { Some(Extent::All) } else { (!keys.is_empty()).then_some(Extent::Keys(keys)) }
    }
}

/// Keys of the objects that a change affects; `None` if any object may be affected.
fn keys_of(family: Family, what: &Changed) -> Option<Vec<NftKey>> {
    match what {
        // The notification of a renamed chain has the new name only.
        Changed::Table | Changed::Set(_) | Changed::Chain { deleted: false, .. } | Changed::Other => None,
        Changed::Chain { name: chain, deleted: true } | Changed::Rule { chain } => {
            Some(vec![NftKey::Chain(ChainName::parse(chain)?)])
        }
        Changed::Elements { set, elements } => {
            let set = SetName::parse(set)?;
            if matches!(set, SetName::Affinity(..)) {
                // Affinity entries are written by packets.
                return Some(Vec::new());
            }
            if matches!(set, SetName::Sources(_)) {
                return Some(vec![NftKey::Set(set)]);
            }
            elements.iter().map(|element| wire::key(set, family, element).map(NftKey::Element)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_kernel::nft::{Element, Octets, OwnedData};

    use super::*;
    use crate::names::FixedSet;

    fn foreign(events: impl IntoIterator<Item = (Option<Family>, &'static str, Changed)>) -> Foreign {
        let mut foreign = Foreign::default();
        for (family, table, what) in events {
            foreign.record(&Event { port_id: 7, family, table: table.to_owned(), what });
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
        Changed::Elements { set: SetName::Fixed(FixedSet::ClusterIps).to_string(), elements: vec![element] }
    }

    fn summary(foreign: &Foreign) -> [(usize, bool); 2] {
        of(&foreign.by_proxies)
    }

    fn of(touched: &PerFamily<Touched>) -> [(usize, bool); 2] {
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
        }
        let mut changes = Foreign::default();
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
        let mut changes = Foreign::default();
        for half in 0..2 {
            let keys = 0..TOUCHED / 2 + half;
            let mut later = foreign(keys.map(|n| (Some(Family::V4), TABLE, cluster_ip((n + half * TOUCHED) as u16))));
            later.committed_by("nft");
            changes.merge(later);
        }
        assert_eq!(of(&changes.by_others), [(0, true), (0, false)]);
    }
}
