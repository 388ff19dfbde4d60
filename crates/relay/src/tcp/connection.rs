//! One connection: admission, dialling, relaying, and its end.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::sleep;

use super::dial::dial;
use crate::copy::{self, Ending, Meter, Side};
use crate::endpoint::Endpoint;
use crate::gate::Target;
use crate::port::{Kind, Permit, Port, Refusal};
use crate::system;
use crate::worker::Context;

/// Before a reset is passed on, bytes that the lost side has sent before get about so long to reach the other one: a reset drops
/// what is still queued.
const DELIVERY: Duration = Duration::from_millis(500);
/// The first pause while waiting for that.
const FIRST_LOOK: Duration = Duration::from_millis(1);

/// An accepted connection, within the source ranges and limits of its port.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) stream: Reset,
    pub(super) client: IpAddr,
    pub(super) permit: Permit,
    pub(super) context: OnThread,
}

/// A connection that is reset when it is dropped, unless it has ended in order.
#[derive(Debug)]
pub(super) struct Reset(Option<TcpStream>);

/// Counts a connection of a thread.
#[derive(Debug)]
pub(super) struct OnThread(Arc<Context>);

/// Counts an established connection of an endpoint.
#[derive(Debug)]
struct Established(Arc<Endpoint>);

// === impl Admitted ===

impl Admitted {
    /// Admits a connection, or resets it at once and counts why.
    pub(super) fn new(stream: Reset, client: IpAddr, port: &Arc<Port>, context: &Arc<Context>) -> Option<Self> {
        let limit = context.config.max_connections;
        let permit = if port.admits(client) {
            Permit::new(port, &context.totals, Kind::Connection, limit)
        } else {
            Err(Refusal::Source)
        };
        match permit {
            Ok(permit) => Some(Self { stream, client, permit, context: OnThread::new(Arc::clone(context)) }),
            Err(refusal) => {
                port.count_refusal(refusal);
                None
            }
        }
    }

    /// A connection that another thread has admitted.
    pub(super) fn moved(stream: TcpStream, client: IpAddr, permit: Permit, context: OnThread) -> Self {
        Self { stream: Reset::new(stream), client, permit, context }
    }
}

/// Dials an endpoint and relays until the connection ends.
pub(super) async fn serve(admitted: Admitted) {
    let Admitted { stream: client, client: address, permit, context } = admitted;
    let port = permit.port();
    let dialled = match port.choice(address) {
        Ok(choice) => dial(port, choice, address, &context.0).await,
        Err(refusal) => Err(refusal),
    };
    match dialled {
        Ok((server, endpoint)) => relay(client, Reset::new(server), &endpoint, port, &context.0).await,
        // Dropping the client's connection resets it.
        Err(refusal) => port.count_refusal(refusal),
    }
}

async fn relay(client: Reset, server: Reset, endpoint: &Arc<Endpoint>, port: &Port, context: &Context) {
    let established = Established::new(Arc::clone(endpoint));
    let (counters, of_endpoint) = (port.counters(), established.0.counters());
    counters.connections.increment();
    let up = Meter { port: &counters.bytes_to_endpoints, endpoint: &of_endpoint.bytes_to_endpoint };
    let down = Meter { port: &counters.bytes_to_clients, endpoint: &of_endpoint.bytes_from_endpoint };
    let (Some(from), Some(to)) = (&client.0, &server.0) else { return };
    let ending = tokio::select! {
        biased;
        ending = copy::both_ways(from, to, up, down, &context.pipes) => ending,
        // Dropping both sides resets them.
        () = endpoint.until_cut() => return,
    };
    match ending {
        Ending::Closed => {
            client.end();
            server.end();
        }
        Ending::Lost(Side::Client) => deliver(to).await,
        Ending::Lost(Side::Server) => deliver(from).await,
    }
}

/// Waits a bounded time until the peer has received what was written.
async fn deliver(stream: &TcpStream) {
    let mut pause = FIRST_LOOK;
    while pause < DELIVERY && system::has_undelivered(stream) {
        sleep(pause).await;
        pause *= 2;
    }
}

// === impl Reset ===

impl Reset {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(Some(stream))
    }

    /// The port of the connection, which a listener with this target has accepted.
    pub(super) fn port(&self, target: &Target) -> Option<Arc<Port>> {
        target.port_of(self.0.as_ref()?)
    }

    /// Closes the connection in order: the kernel delivers what is still queued.
    fn end(mut self) {
        self.0 = None;
    }

    /// Takes the connection out, to give it to another thread.
    pub(super) fn into_std(mut self) -> std::io::Result<std::net::TcpStream> {
        self.0.take().ok_or_else(|| std::io::ErrorKind::NotConnected.into()).and_then(TcpStream::into_std)
    }
}

impl Drop for Reset {
    fn drop(&mut self) {
        if let Some(stream) = &self.0
            && let Err(error) = stream.set_zero_linger()
        {
            tracing::debug!(%error, "cannot reset a connection, closing it");
        }
    }
}

// === impl OnThread ===

impl OnThread {
    pub(super) fn new(context: Arc<Context>) -> Self {
        context.connections.fetch_add(1, Ordering::Relaxed);
        Self(context)
    }
}

impl Drop for OnThread {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Established ===

impl Established {
    fn new(endpoint: Arc<Endpoint>) -> Self {
        endpoint.counters().connections.increment();
        endpoint.counters().open.enter(usize::MAX);
        Self(endpoint)
    }
}

impl Drop for Established {
    fn drop(&mut self) {
        self.0.counters().open.leave();
    }
}
