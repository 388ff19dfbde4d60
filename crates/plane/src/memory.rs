//! A kernel in memory: a map of objects, and faults on demand, for one engine or for two. For tests of the engine and of
//! compilers.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::{Batch, CommitError, Extent, Kernel, Object, Op, Tended};

/// An object that can say what it refers to, so that the order of operations can be checked.
pub trait Refers: Object {
    /// The keys that have to exist as long as this object does.
    fn refers_to(&self) -> Vec<Self::Key>;
}

/// What the next commit shall meet.
#[derive(Debug)]
pub enum Fault<K> {
    /// something is in use for a moment
    Busy,
    /// the mode can't be used
    Unusable,
    /// these keys are refused, and named
    Refuse(Vec<K>),
    /// these keys are refused until the fault is taken away, and the kernel doesn't say which
    RefuseSilently(Vec<K>),
}

/// Holds objects, all or nothing for each batch, and checks at every step that nothing refers to what doesn't exist.
#[derive(Debug)]
pub struct MemoryKernel<O: Object> {
    /// what is there
    pub objects: BTreeMap<O::Key, O>,
    /// faults of the next commits, one each
    pub faults: VecDeque<Fault<O::Key>>,
    /// keys that are refused whenever they are created or replaced
    pub refused: Vec<O::Key>,
    /// keys for which the kernel has no memory whenever they are created or replaced
    pub busy: Vec<O::Key>,
    /// keys whose deletion fails with `EBUSY`
    pub in_use: Vec<O::Key>,
    /// what somebody else did since the last look
    pub touched: Vec<O::Key>,
    /// nothing of what somebody else does is heard
    pub deaf: bool,
    /// commits that were made
    pub commits: usize,
    /// commits that were asked for
    pub attempts: usize,
    /// what went wrong with the order of operations, in words
    pub violations: Vec<String>,
}

/// One of two ways to the same kernel in memory: each is told what came by the other, or by a third.
#[derive(Debug)]
pub struct Side<O: Object> {
    shared: Arc<Mutex<Shared<O>>>,
    index: usize,
}

#[derive(Debug)]
struct Shared<O: Object> {
    memory: MemoryKernel<O>,
    /// what each side has not heard of yet
    news: [Vec<O::Key>; 2],
}

// === impl MemoryKernel ===

impl<O: Object> Default for MemoryKernel<O> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            faults: VecDeque::new(),
            refused: Vec::new(),
            busy: Vec::new(),
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
    /// Somebody else removes an object.
    pub fn lose(&mut self, key: &O::Key) {
        if self.objects.remove(key).is_some() {
            self.touched.push(key.clone());
        }
    }

    /// Somebody else writes an object.
    pub fn foreign(&mut self, object: O) {
        self.touched.push(object.key());
        self.objects.insert(object.key(), object);
    }

    /// Somebody else removes everything.
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

    fn commit(&mut self, batch: &Batch<O>) -> Result<(), CommitError> {
        self.attempts += 1;
        let refusals = self.refusals(batch, &self.refused);
        if !refusals.is_empty() {
            return Err(CommitError::Refused(refusals));
        }
        if !self.refusals(batch, &self.busy).is_empty() {
            return Err(CommitError::Busy(io::ErrorKind::OutOfMemory.into()));
        }
        if batch.delete.iter().any(|object| self.in_use.contains(&object.key())) {
            return Err(CommitError::Busy(io::ErrorKind::ResourceBusy.into()));
        }
        match self.faults.pop_front() {
            Some(Fault::Busy) => return Err(CommitError::Busy(io::ErrorKind::ResourceBusy.into())),
            Some(Fault::Unusable) => return Err(CommitError::Unusable(io::ErrorKind::PermissionDenied.into())),
            Some(Fault::Refuse(keys)) if !self.refusals(batch, &keys).is_empty() => {
                return Err(CommitError::Refused(self.refusals(batch, &keys)));
            }
            Some(Fault::RefuseSilently(keys)) => {
                let hit = !self.refusals(batch, &keys).is_empty();
                self.faults.push_front(Fault::RefuseSilently(keys));
                if hit {
                    return Err(CommitError::Refused(Vec::new()));
                }
            }
            Some(Fault::Refuse(_)) | None => {}
        }
        self.check(batch)?;
        for object in batch.create.iter().chain(&batch.replace) {
            self.put(object);
        }
        for object in &batch.delete {
            self.delete(object);
        }
        self.commits += 1;
        Ok(())
    }

    fn tend(&mut self, _now: Instant) -> Result<Tended<O::Key>, CommitError> {
        if self.deaf {
            return Err(CommitError::Busy(io::Error::other("deaf")));
        }
        let touched = std::mem::take(&mut self.touched);
        let drift = if touched.is_empty() { None } else { Some(Extent::Keys(touched)) };
        Ok(Tended { wake: None, drift })
    }
}

// === impl Side ===

impl<O: Refers> Side<O> {
    /// Both ways to one kernel.
    pub fn pair() -> [Self; 2] {
        let shared = Arc::new(Mutex::new(Shared { memory: MemoryKernel::default(), news: [Vec::new(), Vec::new()] }));
        [0, 1].map(|index| Self { shared: Arc::clone(&shared), index })
    }

    /// Gives the kernel; what is touched there, both sides hear of.
    pub fn with<R>(&self, work: impl FnOnce(&mut MemoryKernel<O>) -> R) -> R {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut shared.memory);
        let touched = std::mem::take(&mut shared.memory.touched);
        shared.news.iter_mut().for_each(|news| news.extend(touched.iter().cloned()));
        result
    }
}

impl<O: Refers> Kernel<O> for Side<O> {
    fn prepare(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<O::Key>) -> Result<Vec<O>, CommitError> {
        self.with(|memory| memory.read_back(extent))
    }

    fn commit(&mut self, batch: &Batch<O>) -> Result<(), CommitError> {
        self.with(|memory| memory.commit(batch))?;
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, news) in shared.news.iter_mut().enumerate().filter(|(index, _)| *index != self.index) {
            news.extend(batch.create.iter().chain(&batch.replace).chain(&batch.delete).map(Object::key));
        }
        Ok(())
    }

    fn tend(&mut self, _now: Instant) -> Result<Tended<O::Key>, CommitError> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let touched = shared.news.get_mut(self.index).map(std::mem::take).unwrap_or_default();
        let drift = if touched.is_empty() { None } else { Some(Extent::Keys(touched)) };
        Ok(Tended { wake: None, drift })
    }
}
