//! Elements as the kernel's bytes, and back. Addresses and ports are in network order, slots in the machine's; each
//! field of a concatenation is padded to four bytes.

use std::net::IpAddr;

use ferry_api::object::{Family, Protocol};
use ferry_kernel::nft::{Element, OwnedData, Verdict};
use ferry_model::Endpoint;

use crate::base::{Data, Layout, Part};
use crate::names::{ChainName, FixedSet, SetName};
use crate::object::{ElementKey, NodePortMap, Value, VipMap};

/// The longest key: an IPv6 address, a protocol, a port and a slot.
const KEY_BYTES: usize = 28;

/// The bytes of a key or value, held inline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    bytes: [u8; KEY_BYTES],
    len: usize,
}

// === impl Bytes ===

impl Bytes {
    fn new() -> Self {
        Self { bytes: [0; KEY_BYTES], len: 0 }
    }

    /// Appends and pads. What doesn't fit is left out: the longest key does.
    fn push(mut self, bytes: &[u8]) -> Self {
        let end = self.len + bytes.len();
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
            self.len = end.next_multiple_of(4);
        }
        self
    }

    fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.push(&address.octets()),
            IpAddr::V6(address) => self.push(&address.octets()),
        }
    }

    fn protocol(self, protocol: Protocol) -> Self {
        self.push(&[protocol.number()])
    }

    fn port(self, port: u16) -> Self {
        self.push(&port.to_be_bytes())
    }

    fn slot(self, slot: u32) -> Self {
        self.push(&slot.to_ne_bytes())
    }

    /// A key of one field isn't padded.
    fn unpadded(mut self, len: usize) -> Self {
        self.len = len;
        self
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The bytes of a key.
pub(crate) fn key_bytes(key: &ElementKey) -> Bytes {
    let bytes = Bytes::new();
    match key {
        ElementKey::Slot { vip, protocol, port, slot } => {
            bytes.address(*vip).protocol(*protocol).port(*port).slot(*slot)
        }
        ElementKey::PoolSlot { slot, .. } => bytes.slot(*slot),
        ElementKey::NodePortSlot { protocol, port, slot } => bytes.protocol(*protocol).port(*port).slot(*slot),
        ElementKey::Vip { vip, protocol, port, .. } => bytes.address(*vip).protocol(*protocol).port(*port),
        ElementKey::NodePort { protocol, port, .. } => bytes.protocol(*protocol).port(*port),
        ElementKey::Learn { vip, port, .. } => bytes.address(*vip).port(*port),
        ElementKey::LearnNodePort { port, .. } => bytes.port(*port).unpadded(2),
        ElementKey::ClusterIp(address) | ElementKey::NodePortIp(address) => bytes.address(*address),
        ElementKey::SameOctet(octet) => bytes.push(&[*octet]).push(&[*octet]),
        ElementKey::Member { endpoint, .. } => bytes.address(endpoint.address).port(endpoint.port),
    }
}

/// The bytes of an address as a key of its own.
pub(crate) fn address_bytes(address: IpAddr) -> Bytes {
    Bytes::new().address(address)
}

/// The bytes of an endpoint in a map.
pub(crate) fn endpoint_bytes(endpoint: Endpoint) -> Bytes {
    Bytes::new().address(endpoint.address).port(endpoint.port)
}

/// Reads an element back. `None`: its key is none that we ever write.
pub(crate) fn element(set: SetName, family: Family, element: &Element) -> Option<(ElementKey, Value)> {
    let key = key(set, family, element)?;
    let value = match (&element.data, Layout::of(set).data) {
        (OwnedData::None, Data::None) => Value::None,
        (OwnedData::Value(bytes), Data::Endpoint) => endpoint(family, bytes).map_or(Value::Foreign, Value::Endpoint),
        (OwnedData::Verdict(Verdict::Drop), Data::Verdict) => Value::Drop,
        (OwnedData::Verdict(Verdict::Goto(chain)), Data::Verdict) => {
            ChainName::parse(chain).map_or(Value::Foreign, Value::Goto)
        }
        _ => Value::Foreign,
    };
    Some((key, value))
}

/// The endpoint in the value of a map.
pub(crate) fn endpoint(family: Family, bytes: &[u8]) -> Option<Endpoint> {
    let mut reader = Reader { family, bytes };
    let endpoint = Endpoint { address: reader.address()?, port: reader.port()? };
    reader.bytes.is_empty().then_some(endpoint)
}

/// The key of an element. `None`: none that we ever write.
pub(crate) fn key(set: SetName, family: Family, element: &Element) -> Option<ElementKey> {
    if element.key_end.is_some() {
        return None;
    }
    Fields::read(set, family, &element.key)?.key(set)
}

/// An address that is a key of its own.
pub(crate) fn address(family: Family, key: &[u8]) -> Option<IpAddr> {
    let mut reader = Reader { family, bytes: key };
    reader.address().filter(|_| reader.bytes.is_empty())
}

/// The fields of a key, each at most once but for octets.
#[derive(Default)]
struct Fields {
    address: Option<IpAddr>,
    protocol: Option<Protocol>,
    port: Option<u16>,
    slot: Option<u32>,
    octet: Option<u8>,
    second_octet: Option<u8>,
}

struct Reader<'a> {
    family: Family,
    bytes: &'a [u8],
}

// === impl Fields ===

impl Fields {
    fn read(set: SetName, family: Family, bytes: &[u8]) -> Option<Self> {
        let layout = Layout::of(set);
        let mut reader = Reader { family, bytes };
        let mut fields = Self::default();
        for part in layout.key {
            match part {
                Part::Address => fields.address = Some(reader.address()?),
                Part::Protocol => fields.protocol = Some(reader.protocol()?),
                Part::Port => fields.port = Some(reader.port()?),
                Part::Slot => fields.slot = Some(reader.slot()?),
                Part::Octet if fields.octet.is_none() => fields.octet = Some(reader.octet()?),
                Part::Octet => fields.second_octet = Some(reader.octet()?),
            }
        }
        reader.bytes.is_empty().then_some(fields)
    }

    fn key(self, set: SetName) -> Option<ElementKey> {
        let fixed = match set {
            SetName::Fixed(fixed) => fixed,
            SetName::Members(id, scope) => {
                let endpoint = Endpoint { address: self.address?, port: self.port? };
                return Some(ElementKey::Member { id, scope, endpoint });
            }
            SetName::Pool(id) => return Some(ElementKey::PoolSlot { id, slot: self.slot? }),
            SetName::Memory(..) | SetName::Sources(_) => return None,
        };
        if let Some(map) = VipMap::ALL.into_iter().find(|map| map.set() == fixed) {
            return Some(ElementKey::Vip { map, vip: self.address?, protocol: self.protocol?, port: self.port? });
        }
        if let Some(map) = NodePortMap::ALL.into_iter().find(|map| map.set() == fixed) {
            return Some(ElementKey::NodePort { map, protocol: self.protocol?, port: self.port? });
        }
        for protocol in Protocol::ALL {
            if fixed == FixedSet::learn(protocol) {
                return Some(ElementKey::Learn { protocol, vip: self.address?, port: self.port? });
            }
            if fixed == FixedSet::learn_node_ports(protocol) {
                return Some(ElementKey::LearnNodePort { protocol, port: self.port? });
            }
        }
        self.key_of_one(fixed)
    }

    /// Sets that are the only ones of their kind.
    fn key_of_one(self, fixed: FixedSet) -> Option<ElementKey> {
        let key = match fixed {
            FixedSet::Endpoints => {
                ElementKey::Slot { vip: self.address?, protocol: self.protocol?, port: self.port?, slot: self.slot? }
            }
            FixedSet::NodePortEndpoints => {
                ElementKey::NodePortSlot { protocol: self.protocol?, port: self.port?, slot: self.slot? }
            }
            FixedSet::ClusterIps => ElementKey::ClusterIp(self.address?),
            FixedSet::NodePortIps => ElementKey::NodePortIp(self.address?),
            FixedSet::SameOctet if self.octet == self.second_octet => ElementKey::SameOctet(self.octet?),
            _ => return None,
        };
        Some(key)
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// The next field, without the padding behind it. The last field of a key of one field has none.
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.bytes.split_at_checked(len)?;
        let padding = len.next_multiple_of(4) - len;
        self.bytes = if rest.is_empty() { rest } else { rest.get(padding..)? };
        Some(field)
    }

    fn address(&mut self) -> Option<IpAddr> {
        match self.family {
            Family::V4 => self.take(4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(IpAddr::from),
            Family::V6 => self.take(16).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()).map(IpAddr::from),
        }
    }

    fn octet(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn protocol(&mut self) -> Option<Protocol> {
        let number = self.octet()?;
        Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    fn port(&mut self) -> Option<u16> {
        self.take(2).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok()).map(u16::from_be_bytes)
    }

    fn slot(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(u32::from_ne_bytes)
    }
}
