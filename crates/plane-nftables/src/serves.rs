//! The frontends that elements serve, in our table and in a foreign one.

use ferry_api::object::Family;
use ferry_kernel::nft::Socket;
use ferry_model::FrontendAddr;
use ferry_plane::Served;

use crate::encode::kernel_family;
use crate::names::{FixedSet, SetName, TABLE};
use crate::object::{ElementKey, NodePortMap, VipMap};
use crate::wire;

/// Upstream's names, and its keys.
const SETS: [FixedSet; 3] = [FixedSet::ServiceIps, FixedSet::ServiceNodePorts, FixedSet::NodePortIps];

impl ElementKey {
    /// The frontend that packets find by it.
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
            | Self::Learn { .. }
            | Self::LearnNodePort { .. }
            | Self::ClusterIp(_)
            | Self::SameOctet(_)
            | Self::Member { .. } => None,
        }
    }
}

/// The frontends that a foreign table serves, or one of ours that was changed. Unreadable elements are left out.
/// Upstream's table without listed addresses serves node ports on every local address.
pub(crate) fn foreign(socket: &mut Socket, family: Family) -> Vec<Served> {
    let mut served: Vec<Served> = Vec::new();
    for set in SETS.map(SetName::Fixed) {
        let read = socket.elements(kernel_family(family), TABLE, &set.to_string(), &mut |element| {
            let key = wire::key(set, family, &element);
            served.extend(key.and_then(|key| key.serves()));
        });
        // A maker that has no such set serves nothing by it.
        drop(read);
    }
    let listed = served.iter().any(|served| matches!(served, Served::NodePorts(_)));
    let node_ports = |served: &Served| matches!(served, Served::Frontend(_, FrontendAddr::NodePort(_)));
    if !listed && served.iter().any(node_ports) {
        served.push(Served::NodePortsEverywhere);
    }
    served
}
