//! Hints: narrow down the units that may want an object, from its key, so that a repair compiles few of them.

use std::net::IpAddr;

use ferry_api::object::{ObjectName, Protocol};
use ferry_model::{FrontendAddr, PortState, SourceRanges};
use ferry_plane::Unit;
use ferry_ruleset::sources::SourcesId;
use ferry_ruleset::table::{ChainName, SetName, TableKey};

use super::element::{Door, ElementKey, Entrance};
use super::object::UserspaceKey;

/// A property shared by a key and the units that may want its object. A key with a hash in its name has two hints, so that hashes
/// are computed only if such a key is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// the base
    Base,
    /// a Service
    Service(ObjectName),
    /// a frontend
    Frontend(Protocol, FrontendAddr),
    /// a service address
    Address(IpAddr),
    /// source ranges
    SourceRanges,
    /// these
    Sources(SourcesId),
}

/// Adds the hints of a key.
pub(crate) fn of_key(key: &UserspaceKey, hints: &mut Vec<Hint>) {
    match key {
        UserspaceKey::Port(id) => hints.push(Hint::Service(id.service.clone())),
        UserspaceKey::Listener(door) => hints.push(of_door(door)),
        UserspaceKey::Route(_, at) => hints.push(Hint::Frontend(Protocol::Tcp, *at)),
        UserspaceKey::Table(TableKey::Element(key)) => hints.push(of_element(key)),
        UserspaceKey::Table(TableKey::Set(SetName::Sources(id)) | TableKey::Chain(ChainName::Restricted(id))) => {
            hints.extend([Hint::SourceRanges, Hint::Sources(*id)]);
        }
        UserspaceKey::Table(
            TableKey::Table | TableKey::Set(SetName::Fixed(_)) | TableKey::Chain(ChainName::Fixed(_)),
        ) => hints.push(Hint::Base),
    }
}

fn of_element(key: &ElementKey) -> Hint {
    match key {
        ElementKey::Vip { protocol, address, port, .. } => {
            Hint::Frontend(*protocol, FrontendAddr::Vip(*address, *port))
        }
        ElementKey::NodePort { protocol, port } => Hint::Frontend(*protocol, FrontendAddr::NodePort(*port)),
        ElementKey::Datagrams(_, at) => Hint::Frontend(Protocol::Udp, *at),
        ElementKey::ClusterIp(address) => Hint::Address(*address),
        ElementKey::Listener(Entrance::Of(door)) => of_door(door),
        ElementKey::NodePortIp(_) | ElementKey::Gate(_) | ElementKey::Listener(Entrance::Unknown(..)) => Hint::Base,
    }
}

fn of_door(door: &Door) -> Hint {
    match door {
        Door::Gate(_) => Hint::Base,
        Door::Datagrams(port) => Hint::Service(port.service.clone()),
    }
}

/// True if the unit may want an object with hints that are asked for.
pub(crate) fn may_want(unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
    match unit {
        Unit::Base(_) => asked(&Hint::Base),
        Unit::Service(service) => {
            asked(&Hint::Service(service.name.clone())) || service.ports.iter().any(|port| of_port(port, asked))
        }
    }
}

fn of_port(port: &PortState, asked: &dyn Fn(&Hint) -> bool) -> bool {
    let is_address = |at| matches!(at, FrontendAddr::Vip(vip, _) if asked(&Hint::Address(vip)));
    let sources = |ranges: &SourceRanges| SourcesId::of(ranges).is_some_and(|id| asked(&Hint::Sources(id)));
    port.frontends.iter().any(|frontend| {
        asked(&Hint::Frontend(port.protocol, frontend.at))
            || is_address(frontend.at)
            || asked(&Hint::SourceRanges) && sources(&frontend.sources)
    })
}
