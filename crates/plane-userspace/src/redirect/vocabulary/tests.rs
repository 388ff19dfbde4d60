//! What is written is read back as what it was, and nothing else is.

use ferry_api::object::ObjectName;
use ferry_conformance::states::address;
use ferry_kernel::nft::Octets;

use super::*;
use crate::port::{PortId, SCOPES};

/// The port of each listener.
const PORTS: [u16; 3] = [61_000, 61_001, 61_002];

/// The listeners for TCP with each scope, and one for UDP, all open.
fn doors() -> (Doors, [Door; 3]) {
    let service = ObjectName::new("demo", "dns");
    let datagrams = PortId { service, name: "dns".into(), protocol: Protocol::Udp, scope: Scope::Cluster };
    let [cluster, local] = SCOPES.map(Door::Gate);
    let (doors, all) = (Doors::default(), [cluster, local, Door::Datagrams(datagrams)]);
    all.iter().zip(PORTS).for_each(|(door, port)| doors.open(door, port));
    (doors, all)
}

/// An element of each kind.
fn elements(family: Family, doors: [Door; 3]) -> Vec<ElementKey> {
    let (vip, node) = (address(family, 96, 1), address(family, 0, 1));
    let mut elements = vec![ElementKey::ClusterIp(vip), ElementKey::NodePortIp(node)];
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        elements.push(ElementKey::NodePort { protocol, port: 30_053 });
        elements.push(ElementKey::Listener(Entrance::Unknown(protocol, 9)));
        for map in [VipMap::Services, VipMap::Restricted] {
            elements.push(ElementKey::Vip { map, protocol, address: vip, port: 53 });
        }
    }
    for scope in SCOPES {
        elements.push(ElementKey::Gate(scope));
        elements.push(ElementKey::Datagrams(scope, FrontendAddr::Vip(vip, 53)));
        elements.push(ElementKey::Datagrams(scope, FrontendAddr::NodePort(30_053)));
    }
    elements.extend(doors.into_iter().map(|door| ElementKey::Listener(Entrance::Of(door))));
    elements
}

fn read_back(doors: &Doors, set: FixedSet, family: Family, value: &Value) -> Option<Value> {
    let mut read = None;
    let known = Userspace::with_data(doors, value, &mut |data| {
        let data = match data {
            ElementData::None => OwnedData::None,
            ElementData::Value(bytes) => OwnedData::Value(Octets::new(bytes).unwrap()),
            ElementData::Verdict(VerdictRef::Drop) => OwnedData::Verdict(Verdict::Drop),
            ElementData::Verdict(VerdictRef::Goto(chain)) => OwnedData::Verdict(Verdict::Goto(chain.to_owned())),
            other => panic!("{other:?}"),
        };
        read = Some(Userspace::value(doors, set, family, &data));
    });
    assert_eq!(known, read.is_some());
    read
}

#[test]
fn a_key_is_read_back_from_its_bytes() {
    for family in Family::ALL {
        let (doors, all) = doors();
        for element in elements(family, all) {
            let set = Userspace::set_of(&element);
            let bytes = Userspace::key_bytes(&doors, &element).unwrap().as_slice().to_vec();
            let key = |bytes: &[u8]| Userspace::key(Some(&doors), set, family, bytes);
            assert_eq!(key(&bytes), Some(element.clone()));
            assert_eq!(key(&[&bytes[..], &[0; 4]].concat()), None, "{element}: bytes too many");
            assert_eq!(key(&bytes[..bytes.len() - 1]), None, "{element}: a byte too few");
            let without = Userspace::key(None, set, family, &bytes);
            assert_eq!(
                without.is_none(),
                set == FixedSet::Listeners,
                "{element}: the port of a listener is known to its process"
            );
        }
    }
}

#[test]
fn a_map_of_one_protocol_has_no_key_of_another() {
    let (doors, _) = doors();
    for (set, bytes) in [
        (FixedSet::GateCluster, Bytes::new().protocol(Protocol::Udp).unpadded(1)),
        (FixedSet::DatagramsNodePortsLocal, Bytes::new().protocol(Protocol::Tcp).port(53)),
    ] {
        assert_eq!(Userspace::key(Some(&doors), set, Family::V4, bytes.as_slice()), None, "{set}");
    }
}

#[test]
fn a_closed_listener_has_no_bytes() {
    let (doors, [gate, ..]) = doors();
    doors.close(&gate);
    assert!(Userspace::key_bytes(&doors, &ElementKey::Listener(Entrance::Of(gate.clone()))).is_none());
    let relay = Value::Relay(address(Family::V4, 0, 1), gate);
    assert_eq!(read_back(&doors, FixedSet::GateCluster, Family::V4, &relay), None);
    assert_eq!(read_back(&doors, FixedSet::GateCluster, Family::V4, &Value::Foreign), None);
}

#[test]
fn a_value_is_read_back_where_its_map_has_such() {
    for family in Family::ALL {
        let (doors, [cluster, _, datagrams]) = doors();
        let relay = |door: &Door| Value::Relay(address(family, 0, 1), door.clone());
        let (to_gate, to_datagrams) = (relay(&cluster), relay(&datagrams));
        let goto = Value::Goto(ChainName::Fixed(FixedChain::Reject));
        for (set, value, foreign) in [
            (FixedSet::ClusterIps, &Value::None, &goto),
            (FixedSet::ServiceIps, &Value::Drop, &Value::None),
            (FixedSet::ServiceNodePorts, &goto, &to_gate),
            (FixedSet::GateCluster, &to_gate, &to_datagrams),
            (FixedSet::DatagramsCluster, &to_datagrams, &to_gate),
        ] {
            assert_eq!(read_back(&doors, set, family, value).as_ref(), Some(value), "{set}");
            assert_eq!(read_back(&doors, set, family, foreign), Some(Value::Foreign), "{set}");
        }
        let bytes = Bytes::new().address(address(family, 0, 1)).port(PORTS[0]).port(0);
        let longer = OwnedData::Value(Octets::new(bytes.as_slice()).unwrap());
        assert_eq!(Userspace::value(&doors, FixedSet::GateCluster, family, &longer), Value::Foreign);
        assert_eq!(Userspace::leads_to(&goto), Some(ChainName::Fixed(FixedChain::Reject)));
        assert_eq!(Userspace::leads_to(&to_gate), None);
    }
}

#[test]
fn frontends_are_served_by_their_own_elements_alone() {
    let (_, all) = doors();
    let (vip, node) = (address(Family::V4, 96, 1), address(Family::V4, 0, 1));
    let served: Vec<Served> = elements(Family::V4, all).iter().filter_map(Userspace::served).collect();
    let mut want = vec![Served::NodePorts(node)];
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        want.push(Served::Frontend(protocol, FrontendAddr::NodePort(30_053)));
        want.push(Served::Frontend(protocol, FrontendAddr::Vip(vip, 53)));
    }
    assert_eq!(served, want);
}

#[test]
fn the_kernel_is_probed_with_every_chain() {
    let probed: Vec<FixedChain> = Userspace::probes(Family::V6).into_iter().map(|(chain, _)| chain).collect();
    assert!(FixedChain::ALL.iter().all(|chain| probed.contains(chain)), "{probed:?}");
}
