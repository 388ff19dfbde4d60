//! The core behind a lock. The source applies what it brings on its own thread: to wake another one for each change costs as
//! much as the change. The thread `core` has the inputs of all others, and the moments at which to decide again.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Core, Input, NeverReady};

/// Shares the core.
#[derive(Clone, Debug)]
pub struct Desk(Arc<Mutex<Core>>);

/// Whether the thread `core` has to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Applied {
    /// all is decided
    Decided,
    /// there is a moment to wait for, or what a start needs won't come
    Undecided,
}

/// Batches taken at once when many wait.
const TOGETHER: usize = 64;

// === impl Desk ===

impl Desk {
    /// Shares this core.
    pub fn new(core: Core) -> Self {
        Self(Arc::new(Mutex::new(core)))
    }

    /// Applies an input on this thread, decides, and hands over.
    pub fn apply(&self, input: Input) -> Applied {
        let mut core = self.lock();
        core.take(input);
        match core.decide() {
            Ok(None) => Applied::Decided,
            Ok(Some(_)) | Err(_) => Applied::Undecided,
        }
    }

    /// Runs until everybody who could send has ended, or what a start needs won't come.
    pub fn run(&self, inputs: &Receiver<Input>) -> Result<(), NeverReady> {
        let mut again: Option<Instant> = None;
        loop {
            let received = match again {
                None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(moment) => inputs.recv_timeout(moment.saturating_duration_since(Instant::now())),
            };
            let mut core = self.lock();
            match received {
                Ok(first) => {
                    core.take(first);
                    // What waits already is decided together.
                    inputs.try_iter().take(TOGETHER).for_each(|input| core.take(input));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            again = core.decide()?;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // A thread that panics ends the program.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
