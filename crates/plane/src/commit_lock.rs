//! Serialises the commits of the engines of one process, so that its own changes can be distinguished from foreign ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferry_api::object::Family;

/// The name of the thread that drives the engine of a family. The kernel's notifications carry it, so that the commits of
/// another proxy can be distinguished from those of other programs.
pub const fn thread_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "sync-v4",
        Family::V6 => "sync-v6",
    }
}

/// The lock on commits of this process, with the state of its listener: changes can be attributed to this process only while
/// one of its engines writes at a time. The kernel serialises all commits of a network namespace anyway, so it costs no time.
/// Engines of one process share it.
#[derive(Debug, Default)]
pub struct CommitLock<W>(Arc<Mutex<W>>);

impl<W> CommitLock<W> {
    /// Waits for the lock, held as long as the guard lives. A panic of another holder leaves nothing that a comparison with the
    /// kernel would not find.
    pub fn take(&self) -> MutexGuard<'_, W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// The shared state need not be cloneable.
impl<W> Clone for CommitLock<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proxies of other versions recognise them.
    #[test]
    fn the_threads_of_proxies_keep_their_names() {
        assert_eq!(Family::ALL.map(thread_name), ["sync-v4", "sync-v6"]);
    }
}
