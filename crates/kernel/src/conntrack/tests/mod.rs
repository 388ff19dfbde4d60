//! Conntrack entries written to the kernel and read back, each test in a network namespace of its own. Needs root.

mod garbage;
mod kernel;
mod packets;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferry_family::Family;

use super::testing::{DestroyMonitor, create};
use super::*;
use crate::netns::Namespace;

const UDP: u8 = 17;
const TCP: u8 = 6;
const SCTP: u8 = 132;
const LONG: Duration = Duration::from_secs(600);

/// Runs a test in a fresh namespace.
fn isolated<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    let namespace = Namespace::new().expect("these tests need root");
    namespace.raise_loopback().unwrap();
    namespace.run(test).unwrap()
}

fn tuple(source: &str, destination: &str) -> Tuple {
    let (source, destination): (SocketAddr, SocketAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    Tuple {
        source: source.ip(),
        destination: destination.ip(),
        source_port: source.port(),
        destination_port: destination.port(),
    }
}

/// A flow from a client to an address, translated to an endpoint. The kernel assigns the id.
fn flow(protocol: u8, client: &str, to: &str, endpoint: &str) -> Entry {
    let (original, reply) = (tuple(client, to), tuple(endpoint, client));
    Entry { original, reply, protocol, status: FlowStatus::default(), id: 0, zone: 0 }
}

fn all(family: Family, protocol: u8) -> Filter {
    Filter { family, protocol, destination: None, port: None, unanswered: false }
}

/// The dumped entries, sorted.
fn listed(socket: &mut ConntrackSocket, filter: &Filter) -> Vec<Entry> {
    let mut found = Vec::new();
    socket.dump(filter, &mut |entry| found.push(*entry)).unwrap();
    found.sort();
    found
}

/// The identity of flows, without the id and the status that the kernel adds.
fn plain(entries: &[Entry]) -> Vec<(u8, Tuple, Tuple, u16)> {
    let mut plain: Vec<_> = entries.iter().map(|e| (e.protocol, e.original, e.reply, e.zone)).collect();
    plain.sort();
    plain
}
