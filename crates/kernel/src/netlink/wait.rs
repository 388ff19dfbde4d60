//! Waits until a netlink socket has notifications to read, with or without a time limit.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Waits until a socket has something to read, without a limit of time.
///
/// # Errors
/// The system's, except interruptions.
pub fn wait_readable(socket: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until a socket has something to read; false if it hasn't within this time.
///
/// # Errors
/// The system's, except interruptions.
pub fn wait_readable_for(socket: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
