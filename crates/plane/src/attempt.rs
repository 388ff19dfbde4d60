//! Attempts to commit units: the owners of rejected objects, and the units that have to wait for each other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ferry_model::Context;

use crate::{Acked, Batch, Compile, Object, Op, Refusal, Unit, UnitId};

/// The change of one unit from its acknowledged to its pending state.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) id: UnitId,
    pub(crate) before: Option<Acked>,
    pub(crate) after: Option<Arc<Unit>>,
}

/// The units whose objects the kernel rejected. Only desired objects of a unit can be the cause: those that it gives up were
/// accepted before.
pub(crate) fn owners<C: Compile>(
    compile: &C,
    context: &Context,
    group: &[Change],
    batch: &Batch<C::Object>,
    refusals: &[Refusal],
) -> BTreeSet<UnitId> {
    let refused: BTreeSet<_> = refusals
        .iter()
        .filter_map(|(op, index, _)| match op {
            Op::Create => batch.create.get(*index),
            Op::Replace => batch.replace.get(*index),
            Op::Delete => batch.delete.get(*index),
        })
        .map(Object::key)
        .collect();
    let mut owners = BTreeSet::new();
    let mut objects = Vec::new();
    for change in group {
        objects.clear();
        if let Some(unit) = &change.after {
            compile.compile(context, unit, &mut objects);
        }
        if let Some(acked) = &change.before {
            compile.compile(&acked.context, &acked.unit, &mut objects);
        }
        if objects.iter().any(|object| refused.contains(&object.key())) {
            owners.insert(change.id.clone());
        }
    }
    owners
}

/// The units of the group that want a key which a waiting unit still holds, directly or through another one that then waits
/// too; each with the unit it waits for.
pub(crate) fn held_back<C: Compile>(
    compile: &C,
    context: &Context,
    waiting: &[(&UnitId, Option<&Acked>)],
    group: &[Change],
) -> BTreeMap<UnitId, UnitId> {
    let mut holders: HashMap<_, UnitId> = HashMap::new();
    let hold = |id: &UnitId, acked: &Acked, holders: &mut HashMap<_, UnitId>| {
        let mut objects = Vec::new();
        compile.compile(&acked.context, &acked.unit, &mut objects);
        holders
            .extend(objects.iter().filter(|object| object.shared().is_none()).map(|object| (object.key(), id.clone())));
    };
    for (id, acked) in waiting {
        if let Some(acked) = acked {
            hold(id, acked, &mut holders);
        }
    }
    let mut held = BTreeMap::new();
    loop {
        let before = held.len();
        for change in group.iter().filter(|change| !waiting.iter().any(|(id, _)| **id == change.id)) {
            let Some(unit) = change.after.as_ref().filter(|_| !held.contains_key(&change.id)) else { continue };
            let mut objects = Vec::new();
            compile.compile(context, unit, &mut objects);
            let holder = objects.iter().find_map(|object| holders.get(&object.key()).filter(|id| **id != change.id));
            if let Some(holder) = holder.cloned() {
                held.insert(change.id.clone(), holder);
                if let Some(acked) = &change.before {
                    hold(&change.id, acked, &mut holders);
                }
            }
        }
        if held.len() == before {
            return held;
        }
    }
}

/// Splits a group into halves, so that units of which one takes over a key from another stay together. With nothing to
/// split the second half is empty.
pub(crate) fn halves<C: Compile>(compile: &C, context: &Context, group: Vec<Change>) -> (Vec<Change>, Vec<Change>) {
    let clusters = clusters(compile, context, &group);
    let half = group.len() / 2;
    let mut first: BTreeSet<usize> = BTreeSet::new();
    for (at, cluster) in clusters.iter().enumerate() {
        if at == 0 || (first.len() < half && at + 1 < clusters.len()) {
            first.extend(cluster);
        }
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for (index, change) in group.into_iter().enumerate() {
        if first.contains(&index) { left.push(change) } else { right.push(change) }
    }
    (left, right)
}

/// Indices of the group's members, those together that pass keys to each other.
fn clusters<C: Compile>(compile: &C, context: &Context, group: &[Change]) -> Vec<Vec<usize>> {
    let mut holders = HashMap::new();
    let mut objects = Vec::new();
    for (index, change) in group.iter().enumerate() {
        if let Some(acked) = &change.before {
            objects.clear();
            compile.compile(&acked.context, &acked.unit, &mut objects);
            holders
                .extend(objects.iter().filter(|object| object.shared().is_none()).map(|object| (object.key(), index)));
        }
    }
    let mut leaders: Vec<usize> = (0..group.len()).collect();
    for (index, change) in group.iter().enumerate() {
        let Some(unit) = &change.after else { continue };
        objects.clear();
        compile.compile(context, unit, &mut objects);
        for holder in objects.iter().filter_map(|object| holders.get(&object.key())) {
            let (a, b) = (leader(&leaders, index), leader(&leaders, *holder));
            if let Some(entry) = leaders.get_mut(a.max(b)) {
                *entry = a.min(b);
            }
        }
    }
    let mut clusters: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in 0..group.len() {
        clusters.entry(leader(&leaders, index)).or_default().push(index);
    }
    clusters.into_values().collect()
}

/// The representative of a member: entries point at smaller indices only, so this ends.
fn leader(leaders: &[usize], mut index: usize) -> usize {
    while let Some(next) = leaders.get(index).copied().filter(|next| *next < index) {
        index = next;
    }
    index
}
