//! Stored objects: encoded once in each encoding, with the labels and fields that selectors match.

use std::collections::BTreeMap;

use ferry_api::object::Kind;
use serde_json::{Value, json};

use super::selector::{Traits, selectable};
use crate::wire;

/// An object's JSON before it is stored.
#[derive(Clone, Debug)]
pub struct ApiObject {
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// An object at one resourceVersion.
#[derive(Debug)]
pub(super) struct StoredObject {
    pub(super) kind: Kind,
    /// `namespace/name`
    pub(super) key: String,
    pub(super) traits: Traits,
    pub(super) version: u64,
    damage: Option<Damage>,
    /// without kind and apiVersion, as an item of a list
    pub(super) json: Box<[u8]>,
    /// the message without its envelope
    pub(super) protobuf: Box<[u8]>,
}

/// Kind of damage to an object inside an intact frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// the metadata can be decoded, the rest can't
    Content,
    /// not even the metadata can be decoded
    Everything,
}

/// A parsed object without a resourceVersion yet.
pub(super) struct Draft {
    pub(super) kind: Kind,
    pub(super) key: String,
    object: Value,
}

// === impl ApiObject ===

impl ApiObject {
    /// Takes the JSON of one object, with apiVersion and kind.
    pub fn new(kind: Kind, json: String) -> Self {
        Self { kind, text: json }
    }

    /// Parses the objects of a JSON text or of YAML documents.
    ///
    /// # Panics
    /// If the text can't be read.
    pub fn all(text: &str) -> Vec<Self> {
        Draft::all(text).into_iter().map(|draft| Self { kind: draft.kind, text: draft.object.to_string() }).collect()
    }

    /// Kind of the object.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its JSON.
    pub fn json(&self) -> &str {
        &self.text
    }
}

// === impl StoredObject ===

impl StoredObject {
    /// A copy with another resourceVersion.
    pub(super) fn at(&self, version: u64) -> Self {
        let mut object: Value = serde_json::from_slice(&self.json).expect("what was written here");
        if self.damage.is_some() {
            let (namespace, name) = self.key.split_once('/').unwrap_or_default();
            object = json!({"metadata": {"namespace": namespace, "name": name, "resourceVersion": ""}});
        }
        if let Some(text) = object.pointer_mut("/metadata/resourceVersion") {
            *text = Value::String(version.to_string());
        }
        Self { version, key: self.key.clone(), traits: self.traits.clone(), ..encoded(self.kind, &object) }
    }

    /// An object with an empty name, for the caller to fill in.
    pub(super) fn nameless(kind: Kind) -> Self {
        let namespace = if kind.is_cluster_wide() { "" } else { "demo" };
        encoded(kind, &json!({"metadata": {"name": "", "namespace": namespace, "resourceVersion": "1"}}))
    }

    /// A copy under another name.
    pub(super) fn named(&self, name: &str) -> Self {
        let mut object: Value = serde_json::from_slice(&self.json).expect("what was written here");
        if let Some(text) = object.pointer_mut("/metadata/name") {
            *text = Value::String(name.to_owned());
        }
        encoded(self.kind, &object)
    }

    /// A damaged copy.
    pub(super) fn damaged(&self, damage: Damage) -> Self {
        let object: Value = serde_json::from_slice(&self.json).expect("what was written here");
        let (json_meta, protobuf_meta) = match damage {
            Damage::Content => (at(&object, "/metadata").to_string(), self.protobuf_meta()),
            Damage::Everything => (r#""damaged""#.to_owned(), &b"\x0a\x03\xff\xff\xff"[..]),
        };
        let json = format!(r#"{{"metadata":{json_meta},"endpoints":"damaged","spec":"damaged","status":"damaged"}}"#);
        // The second field is a message in each kind; this one's content begins with an endless tag.
        let protobuf = [protobuf_meta, b"\x12\x04\xff\xff\xff\xff"].concat();
        Self {
            json: json.into_bytes().into(),
            protobuf: protobuf.into(),
            key: self.key.clone(),
            traits: self.traits.clone(),
            damage: Some(damage),
            ..*self
        }
    }

    /// The first field of the message: its metadata.
    fn protobuf_meta(&self) -> &[u8] {
        let mut rest = self.protobuf.get(1..).unwrap_or_default();
        let before = rest.len();
        let length = prost::encoding::decode_varint(&mut rest).expect("a message begins with its metadata");
        let head = 1 + before - rest.len();
        self.protobuf.get(..head + usize::try_from(length).expect("short")).expect("what was written here")
    }
}

// === impl Draft ===

impl Draft {
    /// Parses the objects of a JSON text or of YAML documents.
    pub(super) fn all(text: &str) -> Vec<Self> {
        if text.trim_start().starts_with('{') {
            return vec![Self::new(serde_json::from_str(text).unwrap_or_else(|error| panic!("JSON: {error}: {text}")))];
        }
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("YAML: {error}: {text}"));
        documents.into_iter().filter(|document| !document.is_null()).map(Self::new).collect()
    }

    /// Checks one object.
    ///
    /// # Panics
    /// If the server doesn't serve the object's kind.
    fn new(object: Value) -> Self {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let kind = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr]
            .into_iter()
            .find(|kind| kind.to_string() == text("/kind"))
            .unwrap_or_else(|| panic!("no kind that is served: {object}"));
        assert_eq!(text("/apiVersion"), wire::api_version(kind), "of {object}");
        assert!(!text("/metadata/name").is_empty(), "no name in {object}");
        let key = format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"));
        assert_eq!(kind.is_cluster_wide(), key.starts_with('/'), "a wrong or missing namespace in {object}");
        Self { kind, key, object }
    }

    /// Encodes the object at a version. Fields that the server sets are filled in if absent: uid and creationTimestamp.
    pub(super) fn entry(mut self, version: u64, old: Option<&StoredObject>) -> StoredObject {
        let made_up = format!("00000000-0000-4000-8000-{version:012x}");
        let (uid, created) = old.map_or_else(
            || (made_up.into(), jiff::Timestamp::now().round(jiff::Unit::Second).expect("a time").to_string().into()),
            |old| {
                let old: Value = serde_json::from_slice(&old.json).expect("what was written here");
                (at(&old, "/metadata/uid"), at(&old, "/metadata/creationTimestamp"))
            },
        );
        let meta = self.object.get_mut("metadata").and_then(Value::as_object_mut).expect("a name is in it");
        meta.entry("uid").or_insert(uid);
        meta.entry("creationTimestamp").or_insert(created);
        meta.insert("resourceVersion".to_owned(), version.to_string().into());
        StoredObject { version, ..encoded(self.kind, &self.object) }
    }
}

/// The value at a JSON pointer; null if absent.
fn at(object: &Value, path: &str) -> Value {
    object.pointer(path).cloned().unwrap_or_default()
}

fn encoded(kind: Kind, object: &Value) -> StoredObject {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    let labels = labels.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
    let field = |path: &'static str| match object.pointer(&format!("/{}", path.replace('.', "/"))) {
        Some(Value::String(text)) => Some((path, text.clone())),
        Some(Value::Bool(flag)) => Some((path, flag.to_string())),
        _ => None,
    };
    let fields: BTreeMap<_, _> = selectable(kind).iter().filter_map(|path| field(path)).collect();
    StoredObject {
        kind,
        key: format!("{}/{}", text("/metadata/namespace"), text("/metadata/name")),
        traits: Traits { labels: labels.collect(), fields },
        version: text("/metadata/resourceVersion").parse().unwrap_or(0),
        damage: None,
        json: list_item(object),
        protobuf: wire::encode(kind, object).unwrap_or_else(|error| panic!("{error}: {object}")).into(),
    }
}

/// The object as an item of a list: metadata first, as the API server writes it, without kind and apiVersion.
fn list_item(object: &Value) -> Box<[u8]> {
    let mut out = b"{".to_vec();
    let fields = object.as_object().into_iter().flatten();
    let (meta, rest): (Vec<_>, Vec<_>) = fields
        .filter(|(name, _)| !["kind", "apiVersion"].contains(&name.as_str()))
        .partition(|(name, _)| *name == "metadata");
    for (number, (name, value)) in meta.into_iter().chain(rest).enumerate() {
        if number > 0 {
            out.push(b',');
        }
        out.extend_from_slice(format!("\"{name}\":").as_bytes());
        serde_json::to_writer(&mut out, value).expect("writing to memory");
    }
    out.push(b'}');
    out.into()
}
