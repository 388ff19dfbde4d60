//! Copies bytes between the two sides of a connection, with half-close and back-pressure, until both directions have ended or one
//! side is lost.
//!
//! A direction first copies through a small buffer on the stack, so an idle connection owns no buffer at all. When a read fills
//! that buffer the stream is large, and is copied inside the kernel ([`splice`]), or through a larger buffer where the system
//! cannot do that ([`buffered`]).

mod buffered;
#[cfg(target_os = "linux")]
mod splice;

use std::io;
use std::pin::pin;

use socket2::SockRef;

use crate::counters::Counter;
use crate::system::{Stream, lost};
use buffered::Passed;
#[cfg(not(target_os = "linux"))]
pub(crate) use buffered::Pipes;
pub(crate) use buffered::pass_first;
#[cfg(target_os = "linux")]
pub(crate) use splice::Pipes;

/// After this many bytes of one direction other connections get their turn.
const TURN_BYTES: usize = 1 << 20;

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both sides have closed, and all bytes were passed on.
    Closed,
    /// One side was reset, or lost: the other has to be reset too, since a regular end would claim that the stream is complete.
    Lost(Peer),
}

/// One of the two peers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Client,
    Server,
}

/// The counters of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter<'a> {
    pub(crate) port: &'a Counter,
    pub(crate) endpoint: &'a Counter,
}

/// The end of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    /// The source closed, and its end was passed on.
    Closed,
    /// The source was reset, or lost.
    SourceLost,
    /// The sink takes no more, since it was reset, or lost.
    SinkLost,
    /// The sink takes no more, after the end of its own direction.
    SinkClosed,
}

/// The end of a burst of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Burst {
    /// The source has no more bytes for now; it had less than a buffer on the stack holds.
    Small,
    /// The source has no more bytes for now; the stream is large.
    Large,
    /// The source has closed.
    End,
}

/// The result of the pass before the source was registered with the event loop.
#[derive(Debug)]
pub(crate) struct First(Result<Passed, Finish>);

/// The sockets and counters of one direction.
#[derive(Clone, Copy, Debug)]
struct Direction<'a> {
    from: &'a Stream,
    to: &'a Stream,
    meter: Meter<'a>,
}

/// Copies both ways until the connection ends. `first` is the result of [`pass_first`] for the client's side.
pub(crate) async fn both_ways(
    client: &Stream,
    server: &Stream,
    up: Meter<'_>,
    down: Meter<'_>,
    first: First,
    pipes: &Pipes,
) -> Ending {
    let mut upward = pin!(Direction { from: client, to: server, meter: up }.copy(first, pipes));
    let mut downward = pin!(Direction { from: server, to: client, meter: down }.copy(First::default(), pipes));
    tokio::select! {
        // The upward direction counts the bytes of the first pass, even if the other one ends at once.
        biased;
        copied = &mut upward => rest(pass_on(copied, server), (client, Peer::Client), downward, Peer::Server).await,
        copied = &mut downward => rest(pass_on(copied, client), (server, Peer::Server), upward, Peer::Client).await,
    }
}

/// Copies what remains after the direction from `source`, whose socket this is, to `sink` has ended.
async fn rest(
    finish: Finish,
    (socket, source): (&Stream, Peer),
    other: impl Future<Output = Result<(), Finish>>,
    sink: Peer,
) -> Ending {
    match finish {
        Finish::SourceLost => Ending::Lost(source),
        // Bytes that the lost side sent before are still delivered. The failed write has taken the error of its reset, so a read finds a
        // regular end that the peer never sent.
        Finish::SinkLost => {
            let _not_passed_on = other.await;
            Ending::Lost(sink)
        }
        Finish::SinkClosed => {
            let _passed_on = pass_on(other.await, socket);
            Ending::Lost(sink)
        }
        Finish::Closed => tokio::select! {
            copied = other => match pass_on(copied, socket) {
                Finish::Closed => Ending::Closed,
                Finish::SourceLost => Ending::Lost(sink),
                Finish::SinkLost | Finish::SinkClosed => Ending::Lost(source),
            },
            () = lost(socket) => Ending::Lost(source),
        },
    }
}

/// Passes the end of a direction on to its sink.
fn pass_on(copied: Result<(), Finish>, sink: &Stream) -> Finish {
    match copied {
        Ok(()) => match SockRef::from(sink).shutdown(std::net::Shutdown::Write) {
            Ok(()) => Finish::Closed,
            // The sink is gone already. An error of its reset is left for the read of the other direction.
            Err(_gone) => Finish::SinkClosed,
        },
        Err(finish) => finish,
    }
}

// === impl Finish ===

impl Finish {
    /// The sink takes no more. The error tells whether it had ended its own direction before it was lost: Linux reports `EPIPE` then, and
    /// `ECONNRESET` otherwise (`tcp_reset`), to the first call alone.
    fn of_sink(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::SinkClosed } else { Self::SinkLost }
    }
}

// === impl Meter ===

impl Meter<'_> {
    fn count(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.port.add(bytes);
        self.endpoint.add(bytes);
    }
}

// === impl First ===

impl Default for First {
    /// Nothing.
    fn default() -> Self {
        Self(Ok(Passed::Nothing))
    }
}

// === impl Direction ===

impl Direction<'_> {
    /// Copies until the source closes.
    async fn copy(self, first: First, pipes: &Pipes) -> Result<(), Finish> {
        let mut burst = self.settle(first.0?).await?;
        loop {
            if burst == Burst::End {
                return Ok(());
            }
            self.from.readable().await.map_err(|_error| Finish::SourceLost)?;
            burst = if burst == Burst::Large { pipes.burst(self).await? } else { self.pass().await? };
        }
    }

    /// Copies what one read of a small buffer yields.
    async fn pass(self) -> Result<Burst, Finish> {
        self.settle(buffered::pass(self.from, self.to)?).await
    }

    /// Counts what was passed on, and writes the rest.
    async fn settle(self, passed: Passed) -> Result<Burst, Finish> {
        match passed {
            Passed::Nothing => Ok(Burst::Small),
            Passed::End => Ok(Burst::End),
            Passed::Bytes { count, filled } => {
                self.meter.count(count);
                Ok(if filled { Burst::Large } else { Burst::Small })
            }
            Passed::Part { count, rest } => {
                self.meter.count(count);
                self.write_all(&rest).await?;
                Ok(Burst::Large)
            }
        }
    }

    async fn write_all(self, mut bytes: &[u8]) -> Result<(), Finish> {
        while !bytes.is_empty() {
            match self.to.try_write(bytes) {
                Ok(count) => {
                    self.meter.count(count);
                    bytes = bytes.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.sink_ready().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Finish::of_sink(&error)),
            }
        }
        Ok(())
    }

    /// Waits until the sink takes bytes. A source that is lost meanwhile ends the wait, since nothing reads from it.
    async fn sink_ready(self) -> Result<(), Finish> {
        tokio::select! {
            biased;
            ready = self.to.writable() => ready.map_err(|error| Finish::of_sink(&error)),
            () = lost(self.from) => Err(Finish::SourceLost),
        }
    }
}
