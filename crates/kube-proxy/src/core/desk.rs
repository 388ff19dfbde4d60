//! The core behind a lock. The source applies its events on its own thread, since waking another thread for each change
//! costs as much as the change. The thread `core` applies the inputs of all other threads, and decides again at due times.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ferry_api::object::{KubeObject, ObjectName};
use ferry_model::{MissingSchedulers, PerFamily};

use super::{Core, NeverReady, ObjectPage, Restored, View};
use crate::input::Input;

/// Shared access to the core.
#[derive(Clone, Debug)]
pub struct Desk {
    core: Arc<Mutex<Core>>,
    /// batches of events queued for the thread `core`; later ones must not overtake them
    queued: Arc<AtomicUsize>,
    /// the number of the core's hand-overs
    hand_overs: Arc<AtomicU64>,
    /// the core's
    missing_schedulers: Arc<Mutex<PerFamily<MissingSchedulers>>>,
}

/// The core at rest: nothing is applied as long as this is held.
#[derive(Debug)]
pub struct Frozen<'a>(MutexGuard<'a, Core>);

/// Outcome of an applied input, by what is left to the thread `core`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Applied {
    /// everything is decided
    Decided,
    /// a decision is due later, or an object that the start needs will not arrive
    Undecided,
}

/// Interval of the attempts to stop a busy core.
const FREEZE_STEP: Duration = Duration::from_millis(1);
/// Batches taken from the channel at once.
const TOGETHER: usize = 64;

// === impl Desk ===

impl Desk {
    /// Shared access to this core.
    pub fn new(core: Core) -> Self {
        let (hand_overs, missing_schedulers) = (core.hand_overs(), Arc::clone(&core.missing_schedulers));
        Self { core: Arc::new(Mutex::new(core)), queued: Arc::default(), hand_overs, missing_schedulers }
    }

    /// The number of hand-overs to the engines since the start; doesn't wait for the core's lock.
    pub fn hand_overs(&self) -> u64 {
        self.hand_overs.load(Ordering::Relaxed)
    }

    /// The schedulers of IPVS that the kernel lacks; doesn't wait for the core's lock.
    pub fn missing_schedulers(&self) -> PerFamily<MissingSchedulers> {
        self.missing_schedulers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a batch of events that is about to be sent to the thread `core`.
    pub fn announce(&self) {
        self.queued.fetch_add(1, Ordering::SeqCst);
    }

    /// As [`Self::apply`], without waiting for the core.
    ///
    /// # Errors
    /// The input, if the core is busy, or earlier events are still on their way to its thread; and at the start, when the core
    /// checks the kernel for rules in use and resolves every Service.
    pub fn try_apply(&self, input: Input) -> Result<Applied, Input> {
        let Ok(mut core) = self.core.try_lock() else { return Err(input) };
        if core.is_starting() || self.queued.load(Ordering::SeqCst) > 0 {
            return Err(input);
        }
        Ok(apply(&mut core, input))
    }

    /// Applies an input on this thread, decides, and hands over.
    pub fn apply(&self, input: Input) -> Applied {
        apply(&mut self.lock(), input)
    }

    /// Takes the objects of a snapshot and decides, as [`Self::apply`]; nothing is left undecided where they weren't taken.
    pub fn restore(&self, objects: Vec<KubeObject>) -> (Restored, Applied) {
        self.begin_with(|core| core.restore(objects))
    }

    /// Takes the objects of a former run of this program, whose rules serve, and decides, as [`Self::restore`].
    pub fn take_over(&self, objects: Vec<KubeObject>) -> (Restored, Applied) {
        self.begin_with(|core| core.take_over(objects))
    }

    fn begin_with(&self, objects: impl FnOnce(&mut Core) -> Restored) -> (Restored, Applied) {
        let mut core = self.lock();
        match objects(&mut core) {
            Restored::Done => (Restored::Done, decide(&mut core)),
            other => (other, Applied::Decided),
        }
    }

    /// Stops all changes until the result is dropped; `None` if the core is busy for longer than `limit`.
    pub fn freeze(&self, limit: Duration) -> Option<Frozen<'_>> {
        let deadline = Instant::now() + limit;
        loop {
            match self.core.try_lock() {
                Ok(core) => return Some(Frozen(core)),
                Err(TryLockError::Poisoned(error)) => return Some(Frozen(error.into_inner())),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
                Err(TryLockError::WouldBlock) => sleep(FREEZE_STEP),
            }
        }
    }

    /// Runs a closure on the core's state, under its lock.
    pub fn with_view<T>(&self, action: impl FnOnce(View<'_>) -> T) -> T {
        action(self.lock().view())
    }

    /// Copies some objects: those of the page behind this Service, or of the first one. `None` before the first hand-over.
    pub fn page(&self, after: Option<&ObjectName>) -> Option<ObjectPage> {
        self.lock().page(after)
    }

    /// Runs until all senders are closed, or an object that the start needs will not arrive.
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
                    self.take(&mut core, first);
                    // Queued inputs are decided together.
                    inputs.try_iter().take(TOGETHER).for_each(|input| self.take(&mut core, input));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            again = core.decide()?;
        }
    }

    fn take(&self, core: &mut Core, input: Input) {
        if matches!(input, Input::Events(_)) {
            // Senders that don't announce, as tests do, leave the count at 0.
            let _ = self.queued.try_update(Ordering::SeqCst, Ordering::SeqCst, |queued| queued.checked_sub(1));
        }
        core.take(input);
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // A thread that panics ends the program.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Frozen ===

impl Frozen<'_> {
    /// As [`Desk::page`].
    pub fn page(&self, after: Option<&ObjectName>) -> Option<ObjectPage> {
        self.0.page(after)
    }
}

fn apply(core: &mut Core, input: Input) -> Applied {
    core.take(input);
    decide(core)
}

fn decide(core: &mut Core) -> Applied {
    match core.decide() {
        Ok(None) => Applied::Decided,
        Ok(Some(_)) | Err(_) => Applied::Undecided,
    }
}
