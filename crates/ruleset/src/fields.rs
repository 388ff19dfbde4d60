//! Encodes and decodes the fields of keys and values: each is padded to four bytes, except in a key of one field.

use std::net::IpAddr;

use ferry_api::object::{Family, Protocol};
use ferry_model::Endpoint;

/// The longest key: two IPv6 addresses, a protocol and a port.
const KEY_BYTES: usize = 40;

/// The bytes of a key or value, held inline.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    bytes: [u8; KEY_BYTES],
    len: usize,
}

/// Reads the fields of a key or value one by one. Each is `None` if the bytes left are too few.
#[derive(Clone, Copy, Debug)]
pub struct FieldReader<'a> {
    /// of the addresses
    pub family: Family,
    /// unread
    pub bytes: &'a [u8],
}

// === impl Bytes ===

impl Default for Bytes {
    fn default() -> Self {
        Self::new()
    }
}

impl Bytes {
    /// No bytes.
    pub fn new() -> Self {
        Self { bytes: [0; KEY_BYTES], len: 0 }
    }

    /// Appends a field with padding. The buffer holds the longest key; a field that doesn't fit is ignored.
    pub fn push(mut self, bytes: &[u8]) -> Self {
        let end = self.len + bytes.len();
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
            self.len = end.next_multiple_of(4);
        }
        self
    }

    /// Appends an address, in network order.
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.push(&address.octets()),
            IpAddr::V6(address) => self.push(&address.octets()),
        }
    }

    /// Appends the number of a protocol.
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.push(&[protocol.number()])
    }

    /// Appends a port, in network order.
    pub fn port(self, port: u16) -> Self {
        self.push(&port.to_be_bytes())
    }

    /// Appends a number, in host order.
    pub fn slot(self, slot: u32) -> Self {
        self.push(&slot.to_ne_bytes())
    }

    /// Cuts the bytes after this length: a key of one field isn't padded.
    pub fn unpadded(mut self, len: usize) -> Self {
        self.len = len;
        self
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

// === impl FieldReader ===

impl<'a> FieldReader<'a> {
    /// The next field, without the padding behind it. A key of one field has no padding.
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.bytes.split_at_checked(len)?;
        let padding = len.next_multiple_of(4) - len;
        self.bytes = if rest.is_empty() { rest } else { rest.get(padding..)? };
        Some(field)
    }

    /// The address of the reader's family.
    pub fn address(&mut self) -> Option<IpAddr> {
        match self.family {
            Family::V4 => self.take(4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(IpAddr::from),
            Family::V6 => self.take(16).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()).map(IpAddr::from),
        }
    }

    /// One byte.
    pub fn octet(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    /// A protocol; `None` for one that Services don't have.
    pub fn protocol(&mut self) -> Option<Protocol> {
        let number = self.octet()?;
        Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    /// A port.
    pub fn port(&mut self) -> Option<u16> {
        self.take(2).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok()).map(u16::from_be_bytes)
    }

    /// A number in host order.
    pub fn slot(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(u32::from_ne_bytes)
    }
}

/// The bytes of a key that is one address.
pub fn address_bytes(address: IpAddr) -> Bytes {
    Bytes::new().address(address)
}

/// The bytes of a map value that is an endpoint.
pub fn endpoint_bytes(endpoint: Endpoint) -> Bytes {
    Bytes::new().address(endpoint.address).port(endpoint.port)
}

/// Decodes a map value that is an endpoint.
pub fn endpoint(family: Family, bytes: &[u8]) -> Option<Endpoint> {
    let mut reader = FieldReader { family, bytes };
    let endpoint = Endpoint { address: reader.address()?, port: reader.port()? };
    reader.bytes.is_empty().then_some(endpoint)
}

/// Decodes a key that is one address.
pub fn address(family: Family, key: &[u8]) -> Option<IpAddr> {
    let mut reader = FieldReader { family, bytes: key };
    reader.address().filter(|_| reader.bytes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_of(family: Family) -> IpAddr {
        match family {
            Family::V4 => "10.96.0.1".parse().unwrap(),
            Family::V6 => "fd00:10:96::1".parse().unwrap(),
        }
    }

    #[test]
    fn the_longest_key_has_room_and_what_does_not_fit_is_ignored() {
        let address = address_of(Family::V6);
        let key = Bytes::new().address(address).protocol(Protocol::Udp).port(53).address(address);
        let mut reader = FieldReader { family: Family::V6, bytes: key.as_slice() };
        let read = (reader.address(), reader.protocol(), reader.port(), reader.address());
        assert_eq!(read, (Some(address), Some(Protocol::Udp), Some(53), Some(address)));
        assert!(reader.bytes.is_empty());
        assert_eq!(key.port(1).as_slice(), key.as_slice());
    }

    #[test]
    fn an_address_is_one_of_the_family_and_nothing_else() {
        let bytes = address_bytes(address_of(Family::V4));
        assert_eq!(address(Family::V4, bytes.as_slice()), Some(address_of(Family::V4)));
        assert_eq!(address(Family::V6, bytes.as_slice()), None);
        assert_eq!(address(Family::V4, address_bytes(address_of(Family::V6)).as_slice()), None);
    }
}
