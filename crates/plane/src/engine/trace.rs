//! Traces packets through the actual objects.

use std::collections::HashMap;

use super::{Engine, KeyOf};
use crate::{CommitError, Compile, Extent, Inspector, Kernel, Object, Trace, Tracer, Words};

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

    fn words(&self) -> Words {
        self.compile.words(&self.offered())
    }
}

impl<C: Compile, K> Engine<C, K> {
    /// The objects of pending units.
    fn offered(&self) -> Vec<C::Object> {
        let mut offered = Vec::new();
        if let Some(context) = &self.context {
            self.pending.values().flatten().for_each(|unit| self.compile.compile(context, unit, &mut offered));
        }
        offered
    }

    /// Replaces objects by equal ones of pending units, which know their text where those that were read back don't.
    fn describe(&self, actual: &mut [C::Object]) {
        let mut offered: HashMap<KeyOf<C>, C::Object> =
            self.offered().into_iter().map(|object| (object.key(), object)).collect();
        for object in actual {
            if let Some(same) = offered.remove(&object.key()).filter(|same| same == object) {
                *object = same;
            }
        }
    }
}
