//! The table of this mode: names, elements as the kernel's bytes, rules.

use std::net::IpAddr;

use ferry_api::object::{Family, Protocol};
use ferry_kernel::nft::{BaseHook, ElementData, OwnedData, Verdict, VerdictRef};
use ferry_model::{FrontendAddr, Scope};
use ferry_plane::Served;
use ferry_ruleset::Rules;
use ferry_ruleset::fields::{Bytes, FieldReader};
use ferry_ruleset::layout::{Data, KeyPart, Layout};
use ferry_ruleset::rules::{RuleWriter, VIP};
use ferry_ruleset::sources::SourcesId;
use ferry_ruleset::table::{ChainName, SetName, Vocabulary};

use super::doors::Doors;
use super::element::{Door, ElementKey, Entrance, Userspace, Value, VipMap};
use super::names::{FixedChain, FixedSet, TABLE, TABLE_COMMENT};
use super::rules;

impl Vocabulary for Userspace {
    type Set = FixedSet;
    type Chain = FixedChain;
    type Element = ElementKey;
    type Value = Value;
    type World = Doors;

    const TABLE: &'static str = TABLE;
    const COMMENT: &'static str = TABLE_COMMENT;
    const MODULES: &'static str = "nf_tables, nft_chain_nat, nft_nat, nft_fib, nft_ct and nft_reject";

    fn set_of(element: &ElementKey) -> FixedSet {
        element.set()
    }

    fn layout(set: FixedSet) -> Layout {
        let vip = &[KeyPart::Address, KeyPart::Protocol, KeyPart::Port];
        let port = &[KeyPart::Protocol, KeyPart::Port];
        match set {
            FixedSet::ServiceIps | FixedSet::RestrictedIps => Layout::new(vip, Data::Verdict),
            FixedSet::ServiceNodePorts => Layout::new(port, Data::Verdict),
            FixedSet::ClusterIps | FixedSet::NodePortIps => Layout::new(&[KeyPart::Address], Data::None),
            FixedSet::GateCluster | FixedSet::GateLocal => Layout::new(&[KeyPart::Protocol], Data::Endpoint),
            FixedSet::DatagramsCluster | FixedSet::DatagramsLocal => Layout::new(vip, Data::Endpoint),
            FixedSet::DatagramsNodePortsCluster | FixedSet::DatagramsNodePortsLocal => {
                Layout::new(port, Data::Endpoint)
            }
            FixedSet::Listeners => Layout::new(port, Data::None),
        }
    }

    fn hook(chain: FixedChain) -> Option<BaseHook> {
        chain.hook()
    }

    fn rank(chain: FixedChain) -> u8 {
        match chain {
            FixedChain::Reject => 2,
            FixedChain::RelayCluster | FixedChain::RelayLocal => 3,
            FixedChain::ByOrigin
            | FixedChain::InsideOnly
            | FixedChain::OutsideOnly
            | FixedChain::Unknown
            | FixedChain::Services => 4,
            FixedChain::NatPrerouting
            | FixedChain::NatPreroutingLate
            | FixedChain::NatInput
            | FixedChain::NatOutput
            | FixedChain::NatOutputLate => 5,
        }
    }

    fn restricted(family: Family, id: SourcesId) -> Rules {
        let rule = || RuleWriter::new(family);
        let outside = rule().source_outside(SetName::<Self>::Sources(id)).drop_it();
        Rules([outside, rule().verdict_map(VIP, FixedSet::RestrictedIps)].into())
    }

    fn probes(family: Family) -> Vec<(FixedChain, Rules)> {
        rules::probes(family)
    }

    fn key_bytes(doors: &Doors, element: &ElementKey) -> Option<Bytes> {
        let bytes = Bytes::new();
        Some(match element {
            ElementKey::Vip { protocol, address, port, .. } => bytes.address(*address).protocol(*protocol).port(*port),
            ElementKey::NodePort { protocol, port } => bytes.protocol(*protocol).port(*port),
            ElementKey::ClusterIp(address) | ElementKey::NodePortIp(address) => bytes.address(*address),
            ElementKey::Gate(_) => bytes.protocol(Protocol::Tcp).unpadded(1),
            ElementKey::Datagrams(_, FrontendAddr::Vip(address, port)) => {
                bytes.address(*address).protocol(Protocol::Udp).port(*port)
            }
            ElementKey::Datagrams(_, FrontendAddr::NodePort(port)) => bytes.protocol(Protocol::Udp).port(*port),
            ElementKey::Listener(Entrance::Of(door)) => bytes.protocol(door.protocol()).port(doors.port(door)?),
            ElementKey::Listener(Entrance::Unknown(protocol, port)) => bytes.protocol(*protocol).port(*port),
        })
    }

    fn key(doors: Option<&Doors>, set: FixedSet, family: Family, bytes: &[u8]) -> Option<ElementKey> {
        let mut reader = FieldReader { family, bytes };
        let key = decode(doors, set, &mut reader)?;
        reader.bytes.is_empty().then_some(key)
    }

    fn with_data(doors: &Doors, value: &Value, use_it: &mut dyn FnMut(ElementData<'_>)) -> bool {
        match value {
            Value::None => use_it(ElementData::None),
            Value::Drop => use_it(ElementData::Verdict(VerdictRef::Drop)),
            Value::Goto(chain) => use_it(ElementData::Verdict(VerdictRef::Goto(&chain.to_string()))),
            Value::Relay(address, door) => {
                let Some(port) = doors.port(door) else { return false };
                use_it(ElementData::Value(Bytes::new().address(*address).port(port).as_slice()));
            }
            Value::Foreign => return false,
        }
        true
    }

    fn value(doors: &Doors, set: FixedSet, family: Family, data: &OwnedData) -> Value {
        match (data, Self::layout(set).data) {
            (OwnedData::None, Data::None) => Value::None,
            (OwnedData::Verdict(Verdict::Drop), Data::Verdict) => Value::Drop,
            (OwnedData::Verdict(Verdict::Goto(chain)), Data::Verdict) => {
                ChainName::parse(chain).map_or(Value::Foreign, Value::Goto)
            }
            (OwnedData::Value(bytes), Data::Endpoint) => relay(doors, set, FieldReader { family, bytes }),
            _ => Value::Foreign,
        }
    }

    const SERVING: &'static [FixedSet] = &[FixedSet::ServiceIps, FixedSet::ServiceNodePorts, FixedSet::NodePortIps];

    fn served(element: &ElementKey) -> Option<Served> {
        match element {
            ElementKey::Vip { map: VipMap::Services, protocol, address, port } => {
                Some(Served::Frontend(*protocol, FrontendAddr::Vip(*address, *port)))
            }
            ElementKey::NodePort { protocol, port } => Some(Served::Frontend(*protocol, FrontendAddr::NodePort(*port))),
            ElementKey::NodePortIp(address) => Some(Served::NodePorts(*address)),
            ElementKey::Vip { map: VipMap::Restricted, .. }
            | ElementKey::ClusterIp(_)
            | ElementKey::Gate(_)
            | ElementKey::Datagrams(..)
            | ElementKey::Listener(_) => None,
        }
    }

    fn leads_to(value: &Value) -> Option<ChainName<Self>> {
        match value {
            Value::Goto(chain) => Some(*chain),
            Value::None | Value::Drop | Value::Relay(..) | Value::Foreign => None,
        }
    }
}

/// Decodes where a map leads to: an address, and the port of a listener of this process.
fn relay(doors: &Doors, set: FixedSet, mut reader: FieldReader<'_>) -> Value {
    let protocol = match set {
        FixedSet::GateCluster | FixedSet::GateLocal => Protocol::Tcp,
        _ => Protocol::Udp,
    };
    let mut read = || Some((reader.address()?, doors.door(protocol, reader.port()?)?));
    match read() {
        Some((address, door)) if reader.bytes.is_empty() => Value::Relay(address, door),
        Some(_) | None => Value::Foreign,
    }
}

fn decode(doors: Option<&Doors>, set: FixedSet, reader: &mut FieldReader<'_>) -> Option<ElementKey> {
    let of_protocol = |reader: &mut FieldReader<'_>, wanted| (reader.protocol()? == wanted).then_some(());
    let datagrams = |reader: &mut FieldReader<'_>, scope, address: Option<IpAddr>| {
        of_protocol(reader, Protocol::Udp)?;
        let port = reader.port()?;
        let at = address.map_or(FrontendAddr::NodePort(port), |address| FrontendAddr::Vip(address, port));
        Some(ElementKey::Datagrams(scope, at))
    };
    let vip = |reader: &mut FieldReader<'_>, map| {
        let (address, protocol, port) = (reader.address()?, reader.protocol()?, reader.port()?);
        Some(ElementKey::Vip { map, protocol, address, port })
    };
    match set {
        FixedSet::ServiceIps => vip(reader, VipMap::Services),
        FixedSet::RestrictedIps => vip(reader, VipMap::Restricted),
        FixedSet::ServiceNodePorts => Some(ElementKey::NodePort { protocol: reader.protocol()?, port: reader.port()? }),
        FixedSet::ClusterIps => reader.address().map(ElementKey::ClusterIp),
        FixedSet::NodePortIps => reader.address().map(ElementKey::NodePortIp),
        FixedSet::GateCluster => of_protocol(reader, Protocol::Tcp).map(|()| ElementKey::Gate(Scope::Cluster)),
        FixedSet::GateLocal => of_protocol(reader, Protocol::Tcp).map(|()| ElementKey::Gate(Scope::Local)),
        FixedSet::DatagramsCluster => {
            let address = reader.address()?;
            datagrams(reader, Scope::Cluster, Some(address))
        }
        FixedSet::DatagramsLocal => {
            let address = reader.address()?;
            datagrams(reader, Scope::Local, Some(address))
        }
        FixedSet::DatagramsNodePortsCluster => datagrams(reader, Scope::Cluster, None),
        FixedSet::DatagramsNodePortsLocal => datagrams(reader, Scope::Local, None),
        FixedSet::Listeners => {
            let (protocol, port) = (reader.protocol()?, reader.port()?);
            let door: Option<Door> = doors?.door(protocol, port);
            Some(ElementKey::Listener(door.map_or(Entrance::Unknown(protocol, port), Entrance::Of)))
        }
    }
}

#[cfg(test)]
mod tests;
