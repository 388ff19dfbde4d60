//! A change of a service with a shared pool compiles what differs.

use ferry_conformance::states;
use ferry_model::{Affinity, MAX_COPIES};
use ferry_plane::Object as _;

use super::*;

const VIPS: std::ops::RangeInclusive<u8> = 1..=9;

/// A service whose frontends share a pool.
fn pooled(vips: impl IntoIterator<Item = u8>, endpoints: &[u8], affinity: Option<u32>) -> Arc<Unit> {
    let at = |last| FrontendAddr::Vip(states::address(Family::V4, 96, last), 80);
    let external = |last| states::frontend(FrontendKind::ExternalIp, at(last), states::EXTERNAL);
    let frontends: Vec<Frontend> = vips.into_iter().map(external).collect();
    assert!(frontends.len() > MAX_COPIES);
    let pool = states::pool(Family::V4, endpoints);
    let mut port = states::port(Protocol::Tcp, pool, Pool::default(), frontends);
    port.affinity = affinity.and_then(Affinity::new);
    states::service("web", vec![port]).1.unwrap()
}

/// Verdicts of frontends that are compiled for each side of a change.
fn verdicts(before: &Unit, after: &Unit) -> (usize, usize) {
    let sides = &mut (Vec::new(), Vec::new());
    let context = states::context(Family::V4);
    Nftables::new(Family::V4).compile_change(&context, (before, after), &mut sides.0, &mut sides.1);
    let is_verdict =
        |object: &&NftObject| matches!(object.key(), NftKey::Element(ElementKey::Vip { map: VipMap::Services, .. }));
    (sides.0.iter().filter(is_verdict).count(), sides.1.iter().filter(is_verdict).count())
}

#[test]
fn another_endpoint_of_a_pool_compiles_no_frontend() {
    assert_eq!(verdicts(&pooled(VIPS, &[1, 2], None), &pooled(VIPS, &[1, 3], None)), (0, 0));
}

#[test]
fn frontends_of_a_pool_that_differ_are_compiled_on_both_sides() {
    let before = pooled(VIPS, &[1, 2], None);
    assert_eq!(verdicts(&before, &pooled(2..=10, &[1, 2], None)), (9, 9), "another address");
    assert_eq!(verdicts(&before, &pooled(1..=10, &[1, 2], None)), (9, 10), "one more");
    assert_eq!(verdicts(&before, &pooled(VIPS, &[1, 2], Some(60))), (9, 9), "affinity");
}
