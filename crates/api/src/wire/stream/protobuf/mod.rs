//! Decodes answers in protobuf.
//!
//! A body or an object is four bytes, then a message `runtime.Unknown` with the kind and the bytes of the object. A list
//! is an object whose field 2 is repeated; a watch is a sequence of frames, each with its length in four bytes before it.

mod fields;
mod list;
mod messages;

use std::cell::Cell;

use super::super::convert::name_of;
use super::super::raw::{RawEndpointSlice, RawNode, RawService, RawServiceCidr};
use super::super::scalar::{Int, LooseText, Text};
use super::object::{DecodedObject, EventType, MAX_PARTS, RawObject, Remains, check_object, convert, malformed};
use super::pending::Pending;
use super::{MAX_OBJECT_BYTES, Status, StreamError, WatchEvent};
use crate::object::Kind;
use fields::{Damage, Message, merge};
use messages::{EventMessage, MetaOnly, RawStatus, Unknown};

pub(super) use list::ProtobufList;

/// Prefix of bodies and objects in protobuf.
const MAGIC: &[u8] = b"k8s\0";

/// Cuts a watch into frames and reads their events.
#[derive(Debug)]
pub(super) struct ProtobufWatch {
    kind: Kind,
    /// of the frame that isn't whole: its length, or the beginning of that, then its bytes
    pending: Pending,
    /// the length of the frame, when that is known
    length: Option<usize>,
}

/// Reads a whole body that is a Status.
pub(super) fn status(body: &[u8]) -> Option<Status> {
    let unknown = unwrap(body).ok()?;
    (unknown.kind() == "Status").then(|| status_message(unknown.raw).ok()).flatten()
}

fn status_message(bytes: &[u8]) -> Result<Status, Damage> {
    let raw: RawStatus<'_> = message(bytes)?;
    let text = |text: Option<Text<'_>>| text.map(|text| text.to_string()).unwrap_or_default();
    Ok(Status::new(
        raw.code.map_or(0, |code| code.0),
        &text(raw.reason),
        &text(raw.message),
        raw.details.and_then(|details| details.retry_after_seconds).map(|Int(seconds)| seconds),
    ))
}

/// Reads a message of its own, with parts of its own.
fn message<'a, M: Message<'a>>(bytes: &'a [u8]) -> Result<M, Damage> {
    let mut message = M::default();
    merge(&mut message, bytes, &Cell::new(MAX_PARTS)).map(|()| message)
}

/// Takes an object out of what it is wrapped in.
fn unwrap(bytes: &[u8]) -> Result<Unknown<'_>, Damage> {
    let bytes = bytes.strip_prefix(MAGIC).ok_or("an object doesn't begin as one in protobuf does")?;
    let unknown: Unknown<'_> = message(bytes)?;
    match unknown.content_encoding.as_deref() {
        None | Some("") => Ok(unknown),
        Some(_) => Err("an object has a content encoding"),
    }
}

/// Reads the bytes of an object of this kind.
fn object(kind: Kind, bytes: &[u8]) -> DecodedObject<'_> {
    fn read<'a, R: RawObject<'a> + Message<'a>>(kind: Kind, bytes: &'a [u8]) -> DecodedObject<'a> {
        match message::<R>(bytes) {
            Ok(raw) => convert(kind, raw),
            Err(damage) => DecodedObject::unreadable(kind, damage, remains(kind, bytes)),
        }
    }
    match kind {
        Kind::Service => read::<RawService<'_>>(kind, bytes),
        Kind::EndpointSlice => read::<RawEndpointSlice<'_>>(kind, bytes),
        Kind::Node => read::<RawNode<'_>>(kind, bytes),
        Kind::ServiceCidr => read::<RawServiceCidr<'_>>(kind, bytes),
    }
}

/// Looks for the name in an object, as far as that can be read.
fn remains(kind: Kind, bytes: &[u8]) -> Remains<'_> {
    let mut object = MetaOnly::default();
    let whole = merge(&mut object, bytes, &Cell::new(MAX_PARTS)).is_ok();
    let meta = object.metadata.unwrap_or_default();
    let namespace = meta.namespace.as_deref().unwrap_or("");
    // A server always writes the namespace: without it, it may be in the malformed part.
    let known = whole || kind.is_cluster_wide() || !namespace.is_empty();
    let name = meta.name.as_deref().filter(|_| known).and_then(|name| name_of(kind, namespace, name));
    Remains { name, resource_version: meta.resource_version.and_then(|LooseText(text)| text) }
}

/// Reads one event; an error is one of its frame.
fn event(kind: Kind, frame: &[u8]) -> Result<WatchEvent, StreamError> {
    let event: EventMessage<'_> =
        message(frame).map_err(|damage| malformed(format!("an event of the watch: {damage}")))?;
    let text = event.kind.as_deref().unwrap_or("");
    let kind_of_event = EventType::of(text).ok_or_else(|| malformed(format!("an event of type {text:?}")))?;
    let wrapped = event.object.unwrap_or_default().raw;
    Ok(match kind_of_event {
        EventType::Upsert => unwrap_object(kind, wrapped).map(|bytes| object(kind, bytes).upsert()),
        EventType::Delete => unwrap_object(kind, wrapped).map(|bytes| remains(kind, bytes).delete(kind)),
        EventType::Bookmark => unwrap_object(kind, wrapped).and_then(bookmark),
        EventType::Error => Ok(WatchEvent::error(status(wrapped))),
    }
    .unwrap_or_else(|message| WatchEvent::unreadable(kind, &message)))
}

/// Takes an object of this kind out of what it is wrapped in.
fn unwrap_object(kind: Kind, bytes: &[u8]) -> Result<&[u8], String> {
    let unknown = unwrap(bytes)?;
    check_object(kind, unknown.api_version(), unknown.kind())?;
    Ok(unknown.raw)
}

fn bookmark(bytes: &[u8]) -> Result<WatchEvent, String> {
    let object: MetaOnly<'_> = message(bytes)?;
    Ok(WatchEvent::bookmark(&object.metadata.unwrap_or_default()))
}

// === impl ProtobufWatch ===

impl ProtobufWatch {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, pending: Pending::default(), length: None }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8], events: &mut Vec<WatchEvent>) -> Result<(), StreamError> {
        loop {
            let Some(length) = self.length else {
                let Some(piece) = self.pending.take(&mut bytes, 4)? else { return Ok(()) };
                let length = piece.iter().fold(0, |length, byte| (length << 8) | u64::from(*byte));
                self.pending.recycle(piece);
                self.length = Some(checked_length(length)?);
                continue;
            };
            let Some(piece) = self.pending.take(&mut bytes, length)? else { return Ok(()) };
            events.push(event(self.kind, &piece)?);
            self.pending.recycle(piece);
            self.length = None;
        }
    }

    pub(super) fn finish(self) -> Result<(), StreamError> {
        if self.length.is_some() || !self.pending.is_empty() { Err(StreamError::Truncated) } else { Ok(()) }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pending.capacity()
    }
}

/// A length that is believed.
fn checked_length(bytes: u64) -> Result<usize, StreamError> {
    usize::try_from(bytes).ok().filter(|length| *length <= MAX_OBJECT_BYTES).ok_or(StreamError::TooLarge { bytes })
}

// === impl Unknown ===

impl Unknown<'_> {
    fn api_version(&self) -> &str {
        self.type_meta.as_ref().and_then(|meta| meta.api_version.as_deref()).unwrap_or("")
    }

    fn kind(&self) -> &str {
        self.type_meta.as_ref().and_then(|meta| meta.kind.as_deref()).unwrap_or("")
    }
}
