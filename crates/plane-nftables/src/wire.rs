//! Encodes and decodes elements as the kernel's bytes. Addresses and ports are in network order, slots in host order; each field
//! of a concatenation is padded to four bytes.

use std::net::IpAddr;

use ferry_api::object::{Family, Protocol};
use ferry_kernel::nft::{Element, OwnedData, Verdict};
use ferry_model::Endpoint;
use ferry_ruleset::fields::{Bytes, FieldReader, endpoint};
use ferry_ruleset::layout::{Data, KeyPart};

use crate::layout::layout;
use crate::names::{ChainName, FixedSet, SetName};
use crate::object::{ElementKey, NftObject, NodePortMap, Value, VipMap};

impl NftObject {
    /// Decodes an element; `None` if its key is none that this mode writes.
    pub fn from_element(set: SetName, family: Family, element: &Element) -> Option<Self> {
        self::element(set, family, element).map(|(key, value)| Self::Element(key, value))
    }
}

impl ElementKey {
    /// The key as the kernel holds it.
    pub fn octets(&self) -> Vec<u8> {
        key_bytes(self).as_slice().to_vec()
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
        ElementKey::Record { vip, port, .. } => bytes.address(*vip).port(*port),
        ElementKey::RecordNodePort { port, .. } => bytes.port(*port).unpadded(2),
        ElementKey::ClusterIp(address) | ElementKey::NodePortIp(address) => bytes.address(*address),
        ElementKey::SameOctet(octet) => bytes.push(&[*octet]).push(&[*octet]),
        ElementKey::Member { endpoint, .. } => bytes.address(endpoint.address).port(endpoint.port),
    }
}

/// Decodes an element; `None` if its key is none that this mode writes.
pub(crate) fn element(set: SetName, family: Family, element: &Element) -> Option<(ElementKey, Value)> {
    let key = key(set, family, element)?;
    let value = match (&element.data, layout(set).data) {
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

/// Decodes the key of an element; `None` if it is none that this mode writes.
pub(crate) fn key(set: SetName, family: Family, element: &Element) -> Option<ElementKey> {
    if element.key_end.is_some() {
        return None;
    }
    KeyFields::read(set, family, &element.key)?.key(set)
}

/// The fields of a key, each at most once except for octets.
#[derive(Default)]
struct KeyFields {
    address: Option<IpAddr>,
    protocol: Option<Protocol>,
    port: Option<u16>,
    slot: Option<u32>,
    octet: Option<u8>,
    second_octet: Option<u8>,
}

// === impl KeyFields ===

impl KeyFields {
    fn read(set: SetName, family: Family, bytes: &[u8]) -> Option<Self> {
        let mut reader = FieldReader { family, bytes };
        let mut fields = Self::default();
        for part in layout(set).key {
            match part {
                KeyPart::Address => fields.address = Some(reader.address()?),
                KeyPart::Protocol => fields.protocol = Some(reader.protocol()?),
                KeyPart::Port => fields.port = Some(reader.port()?),
                KeyPart::Slot(_) => fields.slot = Some(reader.slot()?),
                KeyPart::Octet if fields.octet.is_none() => fields.octet = Some(reader.octet()?),
                KeyPart::Octet => fields.second_octet = Some(reader.octet()?),
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
            SetName::Affinity(..) | SetName::Sources(_) => return None,
        };
        if let Some(map) = VipMap::ALL.into_iter().find(|map| map.set() == fixed) {
            return Some(ElementKey::Vip { map, vip: self.address?, protocol: self.protocol?, port: self.port? });
        }
        if let Some(map) = NodePortMap::ALL.into_iter().find(|map| map.set() == fixed) {
            return Some(ElementKey::NodePort { map, protocol: self.protocol?, port: self.port? });
        }
        for protocol in Protocol::ALL {
            if fixed == FixedSet::record(protocol) {
                return Some(ElementKey::Record { protocol, vip: self.address?, port: self.port? });
            }
            if fixed == FixedSet::record_node_ports(protocol) {
                return Some(ElementKey::RecordNodePort { protocol, port: self.port? });
            }
        }
        self.key_of_one(fixed)
    }

    /// The key of a set that is the only one of its kind.
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

#[cfg(test)]
mod tests {
    use ferry_api::object::ObjectName;
    use ferry_kernel::nft::Octets;
    use ferry_model::Scope;
    use ferry_ruleset::fields::endpoint_bytes;

    use super::*;
    use crate::layout::shape;
    use crate::names::{FixedChain, LOCAL_SLOTS, PortId};

    const PROTOCOL: Protocol = Protocol::Sctp;
    const PORT: u16 = 0x1234;

    fn address_of(family: Family) -> IpAddr {
        match family {
            Family::V4 => "10.96.0.1".parse().unwrap(),
            Family::V6 => "fd00:10:96::1".parse().unwrap(),
        }
    }

    fn port_id() -> PortId {
        PortId::new(&ObjectName::new("demo", "web"), PROTOCOL, "http")
    }

    /// A key of every set and map.
    fn keys(family: Family) -> Vec<ElementKey> {
        let (protocol, port, id, vip, slot) = (PROTOCOL, PORT, port_id(), address_of(family), LOCAL_SLOTS + 3);
        let mut keys = vec![
            ElementKey::Slot { vip, protocol, port, slot },
            ElementKey::NodePortSlot { protocol, port, slot },
            ElementKey::PoolSlot { id, slot },
            ElementKey::ClusterIp(vip),
            ElementKey::NodePortIp(vip),
            ElementKey::SameOctet(7),
        ];
        keys.extend(VipMap::ALL.map(|map| ElementKey::Vip { map, vip, protocol, port }));
        keys.extend(NodePortMap::ALL.map(|map| ElementKey::NodePort { map, protocol, port }));
        for protocol in Protocol::ALL {
            keys.push(ElementKey::Record { protocol, vip, port });
            keys.push(ElementKey::RecordNodePort { protocol, port });
        }
        let endpoint = Endpoint { address: vip, port };
        keys.extend([Scope::Cluster, Scope::Local].map(|scope| ElementKey::Member { id, scope, endpoint }));
        keys
    }

    fn plain(bytes: &[u8]) -> Element {
        Element { key: Octets::new(bytes).unwrap(), key_end: None, data: OwnedData::None, interval_end: false }
    }

    #[test]
    fn a_key_reads_back_and_is_as_long_as_its_set_says() {
        for family in Family::ALL {
            let keys = keys(family);
            for fixed in FixedSet::ALL {
                assert!(keys.iter().any(|key| key.set() == SetName::Fixed(*fixed)), "no key of {fixed:?}");
            }
            for at in keys {
                let bytes = key_bytes(&at);
                let len = u32::try_from(bytes.as_slice().len()).unwrap();
                assert_eq!(len, shape(at.set(), family).key_len, "{at:?}");
                assert_eq!(at.octets(), bytes.as_slice());
                assert_eq!(key(at.set(), family, &plain(bytes.as_slice())), Some(at));
            }
        }
    }

    #[test]
    fn a_key_of_another_length_or_with_an_end_is_foreign() {
        for family in Family::ALL {
            for at in keys(family) {
                let bytes = key_bytes(&at).as_slice().to_vec();
                let read = |bytes: &[u8]| key(at.set(), family, &plain(bytes));
                assert_eq!(read(&[&bytes[..], &[0; 4]].concat()), None, "{at:?}");
                assert_eq!(read(&bytes[..bytes.len() - 4.min(bytes.len())]), None, "{at:?}");
                // Also an end that equals the key: no set of ours holds concatenated intervals.
                let with_end = Element { key_end: Octets::new(&bytes), ..plain(&bytes) };
                assert_eq!(key(at.set(), family, &with_end), None, "{at:?}");
            }
        }
    }

    #[test]
    fn a_key_of_other_fields_is_foreign() {
        let read = |set: SetName, bytes: &[u8]| key(set, Family::V4, &plain(bytes));
        assert_eq!(read(SetName::Fixed(FixedSet::SameOctet), &[7, 0, 0, 0, 8, 0, 0, 0]), None);
        // ICMP
        assert_eq!(read(SetName::Fixed(FixedSet::ServiceNodePorts), &[1, 0, 0, 0, 0, 80, 0, 0]), None);
        assert_eq!(read(SetName::Affinity(port_id(), Scope::Cluster), &[10, 0, 0, 1]), None);
    }

    #[test]
    fn a_value_of_another_kind_is_foreign() {
        let vip =
            ElementKey::Vip { map: VipMap::Services, vip: address_of(Family::V4), protocol: PROTOCOL, port: PORT };
        let slot = ElementKey::PoolSlot { id: port_id(), slot: 1 };
        let endpoint = Endpoint { address: address_of(Family::V4), port: PORT };
        let octets = |bytes: &[u8]| OwnedData::Value(Octets::new(bytes).unwrap());
        let goto = |chain: &str| OwnedData::Verdict(Verdict::Goto(chain.to_owned()));
        let reject = ChainName::Fixed(FixedChain::Reject);
        let cases = [
            (vip, OwnedData::Verdict(Verdict::Drop), Value::Drop),
            (vip, goto(&reject.to_string()), Value::Goto(reject)),
            (vip, goto("somewhere"), Value::Foreign),
            (vip, OwnedData::Verdict(Verdict::Jump(reject.to_string())), Value::Foreign),
            (vip, OwnedData::Verdict(Verdict::Accept), Value::Foreign),
            (vip, OwnedData::Other, Value::Foreign),
            (vip, OwnedData::None, Value::Foreign),
            (slot, octets(endpoint_bytes(endpoint).as_slice()), Value::Endpoint(endpoint)),
            (slot, octets(&[10, 96, 0, 1]), Value::Foreign),
            (slot, octets(&[10, 96, 0, 1, 0, 80, 0, 0, 0]), Value::Foreign),
            (slot, OwnedData::Verdict(Verdict::Drop), Value::Foreign),
            (ElementKey::SameOctet(7), OwnedData::None, Value::None),
            (ElementKey::SameOctet(7), OwnedData::Other, Value::Foreign),
        ];
        for (at, data, value) in cases {
            let read = Element { data, ..plain(key_bytes(&at).as_slice()) };
            let object = NftObject::Element(at, value);
            assert_eq!(NftObject::from_element(at.set(), Family::V4, &read), Some(object), "{read:?}");
        }
    }
}
