//! A configuration document as a tree of values with line and column, repeated keys included. Configuration files are small, and
//! with a tree all unknown fields can be reported at once.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A value with its line and column.
pub(super) type Node = Spanned<YamlValue>;

/// A value of YAML, its plain texts resolved by the rules of YAML 1.1 (`yes` is a boolean).
#[derive(Debug, PartialEq)]
pub(super) enum YamlValue {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// in the order of the file
    Map(Vec<(Spanned<String>, Node)>),
}

/// A key that stands in its map for a second time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Duplicate {
    /// 1-based line within the document
    pub(super) line: u64,
    /// from the root, joined by points
    pub(super) path: String,
    pub(super) key: String,
}

struct ValueVisitor;

// === impl YamlValue ===

impl YamlValue {
    /// The type's name in errors of Go's JSON decoder.
    pub(super) fn json_kind(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(_) => "bool".to_owned(),
            Self::Integer(_) | Self::Float(_) => "number".to_owned(),
            Self::Text(_) => "string".to_owned(),
            Self::List(_) => "array".to_owned(),
            Self::Map(_) => "object".to_owned(),
        }
    }

    /// The entry of a map; of repeated ones the last.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        let Self::Map(entries) = self else { return None };
        entries.iter().rev().find(|(name, _)| name.value == key).map(|(_, node)| node)
    }

    /// Adds the repeated keys in this value and all below.
    pub(super) fn duplicates(&self, path: &str, found: &mut Vec<Duplicate>) {
        match self {
            Self::Map(entries) => {
                let mut seen = std::collections::HashSet::new();
                for (key, node) in entries {
                    let below = if path.is_empty() { key.value.clone() } else { format!("{path}.{}", key.value) };
                    if !seen.insert(key.value.as_str()) {
                        found.push(Duplicate {
                            line: key.referenced.line(),
                            path: below.clone(),
                            key: key.value.clone(),
                        });
                    }
                    node.value.duplicates(&below, found);
                }
            }
            Self::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    item.value.duplicates(&format!("{path}[{i}]"), found);
                }
            }
            Self::Null | Self::Bool(_) | Self::Integer(_) | Self::Float(_) | Self::Text(_) => {}
        }
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

// === impl ValueVisitor ===

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = YamlValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<YamlValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(YamlValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<YamlValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Node>()? {
            // YAML allows other keys than texts; JSON, which this stands for, doesn't.
            let text = match key.value {
                YamlValue::Text(text) => text,
                YamlValue::Integer(number) => number.to_string(),
                YamlValue::Bool(value) => value.to_string(),
                YamlValue::Float(number) => number.to_string(),
                YamlValue::Null => "null".to_owned(),
                YamlValue::List(_) | YamlValue::Map(_) => return Err(A::Error::custom("a key must be a text")),
            };
            entries.push((Spanned::new(text, key.referenced, key.defined), access.next_value()?));
        }
        Ok(YamlValue::Map(entries))
    }
}
