//! Hints: narrow down the units that may want an object, from its key, so that a repair compiles few of them.

use std::net::IpAddr;

use ferry_api::object::Protocol;
use ferry_model::{FrontendAddr, PortState, ServiceState, SourceRanges};
use ferry_plane::Unit;
use ferry_ruleset::sources::SourcesId;
use ferry_ruleset::table::{ChainName, SetName, TableKey};

use crate::element::{ElementKey, IpvsTable};
use crate::object::IpvsKey;
use crate::server::ServerId;

/// A property shared by a key and the units that may want its object. A key with a hash in its name has two hints, so that hashes
/// are computed only if such a key is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// the base
    Base,
    /// a frontend
    Frontend(Protocol, FrontendAddr),
    /// a service address
    Address(IpAddr),
    /// the port of a health check
    HealthPort(u16),
    /// source ranges
    SourceRanges,
    /// these
    Sources(SourcesId),
}

/// Adds the hints of a key.
pub(crate) fn of_key(key: &IpvsKey, hints: &mut Vec<Hint>) {
    match key {
        IpvsKey::Table(key) => of_table(key, hints),
        // A node port has a server at each address of the node.
        IpvsKey::Server(at) => hints.extend([vip(*at), Hint::Frontend(at.protocol, FrontendAddr::NodePort(at.port))]),
        IpvsKey::Address(address) => hints.push(Hint::Address(*address)),
    }
}

fn of_table(key: &TableKey<IpvsTable>, hints: &mut Vec<Hint>) {
    match *key {
        TableKey::Table | TableKey::Set(SetName::Fixed(_)) | TableKey::Chain(ChainName::Fixed(_)) => {
            hints.push(Hint::Base);
        }
        TableKey::Set(SetName::Sources(id)) | TableKey::Chain(ChainName::Restricted(id)) => {
            hints.extend([Hint::SourceRanges, Hint::Sources(id)]);
        }
        TableKey::Element(ElementKey::BoundIp(address) | ElementKey::PingedIp(address)) => {
            hints.push(Hint::Address(address));
        }
        TableKey::Element(ElementKey::Vip { at, .. }) => hints.push(vip(at)),
        TableKey::Element(ElementKey::NodePort { protocol, port }) => {
            hints.push(Hint::Frontend(protocol, FrontendAddr::NodePort(port)));
        }
        TableKey::Element(ElementKey::HealthPort(port)) => hints.push(Hint::HealthPort(port)),
        TableKey::Element(ElementKey::NodePortIp(_) | ElementKey::SameOctet(_)) => hints.push(Hint::Base),
    }
}

fn vip(at: ServerId) -> Hint {
    Hint::Frontend(at.protocol, FrontendAddr::Vip(at.address, at.port))
}

/// True if the unit may want an object with hints that are asked for.
pub(crate) fn may_want(unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
    match unit {
        Unit::Base(_) => asked(&Hint::Base),
        Unit::Service(service) => of_service(service, asked),
    }
}

fn of_service(service: &ServiceState, asked: &dyn Fn(&Hint) -> bool) -> bool {
    service.health_check.is_some_and(|check| asked(&Hint::HealthPort(check.port.get())))
        || service.ports.iter().any(|port| of_port(port, asked))
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

#[cfg(test)]
mod tests {
    use ferry_api::object::{Family, IpNet};
    use ferry_conformance::states;
    use ferry_model::{Frontend, FrontendKind};

    use super::*;

    #[test]
    fn source_ranges_lead_to_the_services_that_have_them() {
        let at = FrontendAddr::Vip(states::address(Family::V4, 96, 1), 80);
        let any = states::frontend(FrontendKind::LoadBalancer, at, states::EXTERNAL);
        let range: IpNet = "192.0.2.0/24".parse().unwrap();
        let sources = SourceRanges::Only([range].into());
        let id = SourcesId::of(&sources).unwrap();
        let of = |frontend| {
            let pool = states::pool(Family::V4, &[1]);
            states::service("web", vec![states::port(Protocol::Tcp, pool.clone(), pool, vec![frontend])]).1.unwrap()
        };
        let restricted = of(Frontend { sources, ..any.clone() });
        let any = of(any);
        let these = |hint: &Hint| [Hint::SourceRanges, Hint::Sources(id)].contains(hint);
        assert!(may_want(&restricted, &these) && !may_want(&any, &these));
        assert!(!may_want(&restricted, &|hint| *hint == Hint::SourceRanges), "others");
        assert!(may_want(&any, &|hint| *hint == Hint::Frontend(Protocol::Tcp, at)));
    }
}
