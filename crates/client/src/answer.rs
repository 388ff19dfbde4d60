//! Responses of the API server.

use std::time::Duration;

use ferry_api::wire::stream::{Encoding, Status, decode_status};
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use tokio::time::timeout;

use super::body::{Body, Purpose};
use super::error::CallError;
use super::headers;
use super::pool::RunningRequest;

/// Head and body of a response of any status.
#[derive(Debug)]
pub struct Answer {
    /// the status code
    pub status: u16,
    /// the body's encoding; `None` if unsupported
    pub encoding: Option<Encoding>,
    /// the header Content-Type; may be blank
    pub content_type: String,
    /// the header Retry-After
    pub retry_after: Option<Duration>,
    /// the body, decompressed
    pub body: Body,
}

/// Most bytes that are read of an error's body, or of a discarded one.
const MOST_BYTES: usize = 64 << 10;

impl Answer {
    pub(super) fn new(
        response: Response<Incoming>,
        running: RunningRequest,
        purpose: Purpose,
    ) -> Result<Self, CallError> {
        let (head, incoming) = response.into_parts();
        let text = |value: Option<&HeaderValue>| {
            value.map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned()).unwrap_or_default()
        };
        let packing = text(head.headers.get(CONTENT_ENCODING)).to_ascii_lowercase();
        let packed = match packing.as_str() {
            "" | "identity" => false,
            "gzip" | "x-gzip" => true,
            other => return Err(CallError::Interrupted(format!("unsupported Content-Encoding {other:?}"))),
        };
        let content_type = text(head.headers.get(CONTENT_TYPE));
        Ok(Self {
            status: head.status.as_u16(),
            encoding: headers::encoding(&content_type),
            content_type,
            retry_after: headers::retry_after(&head.headers),
            body: Body::new(incoming, running, packed, purpose),
        })
    }

    /// Reads the Status of an unsuccessful response within `patience`; a body that is no Status gives its first line as the
    /// message.
    pub async fn refusal(self, patience: Duration) -> Status {
        let code = self.status;
        let bytes = timeout(patience, beginning(self.body)).await.unwrap_or_default();
        let status = self.encoding.and_then(|encoding| decode_status(encoding, &bytes));
        status.map(|status| Status { code, ..status }).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&bytes);
            let first = text.lines().next().unwrap_or_default();
            Status {
                code,
                reason: "".into(),
                message: first.escape_debug().to_string().into(),
                retry_after_seconds: None,
            }
        })
    }

    /// Reads and discards the body within `patience`, so that the connection can be reused.
    pub async fn discard(self, patience: Duration) {
        // If that fails, the connection isn't reused.
        let _ = timeout(patience, beginning(self.body)).await;
    }
}

/// Up to [`MOST_BYTES`] of a body, as far as it is readable.
async fn beginning(mut body: Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < MOST_BYTES
        && let Ok(Some(chunk)) = body.chunk().await
    {
        let room = MOST_BYTES - bytes.len();
        bytes.extend(chunk.into_iter().take(room));
    }
    bytes
}
