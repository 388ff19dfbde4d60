//! The order of pools, for modes whose objects depend on it ([`Compile::place`]): pending units get the order in force, and at a start the
//! acknowledged ones that of the objects read back.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferry_model::Context;

use super::Engine;
use crate::{Before, Compile, Kernel, Unit, UnitId};

/// The number of a unit's objects that the kernel doesn't hold as desired.
fn distance<C: Compile>(compile: &C, context: &Context, unit: &Unit, read_back: &[C::Object]) -> usize {
    let mut objects = Vec::new();
    compile.compile(context, unit, &mut objects);
    objects.iter().filter(|object| read_back.binary_search(object).is_err()).count()
}

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    /// Applies the order of pools in force to the pending units, or to these of them, in place: they have no other holder, so
    /// nothing is copied.
    pub(super) fn place_pending(&mut self, read_back: &[C::Object], only: Option<&BTreeSet<UnitId>>) {
        if !C::PLACES {
            return;
        }
        for (id, unit) in &mut self.pending {
            let Some(unit) = unit.as_mut().filter(|_| only.is_none_or(|only| only.contains(id))) else { continue };
            let before = match self.acked.get(id) {
                _ if !read_back.is_empty() => Before::Objects(read_back),
                Some(acked) => Before::Unit(&acked.unit),
                None => Before::Nothing,
            };
            self.compile.place(Arc::make_mut(unit), before);
        }
    }

    /// Adopts the kernel's order of pools for all units, or for these, where it is nearer to the actual state: another order is
    /// equivalent, and no damage. Returns the units as they were before.
    ///
    /// Until the rest is committed, the acknowledged state differs from the actual state.
    pub(super) fn adopt_order(
        &mut self,
        read_back: &[C::Object],
        only: Option<&BTreeSet<UnitId>>,
    ) -> Vec<(UnitId, Arc<Unit>)> {
        let mut replaced = Vec::new();
        if read_back.is_empty() || !C::PLACES {
            return replaced;
        }
        for (id, acked) in &mut self.acked {
            if only.is_some_and(|only| !only.contains(id)) {
                continue;
            }
            let mut unit = (*acked.unit).clone();
            self.compile.place(&mut unit, Before::Objects(read_back));
            let distance = |unit| distance(&self.compile, &acked.context, unit, read_back);
            if unit != *acked.unit && distance(&unit) < distance(&acked.unit) {
                replaced.push((id.clone(), std::mem::replace(&mut acked.unit, Arc::new(unit))));
            }
        }
        self.ahead |= !replaced.is_empty();
        replaced
    }
}
