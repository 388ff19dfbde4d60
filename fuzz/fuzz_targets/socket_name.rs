//! Fuzzes the names of sockets that come from the service manager's file-descriptor store: the text of a name parses to this name
//! and suits the store, and so does any label.
#![no_main]

use std::net::IpAddr;

use ferry_relay::{Destination, Protocol, SocketName};
use libfuzzer_sys::{arbitrary, fuzz_target};

#[derive(Debug, arbitrary::Arbitrary)]
struct Input<'a> {
    is_tcp: bool,
    address: Option<IpAddr>,
    port: u16,
    text: &'a str,
}

fuzz_target!(|input: Input<'_>| {
    for text in [input.text.to_owned(), format!("tcp-{}", input.text), format!("udp-{}", input.text)] {
        if let Ok(name) = text.parse() {
            check(&name);
        }
    }
    let protocol = if input.is_tcp { Protocol::Tcp } else { Protocol::Udp };
    let destination = match input.address {
        Some(address) => Destination::Address(address, input.port),
        None => Destination::AnyAddress(input.port),
    };
    check(&SocketName::Listener(protocol, destination));
    // Characters of a label that don't suit the store are replaced, and a long one is cut: once.
    let gate: SocketName = shown(&SocketName::Gate(input.text.to_owned())).parse().expect("any label becomes a name");
    check(&gate);
});

fn check(name: &SocketName) {
    assert_eq!(shown(name).parse().as_ref(), Ok(name));
}

/// The text of a name, which suits the store: see `FDNAME` in sd_notify(3).
fn shown(name: &SocketName) -> String {
    let text = name.to_string();
    assert!(text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'), "{text:?}");
    text
}
