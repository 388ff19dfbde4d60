//! UDP: an association for each client of a listener, with a connected socket towards one endpoint.
//!
//! The listener's task receives the datagrams of all clients in batches and passes them to the associations' sockets; the task of
//! each association passes the answers back through the listener's socket, until neither side has sent a datagram for the idle
//! time, or an ICMP error arrives.

mod association;
mod table;

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tokio::io::Ready;
use tokio::net::UdpSocket;
use tokio::task::yield_now;

use crate::port::{Permit, PermitKind, Port, Refusal};
use crate::system::{self, BATCH, Datagrams, ReceivedDatagram};
use crate::worker::WorkerContext;
use association::Association;
use table::{AssociationTable, UdpClient};

/// Datagrams of one client in a batch, by position.
struct Group {
    client: UdpClient,
    positions: Vec<usize>,
}

/// Ends all associations of a listener when it is dropped.
struct EndAll(Arc<AssociationTable<Association>>);

/// Relays the datagrams of one listener until its socket fails, and returns the error. `port` returns what it serves at the
/// moment. Its associations end with it.
pub(crate) async fn relay(
    socket: &Arc<UdpSocket>,
    port: impl Fn() -> Option<Arc<Port>>,
    context: &Arc<WorkerContext>,
) -> io::Error {
    let table = Arc::new(AssociationTable::new());
    let _ended_with_the_listener = EndAll(Arc::clone(&table));
    loop {
        if let Err(error) = socket.readable().await {
            return error;
        }
        // Gates are of TCP alone: a datagram's original destination is not known to its socket.
        let Some(port) = port() else { return io::ErrorKind::Unsupported.into() };
        match pass_batch(socket, &table, &port, context) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || system::is_of_datagram(&error) => {}
            Err(error) => return error,
        }
        // Under a flood the socket is always ready, and this task would have the thread for itself.
        yield_now().await;
    }
}

/// Receives a batch, and passes it on.
fn pass_batch(
    socket: &Arc<UdpSocket>,
    table: &Arc<AssociationTable<Association>>,
    port: &Arc<Port>,
    context: &Arc<WorkerContext>,
) -> io::Result<()> {
    let mut datagrams = context.datagrams.lock().unwrap_or_else(PoisonError::into_inner);
    system::receive(&mut datagrams, socket, Ready::READABLE)?;
    DatagramBatch { socket, table, port, context, datagrams: &datagrams }.pass_on();
    Ok(())
}

/// A batch of received datagrams, and where they go.
struct DatagramBatch<'a> {
    socket: &'a Arc<UdpSocket>,
    table: &'a Arc<AssociationTable<Association>>,
    port: &'a Arc<Port>,
    context: &'a Arc<WorkerContext>,
    datagrams: &'a Datagrams,
}

// === impl EndAll ===

impl Drop for EndAll {
    fn drop(&mut self) {
        for association in self.0.all() {
            association.end();
        }
    }
}

// === impl DatagramBatch ===

impl DatagramBatch<'_> {
    fn pass_on(&self) {
        for group in groups(self.datagrams.received()) {
            let client = group.client.address.ip();
            let sent = if self.port.admits(client) { self.send(&group) } else { Err(Refusal::Source) };
            if let Err(refusal) = sent {
                self.port.count_refusal(refusal);
            }
        }
    }

    /// Sends the datagrams of a client to its association, a new one if it has none.
    fn send(&self, group: &Group) -> Result<(), Refusal> {
        let association = match self.table.find(&group.client) {
            Some(association) if association.serves(self.port) => association,
            Some(stale) => {
                stale.end();
                self.associate(group)?
            }
            None => self.associate(group)?,
        };
        let bytes = self.bytes(group);
        match system::send(self.datagrams, association.socket(), &group.positions, None) {
            Ok(sent) => {
                self.port.counters().dropped_datagrams.add((group.positions.len() - sent) as u64);
                association.count_to_endpoint(bytes);
            }
            Err(error) => {
                self.port.counters().dropped_datagrams.add(group.positions.len() as u64);
                if error.kind() != io::ErrorKind::WouldBlock {
                    association.fail(&error);
                }
            }
        }
        Ok(())
    }

    /// The bytes of all datagrams of a group.
    fn bytes(&self, group: &Group) -> usize {
        let received = self.datagrams.received();
        group.positions.iter().filter_map(|&position| received.get(position)).map(|received| received.length).sum()
    }

    fn associate(&self, group: &Group) -> Result<Arc<Association>, Refusal> {
        let client = group.client;
        let permit = Permit::new(
            self.port,
            &self.context.totals,
            PermitKind::Association,
            self.context.config.max_associations,
        )?;
        let (socket, endpoint) = association::connect(self.port, client.address.ip(), self.context)?;
        self.port.choose().connected(client.address.ip(), &endpoint, Instant::now());
        Ok(Association::start(socket, endpoint, permit, client, self.table, self.socket, self.context))
    }
}

/// The datagrams of a batch by client, in the order of each client's first one.
fn groups(received: &[ReceivedDatagram]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::with_capacity(received.len());
    for (position, received) in received.iter().enumerate() {
        let client = UdpClient { address: received.source, local: received.local };
        match groups.iter_mut().find(|group| group.client == client) {
            Some(group) => group.positions.push(position),
            None => groups.push(Group { client, positions: vec![position] }),
        }
    }
    groups
}

/// All positions of a batch.
const ALL: [usize; BATCH] = {
    let mut all = [0; BATCH];
    let mut position = 0;
    while position < BATCH {
        #[expect(clippy::indexing_slicing, reason = "checked by the compiler: evaluated at compile time")]
        {
            all[position] = position;
        }
        position += 1;
    }
    all
};
