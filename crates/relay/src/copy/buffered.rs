//! Copies through this process's memory, on any operating system.

use std::io::{self, Read as _, Write as _};
use std::net;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::task::yield_now;

use super::{Burst, Direction, Finish, First, TURN_BYTES};
use crate::system::{Stream, is_at_mark};

/// The buffer on the stack: most requests and answers of interactive protocols fit.
pub(super) const SMALL_BYTES: usize = 4096;
/// The buffer on the heap while a large stream flows.
const LARGE_BYTES: usize = 32 << 10;

/// The result of one read and one write.
#[derive(Debug)]
pub(super) enum Passed {
    /// The source has no bytes for now.
    Nothing,
    /// The source has closed.
    End,
    /// All bytes were written; `filled`: they were as many as the buffer holds.
    Bytes { count: usize, filled: bool },
    /// The sink took `count` bytes; `rest` is still to be written.
    Part { count: usize, rest: Box<[u8]> },
}

/// Stands for the pipes of systems that have `splice(2)`.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) struct Pipes;

#[cfg(not(target_os = "linux"))]
impl Pipes {
    /// Nothing to keep.
    pub(crate) fn new(_enabled: bool) -> Self {
        Self
    }

    /// Copies a large stream until its source pauses.
    pub(super) async fn burst(&self, direction: Direction<'_>) -> Result<Burst, Finish> {
        burst(direction).await
    }
}

/// Reads once into a buffer on the stack and writes the bytes, without waiting.
pub(super) fn pass(from: &Stream, to: &Stream) -> Result<Passed, Finish> {
    let mut buffer = [0; SMALL_BYTES];
    let Some(count) = read(from, &mut buffer)? else { return Ok(Passed::Nothing) };
    write(buffer.get(..count).unwrap_or_default(), |bytes| to.try_write(bytes))
}

/// The same, from an unregistered socket, to one whose readiness the event loop may not have seen yet.
pub(crate) fn pass_first(from: &net::TcpStream, to: &Stream) -> First {
    let mut buffer = [0; SMALL_BYTES];
    First(match (&*SockRef::from(from)).read(&mut buffer) {
        Ok(count) => write(buffer.get(..count).unwrap_or_default(), |bytes| (&*SockRef::from(to)).write(bytes)),
        Err(error) if is_temporary(&error) => Ok(Passed::Nothing),
        Err(_error) => Err(Finish::SourceLost),
    })
}

/// Writes what a read of a small buffer has returned.
fn write(bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<usize>) -> Result<Passed, Finish> {
    if bytes.is_empty() {
        return Ok(Passed::End);
    }
    let written = match write(bytes) {
        Ok(written) => written,
        Err(error) if is_temporary(&error) => 0,
        Err(error) => return Err(Finish::of_sink(&error)),
    };
    Ok(match bytes.get(written..) {
        None | Some([]) => Passed::Bytes { count: bytes.len(), filled: bytes.len() == SMALL_BYTES },
        Some(rest) => Passed::Part { count: written, rest: rest.into() },
    })
}

/// Copies a large stream through a buffer on the heap until its source pauses.
pub(super) async fn burst(direction: Direction<'_>) -> Result<Burst, Finish> {
    let mut buffer = vec![0; LARGE_BYTES];
    let (mut total, mut turn) = (0, 0);
    loop {
        match read(direction.from, &mut buffer)? {
            None => return Ok(if total > SMALL_BYTES { Burst::Large } else { Burst::Small }),
            Some(0) => return Ok(Burst::End),
            Some(count) => {
                direction.write_all(buffer.get(..count).unwrap_or_default()).await?;
                total += count;
                turn += count;
            }
        }
        if turn >= TURN_BYTES {
            turn = 0;
            yield_now().await;
        }
    }
}

/// Reads once; `None` if there is nothing to read for now.
///
/// A read that does not fill the buffer has emptied the socket, unless it ended before an urgent byte. The runtime learns that by
/// `WouldBlock`: asking for the mark costs less than a read that would only return it. Its notifications are edge-triggered, so the next
/// bytes, or the end, wake it again.
fn read(from: &Stream, buffer: &mut [u8]) -> Result<Option<usize>, Finish> {
    let mut read = None;
    let result = from.try_io(Interest::READABLE, || {
        let count = receive(from, buffer)?;
        read = Some(count);
        if 0 < count && count < buffer.len() && !is_at_mark(from) {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            Ok(())
        }
    });
    match result {
        Err(error) if !is_temporary(&error) => Err(Finish::SourceLost),
        Ok(()) | Err(_) => Ok(read),
    }
}

fn receive(from: &Stream, buffer: &mut [u8]) -> io::Result<usize> {
    (&*SockRef::from(from)).read(buffer)
}

/// True if the call is to be repeated, at once or when the socket is ready.
fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
