//! Reads the flows of one client to one destination from the connection table.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::conntrack::{Entry, Error, Filter, Socket};
use ferry_model::{Flow, Packet};

use crate::platform::watched::TrackedFlow;

/// Dumps that the kernel may interrupt in a row, as it does when many flows come and go.
const ATTEMPTS: usize = 5;

/// The flows in the connection table whose packets are like this one, by the client's port. Those in a zone, which belongs to another
/// program, are left out.
///
/// # Errors
/// The system's: `EPERM` without `CAP_NET_ADMIN`, or that the kernel doesn't list connections.
pub fn tracked_flows(packet: &Packet) -> io::Result<Vec<TrackedFlow>> {
    let filter = Filter {
        family: Family::of(packet.destination),
        protocol: packet.protocol.number(),
        destination: Some(packet.destination),
        port: Some(packet.port),
        unanswered: false,
    };
    let mut socket = Socket::open().map_err(cause)?;
    for _ in 1..ATTEMPTS {
        match flows(&mut socket, &filter, packet) {
            Err(Error::Interrupted(_)) => {}
            read => return read.map_err(cause),
        }
    }
    flows(&mut socket, &filter, packet).map_err(cause)
}

fn flows(socket: &mut Socket, filter: &Filter, packet: &Packet) -> Result<Vec<TrackedFlow>, Error> {
    let mut flows = Vec::new();
    socket.dump(filter, &mut |entry: &Entry| {
        if entry.original.source == packet.source && entry.zone == 0 {
            let flow = Flow {
                protocol: packet.protocol,
                destination: entry.original.to(),
                answers_from: entry.reply.from(),
                answered: entry.is_answered(),
            };
            flows.push(TrackedFlow { client_port: entry.original.source_port, flow });
        }
    })?;
    flows.sort_unstable_by_key(|tracked| tracked.client_port);
    Ok(flows)
}

fn cause(error: Error) -> io::Error {
    match error {
        Error::Interrupted(error) | Error::Unusable(error) | Error::Io(error) => error,
    }
}
