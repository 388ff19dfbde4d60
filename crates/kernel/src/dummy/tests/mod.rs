//! Messages of byte samples, garbage, and the running kernel, each of these in a network namespace of its own. Needs root.
//! `tests/devices.rs` has the tests that need a kernel with dummies.

mod garbage;
mod kernel;
mod messages;

use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::netlink::MessageWriter;

const NAME: &str = "kube-ipvs0";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A datagram with one message.
fn datagram(kind: u16, port_id: u32, payload: &[u8]) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    let mark = writer.message(kind, 0, 7);
    writer.patch(12, &port_id.to_ne_bytes());
    writer.raw(payload);
    writer.end_message(mark);
    writer.into_bytes()
}

/// The message about a device, as the kernel writes it: the kind without a final NUL.
fn device(family: u8, index: u32, flags: u32, name: &str, kind: Option<&str>) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    writer.raw(&[family, 0, 1, 0]);
    for word in [index, flags, 0] {
        writer.raw(&word.to_ne_bytes());
    }
    writer.text(wire::link::NAME, name);
    writer.attribute(4, &1500_u32.to_ne_bytes());
    if let Some(kind) = kind {
        writer.nested_attribute(wire::link::INFO, wire::link::KIND, kind.as_bytes());
    }
    writer.into_bytes()
}

/// The message about a service address, as the kernel writes it.
fn address(index: u32, text: &str) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    address::encode_service(&mut writer, index, ip(text));
    writer.into_bytes()
}
