//! Reads the conntrack entries of one client's flows to one destination.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::conntrack::{ConntrackError, ConntrackSocket, Entry, Filter};
use ferry_model::{Flow, Packet};

use crate::platform::client_flow::ClientFlow;

/// Attempts to dump the table; the kernel interrupts a dump when many entries come and go.
const ATTEMPTS: usize = 5;

/// The conntrack entries of flows with this packet's source, destination, port and protocol, by the client's port. Entries in a conntrack
/// zone are left out: they belong to another program.
///
/// # Errors
/// The system's error: `EPERM` without `CAP_NET_ADMIN`, or another one if the kernel doesn't list conntrack entries.
pub fn client_flows(packet: &Packet) -> io::Result<Vec<ClientFlow>> {
    let filter = Filter {
        family: Family::of(packet.destination),
        protocol: packet.protocol.number(),
        destination: Some(packet.destination),
        port: Some(packet.port),
        unanswered: false,
    };
    let mut socket = ConntrackSocket::open().map_err(cause)?;
    for _ in 1..ATTEMPTS {
        match flows(&mut socket, &filter, packet) {
            Err(ConntrackError::Interrupted(_)) => {}
            read => return read.map_err(cause),
        }
    }
    flows(&mut socket, &filter, packet).map_err(cause)
}

fn flows(socket: &mut ConntrackSocket, filter: &Filter, packet: &Packet) -> Result<Vec<ClientFlow>, ConntrackError> {
    let mut flows = Vec::new();
    socket.dump(filter, &mut |entry: &Entry| {
        if entry.original.source == packet.source && entry.zone == 0 {
            let flow = Flow {
                protocol: packet.protocol,
                destination: entry.original.to(),
                answers_from: entry.reply.from(),
                answered: entry.is_answered(),
            };
            flows.push(ClientFlow { client_port: entry.original.source_port, flow });
        }
    })?;
    flows.sort_unstable_by_key(|of_client| of_client.client_port);
    Ok(flows)
}

fn cause(error: ConntrackError) -> io::Error {
    match error {
        ConntrackError::Interrupted(error) | ConntrackError::Unusable(error) | ConntrackError::Io(error) => error,
    }
}
