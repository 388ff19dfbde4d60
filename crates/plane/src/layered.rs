//! Several kernels under one engine: a mode whose objects live in more than one subsystem, such as an nft table, virtual
//! servers and the addresses of a device.

use std::collections::HashSet;
use std::io;
use std::task::Waker;
use std::time::Instant;

use crate::{Applied, Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Object, Op, Refusal, Served};

/// One subsystem of a mode.
pub trait Layer<O: Object>: Send {
    /// True if the objects of this key live here.
    fn holds(&self, key: &O::Key) -> bool;
    /// The kernel half of the subsystem.
    fn kernel(&mut self) -> &mut dyn Kernel<O>;
    /// Checks a whole batch before any layer writes a part of it. For what the kernel would refuse only after layers below have
    /// written, such as an object in the way that is another program's.
    ///
    /// # Errors
    /// As those of a commit: nothing of the batch is in force then.
    fn admit(&mut self, batch: &Batch<O>) -> Result<(), CommitError> {
        let _ = batch;
        Ok(())
    }
    /// The replacements in this part of a batch that take away what layers above may still need until their own changes are
    /// made, by their keys: they are committed with the deletions.
    fn waiting(&self, part: &Batch<O>) -> HashSet<O::Key> {
        let _ = part;
        HashSet::new()
    }
    /// True if this part of a batch is committed after those of all other layers: what it replaces serves until they are there.
    fn comes_last(&self, part: &Batch<O>) -> bool {
        let _ = part;
        false
    }
}

/// The layers of a mode, bottom first. An object refers only to objects of its own layer and of those below.
///
/// A batch goes up the layers with its creations and replacements, and comes down with its deletions, so that the order of
/// [`Batch::operations`] holds across layers, too, but for replacements that [wait](Layer::waiting) and parts that
/// [come last](Layer::comes_last). The first failure stops it. Before that each layer [admits](Layer::admit) the whole batch.
pub struct Layered<O: Object> {
    layers: Vec<Box<dyn Layer<O>>>,
    /// foreign changes that a layer reported before another one failed to
    unreported: Drift<O::Key>,
}

/// The operations of a batch that concern one layer.
struct LayerBatch<O> {
    batch: Batch<O>,
    /// their indices in the whole batch, by list
    indices: [Vec<usize>; 3],
}

// === impl Layered ===

impl<O: Object> Layered<O> {
    /// Of these layers, bottom first. Each key is held by exactly one.
    pub fn new(layers: Vec<Box<dyn Layer<O>>>) -> Self {
        Self { layers, unreported: Drift::default() }
    }

    fn layer_of(&self, key: &O::Key) -> Option<usize> {
        self.layers.iter().position(|layer| layer.holds(key))
    }

    /// A part for each layer.
    fn split(&self, batch: &Batch<O>) -> Result<Vec<LayerBatch<O>>, CommitError> {
        let mut parts: Vec<LayerBatch<O>> = self.layers.iter().map(|_| LayerBatch::default()).collect();
        let mut homeless: Vec<Refusal> = Vec::new();
        for (op, index, object) in batch.operations() {
            match self.layer_of(&object.key()).and_then(|layer| parts.get_mut(layer)) {
                Some(part) => part.push(op, index, object.clone()),
                None => homeless.push((op, index, io::Error::other("no layer holds it"))),
            }
        }
        if homeless.is_empty() { Ok(parts) } else { Err(CommitError::Refused(homeless)) }
    }

    /// Commits a part to its layer; `written` is true if some of the whole batch is in force already, and is set.
    fn commit_part(&mut self, layer: usize, part: &LayerBatch<O>, written: &mut bool) -> Result<(), CommitFailure> {
        if part.batch.is_empty() {
            return Ok(());
        }
        let Some(layer) = self.layers.get_mut(layer) else { return Ok(()) };
        match layer.kernel().commit(&part.batch) {
            Ok(()) => {
                *written = true;
                Ok(())
            }
            Err(CommitFailure { error, applied }) => {
                let applied = if *written { Applied::Unknown } else { applied };
                Err(CommitFailure { error: part.whole(error), applied })
            }
        }
    }
}

impl<O: Object> std::fmt::Debug for Layered<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layered").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

impl<O: Object> Kernel<O> for Layered<O> {
    fn prepare(&mut self) -> Result<(), CommitError> {
        self.layers.iter_mut().try_for_each(|layer| layer.kernel().prepare())
    }

    fn read_back(&mut self, extent: &Extent<O::Key>) -> Result<Vec<O>, CommitError> {
        let mut objects = Vec::new();
        for layer in &mut self.layers {
            let extent = match extent {
                Extent::All => Extent::All,
                Extent::Keys(keys) => Extent::Keys(keys.iter().filter(|key| layer.holds(key)).cloned().collect()),
            };
            if !matches!(&extent, Extent::Keys(keys) if keys.is_empty()) {
                objects.extend(layer.kernel().read_back(&extent)?);
            }
        }
        Ok(objects)
    }

    fn foreign_serves(&mut self) -> Vec<Served> {
        self.layers.iter_mut().flat_map(|layer| layer.kernel().foreign_serves()).collect()
    }

    fn news(&mut self) -> Result<Drift<O::Key>, CommitError> {
        for layer in &mut self.layers {
            self.unreported.merge(layer.kernel().news()?);
        }
        Ok(std::mem::take(&mut self.unreported))
    }

    fn commit(&mut self, batch: &Batch<O>) -> Result<(), CommitFailure> {
        let mut parts: Vec<(usize, LayerBatch<O>)> = self.split(batch)?.into_iter().enumerate().collect();
        self.layers.iter_mut().try_for_each(|layer| layer.admit(batch))?;
        parts.sort_by_key(|(layer, part)| self.layers.get(*layer).is_some_and(|layer| layer.comes_last(&part.batch)));
        let last = parts.iter().rposition(|(_, part)| !part.batch.is_empty()).unwrap_or_default();
        let mut written = false;
        let mut downwards = Vec::new();
        for (position, (layer, part)) in parts.iter_mut().enumerate() {
            // The last layer is left with its deletions as it is entered: one commit.
            if position < last {
                let waiting = self.layers.get(*layer).map(|layer| layer.waiting(&part.batch)).unwrap_or_default();
                downwards.push((*layer, part.take_downwards(|object| waiting.contains(&object.key()))));
            }
            self.commit_part(*layer, part, &mut written)?;
        }
        downwards.iter().rev().try_for_each(|(layer, part)| self.commit_part(*layer, part, &mut written))
    }

    fn acknowledged(&mut self, objects: &[O]) {
        self.layers.iter_mut().for_each(|layer| layer.kernel().acknowledged(objects));
    }

    fn tend(&mut self, now: Instant) -> Result<Drift<O::Key>, CommitError> {
        for layer in &mut self.layers {
            self.unreported.merge(layer.kernel().tend(now)?);
        }
        Ok(std::mem::take(&mut self.unreported))
    }

    fn wake(&mut self, now: Instant) -> Option<Instant> {
        self.layers.iter_mut().filter_map(|layer| layer.kernel().wake(now)).min()
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.layers.iter_mut().for_each(|layer| layer.kernel().wake_by(waker));
    }
}

// === impl LayerBatch ===

impl<O> Default for LayerBatch<O> {
    fn default() -> Self {
        Self { batch: Batch::default(), indices: Default::default() }
    }
}

impl<O> LayerBatch<O> {
    fn push(&mut self, op: Op, index: usize, object: O) {
        let [create, replace, delete] = &mut self.indices;
        let (objects, indices) = match op {
            Op::Create => (&mut self.batch.create, create),
            Op::Replace => (&mut self.batch.replace, replace),
            Op::Delete => (&mut self.batch.delete, delete),
        };
        objects.push(object);
        indices.push(index);
    }

    /// Takes out what is committed on the way down: deletions, and replacements that wait.
    fn take_downwards(&mut self, waits: impl Fn(&O) -> bool) -> Self {
        let mut down = Self::default();
        let [_, indices, delete] = &mut self.indices;
        let replace = std::mem::take(&mut self.batch.replace).into_iter().zip(std::mem::take(indices));
        let (waiting, now): (Vec<_>, Vec<_>) = replace.partition(|(object, _)| waits(object));
        (self.batch.replace, *indices) = now.into_iter().unzip();
        let (replace, indices) = waiting.into_iter().unzip();
        down.batch = Batch { replace, delete: std::mem::take(&mut self.batch.delete), ..Batch::default() };
        down.indices = [Vec::new(), indices, std::mem::take(delete)];
        down
    }

    /// An error about operations of the whole batch.
    fn whole(&self, error: CommitError) -> CommitError {
        let CommitError::Refused(refusals) = error else { return error };
        let [create, replace, delete] = &self.indices;
        let index_of = |op, index: usize| match op {
            Op::Create => create.get(index),
            Op::Replace => replace.get(index),
            Op::Delete => delete.get(index),
        };
        let whole = refusals.into_iter().filter_map(|(op, index, error)| Some((op, *index_of(op, index)?, error)));
        CommitError::Refused(whole.collect())
    }
}
