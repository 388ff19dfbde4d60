//! Objects that are out of use and are deleted some time after the commit that took them out of use.
//!
//! - Sets of source ranges. From the commit that deletes a set on, lookups in it find nothing, also those of packets that still
//!   meet the rules of before, which would drop them: seen on Linux 6.18, some packets in a thousand that raced a commit.
//! - Chains, on kernels that release references to a chain late: they are empty, but busy.

use std::time::{Duration, Instant};

use ferry_plane::{Batch, Object as _};

use crate::encode::ChainRelease;
use crate::names::SetName;
use crate::object::{NftKey, NftObject};

/// More than a packet is under way in a hook, and more than a chain that was referred to stays busy.
const RELEASE: Duration = Duration::from_secs(1);

/// The keys of such objects; each with the time of the first look at it.
#[derive(Debug, Default)]
pub(crate) struct Retired(Vec<(NftKey, Option<Instant>)>);

// === impl Retired ===

impl Retired {
    /// Adds what a committed batch took out of use; what it made again is in use.
    pub(crate) fn note(&mut self, batch: &Batch<NftObject>, release: ChainRelease) {
        for object in batch.create.iter().chain(&batch.replace) {
            if matches!(object, NftObject::Chain(..) | NftObject::Ranges(..)) {
                let made = object.key();
                self.0.retain(|(key, _)| *key != made);
            }
        }
        let waits = |object: &&NftObject| match object {
            NftObject::Ranges(..) => true,
            NftObject::Chain(..) => release == ChainRelease::Later,
            NftObject::Table(_) | NftObject::Set(_) | NftObject::Element(..) => false,
        };
        self.0.extend(batch.delete.iter().filter(waits).map(|object| (object.key(), None)));
    }

    /// True if an object that was read back is one of these.
    pub(crate) fn holds(&self, object: &NftObject) -> bool {
        let unused = match object {
            NftObject::Ranges(..) => true,
            NftObject::Chain(_, rules) => rules.0.is_empty(),
            NftObject::Table(_) | NftObject::Set(_) | NftObject::Element(..) => false,
        };
        unused && self.0.iter().any(|(key, _)| *key == object.key())
    }

    /// The keys whose time has come. Chains are first, since their rules refer to sets.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<NftKey> {
        let mut due = Vec::new();
        for (key, since) in &mut self.0 {
            if now.saturating_duration_since(*since.get_or_insert(now)) >= RELEASE {
                due.push(*key);
            }
        }
        due.sort_unstable_by_key(|key| matches!(key, NftKey::Set(SetName::Sources(_))));
        due
    }

    /// Notes a try to delete one: it is gone, or waits anew.
    pub(crate) fn tried(&mut self, tried: NftKey, gone: bool) {
        self.0.retain_mut(|(key, since)| {
            *since = since.filter(|_| *key != tried);
            !(gone && *key == tried)
        });
    }

    /// When to look again.
    pub(crate) fn wake(&self, now: Instant) -> Option<Instant> {
        (!self.0.is_empty()).then(|| now + RELEASE)
    }
}
