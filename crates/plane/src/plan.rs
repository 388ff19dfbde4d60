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
