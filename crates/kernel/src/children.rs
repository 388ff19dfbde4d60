//! The child processes of this program: counted, so that it is replaced only while none runs.
//!
//! After `process::replace` no thread would wait for a child, or enforce its time limit, and one that
//! writes to the kernel would do so beside those of the next run.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One child process, from before its start until after its end.
#[derive(Debug)]
pub struct ChildProcess(());

/// No child process runs, and a thread that wants to start one waits, until this is dropped.
#[derive(Debug)]
pub struct NoChildren(());

struct Children {
    running: usize,
    /// none may start
    closed: bool,
}

static CHILDREN: Mutex<Children> = Mutex::new(Children { running: 0, closed: false });
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

// === impl NoChildren ===

impl NoChildren {
    /// Waits until no child process runs; `None` if that takes longer than `limit`. None starts meanwhile.
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
