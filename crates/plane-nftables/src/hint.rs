//! Hints: narrow down the units that may want an object, from its key, so that a repair compiles few of them.

use std::net::IpAddr;

use ferry_api::object::Protocol;
use ferry_model::{FrontendAddr, FrontendKind, PortState, Scope, ServiceState, SourceRanges};
use ferry_plane::Unit;
use ferry_ruleset::sources::SourcesId;

use crate::names::{ChainName, Pick, PortId, SetName};
use crate::object::{ElementKey, NftKey};
use crate::shape::{Shape, count, is_pooled};

/// A property shared by a key and the units that may want its object. A key with a hash in its name has two hints, so that hashes
/// are computed only if such a key is asked for; likewise for other properties that are expensive to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// the base
    Base,
    /// a frontend
    Frontend(Protocol, FrontendAddr),
    /// a cluster IP
    ClusterIp(IpAddr),
    /// a pool of this number of endpoints
    Endpoints(u32),
    /// the pick chain of this kind and number of endpoints
    Pick(Pick, u32),
    /// a port with chains or sets of its own
    OwnNames,
    /// this one
    Port(PortId),
    /// source ranges
    SourceRanges,
    /// these
    Sources(SourcesId),
}

/// Adds the hints of a key.
pub(crate) fn of_key(key: &NftKey, hints: &mut Vec<Hint>) {
    let port = |id: PortId| [Hint::OwnNames, Hint::Port(id)];
    let sources = |id: SourcesId| [Hint::SourceRanges, Hint::Sources(id)];
    match *key {
        NftKey::Table | NftKey::Set(SetName::Fixed(_)) | NftKey::Chain(ChainName::Fixed(_)) => hints.push(Hint::Base),
        NftKey::Set(SetName::Affinity(id, _) | SetName::Members(id, _) | SetName::Pool(id))
        | NftKey::Chain(ChainName::Pool(_, _, id) | ChainName::Affinity(_, _, id) | ChainName::Record(id)) => {
            hints.extend(port(id));
        }
        NftKey::Set(SetName::Sources(id)) | NftKey::Chain(ChainName::Restricted(id)) => hints.extend(sources(id)),
        NftKey::Chain(ChainName::Pick(pick, count)) => {
            hints.extend([Hint::Endpoints(count), Hint::Pick(pick, count)]);
        }
        NftKey::Element(element) => match element {
            ElementKey::PoolSlot { id, .. } | ElementKey::Member { id, .. } => hints.extend(port(id)),
            ElementKey::Slot { vip, protocol, port, .. }
            | ElementKey::Vip { vip, protocol, port, .. }
            | ElementKey::Record { protocol, vip, port } => {
                hints.push(Hint::Frontend(protocol, FrontendAddr::Vip(vip, port)));
            }
            ElementKey::NodePortSlot { protocol, port, .. }
            | ElementKey::NodePort { protocol, port, .. }
            | ElementKey::RecordNodePort { protocol, port } => {
                hints.push(Hint::Frontend(protocol, FrontendAddr::NodePort(port)));
            }
            ElementKey::ClusterIp(address) => hints.push(Hint::ClusterIp(address)),
            ElementKey::NodePortIp(_) | ElementKey::SameOctet(_) => hints.push(Hint::Base),
        },
    }
}

/// True if the unit may want an object with hints that are asked for.
pub(crate) fn may_want(unit: &Unit, asked: &dyn Fn(&Hint) -> bool) -> bool {
    match unit {
        Unit::Base(_) => asked(&Hint::Base),
        Unit::Service(service) => service.ports.iter().any(|port| of_port(service, port, asked)),
    }
}

fn of_port(service: &ServiceState, port: &PortState, asked: &dyn Fn(&Hint) -> bool) -> bool {
    let has_names = port.affinity.is_some() || is_pooled(port);
    let own = || asked(&Hint::Port(PortId::new(&service.name, port.protocol, &port.name)));
    let sources = |ranges: &SourceRanges| SourcesId::of(ranges).is_some_and(|id| asked(&Hint::Sources(id)));
    let is_cluster_ip = |at| matches!(at, FrontendAddr::Vip(vip, _) if asked(&Hint::ClusterIp(vip)));
    has_names && asked(&Hint::OwnNames) && own()
        || port.frontends.iter().any(|frontend| {
            asked(&Hint::Frontend(port.protocol, frontend.at))
                || frontend.kind == FrontendKind::ClusterIp && is_cluster_ip(frontend.at)
        })
        || asked(&Hint::SourceRanges) && port.frontends.iter().any(|frontend| sources(&frontend.sources))
        || [Scope::Cluster, Scope::Local].into_iter().any(|scope| picks(port, scope, asked))
}

/// True if a chain is asked for that picks from the pool of this scope.
fn picks(port: &PortState, scope: Scope, asked: &dyn Fn(&Hint) -> bool) -> bool {
    let count = count(port.pool(scope));
    let is_asked =
        |pick: Pick| asked(&Hint::Pick(if port.affinity.is_some() { pick.without_mark() } else { pick }, count));
    !is_pooled(port)
        && asked(&Hint::Endpoints(count))
        && port.frontends.iter().any(|frontend| match (Shape::of(frontend), scope) {
            (Shape::One(pick, _), _) => is_asked(pick),
            (Shape::Split { .. }, Scope::Cluster) => is_asked(Pick::Forward) || is_asked(Pick::NodePortForward),
            (Shape::Split { .. }, Scope::Local) => is_asked(Pick::Local) || is_asked(Pick::NodePortLocal),
            (Shape::Refuse(_) | Shape::Pass, _) => false,
        })
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{Family, ObjectName};
    use ferry_conformance::states;
    use ferry_model::{Affinity, Frontend, MAX_COPIES, Pool};

    use super::*;

    /// A port with so many external frontends and three endpoints.
    fn port(frontends: usize) -> PortState {
        let at = |last| FrontendAddr::Vip(states::address(Family::V4, 96, last), 80);
        let external = |last| states::frontend(FrontendKind::ExternalIp, at(last), states::EXTERNAL);
        let frontends: Vec<Frontend> = (1..=9).map(external).take(frontends).collect();
        states::port(Protocol::Tcp, states::pool(Family::V4, &[1, 2, 3]), Pool::default(), frontends)
    }

    /// True if the service demo/web with this port is searched for the object.
    fn is_searched(port: PortState, key: NftKey) -> bool {
        let (_, unit) = states::service("web", vec![port]);
        let mut hints = Vec::new();
        of_key(&key, &mut hints);
        may_want(&unit.unwrap(), &|hint| hints.contains(hint))
    }

    #[test]
    fn a_pick_chain_is_searched_where_its_kind_and_count_are_wanted() {
        let is_searched =
            |frontends, pick, count| is_searched(port(frontends), NftKey::Chain(ChainName::Pick(pick, count)));
        assert!(is_searched(2, Pick::External, 3));
        assert!(!is_searched(2, Pick::External, 4), "another number of endpoints");
        assert!(!is_searched(2, Pick::Internal, 3), "another kind");
        assert!(!is_searched(0, Pick::External, 3), "no frontend");
        assert!(
            !is_searched(MAX_COPIES + 1, Pick::External, 3),
            "frontends that share a pool have chains of their own"
        );
    }

    #[test]
    fn chains_and_sets_of_a_port_are_searched_where_it_has_some() {
        let id = |name| PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, name);
        let keys = |id| {
            [
                NftKey::Set(SetName::Affinity(id, Scope::Cluster)),
                NftKey::Set(SetName::Members(id, Scope::Local)),
                NftKey::Set(SetName::Pool(id)),
                NftKey::Chain(ChainName::Pool(Pick::Forward, Scope::Cluster, id)),
                NftKey::Chain(ChainName::Affinity(Pick::External, Scope::Cluster, id)),
                NftKey::Chain(ChainName::Record(id)),
                NftKey::Element(ElementKey::PoolSlot { id, slot: 0 }),
            ]
        };
        let sticky = || PortState { affinity: Affinity::new(60), ..port(2) };
        for (of_this, of_another) in keys(id("http")).into_iter().zip(keys(id("https"))) {
            assert!(!is_searched(port(2), of_this), "{of_this}: neither affinity nor a pool");
            for own in [sticky, || port(MAX_COPIES + 1)] {
                assert!(is_searched(own(), of_this), "{of_this}");
                assert!(!is_searched(own(), of_another), "{of_another}: of another port");
            }
        }
    }
}
