//! A second proxy of the same node has the endpoints of a pool in another order, which is equivalent: the engine adopts the order
//! and writes nothing, however the notifications arrive.

use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_conformance::property::inputs;
use ferry_conformance::{World, good};
use ferry_model::Profile;
use ferry_plane::engine::Engine;
use ferry_plane::memory::MemoryKernel;
use ferry_plane::{Object, SyncEngine};
use ferry_plane_nftables::{NftObject, Nftables};
use proptest::prelude::*;

/// An engine that has committed the world, whose services 1, 2, 4 and 7 have these endpoints.
fn started(cluster: &[u8], local: &[u8], now: Instant) -> Engine<Nftables, MemoryKernel<NftObject>> {
    let mut world = World::new(Family::V4, Profile::NFTABLES);
    (0..world.services.len()).for_each(|service| world.change(service, cluster, local, false));
    let mut engine = Engine::new(Nftables::new(Family::V4), MemoryKernel::default());
    engine.offer(world.delta());
    good(engine.sync(now));
    engine
}

fn objects(engine: &Engine<Nftables, MemoryKernel<NftObject>>) -> impl Iterator<Item = &NftObject> {
    engine.kernel().objects.values()
}

fn order(length: u8) -> impl Strategy<Value = Vec<u8>> {
    Just((1..=length).collect::<Vec<_>>()).prop_shuffle()
}

proptest! {
    #![proptest_config(inputs(100))]

    #[test]
    fn another_order_that_arrives_in_pieces_is_no_damage(
        orders in (order(5), order(5), order(3), order(3)),
        pieces in prop::collection::vec(0..3u64, 1..40),
        gap in 1..70u64,
        at_once in any::<bool>(),
    ) {
        let start = Instant::now();
        let mut engine = started(&orders.0, &orders.2, start);
        let theirs = started(&orders.1, &orders.3, start);
        let changed: Vec<NftObject> =
            objects(&theirs).filter(|object| !objects(&engine).any(|ours| ours == *object)).cloned().collect();
        for clock in 0..600 {
            for (object, piece) in changed.iter().zip(pieces.iter().cycle()) {
                let memory = engine.kernel_mut();
                if clock == 0 && at_once {
                    memory.objects.insert(object.key(), object.clone());
                }
                if clock == piece * gap {
                    memory.foreign(object.clone());
                }
            }
            let outcome = good(engine.tend(start + Duration::from_millis(clock)));
            prop_assert_eq!((outcome.repairs, outcome.ops), (0, 0), "{:?}", outcome.repaired);
        }
        for object in &changed {
            prop_assert!(objects(&engine).any(|there| there == object));
        }
    }
}
