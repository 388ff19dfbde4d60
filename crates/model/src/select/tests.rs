use ferry_api::object::{Conditions, EndpointSlice, Family, Protocol};

use super::*;
use crate::slices::PortIndex;
use crate::testing::*;

const BOTH: Uses = Uses { cluster: true, local: true };
const A: &str = "10.244.1.1";
const B: &str = "10.244.2.1";

fn select_of(slice: &EndpointSlice, uses: Uses) -> Selection {
    let mut rows = Vec::new();
    PortIndex::new(&[slice], Family::V4, &mut Vec::new()).endpoints("", Protocol::Tcp, usize::MAX, &mut rows);
    select(&rows, uses, &context())
}

#[test]
fn readiness_decides_for_each_policy_apart() {
    // endpoints here and elsewhere, the Cluster pool, the Local pool, whether any is usable
    type Case<'a> = (&'a [(&'a str, &'a str, Conditions)], &'a [&'a str], &'a [&'a str], bool);
    let cases: &[Case<'_>] = &[
        (&[], &[], &[], false),
        (&[(A, "here", READY), (B, "there", READY)], &[A, B], &[A], true),
        (&[(B, "there", READY)], &[B], &[], true),
        (&[(A, "here", DRAINING), (B, "there", READY)], &[B], &[A], true),
        (&[(A, "here", READY), (B, "there", DRAINING)], &[A], &[A], true),
        (&[(A, "here", READY), (B, "here", DRAINING)], &[A], &[A], true),
        (&[(A, "here", DRAINING), (B, "there", DRAINING)], &[A, B], &[A], true),
        (&[(B, "there", DRAINING)], &[B], &[], true),
        (&[(A, "here", UNREADY), (B, "there", ENDED)], &[], &[], false),
        // published while it ends: ready counts
        (&[(A, "here", Conditions { terminating: true, ..READY }), (B, "there", READY)], &[A, B], &[A], true),
        // an endpoint without a node is nowhere local
        (&[(A, "", READY)], &[A], &[], true),
    ];
    for (endpoints, cluster, local, any) in cases {
        let got = select_of(&slice("s", "web", endpoints), BOTH);
        assert_eq!(got.cluster, pool(cluster), "{endpoints:?}");
        assert_eq!(got.local, pool(local), "{endpoints:?}");
        assert_eq!(got.any, *any, "{endpoints:?}");
    }
}

#[test]
fn a_policy_that_is_not_asked_for_has_no_pool() {
    let slice = slice("s", "web", &[(A, "here", READY), (B, "there", READY)]);
    let cluster = select_of(&slice, Uses { cluster: true, local: false });
    assert_eq!((cluster.cluster, cluster.local, cluster.any), (pool(&[A, B]), pool(&[]), true));
    let local = select_of(&slice, Uses { cluster: false, local: true });
    assert_eq!((local.cluster, local.local, local.any), (pool(&[]), pool(&[A]), true));
}

#[test]
fn equal_pools_are_one_allocation() {
    let got = select_of(&slice("s", "web", &[(A, "here", READY)]), BOTH);
    assert!(std::sync::Arc::ptr_eq(&got.cluster.0, &got.local.0));
}

#[test]
fn hints_count_only_when_all_ready_endpoints_have_them_and_one_names_us() {
    type Hinted<'a> = (&'a str, &'a str, Conditions, &'a [&'a str], &'a [&'a str]);
    let cases: &[(&[Hinted<'_>], &[&str])] = &[
        (&[(A, "there", READY, &[], &["z1"]), (B, "there", READY, &[], &["z2"])], &[A]),
        (&[(A, "there", READY, &[], &["z2", "z1"]), (B, "there", READY, &[], &["z1"])], &[A, B]),
        (&[(A, "there", READY, &[], &["z1"]), (B, "there", READY, &[], &[])], &[A, B]),
        (&[(A, "there", READY, &[], &["z3"]), (B, "there", READY, &[], &["z2"])], &[A, B]),
        // endpoints that aren't ready need no hints, and theirs are ignored
        (&[(A, "there", READY, &[], &["z1"]), (B, "there", UNREADY, &[], &[])], &[A]),
        (&[(A, "there", UNREADY, &[], &["z1"]), (B, "there", READY, &[], &["z2"])], &[B]),
        // nodes come before zones
        (&[(A, "there", READY, &["here"], &["z2"]), (B, "there", READY, &["there"], &["z1"])], &[A]),
        // and where one endpoint has none, zones decide
        (&[(A, "there", READY, &["here"], &["z2"]), (B, "there", READY, &[], &["z1"])], &[B]),
        (&[(A, "there", READY, &["here"], &[]), (B, "there", READY, &[], &["z1"])], &[A, B]),
        // the last resort ignores them
        (&[(A, "there", DRAINING, &[], &["z2"]), (B, "there", DRAINING, &[], &["z1"])], &[A, B]),
    ];
    for (endpoints, wanted) in cases {
        let slice = hinted_slice("s", "web", endpoints.iter().copied());
        assert_eq!(select_of(&slice, BOTH).cluster, pool(wanted), "{endpoints:?}");
    }
}

#[test]
fn hints_never_reach_the_local_pool() {
    let hinted: [(&str, &str, _, &[&str], &[&str]); 2] =
        [(A, "here", READY, &[], &["z2"]), (B, "there", READY, &[], &["z1"])];
    let got = select_of(&hinted_slice("s", "web", hinted), BOTH);
    assert_eq!((got.cluster, got.local), (pool(&[B]), pool(&[A])));
}

/// Each triple of ready, serving and terminating: an endpoint with it takes new connections while no endpoint is ready; keeps
/// the flows that it has while others take new ones.
const TRIPLES: [([bool; 3], bool, bool); 8] = [
    ([false, false, false], false, false),
    ([false, false, true], false, false),
    ([false, true, false], false, true),
    ([false, true, true], true, true),
    ([true, false, false], true, true),
    ([true, false, true], true, true),
    ([true, true, false], true, true),
    ([true, true, true], true, true),
];

fn conditions([ready, serving, terminating]: [bool; 3]) -> Conditions {
    Conditions { ready, serving, terminating }
}

#[test]
fn each_triple_of_conditions_under_each_policy() {
    for (triple, used, _) in TRIPLES {
        let (it, [ready, ..]) = (conditions(triple), triple);
        let pool_if = |used: bool, address: &str| if used { pool(&[address]) } else { pool(&[]) };
        for (node, here) in [("here", true), ("there", false)] {
            let alone = slice("s", "web", &[(A, node, it)]);
            for uses in [BOTH, Uses { cluster: true, local: false }, Uses { cluster: false, local: true }] {
                let got = select_of(&alone, uses);
                assert_eq!(got.cluster, pool_if(used && uses.cluster, A), "{it:?} {node} {uses:?}");
                assert_eq!(got.local, pool_if(used && here && uses.local, A), "{it:?} {node} {uses:?}");
                assert_eq!(got.any, used, "{it:?} {node} {uses:?}");
            }
        }
        let beside = select_of(&slice("s", "web", &[(A, "here", it), (B, "there", READY)]), BOTH);
        assert_eq!(beside.cluster, if ready { pool(&[A, B]) } else { pool(&[B]) }, "{it:?}");
        assert_eq!((beside.local, beside.any), (pool_if(used, A), true), "{it:?}");
        let beside = select_of(&slice("s", "web", &[(A, "here", it), (B, "here", READY)]), BOTH);
        let both = if ready { pool(&[A, B]) } else { pool(&[B]) };
        assert_eq!((beside.cluster, beside.local), (both.clone(), both), "{it:?}");
    }
}

#[test]
fn each_triple_of_conditions_beside_hints() {
    for (triple, used, _) in TRIPLES {
        let (it, [ready, ..]) = (conditions(triple), triple);
        let cluster = |hints: &'static [&'static str]| {
            let endpoints = [(A, "there", it, &[][..], hints), (B, "there", READY, &[][..], &["z1"][..])];
            select_of(&hinted_slice("s", "web", endpoints), BOTH).cluster
        };
        assert_eq!(cluster(&[]), if ready { pool(&[A, B]) } else { pool(&[B]) }, "{it:?}: it has no hint");
        assert_eq!(cluster(&["z2"]), pool(&[B]), "{it:?}: its hint is for another zone");
        assert_eq!(
            cluster(&["z1"]),
            if ready { pool(&[A, B]) } else { pool(&[B]) },
            "{it:?}: its hint is for this zone"
        );
        let other_zone = [(A, "there", it, &[][..], &["z2"][..])];
        let alone = select_of(&hinted_slice("s", "web", other_zone), BOTH).cluster;
        assert_eq!(alone, if used { pool(&[A]) } else { pool(&[]) }, "{it:?}: no endpoint has a hint for this zone");
    }
}

#[test]
fn each_triple_of_conditions_and_the_flows_that_are_there() {
    let lingers_in = |slice: &EndpointSlice, uses: Uses, protocol: Protocol, profile: &Profile| {
        let mut rows = Vec::new();
        PortIndex::new(&[slice], Family::V4, &mut Vec::new()).endpoints("", Protocol::Tcp, usize::MAX, &mut rows);
        lingering(&rows, &select(&rows, uses, &context()), protocol, profile)
    };
    let lingers = |slice: &EndpointSlice, uses: Uses, protocol| lingers_in(slice, uses, protocol, &Profile::NFTABLES);
    let listed = |slice: &EndpointSlice, uses: Uses| lingers_in(slice, uses, Protocol::Tcp, &Profile::IPVS);
    for (triple, used, keeps) in TRIPLES {
        let (it, [ready, ..]) = (conditions(triple), triple);
        let pool_if = |keeps: bool| if keeps { pool(&[A]) } else { pool(&[]) };
        let alone = slice("s", "web", &[(A, "there", it)]);
        let beside = slice("s", "web", &[(A, "there", it), (B, "here", READY)]);
        let hinted = [(A, "there", it, &[][..], &["z2"][..]), (B, "there", READY, &[][..], &["z1"][..])];
        let hinted = hinted_slice("s", "web", hinted);
        let local = Uses { cluster: false, local: true };
        for protocol in [Protocol::Udp, Protocol::Sctp] {
            assert_eq!(lingers(&alone, BOTH, protocol), pool_if(keeps && !used), "{it:?}");
            assert_eq!(lingers(&beside, BOTH, protocol), pool_if(keeps && !ready), "{it:?}");
            assert_eq!(lingers(&beside, local, protocol), pool_if(keeps), "{it:?}");
            assert_eq!(lingers(&hinted, BOTH, protocol), pool_if(keeps), "{it:?}");
        }
        for slice in [&alone, &beside, &hinted] {
            assert_eq!(lingers(slice, BOTH, Protocol::Tcp), pool(&[]), "{it:?}");
        }
        assert_eq!(listed(&alone, BOTH), pool_if(!used), "{it:?}");
        assert_eq!(listed(&beside, BOTH), pool_if(!ready), "{it:?}");
        assert_eq!(listed(&beside, local), pool(&[A]), "{it:?}");
        assert_eq!(listed(&hinted, BOTH), pool(&[A]), "{it:?}");
    }
}
