//! Kernel objects of the ipvs mode: those of the table, virtual servers, and addresses of the device. Their keys and ranks.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use ferry_model::FrontendAddr;
use ferry_plane::{Batch, Object, Served};
use ferry_ruleset::sources::SourcesId;
use ferry_ruleset::table::{ChainName, ELEMENT_RANK, InTable, TableKey, TableObject};

use crate::element::{ElementKey, IpvsTable, Value, VipMap};
use crate::names::DEVICE;
use crate::server::{ServerId, VirtualServer};

/// One object in the kernel that this mode owns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpvsObject {
    /// an object of the table
    Table(TableObject<IpvsTable>),
    /// a virtual server with its endpoints
    Server(ServerId, VirtualServer),
    /// an address of the device
    Address(IpAddr, Lifetime),
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpvsKey {
    /// an object of the table
    Table(TableKey<IpvsTable>),
    /// a virtual server
    Server(ServerId),
    /// an address of the device
    Address(IpAddr),
}

/// Keys of shared objects: those that several Services may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharedKey {
    /// a set of source ranges
    Sources(SourcesId),
    /// the chain that checks it
    Restricted(SourcesId),
    /// an element of `bound-ips`
    BoundIp(IpAddr),
    /// an element of `pinged-ips`
    PingedIp(IpAddr),
    /// an element of `health-ports`
    HealthPort(u16),
    /// an address of the device
    Address(IpAddr),
}

const _: () = assert!(size_of::<(SharedKey, u32)>() <= 24, "there are two for each of a node's services");

/// The lifetime of an address on the device, which decides whether the kernel takes it as a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifetime {
    /// as this mode sets it: no connection takes the address as its source, except one to that address
    Deprecated,
    /// IPv6 with a preferred lifetime, IPv4 of scope `global`, as upstream's proxy sets them: connections may take it as their source
    Preferred,
}

// === impl IpvsObject ===

impl IpvsObject {
    /// An element of the table.
    pub(crate) fn element(key: ElementKey, value: Value) -> Self {
        Self::Table(TableObject::Element(key, value))
    }
}

impl Object for IpvsObject {
    type Key = IpvsKey;
    type Shared = SharedKey;

    fn key(&self) -> IpvsKey {
        match self {
            Self::Table(object) => IpvsKey::Table(object.key()),
            Self::Server(id, _) => IpvsKey::Server(*id),
            Self::Address(address, _) => IpvsKey::Address(*address),
        }
    }

    /// A virtual server needs the elements that mark, restrict or refuse its packets: the nat chains decide on the first packet
    /// of a connection for all later ones. An address needs its servers and refusals, since until then it leads nowhere.
    fn rank(&self) -> u8 {
        match self {
            Self::Table(object) => object.rank(),
            Self::Server(..) => ELEMENT_RANK + 1,
            Self::Address(..) => ELEMENT_RANK + 2,
        }
    }

    fn shared(&self) -> Option<SharedKey> {
        match self {
            Self::Table(object) => shared(object),
            Self::Address(address, _) => Some(SharedKey::Address(*address)),
            Self::Server(..) => None,
        }
    }

    /// A virtual server without endpoints serves nothing.
    fn serves(&self) -> Option<Served> {
        match self {
            Self::Server(id, server) if !server.endpoints.is_empty() => {
                Some(Served::Frontend(id.protocol, FrontendAddr::Vip(id.address, id.port)))
            }
            Self::Table(_) | Self::Server(..) | Self::Address(..) => None,
        }
    }

    fn is_container(&self) -> bool {
        matches!(self, Self::Table(TableObject::Table(_)))
    }
}

impl InTable<IpvsTable> for IpvsObject {
    fn in_table(&self) -> Option<&TableObject<IpvsTable>> {
        match self {
            Self::Table(object) => Some(object),
            Self::Server(..) | Self::Address(..) => None,
        }
    }

    fn of_table(object: TableObject<IpvsTable>) -> Self {
        Self::Table(object)
    }

    fn key_in_table(key: &IpvsKey) -> Option<&TableKey<IpvsTable>> {
        match key {
            IpvsKey::Table(key) => Some(key),
            IpvsKey::Server(_) | IpvsKey::Address(_) => None,
        }
    }

    fn key_of_table(key: TableKey<IpvsTable>) -> IpvsKey {
        IpvsKey::Table(key)
    }

    /// A connection that isn't masqueraded any more needs a server without endpoints on other nodes. A verdict that takes the mark
    /// away is `accept`, or leads to one by way of source ranges that come with it.
    fn waiting(part: &Batch<Self>) -> HashSet<IpvsKey> {
        let unmarked_behind = |object: &Self| match object {
            Self::Table(TableObject::Element(ElementKey::Vip { map: VipMap::Restricted, at }, Value::Accept)) => {
                Some(*at)
            }
            _ => None,
        };
        let behind: HashSet<ServerId> = part.create.iter().filter_map(unmarked_behind).collect();
        let takes_mark = |object: &&Self| match object {
            Self::Table(TableObject::Element(_, Value::Accept)) => true,
            Self::Table(TableObject::Element(
                ElementKey::Vip { map: VipMap::Services, at },
                Value::Goto(ChainName::Restricted(_)),
            )) => behind.contains(at),
            _ => false,
        };
        part.replace.iter().filter(takes_mark).map(Object::key).collect()
    }
}

/// The key of an object of the table that several Services may use.
fn shared(object: &TableObject<IpvsTable>) -> Option<SharedKey> {
    match object {
        TableObject::Ranges(id, _) => Some(SharedKey::Sources(*id)),
        TableObject::Chain(ChainName::Restricted(id), _) => Some(SharedKey::Restricted(*id)),
        TableObject::Element(ElementKey::BoundIp(address), _) => Some(SharedKey::BoundIp(*address)),
        TableObject::Element(ElementKey::PingedIp(address), _) => Some(SharedKey::PingedIp(*address)),
        TableObject::Element(ElementKey::HealthPort(port), _) => Some(SharedKey::HealthPort(*port)),
        TableObject::Table(_) | TableObject::Set(_) | TableObject::Chain(..) | TableObject::Element(..) => None,
    }
}

impl fmt::Display for IpvsObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(object) => object.fmt(f),
            Self::Server(id, server) => write!(f, "virtual server {id} {server}"),
            Self::Address(address, Lifetime::Deprecated) => write!(f, "address {address} dev {DEVICE}"),
            Self::Address(address, Lifetime::Preferred) => write!(f, "address {address} dev {DEVICE} preferred"),
        }
    }
}

// === impl IpvsKey ===

impl fmt::Display for IpvsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(key) => key.fmt(f),
            Self::Server(id) => write!(f, "virtual server {id}"),
            Self::Address(address) => write!(f, "address {address} dev {DEVICE}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;
    use ferry_model::{Endpoint, Scheduler};
    use ferry_ruleset::read::TableOwner;
    use ferry_ruleset::table::SetName;

    use super::*;
    use crate::names::{FixedChain, FixedSet};
    use crate::server::{Listed, ServerSettings, Weighted};

    const MARK: Value = Value::Goto(ChainName::Fixed(FixedChain::MasqueradeExternal));

    fn restrict() -> Value {
        Value::Goto(ChainName::Restricted(SourcesId::of_digest(&[7; 32])))
    }

    fn element(map: VipMap, last: u8, value: Value) -> IpvsObject {
        let at = ServerId { protocol: Protocol::Tcp, address: [10, 96, 0, last].into(), port: 80 };
        IpvsObject::element(ElementKey::Vip { map, at }, value)
    }

    fn assert_waiting(create: &[IpvsObject], replace: &[IpvsObject], expected: &[&IpvsObject]) {
        let part = Batch { create: create.to_vec(), replace: replace.to_vec(), delete: Vec::new() };
        assert_eq!(IpvsObject::waiting(&part), expected.iter().map(|object| object.key()).collect(), "{part:?}");
    }

    fn server(endpoints: &[Weighted]) -> IpvsObject {
        let settings = ServerSettings { scheduler: Scheduler::Rr, persistence: None, altered: false };
        let id = ServerId { protocol: Protocol::Tcp, address: [10, 96, 0, 1].into(), port: 80 };
        IpvsObject::Server(id, VirtualServer { settings, endpoints: endpoints.into(), listed: Listed::default() })
    }

    #[test]
    fn an_object_has_a_key_a_rank_and_may_serve_a_frontend_or_be_shared() {
        let address = IpAddr::from([10, 96, 0, 1]);
        let set = TableObject::Set(SetName::Fixed(FixedSet::ServiceIps));
        let bound = TableObject::Element(ElementKey::BoundIp(address), Value::None);
        let (of_set, of_bound) = (set.key().to_string(), bound.key().to_string());
        let endpoint = Weighted { endpoint: Endpoint { address: [10, 244, 0, 1].into(), port: 8080 }, weight: 7 };
        let served = Some(Served::Frontend(Protocol::Tcp, FrontendAddr::Vip(address, 80)));
        let (in_set, on_device) = (Some(SharedKey::BoundIp(address)), Some(SharedKey::Address(address)));
        let (at, dev) = ("virtual server TCP 10.96.0.1:80", "address 10.96.0.1 dev kube-ipvs0");
        let empty = format!("{at} rr");
        let full = format!("{empty} -> 10.244.0.1:8080 weight 7");
        let preferred = format!("{dev} preferred");
        let (server_rank, address_rank) = (ELEMENT_RANK + 1, ELEMENT_RANK + 2);
        let of_address = |lifetime| IpvsObject::Address(address, lifetime);
        for (object, key, text, rank, shared, served) in [
            (IpvsObject::Table(set.clone()), &*of_set, &*set.to_string(), set.rank(), None, None),
            (IpvsObject::Table(bound.clone()), &*of_bound, &*bound.to_string(), ELEMENT_RANK, in_set, None),
            (server(&[]), at, &*empty, server_rank, None, None),
            (server(&[endpoint]), at, &*full, server_rank, None, served),
            (of_address(Lifetime::Deprecated), dev, dev, address_rank, on_device, None),
            (of_address(Lifetime::Preferred), dev, &*preferred, address_rank, on_device, None),
        ] {
            assert_eq!((&*object.key().to_string(), &*object.to_string()), (key, text));
            assert_eq!((object.rank(), object.shared(), object.serves()), (rank, shared, served), "{object}");
            let in_table = object.in_table().map(TableObject::key);
            assert_eq!(IpvsObject::key_in_table(&object.key()), in_table.as_ref(), "{object}");
        }
    }

    /// Packets are marked, restricted and refused before a server can take them, and an address becomes local when all is there.
    #[test]
    fn elements_come_before_servers_and_these_before_addresses() {
        let server = server(&[]);
        let address = IpvsObject::Address([10, 96, 0, 1].into(), Lifetime::Preferred);
        assert!(element(VipMap::Services, 1, MARK).rank() < server.rank() && server.rank() < address.rank());
    }

    /// Virtual servers and addresses stay when the table goes.
    #[test]
    fn only_the_table_contains_others() {
        let in_table = element(VipMap::Services, 1, MARK);
        let outside = IpvsObject::Address([10, 96, 0, 1].into(), Lifetime::Preferred);
        assert!(IpvsObject::Table(TableObject::Table(TableOwner::Ours)).is_container());
        assert!(!in_table.is_container() && !outside.is_container());
    }

    #[test]
    fn a_verdict_that_takes_the_mark_away_waits() {
        let (accepted, marked) = (element(VipMap::Services, 1, Value::Accept), element(VipMap::Services, 2, MARK));
        assert_waiting(&[], &[accepted.clone(), marked], &[&accepted]);
        let behind = element(VipMap::Restricted, 1, Value::Accept);
        assert_waiting(&[], std::slice::from_ref(&behind), &[&behind]);
    }

    #[test]
    fn source_ranges_that_come_wait_if_no_mark_is_behind_them() {
        let (services, restricted) = (
            |last| element(VipMap::Services, last, restrict()),
            |last, value| element(VipMap::Restricted, last, value),
        );
        let coming = [restricted(1, Value::Accept), restricted(2, MARK)];
        assert_waiting(&coming, &[services(1), services(2)], &[&services(1)]);
        // Other ranges: only the verdict behind them takes the mark away.
        let other = [services(1), restricted(1, Value::Accept)];
        assert_waiting(&[], &other, &[&other[1]]);
        // Nothing was served before.
        assert_waiting(&[services(1), restricted(1, Value::Accept)], &[], &[]);
    }
}
