//! The lock that all programs take which change tables by way of the legacy variant: a file, locked with flock(2).

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

use super::Failure;

/// How often it is tried.
const EVERY: Duration = Duration::from_millis(10);

/// The lock, until this is dropped. No child process inherits it but those it is [lent](Lock::lend) to.
#[derive(Debug)]
pub(super) struct Lock {
    file: OwnedFd,
}

// === impl Lock ===

impl Lock {
    /// Waits for it, and says how long that took: nothing at all if it was free.
    ///
    /// # Errors
    /// [`Failure::NoLockFile`]; [`Failure::Locked`] if somebody else had it all the time.
    pub(super) fn take(path: &Path, bound: Duration) -> Result<(Self, Duration), Failure> {
        let cannot = |error: Errno| Failure::NoLockFile { path: path.to_owned(), error: error.into() };
        let begin = Instant::now();
        // As the tool opens it: only to read, so that one which exists can be opened on a read-only file system.
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(cannot)?;
        let mut waited = Duration::ZERO;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok((Self { file }, waited)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if waited >= bound => {
                    return Err(Failure::Locked { path: path.to_owned(), bound });
                }
                Err(Errno::WOULDBLOCK) => sleep(EVERY.min(bound.saturating_sub(waited))),
                Err(error) => return Err(cannot(error)),
            }
            waited = begin.elapsed();
        }
    }

    /// The child of this command holds the lock, too: if this process dies, the lock is free only when the child is gone,
    /// which may be in the middle of a write. While this process lives, it alone gives the lock up.
    ///
    /// # Errors
    /// The error of the system call.
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
        // Closing isn't enough: what the tool has left behind may have a copy, and would hold the lock for as long as it
        // lives. It can't fail with a descriptor that is locked.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
