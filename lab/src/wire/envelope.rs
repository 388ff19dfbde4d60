//! Encodes the framing of messages: the envelope of a response, the frame of a watch event, and the Status of an error.

use prost::Message as _;
use prost::encoding::{encode_varint, encoded_len_varint};
use serde_json::{Value, json};

/// Prefix of each protobuf response of the API.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// The tail of an envelope: contentEncoding and contentType, both empty.
pub(crate) const TAIL: [u8; 4] = [0x1a, 0, 0x22, 0];

#[derive(Clone, PartialEq, prost::Message)]
struct TypeMeta {
    #[prost(string, required, tag = "1")]
    api_version: String,
    #[prost(string, required, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListMeta {
    #[prost(string, required, tag = "1")]
    self_link: String,
    #[prost(string, required, tag = "2")]
    resource_version: String,
    #[prost(string, required, tag = "3")]
    continue_token: String,
    #[prost(int64, optional, tag = "4")]
    remaining_item_count: Option<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusMessage {
    #[prost(message, required, tag = "1")]
    metadata: ListMeta,
    #[prost(string, required, tag = "2")]
    status: String,
    #[prost(string, required, tag = "3")]
    message: String,
    #[prost(string, required, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<StatusDetails>,
    #[prost(int32, required, tag = "6")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusDetails {
    #[prost(string, required, tag = "1")]
    name: String,
    #[prost(string, required, tag = "2")]
    group: String,
    #[prost(string, required, tag = "3")]
    kind: String,
    #[prost(int32, required, tag = "5")]
    retry_after_seconds: i32,
    #[prost(string, required, tag = "6")]
    uid: String,
}

/// metav1.Status of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiStatus {
    /// the HTTP status
    pub code: u16,
    /// machine-readable reason, for example `Expired`
    pub reason: String,
    /// human-readable message
    pub message: String,
    /// details.retryAfterSeconds
    pub retry_after_seconds: Option<u32>,
}

// === impl ApiStatus ===

impl ApiStatus {
    /// Encodes it as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let mut value = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let (Some(seconds), Value::Object(fields)) = (self.retry_after_seconds, &mut value) {
            fields.insert("details".to_owned(), json!({ "retryAfterSeconds": seconds }));
        }
        value.to_string().into_bytes()
    }

    /// Encodes it as a protobuf message, in its envelope.
    pub fn to_protobuf(&self) -> Vec<u8> {
        let details = self.retry_after_seconds.map(|seconds| StatusDetails {
            retry_after_seconds: i32::try_from(seconds).unwrap_or(i32::MAX),
            ..StatusDetails::default()
        });
        let message = StatusMessage {
            metadata: ListMeta::default(),
            status: "Failure".to_owned(),
            message: self.message.clone(),
            reason: self.reason.clone(),
            details,
            code: i32::from(self.code),
        };
        envelope("v1", "Status", &message.encode_to_vec())
    }
}

/// Wraps a message in its envelope, magic first.
pub fn envelope(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut out = list_envelope(api_version, kind, message.len());
    out.extend_from_slice(message);
    out.extend_from_slice(&TAIL);
    out
}

/// The beginning of an envelope around a message of `message_bytes` bytes. (The empty tail may be left out.)
pub fn list_envelope(api_version: &str, kind: &str, message_bytes: usize) -> Vec<u8> {
    let types = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let mut out = MAGIC.to_vec();
    field(&mut out, 1, &types.encode_to_vec());
    field_head(&mut out, 2, message_bytes);
    out
}

/// The first field of a list: its metadata.
pub fn list_meta(resource_version: u64, continue_token: &str, remaining: Option<usize>) -> Vec<u8> {
    let meta = ListMeta {
        self_link: String::new(),
        resource_version: resource_version.to_string(),
        continue_token: continue_token.to_owned(),
        remaining_item_count: remaining.and_then(|count| i64::try_from(count).ok()),
    };
    let mut out = Vec::new();
    field(&mut out, 1, &meta.encode_to_vec());
    out
}

/// The tag and length before each item of a list.
pub fn list_item(bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    field_head(&mut out, 2, bytes);
    out
}

/// The frame of a watch event: its length in four bytes, its type (`ADDED` …), and the object in an envelope.
pub fn watch_frame(event: &str, object: &[u8]) -> Vec<u8> {
    let raw = 1 + encoded_len_varint(object.len() as u64) + object.len();
    let length = 2 + event.len() + 1 + encoded_len_varint(raw as u64) + raw;
    let mut out = Vec::with_capacity(4 + length);
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    field(&mut out, 1, event.as_bytes());
    field_head(&mut out, 2, raw);
    field(&mut out, 1, object);
    out
}

fn field(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    field_head(out, number, content.len());
    out.extend_from_slice(content);
}

fn field_head(out: &mut Vec<u8>, number: u64, bytes: usize) {
    encode_varint(number << 3 | 2, out);
    encode_varint(bytes as u64, out);
}
