//! Decodes the API server's answers: lists and events of a watch, in protobuf or JSON, as their bytes arrive. Of a body only the
//! incomplete object is kept.
//!
//! The result doesn't depend on how the body is split into pieces. A malformed object affects itself only; if the body can't be
//! split into objects, the decoder returns an error, and the same error from then on.

mod json;
mod object;
mod pending;
mod protobuf;

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use self::json::{JsonList, JsonWatch};
use self::protobuf::{ProtobufList, ProtobufWatch};
use crate::object::{Kind, KubeObject, ObjectName};

/// The largest frame, item or other piece of an answer that is decoded, in bytes. The buffered part of a stream never exceeds it.
pub const MAX_OBJECT_BYTES: usize = 16 << 20;

/// Encoding of the server's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

/// An object that exists but can't be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// the kind that was requested
    pub kind: Kind,
    /// its name, if at least that is readable and the object is of this kind
    pub name: Option<ObjectName>,
    /// the name is readable, but invalid, so this is no object that was ever decoded
    pub misnamed: bool,
    /// the cause, without control characters; doesn't repeat kind and name
    pub message: String,
}

/// The server's error instead of an answer: a `Status` of meta/v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// the HTTP status; 0 where there is none
    pub code: u16,
    /// machine-readable reason, such as `Expired`; may be empty
    pub reason: Box<str>,
    /// human-readable message; may be empty
    pub message: Box<str>,
    /// details.retryAfterSeconds, over 0
    pub retry_after_seconds: Option<u32>,
}

/// The content of a watch event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchChange {
    /// ADDED or MODIFIED
    Upsert(KubeObject),
    /// DELETED
    Delete(ObjectName),
    /// BOOKMARK: no further changes up to its resource version
    Bookmark {
        /// all objects that existed when a streaming list began have been sent
        initial_events_end: bool,
    },
    /// any of them, with an object that can't be decoded
    Unreadable(Unreadable),
    /// ERROR: the server ends this watch with a `Status`
    Error(Status),
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// the change
    pub change: WatchChange,
    /// metadata.resourceVersion of its object; `None` if absent or unreadable
    pub resource_version: Option<Box<str>>,
}

/// The error that ends the decoding of a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// the bytes are no answer of the requested form
    #[error("malformed answer: {0}")]
    Malformed(String),
    /// a piece is over [`MAX_OBJECT_BYTES`]
    #[error("a piece of the answer is too large: {bytes} bytes or more, over {MAX_OBJECT_BYTES}")]
    TooLarge {
        /// the length that it states, or the length received so far
        bytes: u64,
    },
    /// the body ended too early
    #[error("the answer ended in the middle")]
    Truncated,
    /// the server sent a `Status` instead of a list
    #[error("the server answered {} {}: {}", .0.code, .0.reason, .0.message)]
    Status(Status),
}

/// The end of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEnd {
    /// metadata.resourceVersion of the list, never empty: a watch continues from there
    pub resource_version: Box<str>,
    /// metadata.continue: there is another page
    pub continue_token: Option<Box<str>>,
    /// the object of the list that was written last, and its resource version; `None` if no object has a numeric version, or the
    /// name of that object is unreadable
    pub newest: Option<(ObjectName, Box<str>)>,
}

/// Decodes the body of a list, item by item.
#[derive(Debug)]
pub struct ListDecoder {
    inner: ListReader,
    failed: Option<StreamError>,
}

/// Decodes the body of a watch, event by event.
#[derive(Debug)]
pub struct WatchDecoder {
    inner: WatchReader,
    failed: Option<StreamError>,
}

#[derive(Debug)]
enum ListReader {
    Json(JsonList),
    Protobuf(ProtobufList),
}

#[derive(Debug)]
enum WatchReader {
    Json(Box<JsonWatch>),
    Protobuf(ProtobufWatch),
}

/// Compares two resource versions: decimal numbers of any length. `None` for anything else.
pub fn compare_versions(one: &str, other: &str) -> Option<Ordering> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(one) || !digits(other) {
        return None;
    }
    let (one, other) = (one.trim_start_matches('0'), other.trim_start_matches('0'));
    Some(one.len().cmp(&other.len()).then_with(|| one.cmp(other)))
}

/// Decodes the body of a failed request; `None` if it is no `Status`.
pub fn decode_status(encoding: Encoding, body: &[u8]) -> Option<Status> {
    match encoding {
        Encoding::Json => json::status(body),
        Encoding::Protobuf => protobuf::status(body),
    }
}

// === impl ListDecoder ===

impl ListDecoder {
    /// Begins a list of objects of this kind.
    pub fn new(kind: Kind, encoding: Encoding) -> Self {
        let inner = match encoding {
            Encoding::Json => ListReader::Json(JsonList::new(kind)),
            Encoding::Protobuf => ListReader::Protobuf(ProtobufList::new(kind)),
        };
        Self { inner, failed: None }
    }

    /// Takes the next bytes of the body, and adds each item that they complete.
    ///
    /// # Errors
    /// If the body isn't a list of this kind: [`StreamError::Malformed`], [`StreamError::TooLarge`], or
    /// [`StreamError::Status`]. Items before that have been added.
    pub fn push(&mut self, bytes: &[u8], items: &mut Vec<Result<KubeObject, Unreadable>>) -> Result<(), StreamError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let pushed = match &mut self.inner {
            ListReader::Json(list) => list.push(bytes, items),
            ListReader::Protobuf(list) => list.push(bytes, items),
        };
        pushed.inspect_err(|error| self.failed = Some(error.clone()))
    }

    /// Bytes that are kept between two pushes.
    #[cfg(test)]
    fn capacity(&self) -> usize {
        match &self.inner {
            ListReader::Json(list) => list.capacity(),
            ListReader::Protobuf(list) => list.capacity(),
        }
    }

    /// The body has ended.
    ///
    /// # Errors
    /// [`StreamError::Truncated`] if it isn't complete, the error of [`Self::push`], or [`StreamError::Malformed`] without a kind
    /// or resource version.
    pub fn finish(self) -> Result<ListEnd, StreamError> {
        match (self.failed, self.inner) {
            (Some(error), _) => Err(error),
            (None, ListReader::Json(list)) => list.finish(),
            (None, ListReader::Protobuf(list)) => list.finish(),
        }
    }
}

// === impl WatchDecoder ===

impl WatchDecoder {
    /// Begins a watch of objects of this kind.
    pub fn new(kind: Kind, encoding: Encoding) -> Self {
        let inner = match encoding {
            Encoding::Json => WatchReader::Json(Box::new(JsonWatch::new(kind))),
            Encoding::Protobuf => WatchReader::Protobuf(ProtobufWatch::new(kind)),
        };
        Self { inner, failed: None }
    }

    /// Takes the next bytes of the body, and adds each event that they complete.
    ///
    /// # Errors
    /// [`StreamError::Malformed`] or [`StreamError::TooLarge`]. Events before that have been added.
    pub fn push(&mut self, bytes: &[u8], events: &mut Vec<WatchEvent>) -> Result<(), StreamError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let pushed = match &mut self.inner {
            WatchReader::Json(watch) => watch.push(bytes, events),
            WatchReader::Protobuf(watch) => watch.push(bytes, events),
        };
        pushed.inspect_err(|error| self.failed = Some(error.clone()))
    }

    /// Bytes that are kept between two pushes.
    #[cfg(test)]
    fn capacity(&self) -> usize {
        match &self.inner {
            WatchReader::Json(watch) => watch.capacity(),
            WatchReader::Protobuf(watch) => watch.capacity(),
        }
    }

    /// The body has ended.
    ///
    /// # Errors
    /// [`StreamError::Truncated`] if the body ends within an event, or the error of [`Self::push`].
    pub fn finish(self) -> Result<(), StreamError> {
        match (self.failed, self.inner) {
            (Some(error), _) => Err(error),
            (None, WatchReader::Json(watch)) => watch.finish(),
            (None, WatchReader::Protobuf(watch)) => watch.finish(),
        }
    }
}
