//! Incremental JSON scanner: finds the end of a value and the members of an object, from bytes in any pieces.
//!
//! The scanner interprets brackets and quotes only; the decoder of each piece checks the rest.

use memchr::memchr2;

use super::super::object::malformed;
use super::super::pending::Pending;
use super::super::{MAX_OBJECT_BYTES, StreamError};

/// The longest key that is distinguished from others; the known ones are shorter.
const KEY_BYTES: usize = 64;

/// Takes what stands in objects, one after another.
pub(super) trait Sink {
    /// An object begins.
    fn begin(&mut self) -> Result<(), StreamError>;
    /// A member of it, as it is written, with the number of its parts.
    fn member(&mut self, key: &str, value: &[u8], parts: u32) -> Result<(), StreamError>;
    /// An element of the member that is streamed.
    fn item(&mut self, item: &[u8], parts: u32);
    /// The object ends.
    fn end(&mut self) -> Result<(), StreamError>;
}

/// Cuts objects into their members, and one of these into its elements. Only one of them is ever kept.
#[derive(Debug)]
pub(super) struct Members {
    /// the member whose elements are given one by one; it must be a list or null
    streamed: Option<&'static str>,
    at: At,
    value: ValueScan,
    pending: Pending,
    /// of the member that is being read; empty if it is too long to be one of ours
    key: String,
    /// the bytes of all keys and values of this object but the streamed one: its reader may keep them
    seen: usize,
}

/// The next token, behind blanks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Object,
    /// a key, or, if it would be the `first`, also the end
    Key {
        first: bool,
    },
    KeyText,
    Colon,
    Value,
    ValueText,
    AfterValue,
    Item {
        first: bool,
    },
    ItemText,
    AfterItem,
}

/// Finds the end of one value.
#[derive(Clone, Copy, Debug, Default)]
struct ValueScan {
    inside: Inside,
    depth: usize,
    /// texts, lists and objects so far
    parts: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum Inside {
    #[default]
    Nothing,
    Scalar,
    Text,
    Escape,
    Nested,
}

// === impl Members ===

impl Members {
    pub(super) fn new(streamed: Option<&'static str>) -> Self {
        Self {
            streamed,
            at: At::Object,
            value: ValueScan::default(),
            pending: Pending::default(),
            key: String::new(),
            seen: 0,
        }
    }

    /// True if no object is incomplete.
    pub(super) fn is_between_objects(&self) -> bool {
        self.at == At::Object
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> Result<(), StreamError> {
        loop {
            if matches!(self.at, At::KeyText | At::ValueText | At::ItemText) {
                if !self.text(&mut bytes, sink)? {
                    return Ok(());
                }
            } else {
                bytes = bytes.trim_ascii_start();
                let Some((&byte, rest)) = bytes.split_first() else { return Ok(()) };
                if self.mark(byte, sink)? {
                    bytes = rest;
                }
            }
        }
    }

    /// Acts on the first byte of what comes next; `false` if that belongs to a text.
    fn mark(&mut self, byte: u8, sink: &mut impl Sink) -> Result<bool, StreamError> {
        let streamed = Some(self.key.as_str()) == self.streamed;
        self.at = match (self.at, byte) {
            (At::Object, b'{') => {
                sink.begin()?;
                self.seen = 0;
                At::Key { first: true }
            }
            (At::Key { .. }, b'"') => At::KeyText,
            (At::Colon, b':') => At::Value,
            (At::Value, b'[') if streamed => At::Item { first: true },
            (At::Value, byte) if !streamed || byte == b'n' => At::ValueText,
            (At::AfterValue, b',') => At::Key { first: false },
            (At::Key { first: true } | At::AfterValue, b'}') => {
                sink.end()?;
                At::Object
            }
            (At::AfterItem, b',') => At::Item { first: false },
            (At::Item { first: true } | At::AfterItem, b']') => At::AfterValue,
            (At::Item { .. }, _) => At::ItemText,
            (at, byte) => return Err(malformed(format!("{:?} instead of {}", char::from(byte), at.expected()))),
        };
        Ok(!matches!(self.at, At::KeyText | At::ValueText | At::ItemText))
    }

    /// Takes bytes of a key, value or item; `false` if it is still incomplete.
    fn text(&mut self, bytes: &mut &[u8], sink: &mut impl Sink) -> Result<bool, StreamError> {
        let limit = if self.at == At::ItemText { MAX_OBJECT_BYTES } else { MAX_OBJECT_BYTES - self.seen };
        let end = self.value.end(bytes);
        let (text, rest) = bytes.split_at_checked(end.unwrap_or(bytes.len())).unwrap_or((bytes, &[]));
        *bytes = rest;
        if end.is_none() {
            self.pending.extend(text, limit)?;
            return Ok(false);
        }
        let piece = self.pending.complete(text, limit)?;
        let parts = std::mem::take(&mut self.value).parts;
        self.at = match self.at {
            At::ItemText => {
                if piece.is_empty() {
                    return Err(malformed("an item is missing"));
                }
                sink.item(&piece, parts);
                At::AfterItem
            }
            At::KeyText => {
                self.seen += piece.len();
                self.key = key(&piece).unwrap_or_default();
                At::Colon
            }
            At::ValueText
            | At::Object
            | At::Key { .. }
            | At::Colon
            | At::Value
            | At::AfterValue
            | At::Item { .. }
            | At::AfterItem => {
                if piece.is_empty() {
                    return Err(malformed("a value is missing"));
                }
                self.seen += piece.len();
                sink.member(&self.key, &piece, parts)?;
                At::AfterValue
            }
        };
        self.pending.recycle(piece);
        Ok(true)
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pending.capacity()
    }
}

/// The key that a text is, if it may be one of ours.
fn key(text: &[u8]) -> Option<String> {
    if text.len() > KEY_BYTES { None } else { serde_json::from_slice(text).ok() }
}

// === impl At ===

impl At {
    fn expected(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::Key { .. } => "a key",
            Self::Colon => "a colon",
            Self::Value => "a list",
            Self::AfterValue | Self::AfterItem => "a comma or an end",
            Self::Item { .. } | Self::KeyText | Self::ValueText | Self::ItemText => "a value",
        }
    }
}

// === impl ValueScan ===

impl ValueScan {
    /// The number of these bytes that belong to the value, which begins with the first byte of the first call; `None` if all
    /// do and it may go on.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.inside {
                Inside::Nothing => match rest.first() {
                    Some(b'"') => {
                        (self.inside, self.parts) = (Inside::Text, 1);
                        at += 1;
                    }
                    Some(b'{' | b'[') => self.inside = Inside::Nested,
                    _scalar => self.inside = Inside::Scalar,
                },
                Inside::Scalar => return rest.iter().position(|byte| ends_scalar(*byte)).map(|length| at + length),
                Inside::Text => {
                    let found = memchr2(b'"', b'\\', rest)?;
                    at += found + 1;
                    self.inside = match (rest.get(found), self.depth) {
                        (Some(b'\\'), _) => Inside::Escape,
                        (_, 0) => return Some(at),
                        (_, _) => Inside::Nested,
                    };
                }
                Inside::Escape => {
                    self.inside = Inside::Text;
                    at += 1;
                }
                Inside::Nested => {
                    let found = rest.iter().position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'))?;
                    at += found + 1;
                    match rest.get(found) {
                        Some(b'}' | b']') => self.depth = self.depth.saturating_sub(1),
                        Some(b'"') => (self.inside, self.parts) = (Inside::Text, self.parts.saturating_add(1)),
                        _opening => (self.depth, self.parts) = (self.depth + 1, self.parts.saturating_add(1)),
                    }
                    if self.depth == 0 {
                        return Some(at);
                    }
                }
            }
        }
        None
    }
}

/// True if a number, true, false or null ends before this byte.
fn ends_scalar(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b',' | b':' | b'"' | b'{' | b'}' | b'[' | b']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_longer_than_any_of_ours_is_not_kept() {
        let quoted = |letters: usize| format!("\"{}\"", "a".repeat(letters));
        assert_eq!(key(br#""meta\u0064ata""#).as_deref(), Some("metadata"));
        assert_eq!(key(quoted(KEY_BYTES - 2).as_bytes()), Some("a".repeat(KEY_BYTES - 2)));
        assert_eq!(key(quoted(KEY_BYTES - 1).as_bytes()), None);
        assert_eq!(key(quoted(KEY_BYTES).as_bytes()), None);
    }
}
