//! The response to one HTTP/2 request: a handler thread writes it, hyper sends it.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use hyper::Response;
use hyper::body::{Body, Bytes, Frame};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc, oneshot};

/// Pieces of a body queued for the client.
const PIECES: usize = 4;
/// Time for hyper to send what was written.
const FLUSH: Duration = Duration::from_millis(2);

/// The response to one request, filled by its handler thread.
pub(super) struct PendingResponse {
    head: Option<oneshot::Sender<Result<Response<Pieces>, h2::Error>>>,
    body: Option<mpsc::Sender<Result<Bytes, h2::Error>>>,
    /// the body's pieces, until the head is sent
    pieces: Option<Pieces>,
    /// becomes readable when the client drops the request
    pub(super) gone: Arc<OwnedFd>,
    pub(super) has_certificate: bool,
}

/// The response as hyper gets it.
pub(super) struct PromisedResponse {
    head: oneshot::Receiver<Result<Response<Pieces>, h2::Error>>,
    /// signals a dropped request until the body takes over
    waiting: Gone,
}

/// A body filled by a handler thread.
pub(super) struct Pieces {
    pieces: mpsc::Receiver<Result<Bytes, h2::Error>>,
    _gone: Gone,
}

/// Makes the descriptor readable when it is dropped.
struct Gone(Option<Arc<OwnedFd>>);

/// A response that is to be written.
pub(super) fn response(has_certificate: bool) -> (PendingResponse, PromisedResponse) {
    let gone = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("making an eventfd"));
    let waiting = Gone(Some(Arc::clone(&gone)));
    let (sender, pieces) = mpsc::channel(PIECES);
    let (head_sender, head) = oneshot::channel();
    let pending = PendingResponse {
        head: Some(head_sender),
        body: Some(sender),
        pieces: Some(Pieces { pieces, _gone: Gone(Some(Arc::clone(&gone))) }),
        gone,
        has_certificate,
    };
    (pending, PromisedResponse { head, waiting })
}

// === impl PendingResponse ===

impl PendingResponse {
    pub(super) fn head(&mut self, response: hyper::http::response::Builder) -> io::Result<()> {
        let (Some(head), Some(pieces)) = (self.head.take(), self.pieces.take()) else { return Err(broken()) };
        head.send(Ok(response.body(pieces).map_err(io::Error::other)?)).map_err(|_| broken())
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let body = self.body.as_ref().ok_or_else(broken)?;
        body.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(|_| broken())
    }

    /// Ends the body properly.
    pub(super) fn complete(&mut self) {
        self.body = None;
    }

    /// Refuses the stream, unless a response has begun.
    pub(super) fn refuse(&mut self) {
        if let Some(head) = self.head.take() {
            // The receiver may be gone.
            let _ = head.send(Err(h2::Reason::REFUSED_STREAM.into()));
        }
    }

    /// Resets the stream.
    pub(super) fn reset(&mut self, reason: h2::Reason) {
        if let Some(body) = self.body.take() {
            // A reset discards unsent data of the stream, but the bytes before a cut have to arrive.
            thread::sleep(FLUSH);
            // The receiver may be gone.
            let _ = body.blocking_send(Err(reason.into()));
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        self.reset(h2::Reason::INTERNAL_ERROR);
    }
}

fn broken() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

// === impl PromisedResponse ===

impl PromisedResponse {
    /// Waits until the head is written; the body follows.
    pub(super) async fn head(mut self) -> Result<Response<Pieces>, h2::Error> {
        let response = (&mut self.head).await.map_err(|_| h2::Error::from(h2::Reason::INTERNAL_ERROR))??;
        self.waiting.0 = None;
        Ok(response)
    }
}

// === impl Pieces ===

impl Body for Pieces {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.pieces.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

// === impl Gone ===

impl Drop for Gone {
    fn drop(&mut self) {
        if let Some(gone) = &self.0 {
            // The counter can't overflow: it is written at most twice.
            let _ = rustix::io::write(gone, &1_u64.to_ne_bytes());
        }
    }
}
