//! Two lists of objects and the batch that makes one into the other.

use std::collections::HashMap;
use std::iter::Peekable;
use std::vec::IntoIter;

use crate::{Batch, Object};

/// How many units want each shared object.
#[derive(Debug)]
pub(crate) struct References<K>(HashMap<K, u32>);

/// What decides whether an object is in the kernel before the batch.
pub(crate) enum Presence<'a, K> {
    /// what was read back is all there is
    ReadBack,
    /// a shared object is there while units want it; any other is there if its unit had it
    Remembered {
        /// who wants what
        references: &'a References<K>,
        /// all units were accepted under one context, so that what one knows of a shared object holds for all
        uniform: bool,
    },
}

/// The difference between `before` and `after`. Both may hold a shared object several times, once for each unit.
///
/// Spare objects that nobody wants any more stay where they are.
pub(crate) fn difference<O: Object>(
    mut before: Vec<O>,
    mut after: Vec<O>,
    presence: &Presence<'_, O::Key>,
) -> Batch<O> {
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
        decide(&mut batch, old, new, had, known);
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

impl<K> Default for References<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: std::hash::Hash + Eq> References<K> {
    fn count(&self, key: &K) -> u32 {
        self.0.get(key).copied().unwrap_or(0)
    }

    /// A unit began to want these objects.
    pub(crate) fn acquire<O: Object<Key = K>>(&mut self, objects: &[O]) {
        for object in objects.iter().filter(|object| object.shared()) {
            *self.0.entry(object.key()).or_insert(0) += 1;
        }
    }

    /// A unit ceased to want these objects.
    pub(crate) fn release<O: Object<Key = K>>(&mut self, objects: &[O]) {
        for object in objects.iter().filter(|object| object.shared()) {
            let key = object.key();
            match self.0.get_mut(&key) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => drop(self.0.remove(&key)),
                None => debug_assert!(false, "released what nobody wanted"),
            }
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
