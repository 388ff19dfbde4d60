//! One association: a client, an endpoint, and the socket between them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{Interest, Ready};
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep_until;

use super::ALL;
use super::table::{AssociationTable, UdpClient};
use crate::endpoint::Endpoint;
use crate::port::{Permit, Port, Refusal};
use crate::socket;
use crate::system;
use crate::worker::WorkerContext;

/// An association. Its task and the listener's table hold it.
#[derive(Debug)]
pub(super) struct Association {
    client: UdpClient,
    endpoint: Arc<Endpoint>,
    socket: UdpSocket,
    permit: Permit,
    created: Instant,
    /// The last datagram of either side, in milliseconds since `created`.
    used: AtomicU64,
    over: Notify,
}

/// A socket that is connected to the first endpoint of the port's choice that has a route.
pub(super) fn connect(
    port: &Port,
    client: IpAddr,
    context: &WorkerContext,
) -> Result<(UdpSocket, Arc<Endpoint>), Refusal> {
    for (tries, endpoint) in port.choice(client)?.endpoints().enumerate() {
        if tries > 0 {
            port.counters().retries.increment();
        }
        match open(endpoint.address(), context) {
            Ok(socket) => return Ok((socket, Arc::clone(endpoint))),
            Err(error) if system::lacks_resources(&error) || system::lacks_local_port(&error) => {
                context.totals.exhausted.increment();
                return Err(Refusal::Exhausted);
            }
            Err(error) => {
                tracing::debug!(%error, port = port.name(), endpoint = %endpoint.address(), "Failed to open a socket for datagrams to an endpoint");
                port.choose().failed(client, endpoint, Instant::now());
            }
        }
    }
    Err(Refusal::Failed)
}

fn open(endpoint: SocketAddr, context: &WorkerContext) -> io::Result<UdpSocket> {
    UdpSocket::from_std(socket::connect_datagrams(endpoint, &context.config)?)
}

// === impl Association ===

impl Association {
    /// Puts an association into the table and starts its task.
    pub(super) fn start(
        socket: UdpSocket,
        endpoint: Arc<Endpoint>,
        permit: Permit,
        client: UdpClient,
        table: &Arc<AssociationTable<Self>>,
        listener: &Arc<UdpSocket>,
        context: &Arc<WorkerContext>,
    ) -> Arc<Self> {
        permit.port().counters().associations.increment();
        endpoint.counters().connections.increment();
        endpoint.counters().open.enter(usize::MAX);
        let (created, used, over) = (Instant::now(), AtomicU64::new(0), Notify::new());
        let association = Arc::new(Self { client, endpoint, socket, permit, created, used, over });
        table.insert(client, Arc::clone(&association));
        tokio::spawn(run(Arc::clone(&association), Arc::clone(table), Arc::clone(listener), Arc::clone(context)));
        association
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// False if the client is to get a new association: its endpoint is gone, or the listener serves another port.
    pub(super) fn serves(&self, port: &Arc<Port>) -> bool {
        !self.endpoint.is_gone() && Arc::ptr_eq(self.permit.port(), port)
    }

    /// Ends the association.
    pub(super) fn end(&self) {
        self.over.notify_one();
    }

    /// Ends the association because of an error of its endpoint.
    pub(super) fn fail(&self, error: &io::Error) {
        let (port, endpoint) = (self.permit.port(), self.endpoint.address());
        tracing::debug!(%error, port = port.name(), %endpoint, "Association ended");
        port.choose().failed(self.client.address.ip(), &self.endpoint, Instant::now());
        self.end();
    }

    /// Counts bytes of the client, and postpones the end.
    pub(super) fn count_to_endpoint(&self, bytes: usize) {
        self.permit.port().counters().bytes_to_endpoints.add(bytes as u64);
        self.endpoint.counters().bytes_to_endpoint.add(bytes as u64);
        self.touch();
    }

    fn count_to_client(&self, bytes: usize) {
        self.permit.port().counters().bytes_to_clients.add(bytes as u64);
        self.endpoint.counters().bytes_from_endpoint.add(bytes as u64);
        self.touch();
    }

    fn touch(&self) {
        let milliseconds = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.used.store(milliseconds, Ordering::Relaxed);
    }

    /// When the association ends if there is no further datagram.
    fn end_if_idle(&self, idle: Duration) -> Instant {
        self.created + Duration::from_millis(self.used.load(Ordering::Relaxed)) + idle
    }

    /// Passes the endpoint's datagrams on, without waiting.
    fn answer(&self, ready: Ready, listener: &UdpSocket, context: &WorkerContext) -> io::Result<()> {
        let mut datagrams = context.datagrams.lock().unwrap_or_else(PoisonError::into_inner);
        system::receive(&mut datagrams, &self.socket, ready)?;
        let received = datagrams.received();
        let positions = ALL.get(..received.len()).unwrap_or_default();
        let route = (self.client.address, self.client.local);
        let sent = system::send(&datagrams, listener, positions, Some(route)).unwrap_or_else(|error| {
            tracing::debug!(%error, client = %self.client.address, "Failed to answer a client");
            0
        });
        self.permit.port().counters().dropped_datagrams.add((received.len() - sent) as u64);
        self.count_to_client(received.iter().take(sent).map(|received| received.length).sum());
        Ok(())
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        self.endpoint.counters().open.leave();
    }
}

/// Passes answers to the client until the association ends, and takes it out of the table.
async fn run(
    association: Arc<Association>,
    table: Arc<AssociationTable<Association>>,
    listener: Arc<UdpSocket>,
    context: Arc<WorkerContext>,
) {
    loop {
        let end = association.end_if_idle(context.config.udp_idle);
        tokio::select! {
            biased;
            () = association.over.notified() => break,
            () = association.endpoint.until_cut() => break,
            // An ICMP error makes the socket ready with an error alone.
            ready = association.socket.ready(Interest::READABLE | Interest::ERROR) => {
                let answered = ready.and_then(|ready| association.answer(ready, &listener, &context));
                match answered {
                    // As for the listener: an endpoint that sends without a pause must not have the thread for itself.
                    Ok(()) => yield_now().await,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        association.fail(&error);
                        break;
                    }
                }
            }
            () = sleep_until(end.into()) => {
                if association.end_if_idle(context.config.udp_idle) <= Instant::now() {
                    break;
                }
            }
        }
    }
    table.remove(&association.client, &association);
}
