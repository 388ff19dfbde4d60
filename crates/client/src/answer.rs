//! The answer of a server.

use std::time::Duration;

use ferry_api::wire::stream::{Encoding, Status, decode_status};
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use tokio::time::timeout;

use super::body::{Body, Purpose};
use super::error::CallError;
use super::headers;
use super::pool::Running;

/// The head of an answer, of whatever status, and its body.
#[derive(Debug)]
pub struct Answer {
    /// the status code
    pub status: u16,
    /// how the body is written; `None` if in no way that is known here
    pub encoding: Option<Encoding>,
    /// as the server says it; may be blank
    pub content_type: String,
    /// when to ask again
    pub retry_after: Option<Duration>,
    /// the body, unpacked
    pub body: Body,
}

/// The most bytes of a refusal, or of an answer that nobody wants, that are read.
const MOST_BYTES: usize = 64 << 10;

impl Answer {
    pub(super) fn new(response: Response<Incoming>, running: Running, purpose: Purpose) -> Result<Self, CallError> {
        let (head, incoming) = response.into_parts();
        let text = |value: Option<&HeaderValue>| {
            value.map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned()).unwrap_or_default()
        };
        let packing = text(head.headers.get(CONTENT_ENCODING)).to_ascii_lowercase();
        let packed = match packing.as_str() {
            "" | "identity" => false,
            "gzip" | "x-gzip" => true,
            other => return Err(CallError::Interrupted(format!("the answer is packed in an unknown way: {other}"))),
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

    /// What a server says that doesn't do what was asked, in so much time: its Status, or else the first line of what it
    /// sent.
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

    /// Reads what nobody wants, in so much time, so that the connection can be used again.
    pub async fn discard(self, patience: Duration) {
        // If that fails, the connection isn't used again.
        let _ = timeout(patience, beginning(self.body)).await;
    }
}

/// The beginning of a body, as far as it can be read.
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
