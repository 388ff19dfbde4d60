//! Fuzzes snapshots: no panic, what is accepted is encoded to the same objects, and so is every object that decodes at all.
#![no_main]

use ferry_api::snapshot::{Snapshot, SnapshotEncoder, decode_snapshot};
use ferry_api::wire::{decode_object, encode_object};
use libfuzzer_sys::fuzz_target;

fn encode(snapshot: &Snapshot) -> Vec<u8> {
    let mut encoder = SnapshotEncoder::new(Vec::new(), &snapshot.header).expect("a Vec takes everything");
    for object in &snapshot.objects {
        encoder.push(object).expect("a Vec takes everything");
    }
    encoder.finish().expect("a Vec takes everything")
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(snapshot) = decode_snapshot(bytes) {
        let again = decode_snapshot(&*encode(&snapshot)).expect("an encoded snapshot");
        assert_eq!(again.objects, snapshot.objects);
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    for line in text.lines() {
        let Ok(object) = decode_object(line) else { continue };
        let text = encode_object(&object);
        let again = decode_object(&text).expect("an encoded object");
        // A text that is left out is that of a time before or after the years 0 to 9999, which offsets can reach.
        assert_eq!(encode_object(&again), text);
    }
});
