//! The second look at a document, now that its kind is known. The same for every format.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::head::{Head, Reading};
use super::raw::{RawEndpointSlice, RawNode, RawService, RawServiceCidr};
use super::scalar::LooseText;
use super::{Document, convert};
use crate::object::{Kind, KubeObject};

/// Reads one document, whose head was read before, into a list.
pub(super) struct DocumentSeed<'h, 'a> {
    /// what the first look found
    pub(super) head: &'h Head<'a>,
    /// it is an item of a List
    pub(super) in_list: bool,
    /// the kind that a List has given to its items
    pub(super) listed: Option<Kind>,
    /// which object is being read, for errors
    pub(super) title: &'h Cell<Option<String>>,
    /// what has been read
    pub(super) read: &'h mut Vec<Document>,
}

/// Reads the items of a List, each with its head.
struct ListVisitor<'h, 'a> {
    heads: &'h [Head<'a>],
    listed: Option<Kind>,
    title: &'h Cell<Option<String>>,
    read: &'h mut Vec<Document>,
}

struct ItemsSeed<'h, 'a>(ListVisitor<'h, 'a>);

// === impl DocumentSeed ===

impl<'de> DeserializeSeed<'de> for DocumentSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.title.set(self.head.title(self.listed));
        let reading = self.head.reading(self.listed).map_err(D::Error::custom)?;
        let kind = match reading {
            Reading::Object(kind) => kind,
            Reading::List(_) if self.in_list => return Err(D::Error::custom("a List within a List can't be read")),
            Reading::List(items) => {
                return deserializer.deserialize_map(ListVisitor {
                    heads: &self.head.items,
                    listed: items,
                    title: self.title,
                    read: self.read,
                });
            }
            Reading::Ignored(kind) => {
                IgnoredAny::deserialize(deserializer)?;
                self.read.push(Document::Ignored { kind });
                return Ok(());
            }
        };
        let object = self.object(kind, deserializer)?;
        self.read.push(Document::Object(object));
        Ok(())
    }
}

impl DocumentSeed<'_, '_> {
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

impl<'de> Visitor<'de> for ListVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a List")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let Self { heads, listed, title, read } = self;
        while let Some(key) = access.next_key::<LooseText<'de>>()? {
            if key.0.as_deref() == Some("items") {
                access.next_value_seed(ItemsSeed(ListVisitor { heads, listed, title, read: &mut *read }))?;
            } else {
                access.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

// === impl ItemsSeed ===

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let ListVisitor { heads, listed, title, read } = self.0;
        for head in heads {
            let seed = DocumentSeed { head, in_list: true, listed, title, read: &mut *read };
            if access.next_element_seed(seed)?.is_none() {
                break;
            }
            title.take();
        }
        // The heads came from the same text, so nothing is left; but to leave a sequence early is an error.
        while access.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
