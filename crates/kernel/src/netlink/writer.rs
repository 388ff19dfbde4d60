//! Encodes messages and attributes.

use super::{HEADER_LEN, align};

const NESTED: u16 = 0x8000;
const FLAGS_AT: usize = 6;

/// A buffer of consecutive messages.
#[derive(Clone, Debug, Default)]
pub struct MessageWriter {
    bytes: Vec<u8>,
    overflow: Option<usize>,
}

/// A message that is being written; [`MessageWriter::end_message`] closes it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct MessageMark(usize);

/// A nested attribute that is being written; [`MessageWriter::end_nest`] closes it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct NestMark(usize);

// === impl MessageWriter ===

impl MessageWriter {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bytes written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if nothing has been written yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Begins a message; the caller writes the protocol's header next ([`Self::raw`]).
    pub fn message(&mut self, kind: u16, flags: u16, sequence: u32) -> MessageMark {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        debug_assert_eq!(self.bytes.len(), start + HEADER_LEN);
        MessageMark(start)
    }

    /// Ends a message.
    pub fn end_message(&mut self, mark: MessageMark) {
        let length = self.bytes.len().saturating_sub(mark.0);
        self.patch(mark.0, &u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    }

    /// Adds flags to the message that starts at this byte.
    pub(crate) fn add_flags(&mut self, message_start: usize, flags: u16) {
        let at = message_start.saturating_add(FLAGS_AT);
        let now = self.bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map(|now| u16::from_ne_bytes(*now));
        self.patch(at, &(now.unwrap_or(0) | flags).to_ne_bytes());
    }

    /// Overwrites bytes at this offset; does nothing if the range is not written yet.
    pub(crate) fn patch(&mut self, at: usize, value: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at.saturating_add(value.len())) {
            place.copy_from_slice(value);
        }
    }

    /// Appends bytes without an attribute header, padded to four bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// Appends an attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.header(kind, value.len());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// Appends a text attribute, with a final NUL.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.header(kind, value.len().saturating_add(1));
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Appends an attribute whose value is a number in network byte order.
    pub fn be_u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends an attribute whose value is a number in network byte order.
    pub fn be_u64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends a nested attribute with a single attribute in it.
    pub fn nested_attribute(&mut self, kind: u16, inner: u16, value: &[u8]) {
        const HEADER: usize = 4;
        let at = self.bytes.len();
        let inner_len = value.len().saturating_add(HEADER);
        let [o0, o1] = self.length(at, align(inner_len).saturating_add(HEADER));
        let [i0, i1] = self.length(at, inner_len);
        let ([k0, k1], [v0, v1]) = ((kind | NESTED).to_ne_bytes(), inner.to_ne_bytes());
        self.bytes.extend_from_slice(&[o0, o1, k0, k1, i0, i1, v0, v1]);
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// Begins a nested attribute.
    pub fn nest(&mut self, kind: u16) -> NestMark {
        let start = self.bytes.len();
        self.header(kind | NESTED, 0);
        NestMark(start)
    }

    /// Ends a nested attribute. One of more than 65,535 bytes is an [`Self::overflow`].
    pub fn end_nest(&mut self, mark: NestMark) {
        let length = self.length(mark.0, self.bytes.len().saturating_sub(mark.0));
        self.patch(mark.0, &length);
    }

    /// Current length of an unfinished nested attribute, in bytes.
    pub(crate) fn nest_len(&self, mark: NestMark) -> usize {
        self.bytes.len().saturating_sub(mark.0)
    }

    /// Returns the buffer.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Offset of the first attribute that is too long for the format's 16-bit length. The messages must not be sent then: the
    /// kernel could misinterpret them.
    pub fn overflow(&self) -> Option<usize> {
        self.overflow
    }

    fn length(&mut self, at: usize, length: usize) -> [u8; 2] {
        if length > usize::from(u16::MAX) {
            self.overflow = self.overflow.or(Some(at));
        }
        u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes()
    }

    fn header(&mut self, kind: u16, value_len: usize) {
        let [l0, l1] = self.length(self.bytes.len(), value_len.saturating_add(4));
        let [k0, k1] = kind.to_ne_bytes();
        self.bytes.extend_from_slice(&[l0, l1, k0, k1]);
    }

    fn pad(&mut self) {
        let missing = align(self.bytes.len()).wrapping_sub(self.bytes.len());
        self.bytes.extend_from_slice([0; 3].get(..missing).unwrap_or_default());
    }
}
