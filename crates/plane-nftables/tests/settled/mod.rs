//! An engine on a kernel in memory that has nothing left to do.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ferry_plane::engine::Engine;
use ferry_plane::memory::MemoryKernel;
use ferry_plane::{Next, Object, SyncEngine};
use ferry_plane_nftables::{NftKey, NftObject, Nftables};

pub(crate) type TestEngine = Engine<Nftables, MemoryKernel<NftObject>>;

/// Until nothing is left to do; the time then.
pub(crate) fn settle(engine: &mut TestEngine, mut now: Instant) -> Instant {
    engine.kernel_mut().faults.clear();
    for _ in 0..60 {
        now += Duration::from_secs(400);
        let outcome = engine.tend(now);
        if outcome.error.is_none() && outcome.next == Next::Idle && !outcome.worked {
            return now;
        }
    }
    panic!("does not settle");
}

/// What is there and wanted. Which endpoint stands in which slot is left open: slots and endpoints are listed apart.
pub(crate) fn settled(engine: &TestEngine) -> Vec<String> {
    let mut wanted = engine.objects();
    wanted.dedup();
    let keys: BTreeSet<NftKey> = wanted.iter().map(Object::key).collect();
    let there = engine.kernel().objects.values();
    let there: Vec<&NftObject> = there.filter(|object| keys.contains(&object.key()) || !object.spare()).collect();
    assert_eq!(there, wanted.iter().collect::<Vec<_>>(), "the kernel holds what is acknowledged");
    let mut text: Vec<String> = Vec::new();
    for object in there.iter().map(ToString::to_string) {
        let is_slot = object.starts_with("element endpoints") || object.starts_with("element nodeport-endpoints");
        match object.split_once(" : ").and_then(|(slot, endpoint)| Some((slot, slot.rsplit_once(" . ")?, endpoint))) {
            Some((slot, (frontend, number), endpoint)) if is_slot => {
                let is_local = number.parse::<u32>().unwrap() >= 65_536;
                text.push(slot.to_owned());
                text.push(format!("{frontend} local={is_local} : {endpoint}"));
            }
            _ => text.push(object),
        }
    }
    text.sort();
    text
}
