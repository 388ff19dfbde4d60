//! Maps a frontend's treatment to the verdict of its element, and to the scopes of the endpoints that it leads to.

use ferry_model::{Action, Frontend, Scope, SourceRanges, Treatment};
use ferry_ruleset::table::ChainName;

use super::element::Value;
use super::names::FixedChain;

/// The way in which a frontend is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// the verdict on the first packet of a connection, source ranges aside
    pub(crate) verdict: Value,
    /// the scopes that it may lead to
    pub(crate) scopes: &'static [Scope],
}

// === impl Shape ===

impl Shape {
    /// `None`: packets pass by the frontend.
    pub(crate) fn of(frontend: &Frontend) -> Option<Self> {
        // No source is admitted.
        if matches!(&frontend.sources, SourceRanges::Only(ranges) if ranges.is_empty()) {
            return Some(Self { verdict: Value::Drop, scopes: &[] });
        }
        let Treatment { pod, host, other } = frontend.treatment;
        // Without a detector, pods are others.
        debug_assert!(is_like(pod, host) || is_like(pod, other), "no chain does {:?}", frontend.treatment);
        let goto = |chain, scopes| Some(Self { verdict: Value::Goto(ChainName::Fixed(chain)), scopes });
        match (scope(host), scope(other)) {
            (Some(Scope::Cluster), Some(Scope::Cluster)) => goto(FixedChain::RelayCluster, &[Scope::Cluster]),
            (Some(Scope::Local), Some(Scope::Local)) => goto(FixedChain::RelayLocal, &[Scope::Local]),
            (Some(Scope::Cluster), Some(Scope::Local)) => goto(FixedChain::ByOrigin, &[Scope::Cluster, Scope::Local]),
            (Some(Scope::Cluster), None) if other == Action::Drop => goto(FixedChain::InsideOnly, &[Scope::Cluster]),
            (None, Some(Scope::Local)) if host == Action::Drop => goto(FixedChain::OutsideOnly, &[Scope::Local]),
            (None, None) if is_like(host, other) => match host {
                Action::Pass => None,
                Action::Reject => goto(FixedChain::Reject, &[]),
                Action::Drop | Action::Forward { .. } => Some(Self { verdict: Value::Drop, scopes: &[] }),
            },
            _ => {
                debug_assert!(false, "no chain does {:?}", frontend.treatment);
                Some(Self { verdict: Value::Drop, scopes: &[] })
            }
        }
    }
}

/// True if both are the same to a relay, whose connections are the node's.
fn is_like(one: Action, other: Action) -> bool {
    scope(one) == scope(other) && std::mem::discriminant(&one) == std::mem::discriminant(&other)
}

fn scope(action: Action) -> Option<Scope> {
    match action {
        Action::Forward { to, .. } => Some(to),
        Action::Drop | Action::Reject | Action::Pass => None,
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{Family, IpNet};
    use ferry_conformance::states;
    use ferry_model::{FrontendAddr, FrontendKind, Snat};

    use super::*;

    const CLUSTER: Action = Action::Forward { to: Scope::Cluster, snat: Snat::Keep };
    const MASQUERADED: Action = Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade };
    const LOCAL: Action = Action::Forward { to: Scope::Local, snat: Snat::Keep };

    fn frontend(pod: Action, host: Action, other: Action) -> Frontend {
        let at = FrontendAddr::Vip(states::address(Family::V4, 96, 1), 80);
        states::frontend(FrontendKind::ExternalIp, at, Treatment { pod, host, other })
    }

    #[test]
    fn each_treatment_has_a_chain_or_a_verdict() {
        let both = &[Scope::Cluster, Scope::Local];
        for (treatment, chain, scopes) in [
            ([CLUSTER, MASQUERADED, CLUSTER], FixedChain::RelayCluster, &both[..1]),
            ([LOCAL, LOCAL, LOCAL], FixedChain::RelayLocal, &both[1..]),
            ([CLUSTER, MASQUERADED, LOCAL], FixedChain::ByOrigin, both),
            ([CLUSTER, MASQUERADED, Action::Drop], FixedChain::InsideOnly, &both[..1]),
            ([Action::Drop, Action::Drop, LOCAL], FixedChain::OutsideOnly, &both[1..]),
            ([Action::Reject; 3], FixedChain::Reject, &[]),
        ] {
            let [pod, host, other] = treatment;
            let shape = Shape::of(&frontend(pod, host, other)).unwrap();
            assert_eq!((shape.verdict, shape.scopes), (Value::Goto(ChainName::Fixed(chain)), scopes));
        }
        let dropped = Some(Shape { verdict: Value::Drop, scopes: &[] });
        assert_eq!(Shape::of(&frontend(Action::Drop, Action::Drop, Action::Drop)), dropped);
        assert_eq!(Shape::of(&frontend(Action::Pass, Action::Pass, Action::Pass)), None);
        let nobody = Frontend { sources: SourceRanges::Only([].into()), ..frontend(CLUSTER, CLUSTER, CLUSTER) };
        assert_eq!(Shape::of(&nobody), dropped);
        let range: IpNet = "192.0.2.0/24".parse().unwrap();
        let some = Frontend { sources: SourceRanges::Only([range].into()), ..nobody };
        assert_ne!(Shape::of(&some), dropped);
    }

    #[test]
    fn a_relay_never_keeps_the_source_address() {
        assert!(is_like(CLUSTER, MASQUERADED) && is_like(Action::Drop, Action::Drop));
        for (one, other) in [(CLUSTER, LOCAL), (CLUSTER, Action::Drop), (Action::Drop, Action::Reject)] {
            assert!(!is_like(one, other) && !is_like(other, one), "{one:?} {other:?}");
        }
    }
}
