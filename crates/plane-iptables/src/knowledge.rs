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
mod tests;
