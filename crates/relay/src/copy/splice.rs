//! Copies large streams inside the kernel: `splice(2)` from a socket into a pipe, and from the pipe into the other socket.
//!
//! A direction has a pipe only while bytes flow, so connections that pause own none. Pipes are kept for the next burst, a few per
//! thread. Only a certain number may be large, since bytes that a slow reader leaves in pipes are memory of the kernel.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::task::yield_now;

use super::buffered::{self, SMALL_BYTES};
use super::{Burst, Direction, Finish, TURN_BYTES};
use crate::system::{Stream, is_at_mark};

/// Sizes that are tried for a large pipe. The first is the most that an unprivileged process may have
/// (`fs.pipe-max-size`); less is granted once the user has many (`fs.pipe-user-pages-soft`).
const SIZES: [usize; 3] = [1 << 20, 256 << 10, 128 << 10];
/// Pipes of a thread that may be large at a time; others keep the kernel's 64 KiB.
const MAX_LARGE: usize = 32;
/// Idle pipes that a thread keeps.
const MAX_IDLE: usize = 8;

/// The pipes of one thread.
#[derive(Debug)]
pub(crate) struct Pipes {
    idle: Mutex<Vec<Pipe>>,
    large: AtomicUsize,
    /// The system has `splice(2)` for sockets, as far as is known. Sandboxes lack it.
    supported: AtomicBool,
}

/// A pipe and the number of bytes in it.
#[derive(Debug)]
pub(crate) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    capacity: usize,
    held: usize,
    large: bool,
}

/// The result of one `splice(2)`.
#[derive(Debug)]
enum Moved {
    Bytes(usize),
    /// The socket is not ready.
    Nothing,
}

// === impl Pipes ===

impl Pipes {
    /// No pipes yet; with `enabled` false there never are any.
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            idle: Mutex::new(Vec::with_capacity(MAX_IDLE)),
            large: AtomicUsize::new(0),
            supported: AtomicBool::new(enabled),
        }
    }

    /// Copies a large stream until its source pauses. Through memory, if the system has no `splice(2)` for sockets; through the
    /// buffer on the stack if there is no pipe, since a larger one for each stream would add up.
    pub(super) async fn burst(&self, direction: Direction<'_>) -> Result<Burst, Finish> {
        if !self.supported.load(Ordering::Relaxed) {
            return buffered::burst(direction).await;
        }
        match self.take() {
            Ok(pipe) => burst(direction, pipe, self).await,
            Err(_exhausted) => direction.pass().await,
        }
    }

    /// An empty pipe.
    fn take(&self) -> io::Result<Pipe> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.open(), Ok)
    }

    fn open(&self) -> io::Result<Pipe> {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let large = self.large.load(Ordering::Relaxed) < MAX_LARGE;
        let granted = if large { SIZES.iter().find_map(|&size| fcntl_setpipe_size(&writer, size).ok()) } else { None };
        let capacity = granted.map_or_else(|| fcntl_getpipe_size(&writer), Ok)?;
        if large {
            self.large.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Pipe { reader, writer, capacity, held: 0, large })
    }

    /// Takes a pipe back; one with bytes in it, of a connection that was lost, is closed.
    fn put(&self, pipe: Pipe) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if pipe.held == 0 && idle.len() < MAX_IDLE {
            idle.push(pipe);
        } else if pipe.large {
            self.large.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

// === impl Pipe ===

impl Pipe {
    /// Moves bytes of the socket into the pipe, which is empty: so "try again" can only mean that the socket is. No bytes: the source has
    /// closed, or has sent an urgent byte, before which splice(2) ends whatever is behind it.
    fn fill(&mut self, from: &Stream) -> io::Result<Moved> {
        let moved = from.try_io(Interest::READABLE, || {
            match splice(from.as_fd(), None, self.writer.as_fd(), None, self.capacity, flags()) {
                Err(Errno::AGAIN) if is_at_mark(from) => Ok(0),
                moved => Ok(moved?),
            }
        });
        let moved = ready(moved)?;
        if let Moved::Bytes(count) = moved {
            self.held = count;
        }
        Ok(moved)
    }

    /// Moves bytes of the pipe into the socket.
    fn drain(&mut self, to: &Stream) -> io::Result<Moved> {
        let moved = to.try_io(Interest::WRITABLE, || {
            Ok(splice(self.reader.as_fd(), None, to.as_fd(), None, self.held, flags())?)
        });
        let moved = ready(moved)?;
        if let Moved::Bytes(count) = moved {
            self.held = self.held.saturating_sub(count);
        }
        Ok(moved)
    }
}

fn flags() -> SpliceFlags {
    SpliceFlags::NONBLOCK | SpliceFlags::MOVE
}

fn ready(moved: io::Result<usize>) -> io::Result<Moved> {
    match moved {
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Moved::Nothing),
        Err(error) => Err(error),
    }
}

/// Copies a large stream until its source pauses.
async fn burst(direction: Direction<'_>, pipe: Pipe, pipes: &Pipes) -> Result<Burst, Finish> {
    let mut lent = Lent { pipe: Some(pipe), pipes };
    let (mut total, mut turn) = (0, 0);
    while let Some(pipe) = &mut lent.pipe {
        match pipe.fill(direction.from) {
            Ok(Moved::Nothing) => return Ok(if total > SMALL_BYTES { Burst::Large } else { Burst::Small }),
            // A read goes past an urgent byte, and distinguishes it from the end.
            Ok(Moved::Bytes(0)) => return direction.pass().await,
            Ok(Moved::Bytes(count)) => {
                total += count;
                turn += count;
            }
            Err(error) if is_unsupported(&error) => {
                pipes.supported.store(false, Ordering::Relaxed);
                break;
            }
            Err(_error) => return Err(Finish::SourceLost),
        }
        while pipe.held > 0 {
            match pipe.drain(direction.to) {
                Ok(Moved::Bytes(count)) => direction.meter.count(count),
                Ok(Moved::Nothing) => direction.sink_ready().await?,
                Err(error) => return Err(Finish::of_sink(&error)),
            }
        }
        if turn >= TURN_BYTES {
            turn = 0;
            yield_now().await;
        }
    }
    buffered::burst(direction).await
}

/// A system without `splice(2)` for sockets.
fn is_unsupported(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| [Errno::INVAL, Errno::NOSYS, Errno::PERM].contains(&errno))
}

/// A pipe in use, given back when the burst ends in any way.
struct Lent<'a> {
    pipe: Option<Pipe>,
    pipes: &'a Pipes,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.pipes.put(pipe);
        }
    }
}
