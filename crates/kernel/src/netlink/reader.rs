//! Decodes messages and attributes.

use std::borrow::Cow;
use std::io;

use super::{HEADER_LEN, align};

const ATTRIBUTE_HEADER_LEN: usize = 4;
/// the two high bits are flags: `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`
const KIND_MASK: u16 = 0x3fff;

/// Bytes that are no netlink message, or not one of the type in their header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink message: {0}")]
pub struct Malformed(
    /// the defect
    pub &'static str,
);

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// type; its meaning depends on the protocol
    pub kind: u16,
    /// see [`flag`](super::flag)
    pub flags: u16,
    /// sequence number of the request that the message answers
    pub sequence: u32,
    /// port id of the socket that caused the message; 0: the kernel itself
    pub port_id: u32,
    /// the bytes after the header
    pub payload: &'a [u8],
}

/// Iterates over the messages of one datagram. Ends after an error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// type, without the two flag bits
    pub kind: u16,
    /// without header and padding
    pub value: &'a [u8],
}

/// Iterates over a list of attributes. Ends after an error.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

// === impl Malformed ===

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, malformed)
    }
}

// === impl Message ===

impl Message<'_> {
    fn parse(header: &[u8; HEADER_LEN]) -> (usize, Message<'static>) {
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *header;
        let message = Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            port_id: u32::from_ne_bytes([p0, p1, p2, p3]),
            payload: &[],
        };
        (usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX), message)
    }
}

// === impl Messages ===

impl<'a> Messages<'a> {
    /// Iterates over the messages of a datagram, or of several concatenated ones.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }

    fn take(&mut self) -> Result<Message<'a>, Malformed> {
        let bytes = std::mem::take(&mut self.rest);
        let header = bytes.first_chunk::<HEADER_LEN>().ok_or(Malformed("short message header"))?;
        let (length, message) = Message::parse(header);
        let payload = bytes.get(HEADER_LEN..length).ok_or(Malformed("message length"))?;
        self.rest = bytes.get(align(length)..).unwrap_or_default();
        Ok(Message { payload, ..message })
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.take())
    }
}

// === impl Attribute ===

impl<'a> Attribute<'a> {
    /// The value as text, without the final NUL; invalid UTF-8 is replaced.
    pub fn text(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.value.split(|byte| *byte == 0).next().unwrap_or_default())
    }

    /// The value as a number in network byte order.
    ///
    /// # Errors
    /// [`Malformed`] if the value has another size.
    pub fn be_u16(&self) -> Result<u16, Malformed> {
        self.value.try_into().map(u16::from_be_bytes).map_err(|_| Malformed("size of a 16-bit attribute"))
    }

    /// The value as a number in network byte order.
    ///
    /// # Errors
    /// [`Malformed`] if the value has another size.
    pub fn be_u32(&self) -> Result<u32, Malformed> {
        self.value.try_into().map(u32::from_be_bytes).map_err(|_| Malformed("size of a 32-bit attribute"))
    }

    /// The value as a number in network byte order.
    ///
    /// # Errors
    /// [`Malformed`] if the value has another size.
    pub fn be_u64(&self) -> Result<u64, Malformed> {
        self.value.try_into().map(u64::from_be_bytes).map_err(|_| Malformed("size of a 64-bit attribute"))
    }

    /// The value as a number in host byte order.
    ///
    /// # Errors
    /// [`Malformed`] if the value has another size.
    pub fn native_u32(&self) -> Result<u32, Malformed> {
        self.value.try_into().map(u32::from_ne_bytes).map_err(|_| Malformed("size of a 32-bit attribute"))
    }

    /// The value as a number in host byte order.
    ///
    /// # Errors
    /// [`Malformed`] if the value has another size.
    pub fn native_u16(&self) -> Result<u16, Malformed> {
        self.value.try_into().map(u16::from_ne_bytes).map_err(|_| Malformed("size of a 16-bit attribute"))
    }

    /// Iterates over the attributes nested in the value.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }
}

// === impl Attributes ===

impl<'a> Attributes<'a> {
    /// Iterates over the attributes in these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads the next attribute; `None` at the end.
    ///
    /// # Errors
    /// [`Malformed`] if its length exceeds the remaining bytes or is less than its header.
    pub fn next_attribute(&mut self) -> Result<Option<Attribute<'a>>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.rest);
        let [l0, l1, k0, k1] = *bytes.first_chunk::<ATTRIBUTE_HEADER_LEN>().ok_or(Malformed("short attribute"))?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(ATTRIBUTE_HEADER_LEN..length).ok_or(Malformed("attribute length"))?;
        self.rest = bytes.get(align(length)..).unwrap_or_default();
        Ok(Some(Attribute { kind: u16::from_ne_bytes([k0, k1]) & KIND_MASK, value }))
    }

    /// Finds the first attribute of this type.
    ///
    /// # Errors
    /// [`Malformed`] as [`Self::next_attribute`].
    pub fn find(mut self, kind: u16) -> Result<Option<Attribute<'a>>, Malformed> {
        while let Some(attribute) = self.next_attribute()? {
            if attribute.kind == kind {
                return Ok(Some(attribute));
            }
        }
        Ok(None)
    }
}
