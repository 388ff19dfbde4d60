//! Maps a frontend's treatment to the chain that implements it, or to a refusal.

use ferry_model::{Action, Frontend, FrontendKind, Scope, Snat, Treatment};

/// The way in which a frontend is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// a cluster IP: all clients use the same pool
    Internal(Scope, Masquerade),
    /// through the external chain
    External(External),
    /// all clients are dropped or rejected
    Refuse(RefusalAction),
    /// left alone: no rule
    Pass,
}

/// Clients of a cluster IP that are masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Masquerade {
    Nobody,
    /// clients that are no pods of this node
    Others,
    Everybody,
}

/// Treatment of packets in the external chain of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum External {
    /// all clients are masqueraded and use the Cluster pool
    Cluster,
    /// policy Local: this node itself uses the Cluster pool
    Local {
        /// true if pods of this node use it too
        pods: bool,
        /// true if others use the Local pool; otherwise they are dropped
        served: bool,
    },
}

/// Way of refusing packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalAction {
    /// dropped: endpoints exist, but none for these clients
    Drop,
    /// rejected: no endpoint exists
    Reject,
}

// === impl Shape ===

impl Shape {
    pub(crate) fn of(frontend: &Frontend) -> Self {
        let treatment = &frontend.treatment;
        match (treatment.pod, treatment.host, treatment.other) {
            (Action::Drop, Action::Drop, Action::Drop) => return Self::Refuse(RefusalAction::Drop),
            // The hooks with the rule don't see packets of this node, so both are the same.
            (Action::Reject, Action::Reject | Action::Pass, Action::Reject) => {
                return Self::Refuse(RefusalAction::Reject);
            }
            (Action::Pass, Action::Pass, Action::Pass) => return Self::Pass,
            _ => {}
        }
        let served = match frontend.kind {
            FrontendKind::ClusterIp => Self::internal(treatment),
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer | FrontendKind::NodePort => Self::external(treatment),
        };
        // This mode's profile yields no other treatment; tests check that.
        debug_assert!(served.is_some(), "no chain does {treatment:?}");
        served.unwrap_or(Self::Refuse(RefusalAction::Drop))
    }

    fn internal(treatment: &Treatment) -> Option<Self> {
        let Action::Forward { to, snat: of_pods } = treatment.pod else { return None };
        let Action::Forward { to: of_host, snat } = treatment.host else { return None };
        let masquerade = match (of_pods, snat) {
            (Snat::Keep, Snat::Keep) => Masquerade::Nobody,
            (Snat::Keep, Snat::Masquerade) => Masquerade::Others,
            (Snat::Masquerade, Snat::Masquerade) => Masquerade::Everybody,
            (Snat::Masquerade, Snat::Keep) => return None,
        };
        (to == of_host && treatment.host == treatment.other).then_some(Self::Internal(to, masquerade))
    }

    fn external(treatment: &Treatment) -> Option<Self> {
        let all = |snat| Action::Forward { to: Scope::Cluster, snat };
        if *treatment == Treatment::all(all(Snat::Masquerade)) {
            return Some(Self::External(External::Cluster));
        }
        let pods = treatment.pod == all(Snat::Keep);
        let served = treatment.other == Action::Forward { to: Scope::Local, snat: Snat::Keep };
        let is_local = (pods || treatment.pod == treatment.other)
            && treatment.host == all(Snat::Masquerade)
            && (served || treatment.other == Action::Drop);
        is_local.then_some(Self::External(External::Local { pods, served }))
    }

    /// True if it leads to the pool of this scope.
    pub(crate) fn uses(self, scope: Scope) -> bool {
        match self {
            Self::Internal(to, _) => to == scope,
            Self::External(External::Cluster | External::Local { served: false, .. }) => scope == Scope::Cluster,
            Self::External(External::Local { served: true, .. }) => true,
            Self::Refuse(_) | Self::Pass => false,
        }
    }

    /// The refusal of clients that get no endpoint.
    pub(crate) fn refusal(self) -> Option<RefusalAction> {
        match self {
            Self::Refuse(refusal) => Some(refusal),
            Self::External(External::Local { served: false, .. }) => Some(RefusalAction::Drop),
            Self::External(External::Cluster | External::Local { served: true, .. })
            | Self::Internal(..)
            | Self::Pass => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_model::{FrontendAddr, SourceRanges};

    use super::*;

    const fn forward(to: Scope, snat: Snat) -> Action {
        Action::Forward { to, snat }
    }

    const KEPT: Action = forward(Scope::Cluster, Snat::Keep);
    const MASQUERADED: Action = forward(Scope::Cluster, Snat::Masquerade);
    const LOCAL: Action = forward(Scope::Local, Snat::Keep);

    fn treatment([pod, host, other]: [Action; 3]) -> Treatment {
        Treatment { pod, host, other }
    }

    #[test]
    fn a_frontend_that_is_refused_or_left_alone_has_the_same_shape_whatever_its_kind() {
        use FrontendKind::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
        let (dropped, rejected) = (Shape::Refuse(RefusalAction::Drop), Shape::Refuse(RefusalAction::Reject));
        for kind in [ClusterIp, ExternalIp, LoadBalancer, NodePort] {
            for (actions, wanted) in [
                ([Action::Drop; 3], dropped),
                ([Action::Reject; 3], rejected),
                ([Action::Reject, Action::Pass, Action::Reject], rejected),
                ([Action::Pass; 3], Shape::Pass),
            ] {
                let at = FrontendAddr::NodePort(30_080);
                let frontend = Frontend { kind, at, sources: SourceRanges::Any, treatment: treatment(actions) };
                assert_eq!(Shape::of(&frontend), wanted, "{kind:?}, {actions:?}");
            }
        }
    }

    #[test]
    fn clients_of_a_cluster_ip_use_one_pool() {
        for (actions, wanted) in [
            ([KEPT; 3], Some(Shape::Internal(Scope::Cluster, Masquerade::Nobody))),
            ([LOCAL; 3], Some(Shape::Internal(Scope::Local, Masquerade::Nobody))),
            ([KEPT, MASQUERADED, MASQUERADED], Some(Shape::Internal(Scope::Cluster, Masquerade::Others))),
            ([MASQUERADED; 3], Some(Shape::Internal(Scope::Cluster, Masquerade::Everybody))),
            ([MASQUERADED, KEPT, KEPT], None),
            ([KEPT, KEPT, MASQUERADED], None),
            ([KEPT, KEPT, Action::Drop], None),
            ([LOCAL, KEPT, KEPT], None),
            ([Action::Drop, KEPT, KEPT], None),
            ([KEPT, Action::Drop, Action::Drop], None),
        ] {
            assert_eq!(Shape::internal(&treatment(actions)), wanted, "{actions:?}");
        }
    }

    #[test]
    fn with_policy_local_only_the_node_and_its_pods_leave_it() {
        let local = |pods, served| Some(Shape::External(External::Local { pods, served }));
        for (actions, wanted) in [
            ([MASQUERADED; 3], Some(Shape::External(External::Cluster))),
            ([KEPT, MASQUERADED, LOCAL], local(true, true)),
            ([KEPT, MASQUERADED, Action::Drop], local(true, false)),
            ([LOCAL, MASQUERADED, LOCAL], local(false, true)),
            ([Action::Drop, MASQUERADED, Action::Drop], local(false, false)),
            ([KEPT, KEPT, LOCAL], None),
            ([KEPT, MASQUERADED, KEPT], None),
            ([Action::Drop, MASQUERADED, LOCAL], None),
        ] {
            assert_eq!(Shape::external(&treatment(actions)), wanted, "{actions:?}");
        }
    }
}
