//! The body of an answer, as it comes.

use std::fmt;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use tokio::time::Instant;

use super::Client;
use super::error::{CallError, chain};
use super::gzip::Gunzip;
use super::pool::Running;

/// A watch that is never idle looks that much more seldom whether the client got another certificate.
const BUSY_LOOKS: u32 = 6;

/// The body of an answer. Dropping it ends its stream, or with HTTP/1.1 the connection, if it hasn't been read to its end.
pub struct Body {
    incoming: Incoming,
    /// occupies its connection until the end
    running: Option<Running>,
    /// set if the server packed it
    gunzip: Option<Gunzip>,
    ended: bool,
    purpose: Purpose,
}

/// What has to be done besides reading.
pub(super) enum Purpose {
    /// observe the whole of it
    Measure {
        client: Client,
        method: Method,
        /// when the request was sent
        begun: Instant,
        /// of the request's body
        request_bytes: u64,
        size_bytes: u64,
    },
    /// end it when the client's certificate isn't the one any more that it was opened with: a watch
    Follow {
        client: Client,
        /// the number of that identity
        identity: u64,
        /// how often to look while nothing comes
        every: Duration,
        /// when that was done last
        looked: Instant,
    },
}

// === impl Body ===

impl Body {
    pub(super) fn new(incoming: Incoming, running: Running, packed: bool, purpose: Purpose) -> Self {
        Self { incoming, running: Some(running), gunzip: packed.then(Gunzip::new), ended: false, purpose }
    }

    /// The next piece, never an empty one, unpacked; `None` at the end. A watch also ends when the client got another
    /// certificate, so that it is opened again with that; if possible while nothing comes. May be dropped and called again at
    /// any time.
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
        let broken = |error: std::io::Error| CallError::Interrupted(format!("unpacking the body: {error}"));
        loop {
            if let Some(gunzip) = &mut self.gunzip
                && let Some(bytes) = gunzip.next().map_err(broken)?
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

    /// The next piece as it was sent.
    async fn receive(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            let frame = match &mut self.purpose {
                Purpose::Measure { .. } => self.incoming.frame().await,
                Purpose::Follow { client, identity, every, looked } => {
                    // A watch that is never idle is cut in the middle of things at last.
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
                        // It is the end of a watch, not of what the server packs.
                        self.gunzip = None;
                        return Ok(None);
                    };
                    frame
                }
            };
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(CallError::Interrupted(format!("reading the body: {}", chain(&error)))),
                // Trailers say nothing that counts here.
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
