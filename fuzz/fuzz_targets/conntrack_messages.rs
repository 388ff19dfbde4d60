//! Entries of the connection table: each message of a datagram, and the bytes themselves.
#![no_main]

use ferry_kernel::conntrack::{Family, Filter, decode_entry};
use ferry_kernel::netlink::Messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    for message in Messages::new(datagram).map_while(Result::ok) {
        decode(message.payload);
    }
    decode(datagram);
});

fn decode(payload: &[u8]) {
    let Ok(Some(entry)) = decode_entry(payload) else { return };
    let filter = Filter {
        family: entry.original.family(),
        protocol: entry.protocol,
        destination: Some(entry.original.destination),
        port: Some(entry.original.destination_port),
        unanswered: false,
    };
    assert!(filter.matches(&entry), "asked for by what it is");
    let other = if filter.family == Family::Ip { Family::Ip6 } else { Family::Ip };
    assert!(!Filter { family: other, ..filter }.matches(&entry));
}
