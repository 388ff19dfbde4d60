//! A change of a service with a shared pool compiles what differs.

use ferry_conformance::states;
use ferry_model::{Affinity, MAX_COPIES};
use ferry_plane::Object as _;

use super::*;

const VIPS: std::ops::RangeInclusive<u8> = 1..=9;

/// A service with these external frontends.
fn external(vips: impl IntoIterator<Item = u8>, endpoints: &[u8], affinity: Option<u32>) -> Arc<Unit> {
    let at = |last| FrontendAddr::Vip(states::address(Family::V4, 96, last), 80);
    let external = |last| states::frontend(FrontendKind::ExternalIp, at(last), states::EXTERNAL);
    let frontends: Vec<Frontend> = vips.into_iter().map(external).collect();
    let pool = states::pool(Family::V4, endpoints);
    let mut port = states::port(Protocol::Tcp, pool, Pool::default(), frontends);
    port.affinity = affinity.and_then(Affinity::new);
    states::service("web", vec![port]).1.unwrap()
}

/// The same, whose frontends share a pool.
fn pooled(vips: impl ExactSizeIterator<Item = u8>, endpoints: &[u8], affinity: Option<u32>) -> Arc<Unit> {
    assert!(vips.len() > MAX_COPIES);
    external(vips, endpoints, affinity)
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

#[test]
fn frontends_have_slots_of_their_own_until_there_are_too_many() {
    for (vips, own, shared) in [(1, 2, 0), (MAX_COPIES, 2 * MAX_COPIES, 0), (MAX_COPIES + 1, 0, 2)] {
        let mut objects = Vec::new();
        let unit = external(VIPS.take(vips), &[1, 2], None);
        Nftables::new(Family::V4).compile(&states::context(Family::V4), &unit, &mut objects);
        let count = |is_slot: fn(&ElementKey) -> bool| {
            objects.iter().filter(|object| matches!(object, NftObject::Element(key, _) if is_slot(key))).count()
        };
        let slots = count(|key| matches!(key, ElementKey::Slot { .. }));
        assert_eq!((slots, count(|key| matches!(key, ElementKey::PoolSlot { .. }))), (own, shared), "{vips}");
    }
}
