//! Maps a frontend's treatment to the elements that implement it: kind of pick chain, scope and first slot, or a refusal.

use ferry_model::{Action, Frontend, FrontendAddr, MAX_COPIES, Pool, PortState, Scope, Snat, SourceRanges, Treatment};

use crate::names::{ChainName, FixedChain, LOCAL_SLOTS, Pick};
use crate::object::Value;

/// The way in which a frontend is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// all clients use the same pool, from slot 0 on
    One(Pick, Scope),
    /// policy Local: pods and this node use all endpoints, from slot 0 on
    Split {
        /// true if others use the Local endpoints, from slot `LOCAL_SLOTS` on; otherwise they are dropped
        served: bool,
    },
    /// all clients are dropped or rejected
    Refuse(Value),
    /// left alone: no verdict
    Pass,
}

/// The number of slots that a pool fills.
pub(crate) fn count(pool: &Pool) -> u32 {
    u32::try_from(pool.len()).unwrap_or(LOCAL_SLOTS).min(LOCAL_SLOTS)
}

// === impl Shape ===

impl Shape {
    pub(crate) fn of(frontend: &Frontend) -> Self {
        Self::known(frontend).unwrap_or_else(|| {
            debug_assert!(false, "no chain does {:?}", frontend.treatment);
            Self::Refuse(Value::Drop)
        })
    }

    /// `None`: a treatment that this mode's profile never yields; a test checks that.
    fn known(frontend: &Frontend) -> Option<Self> {
        use Action::{Drop, Forward, Pass, Reject};
        use Snat::{Keep, Masquerade};
        let Treatment { pod, host, other } = frontend.treatment;
        let node_port = matches!(frontend.at, FrontendAddr::NodePort(_));
        let choose = |vip, at_node| if node_port { at_node } else { vip };
        let same = pod == host && pod == other;
        let shape = match (pod, host, other) {
            (Pass, ..) if same => Self::Pass,
            _ if matches!(&frontend.sources, SourceRanges::Only(ranges) if ranges.is_empty()) => {
                Self::Refuse(Value::Drop)
            }
            (Reject, ..) if same => Self::Refuse(Value::Goto(ChainName::Fixed(FixedChain::Reject))),
            (Drop, ..) if same => Self::Refuse(Value::Drop),
            (Forward { to, snat: Masquerade }, ..) if same => Self::One(choose(Pick::External, Pick::NodePort), to),
            (Forward { to, snat: Keep }, ..) if same => Self::One(choose(Pick::Forward, Pick::NodePortForward), to),
            (
                Forward { to, snat: Keep },
                Forward { to: host, snat: Masquerade },
                Forward { to: other, snat: Masquerade },
            ) if to == host && to == other && !node_port => Self::One(Pick::Internal, to),
            // Without a local detector pods get the treatment of other sources.
            (pod, Forward { to: Scope::Cluster, snat: Masquerade }, other)
                if pod == (Forward { to: Scope::Cluster, snat: Keep }) || pod == other =>
            {
                match other {
                    Forward { to: Scope::Local, snat: Keep } => Self::Split { served: true },
                    Drop => Self::Split { served: false },
                    Forward { .. } | Reject | Pass => return None,
                }
            }
            _ => return None,
        };
        Some(shape)
    }

    pub(crate) fn uses(self, scope: Scope) -> bool {
        match self {
            Self::One(_, used) => used == scope,
            Self::Split { served } => scope == Scope::Cluster || served,
            Self::Refuse(_) | Self::Pass => false,
        }
    }
}

/// True if the frontends of a port share a pool; otherwise each has slots of its own.
///
/// The slots of a frontend need no chain or set of their own, but a changed endpoint is a change for each frontend. The number
/// of endpoints doesn't matter: a port changes from one form to the other only with a change of its Service.
pub(crate) fn is_pooled(port: &PortState) -> bool {
    port.frontends.len() > MAX_COPIES
}

/// First slot of a scope in a pool.
pub(crate) fn first_of_scope(scope: Scope) -> u32 {
    match scope {
        Scope::Cluster => 0,
        Scope::Local => LOCAL_SLOTS,
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{Family, IpNet};
    use ferry_conformance::states;
    use ferry_model::FrontendKind;

    use super::*;

    const CLUSTER: Action = Action::Forward { to: Scope::Cluster, snat: Snat::Keep };
    const MASQUERADED: Action = Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade };
    const LOCAL: Action = Action::Forward { to: Scope::Local, snat: Snat::Keep };
    const MASQUERADED_LOCAL: Action = Action::Forward { to: Scope::Local, snat: Snat::Masquerade };

    /// Shapes of a VIP and of a node port whose pods, host and other sources are treated so.
    fn shapes([pod, host, other]: [Action; 3]) -> [Option<Shape>; 2] {
        let vip = FrontendAddr::Vip(states::address(Family::V4, 96, 1), 80);
        let treatment = Treatment { pod, host, other };
        [(FrontendKind::ExternalIp, vip), (FrontendKind::NodePort, FrontendAddr::NodePort(30080))]
            .map(|(kind, at)| Shape::known(&states::frontend(kind, at, treatment)))
    }

    #[test]
    fn each_treatment_has_a_shape() {
        let reject = Value::Goto(ChainName::Fixed(FixedChain::Reject));
        for (treatment, vip, node_port) in [
            ([Action::Pass; 3], Shape::Pass, Shape::Pass),
            ([Action::Reject; 3], Shape::Refuse(reject), Shape::Refuse(reject)),
            ([Action::Drop; 3], Shape::Refuse(Value::Drop), Shape::Refuse(Value::Drop)),
            ([MASQUERADED; 3], Shape::One(Pick::External, Scope::Cluster), Shape::One(Pick::NodePort, Scope::Cluster)),
            ([LOCAL; 3], Shape::One(Pick::Forward, Scope::Local), Shape::One(Pick::NodePortForward, Scope::Local)),
            ([CLUSTER, MASQUERADED, LOCAL], Shape::Split { served: true }, Shape::Split { served: true }),
            ([LOCAL, MASQUERADED, LOCAL], Shape::Split { served: true }, Shape::Split { served: true }),
            ([CLUSTER, MASQUERADED, Action::Drop], Shape::Split { served: false }, Shape::Split { served: false }),
            ([Action::Drop, MASQUERADED, Action::Drop], Shape::Split { served: false }, Shape::Split { served: false }),
        ] {
            assert_eq!(shapes(treatment), [Some(vip), Some(node_port)], "{treatment:?}");
        }
        for (treatment, scope) in [
            ([CLUSTER, MASQUERADED, MASQUERADED], Scope::Cluster),
            ([LOCAL, MASQUERADED_LOCAL, MASQUERADED_LOCAL], Scope::Local),
        ] {
            assert_eq!(shapes(treatment), [Some(Shape::One(Pick::Internal, scope)), None], "{treatment:?}");
        }
    }

    #[test]
    fn other_treatments_have_no_shape() {
        for treatment in [
            [Action::Pass, Action::Pass, Action::Reject],
            [Action::Reject, Action::Pass, Action::Reject],
            [Action::Drop, Action::Drop, LOCAL],
            [MASQUERADED, MASQUERADED_LOCAL, MASQUERADED],
            [CLUSTER, CLUSTER, MASQUERADED],
            [CLUSTER, MASQUERADED_LOCAL, MASQUERADED],
            [CLUSTER, MASQUERADED, MASQUERADED_LOCAL],
            [CLUSTER, MASQUERADED_LOCAL, MASQUERADED_LOCAL],
            [MASQUERADED, MASQUERADED, LOCAL],
            [LOCAL, MASQUERADED, Action::Drop],
            [CLUSTER, MASQUERADED, Action::Reject],
        ] {
            assert_eq!(shapes(treatment), [None; 2], "{treatment:?}");
        }
    }

    #[test]
    fn a_frontend_that_admits_no_source_drops_all() {
        let at = FrontendAddr::Vip(states::address(Family::V4, 96, 1), 80);
        let frontend = states::frontend(FrontendKind::LoadBalancer, at, states::EXTERNAL);
        let range: IpNet = "192.0.2.0/24".parse().unwrap();
        for (ranges, shape) in
            [(vec![], Shape::Refuse(Value::Drop)), (vec![range], Shape::One(Pick::External, Scope::Cluster))]
        {
            let sources = SourceRanges::Only(ranges.into());
            assert_eq!(Shape::of(&Frontend { sources, ..frontend.clone() }), shape);
        }
    }
}
