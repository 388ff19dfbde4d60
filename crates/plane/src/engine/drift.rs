//! Repairs of drift: compares the objects that foreign changes have touched, and commits the difference.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use ferry_model::Context;

use super::owners::Search;
use super::{BatchOf, Engine, KeyOf, Purpose, keys, leave_out, staying};
use crate::diff::difference_to_kernel;
use crate::{CommitError, Compile, Extent, Kernel, Object, Outcome, UnitId};

/// The scale of a repair, and so of a contest with another writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// single objects, of these units
    Keys(Extent<UnitId>),
    /// everything: the repaired objects don't identify the cause of repeated full repairs
    Everything,
}

/// The operations that repair some objects.
struct Repair<C: Compile> {
    batch: BatchOf<C>,
    /// the units that want these objects; all units, if one of the objects is the base's, shared, or no unit's
    units: Extent<UnitId>,
}

/// Desired objects of acknowledged units under some keys.
pub(super) struct Wanted<O> {
    pub(super) objects: Vec<O>,
    owners: BTreeSet<UnitId>,
}

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    /// Compares the due candidates with the desired state, and repairs those that differ.
    pub(super) fn mend(
        &mut self,
        context: &Arc<Context>,
        now: Instant,
        purpose: Purpose,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        if self.contested_keys.holds(&None, now) {
            return self.mend_staying(context, now, outcome);
        }
        let Some(drift) = self.candidates.due(now) else { return Ok(()) };
        outcome.worked = true;
        match drift {
            Extent::All => self.sync_all(context, now, purpose, outcome),
            Extent::Keys(keys) => {
                let mut keys: HashSet<KeyOf<C>> = keys
                    .into_iter()
                    .filter(|key| !self.contested_keys.holds(&Some(key.clone()), now) && !self.unverified.contains(key))
                    .collect();
                let postponed = self.beside_unverified(context, &keys);
                keys.retain(|key| !postponed.contains(key));
                self.mend_keys(context, keys, now, purpose, outcome)?;
                // A full sync has compared them.
                if !self.unverified.is_empty() {
                    self.candidates.check(Extent::Keys(postponed.into_iter().collect()), now);
                }
                Ok(())
            }
        }
    }

    /// Of these keys, those of units that also want an object whose state is unknown after a commit that failed half-way: the two may
    /// refer to each other. They are compared after the unknown ones. Everything may refer to the base.
    fn beside_unverified(&self, context: &Context, keys: &HashSet<KeyOf<C>>) -> HashSet<KeyOf<C>> {
        if self.unverified.is_empty() {
            return HashSet::new();
        }
        let mut unknown = Search::new(&self.compile, self.unverified.keys());
        let mut search = Search::new(&self.compile, keys.clone());
        let mut beside = HashSet::new();
        for (id, context, unit) in self.accepted(context, &BTreeSet::new()) {
            if unknown.concerns(context, unit) {
                if *id == UnitId::Base {
                    return keys.clone();
                }
                beside.extend(search.look(context, unit, |_| {}));
            }
        }
        beside
    }

    /// While everything counts as contested: objects that not even clean-up removes are repaired all the same. The rest is
    /// compared when the pause ends.
    fn mend_staying(&mut self, context: &Arc<Context>, now: Instant, outcome: &mut Outcome) -> Result<(), CommitError> {
        let Some(drift) = self.candidates.due(now) else { return Ok(()) };
        let mut keys = self.staying_keys();
        if let Extent::Keys(due) = drift {
            let due: HashSet<KeyOf<C>> = due.into_iter().collect();
            keys.retain(|key| due.contains(key));
        }
        if !keys.is_empty() {
            let Repair { batch, units } = self.difference_at(context, keys, now)?;
            let (mended, staying) = (self::keys(&batch).collect(), staying(&batch));
            self.commit(&batch, outcome)?;
            self.count_repairs(mended, &staying, Scale::Keys(units), now, outcome);
        }
        self.candidates.found(None, HashSet::new(), now);
        Ok(())
    }

    fn staying_keys(&self) -> HashSet<KeyOf<C>> {
        let mut objects = Vec::new();
        if let Some(base) = self.acked.get(&UnitId::Base) {
            self.compile.compile(&base.context, &base.unit, &mut objects);
        }
        objects.iter().filter(|object| object.stays()).map(Object::key).collect()
    }

    fn mend_keys(
        &mut self,
        context: &Arc<Context>,
        keys: HashSet<KeyOf<C>>,
        now: Instant,
        purpose: Purpose,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        if !keys.is_empty() {
            self.references.forget_parked(keys.iter());
            let Repair { batch, units } = match self.difference_at(context, keys.clone(), now) {
                // More is damaged than these keys.
                Err(CommitError::Drifted { .. }) => return self.sync_all(context, now, purpose, outcome),
                repair => repair?,
            };
            let foreign = self::keys(&batch).collect();
            let staying = staying(&batch);
            match self.commit(&batch, outcome) {
                Ok(()) => self.count_repairs(foreign, &staying, Scale::Keys(units), now, outcome),
                // More is damaged than these keys, or what was accepted before is refused now.
                Err(CommitError::Drifted { .. } | CommitError::Refused(_)) => {
                    return self.sync_all(context, now, purpose, outcome);
                }
                Err(CommitError::Resources(_)) if self.failures > 0 => {
                    let groups = self.by_owner(context, keys);
                    return self.mend_apart(context, groups, now, outcome);
                }
                Err(error @ (CommitError::Resources(_) | CommitError::Busy(_) | CommitError::Unusable(_))) => {
                    return Err(error);
                }
            }
        }
        self.candidates.clear_due(now);
        Ok(())
    }

    /// Repairs groups of keys in smaller parts, so that one that can't be repaired blocks no other. Its keys stay due.
    fn mend_apart(
        &mut self,
        context: &Context,
        mut groups: Vec<HashSet<KeyOf<C>>>,
        now: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), CommitError> {
        let keys: HashSet<KeyOf<C>> = groups.iter().flatten().cloned().collect();
        let Repair { batch, units } = self.difference_at(context, keys.clone(), now)?;
        let (mended, staying) = (self::keys(&batch).collect(), staying(&batch));
        match self.commit(&batch, outcome) {
            Ok(()) => {
                self.count_repairs(mended, &staying, Scale::Keys(units), now, outcome);
                self.candidates.found(Some(&keys), HashSet::new(), now);
                Ok(())
            }
            Err(CommitError::Resources(_)) if groups.len() > 1 => {
                let second = groups.split_off(groups.len() / 2);
                let first = self.mend_apart(context, groups, now, outcome);
                self.mend_apart(context, second, now, outcome).and(first)
            }
            Err(error) => Err(error),
        }
    }

    /// Groups keys by the unit that wants them. Keys without one form one group, since they may refer to each other.
    fn by_owner(&self, context: &Context, keys: HashSet<KeyOf<C>>) -> Vec<HashSet<KeyOf<C>>> {
        let mut groups = Vec::new();
        let mut search = Search::new(&self.compile, keys);
        for (_, context, unit) in self.accepted(context, &BTreeSet::new()) {
            let own = search.look(context, unit, |_| {});
            if !own.is_empty() {
                groups.push(own);
            }
        }
        let nobodys = search.missing();
        if !nobodys.is_empty() {
            groups.push(nobodys);
        }
        groups
    }

    /// The operations that repair the objects under these keys.
    fn difference_at(
        &mut self,
        context: &Context,
        keys: HashSet<KeyOf<C>>,
        now: Instant,
    ) -> Result<Repair<C>, CommitError> {
        let actual = self.read_sorted(&keys)?;
        let Wanted { objects, owners } = self.wanted(context, &keys);
        let mut batch = difference_to_kernel(actual, objects.into_iter());
        self.keep_found(context, &BTreeSet::new(), &mut batch);
        if batch.is_empty() {
            return Ok(Repair { batch, units: Extent::Keys(Vec::new()) });
        }
        // Another order of the same endpoints is recognised only by all objects that depend on it, including those that are not to be
        // repaired yet.
        let mut differing = batch.create.iter().chain(&batch.replace).chain(&batch.delete);
        if C::PLACES && !owners.is_empty() && differing.any(Object::is_placed) {
            let placed: HashSet<KeyOf<C>> = self.placed_keys(&owners).into_iter().chain(keys.iter().cloned()).collect();
            let actual = self.read_sorted(&placed)?;
            self.adopt_order(&actual, Some(&owners));
            batch = difference_to_kernel(actual, self.wanted(context, &placed).objects.into_iter());
            self.keep_found(context, &BTreeSet::new(), &mut batch);
        }
        let is_left = |key: &KeyOf<C>| !keys.contains(key) && self.is_left_alone(key, now);
        let left = self::keys(&batch).filter(is_left).collect();
        leave_out(&mut batch, &left);
        // A deleted object has no owner, the base serves all units, and of a shared object only the first owner is known.
        let is_shared = batch.create.iter().chain(&batch.replace).any(|object| object.shared().is_some());
        let owners_known = batch.delete.is_empty() && !is_shared && !owners.contains(&UnitId::Base);
        let units = if owners_known { Extent::Keys(owners.into_iter().collect()) } else { Extent::All };
        Ok(Repair { batch, units })
    }

    /// True if a differing object is not to be repaired now: its comparison is not due yet, its repair is suspended
    /// (contested), or a commit that failed half-way has left its state unknown.
    fn is_left_alone(&self, key: &KeyOf<C>, now: Instant) -> bool {
        self.candidates.waits(key, now)
            || self.unverified.contains(key)
            || self.contested_keys.holds(&Some(key.clone()), now)
    }

    pub(super) fn read_sorted(&mut self, keys: &HashSet<KeyOf<C>>) -> Result<Vec<C::Object>, CommitError> {
        let mut actual = self.kernel.read_back(&Extent::Keys(keys.iter().cloned().collect()))?;
        actual.sort_unstable();
        Ok(actual)
    }

    /// The objects that acknowledged units want under these keys, and these units; of several that want an object, the first.
    pub(super) fn wanted(&self, context: &Context, keys: &HashSet<KeyOf<C>>) -> Wanted<C::Object> {
        let mut wanted = Wanted { objects: Vec::new(), owners: BTreeSet::new() };
        let mut search = Search::new(&self.compile, keys.clone());
        for (id, context, unit) in self.accepted(context, &BTreeSet::new()) {
            let own = search.look(context, unit, |object| wanted.objects.push(object));
            if !own.is_empty() {
                wanted.owners.insert(id.clone());
            }
        }
        wanted
    }

    /// The keys of the objects of these units that depend on the order of endpoints.
    fn placed_keys(&self, units: &BTreeSet<UnitId>) -> HashSet<KeyOf<C>> {
        let mut objects = Vec::new();
        for acked in units.iter().filter_map(|id| self.acked.get(id)) {
            self.compile.compile(&acked.context, &acked.unit, &mut objects);
        }
        objects.iter().filter(|object| object.is_placed()).map(Object::key).collect()
    }

    /// Counts repairs. The repair of objects that stay even at clean-up is never suspended.
    pub(super) fn count_repairs(
        &mut self,
        keys: Vec<KeyOf<C>>,
        staying: &HashSet<KeyOf<C>>,
        scale: Scale,
        now: Instant,
        outcome: &mut Outcome,
    ) {
        if keys.is_empty() {
            return;
        }
        let damaged = match &scale {
            Scale::Keys(units) => units.clone(),
            Scale::Everything => Extent::All,
        };
        outcome.damaged = Some(match outcome.damaged.take() {
            Some(before) => before.union(damaged),
            None => damaged,
        });
        outcome.repairs += keys.len();
        let room = Outcome::NAMED.saturating_sub(outcome.repaired.len());
        outcome.repaired.extend(keys.iter().take(room).map(ToString::to_string));
        self.contested_keys.forget(now);
        if scale == Scale::Everything {
            if self.contested_keys.repaired(None, now) {
                outcome.contested.push("everything".to_owned());
            }
            return;
        }
        for key in keys.into_iter().filter(|key| !staying.contains(key)) {
            let name = key.to_string();
            if self.contested_keys.repaired(Some(key), now) {
                outcome.contested.push(name);
            }
        }
    }

    /// Makes contested objects whose suspension has ended candidates again.
    pub(super) fn reclaim(&mut self, now: Instant) {
        for key in self.contested_keys.due(now) {
            self.candidates.check(key.map_or(Extent::All, |key| Extent::Keys(vec![key])), now);
        }
    }
}
