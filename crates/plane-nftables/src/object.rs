//! Kernel objects of the nftables mode: the table, sets and maps, chains with their rules, elements. Their keys and ranks.

use std::fmt;
use std::net::IpAddr;

use ferry_api::object::Protocol;
use ferry_model::{Endpoint, Scope};
use ferry_plane::{Object, Served};
use ferry_ruleset::Rules;
use ferry_ruleset::read::TableOwner;
use ferry_ruleset::sources::{Ranges, SourcesId};

use crate::names::{ChainName, FixedChain, FixedSet, Pick, PortId, SetName, TABLE, TABLE_COMMENT};

/// One object in the kernel that this mode owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NftObject {
    /// the table
    Table(TableOwner),
    /// a set or map without its elements; its shape follows from its name. Not [`SetName::Sources`]
    Set(SetName),
    /// the set of source ranges with this id, with all its elements. Its key is that of a set and sorts behind all other sets
    Ranges(SourcesId, Ranges),
    /// a chain with its rules; its hook follows from its name
    Chain(ChainName, Rules),
    /// an element
    Element(ElementKey, Value),
}

/// Identity of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NftKey {
    /// the table
    Table,
    /// a set or map
    Set(SetName),
    /// a chain
    Chain(ChainName),
    /// an element
    Element(ElementKey),
}

/// Keys of shared objects: those that several services may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedKey {
    /// a pick chain of this number of slots
    Pick(Pick, u32),
    /// an element of `cluster-ips`
    ClusterIp(IpAddr),
    /// a set of source ranges
    Sources(SourcesId),
    /// the chain that checks it
    Restricted(SourcesId),
}

const _: () = assert!(size_of::<(SharedKey, u32)>() <= 24, "there is one for each of a node's services");

/// Identity of an element: its set or map, and its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementKey {
    /// `endpoints`
    Slot {
        /// the VIP
        vip: IpAddr,
        /// its protocol
        protocol: Protocol,
        /// its port
        port: u16,
        /// the slot
        slot: u32,
    },
    /// `nodeport-endpoints`
    NodePortSlot {
        /// its protocol
        protocol: Protocol,
        /// the node port
        port: u16,
        /// the slot
        slot: u32,
    },
    /// a pool of a service port with many frontends
    PoolSlot {
        /// the service port
        id: PortId,
        /// the slot
        slot: u32,
    },
    /// a verdict map keyed by VIP, protocol and port
    Vip {
        /// the map
        map: VipMap,
        /// the VIP
        vip: IpAddr,
        /// its protocol
        protocol: Protocol,
        /// its port
        port: u16,
    },
    /// a verdict map keyed by protocol and node port
    NodePort {
        /// the map
        map: NodePortMap,
        /// its protocol
        protocol: Protocol,
        /// the node port
        port: u16,
    },
    /// `learn-tcp` and its like
    Record {
        /// the protocol
        protocol: Protocol,
        /// the VIP
        vip: IpAddr,
        /// its port
        port: u16,
    },
    /// `learn-nodeports-tcp` and its like
    RecordNodePort {
        /// the protocol
        protocol: Protocol,
        /// the node port
        port: u16,
    },
    /// `cluster-ips`
    ClusterIp(IpAddr),
    /// `nodeport-ips`
    NodePortIp(IpAddr),
    /// `same-octet`
    SameOctet(u8),
    /// a set of recordable endpoints
    Member {
        /// the service port
        id: PortId,
        /// the scope of the affinity map
        scope: Scope,
        /// the endpoint
        endpoint: Endpoint,
    },
}

/// The verdict maps keyed by VIP, protocol and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VipMap {
    /// `service-ips`
    Services,
    /// `restricted-ips`
    Restricted,
    /// `local-ips`
    Local,
    /// `cluster-policy-ips`
    ClusterPolicy,
    /// `affinity-pick`
    AffinityPick,
    /// `affinity-pick-local`
    AffinityPickLocal,
}

/// The verdict maps keyed by protocol and node port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodePortMap {
    /// `service-nodeports`
    Services,
    /// `local-nodeports`
    Local,
    /// `cluster-policy-nodeports`
    ClusterPolicy,
    /// `affinity-pick-nodeports`
    AffinityPick,
    /// `affinity-pick-local-nodeports`
    AffinityPickLocal,
}

/// Value of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// a set's element
    None,
    /// an endpoint
    Endpoint(Endpoint),
    /// `drop`
    Drop,
    /// `goto` a chain
    Goto(ChainName),
    /// a value that this mode never writes, read back
    Foreign,
}

// A node holds a hundred thousand of these keys.
const _: () = assert!(size_of::<NftKey>() <= 48);

// === impl NftObject ===

impl NftObject {
    /// The object's key.
    fn key_of(&self) -> NftKey {
        match self {
            Self::Table(_) => NftKey::Table,
            Self::Set(name) => NftKey::Set(*name),
            Self::Ranges(id, _) => NftKey::Set(SetName::Sources(*id)),
            Self::Chain(name, _) => NftKey::Chain(*name),
            Self::Element(key, _) => NftKey::Element(*key),
        }
    }
}

impl Object for NftObject {
    type Key = NftKey;
    type Shared = SharedKey;

    fn key(&self) -> NftKey {
        self.key_of()
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Table(_) => 0,
            Self::Set(_) | Self::Ranges(..) => 1,
            // Other chains refer to these.
            Self::Chain(ChainName::Fixed(FixedChain::Reject) | ChainName::Pool(Pick::Forward, ..), _) => 2,
            Self::Chain(ChainName::Fixed(fixed), _) if fixed.hook().is_some() => 4,
            Self::Chain(..) => 3,
            Self::Element(..) => 5,
        }
    }

    fn shared(&self) -> Option<SharedKey> {
        match self {
            Self::Chain(ChainName::Pick(pick, slots), _) => Some(SharedKey::Pick(*pick, *slots)),
            Self::Element(ElementKey::ClusterIp(address), _) => Some(SharedKey::ClusterIp(*address)),
            Self::Ranges(id, _) => Some(SharedKey::Sources(*id)),
            Self::Chain(ChainName::Restricted(id), _) => Some(SharedKey::Restricted(*id)),
            Self::Table(_) | Self::Set(_) | Self::Chain(..) | Self::Element(..) => None,
        }
    }

    fn spare(&self) -> bool {
        matches!(self, Self::Chain(ChainName::Pick(..), _))
    }

    fn serves(&self) -> Option<Served> {
        self.served()
    }

    fn is_container(&self) -> bool {
        matches!(self, Self::Table(_))
    }
}

impl fmt::Display for NftObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(TableOwner::Ours) => write!(f, "table {TABLE} {{ comment \"{TABLE_COMMENT}\" }}"),
            Self::Table(TableOwner::Foreign) => write!(f, "table {TABLE} {{ foreign }}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Ranges(id, ranges) => write!(f, "set {} {{ {ranges} }}", SetName::Sources(*id)),
            Self::Chain(name, rules) => write!(f, "chain {name} {{{rules} }}"),
            Self::Element(key, value) => write!(f, "element {} {{ {key}{value} }}", key.set()),
        }
    }
}

// === impl NftKey ===

impl fmt::Display for NftKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => write!(f, "table {TABLE}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Element(key) => write!(f, "element {} {{ {key} }}", key.set()),
        }
    }
}

// === impl ElementKey ===

impl ElementKey {
    /// The set or map that it belongs to.
    pub fn set(&self) -> SetName {
        let fixed = match self {
            Self::Slot { .. } => FixedSet::Endpoints,
            Self::NodePortSlot { .. } => FixedSet::NodePortEndpoints,
            Self::Vip { map, .. } => map.set(),
            Self::NodePort { map, .. } => map.set(),
            Self::Record { protocol, .. } => FixedSet::record(*protocol),
            Self::RecordNodePort { protocol, .. } => FixedSet::record_node_ports(*protocol),
            Self::ClusterIp(_) => FixedSet::ClusterIps,
            Self::NodePortIp(_) => FixedSet::NodePortIps,
            Self::SameOctet(_) => FixedSet::SameOctet,
            Self::Member { id, scope, .. } => return SetName::Members(*id, *scope),
            Self::PoolSlot { id, .. } => return SetName::Pool(*id),
        };
        SetName::Fixed(fixed)
    }
}

impl fmt::Display for ElementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot { vip, protocol, port, slot } => write!(f, "{vip} . {} . {port} . {slot}", protocol.lower()),
            Self::NodePortSlot { protocol, port, slot } => write!(f, "{} . {port} . {slot}", protocol.lower()),
            Self::PoolSlot { slot, .. } => write!(f, "{slot}"),
            Self::Vip { vip, protocol, port, .. } => write!(f, "{vip} . {} . {port}", protocol.lower()),
            Self::NodePort { protocol, port, .. } => write!(f, "{} . {port}", protocol.lower()),
            Self::Record { vip, port, .. } => write!(f, "{vip} . {port}"),
            Self::RecordNodePort { port, .. } => write!(f, "{port}"),
            Self::ClusterIp(address) | Self::NodePortIp(address) => write!(f, "{address}"),
            Self::SameOctet(octet) => write!(f, "{octet} . {octet}"),
            Self::Member { endpoint, .. } => write!(f, "{} . {}", endpoint.address, endpoint.port),
        }
    }
}

// === impl VipMap ===

impl VipMap {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Services,
        Self::Restricted,
        Self::Local,
        Self::ClusterPolicy,
        Self::AffinityPick,
        Self::AffinityPickLocal,
    ];

    /// The map.
    pub const fn set(self) -> FixedSet {
        match self {
            Self::Services => FixedSet::ServiceIps,
            Self::Restricted => FixedSet::RestrictedIps,
            Self::Local => FixedSet::LocalIps,
            Self::ClusterPolicy => FixedSet::ClusterPolicyIps,
            Self::AffinityPick => FixedSet::AffinityPick,
            Self::AffinityPickLocal => FixedSet::AffinityPickLocal,
        }
    }
}

// === impl NodePortMap ===

impl NodePortMap {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Services, Self::Local, Self::ClusterPolicy, Self::AffinityPick, Self::AffinityPickLocal];

    /// The map.
    pub const fn set(self) -> FixedSet {
        match self {
            Self::Services => FixedSet::ServiceNodePorts,
            Self::Local => FixedSet::LocalNodePorts,
            Self::ClusterPolicy => FixedSet::ClusterPolicyNodePorts,
            Self::AffinityPick => FixedSet::AffinityPickNodePorts,
            Self::AffinityPickLocal => FixedSet::AffinityPickLocalNodePorts,
        }
    }

    /// The map of VIPs for the same purpose.
    pub const fn of_vips(self) -> VipMap {
        match self {
            Self::Services => VipMap::Services,
            Self::Local => VipMap::Local,
            Self::ClusterPolicy => VipMap::ClusterPolicy,
            Self::AffinityPick => VipMap::AffinityPick,
            Self::AffinityPickLocal => VipMap::AffinityPickLocal,
        }
    }
}

// === impl Value ===

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Endpoint(endpoint) => write!(f, " : {} . {}", endpoint.address, endpoint.port),
            Self::Drop => f.write_str(" : drop"),
            Self::Goto(chain) => write!(f, " : goto {chain}"),
            Self::Foreign => f.write_str(" : foreign value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::ObjectName;
    use ferry_model::FrontendAddr;

    use super::*;

    const NO_RULES: [ferry_ruleset::TableRule; 0] = [];

    fn chain(name: ChainName) -> NftObject {
        NftObject::Chain(name, Rules(NO_RULES.into()))
    }

    fn element(key: ElementKey, value: Value) -> NftObject {
        NftObject::Element(key, value)
    }

    fn port_id() -> PortId {
        PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, "http")
    }

    #[test]
    fn an_object_has_a_text_and_its_key_has_the_identity_of_it() {
        let (id, vip) = (port_id(), IpAddr::from([10, 96, 0, 1]));
        let ranges = Ranges::new(&["192.0.2.0/24".parse().unwrap(), "198.51.100.7/32".parse().unwrap()]);
        let sources = ranges.id();
        let endpoint = Endpoint { address: [10, 244, 0, 1].into(), port: 8080 };
        let protocol = Protocol::Udp;
        let slot = ElementKey::Slot { vip, protocol, port: 53, slot: 2 };
        let local = ElementKey::NodePort { map: NodePortMap::Local, protocol, port: 30053 };
        let member = ElementKey::Member { id, scope: Scope::Local, endpoint };
        let pick = Value::Goto(ChainName::Pick(Pick::Internal, 3));
        let restricted = format!("chain restricted-{sources}");
        for (object, key, content) in [
            (
                NftObject::Table(TableOwner::Ours),
                "table kube-proxy".to_owned(),
                " { comment \"kube-proxy by Ferry, layout 3\" }",
            ),
            (NftObject::Table(TableOwner::Foreign), "table kube-proxy".to_owned(), " { foreign }"),
            (NftObject::Set(SetName::Pool(id)), format!("set pool-{id}"), ""),
            (NftObject::Ranges(sources, ranges), format!("set sources-{sources}"), " { 192.0.2.0/24, 198.51.100.7 }"),
            (chain(ChainName::Restricted(sources)), restricted, " { }"),
        ] {
            assert_eq!((object.key().to_string(), object.to_string()), (key.clone(), key + content));
        }
        for (key, value, set, text, content) in [
            (
                slot,
                Value::Endpoint(endpoint),
                "endpoints".to_owned(),
                "10.96.0.1 . udp . 53 . 2",
                " : 10.244.0.1 . 8080",
            ),
            (local, Value::Drop, "local-nodeports".to_owned(), "udp . 30053", " : drop"),
            (local, pick, "local-nodeports".to_owned(), "udp . 30053", " : goto int-3"),
            (local, Value::Foreign, "local-nodeports".to_owned(), "udp . 30053", " : foreign value"),
            (member, Value::None, format!("endpoints-{id}-local"), "10.244.0.1 . 8080", ""),
        ] {
            let object = element(key, value);
            assert_eq!(object.key().to_string(), format!("element {set} {{ {text} }}"));
            assert_eq!(object.to_string(), format!("element {set} {{ {text}{content} }}"));
        }
    }

    #[test]
    fn only_objects_that_several_services_may_use_are_shared_and_only_idle_pick_chains_stay() {
        let (id, vip, protocol) = (port_id(), IpAddr::from([10, 96, 0, 1]), Protocol::Tcp);
        let ranges = Ranges::new(&["192.0.2.0/24".parse().unwrap()]);
        let sources = ranges.id();
        let pick = chain(ChainName::Pick(Pick::NodePort, 3));
        let service = ElementKey::Vip { map: VipMap::Services, vip, protocol, port: 80 };
        for (object, shared) in [
            (pick.clone(), Some(SharedKey::Pick(Pick::NodePort, 3))),
            (element(ElementKey::ClusterIp(vip), Value::None), Some(SharedKey::ClusterIp(vip))),
            (NftObject::Ranges(sources, ranges), Some(SharedKey::Sources(sources))),
            (chain(ChainName::Restricted(sources)), Some(SharedKey::Restricted(sources))),
            (NftObject::Table(TableOwner::Ours), None),
            (NftObject::Set(SetName::Pool(id)), None),
            (chain(ChainName::Pool(Pick::Forward, Scope::Cluster, id)), None),
            (chain(ChainName::Affinity(Pick::Forward, Scope::Cluster, id)), None),
            (chain(ChainName::Record(id)), None),
            (chain(ChainName::Fixed(FixedChain::Reject)), None),
            (element(service, Value::Drop), None),
        ] {
            assert_eq!((object.shared(), object.spare()), (shared, object == pick), "{object}");
            let serves = Some(Served::Frontend(protocol, FrontendAddr::Vip(vip, 80)));
            assert_eq!(object.serves(), serves.filter(|_| object == element(service, Value::Drop)), "{object}");
        }
    }

    #[test]
    fn the_table_contains_the_other_objects() {
        for owner in [TableOwner::Ours, TableOwner::Foreign] {
            assert!(NftObject::Table(owner).is_container());
        }
        let others = [
            NftObject::Set(SetName::Fixed(FixedSet::Endpoints)),
            chain(ChainName::Fixed(FixedChain::Services)),
            element(ElementKey::SameOctet(7), Value::None),
        ];
        assert_eq!(others.iter().find(|object| object.is_container()), None);
    }
}
