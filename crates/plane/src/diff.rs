//! Computes the batch that turns one list of objects into another, with reference counts for shared objects.

use std::collections::{HashMap, HashSet};
use std::iter::Peekable;
use std::vec::IntoIter;

use crate::{Batch, Object};

/// Reference counts of shared objects, and the idle ones that are in the kernel as the engine left them.
#[derive(Debug)]
pub(crate) struct References<O: Object> {
    counts: HashMap<O::Shared, u32>,
    parked: HashMap<O::Key, O>,
}

/// Decides if an object is in the kernel before the batch: a shared one is there while units want it; any other is there if
/// its unit had it.
pub(crate) struct Remembered<'a, O: Object> {
    /// reference counts
    pub(crate) references: &'a References<O>,
    /// all units were accepted under one context, so that the content of a shared object is the same for all
    pub(crate) uniform: bool,
}

/// The difference between `before` and `after`. Both may hold a shared object several times, once for each unit.
///
/// Idle objects without a unit that wants them stay.
pub(crate) fn difference<O: Object>(before: Vec<O>, after: Vec<O>, remembered: &Remembered<'_, O>) -> Batch<O> {
    let mut batch = Batch::default();
    for_each_key(before, after, |key, old, new| {
        let shared = old.object.as_ref().or(new.object.as_ref()).and_then(Object::shared);
        let had = shared.map_or(old.count, |shared| remembered.references.count(shared));
        let known = shared.is_none() || remembered.uniform;
        let parked = remembered.references.parked.get(key);
        if had > 0 || new.object.is_none() || new.object.as_ref() != parked {
            decide(&mut batch, old, new, had, known);
        }
    });
    order(&mut batch);
    batch
}

/// The desired objects under the keys of both lists after the difference between them was committed. Only valid if all units
/// were accepted under one context.
pub(crate) fn wanted_after<O: Object>(before: Vec<O>, after: Vec<O>, remembered: &Remembered<'_, O>) -> Vec<O> {
    let mut wanted = Vec::new();
    for_each_key(before, after, |_, old, new| {
        let count = |object: &O| object.shared().map_or(0, |shared| remembered.references.count(shared));
        let others = old.object.filter(|object| count(object) > old.count);
        wanted.extend(new.object.or(others));
    });
    wanted
}

/// The operations from the actual objects, read back and sorted, to the target. A shared object may come several times, for
/// each unit that wants it; the first one counts.
///
/// The target is never held as a whole: a node's objects take several times the memory of its services.
pub(crate) fn difference_to_kernel<O: Object>(actual: Vec<O>, target: impl Iterator<Item = O>) -> Batch<O> {
    difference_showing(actual, target, |_, _| {})
}

/// The same; shows each object that is replaced, and what it becomes.
pub(crate) fn difference_showing<O: Object>(
    actual: Vec<O>,
    target: impl Iterator<Item = O>,
    mut replaced: impl FnMut(&O, &O),
) -> Batch<O> {
    let mut wanted = vec![false; actual.len()];
    let mut missing: HashSet<O::Shared> = HashSet::new();
    let mut batch = Batch::default();
    for object in target {
        let key = object.key();
        let at = actual.binary_search_by(|known| known.key().cmp(&key)).ok();
        match at.and_then(|at| actual.get(at).zip(wanted.get_mut(at))) {
            Some((known, wanted)) => {
                if !std::mem::replace(wanted, true) && *known != object {
                    replaced(known, &object);
                    batch.replace.push(object);
                }
            }
            None => {
                if object.shared().is_none_or(|shared| missing.insert(shared)) {
                    batch.create.push(object);
                }
            }
        }
    }
    let unwanted = actual.into_iter().zip(wanted).filter(|(object, wanted)| !wanted && !object.spare());
    batch.delete.extend(unwanted.map(|(object, _)| object));
    order_changes(&mut batch);
    // One unit may want an object twice.
    batch.create.sort_by_cached_key(|object| (object.rank(), object.key()));
    batch.create.dedup_by(|again, first| {
        let same = again.key() == first.key();
        debug_assert!(!same || again == first, "{again} and {first} have the same key");
        same
    });
    batch
}

/// Goes through the keys of both lists.
fn for_each_key<O: Object>(mut before: Vec<O>, mut after: Vec<O>, mut each: impl FnMut(&O::Key, Group<O>, Group<O>)) {
    before.sort_unstable();
    after.sort_unstable();
    let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
    loop {
        let key = match (before.peek(), after.peek()) {
            (None, None) => return,
            (Some(object), None) | (None, Some(object)) => object.key(),
            (Some(old), Some(new)) => old.key().min(new.key()),
        };
        let old = take(&mut before, &key);
        let new = take(&mut after, &key);
        each(&key, old, new);
    }
}

/// All objects of one key on one side.
struct Group<O> {
    object: Option<O>,
    count: u32,
}

/// Adds the operation of one key: `had` is the number of units that wanted it so far, `known` is true if the kernel holds
/// `old`.
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
    batch.create.sort_by_cached_key(Object::rank);
    order_changes(batch);
}

/// Orders what was there before.
fn order_changes<O: Object>(batch: &mut Batch<O>) {
    batch.replace.sort_by_cached_key(Object::rank);
    batch.delete.sort_by_cached_key(|object| std::cmp::Reverse(object.rank()));
}

// === impl References ===

impl<O: Object> Default for References<O> {
    fn default() -> Self {
        Self { counts: HashMap::new(), parked: HashMap::new() }
    }
}

impl<O: Object> References<O> {
    fn count(&self, shared: O::Shared) -> u32 {
        self.counts.get(&shared).copied().unwrap_or(0)
    }

    /// A unit began to want these objects.
    pub(crate) fn acquire(&mut self, objects: &[O]) {
        for object in objects {
            let Some(shared) = object.shared() else { continue };
            if object.spare() {
                self.parked.remove(&object.key());
            }
            *self.counts.entry(shared).or_insert(0) += 1;
        }
    }

    /// A unit ceased to want these objects, which are in the kernel as they stand here.
    pub(crate) fn release(&mut self, objects: &[O]) {
        for object in objects {
            let Some(shared) = object.shared() else { continue };
            match self.counts.get_mut(&shared) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => {
                    self.counts.remove(&shared);
                    if object.spare() {
                        self.parked.insert(object.key(), object.clone());
                    }
                }
                None => debug_assert!(false, "released what nobody wanted"),
            }
        }
    }

    /// Forgets the content of idle objects under these keys, after a foreign change.
    pub(crate) fn forget_parked<'a>(&mut self, keys: impl Iterator<Item = &'a O::Key>)
    where
        O::Key: 'a,
    {
        for key in keys {
            self.parked.remove(key);
        }
    }

    /// Forgets the content of all idle objects.
    pub(crate) fn forget_all_parked(&mut self) {
        self.parked.clear();
    }

    /// Resets the counts; the idle objects are those that were read back.
    pub(crate) fn restart(&mut self, spare: Vec<O>) {
        self.counts.clear();
        self.parked = spare.into_iter().map(|object| (object.key(), object)).collect();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fmt;

    use super::*;

    /// An object of a mode that says nothing of sharing, spare parts or clean-up.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Plain(pub(crate) u32);

    impl fmt::Display for Plain {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            fmt::Debug::fmt(self, f)
        }
    }

    impl Object for Plain {
        type Key = u32;
        type Shared = ();

        fn key(&self) -> u32 {
            self.0
        }

        fn rank(&self) -> u8 {
            0
        }
    }

    #[test]
    fn what_a_mode_says_nothing_of_has_one_owner_and_goes_with_it() {
        let remembered = Remembered { references: &References::default(), uniform: false };
        let batch = difference(vec![Plain(1), Plain(2)], vec![Plain(2), Plain(3)], &remembered);
        assert_eq!((batch.create, batch.replace, batch.delete), (vec![Plain(3)], vec![], vec![Plain(1)]));
        let batch = difference_to_kernel(vec![Plain(1)], std::iter::empty());
        assert_eq!(batch.delete, [Plain(1)]);
        assert!(!Plain(1).stays() && Plain(1).serves().is_none());
        assert!(!Plain(1).is_leaf() && !Plain(1).is_container(), "others may refer to it, none is inside it");
        assert!(Plain(1).is_placed(), "it may depend on the order of endpoints");
    }
}
