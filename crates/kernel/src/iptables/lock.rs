//! The lock that all programs take which change tables by way of the legacy variant: a file, locked with flock(2).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use super::Failure;

/// How often it is tried.
const EVERY: Duration = Duration::from_millis(10);

/// The lock, until this is dropped. A child process does not inherit it.
#[derive(Debug)]
pub(super) struct Lock {
    _file: OwnedFd,
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
                Ok(()) => return Ok((Self { _file: file }, waited)),
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
}
