//! What the engines of one process do one after another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Lets one write of this process follow the other, with what is to be known of it: which changes of the kernel's state are
/// one's own is certain only while nobody else here writes. The kernel does the same with all commits of a network namespace, so
/// nobody waits longer. Engines of one process share it.
#[derive(Debug, Default)]
pub struct Turn<W>(Arc<Mutex<W>>);

impl<W> Turn<W> {
    /// Waits for the turn, and has it as long as the guard lives. Whoever panicked in it left nothing half done that
    /// a comparison with the kernel would not find.
    pub fn take(&self) -> MutexGuard<'_, W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the turn if nobody else does.
    pub fn try_take(&self) -> Option<MutexGuard<'_, W>> {
        match self.0.try_lock() {
            Ok(watch) => Some(watch),
            Err(TryLockError::Poisoned(watch)) => Some(watch.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

// What is shared need not be.
impl<W> Clone for Turn<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
