//! Second pass over a document of a manifest: decodes its object, whose kind the first pass (`head`) has determined. Independent
//! of the format.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::head::{DocumentHead, Reading};
use super::raw::{RawEndpointSlice, RawNode, RawService, RawServiceCidr};
use super::scalar::LooseText;
use super::{Document, WireError, convert};
use crate::object::{Kind, KubeObject, ObjectName};

/// Most malformed items of a List that are skipped. Each costs another pass over the whole document, since a decoder can't go on
/// behind an error.
const BROKEN_ITEMS: usize = 16;

/// Progress in one document, for errors.
pub(super) struct DocumentProgress<'r> {
    read: &'r mut Vec<Result<Document, WireError>>,
    title: Option<String>,
    object: Option<(Kind, ObjectName)>,
    misnamed: bool,
    /// the index of the List's item that is being read
    item: Option<usize>,
}

/// Reads one document, whose head was read before.
pub(super) struct DocumentSeed<'h, 'a, 'r> {
    /// result of the first pass
    head: &'h DocumentHead<'a>,
    /// the items of a List before this one have been read
    first_item: usize,
    progress: &'h mut DocumentProgress<'r>,
}

/// Reads one object: a whole document that is no List, or an item of a List.
struct ObjectSeed<'h, 'a, 'r> {
    head: &'h DocumentHead<'a>,
    /// the kind that a List has given to its items
    listed: Option<Kind>,
    progress: &'h mut DocumentProgress<'r>,
}

/// Reads the items of a List, each with its head.
struct ListVisitor<'h, 'a, 'r> {
    heads: &'h [DocumentHead<'a>],
    first_item: usize,
    listed: Option<Kind>,
    progress: &'h mut DocumentProgress<'r>,
}

struct ItemsSeed<'h, 'a, 'r>(ListVisitor<'h, 'a, 'r>);

/// Decodes one document; `describe` adds line and column to errors. A malformed item of a List affects that item only.
pub(super) fn read_document<E>(
    head: &DocumentHead<'_>,
    read: &mut Vec<Result<Document, WireError>>,
    mut decode: impl FnMut(DocumentSeed<'_, '_, '_>) -> Result<(), E>,
    describe: impl Fn(&E, Option<String>) -> WireError,
) {
    if let Ok(Reading::Ignored(kind)) = head.reading(None) {
        return read.push(Ok(Document::Ignored { kind }));
    }
    let mut first_item = 0;
    for round in 0..=BROKEN_ITEMS {
        let mut progress = DocumentProgress { read, title: None, object: None, misnamed: false, item: None };
        let Err(error) = decode(DocumentSeed { head, first_item, progress: &mut progress }) else { return };
        let DocumentProgress { title, object, misnamed, item, .. } = progress;
        if round == BROKEN_ITEMS {
            let mut rest = describe(&error, title);
            rest.message += &format!("; {BROKEN_ITEMS} items before it are wrong too, what follows isn't read");
            return read.push(Err(rest));
        }
        read.push(Err(WireError { object, misnamed, ..describe(&error, title) }));
        let Some(broken) = item else { return };
        first_item = broken + 1;
    }
}

/// Reads one document whose kind is evident, or returns that it needs a second pass.
pub(super) fn try_document<E>(
    head: &DocumentHead<'_>,
    read: &mut Vec<Result<Document, WireError>>,
    decode: impl FnOnce(DocumentSeed<'_, '_, '_>) -> Result<(), E>,
) -> bool {
    let mut progress = DocumentProgress { read, title: None, object: None, misnamed: false, item: None };
    decode(DocumentSeed { head, first_item: 0, progress: &mut progress }).is_ok()
}

// === impl DocumentSeed ===

impl<'de> DeserializeSeed<'de> for DocumentSeed<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Self { head, first_item, progress } = self;
        match head.reading(None) {
            Ok(Reading::List(listed)) => {
                deserializer.deserialize_map(ListVisitor { heads: &head.items, first_item, listed, progress })
            }
            Ok(Reading::Object(_) | Reading::Ignored(_)) | Err(_) => {
                ObjectSeed { head, listed: None, progress }.deserialize(deserializer)
            }
        }
    }
}

// === impl ObjectSeed ===

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.progress.title = self.head.title(self.listed);
        self.progress.object = self.head.object(self.listed);
        self.progress.misnamed = self.head.is_misnamed(self.listed);
        let document = match self.head.reading(self.listed).map_err(D::Error::custom)? {
            Reading::Object(kind) => Document::Object(self.object(kind, deserializer)?),
            Reading::List(_) => return Err(D::Error::custom("a List within a List can't be read")),
            Reading::Ignored(kind) => {
                IgnoredAny::deserialize(deserializer)?;
                Document::Ignored { kind }
            }
        };
        self.progress.read.push(Ok(document));
        Ok(())
    }
}

impl ObjectSeed<'_, '_, '_> {
    fn object<'de, D: Deserializer<'de>>(&self, kind: Kind, deserializer: D) -> Result<KubeObject, D::Error> {
        let (same, object) = match kind {
            Kind::Service => {
                let raw = RawService::deserialize(deserializer)?;
                (self.head.is_of(&raw.api_version, &raw.kind), convert::service(raw).map(KubeObject::Service))
            }
            Kind::EndpointSlice => {
                let raw = RawEndpointSlice::deserialize(deserializer)?;
                let same = self.head.is_of(&raw.api_version, &raw.kind);
                (same, convert::endpoint_slice(raw).map(KubeObject::EndpointSlice))
            }
            Kind::Node => {
                let raw = RawNode::deserialize(deserializer)?;
                (self.head.is_of(&raw.api_version, &raw.kind), convert::node(raw).map(KubeObject::Node))
            }
            Kind::ServiceCidr => {
                let raw = RawServiceCidr::deserialize(deserializer)?;
                (self.head.is_of(&raw.api_version, &raw.kind), convert::service_cidr(raw).map(KubeObject::ServiceCidr))
            }
        };
        if !same {
            return Err(D::Error::custom("apiVersion and kind aren't what they seemed"));
        }
        object.map_err(D::Error::custom)
    }
}

// === impl ListVisitor ===

impl<'de> Visitor<'de> for ListVisitor<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a List")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let Self { heads, first_item, listed, progress } = self;
        while let Some(key) = access.next_key::<LooseText<'de>>()? {
            if key.0.as_deref() == Some("items") {
                access.next_value_seed(ItemsSeed(ListVisitor {
                    heads,
                    first_item,
                    listed,
                    progress: &mut *progress,
                }))?;
            } else {
                access.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

// === impl ItemsSeed ===

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let ListVisitor { heads, first_item, listed, progress } = self.0;
        for (index, head) in heads.iter().enumerate() {
            let more = if index < first_item {
                access.next_element::<IgnoredAny>()?.is_some()
            } else {
                progress.item = Some(index);
                let seed = ObjectSeed { head, listed, progress: &mut *progress };
                access.next_element_seed(seed)?.is_some()
            };
            if !more {
                break;
            }
            (progress.item, progress.title, progress.object) = (None, None, None);
            progress.misnamed = false;
        }
        // The heads came from the same text, so nothing is left; but to leave a sequence early is an error.
        while access.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guessed_document_is_read_only_if_it_is_what_it_seemed() {
        let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}"#;
        let range = r#"{"apiVersion":"networking.k8s.io/v1","kind":"ServiceCIDR","metadata":{"name":"a"}}"#;
        for (text, api_version, kind, wanted) in [
            (node, "v1", "Node", true),
            (node, "v1", "Service", false),
            (range, "networking.k8s.io/v1", "ServiceCIDR", true),
            (range, "networking.k8s.io/v1beta1", "ServiceCIDR", false),
        ] {
            let mut read = Vec::new();
            let is_read = try_document(&DocumentHead::typed(api_version, kind), &mut read, |seed| {
                seed.deserialize(&mut serde_json::Deserializer::from_str(text))
            });
            assert_eq!((is_read, read.len()), (wanted, usize::from(wanted)), "{text} {api_version} {kind}");
        }
    }
}
