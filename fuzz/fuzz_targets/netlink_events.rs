//! Fuzzes the decoders of nf_tables notifications: of changes, and of what packets meet.
#![no_main]

use ferry_kernel::nft::{Changed, NftNotice, decode_events, decode_traces};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    let mut elements_seen = 0;
    let _ = decode_events(datagram, &mut |notice| match notice {
        NftNotice::Changed(event) => {
            if let Changed::Elements { elements, .. } = event.what {
                elements_seen += elements.len();
            }
        }
        NftNotice::Committed { process, .. } => assert!(process.is_none_or(|name| name.len() <= 3 * datagram.len())),
    });
    // each element consumes bytes of the datagram
    assert!(elements_seen <= datagram.len());
    let mut traces_seen = 0;
    let _ = decode_traces(datagram, &mut |_| traces_seen += 1);
    assert!(traces_seen <= datagram.len());
});
