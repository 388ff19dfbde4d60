//! Attributes the operations of a full comparison to units.

use std::collections::{BTreeSet, HashMap};

use ferry_model::Context;

use super::{BatchOf, Engine, KeyOf};
use crate::attempt::Change;
use crate::plan::Plan;
use crate::{Batch, Compile, Kernel, Object, Op, Unit, UnitId};

/// An operation, until a unit that it is about is found.
type Open = (Op, String);

impl<C: Compile, K: Kernel<C::Object>> Engine<C, K> {
    /// The operations of a batch from the actual objects to these changes and every unchanged unit. A unit that gives an object up comes
    /// after those that want it.
    pub(super) fn attributed(&self, context: &Context, group: &[Change], batch: &BatchOf<C>) -> Plan {
        let mut open: HashMap<KeyOf<C>, Open> =
            batch.operations().map(|(op, _, object)| (object.key(), (op, object.to_string()))).collect();
        let missing = batch.create.iter().find(|object| object.is_container());
        let missing_container = missing.map(|object| object.key().to_string());
        let mut plan = Plan { missing_container, ..Plan::default() };
        let changing: BTreeSet<&UnitId> = group.iter().map(|change| &change.id).collect();
        let wanted = group.iter().filter_map(|change| Some((&change.id, context, &**change.after.as_ref()?)));
        let given_up = group.iter().filter_map(|change| {
            let before = change.before.as_ref()?;
            Some((&change.id, &*before.context, &*before.unit))
        });
        for (id, context, unit) in wanted.chain(self.accepted(context, &changing)).chain(given_up) {
            let operations = plan.units.entry(id.clone()).or_default();
            self.take(context, unit, &mut open, operations);
        }
        let mut unwanted: Vec<String> = open.into_values().map(|(_, object)| object).collect();
        unwanted.sort_unstable();
        plan.unwanted = unwanted;
        plan
    }

    /// Moves the operations on a unit's objects.
    fn take(&self, context: &Context, unit: &Unit, open: &mut HashMap<KeyOf<C>, Open>, to: &mut Batch<String>) {
        if open.is_empty() {
            return;
        }
        let mut objects = Vec::new();
        self.compile.compile(context, unit, &mut objects);
        for (op, object) in objects.iter().filter_map(|object| open.remove(&object.key())) {
            match op {
                Op::Create => to.create.push(object),
                Op::Replace => to.replace.push(object),
                Op::Delete => to.delete.push(object),
            }
        }
    }
}
