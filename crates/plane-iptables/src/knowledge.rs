//! Tracks how far the mirror of one family's tables is valid, between reads, commits and foreign changes.
//!
//! ```text
//! Unknown ── everything read ──> Known ── a commit whose outcome is uncertain ──> Unknown
//!                                Known ── foreign changes ──> Known with possible drift ── compared with the mirror ──> Known
//! ```

use std::collections::{BTreeSet, HashSet};

use ferry_api::object::Family;
use ferry_kernel::iptables::Table;
use ferry_plane::Batch;

use crate::base;
use crate::mirror::{ChainOwnership, Mirror, Size};
use crate::object::{ChainId, IptKey, IptObject};
use crate::sort::Found;
use crate::watch::ChainChanges;

/// Validity of the mirror of one family's tables.
#[derive(Debug)]
pub(crate) enum Knowledge {
    /// The state is unknown: everything must be read before the next commit.
    Unknown {
        /// true if the engine has been asked to read everything
        reported: bool,
    },
    /// The mirror is valid, except for the possible drift.
    Known(Box<KnownTables>),
}

/// The tables as last read and written, and the parts that may have changed since.
#[derive(Debug)]
pub(crate) struct KnownTables {
    pub(crate) mirror: Mirror,
    pub(crate) depth: Depth,
    /// true if nothing was written since everything was read: a missing chain that a refused rule refers to never existed
    pub(crate) fresh: bool,
    pub(crate) possible_drift: PossibleDrift,
}

/// Completeness of the last full read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// every rule was read
    Whole,
    /// the tool could not print the rules of service chains, and can't on another read
    Unreadable,
}

/// Parts of the tables that may differ from the mirror.
#[derive(Debug, Default)]
pub(crate) struct PossibleDrift {
    /// foreign changes that were not compared with the mirror yet
    pub(crate) touched: ChainChanges,
    /// shared chains with foreign changes, whose rules are unknown
    pub(crate) stale_chains: BTreeSet<ChainId>,
    /// differing keys that were not reported to the engine yet, and that another proxy may have changed
    pub(crate) unreported: BTreeSet<IptKey>,
    /// shared chains that were read to compare them, for a repair in the same turn; `None` once something changes
    pub(crate) read_to_compare: Option<(BTreeSet<ChainId>, Found)>,
}

// === impl Knowledge ===

impl Knowledge {
    /// At the start: the engine reads everything without being asked.
    pub(crate) const START: Self = Self::Unknown { reported: true };
    /// After a commit whose outcome is uncertain.
    pub(crate) const UNCERTAIN: Self = Self::Unknown { reported: false };

    /// After a full read.
    pub(crate) fn of_all(mirror: Mirror, unreadable: bool) -> Self {
        let depth = if unreadable { Depth::Unreadable } else { Depth::Whole };
        Self::Known(Box::new(KnownTables { mirror, depth, fresh: true, possible_drift: PossibleDrift::default() }))
    }

    /// The known state; `None` if it is unknown.
    pub(crate) fn known(&mut self) -> Option<&mut KnownTables> {
        match self {
            Self::Known(known) => Some(known),
            Self::Unknown { .. } => None,
        }
    }

    /// Takes the known state for the time of a commit. The state is unknown until it is put back.
    pub(crate) fn take(&mut self) -> Option<Box<KnownTables>> {
        match std::mem::replace(self, Self::UNCERTAIN) {
            Self::Known(known) => Some(known),
            unknown @ Self::Unknown { .. } => {
                *self = unknown;
                None
            }
        }
    }

    /// True once after the state became unknown: the engine must be asked to read everything.
    pub(crate) fn report(&mut self) -> bool {
        match self {
            Self::Unknown { reported } => !std::mem::replace(reported, true),
            Self::Known(_) => false,
        }
    }

    /// True if there is something to report to the engine.
    pub(crate) fn is_unreported(&self) -> bool {
        match self {
            Self::Known(known) => {
                !known.possible_drift.touched.is_empty() || !known.possible_drift.unreported.is_empty()
            }
            Self::Unknown { reported } => !reported,
        }
    }

    /// The size of our part of a table; `None` if it is unknown.
    pub(crate) fn size(&self, table: Table) -> Option<Size> {
        match self {
            Self::Known(known) => Some(known.mirror.size(table)),
            Self::Unknown { .. } => None,
        }
    }
}

// === impl KnownTables ===

impl KnownTables {
    /// Notes foreign changes.
    pub(crate) fn touch(&mut self, touched: ChainChanges) {
        if !touched.is_empty() {
            self.possible_drift.read_to_compare = None;
        }
        if touched.everything || touched.unobserved {
            self.possible_drift.stale_chains.extend(base::shared_chains());
            self.mirror.forget_sequences();
        }
        touched.chains.iter().for_each(|id| self.mirror.forget_sequence(*id));
        let shared = touched.chains.iter().filter(|id| ChainOwnership::of(**id) != Some(ChainOwnership::Own));
        self.possible_drift.stale_chains.extend(shared);
        self.possible_drift.touched.merge(touched);
    }

    /// Notes differing keys.
    pub(crate) fn differ(&mut self, keys: Vec<IptKey>) {
        self.possible_drift.stale_chains.extend(keys.iter().filter_map(IptKey::shared_chain));
        self.possible_drift.unreported.extend(keys);
    }

    /// Notes that the shared chains among these were compared with the mirror, and that these keys differ.
    pub(crate) fn compared(&mut self, chains: &BTreeSet<ChainId>, differing: &[IptKey]) {
        let shared: HashSet<ChainId> = differing.iter().filter_map(IptKey::shared_chain).collect();
        self.possible_drift.stale_chains.retain(|chain| !chains.contains(chain) || shared.contains(chain));
    }

    /// Takes what was read to compare exactly these chains, if nothing has changed since.
    pub(crate) fn take_read_to_compare(&mut self, chains: &BTreeSet<ChainId>) -> Option<Found> {
        self.possible_drift.read_to_compare.take().filter(|(compared, _)| compared == chains).map(|(_, found)| found)
    }

    /// Replaces the mirror of these chains, which were read. Differing keys that were not asked for remain to be reported.
    pub(crate) fn renew(&mut self, chains: &BTreeSet<ChainId>, read: Mirror, differing: Vec<IptKey>, asked: &[IptKey]) {
        let asked: HashSet<&IptKey> = asked.iter().collect();
        self.possible_drift.unreported.extend(differing.into_iter().filter(|key| !asked.contains(key)));
        self.mirror.renew(chains, read);
        self.possible_drift.stale_chains.retain(|chain| !chains.contains(chain));
    }

    /// Applies the part of a batch that is in force; `stuck` chains are empty, but could not be deleted.
    pub(crate) fn written(&mut self, family: Family, batch: &Batch<IptObject>, stuck: &BTreeSet<ChainId>) {
        self.mirror.apply(family, batch, stuck);
        self.possible_drift.read_to_compare = None;
        self.fresh = false;
    }
}

#[cfg(test)]
mod tests {
    use ferry_kernel::iptables::{IptablesChainName, Rule};

    use super::*;
    use crate::names;
    use crate::object::{ChainRules, LONG};

    fn shared() -> ChainId {
        ChainId { table: Table::Nat, name: names::SERVICES }
    }

    fn known(knowledge: &mut Knowledge) -> &mut KnownTables {
        knowledge.known().unwrap()
    }

    fn touched(chains: &[ChainId]) -> ChainChanges {
        ChainChanges { chains: chains.iter().copied().collect(), ..ChainChanges::default() }
    }

    #[test]
    fn that_nothing_is_known_is_reported_once() {
        let mut knowledge = Knowledge::START;
        assert!(!knowledge.report(), "the engine reads everything at its start anyway");
        knowledge = Knowledge::of_all(Mirror::default(), false);
        assert!(!knowledge.report());
        knowledge = Knowledge::UNCERTAIN;
        assert!(knowledge.report());
        assert!(!knowledge.report());
        assert!(knowledge.take().is_none() && !knowledge.report(), "taking nothing changes nothing");
    }

    #[test]
    fn what_is_taken_and_not_put_back_is_unknown() {
        let mut knowledge = Knowledge::of_all(Mirror::default(), false);
        let known = knowledge.take().unwrap();
        assert!(knowledge.known().is_none() && knowledge.size(Table::Nat).is_none());
        knowledge = Knowledge::Known(known);
        assert!(knowledge.size(Table::Nat).is_some());
    }

    #[test]
    fn a_write_ends_freshness_and_makes_nothing_readable() {
        for (unreadable, depth) in [(false, Depth::Whole), (true, Depth::Unreadable)] {
            let mut knowledge = Knowledge::of_all(Mirror::default(), unreadable);
            let known = known(&mut knowledge);
            assert!(known.fresh && known.depth == depth);
            let batch = Batch { create: vec![IptObject::SharedChain(shared())], ..Batch::default() };
            known.written(Family::V4, &batch, &BTreeSet::new());
            assert!(!known.fresh && known.depth == depth);
            assert!(known.mirror.shared_chain(shared()).is_some());
        }
    }

    #[test]
    fn a_touched_chain_is_stale_until_it_was_compared_or_read() {
        let mut knowledge = Knowledge::of_all(Mirror::default(), false);
        let known = known(&mut knowledge);
        let (chain, key) = (shared(), IptKey::SharedChain(shared()));
        known.touch(touched(&[chain]));
        assert!(known.possible_drift.stale_chains.contains(&chain));
        known.compared(&[chain].into(), std::slice::from_ref(&key));
        assert!(known.possible_drift.stale_chains.contains(&chain), "it differs");
        known.compared(&[chain].into(), &[]);
        assert!(known.possible_drift.stale_chains.is_empty());
        known.touch(touched(&[chain]));
        known.renew(&[chain].into(), Mirror::default(), Vec::new(), &[]);
        assert!(known.possible_drift.stale_chains.is_empty());
    }

    #[test]
    fn what_was_read_for_a_comparison_is_used_once_until_something_changes() {
        let mut knowledge = Knowledge::of_all(Mirror::default(), false);
        let known = known(&mut knowledge);
        let (chains, others) = (BTreeSet::from([shared()]), BTreeSet::new());
        let read = || Some((BTreeSet::from([shared()]), Found::default()));
        known.possible_drift.read_to_compare = read();
        known.touch(touched(&[]));
        assert!(known.take_read_to_compare(&chains).is_some(), "nothing has changed");
        assert!(known.take_read_to_compare(&chains).is_none(), "once");
        known.possible_drift.read_to_compare = read();
        assert!(known.take_read_to_compare(&others).is_none(), "of these chains only");
        known.possible_drift.read_to_compare = read();
        known.touch(touched(&[shared()]));
        assert!(known.take_read_to_compare(&chains).is_none(), "others have changed something");
        known.possible_drift.read_to_compare = read();
        known.written(Family::V4, &Batch::default(), &BTreeSet::new());
        assert!(known.take_read_to_compare(&chains).is_none(), "written");
    }

    #[test]
    fn after_unobserved_commits_every_shared_chain_is_stale() {
        let mut knowledge = Knowledge::of_all(Mirror::default(), false);
        let known = known(&mut knowledge);
        known.touch(ChainChanges { unobserved: true, ..ChainChanges::default() });
        let all: BTreeSet<ChainId> = base::shared_chains().collect();
        assert_eq!(known.possible_drift.stale_chains, all);
    }

    #[test]
    fn a_chain_that_others_may_have_changed_is_edited_by_position_no_more() {
        let long = ChainId { table: Table::Nat, name: IptablesChainName::new("KUBE-SVC-XPGD46QRK7WJZT7O").unwrap() };
        let other = ChainId { name: IptablesChainName::new("KUBE-SVL-XPGD46QRK7WJZT7O").unwrap(), ..long };
        for (changes, kept) in [
            (ChainChanges::default(), (true, true)),
            (touched(&[long]), (false, true)),
            (ChainChanges { unobserved: true, ..ChainChanges::default() }, (false, false)),
            (ChainChanges { everything: true, ..ChainChanges::default() }, (false, false)),
        ] {
            let mut mirror = Mirror::default();
            for id in [long, other] {
                mirror.put_chain(id, &ChainRules(vec![Rule::default(); LONG].into()));
            }
            let mut knowledge = Knowledge::of_all(mirror, false);
            let known = known(&mut knowledge);
            known.touch(changes);
            let is_kept = |id| known.mirror.sequence(id).is_some();
            assert_eq!((is_kept(long), is_kept(other)), kept);
        }
    }

    #[test]
    fn the_engine_is_woken_for_what_it_does_not_know_yet() {
        assert!(!Knowledge::START.is_unreported() && Knowledge::UNCERTAIN.is_unreported());
        let after = |change: &dyn Fn(&mut KnownTables)| {
            let mut knowledge = Knowledge::of_all(Mirror::default(), false);
            change(known(&mut knowledge));
            knowledge.is_unreported()
        };
        assert!(!after(&|_| {}));
        assert!(after(&|known| known.touch(touched(&[shared()]))));
        assert!(after(&|known| known.differ(vec![IptKey::RouteLocalnet])));
        assert!(!after(&|known| known.differ(Vec::new())));
    }

    #[test]
    fn what_differs_is_reported_and_its_shared_chain_is_stale() {
        let mut knowledge = Knowledge::of_all(Mirror::default(), false);
        let known = known(&mut knowledge);
        let own = ChainId { table: Table::Nat, name: names::MARK_MASQ };
        let keys = [IptKey::Chain(own), IptKey::SharedChain(shared())];
        known.differ(keys.to_vec());
        assert_eq!(known.possible_drift.unreported, keys.into());
        assert_eq!(known.possible_drift.stale_chains, [shared()].into());
    }

    #[test]
    fn what_was_asked_for_is_not_reported_again() {
        let mut knowledge = Knowledge::of_all(Mirror::default(), false);
        let known = known(&mut knowledge);
        let other = ChainId { table: Table::Filter, ..shared() };
        let (asked, besides) = (IptKey::SharedChain(shared()), IptKey::SharedChain(other));
        let chains = [shared(), other].into();
        let differing = vec![asked.clone(), besides.clone()];
        known.renew(&chains, Mirror::default(), differing, &[asked]);
        assert_eq!(known.possible_drift.unreported, [besides].into());
    }
}
