//! Determines the frontends that a table serves from its elements, for our table and for foreign ones.

use ferry_api::object::Family;
use ferry_kernel::nft::NftSocket;
use ferry_model::FrontendAddr;
use ferry_plane::Served;
use ferry_ruleset::serves::{complete, finds_node_ports_everywhere};

use crate::names::{ChainName, FixedChain, FixedSet, SetName, TABLE};
use crate::object::{ElementKey, NftObject, NodePortMap, VipMap};
use crate::wire;

/// Sets that upstream's proxy has too, with the same names and keys.
const SETS: [FixedSet; 3] = [FixedSet::ServiceIps, FixedSet::ServiceNodePorts, FixedSet::NodePortIps];

impl NftObject {
    /// The frontend, or the node ports, that packets find by it.
    pub(crate) fn served(&self) -> Option<Served> {
        match self {
            Self::Element(key, _) => key.serves(),
            Self::Chain(ChainName::Fixed(FixedChain::Services), rules) => {
                finds_node_ports_everywhere(rules, FixedSet::ServiceNodePorts).then_some(Served::NodePortsEverywhere)
            }
            Self::Table(_) | Self::Set(_) | Self::Ranges(..) | Self::Chain(..) => None,
        }
    }
}

impl ElementKey {
    /// The frontend that packets find by this element.
    pub(crate) fn serves(&self) -> Option<Served> {
        match self {
            Self::Vip { map: VipMap::Services, vip, protocol, port } => {
                Some(Served::Frontend(*protocol, FrontendAddr::Vip(*vip, *port)))
            }
            Self::NodePort { map: NodePortMap::Services, protocol, port } => {
                Some(Served::Frontend(*protocol, FrontendAddr::NodePort(*port)))
            }
            Self::NodePortIp(address) => Some(Served::NodePorts(*address)),
            Self::Vip { .. }
            | Self::NodePort { .. }
            | Self::Slot { .. }
            | Self::NodePortSlot { .. }
            | Self::PoolSlot { .. }
            | Self::Record { .. }
            | Self::RecordNodePort { .. }
            | Self::ClusterIp(_)
            | Self::SameOctet(_)
            | Self::Member { .. } => None,
        }
    }
}

/// The frontends that a foreign table serves, or one of ours that was changed. Unreadable elements are left out.
pub(crate) fn foreign(socket: &mut NftSocket, family: Family) -> Vec<Served> {
    let mut served: Vec<Served> = Vec::new();
    for set in SETS.map(SetName::Fixed) {
        let read = socket.elements(family, TABLE, &set.to_string(), &mut |element| {
            let key = wire::key(set, family, &element);
            served.extend(key.and_then(|key| key.serves()));
        });
        // Without the set, nothing is served by it.
        drop(read);
    }
    complete(&mut served);
    served
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use ferry_api::object::Protocol;
    use ferry_conformance::states;
    use ferry_kernel::netns::Namespace;
    use ferry_model::{BaseState, FrontendKind, NodePortAddresses, Pool};
    use ferry_plane::{Compile as _, Object as _, Unit};

    use super::*;
    use crate::Nftables;

    const PROTOCOL: Protocol = Protocol::Udp;

    #[test]
    fn only_the_maps_that_packets_meet_first_serve() {
        let vip = [10, 96, 0, 1].into();
        for map in VipMap::ALL {
            let serves = ElementKey::Vip { map, vip, protocol: PROTOCOL, port: 53 }.serves();
            let wanted = Served::Frontend(PROTOCOL, FrontendAddr::Vip(vip, 53));
            assert_eq!(serves, Some(wanted).filter(|_| map == VipMap::Services), "{map:?}");
        }
        for map in NodePortMap::ALL {
            let serves = ElementKey::NodePort { map, protocol: PROTOCOL, port: 30053 }.serves();
            let wanted = Served::Frontend(PROTOCOL, FrontendAddr::NodePort(30053));
            assert_eq!(serves, Some(wanted).filter(|_| map == NodePortMap::Services), "{map:?}");
        }
        assert_eq!(ElementKey::NodePortIp(vip).serves(), Some(Served::NodePorts(vip)));
        assert_eq!(ElementKey::ClusterIp(vip).serves(), None);
    }

    /// The frontends and addresses that the objects of a unit serve.
    fn served_by_unit(unit: &Unit) -> Vec<Served> {
        let mut objects = Vec::new();
        Nftables::new(Family::V4).compile(&states::context(Family::V4), unit, &mut objects);
        objects.iter().filter_map(NftObject::serves).collect()
    }

    #[test]
    fn a_service_serves_its_frontends_once() {
        let frontends = [
            (FrontendKind::ClusterIp, FrontendAddr::Vip([10, 96, 0, 1].into(), 53), states::INTERNAL),
            (FrontendKind::NodePort, FrontendAddr::NodePort(30053), states::EXTERNAL),
            (FrontendKind::LoadBalancer, FrontendAddr::Vip([192, 0, 2, 1].into(), 53), states::SPLIT),
        ];
        let (cluster, local) = (states::pool(Family::V4, &[1, 2]), states::pool(Family::V4, &[2]));
        let all = frontends.iter().map(|(kind, at, treatment)| states::frontend(*kind, *at, *treatment)).collect();
        let (_, unit) = states::service("dns", vec![states::port(PROTOCOL, cluster, local, all)]);
        assert_eq!(served_by_unit(&unit.unwrap()), frontends.map(|(_, at, _)| Served::Frontend(PROTOCOL, at)));
        let (_, without) =
            states::service("dns", vec![states::port(PROTOCOL, Pool::default(), Pool::default(), vec![])]);
        assert_eq!(served_by_unit(&without.unwrap()), []);
    }

    #[test]
    fn the_base_serves_node_ports_on_its_addresses() {
        let address = [192, 0, 2, 7].into();
        for (node_ports, serves) in [
            (NodePortAddresses::All, Served::NodePortsEverywhere),
            (NodePortAddresses::Only([address].into()), Served::NodePorts(address)),
        ] {
            let base = BaseState { node_ports, ..states::base(Family::V4, true) };
            assert_eq!(served_by_unit(&Unit::Base(base)), [serves]);
        }
    }

    fn served_by(sets: &str) -> Vec<Served> {
        let read = || {
            let table = format!("table ip {TABLE} {{ {sets} }}");
            let output = Command::new("nft").arg(table).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            foreign(&mut NftSocket::open().unwrap(), Family::V4)
        };
        Namespace::new().unwrap().run(read).unwrap()
    }

    #[test]
    fn a_foreign_table_serves_what_its_maps_hold() {
        let ips = "map service-ips { type ipv4_addr . inet_proto . inet_service : verdict;
            elements = { 10.96.0.1 . udp . 53 : drop, 10.96.0.2 . icmp . 0 : drop }; };";
        let node_ports = "map service-nodeports { type inet_proto . inet_service : verdict;
            elements = { udp . 30053 : drop }; };";
        let listed = "set nodeport-ips { type ipv4_addr; elements = { 192.0.2.7 }; };";
        let vip = Served::Frontend(PROTOCOL, FrontendAddr::Vip([10, 96, 0, 1].into(), 53));
        let node_port = Served::Frontend(PROTOCOL, FrontendAddr::NodePort(30053));
        assert_eq!(served_by(""), []);
        assert_eq!(served_by(ips), [vip]);
        assert_eq!(served_by(&format!("{ips} {node_ports}")), [vip, node_port, Served::NodePortsEverywhere]);
        let on_one = Served::NodePorts([192, 0, 2, 7].into());
        assert_eq!(served_by(&format!("{ips} {node_ports} {listed}")), [vip, node_port, on_one]);
    }
}
