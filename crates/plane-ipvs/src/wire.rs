//! Encodes and decodes elements as the kernel's bytes. Addresses and ports are in network order; each field of a concatenation is
//! padded to four bytes.

use ferry_api::object::Family;
use ferry_kernel::nft::{Element, ElementData, OwnedData, Verdict, VerdictRef};
use ferry_ruleset::fields::{Bytes, Reader};

use crate::names::{ChainName, FixedSet};
use crate::object::{ElementKey, Value, VipMap};
use crate::server::ServerId;

/// The bytes of a key.
pub(crate) fn key_bytes(key: &ElementKey) -> Bytes {
    let bytes = Bytes::new();
    match key {
        ElementKey::Vip { at, .. } => bytes.address(at.address).protocol(at.protocol).port(at.port),
        ElementKey::NodePort { protocol, port } => bytes.protocol(*protocol).port(*port),
        ElementKey::BoundIp(address) | ElementKey::NodePortIp(address) | ElementKey::PingedIp(address) => {
            bytes.address(*address)
        }
        ElementKey::HealthPort(port) => bytes.port(*port).unpadded(2),
        ElementKey::SameOctet(octet) => bytes.push(&[*octet]).push(&[*octet]),
    }
}

/// Calls `use_it` with the kernel's form of a value. [`Value::Foreign`] is never written.
pub(crate) fn with_data(value: Value, use_it: impl FnOnce(ElementData<'_>)) {
    match value {
        Value::None => use_it(ElementData::None),
        Value::Accept => use_it(ElementData::Verdict(VerdictRef::Accept)),
        Value::Drop => use_it(ElementData::Verdict(VerdictRef::Drop)),
        Value::Goto(chain) => use_it(ElementData::Verdict(VerdictRef::Goto(&chain.to_string()))),
        Value::Foreign => debug_assert!(false, "not ours to write"),
    }
}

/// Decodes an element; `None` if its key is none that this mode writes.
pub(crate) fn element(set: FixedSet, family: Family, element: &Element) -> Option<(ElementKey, Value)> {
    if element.key_end.is_some() || element.interval_end {
        return None;
    }
    let key = key(set, family, &element.key)?;
    let value = match (&element.data, is_map(set)) {
        (OwnedData::None, false) => Value::None,
        (OwnedData::Verdict(Verdict::Accept), true) => Value::Accept,
        (OwnedData::Verdict(Verdict::Drop), true) => Value::Drop,
        (OwnedData::Verdict(Verdict::Goto(chain)), true) => ChainName::parse(chain).map_or(Value::Foreign, Value::Goto),
        _ => Value::Foreign,
    };
    Some((key, value))
}

/// True for a map of verdicts.
pub(crate) const fn is_map(set: FixedSet) -> bool {
    match set {
        FixedSet::ServiceIps | FixedSet::ServiceNodePorts | FixedSet::RestrictedIps => true,
        FixedSet::BoundIps
        | FixedSet::NodePortIps
        | FixedSet::PingedIps
        | FixedSet::HealthPorts
        | FixedSet::SameOctet => false,
    }
}

/// Decodes a key; `None` if it is none that this mode writes.
pub(crate) fn key(set: FixedSet, family: Family, bytes: &[u8]) -> Option<ElementKey> {
    let mut reader = Reader { family, bytes };
    let mut vip = |map| {
        let (address, protocol, port) = (reader.address()?, reader.protocol()?, reader.port()?);
        Some(ElementKey::Vip { map, at: ServerId { protocol, address, port } })
    };
    let key = match set {
        FixedSet::ServiceIps => vip(VipMap::Services)?,
        FixedSet::RestrictedIps => vip(VipMap::Restricted)?,
        FixedSet::ServiceNodePorts => ElementKey::NodePort { protocol: reader.protocol()?, port: reader.port()? },
        FixedSet::BoundIps => ElementKey::BoundIp(reader.address()?),
        FixedSet::NodePortIps => ElementKey::NodePortIp(reader.address()?),
        FixedSet::PingedIps => ElementKey::PingedIp(reader.address()?),
        FixedSet::HealthPorts => ElementKey::HealthPort(reader.port()?),
        FixedSet::SameOctet => {
            let octet = reader.octet()?;
            (reader.octet()? == octet).then_some(ElementKey::SameOctet(octet))?
        }
    };
    reader.bytes.is_empty().then_some(key)
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;
    use ferry_kernel::nft::Octets;

    use super::*;

    fn keys(family: Family) -> Vec<ElementKey> {
        let address = match family {
            Family::V4 => [10, 96, 0, 1].into(),
            Family::V6 => "fd00:96::1".parse().unwrap(),
        };
        let mut keys = vec![
            ElementKey::BoundIp(address),
            ElementKey::NodePortIp(address),
            ElementKey::PingedIp(address),
            ElementKey::HealthPort(32_000),
            ElementKey::SameOctet(7),
        ];
        for protocol in Protocol::ALL {
            let at = ServerId { protocol, address, port: 443 };
            keys.extend([VipMap::Services, VipMap::Restricted].map(|map| ElementKey::Vip { map, at }));
            keys.push(ElementKey::NodePort { protocol, port: 30_080 });
        }
        keys
    }

    fn element_of(key: ElementKey, data: OwnedData) -> Element {
        let key = Octets::new(key_bytes(&key).as_slice()).unwrap();
        Element { key, key_end: None, data, interval_end: false }
    }

    #[test]
    fn keys_are_decoded_as_they_were_encoded() {
        for family in Family::ALL {
            for key in keys(family) {
                let data = if is_map(key.set()) { OwnedData::Verdict(Verdict::Drop) } else { OwnedData::None };
                let value = if is_map(key.set()) { Value::Drop } else { Value::None };
                assert_eq!(element(key.set(), family, &element_of(key, data)), Some((key, value)));
            }
        }
    }

    #[test]
    fn other_values_are_foreign_and_other_keys_are_not_ours() {
        let key = keys(Family::V4)[0];
        let foreign = element_of(key, OwnedData::Verdict(Verdict::Drop));
        assert_eq!(element(FixedSet::BoundIps, Family::V4, &foreign), Some((key, Value::Foreign)));
        let element_of = |bytes: &[u8]| Element {
            key: Octets::new(bytes).unwrap(),
            key_end: None,
            data: OwnedData::None,
            interval_end: false,
        };
        for (set, bytes) in [
            (FixedSet::BoundIps, &[10, 96, 0][..]),
            (FixedSet::BoundIps, &[10, 96, 0, 1, 0, 0, 0, 0]),
            (FixedSet::SameOctet, &[1, 0, 0, 0, 2, 0, 0, 0]),
            (FixedSet::ServiceNodePorts, &[200, 0, 0, 0, 0, 80, 0, 0]),
        ] {
            assert_eq!(element(set, Family::V4, &element_of(bytes)), None, "{set}");
        }
    }
}
