//! The table of this mode: layouts of its sets and maps, elements as the kernel's bytes. Addresses and ports are in network order;
//! each field of a concatenation is padded to four bytes.

use ferry_api::object::Family;
use ferry_kernel::nft::{BaseHook, ElementData, OwnedData, Verdict, VerdictRef};
use ferry_model::FrontendAddr;
use ferry_plane::Served;
use ferry_ruleset::Rules;
use ferry_ruleset::fields::{Bytes, FieldReader};
use ferry_ruleset::layout::{Data, KeyPart, Layout};
use ferry_ruleset::sources::SourcesId;
use ferry_ruleset::table::{ChainName, Vocabulary};

use crate::element::{ElementKey, IpvsTable, Value, VipMap};
use crate::names::{FixedChain, FixedSet, TABLE, TABLE_COMMENT};
use crate::server::ServerId;
use crate::{base, compile};

/// The elements of `same-octet`: with a declared size the kernel chooses a table that never grows.
const OCTETS: u32 = 256;

impl Vocabulary for IpvsTable {
    type Set = FixedSet;
    type Chain = FixedChain;
    type Element = ElementKey;
    type Value = Value;
    type World = ();

    const TABLE: &'static str = TABLE;
    const COMMENT: &'static str = TABLE_COMMENT;
    const MODULES: &'static str = "nf_tables, nft_chain_nat, nft_fib, nft_ct, nft_masq and nft_reject";

    fn set_of(element: &ElementKey) -> FixedSet {
        element.set()
    }

    fn layout(set: FixedSet) -> Layout {
        match set {
            FixedSet::ServiceIps | FixedSet::RestrictedIps => {
                Layout::new(&[KeyPart::Address, KeyPart::Protocol, KeyPart::Port], Data::Verdict)
            }
            FixedSet::ServiceNodePorts => Layout::new(&[KeyPart::Protocol, KeyPart::Port], Data::Verdict),
            FixedSet::BoundIps | FixedSet::NodePortIps | FixedSet::PingedIps => {
                Layout::new(&[KeyPart::Address], Data::None)
            }
            FixedSet::HealthPorts => Layout::new(&[KeyPart::Port], Data::None),
            FixedSet::SameOctet => {
                Layout { size: Some(OCTETS), ..Layout::new(&[KeyPart::Octet, KeyPart::Octet], Data::None) }
            }
        }
    }

    fn hook(chain: FixedChain) -> Option<BaseHook> {
        chain.hook()
    }

    fn rank(chain: FixedChain) -> u8 {
        match chain {
            FixedChain::Reject | FixedChain::MasqueradeCluster | FixedChain::MasqueradeExternal => 2,
            FixedChain::Bound | FixedChain::Unserved => 3,
            FixedChain::Services => 4,
            FixedChain::NatPrerouting | FixedChain::NatInput | FixedChain::NatOutput | FixedChain::NatPostrouting => 5,
        }
    }

    fn restricted(family: Family, id: SourcesId) -> Rules {
        compile::restricted(family, id)
    }

    fn probes(family: Family) -> Vec<(FixedChain, Rules)> {
        base::probes(family)
    }

    fn key_bytes((): &(), key: &ElementKey) -> Option<Bytes> {
        Some(key_bytes(key))
    }

    fn key(_: Option<&()>, set: FixedSet, family: Family, bytes: &[u8]) -> Option<ElementKey> {
        key(set, family, bytes)
    }

    fn with_data((): &(), value: &Value, use_it: &mut dyn FnMut(ElementData<'_>)) -> bool {
        match value {
            Value::None => use_it(ElementData::None),
            Value::Accept => use_it(ElementData::Verdict(VerdictRef::Accept)),
            Value::Drop => use_it(ElementData::Verdict(VerdictRef::Drop)),
            Value::Goto(chain) => use_it(ElementData::Verdict(VerdictRef::Goto(&chain.to_string()))),
            Value::Foreign => return false,
        }
        true
    }

    fn value((): &(), set: FixedSet, _: Family, data: &OwnedData) -> Value {
        match (data, Self::layout(set).data) {
            (OwnedData::None, Data::None) => Value::None,
            (OwnedData::Verdict(Verdict::Accept), Data::Verdict) => Value::Accept,
            (OwnedData::Verdict(Verdict::Drop), Data::Verdict) => Value::Drop,
            (OwnedData::Verdict(Verdict::Goto(chain)), Data::Verdict) => {
                ChainName::parse(chain).map_or(Value::Foreign, Value::Goto)
            }
            _ => Value::Foreign,
        }
    }

    const SERVING: &'static [FixedSet] = &[FixedSet::ServiceIps, FixedSet::ServiceNodePorts, FixedSet::NodePortIps];

    /// No element leads to endpoints: virtual servers do.
    fn served(_: &ElementKey) -> Option<Served> {
        None
    }

    /// The table of mode nftables has the same name, and is replaced without a hand-over.
    fn served_elsewhere(element: &ElementKey) -> Option<Served> {
        match element {
            ElementKey::Vip { map: VipMap::Services, at: ServerId { protocol, address, port } } => {
                Some(Served::Frontend(*protocol, FrontendAddr::Vip(*address, *port)))
            }
            ElementKey::NodePort { protocol, port } => Some(Served::Frontend(*protocol, FrontendAddr::NodePort(*port))),
            ElementKey::NodePortIp(address) => Some(Served::NodePorts(*address)),
            ElementKey::Vip { map: VipMap::Restricted, .. }
            | ElementKey::BoundIp(_)
            | ElementKey::PingedIp(_)
            | ElementKey::HealthPort(_)
            | ElementKey::SameOctet(_) => None,
        }
    }

    fn leads_to(value: &Value) -> Option<ChainName<Self>> {
        match value {
            Value::Goto(chain) => Some(*chain),
            Value::None | Value::Accept | Value::Drop | Value::Foreign => None,
        }
    }
}

/// The bytes of a key.
fn key_bytes(key: &ElementKey) -> Bytes {
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

/// Decodes a key; `None` if it is none that this mode writes.
fn key(set: FixedSet, family: Family, bytes: &[u8]) -> Option<ElementKey> {
    let mut reader = FieldReader { family, bytes };
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

    #[test]
    fn keys_are_decoded_as_they_were_encoded() {
        for family in Family::ALL {
            for key in keys(family) {
                let bytes = IpvsTable::key_bytes(&(), &key).unwrap();
                assert_eq!(IpvsTable::key(None, key.set(), family, bytes.as_slice()), Some(key));
            }
        }
    }

    #[test]
    fn other_values_are_foreign_and_other_keys_are_not_ours() {
        let value = |set, data| IpvsTable::value(&(), set, Family::V4, &data);
        let goto = |chain: &str| OwnedData::Verdict(Verdict::Goto(chain.into()));
        assert_eq!(value(FixedSet::BoundIps, OwnedData::None), Value::None);
        assert_eq!(value(FixedSet::BoundIps, OwnedData::Verdict(Verdict::Drop)), Value::Foreign);
        assert_eq!(value(FixedSet::ServiceIps, OwnedData::Verdict(Verdict::Drop)), Value::Drop);
        assert_eq!(value(FixedSet::ServiceIps, OwnedData::Verdict(Verdict::Accept)), Value::Accept);
        assert_eq!(value(FixedSet::ServiceIps, OwnedData::None), Value::Foreign);
        let reject = Value::Goto(ChainName::Fixed(FixedChain::Reject));
        assert_eq!(value(FixedSet::ServiceIps, goto("reject-chain")), reject);
        assert_eq!(value(FixedSet::ServiceIps, goto("stranger")), Value::Foreign);
        for (set, bytes) in [
            (FixedSet::BoundIps, &[10, 96, 0][..]),
            (FixedSet::BoundIps, &[10, 96, 0, 1, 0, 0, 0, 0]),
            (FixedSet::SameOctet, &[1, 0, 0, 0, 2, 0, 0, 0]),
            (FixedSet::ServiceNodePorts, &[200, 0, 0, 0, 0, 80, 0, 0]),
        ] {
            assert_eq!(IpvsTable::key(None, set, Family::V4, bytes), None, "{set}");
        }
    }
    #[test]
    fn only_the_set_of_octets_has_a_size() {
        for set in FixedSet::ALL.iter().copied() {
            let size = (set == FixedSet::SameOctet).then_some(256);
            assert_eq!(IpvsTable::layout(set).size, size, "{set}");
        }
    }

    /// The value as it is read after it was written; `None` if it can't be written.
    fn read_back(set: FixedSet, value: &Value) -> Option<Value> {
        let mut read = None;
        let is_written = IpvsTable::with_data(&(), value, &mut |data| {
            let data = match data {
                ElementData::None => OwnedData::None,
                ElementData::Verdict(VerdictRef::Accept) => OwnedData::Verdict(Verdict::Accept),
                ElementData::Verdict(VerdictRef::Drop) => OwnedData::Verdict(Verdict::Drop),
                ElementData::Verdict(VerdictRef::Goto(chain)) => OwnedData::Verdict(Verdict::Goto(chain.to_owned())),
                other => panic!("{other:?}"),
            };
            read = Some(IpvsTable::value(&(), set, Family::V4, &data));
        });
        assert_eq!(is_written, read.is_some(), "{value:?}");
        read
    }

    #[test]
    fn values_are_read_back_as_they_were_written() {
        let reject = ChainName::Fixed(FixedChain::Reject);
        for (set, value, chain) in [
            (FixedSet::BoundIps, Value::None, None),
            (FixedSet::ServiceIps, Value::Accept, None),
            (FixedSet::ServiceNodePorts, Value::Drop, None),
            (FixedSet::RestrictedIps, Value::Goto(reject), Some(reject)),
        ] {
            assert_eq!(read_back(set, &value), Some(value), "{set}");
            assert_eq!(IpvsTable::leads_to(&value), chain, "{set}");
        }
        assert_eq!(read_back(FixedSet::ServiceIps, &Value::Foreign), None);
        assert_eq!(IpvsTable::leads_to(&Value::Foreign), None);
    }
}
