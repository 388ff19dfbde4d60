//! The server's store: objects of all kinds under one resourceVersion counter, and the history of their changes.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferry_api::object::Kind;
use rustix::event::{EventfdFlags, eventfd};

use super::entry::{Damage, Draft, StoredObject};
use super::selector::Selector;

/// Changes kept per kind; a watch from an older version gets 410 Gone.
const LOG: usize = 16_384;
/// Paged lists kept for requests of their further pages.
const SNAPSHOTS: usize = 64;

/// The state behind the server's lock.
pub(super) struct Store {
    version: u64,
    /// watches from versions before this get 410 Gone
    floor: u64,
    kinds: HashMap<Kind, Held>,
    snapshots: BTreeMap<u64, Snapshot>,
    next_snapshot: u64,
    watchers: HashMap<u64, (Kind, Arc<OwnedFd>)>,
    next_watcher: u64,
    /// watches that are to end
    ending: HashSet<u64>,
    bookmarks: u64,
}

#[derive(Default)]
struct Held {
    objects: BTreeMap<String, Arc<StoredObject>>,
    log: VecDeque<StoredChange>,
    /// version of the newest change that was discarded
    forgotten: u64,
}

/// A change of one object.
#[derive(Clone)]
pub(super) struct StoredChange {
    pub(super) version: u64,
    pub(super) old: Option<Arc<StoredObject>>,
    pub(super) new: Option<Arc<StoredObject>>,
    /// the old content at the new version, for the DELETED event of watches whose selector no longer matches the object
    gone: Option<Arc<StoredObject>>,
}

/// A list with pages still to be requested.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) version: u64,
    pub(super) entries: Arc<[Arc<StoredObject>]>,
}

/// A version whose changes are no longer kept.
pub(super) struct Gone {
    pub(super) floor: u64,
}

/// Type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Added,
    Modified,
    Deleted,
}

// === impl Store ===

impl Store {
    pub(super) fn new() -> Self {
        Self {
            // Not 0, which means "any", nor 1, which would hide a client that confuses them.
            version: 1000,
            floor: 0,
            kinds: HashMap::new(),
            snapshots: BTreeMap::new(),
            next_snapshot: 1,
            watchers: HashMap::new(),
            next_watcher: 0,
            ending: HashSet::new(),
            bookmarks: 0,
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn put(&mut self, draft: Draft, damage: Option<Damage>) -> u64 {
        self.version += 1;
        let kind = draft.kind;
        let held = self.kinds.entry(kind).or_default();
        let old = held.objects.get(&draft.key).cloned();
        let mut new = draft.entry(self.version, old.as_deref());
        if let Some(damage) = damage {
            new = new.damaged(damage);
        }
        let new = Arc::new(new);
        held.objects.insert(new.key.clone(), Arc::clone(&new));
        let unlike = |old: &&Arc<StoredObject>| old.traits != new.traits;
        let gone = old.as_ref().filter(unlike).map(|old| Arc::new(old.at(self.version)));
        held.remember(StoredChange { version: self.version, old, new: Some(new), gone });
        self.version
    }

    /// Deletes an object; `None` if there is none.
    pub(super) fn delete(&mut self, kind: Kind, key: &str) -> Option<u64> {
        let held = self.kinds.entry(kind).or_default();
        let old = held.objects.remove(key)?;
        self.version += 1;
        let gone = Some(Arc::new(old.at(self.version)));
        held.remember(StoredChange { version: self.version, old: Some(old), new: None, gone });
        Some(self.version)
    }

    pub(super) fn compact(&mut self) {
        // As after a write to an object of a kind that isn't served here.
        self.version += 1;
        self.floor = self.version;
        self.snapshots.clear();
    }

    pub(super) fn restore(&mut self, version: u64) {
        for held in self.kinds.values_mut() {
            held.objects.retain(|_, entry| entry.version <= version);
            held.log.retain(|change| change.version <= version);
        }
        self.version = version;
        self.snapshots.clear();
    }

    pub(super) fn find(&self, kind: Kind, key: &str) -> Option<Arc<StoredObject>> {
        self.kinds.get(&kind)?.objects.get(key).cloned()
    }

    pub(super) fn list(&self, kind: Kind, selector: &Selector) -> Snapshot {
        let held = self.kinds.get(&kind).into_iter().flat_map(|held| held.objects.values());
        let entries = held.filter(|entry| selector.fits(&entry.traits)).cloned().collect();
        Snapshot { version: self.version, entries }
    }

    /// Keeps a list for its further pages, and returns its number.
    pub(super) fn keep(&mut self, snapshot: Snapshot) -> u64 {
        let number = self.next_snapshot;
        self.next_snapshot += 1;
        self.snapshots.insert(number, snapshot);
        if self.snapshots.len() > SNAPSHOTS {
            self.snapshots.pop_first();
        }
        number
    }

    pub(super) fn kept(&self, number: u64) -> Option<Snapshot> {
        self.snapshots.get(&number).cloned()
    }

    /// The first version that a new watch may begin with.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Changes of a kind after a version, and the version that they lead to.
    pub(super) fn changes(&self, kind: Kind, after: u64) -> Result<(Vec<StoredChange>, u64), Gone> {
        let Some(held) = self.kinds.get(&kind) else { return Ok((Vec::new(), self.version)) };
        if after < held.forgotten {
            return Err(Gone { floor: held.forgotten });
        }
        let first = held.log.partition_point(|change| change.version <= after);
        Ok((held.log.range(first..).cloned().collect(), self.version))
    }

    /// Registers a watch; the descriptor becomes readable at each change of its kind.
    pub(super) fn subscribe(&mut self, kind: Kind) -> (u64, Arc<OwnedFd>) {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("making an eventfd");
        let waker = Arc::new(waker);
        self.next_watcher += 1;
        self.watchers.insert(self.next_watcher, (kind, Arc::clone(&waker)));
        (self.next_watcher, waker)
    }

    pub(super) fn unsubscribe(&mut self, number: u64) {
        self.watchers.remove(&number);
        self.ending.remove(&number);
    }

    /// Ends the watches of a kind as at their timeout.
    pub(super) fn end_watches(&mut self, kind: Kind) {
        let of_kind = self.watchers.iter().filter(|(_, (of, _))| *of == kind);
        self.ending.extend(of_kind.map(|(number, _)| *number));
        self.wake(|of| of == kind);
    }

    /// True if this watch is to end.
    pub(super) fn is_ending(&self, number: u64) -> bool {
        self.ending.contains(&number)
    }

    pub(super) fn watchers(&self) -> usize {
        self.watchers.len()
    }

    /// Wakes the watches of the selected kinds.
    pub(super) fn wake(&self, kinds: impl Fn(Kind) -> bool) {
        for (_, waker) in self.watchers.values().filter(|(kind, _)| kinds(*kind)) {
            // Overflows only after 2^64 wake-ups without a read.
            let _ = rustix::io::write(waker, &1_u64.to_ne_bytes());
        }
    }

    /// Requests a bookmark of all watches.
    pub(super) fn bookmark(&mut self) {
        self.bookmarks += 1;
        self.wake(|_| true);
    }

    /// Number of requests for bookmarks so far.
    pub(super) fn bookmarks(&self) -> u64 {
        self.bookmarks
    }
}

// === impl Held ===

impl Held {
    fn remember(&mut self, change: StoredChange) {
        self.log.push_back(change);
        if self.log.len() > LOG
            && let Some(oldest) = self.log.pop_front()
        {
            self.forgotten = oldest.version;
        }
    }
}

// === impl StoredChange ===

impl StoredChange {
    /// The event of this change for a watch with this selector.
    pub(super) fn seen_by(&self, selector: &Selector) -> Option<(Verb, &Arc<StoredObject>)> {
        let seen = |entry: &&Arc<StoredObject>| selector.fits(&entry.traits);
        match (self.old.as_ref().filter(seen), self.new.as_ref().filter(seen)) {
            (None, Some(new)) => Some((Verb::Added, new)),
            (Some(_), Some(new)) => Some((Verb::Modified, new)),
            (Some(_), None) => self.gone.as_ref().map(|gone| (Verb::Deleted, gone)),
            (None, None) => None,
        }
    }
}
