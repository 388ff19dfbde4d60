//! Streams the body of a response, and ends watches when the client certificate changes.

use std::fmt;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use tokio::time::Instant;

use super::Client;
use super::error::{CallError, chain};
use super::gzip::Gunzip;
use super::pool::RunningRequest;

/// A watch that is never idle checks this many times less often for another client certificate.
const BUSY_LOOKS: u32 = 6;

/// The body of a response. Dropping it before its end resets its stream, or closes the connection with HTTP/1.1.
pub struct Body {
    incoming: Incoming,
    /// occupies its connection until the end
    running: Option<RunningRequest>,
    /// set if the body is compressed
    gunzip: Option<Gunzip>,
    ended: bool,
    purpose: Purpose,
}

/// Work besides reading.
pub(super) enum Purpose {
    /// report duration and size at the end
    Measure {
        client: Client,
        method: Method,
        /// when the request was sent
        begun: Instant,
        /// size of the request's body
        request_bytes: u64,
        size_bytes: u64,
    },
    /// end a watch when the client certificate has changed since it was opened
    Follow {
        client: Client,
        /// the number of the identity that opened it
        identity: u64,
        /// interval of the checks while the watch is idle
        every: Duration,
        /// the last check
        looked: Instant,
    },
}

// === impl Body ===

impl Body {
    pub(super) fn new(incoming: Incoming, running: RunningRequest, packed: bool, purpose: Purpose) -> Self {
        Self { incoming, running: Some(running), gunzip: packed.then(Gunzip::new), ended: false, purpose }
    }

    /// The next chunk, decompressed and never empty; `None` at the end. A watch also ends when the client certificate has
    /// changed, so that the caller opens it again with the new one; if possible while it is idle. Cancel-safe.
    ///
    /// # Errors
    /// If the connection is interrupted, or the compressed data is malformed.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, CallError> {
        if self.ended {
            return Ok(None);
        }
        let chunk = self.next().await;
        match (&chunk, &mut self.purpose) {
            (Ok(Some(bytes)), Purpose::Measure { size_bytes, .. }) => *size_bytes += bytes.len() as u64,
            (Ok(None) | Err(_), Purpose::Measure { client, method, begun, request_bytes, size_bytes }) => {
                client.observe(method, begun.elapsed(), *request_bytes, Some(*size_bytes));
            }
            (_, Purpose::Follow { .. }) => {}
        }
        self.ended = !matches!(chunk, Ok(Some(_)));
        if self.ended {
            self.running = None;
        }
        chunk
    }

    async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        let broken =
            |error: std::io::Error| CallError::Interrupted(format!("decompressing the response body: {error}"));
        loop {
            if let Some(gunzip) = &mut self.gunzip
                && let Some(bytes) = gunzip.chunk().map_err(broken)?
            {
                return Ok(Some(bytes));
            }
            let Some(bytes) = self.receive().await? else {
                let Some(mut gunzip) = self.gunzip.take() else { return Ok(None) };
                return gunzip.finish().map_err(broken);
            };
            match &mut self.gunzip {
                Some(gunzip) => gunzip.push(bytes),
                None => return Ok(Some(bytes)),
            }
        }
    }

    /// The next chunk as it was sent.
    async fn receive(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            let frame = match &mut self.purpose {
                Purpose::Measure { .. } => self.incoming.frame().await,
                Purpose::Follow { client, identity, every, looked } => {
                    // A watch that is never idle is interrupted at last, possibly within an event.
                    let overdue = looked.elapsed() >= *every * BUSY_LOOKS;
                    let frame = tokio::select! {
                        biased;
                        () = std::future::ready(()), if overdue => None,
                        frame = self.incoming.frame() => Some(frame),
                        () = tokio::time::sleep(*every) => None,
                    };
                    let Some(frame) = frame else {
                        *looked = Instant::now();
                        if client.identity() == *identity {
                            continue;
                        }
                        // The watch ends here, not the compressed stream: its trailer is missing.
                        self.gunzip = None;
                        return Ok(None);
                    };
                    frame
                }
            };
            match frame {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(CallError::Interrupted(format!("reading the response body: {}", chain(&error))));
                }
                // Trailers are ignored.
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) if !bytes.is_empty() => return Ok(Some(bytes)),
                    Ok(_) | Err(_) => {}
                },
            }
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("ended", &self.ended).finish_non_exhaustive()
    }
}
