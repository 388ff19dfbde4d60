//! The xtables lock: a file, locked with flock(2) by all programs that change tables of the legacy variant.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

use super::ToolFailure;

/// Interval between attempts.
const EVERY: Duration = Duration::from_millis(10);

/// The held lock, released when dropped. Only child processes that it is [lent](Lock::lend) to inherit it.
#[derive(Debug)]
pub(super) struct Lock {
    file: OwnedFd,
}

// === impl Lock ===

impl Lock {
    /// Takes the lock and returns the time waited for it, zero if it was free.
    ///
    /// # Errors
    /// [`ToolFailure::NoLockFile`]; [`ToolFailure::Locked`] if another process held the lock for the whole `bound`.
    pub(super) fn take(path: &Path, bound: Duration) -> Result<(Self, Duration), ToolFailure> {
        let cannot = |error: Errno| ToolFailure::NoLockFile { path: path.to_owned(), error: error.into() };
        let begin = Instant::now();
        // As in the tool: read-only, so that an existing file can be opened on a read-only file system.
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(cannot)?;
        let mut waited = Duration::ZERO;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok((Self { file }, waited)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if waited >= bound => {
                    return Err(ToolFailure::Locked { path: path.to_owned(), bound });
                }
                Err(Errno::WOULDBLOCK) => sleep(EVERY.min(bound.saturating_sub(waited))),
                Err(error) => return Err(cannot(error)),
            }
            waited = begin.elapsed();
        }
    }

    /// Makes the child of this command hold the lock, too: if this process dies, the lock is released only after the child, which
    /// may be in the middle of a write, has ended. While this process lives, only it releases the lock.
    ///
    /// # Errors
    /// The system's error.
    #[expect(unsafe_code, reason = "a descriptor that is to be inherited by one child alone is made so in that child")]
    pub(super) fn lend(&self, command: &mut Command) -> io::Result<()> {
        let file = self.file.try_clone()?;
        let inherit = move || Ok(fcntl_setfd(&file, FdFlags::empty())?);
        // SAFETY: the closure runs in the child between fork and exec. It makes one system call, on a descriptor that it
        // owns, neither allocates nor takes a lock, and touches no memory that other threads may have left half written.
        unsafe { command.pre_exec(inherit) };
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing isn't enough: processes that the tool has left behind may have a copy of the descriptor, and would hold the
        // lock until they end. Unlocking cannot fail with a descriptor that is locked.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
