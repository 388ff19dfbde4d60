//! Hints: narrow down the units that may want an object, from its key, so that a repair compiles few of them.

use std::net::IpAddr;

use ferry_api::object::{ObjectName, Protocol};
use ferry_model::FrontendAddr;
use ferry_plane::Unit;

use super::object::BindKey;

/// A property shared by a key and the units that may want its object.
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
}

/// Adds the hints of a key.
pub(super) fn of_key(key: &BindKey, hints: &mut Vec<Hint>) {
    match key {
        BindKey::Origins => hints.push(Hint::Base),
        BindKey::Port(id) => hints.push(Hint::Service(id.service.clone())),
        BindKey::Address(address) => hints.push(Hint::Address(*address)),
        // It may be of a node port at an address of the node.
        BindKey::Listener(place) => hints.extend(
            [FrontendAddr::Vip(place.address, place.port), FrontendAddr::NodePort(place.port)]
                .map(|at| Hint::Frontend(place.protocol, at)),
        ),
    }
}

/// True if the unit may want an object with hints that are asked for.
pub(super) fn may_want(unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
    let Unit::Service(service) = unit else { return asked(&Hint::Base) };
    let frontends =
        service.ports.iter().flat_map(|port| port.frontends.iter().map(|frontend| (port.protocol, frontend.at)));
    let wants = |(protocol, at)| {
        asked(&Hint::Frontend(protocol, at)) || matches!(at, FrontendAddr::Vip(vip, _) if asked(&Hint::Address(vip)))
    };
    asked(&Hint::Service(service.name.clone())) || frontends.into_iter().any(wants)
}
