//! Fuzzes the decoders of ipset: each message of a datagram, and the raw bytes.
#![no_main]

use ferry_kernel::ipset::{decode_members, decode_set};
use ferry_kernel::netlink::Messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    for message in Messages::new(datagram).map_while(Result::ok) {
        check(message.payload);
    }
    check(datagram);
});

fn check(payload: &[u8]) {
    let mut members = 0;
    let _ = decode_members(payload, &mut |_| members += 1);
    // each member takes two attributes at least
    assert!(members * 8 <= payload.len());
    if let Ok(Some(set)) = decode_set(payload) {
        assert!(set.name.len() + set.type_name.len() <= 3 * payload.len());
    }
}
