//! Fuzzes the decoders of conntrack entries: each message of a datagram, the raw bytes, and lines of `/proc`.
#![no_main]

use ferry_api::object::Family;
use ferry_kernel::conntrack::{Entry, Filter, decode_entry, decode_line};
use ferry_kernel::netlink::Messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    for message in Messages::new(datagram).map_while(Result::ok) {
        check(decode_entry(message.payload).ok().flatten());
    }
    check(decode_entry(datagram).ok().flatten());
    for line in String::from_utf8_lossy(datagram).lines() {
        check(decode_line(line).ok().flatten());
    }
});

fn check(entry: Option<Entry>) {
    let Some(entry) = entry else { return };
    let filter = Filter {
        family: entry.original.family(),
        protocol: entry.protocol,
        destination: Some(entry.original.destination),
        port: Some(entry.original.destination_port),
        unanswered: false,
    };
    assert!(filter.matches(&entry), "asked for by what it is");
    let other = if filter.family == Family::V4 { Family::V6 } else { Family::V4 };
    assert!(!Filter { family: other, ..filter }.matches(&entry));
}
