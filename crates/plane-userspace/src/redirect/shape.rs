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
