//! Converts the decoded fields of one object of an answer, in either encoding, to the delivered object or event, and checks its
//! kind and size.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::super::head::{DocumentHead, Reading};
use super::super::raw::{RawEndpointSlice, RawMeta, RawNode, RawService, RawServiceCidr};
use super::super::scalar::Text;
use super::super::{convert, sentence};
use super::{ListEnd, Status, StreamError, Unreadable, WatchChange, WatchEvent, compare_versions};
use crate::object::{Kind, KubeObject, ObjectName};

/// The longest text of an answer that is kept besides its objects, in bytes: a continue token, the message of a Status.
pub(super) const TEXT_BYTES: usize = 16 << 10;

/// The longest message about a malformed object, in bytes: it may quote the object.
const MESSAGE_BYTES: usize = 512;

/// Most parts of an object (in JSON texts, lists and objects, in protobuf entries of lists): the largest object that the API
/// allows, a slice of 1,000 endpoints with 100 addresses each, has some 150,000. It bounds the memory that an object of tiny
/// parts takes while it is decoded.
pub(super) const MAX_PARTS: u32 = 1 << 18;

/// The error for an object with more than that.
pub(super) const TOO_MANY_PARTS: &str = "it has more parts than any object may have";

/// The decoded fields of an object of one kind.
pub(super) trait RawObject<'a>: Default {
    fn api_version(&self) -> &Option<Text<'a>>;
    fn kind(&self) -> &Option<Text<'a>>;
    fn metadata(&mut self) -> &mut Option<RawMeta<'a>>;
    fn convert(self) -> Result<KubeObject, String>;
}

/// An object or its error, and its resource version, if that is readable.
pub(super) struct DecodedObject<'a> {
    pub(super) object: Result<KubeObject, Unreadable>,
    pub(super) resource_version: Option<Cow<'a, str>>,
}

/// The newest object of a list.
#[derive(Debug, Default)]
pub(super) struct Newest {
    version: Box<str>,
    name: Option<ObjectName>,
}

/// Identity and version of a malformed object.
#[derive(Default)]
pub(super) struct Remains<'a> {
    pub(super) name: Option<ObjectName>,
    pub(super) resource_version: Option<Cow<'a, str>>,
}

/// The types of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventType {
    Upsert,
    Delete,
    Bookmark,
    Error,
}

/// Checks apiVersion and kind, if they are set.
pub(super) fn check_object(kind: Kind, api_version: &str, stated: &str) -> Result<(), String> {
    match DocumentHead::typed(api_version, stated).reading(Some(kind))? {
        Reading::Object(found) if found == kind => Ok(()),
        Reading::Object(_) | Reading::List(_) | Reading::Ignored(_) => {
            Err(format!("expected a {kind}, got a {stated}"))
        }
    }
}

/// Checks that a body is a list of this kind.
pub(super) fn check_list(kind: Kind, api_version: &str, stated: &str) -> Result<(), StreamError> {
    match DocumentHead::typed(api_version, stated).reading(None) {
        Ok(Reading::List(Some(found))) if found == kind => Ok(()),
        Ok(_) => Err(malformed(format!("expected a {kind}List, got a {stated}"))),
        Err(message) => Err(malformed(format!("expected a {kind}List: {message}"))),
    }
}

/// Converts the decoded fields to the object.
pub(super) fn convert<'a, R: RawObject<'a>>(kind: Kind, mut raw: R) -> DecodedObject<'a> {
    let text = |text: &Option<Text<'a>>| text.as_ref().map_or(Cow::Borrowed(""), |text| text.0.clone());
    if let Err(message) = check_object(kind, &text(raw.api_version()), &text(raw.kind())) {
        return DecodedObject::unreadable(kind, &message, Remains::default());
    }
    let resource_version =
        raw.metadata().as_mut().and_then(|meta| meta.resource_version.take()).and_then(|text| text.0);
    // If the conversion fails although there is a name, the name is invalid.
    let misnamed =
        raw.metadata().as_ref().is_some_and(|meta| meta.name.as_deref().is_some_and(|name| !name.is_empty()));
    let unreadable = |message: String| Unreadable { kind, name: None, misnamed, message: message_of(&message) };
    let object = raw.convert().map_err(unreadable);
    DecodedObject { object, resource_version }
}

/// The end of a list, from its metadata.
pub(super) fn list_end(resource_version: &str, continue_token: &str, newest: Newest) -> Result<ListEnd, StreamError> {
    if resource_version.is_empty() {
        return Err(malformed("the list has no resourceVersion"));
    }
    Ok(ListEnd {
        resource_version: resource_version.into(),
        continue_token: Some(continue_token).filter(|token| !token.is_empty()).map(Into::into),
        newest: newest.name.map(|name| (name, newest.version)),
    })
}

/// A text that is kept beside the objects; an endless one isn't.
pub(super) fn kept(text: &str) -> Result<Box<str>, StreamError> {
    if text.len() > TEXT_BYTES {
        return Err(malformed(format!("a text of {} bytes in the list's metadata", text.len())));
    }
    Ok(text.into())
}

pub(super) fn malformed(message: impl Into<String>) -> StreamError {
    StreamError::Malformed(message_of(&message.into()))
}

/// A message for logs: of limited length, without control characters.
pub(super) fn message_of(text: &str) -> String {
    sentence(None, shortened(text, MESSAGE_BYTES))
}

fn shortened(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

// === impl RawObject ===

macro_rules! raw_object {
    ($raw:ident, $convert:path, $kind:ident) => {
        impl<'a> RawObject<'a> for $raw<'a> {
            fn api_version(&self) -> &Option<Text<'a>> {
                &self.api_version
            }
            fn kind(&self) -> &Option<Text<'a>> {
                &self.kind
            }
            fn metadata(&mut self) -> &mut Option<RawMeta<'a>> {
                &mut self.metadata
            }
            fn convert(self) -> Result<KubeObject, String> {
                $convert(self).map(KubeObject::$kind)
            }
        }
    };
}

raw_object!(RawService, convert::service, Service);
raw_object!(RawEndpointSlice, convert::endpoint_slice, EndpointSlice);
raw_object!(RawNode, convert::node, Node);
raw_object!(RawServiceCidr, convert::service_cidr, ServiceCidr);

// === impl DecodedObject ===

impl<'a> DecodedObject<'a> {
    pub(super) fn unreadable(kind: Kind, message: &str, remains: Remains<'a>) -> Self {
        let Remains { name, resource_version } = remains;
        Self { object: Err(Unreadable { kind, name, misnamed: false, message: message_of(message) }), resource_version }
    }

    /// The event that brings this object.
    pub(super) fn upsert(self) -> WatchEvent {
        WatchEvent {
            change: self.object.map_or_else(WatchChange::Unreadable, WatchChange::Upsert),
            resource_version: self.resource_version.as_deref().and_then(version),
        }
    }
}

// === impl Newest ===

impl Newest {
    /// Records an item's version, and returns the item.
    pub(super) fn note(&mut self, item: DecodedObject<'_>) -> Result<KubeObject, Unreadable> {
        let DecodedObject { object, resource_version } = item;
        let Some(version) = resource_version.as_deref().filter(|version| version.len() <= TEXT_BYTES) else {
            return object;
        };
        // "0", the least number, stands for the version of no object.
        let is_newer = compare_versions(version, if self.version.is_empty() { "0" } else { &self.version });
        if is_newer == Some(Ordering::Greater) {
            self.version = version.into();
            self.name = match &object {
                Ok(object) => Some(object.name().clone()),
                Err(unreadable) => unreadable.name.clone(),
            };
        }
        object
    }
}

// === impl Remains ===

impl Remains<'_> {
    /// The event of the object's deletion.
    pub(super) fn delete(self, kind: Kind) -> WatchEvent {
        let change = self.name.map_or_else(
            || {
                let message = "a deleted object without a name that can be read".to_owned();
                WatchChange::Unreadable(Unreadable { kind, name: None, misnamed: false, message })
            },
            WatchChange::Delete,
        );
        WatchEvent { change, resource_version: self.resource_version.as_deref().and_then(version) }
    }
}

/// A resource version; none if it is empty or overlong.
fn version(text: &str) -> Option<Box<str>> {
    (!text.is_empty() && text.len() <= TEXT_BYTES).then(|| text.into())
}

// === impl EventType ===

impl EventType {
    pub(super) fn of(text: &str) -> Option<Self> {
        match text {
            "ADDED" | "MODIFIED" => Some(Self::Upsert),
            "DELETED" => Some(Self::Delete),
            "BOOKMARK" => Some(Self::Bookmark),
            "ERROR" => Some(Self::Error),
            _ => None,
        }
    }
}

// === impl WatchEvent ===

impl WatchEvent {
    /// The event of a bookmark's metadata.
    pub(super) fn bookmark(meta: &RawMeta<'_>) -> Self {
        let end = meta.annotations.as_ref().and_then(|annotations| annotations.initial_events_end.as_ref());
        Self {
            change: WatchChange::Bookmark { initial_events_end: end.and_then(|end| end.0.as_deref()) == Some("true") },
            resource_version: meta.resource_version.as_ref().and_then(|text| version(text.0.as_deref()?)),
        }
    }

    pub(super) fn unreadable(kind: Kind, message: &str) -> Self {
        let change =
            WatchChange::Unreadable(Unreadable { kind, name: None, misnamed: false, message: message_of(message) });
        Self { change, resource_version: None }
    }

    /// The event of the server's error, or of one that can't be decoded.
    pub(super) fn error(status: Option<Status>) -> Self {
        let unclear = || Status::new(0, "", "the server sent an error that can't be read", None);
        Self { change: WatchChange::Error(status.unwrap_or_else(unclear)), resource_version: None }
    }
}

// === impl Status ===

impl Status {
    /// Makes a Status of any values that the server sent.
    pub(super) fn new(code: i64, reason: &str, message: &str, retry_after_seconds: Option<i64>) -> Self {
        Self {
            code: u16::try_from(code).unwrap_or(0),
            reason: sentence(None, shortened(reason, TEXT_BYTES)).into(),
            message: sentence(None, shortened(message, TEXT_BYTES)).into(),
            retry_after_seconds: retry_after_seconds
                .filter(|seconds| *seconds > 0)
                .map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX)),
        }
    }
}
