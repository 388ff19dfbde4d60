//! A kernel in memory: a map of objects, and faults on demand, for one engine or for two. For tests of the engine and of
//! compilers.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::{Applied, Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Object, Op};

/// An object that returns its references, so that the order of operations can be checked.
pub trait Refers: Object {
    /// The keys that have to exist as long as this object does.
    fn refers_to(&self) -> Vec<Self::Key>;
}

/// A fault of the next commit.
#[derive(Debug)]
pub enum Fault<K> {
    /// an object is in use temporarily
    Busy,
    /// the mode can't be used
    Unusable,
    /// these keys are refused, and named
    Refuse(Vec<K>),
    /// these keys are rejected until the fault is removed, without being named
    RefuseSilently(Vec<K>),
    /// the commit fails after this number of operations, in the canonical order, or after the last one if there are fewer
    HalfWay {
        /// made
        operations: usize,
        /// the error
        error: Failing,
    },
}

/// The error of a commit that fails half-way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// the operation that comes next is refused, and named
    Refused,
    /// one of the operations is refused
    RefusedSilently,
    /// an object that was missing or in the way
    Drifted,
    /// no memory
    Resources,
    /// a lock
    Busy,
    /// the mode can't be used
    Unusable,
}

/// Holds objects; commits are atomic unless a fault stops them half-way. Checks at every step that no object refers to a missing
/// one.
#[derive(Debug)]
pub struct MemoryKernel<O: Object> {
    /// the actual state
    pub objects: BTreeMap<O::Key, O>,
    /// faults of the next commits, one each
    pub faults: VecDeque<Fault<O::Key>>,
    /// keys that are refused whenever they are created or replaced
    pub refused: Vec<O::Key>,
    /// keys that another program locks whenever they are created or replaced
    pub busy: Vec<O::Key>,
    /// keys for which the kernel has no memory whenever they are created or replaced
    pub starved: Vec<O::Key>,
    /// keys whose deletion fails with `EBUSY`
    pub in_use: Vec<O::Key>,
    /// keys with foreign changes by an unknown writer since the last notification
    pub touched: Vec<O::Key>,
    /// foreign changes give no notification
    pub deaf: bool,
    /// commits that succeeded
    pub commits: usize,
    /// commits that were attempted
    pub attempts: usize,
    /// descriptions of violations of the order of operations
    pub violations: Vec<String>,
}

/// One of two sides of a kernel in memory: each is notified of the other's commits, as those of a proxy, and of the changes by a
/// third writer, as those of another program.
#[derive(Debug)]
pub struct Side<O: Object> {
    shared: Arc<Mutex<Shared<O>>>,
    index: usize,
    /// it reports foreign changes before a commit, too
    has_news: bool,
}

#[derive(Debug)]
struct Shared<O: Object> {
    memory: MemoryKernel<O>,
    /// unread notifications of each side
    news: [News<O::Key>; 2],
}

/// Changed keys, by writer.
#[derive(Debug)]
struct News<K> {
    by_proxies: Vec<K>,
    by_others: Vec<K>,
}

// === impl MemoryKernel ===

impl<O: Object> Default for MemoryKernel<O> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            faults: VecDeque::new(),
            refused: Vec::new(),
            busy: Vec::new(),
            starved: Vec::new(),
            in_use: Vec::new(),
            touched: Vec::new(),
            deaf: false,
            commits: 0,
            attempts: 0,
            violations: Vec::new(),
        }
    }
}

impl<O: Refers> MemoryKernel<O> {
    /// Removes an object, as a foreign change.
    pub fn lose(&mut self, key: &O::Key) {
        if self.objects.remove(key).is_some() {
            self.touched.push(key.clone());
        }
    }

    /// Writes an object, as a foreign change.
    pub fn foreign(&mut self, object: O) {
        self.touched.push(object.key());
        self.objects.insert(object.key(), object);
    }

    /// Removes everything, as a foreign change.
    pub fn flush(&mut self) {
        self.touched.extend(self.objects.keys().cloned());
        self.objects.clear();
    }

    fn refusals(&self, batch: &Batch<O>, refused: &[O::Key]) -> Vec<(Op, usize, io::Error)> {
        let named = |op, list: &[O]| -> Vec<(Op, usize, io::Error)> {
            let hits = list.iter().enumerate().filter(|(_, object)| refused.contains(&object.key()));
            hits.map(|(index, _)| (op, index, io::Error::from(io::ErrorKind::InvalidInput))).collect()
        };
        let mut all = named(Op::Create, &batch.create);
        all.extend(named(Op::Replace, &batch.replace));
        all
    }

    /// The next fault.
    fn fail(&mut self, batch: &Batch<O>) -> Result<(), CommitFailure> {
        match self.faults.pop_front() {
            Some(Fault::Busy) => Err(Failing::Busy.error(batch, 0).into()),
            Some(Fault::Unusable) => Err(Failing::Unusable.error(batch, 0).into()),
            Some(Fault::Refuse(keys)) if !self.refusals(batch, &keys).is_empty() => {
                Err(CommitError::Refused(self.refusals(batch, &keys)).into())
            }
            Some(Fault::RefuseSilently(keys)) => {
                let hit = !self.refusals(batch, &keys).is_empty();
                self.faults.push_front(Fault::RefuseSilently(keys));
                if hit { Err(CommitError::Refused(Vec::new()).into()) } else { Ok(()) }
            }
            Some(Fault::HalfWay { operations, error }) => {
                self.check(batch)?;
                self.make(batch, operations);
                Err(CommitFailure::unknown(error.error(batch, operations)))
            }
            Some(Fault::Refuse(_)) | None => Ok(()),
        }
    }

    /// Makes the first operations.
    fn make(&mut self, batch: &Batch<O>, operations: usize) {
        for (op, _, object) in batch.operations().take(operations) {
            match op {
                Op::Create | Op::Replace => self.put(object),
                Op::Delete => self.delete(object),
            }
        }
    }

    fn check(&mut self, batch: &Batch<O>) -> Result<(), CommitError> {
        let drifted = |object: &O| CommitError::Drifted { object: object.key().to_string() };
        let mut written: BTreeMap<O::Key, &O> = BTreeMap::new();
        for object in batch.create.iter().chain(&batch.replace) {
            match written.insert(object.key(), object) {
                Some(other) if other != object => return Err(drifted(object)),
                Some(_) => self.violations.push(format!("{object} is written twice")),
                None => {}
            }
        }
        if let Some(object) = batch.delete.iter().find(|object| written.contains_key(&object.key())) {
            self.violations.push(format!("{object} is written and deleted"));
        }
        if let Some(object) = batch.create.iter().find(|object| self.objects.contains_key(&object.key())) {
            // An identical spare part is filled anew, as the kernel halves do.
            if !object.spare() {
                return Err(drifted(object));
            }
        }
        let changed = batch.replace.iter().chain(&batch.delete);
        match changed.into_iter().find(|object| !self.objects.contains_key(&object.key())) {
            Some(object) => Err(drifted(object)),
            None => Ok(()),
        }
    }

    fn put(&mut self, object: &O) {
        for target in object.refers_to() {
            if !self.objects.contains_key(&target) {
                self.violations.push(format!("{object} refers to {target}, which does not exist"));
            }
        }
        self.objects.insert(object.key(), object.clone());
    }

    fn delete(&mut self, object: &O) {
        let key = object.key();
        self.objects.remove(&key);
        if let Some(user) = self.objects.values().find(|user| user.refers_to().contains(&key)) {
            self.violations.push(format!("{object} was deleted while {user} refers to it"));
        }
    }
}

impl<O: Refers> Kernel<O> for MemoryKernel<O> {
    fn prepare(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<O::Key>) -> Result<Vec<O>, CommitError> {
        Ok(match extent {
            Extent::All => self.objects.values().cloned().collect(),
            Extent::Keys(keys) => keys.iter().filter_map(|key| self.objects.get(key).cloned()).collect(),
        })
    }

    fn commit(&mut self, batch: &Batch<O>) -> Result<(), CommitFailure> {
        self.attempts += 1;
        let refusals = self.refusals(batch, &self.refused);
        if !refusals.is_empty() {
            return Err(CommitError::Refused(refusals).into());
        }
        if !self.refusals(batch, &self.busy).is_empty() {
            return Err(CommitError::Busy(io::ErrorKind::WouldBlock.into()).into());
        }
        if !self.refusals(batch, &self.starved).is_empty() {
            return Err(CommitError::Resources(io::ErrorKind::OutOfMemory.into()).into());
        }
        if batch.delete.iter().any(|object| self.in_use.contains(&object.key())) {
            return Err(CommitError::Resources(io::ErrorKind::ResourceBusy.into()).into());
        }
        self.fail(batch)?;
        self.check(batch)?;
        self.make(batch, usize::MAX);
        self.commits += 1;
        Ok(())
    }

    fn tend(&mut self, _now: Instant) -> Result<Drift<O::Key>, CommitError> {
        if self.deaf {
            return Err(CommitError::Busy(io::Error::other("deaf")));
        }
        Ok(Drift { by_proxies: extent(std::mem::take(&mut self.touched)), by_others: None })
    }
}

// === impl Failing ===

impl Failing {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Refused, Self::RefusedSilently, Self::Drifted, Self::Resources, Self::Busy, Self::Unusable];

    /// State after this number of operations of a batch.
    fn error<O>(self, batch: &Batch<O>, operations: usize) -> CommitError {
        match self {
            Self::Refused => {
                let next = batch.operations().nth(operations);
                let named = next.map(|(op, index, _)| (op, index, io::Error::from(io::ErrorKind::InvalidInput)));
                CommitError::Refused(named.into_iter().collect())
            }
            Self::RefusedSilently => CommitError::Refused(Vec::new()),
            Self::Drifted => CommitError::Drifted { object: "something".to_owned() },
            Self::Resources => CommitError::Resources(io::ErrorKind::OutOfMemory.into()),
            Self::Busy => CommitError::Busy(io::ErrorKind::WouldBlock.into()),
            Self::Unusable => CommitError::Unusable(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

// === impl Side ===

impl<O: Refers> Side<O> {
    /// Both ways to one kernel.
    pub fn pair() -> [Self; 2] {
        let shared = Arc::new(Mutex::new(Shared { memory: MemoryKernel::default(), news: Default::default() }));
        [0, 1].map(|index| Self { shared: Arc::clone(&shared), index, has_news: false })
    }

    /// The same side as a kernel half that reports foreign changes before a commit, too.
    #[must_use]
    pub fn with_news(self) -> Self {
        Self { has_news: true, ..self }
    }

    /// Foreign changes since the last call.
    fn touched(&self) -> Drift<O::Key> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let News { by_proxies, by_others } = shared.news.get_mut(self.index).map(std::mem::take).unwrap_or_default();
        Drift { by_proxies: extent(by_proxies), by_others: extent(by_others) }
    }

    /// True if there are foreign changes that were not read yet: the kernel half would wake its engine.
    pub fn is_notified(&self) -> bool {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.news.get(self.index).is_some_and(|news| !news.by_proxies.is_empty() || !news.by_others.is_empty())
    }

    /// Gives the kernel to a third writer; both sides are notified of what is touched there.
    pub fn with<R>(&self, work: impl FnOnce(&mut MemoryKernel<O>) -> R) -> R {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut shared.memory);
        let touched = std::mem::take(&mut shared.memory.touched);
        shared.news.iter_mut().for_each(|news| news.by_others.extend(touched.iter().cloned()));
        result
    }
}

// === impl News ===

// Derived, this would ask for the same of the keys.
impl<K> Default for News<K> {
    fn default() -> Self {
        Self { by_proxies: Vec::new(), by_others: Vec::new() }
    }
}

fn extent<K>(keys: Vec<K>) -> Option<Extent<K>> {
    (!keys.is_empty()).then_some(Extent::Keys(keys))
}

impl<O: Refers> Kernel<O> for Side<O> {
    fn prepare(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<O::Key>) -> Result<Vec<O>, CommitError> {
        self.with(|memory| memory.read_back(extent))
    }

    fn news(&mut self) -> Result<Drift<O::Key>, CommitError> {
        Ok(if self.has_news { self.touched() } else { Drift::default() })
    }

    fn commit(&mut self, batch: &Batch<O>) -> Result<(), CommitFailure> {
        let result = self.with(|memory| memory.commit(batch));
        if matches!(&result, Err(failure) if failure.applied == Applied::Nothing) {
            return result;
        }
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, news) in shared.news.iter_mut().enumerate().filter(|(index, _)| *index != self.index) {
            news.by_proxies.extend(batch.operations().map(|(_, _, object)| object.key()));
        }
        result
    }

    fn tend(&mut self, _now: Instant) -> Result<Drift<O::Key>, CommitError> {
        Ok(self.touched())
    }
}
