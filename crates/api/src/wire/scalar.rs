//! Scalars with JSON's types in every format: a number is no string, a quoted number is no number. YAML's own decoder converts
//! between them, so an object would be valid in YAML and invalid in JSON.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A text, borrowed where the format allows.
#[derive(Debug)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

/// An integer; what no i64 holds becomes its nearest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Int(pub(super) i64);

/// A boolean.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag(pub(super) bool);

/// A text, or anything else, which counts as absent.
#[derive(Debug, Default)]
pub(super) struct LooseText<'a>(pub(super) Option<Cow<'a, str>>);

struct TextVisitor;
struct IntVisitor;
struct FlagVisitor;
struct LooseTextVisitor;

/// For a field whose value doesn't matter: it is there.
pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

// === impl Text ===

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

// === impl Int ===

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntVisitor)
    }
}

// === impl Flag ===

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FlagVisitor)
    }
}

// === impl LooseText ===

impl<'de: 'a, 'a> Deserialize<'de> for LooseText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseTextVisitor)
    }
}

// === impl TextVisitor ===

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(value)))
    }
}

// === impl IntVisitor ===

impl Visitor<'_> for IntVisitor {
    type Value = Int;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer")
    }

    fn visit_i64<E>(self, value: i64) -> Result<Int, E> {
        Ok(Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Int, E> {
        Ok(Int(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Int, E> {
        // Very large integers arrive as floating point; the conversion saturates.
        if value.fract() == 0.0 {
            Ok(Int(value as i64))
        } else {
            Err(E::invalid_type(serde::de::Unexpected::Float(value), &self))
        }
    }
}

// === impl FlagVisitor ===

impl Visitor<'_> for FlagVisitor {
    type Value = Flag;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a boolean")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Flag, E> {
        Ok(Flag(value))
    }
}

// === impl LooseTextVisitor ===

impl<'de> Visitor<'de> for LooseTextVisitor {
    type Value = LooseText<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(LooseText(Some(Cow::Borrowed(value))))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(LooseText(Some(Cow::Owned(value.to_owned()))))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(LooseText(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(LooseText(None))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(LooseText(None))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(LooseText(None))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(LooseText(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_seq(access).map(|_| LooseText(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        IgnoredAny.visit_map(access).map(|_| LooseText(None))
    }
}
