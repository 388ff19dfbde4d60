//! The verdicts of the actual objects.

use super::{Engine, KeyOf};
use crate::{CommitError, Extent, Inspector, Kernel, Trace, Tracer};

impl<C, K> Inspector for Engine<C, K>
where
    C: Trace + Send,
    C::Object: Send,
    KeyOf<C>: Send,
    K: Kernel<C::Object> + Send,
{
    fn trace(&mut self, see: &mut dyn FnMut(&Tracer<'_>)) -> Result<(), CommitError> {
        let actual = self.kernel.read_back(&Extent::All)?;
        see(&*self.compile.tracer(&actual));
        Ok(())
    }
}
