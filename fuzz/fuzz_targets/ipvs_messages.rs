//! Fuzzes the decoders of IPVS's answers: each message of a datagram, and the raw bytes; and of its listings of connections and servers.
#![no_main]

use ferry_kernel::ipvs::{
    Flags, Scheduler, decode_destination, decode_listed, decode_one_sided, decode_server, decode_statistics,
    decode_timeouts,
};
use ferry_kernel::netlink::Messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    for message in Messages::new(datagram).map_while(Result::ok) {
        check(message.payload);
    }
    check(datagram);
    if let Ok(listing) = std::str::from_utf8(datagram) {
        let _ = decode_one_sided(listing);
        let _ = decode_listed(listing);
    }
});

fn check(payload: &[u8]) {
    if let Ok(Some(server)) = decode_server(payload) {
        assert_eq!(Scheduler::new(server.scheduler.name()), Some(server.scheduler));
        assert!(!server.flags.contains(Flags(2)), "the kernel's own flag");
    }
    let _ = decode_statistics(payload);
    let _ = decode_destination(payload);
    let _ = decode_timeouts(payload);
}
