//! First pass over a document of a manifest: determines kind, namespace and name, on which the decoder of its fields depends.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::convert;
use super::scalar::{LooseText, Text};
use crate::object::{Kind, ObjectName};

/// Type and metadata of a document. Nothing here is an error: an unknown kind may have any shape.
#[derive(Debug, Default)]
pub(super) struct DocumentHead<'a> {
    pub(super) shape: Shape,
    api_version: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    namespace: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    /// a repeated key, which makes the document's identity ambiguous
    twice: Option<&'static str>,
    /// there is a namespace, but it is no string
    bad_namespace: bool,
    /// heads of a List's items; empty for other documents, and for an item
    pub(super) items: Vec<DocumentHead<'a>>,
}

/// The outermost form of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shape {
    #[default]
    Null,
    Map,
    Other,
}

/// The decoder for a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Object(Kind),
    /// the kind of the items, if the List's own kind implies it
    List(Option<Kind>),
    Ignored(String),
}

struct HeadVisitor {
    with_items: bool,
}

/// The head of an item, without items of its own: a hostile file can't nest heads.
struct ItemHead<'a>(DocumentHead<'a>);

/// Keys of a map seen so far.
#[derive(Default)]
struct SeenKeys {
    /// one bit for each key
    keys: u8,
    twice: Option<&'static str>,
}

#[derive(Default)]
struct Items<'a>(Vec<DocumentHead<'a>>);
struct ItemsVisitor;

#[derive(Default)]
struct DocumentNames<'a> {
    namespace: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    twice: Option<&'static str>,
    bad_namespace: bool,
}
struct NamesVisitor;

/// The kinds we read: name, name of the List, group, versions.
const KINDS: [(Kind, &str, &str, &str, &[&str]); 4] = [
    (Kind::Service, "Service", "ServiceList", "", &["v1"]),
    (Kind::EndpointSlice, "EndpointSlice", "EndpointSliceList", "discovery.k8s.io", &["v1"]),
    (Kind::Node, "Node", "NodeList", "", &["v1"]),
    (Kind::ServiceCidr, "ServiceCIDR", "ServiceCIDRList", "networking.k8s.io", &["v1", "v1beta1"]),
];

/// Visits everything that is neither a map nor a list, and has no meaning here.
macro_rules! scalars_are_other {
    ($value:expr) => {
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Default::default())
        }
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
}

// === impl DocumentHead ===

impl<'a> DocumentHead<'a> {
    /// The head of an object whose apiVersion and kind are known from elsewhere; empty ones count as absent.
    pub(super) fn typed(api_version: &'a str, kind: &'a str) -> Self {
        let text = |text: &'a str| Some(Cow::Borrowed(text)).filter(|text| !text.is_empty());
        Self { shape: Shape::Map, api_version: text(api_version), kind: text(kind), ..Self::default() }
    }

    /// Guesses the head of a YAML document from lines `apiVersion: …` and `kind: …` without indentation, so that it needn't be
    /// parsed twice. A guess may be wrong (see [`Self::is_of`]), and Lists aren't guessed: the heads of their items are
    /// needed.
    pub(super) fn guess(text: &'a str) -> Option<Self> {
        let field = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
            values.next().map(|value| Cow::Borrowed(value.trim()))
        };
        let head =
            Self { shape: Shape::Map, api_version: field("apiVersion: "), kind: field("kind: "), ..Self::default() };
        matches!(head.reading(None), Ok(Reading::Object(_))).then_some(head)
    }

    /// True if the decoded object has the apiVersion and kind of this head.
    pub(super) fn is_of(&self, api_version: &Option<Text<'_>>, kind: &Option<Text<'_>>) -> bool {
        self.api_version.as_deref() == api_version.as_deref() && self.kind.as_deref() == kind.as_deref()
    }

    /// Chooses the decoder of this document. `listed` is the kind that a List gives to its items; they needn't repeat it.
    pub(super) fn reading(&self, listed: Option<Kind>) -> Result<Reading, String> {
        if self.shape != Shape::Map {
            return Err("expected an object with apiVersion and kind".to_owned());
        }
        if let Some(key) = self.twice {
            return Err(format!("the key {key:?} stands twice in its map"));
        }
        if let (None, Some(kind)) = (&self.kind, listed) {
            return Ok(Reading::Object(kind));
        }
        let kind = self.kind.as_deref().filter(|kind| !kind.is_empty()).ok_or("kind is missing")?;
        let version = match self.api_version.as_deref().filter(|version| !version.is_empty()) {
            Some(version) => version,
            None if listed.is_some_and(|listed| listed.to_string() == kind) => return Ok(listed_object(listed, kind)),
            None => return Err("apiVersion is missing".to_owned()),
        };
        let (group, bare_version) = version.rsplit_once('/').unwrap_or(("", version));
        let (reading, own_group, versions) = match known(kind) {
            Some(found) => found,
            None => return Ok(Reading::Ignored(kind.to_owned())),
        };
        // Other groups may have kinds of the same name (Knative has a Service); in Kubernetes' own groups it is a mistake.
        if group != own_group && !group.is_empty() && !group.ends_with(".k8s.io") {
            return Ok(Reading::Ignored(kind.to_owned()));
        }
        if group != own_group || !versions.contains(&bare_version) {
            let slash = if own_group.is_empty() { "" } else { "/" };
            let versions: Vec<_> = versions.iter().map(|version| format!("{own_group}{slash}{version}")).collect();
            return Err(format!("apiVersion {version} of {kind} can't be read, only {}", versions.join(" and ")));
        }
        Ok(reading)
    }

    /// True for a List of a known kind.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.reading(None), Ok(Reading::List(_)))
    }

    /// The object's identity, even if the object is malformed; `None` if it is ambiguous.
    pub(super) fn object(&self, listed: Option<Kind>) -> Option<(Kind, ObjectName)> {
        let (kind, namespace, name) = self.key(listed)?;
        Some((kind, convert::name_of(kind, namespace, name)?))
    }

    /// True if the object's identity is clear, but its name is invalid.
    pub(super) fn is_misnamed(&self, listed: Option<Kind>) -> bool {
        self.key(listed).is_some_and(|(kind, namespace, name)| {
            !name.is_empty() && convert::name_of(kind, namespace, name).is_none()
        })
    }

    /// Its kind, namespace and name, where they are clear.
    fn key(&self, listed: Option<Kind>) -> Option<(Kind, &str, &str)> {
        if self.twice.is_some() || self.bad_namespace {
            return None;
        }
        let kind = match self.kind.as_deref() {
            Some(kind) => match known(kind)? {
                (Reading::Object(kind), ..) => kind,
                (Reading::List(_) | Reading::Ignored(_), ..) => return None,
            },
            None => listed?,
        };
        Some((kind, self.namespace.as_deref().unwrap_or(""), self.name.as_deref()?))
    }

    /// Kind and name for an error, as far as they are known.
    pub(super) fn title(&self, listed: Option<Kind>) -> Option<String> {
        let name = self.name.as_deref()?;
        let kind = match (&self.kind, listed) {
            (Some(kind), _) => kind.to_string(),
            (None, Some(kind)) => kind.to_string(),
            (None, None) => return None,
        };
        Some(match self.namespace.as_deref() {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        })
    }
}

fn listed_object(listed: Option<Kind>, kind: &str) -> Reading {
    listed.map_or_else(|| Reading::Ignored(kind.to_owned()), Reading::Object)
}

/// The decoder of a kind, with its group and versions.
fn known(kind: &str) -> Option<(Reading, &'static str, &'static [&'static str])> {
    if kind == "List" {
        return Some((Reading::List(None), "", &["v1"]));
    }
    KINDS.iter().find_map(|&(id, name, list, group, versions)| {
        if kind == name {
            Some((Reading::Object(id), group, versions))
        } else if kind == list {
            Some((Reading::List(Some(id)), group, versions))
        } else {
            None
        }
    })
}

impl<'de: 'a, 'a> Deserialize<'de> for DocumentHead<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HeadVisitor { with_items: true })
    }
}

// === impl ItemHead ===

impl<'de: 'a, 'a> Deserialize<'de> for ItemHead<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HeadVisitor { with_items: false }).map(Self)
    }
}

// === impl HeadVisitor ===

impl<'de> Visitor<'de> for HeadVisitor {
    type Value = DocumentHead<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a document")
    }

    scalars_are_other!(DocumentHead { shape: Shape::Other, ..DocumentHead::default() });

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_seq(access).map(|_| DocumentHead { shape: Shape::Other, ..DocumentHead::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut head = DocumentHead { shape: Shape::Map, ..DocumentHead::default() };
        let mut seen = SeenKeys::default();
        while let Some(key) = access.next_key::<LooseText<'de>>()? {
            match key.0.as_deref() {
                Some("apiVersion") => {
                    seen.mark(0, "apiVersion");
                    head.api_version = access.next_value::<LooseText<'de>>()?.0;
                }
                Some("kind") => {
                    seen.mark(1, "kind");
                    head.kind = access.next_value::<LooseText<'de>>()?.0;
                }
                Some("metadata") => {
                    seen.mark(2, "metadata");
                    let names: DocumentNames<'de> = access.next_value()?;
                    (head.namespace, head.name) = (names.namespace, names.name);
                    head.bad_namespace = names.bad_namespace;
                    seen.twice = seen.twice.or(names.twice);
                }
                Some("items") if self.with_items => {
                    seen.mark(3, "items");
                    head.items = access.next_value::<Items<'de>>()?.0;
                }
                _ => {
                    access.next_value::<IgnoredAny>()?;
                }
            }
        }
        head.twice = seen.twice;
        Ok(head)
    }
}

// === impl SeenKeys ===

impl SeenKeys {
    /// Notes that a key, one of four, is there; the first that is there again is kept.
    fn mark(&mut self, number: u8, key: &'static str) {
        let bit = 1u8 << number;
        if self.keys & bit != 0 {
            self.twice = self.twice.or(Some(key));
        }
        self.keys |= bit;
    }
}

// === impl Items ===

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemsVisitor)
    }
}

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = Items<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("items")
    }

    scalars_are_other!(Items::default());

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(ItemHead(head)) = access.next_element()? {
            items.push(head);
        }
        Ok(Items(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_map(access).map(|_| Items::default())
    }
}

// === impl DocumentNames ===

impl<'de: 'a, 'a> Deserialize<'de> for DocumentNames<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamesVisitor)
    }
}

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = DocumentNames<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    scalars_are_other!(DocumentNames::default());

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_seq(access).map(|_| DocumentNames::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut names = DocumentNames::default();
        let mut seen = SeenKeys::default();
        while let Some(key) = access.next_key::<LooseText<'de>>()? {
            match key.0.as_deref() {
                Some("name") => {
                    seen.mark(0, "name");
                    names.name = access.next_value::<LooseText<'de>>()?.0;
                }
                Some("namespace") => {
                    seen.mark(1, "namespace");
                    names.namespace = access.next_value::<LooseText<'de>>()?.0;
                    names.bad_namespace = names.namespace.is_none();
                }
                _ => {
                    access.next_value::<IgnoredAny>()?;
                }
            }
        }
        names.twice = seen.twice;
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_indentation_tell_the_type_of_a_document() {
        for (text, wanted) in [
            ("apiVersion: v1\nkind: Service\n", Some(Kind::Service)),
            ("---\n# x\nmetadata: {name: a}\nkind:   Node \r\napiVersion: v1", Some(Kind::Node)),
            ("kind: ServiceCIDR\nkind: Node\napiVersion: networking.k8s.io/v1\n", Some(Kind::ServiceCidr)),
            ("apiVersion: v1\nkind: List\nitems: []\n", None),
            ("apiVersion: v1\nkind: ServiceList\nitems: []\n", None),
            ("apiVersion: v1\nkind: ConfigMap\n", None),
            ("apiVersion: v1\nkind: EndpointSlice\n", None),
            ("apiVersion: v1\n  kind: Service\n", None),
            ("apiVersion: v1\nkind: 'Service'\n", None),
            ("kind: Service\n", None),
            ("", None),
        ] {
            let found = DocumentHead::guess(text).map(|head| head.reading(None));
            assert_eq!(found, wanted.map(|kind| Ok(Reading::Object(kind))), "{text:?}");
        }
    }
}
