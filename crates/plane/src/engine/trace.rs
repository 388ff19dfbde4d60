//! Traces packets through the actual objects.

use std::collections::HashMap;

use super::{Engine, KeyOf};
use crate::{CommitError, Compile, Extent, Inspector, Kernel, Object, RuleTexts, Trace, Tracer};

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

    fn texts(&self) -> RuleTexts {
        self.compile.texts(&self.offered())
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

    /// Replaces objects that were read back by equal ones of pending units: the compiler gives rules a text, the kernel keeps none.
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
