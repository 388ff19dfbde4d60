//! Maps a frontend's treatment to the verdict of its element, and to the scope of its virtual server's endpoints.

use ferry_model::{Action, Frontend, Scope, Snat, SourceRanges, Treatment};
use ferry_ruleset::table::ChainName;

use crate::element::Value;
use crate::names::FixedChain;

/// The way in which a frontend is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// the verdict on the first packet of a connection, source ranges aside
    pub(crate) verdict: Value,
    /// the endpoints of the virtual server; `None`: it has none
    pub(crate) scope: Option<Scope>,
}

const REJECT: Value = Value::Goto(ChainName::Fixed(FixedChain::Reject));
const MARK: Value = Value::Goto(ChainName::Fixed(FixedChain::MasqueradeExternal));
const MARK_BUT_PODS: Value = Value::Goto(ChainName::Fixed(FixedChain::MasqueradeCluster));

// === impl Shape ===

impl Shape {
    /// `None`: packets pass by the frontend.
    pub(crate) fn of(frontend: &Frontend) -> Option<Self> {
        use Action::{Drop, Forward, Pass, Reject};
        use Snat::{Keep, Masquerade};
        let refused = |verdict| Some(Self { verdict, scope: None });
        // No source is admitted.
        if matches!(&frontend.sources, SourceRanges::Only(ranges) if ranges.is_empty()) {
            return refused(Value::Drop);
        }
        let Treatment { pod, host, other } = frontend.treatment;
        let snats = match (pod, host, other) {
            (Pass, Pass, Pass) => return None,
            (Drop, Drop, Drop) => return refused(Value::Drop),
            (Reject, Reject, Reject) => return refused(REJECT),
            (Forward { to, snat: pod }, Forward { to: host_to, snat: host }, Forward { to: other_to, snat: other })
                if to == host_to && to == other_to =>
            {
                (to, [pod, host, other])
            }
            _ => return Self::unknown(frontend),
        };
        let verdict = match snats.1 {
            [Keep, Keep, Keep] => Value::Accept,
            [Masquerade, Masquerade, Masquerade] => MARK,
            // Without a detector only the node's own connections are masqueraded.
            [Keep, Masquerade, Masquerade | Keep] => MARK_BUT_PODS,
            _ => return Self::unknown(frontend),
        };
        Some(Self { verdict, scope: Some(snats.0) })
    }

    /// A treatment that this mode's profile never yields; a test of the model checks that.
    fn unknown(frontend: &Frontend) -> Option<Self> {
        debug_assert!(false, "no chain does {:?}", frontend.treatment);
        Some(Self { verdict: Value::Drop, scope: None })
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{Family, IpNet};
    use ferry_conformance::states;
    use ferry_model::{FrontendAddr, FrontendKind};

    use super::*;

    const KEPT: Action = Action::Forward { to: Scope::Cluster, snat: Snat::Keep };
    const MASQUERADED: Action = Action::Forward { to: Scope::Cluster, snat: Snat::Masquerade };
    const LOCAL: Action = Action::Forward { to: Scope::Local, snat: Snat::Keep };

    fn frontend([pod, host, other]: [Action; 3]) -> Frontend {
        let at = FrontendAddr::Vip(states::address(Family::V4, 96, 1), 80);
        states::frontend(FrontendKind::ExternalIp, at, Treatment { pod, host, other })
    }

    #[test]
    fn each_treatment_has_a_verdict_and_endpoints_if_it_forwards() {
        let (cluster, local) = (Some(Scope::Cluster), Some(Scope::Local));
        for (treatment, verdict, scope) in [
            ([Action::Drop; 3], Value::Drop, None),
            ([Action::Reject; 3], REJECT, None),
            ([KEPT; 3], Value::Accept, cluster),
            ([LOCAL; 3], Value::Accept, local),
            ([MASQUERADED; 3], MARK, cluster),
            ([KEPT, MASQUERADED, MASQUERADED], MARK_BUT_PODS, cluster),
            ([KEPT, MASQUERADED, KEPT], MARK_BUT_PODS, cluster),
        ] {
            assert_eq!(Shape::of(&frontend(treatment)), Some(Shape { verdict, scope }), "{treatment:?}");
        }
        assert_eq!(Shape::of(&frontend([Action::Pass; 3])), None);
    }

    #[test]
    fn without_an_admitted_source_packets_are_dropped() {
        let of = |ranges: &[IpNet]| {
            Shape::of(&Frontend { sources: SourceRanges::Only(ranges.into()), ..frontend([KEPT; 3]) })
        };
        assert_eq!(of(&[]), Some(Shape { verdict: Value::Drop, scope: None }));
        let some = Shape { verdict: Value::Accept, scope: Some(Scope::Cluster) };
        assert_eq!(of(&["192.0.2.0/24".parse().unwrap()]), Some(some));
    }
}
