//! Maps a frontend's treatment to the elements that implement it: kind of pick chain, scope and first slot, or a refusal.

use ferry_model::{Action, Frontend, FrontendAddr, MAX_COPIES, Pool, PortState, Scope, Snat, SourceRanges};

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
        use Action::{Drop, Forward, Pass, Reject};
        use Snat::{Keep, Masquerade};
        let treatment = frontend.treatment;
        let node_port = matches!(frontend.at, FrontendAddr::NodePort(_));
        let choose = |vip, at_node| if node_port { at_node } else { vip };
        let all = |snat| match treatment.pod {
            Forward { to, snat: kept } if kept == snat => Some(to),
            Forward { .. } | Drop | Reject | Pass => None,
        };
        let same = treatment.pod == treatment.host && treatment.pod == treatment.other;
        match (treatment.pod, treatment.host, treatment.other) {
            (Pass, ..) if same => Self::Pass,
            _ if matches!(&frontend.sources, SourceRanges::Only(ranges) if ranges.is_empty()) => {
                Self::Refuse(Value::Drop)
            }
            (Reject, ..) if same => Self::Refuse(Value::Goto(ChainName::Fixed(FixedChain::Reject))),
            (Drop, ..) if same => Self::Refuse(Value::Drop),
            (Forward { to, snat: Masquerade }, ..) if same => Self::One(choose(Pick::External, Pick::NodePort), to),
            (Forward { to, snat: Keep }, ..) if same => Self::One(choose(Pick::Forward, Pick::NodePortForward), to),
            (Forward { to, .. }, Forward { to: host, snat: Masquerade }, Forward { to: other, snat: Masquerade })
                if all(Keep).is_some() && to == host && to == other && !node_port =>
            {
                Self::One(Pick::Internal, to)
            }
            // Without a local detector pods get the treatment of other sources.
            (pod, Forward { to: Scope::Cluster, snat: Masquerade }, other)
                if all(Keep) == Some(Scope::Cluster) || pod == other =>
            {
                match other {
                    Forward { to: Scope::Local, snat: Keep } => Self::Split { served: true },
                    Drop => Self::Split { served: false },
                    Forward { .. } | Reject | Pass => Self::unknown(frontend),
                }
            }
            _ => Self::unknown(frontend),
        }
    }

    /// A treatment that this mode's profile never yields; a test checks that.
    pub(crate) fn unknown(frontend: &Frontend) -> Self {
        debug_assert!(false, "no chain does {:?}", frontend.treatment);
        Self::Refuse(Value::Drop)
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
