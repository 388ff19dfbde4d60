//! Finds the units that want the objects of some keys, and compiles no others.
//!
//! An index from keys to units would be as large as all objects. So a mode names what a key and its owner have in
//! common ([`Compile::Hint`]), and the search asks every unit for that.

use std::collections::{HashMap, HashSet};

use ferry_model::Context;

use super::KeyOf;
use crate::{Compile, Object, Unit};

/// The keys whose owner isn't found yet.
pub(super) struct Search<'a, C: Compile> {
    compile: &'a C,
    missing: HashSet<KeyOf<C>>,
    /// hints to the missing keys, each with the number of keys
    asked: HashMap<C::Hint, usize>,
    /// missing keys without a hint
    unhinted: usize,
    hints: Vec<C::Hint>,
    objects: Vec<C::Object>,
}

// === impl Search ===

impl<'a, C: Compile> Search<'a, C> {
    /// For the owners of these keys.
    pub(super) fn new(compile: &'a C, keys: HashSet<KeyOf<C>>) -> Self {
        let (mut asked, mut hints, mut unhinted) = (HashMap::new(), Vec::new(), 0);
        for key in &keys {
            compile.hints(key, &mut hints);
            unhinted += usize::from(hints.is_empty());
            hints.drain(..).for_each(|hint| *asked.entry(hint).or_insert(0) += 1);
        }
        Self { compile, missing: keys, asked, unhinted, hints, objects: Vec::new() }
    }

    /// Removes the keys of the unit's objects from the missing ones, and passes these objects on.
    pub(super) fn look(
        &mut self,
        context: &Context,
        unit: &Unit,
        mut show: impl FnMut(C::Object),
    ) -> HashSet<KeyOf<C>> {
        let mut found = HashSet::new();
        if !self.may_find(unit) {
            return found;
        }
        let mut objects = std::mem::take(&mut self.objects);
        self.compile.compile(context, unit, &mut objects);
        for object in objects.drain(..) {
            let key = object.key();
            if self.missing.remove(&key) {
                self.forget_hints(&key);
                show(object);
                found.insert(key);
            }
        }
        self.objects = objects;
        found
    }

    /// True if the unit wants one of the missing keys. They stay missing, since another unit may want a shared object, too.
    pub(super) fn concerns(&mut self, context: &Context, unit: &Unit) -> bool {
        if !self.may_find(unit) {
            return false;
        }
        self.compile.compile(context, unit, &mut self.objects);
        let concerns = self.objects.iter().any(|object| self.missing.contains(&object.key()));
        self.objects.clear();
        concerns
    }

    /// The keys that no unit wants, after all units were searched.
    pub(super) fn missing(self) -> HashSet<KeyOf<C>> {
        self.missing
    }

    fn may_find(&self, unit: &Unit) -> bool {
        let asked = |hint: &C::Hint| self.asked.contains_key(hint);
        !self.missing.is_empty() && (self.unhinted > 0 || self.compile.may_want(unit, &asked))
    }

    fn forget_hints(&mut self, key: &KeyOf<C>) {
        self.compile.hints(key, &mut self.hints);
        self.unhinted -= usize::from(self.hints.is_empty());
        for hint in self.hints.drain(..) {
            if let Some(count) = self.asked.get_mut(&hint) {
                *count -= 1;
                if *count == 0 {
                    self.asked.remove(&hint);
                }
            }
        }
    }
}
