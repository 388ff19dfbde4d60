//! Two lists of objects and the batch that makes one into the other.

use std::collections::HashMap;
use std::iter::Peekable;
use std::vec::IntoIter;

use crate::{Batch, Object};

/// How many units want each shared object, and which spare parts lie there as we left them.
#[derive(Debug)]
pub(crate) struct References<O: Object> {
    counts: HashMap<O::Key, u32>,
    parked: HashMap<O::Key, O>,
}

/// What decides whether an object is in the kernel before the batch.
pub(crate) enum Presence<'a, O: Object> {
    /// what was read back is all there is
    ReadBack,
    /// a shared object is there while units want it; any other is there if its unit had it
    Remembered {
        /// who wants what
        references: &'a References<O>,
        /// all units were accepted under one context, so that what one knows of a shared object holds for all
        uniform: bool,
    },
}

/// The difference between `before` and `after`. Both may hold a shared object several times, once for each unit.
///
/// Spare objects that nobody wants any more stay where they are.
pub(crate) fn difference<O: Object>(mut before: Vec<O>, mut after: Vec<O>, presence: &Presence<'_, O>) -> Batch<O> {
    before.sort_unstable();
    after.sort_unstable();
    let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
    let mut batch = Batch::default();
    loop {
        let key = match (before.peek(), after.peek()) {
            (None, None) => break,
            (Some(object), None) | (None, Some(object)) => object.key(),
            (Some(old), Some(new)) => old.key().min(new.key()),
        };
        let old = take(&mut before, &key);
        let new = take(&mut after, &key);
        let shared = old.object.as_ref().or(new.object.as_ref()).is_some_and(Object::shared);
        let had = match presence {
            Presence::Remembered { references, .. } if shared => references.count(&key),
            Presence::Remembered { .. } | Presence::ReadBack => old.count,
        };
        let known = !shared || !matches!(presence, Presence::Remembered { uniform: false, .. });
        let parked = match presence {
            Presence::Remembered { references, .. } => references.parked.get(&key),
            Presence::ReadBack => None,
        };
        if had > 0 || new.object.is_none() || new.object.as_ref() != parked {
            decide(&mut batch, old, new, had, known);
        }
    }
    order(&mut batch);
    batch
}

/// All objects of one key on one side.
struct Group<O> {
    object: Option<O>,
    count: u32,
}

/// Adds what one key needs: `had` says how many units wanted it so far, `known` whether `old` is what the kernel holds.
fn decide<O: Object>(batch: &mut Batch<O>, old: Group<O>, new: Group<O>, had: u32, known: bool) {
    let wants = had.saturating_sub(old.count) + new.count;
    match (old.object, new.object) {
        (_, Some(new)) if had == 0 => batch.create.push(new),
        (_, Some(after)) if !known => batch.replace.push(after),
        (Some(before), Some(after)) if before != after => batch.replace.push(after),
        (Some(before), None) if wants == 0 && !before.spare() => batch.delete.push(before),
        // Unchanged; or wanted by one unit more or less while others hold it.
        (Some(_) | None, Some(_)) | (Some(_), None) | (None, None) => {}
    }
}

fn take<O: Object>(objects: &mut Peekable<IntoIter<O>>, key: &O::Key) -> Group<O> {
    let mut group = Group { object: None, count: 0 };
    while let Some(object) = objects.next_if(|object| object.key() == *key) {
        group.object = Some(object);
        group.count += 1;
    }
    group
}

fn order<O: Object>(batch: &mut Batch<O>) {
    batch.create.sort_by_key(Object::rank);
    batch.replace.sort_by_key(Object::rank);
    batch.delete.sort_by_key(|object| std::cmp::Reverse(object.rank()));
}

// === impl References ===

impl<O: Object> Default for References<O> {
    fn default() -> Self {
        Self { counts: HashMap::new(), parked: HashMap::new() }
    }
}

impl<O: Object> References<O> {
    fn count(&self, key: &O::Key) -> u32 {
        self.counts.get(key).copied().unwrap_or(0)
    }

    /// A unit began to want these objects.
    pub(crate) fn acquire(&mut self, objects: &[O]) {
        for object in objects.iter().filter(|object| object.shared()) {
            let key = object.key();
            if object.spare() {
                self.parked.remove(&key);
            }
            *self.counts.entry(key).or_insert(0) += 1;
        }
    }

    /// A unit ceased to want these objects, which are in the kernel as they stand here.
    pub(crate) fn release(&mut self, objects: &[O]) {
        for object in objects.iter().filter(|object| object.shared()) {
            let key = object.key();
            match self.counts.get_mut(&key) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => {
                    self.counts.remove(&key);
                    if object.spare() {
                        self.parked.insert(key, object.clone());
                    }
                }
                None => debug_assert!(false, "released what nobody wanted"),
            }
        }
    }

    /// Somebody else touched these: what lies there isn't known any more.
    pub(crate) fn forget_parked<'a>(&mut self, keys: impl Iterator<Item = &'a O::Key>)
    where
        O::Key: 'a,
    {
        for key in keys {
            self.parked.remove(key);
        }
    }

    /// Nothing that lies there is known any more.
    pub(crate) fn forget_all_parked(&mut self) {
        self.parked.clear();
    }

    /// Begins anew, with the spare parts that were read back.
    pub(crate) fn restart(&mut self, spare: Vec<O>) {
        self.counts.clear();
        self.parked = spare.into_iter().map(|object| (object.key(), object)).collect();
    }
}
