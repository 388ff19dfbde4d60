//! What somebody else may have changed, until it has been looked at twice.
//!
//! A second proxy of the same node (a rolling update, say) makes the same changes as we do, a moment earlier or later. What
//! differs from our view at the first look is mostly what we are about to do, too; what still differs a moment later
//! is damage.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::Extent;

/// From the last change to the second look.
pub(super) const CONFIRM: Duration = Duration::from_millis(150);
/// From the first change, however many follow.
const LONGEST: Duration = Duration::from_millis(1500);

/// Objects that may be damaged, each with the time of the second look.
#[derive(Debug)]
pub(super) struct Suspects<K> {
    keys: HashMap<K, Suspicion>,
    all: Option<Suspicion>,
}

#[derive(Clone, Copy, Debug)]
struct Suspicion {
    since: Instant,
    due: Instant,
}

// === impl Suspects ===

impl<K> Default for Suspects<K> {
    fn default() -> Self {
        Self { keys: HashMap::new(), all: None }
    }
}

impl<K: Hash + Eq + Clone> Suspects<K> {
    /// Somebody else touched these just now: they are looked at when he has left them alone for a while.
    pub(super) fn touched(&mut self, extent: Extent<K>, now: Instant) {
        let fresh = Suspicion { since: now, due: now + CONFIRM };
        match extent {
            Extent::All => self.all.get_or_insert(fresh).again(now),
            Extent::Keys(keys) => {
                keys.into_iter().for_each(|key| self.keys.entry(key).or_insert(fresh).again(now));
            }
        }
    }

    /// These are to be looked at now.
    pub(super) fn check(&mut self, extent: Extent<K>, now: Instant) {
        let at_once = Suspicion { since: now, due: now };
        match extent {
            Extent::All => self.all = Some(at_once),
            Extent::Keys(keys) => self.keys.extend(keys.into_iter().map(|key| (key, at_once))),
        }
    }

    /// What is to be looked at now.
    pub(super) fn due(&self, now: Instant) -> Option<Extent<K>> {
        if self.all.is_some_and(|suspicion| suspicion.due <= now) {
            return Some(Extent::All);
        }
        let keys: Vec<K> = self.keys.iter().filter(|(_, of)| of.due <= now).map(|(key, _)| key.clone()).collect();
        (!keys.is_empty()).then_some(Extent::Keys(keys))
    }

    /// Whether this is to be looked at, but not yet.
    pub(super) fn waits(&self, key: &K, now: Instant) -> bool {
        self.keys.get(key).is_some_and(|suspicion| suspicion.due > now)
    }

    /// True if any of these is suspected of drift.
    pub(super) fn concern(&self, mut keys: impl Iterator<Item = K>) -> bool {
        self.all.is_some() || !self.keys.is_empty() && keys.any(|key| self.keys.contains_key(&key))
    }

    /// What was due has been looked at, and is as it should be.
    pub(super) fn clear_due(&mut self, now: Instant) {
        self.keys.retain(|_, suspicion| suspicion.due > now);
    }

    /// Of what was looked at (`None`: everything), these were found as they should not be, and the rest is as it should be.
    /// They are looked at again; those that were to be anyway, at their time.
    pub(super) fn found(&mut self, looked: Option<&HashSet<K>>, wrong: HashSet<K>, now: Instant) {
        if looked.is_none() {
            self.all = None;
        }
        self.keys.retain(|key, _| looked.is_some_and(|looked| !looked.contains(key)) || wrong.contains(key));
        for key in wrong {
            self.keys.entry(key).or_insert(Suspicion { since: now, due: now + CONFIRM });
        }
    }

    /// When the next look is due.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.keys.values().chain(&self.all).map(|suspicion| suspicion.due).min()
    }
}

// === impl Suspicion ===

impl Suspicion {
    fn again(&mut self, now: Instant) {
        self.due = (now + CONFIRM).min(self.since + LONGEST);
    }
}
