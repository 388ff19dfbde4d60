//! What a repair would change, unit by unit: for people, before it is done.

use std::collections::BTreeMap;

use crate::{Batch, UnitId};

/// The operations of a repair as text, by the unit that they are about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// every desired unit; its operations are none if everything is as it should be. An operation on a shared object stands with the
    /// first unit that wants it
    pub units: BTreeMap<UnitId, Batch<String>>,
    /// objects that no unit wants, which are deleted
    pub unwanted: Vec<String>,
    /// the container of the mode's objects, if it is missing and would be created
    pub missing_container: Option<String>,
}

// === impl Plan ===

impl Plan {
    /// The number of operations.
    pub fn len(&self) -> usize {
        self.units.values().map(Batch::len).sum::<usize>() + self.unwanted.len()
    }

    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_counts_the_operations_of_units_and_what_nobody_wants() {
        let texts = |count: usize| vec![String::new(); count];
        let batch = Batch { create: texts(1), replace: texts(2), delete: texts(3) };
        for (units, unwanted, len) in [(None, 0, 0), (None, 4, 4), (Some(batch.clone()), 0, 6), (Some(batch), 4, 10)] {
            let units = units.map(|batch| (UnitId::Base, batch)).into_iter().collect();
            let plan = Plan { units, unwanted: texts(unwanted), missing_container: None };
            assert_eq!((plan.len(), plan.is_empty()), (len, len == 0));
        }
    }
}
