//! The child processes of this program: counted, so that it is replaced only while none runs.
//!
//! After `process::replace` no thread would wait for a child, or enforce its time limit, and one that
//! writes to the kernel would do so beside those of the next run.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// One child process, from before its start until after its end.
#[derive(Debug)]
pub struct ChildProcess(());

/// No child process runs, and a thread that wants to start one waits, until this is dropped.
#[derive(Debug)]
pub struct NoChildren(());

/// A child process that waits for its next task, with its [`ChildProcess`]. The process ends when this is dropped, or when none may run.
pub struct IdleChild<T>(Arc<Mutex<Option<T>>>);

struct Children {
    running: usize,
    /// none may start
    closed: bool,
    /// those that wait for a task
    idle: Vec<Weak<dyn Endable>>,
}

/// An idle child process, whatever its type.
trait Endable: Send + Sync {
    fn end(&self);
}

static CHILDREN: Mutex<Children> = Mutex::new(Children { running: 0, closed: false, idle: Vec::new() });
static CHANGED: Condvar = Condvar::new();

// === impl ChildProcess ===

impl ChildProcess {
    /// Counts a child process that is about to be started. Waits while there is a [`NoChildren`], or a thread waits for one.
    #[must_use]
    pub fn begin() -> Self {
        let mut children = locked();
        while children.closed {
            children = CHANGED.wait(children).unwrap_or_else(PoisonError::into_inner);
        }
        children.running += 1;
        Self(())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        locked().running -= 1;
        CHANGED.notify_all();
    }
}

// === impl IdleChild ===

impl<T: Send + 'static> IdleChild<T> {
    /// Keeps a child, which dropping ends and waits for. It ends at once while none may run.
    #[must_use]
    pub fn new(child: T) -> Self {
        let mut children = locked();
        if children.closed {
            drop(children);
            drop(child);
            return Self(Arc::new(Mutex::new(None)));
        }
        let kept = Arc::new(Mutex::new(Some(child)));
        let weak = Arc::downgrade(&kept);
        children.idle.retain(|idle| idle.strong_count() > 0);
        children.idle.push(weak);
        Self(kept)
    }

    /// Takes it back for a task; `None` if it was ended.
    #[must_use]
    pub fn take(self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T> fmt::Debug for IdleChild<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleChild").finish_non_exhaustive()
    }
}

impl<T: Send> Endable for Mutex<Option<T>> {
    fn end(&self) {
        let child = self.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(child);
    }
}

// === impl NoChildren ===

impl NoChildren {
    /// Ends the idle child processes, and waits until no other runs; `None` if that takes longer than `limit`. None starts meanwhile.
    #[must_use]
    pub fn within(limit: Duration) -> Option<Self> {
        let deadline = Instant::now() + limit;
        let mut children = locked();
        if children.closed {
            return None;
        }
        children.closed = true;
        // Opens again if it is dropped below.
        let none = Self(());
        let idle = std::mem::take(&mut children.idle);
        drop(children);
        // Each counts until it has ended.
        idle.iter().filter_map(Weak::upgrade).for_each(|idle| idle.end());
        children = locked();
        while children.running > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(children);
                drop(none);
                return None;
            }
            children = CHANGED.wait_timeout(children, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(none)
    }
}

impl Drop for NoChildren {
    fn drop(&mut self) {
        locked().closed = false;
        CHANGED.notify_all();
    }
}

fn locked() -> MutexGuard<'static, Children> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}
