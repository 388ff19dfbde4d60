//! Traces packets through the actual objects.

use std::collections::HashMap;

use super::{Engine, KeyOf};
use crate::{CommitError, Compile, Extent, Inspector, Kernel, Object, Trace, Tracer};

impl<C, K> Inspector for Engine<C, K>
where
    C: Trace + Send,
    C::Object: Send,
    KeyOf<C>: Send,
    K: Kernel<C::Object> + Send,
{
    fn trace(&mut self, see: &mut dyn FnMut(&dyn Tracer)) -> Result<(), CommitError> {
        let mut actual = self.kernel.read_back(&Extent::All)?;
        self.describe(&mut actual);
        see(&*self.compile.tracer(&actual));
        Ok(())
    }
}

impl<C: Compile, K> Engine<C, K> {
    /// Replaces objects by equal ones of pending units, which know their text where those that were read back don't.
    fn describe(&self, actual: &mut [C::Object]) {
        let Some(context) = self.context.as_ref().filter(|_| !self.pending.is_empty()) else { return };
        let mut offered = Vec::new();
        for unit in self.pending.values().flatten() {
            self.compile.compile(context, unit, &mut offered);
        }
        let mut offered: HashMap<KeyOf<C>, C::Object> =
            offered.into_iter().map(|object| (object.key(), object)).collect();
        for object in actual {
            if let Some(same) = offered.remove(&object.key()).filter(|same| same == object) {
                *object = same;
            }
        }
    }
}
