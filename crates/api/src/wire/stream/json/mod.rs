//! Decodes answers in JSON.
//!
//! A list is an object with its items as one of its members; a watch is a sequence of objects with the members `type`
//! and `object`. Members come in any order.

mod list;
mod scan;
mod watch;

use serde::Deserialize;

use super::super::convert::name_of;
use super::super::raw::{RawEndpointSlice, RawMeta, RawNode, RawService, RawServiceCidr};
use super::super::scalar::{Int, LooseText, Text};
use super::object::{DecodedObject, MAX_PARTS, RawObject, Remains, TOO_MANY_PARTS, check_object, convert};
use super::{Status, StreamError, WatchEvent};
use crate::object::Kind;
use scan::{Members, Sink};

pub(super) use list::JsonList;
pub(super) use watch::JsonWatch;

/// Type and name of an object, even if the object is malformed.
#[derive(Default)]
struct PartialObject {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<MetadataNames>,
    /// a member that stands twice, or isn't what it should be
    unclear: bool,
}

/// The names in its metadata.
struct MetadataNames {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawNames<'a> {
    #[serde(borrow)]
    name: Option<LooseText<'a>>,
    #[serde(borrow)]
    namespace: Option<LooseText<'a>>,
    #[serde(borrow)]
    resource_version: Option<LooseText<'a>>,
}

/// any object, of which only the metadata is wanted
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetaOnly<'a> {
    #[serde(borrow)]
    api_version: Option<Text<'a>>,
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    metadata: Option<RawMeta<'a>>,
}

/// meta/v1 Status
#[derive(Deserialize)]
struct RawStatus<'a> {
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    message: Option<Text<'a>>,
    #[serde(borrow)]
    reason: Option<Text<'a>>,
    details: Option<RawDetails>,
    code: Option<Int>,
}

/// meta/v1 StatusDetails
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDetails {
    retry_after_seconds: Option<Int>,
}

/// Reads a whole body that is a Status.
pub(super) fn status(body: &[u8]) -> Option<Status> {
    let raw: RawStatus<'_> = serde_json::from_slice(body).ok()?;
    let text = |text: &Option<Text<'_>>| text.as_deref().unwrap_or("").to_owned();
    let retry_after = raw.details.and_then(|details| details.retry_after_seconds);
    (text(&raw.kind) == "Status").then(|| {
        let code = raw.code.map_or(0, |code| code.0);
        Status::new(code, &text(&raw.reason), &text(&raw.message), retry_after.map(|Int(seconds)| seconds))
    })
}

/// Decodes an object of this kind, whose scan counted `parts` parts.
fn object(kind: Kind, bytes: &[u8], parts: u32) -> DecodedObject<'_> {
    fn read<'a, R: RawObject<'a> + Deserialize<'a>>(kind: Kind, bytes: &'a [u8]) -> DecodedObject<'a> {
        match serde_json::from_slice::<R>(bytes) {
            Ok(raw) => convert(kind, raw),
            Err(error) => DecodedObject::unreadable(kind, &reason(&error), remains(kind, bytes).unwrap_or_default()),
        }
    }
    if parts > MAX_PARTS {
        return DecodedObject::unreadable(kind, TOO_MANY_PARTS, remains(kind, bytes).unwrap_or_default());
    }
    match kind {
        Kind::Service => read::<RawService<'_>>(kind, bytes),
        Kind::EndpointSlice => read::<RawEndpointSlice<'_>>(kind, bytes),
        Kind::Node => read::<RawNode<'_>>(kind, bytes),
        Kind::ServiceCidr => read::<RawServiceCidr<'_>>(kind, bytes),
    }
}

/// The error without the place in the object, which changes with everything before it.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message).to_owned()
}

/// Looks for the name in a malformed object. Fails if it is no object of this kind.
fn remains(kind: Kind, bytes: &[u8]) -> Result<Remains<'static>, String> {
    let mut partial = PartialObject::default();
    // The name may stand before the syntax error.
    let _whole = Members::new(None).push(bytes, &mut partial);
    let (api_version, stated) = (partial.api_version.unwrap_or_default(), partial.kind.unwrap_or_default());
    check_object(kind, &api_version, &stated)?;
    let Some(metadata) = partial.metadata.filter(|_| !partial.unclear) else { return Ok(Remains::default()) };
    let namespace = metadata.namespace.as_deref().unwrap_or("");
    let name = metadata.name.as_deref().and_then(|name| name_of(kind, namespace, name));
    Ok(Remains { name, resource_version: metadata.resource_version.map(Into::into) })
}

fn bookmark(kind: Kind, bytes: &[u8]) -> Result<WatchEvent, String> {
    let object: MetaOnly<'_> = serde_json::from_slice(bytes).map_err(|error| reason(&error))?;
    check_object(kind, object.api_version.as_deref().unwrap_or(""), object.kind.as_deref().unwrap_or(""))?;
    Ok(WatchEvent::bookmark(&object.metadata.unwrap_or_default()))
}

/// A text, or `None` for anything else.
fn loose_text(value: &[u8]) -> Option<String> {
    serde_json::from_slice::<LooseText<'_>>(value).ok()?.0.map(String::from)
}

// === impl PartialObject ===

impl Sink for PartialObject {
    fn begin(&mut self) -> Result<(), StreamError> {
        Ok(())
    }

    fn member(&mut self, key: &str, value: &[u8], _parts: u32) -> Result<(), StreamError> {
        match key {
            "apiVersion" => self.api_version = loose_text(value),
            "kind" => self.kind = loose_text(value),
            "metadata" => {
                self.unclear |= self.metadata.is_some();
                self.metadata = serde_json::from_slice::<RawNames<'_>>(value).ok().and_then(MetadataNames::of);
                self.unclear |= self.metadata.is_none();
            }
            _other => {}
        }
        Ok(())
    }

    fn item(&mut self, _item: &[u8], _parts: u32) {}

    fn end(&mut self) -> Result<(), StreamError> {
        Ok(())
    }
}

// === impl MetadataNames ===

impl MetadataNames {
    /// `None` where there is a namespace, but it is no text.
    fn of(raw: RawNames<'_>) -> Option<Self> {
        let text = |text: Option<LooseText<'_>>| text.and_then(|text| text.0).map(String::from);
        if raw.namespace.as_ref().is_some_and(|namespace| namespace.0.is_none()) {
            return None;
        }
        Some(Self {
            name: text(raw.name),
            namespace: text(raw.namespace),
            resource_version: text(raw.resource_version),
        })
    }
}
