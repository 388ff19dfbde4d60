//! How a frontend is served, read from its treatment.

use ferry_model::{Action, Frontend, FrontendKind, Scope, Snat, Treatment};

/// How a frontend is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// a cluster IP: everybody gets the same pool
    Internal(Scope, Masquerade),
    /// by way of the external chain
    External(External),
    /// nobody is served
    Refuse(Refusal),
    /// the packet is none of ours
    Pass,
}

/// Who is masqueraded on the way to a cluster IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Masquerade {
    Nobody,
    /// who is no pod of this node
    Others,
    Everybody,
}

/// What the external chain of a port does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum External {
    /// everybody is masqueraded and gets the Cluster pool
    Cluster,
    /// policy Local: this node itself gets the Cluster pool
    Local {
        /// pods of this node do too
        pods: bool,
        /// others get the Local pool; or are dropped
        served: bool,
    },
}

/// How packets are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// there is an endpoint, but none for them
    Drop,
    /// there is none
    Reject,
}

// === impl Shape ===

impl Shape {
    pub(crate) fn of(frontend: &Frontend) -> Self {
        let treatment = &frontend.treatment;
        match (treatment.pod, treatment.host, treatment.other) {
            (Action::Drop, Action::Drop, Action::Drop) => return Self::Refuse(Refusal::Drop),
            // No rule is hooked in where this node would meet it, so both come out the same.
            (Action::Reject, Action::Reject | Action::Pass, Action::Reject) => return Self::Refuse(Refusal::Reject),
            (Action::Pass, Action::Pass, Action::Pass) => return Self::Pass,
            _ => {}
        }
        let served = match frontend.kind {
            FrontendKind::ClusterIp => Self::internal(treatment),
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer | FrontendKind::NodePort => Self::external(treatment),
        };
        // The profile of this mode gives no other treatment; tests hold it to that.
        debug_assert!(served.is_some(), "no chain does {treatment:?}");
        served.unwrap_or(Self::Refuse(Refusal::Drop))
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

    /// Whether it leads to the pool of this scope.
    pub(crate) fn uses(self, scope: Scope) -> bool {
        match self {
            Self::Internal(to, _) => to == scope,
            Self::External(External::Cluster | External::Local { served: false, .. }) => scope == Scope::Cluster,
            Self::External(External::Local { served: true, .. }) => true,
            Self::Refuse(_) | Self::Pass => false,
        }
    }

    /// How those are refused who are led nowhere.
    pub(crate) fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Refuse(refusal) => Some(refusal),
            Self::External(External::Local { served: false, .. }) => Some(Refusal::Drop),
            Self::External(External::Cluster | External::Local { served: true, .. })
            | Self::Internal(..)
            | Self::Pass => None,
        }
    }
}
