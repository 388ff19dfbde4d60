//! Hints: narrow down the units that may want an object, from its key, so that a repair compiles few of them.

use ferry_api::object::{Family, Protocol};
use ferry_kernel::iptables::IptablesChainName;
use ferry_model::{FrontendAddr, PortState, Scope, ServiceState};
use ferry_plane::Unit;

use crate::names::{self, Class, PortNames};
use crate::object::{IptKey, OwnedRulesKey, RuleOwner};
use crate::place;

/// A property shared by a key and the units that may want its object. The key of a Service's chain or set has two hints, so that
/// hashes are computed only if such a key is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// an object of the base, or one that no unit wants
    Base,
    /// a frontend
    Frontend(Protocol, FrontendAddr),
    /// health checks on this port
    HealthCheck(u16),
    /// a chain of a Service's port
    OfPort,
    /// a chain of an endpoint
    OfEndpoint,
    /// a set of a Service's source ranges
    OfSources,
    /// the chain, or the set, with this name
    Named(IptablesChainName),
}

/// Adds the hints of a key.
pub(crate) fn of_key(key: &IptKey, hints: &mut Vec<Hint>) {
    match key {
        IptKey::Chain(id) => match Class::of(id.name) {
            Some(Class::Cluster | Class::Local | Class::External | Class::Firewall) => {
                hints.extend([Hint::OfPort, Hint::Named(id.name)]);
            }
            Some(Class::Endpoint) => hints.extend([Hint::OfEndpoint, Hint::Named(id.name)]),
            Some(Class::Fixed | Class::Shared) | None => hints.push(Hint::Base),
        },
        IptKey::OwnedRules(OwnedRulesKey { owner, .. }) => hints.push(match *owner {
            RuleOwner::Vip(address, port, protocol) => Hint::Frontend(protocol, FrontendAddr::Vip(address, port)),
            RuleOwner::NodePort(port, protocol) => Hint::Frontend(protocol, FrontendAddr::NodePort(port)),
            RuleOwner::HealthCheck(port, _) => Hint::HealthCheck(port),
            RuleOwner::NodePorts(_) | RuleOwner::Jump(_) | RuleOwner::Guard => Hint::Base,
        }),
        IptKey::SourceSet(name) => hints.extend([Hint::OfSources, Hint::Named(*name)]),
        IptKey::SharedChain(_) | IptKey::RouteLocalnet | IptKey::ForeignRule(..) => hints.push(Hint::Base),
    }
}

/// True if the unit may want an object with hints that are asked for.
pub(crate) fn may_want(unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
    match unit {
        Unit::Base(_) => asked(&Hint::Base),
        Unit::Service(service) => {
            let is_named = |set: IptablesChainName| asked(&Hint::Named(set));
            service.health_check.is_some_and(|check| asked(&Hint::HealthCheck(check.port.get())))
                || asked(&Hint::OfSources)
                    && Family::ALL.into_iter().any(|family| is_named(names::sources(&service.name, family)))
                || service.ports.iter().any(|port| of_port(service, port, asked))
        }
    }
}

fn of_port(service: &ServiceState, port: &PortState, asked: &dyn Fn(&Hint) -> bool) -> bool {
    if port.frontends.iter().any(|frontend| asked(&Hint::Frontend(port.protocol, frontend.at))) {
        return true;
    }
    let (of_port, of_endpoint) = (asked(&Hint::OfPort), asked(&Hint::OfEndpoint));
    if !of_port && !of_endpoint {
        return false;
    }
    let names = PortNames::new(&service.name, &port.name, port.protocol);
    let is_asked = |chain: IptablesChainName| asked(&Hint::Named(chain));
    let mut endpoints = [Scope::Cluster, Scope::Local].into_iter().flat_map(|scope| port.pool(scope).0.iter());
    of_port && [names.cluster(), names.local(), names.external(), names.firewall()].into_iter().any(is_asked)
        || of_endpoint && endpoints.any(|endpoint| is_asked(names.endpoint(&place::text(endpoint))))
}
