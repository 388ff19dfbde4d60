use ferry_api::object::{EndpointSlice, Family, Protocol};

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
    use ferry_api::object::Conditions;
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
    type Hinted<'a> = (&'a str, &'a str, ferry_api::object::Conditions, &'a [&'a str], &'a [&'a str]);
    let cases: &[(&[Hinted<'_>], &[&str])] = &[
        (&[(A, "there", READY, &[], &["z1"]), (B, "there", READY, &[], &["z2"])], &[A]),
        (&[(A, "there", READY, &[], &["z2", "z1"]), (B, "there", READY, &[], &["z1"])], &[A, B]),
        (&[(A, "there", READY, &[], &["z1"]), (B, "there", READY, &[], &[])], &[A, B]),
        (&[(A, "there", READY, &[], &["z3"]), (B, "there", READY, &[], &["z2"])], &[A, B]),
        // what isn't ready neither needs hints nor counts by them
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
