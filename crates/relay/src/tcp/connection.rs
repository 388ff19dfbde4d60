//! One connection: admission, dialling, relaying, and its end.

use std::io;
use std::net::{self, IpAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::SockRef;
use tokio::time::sleep;

use super::dial::dial;
use crate::copy::{self, Ending, Meter, Peer};
use crate::endpoint::Endpoint;
use crate::gate::ServedPorts;
use crate::port::{Permit, PermitKind, Port, Refusal};
use crate::system::{self, Stream};
use crate::worker::WorkerContext;

/// Before a reset is passed on, bytes that the lost side has sent before get about so long to reach the other one: a reset drops
/// what is still queued.
const DELIVERY: Duration = Duration::from_millis(500);
/// The first pause while waiting for that.
const FIRST_LOOK: Duration = Duration::from_millis(1);

/// An accepted connection, within the source ranges and limits of its port. It is unregistered: the thread that serves it registers it.
#[derive(Debug)]
pub(super) struct Admitted {
    stream: Reset<net::TcpStream>,
    client: IpAddr,
    permit: Permit,
    context: OnThread,
}

/// A connection that is reset when it is dropped, unless it has ended in order.
#[derive(Debug)]
pub(super) struct Reset<S>(Option<S>)
where
    for<'s> SockRef<'s>: From<&'s S>;

/// Counts a connection of a thread.
#[derive(Debug)]
struct OnThread(Arc<WorkerContext>);

/// Counts an established connection of an endpoint.
#[derive(Debug)]
struct Established(Arc<Endpoint>);

// === impl Admitted ===

impl Admitted {
    /// Admits a connection, or resets it at once and counts why.
    pub(super) fn new(
        stream: Reset<net::TcpStream>,
        client: IpAddr,
        port: &Arc<Port>,
        context: &Arc<WorkerContext>,
    ) -> Option<Self> {
        let limit = context.config.max_connections;
        let permit = if port.admits(client) {
            Permit::new(port, &context.totals, PermitKind::Connection, limit)
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

    /// The same on another thread.
    pub(super) fn moved(self, to: &Arc<WorkerContext>) -> Self {
        Self { context: OnThread::new(Arc::clone(to)), ..self }
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
        Ok((server, endpoint)) => {
            if let Err(error) = relay(client, Reset::new(server), &endpoint, port, &context.0).await {
                context.0.totals.exhausted.increment();
                tracing::debug!(%error, port = port.name(), "Failed to register a connection with the event loop");
            }
        }
        // Dropping the client's connection resets it.
        Err(refusal) => port.count_refusal(refusal),
    }
}

/// Relays until the connection ends. What the client has sent meanwhile is passed on before its socket is registered with the event loop,
/// which saves one pass of that where clients speak first.
///
/// # Errors
/// The system's, if the client's socket can't be registered.
async fn relay(
    client: Reset<net::TcpStream>,
    server: Reset<Stream>,
    endpoint: &Arc<Endpoint>,
    port: &Port,
    context: &WorkerContext,
) -> io::Result<()> {
    let established = Established::new(Arc::clone(endpoint));
    let (counters, of_endpoint) = (port.counters(), established.0.counters());
    counters.connections.increment();
    let up = Meter { port: &counters.bytes_to_endpoints, endpoint: &of_endpoint.bytes_to_endpoint };
    let down = Meter { port: &counters.bytes_to_clients, endpoint: &of_endpoint.bytes_from_endpoint };
    if endpoint.is_cut() {
        return Ok(());
    }
    let (Some(unregistered), Some(to)) = (&client.0, &server.0) else { return Ok(()) };
    let first = copy::pass_first(unregistered, to);
    let client = client.registered()?;
    let Some(from) = &client.0 else { return Ok(()) };
    let ending = tokio::select! {
        biased;
        ending = copy::both_ways(from, to, up, down, first, &context.pipes) => ending,
        // Dropping both sides resets them.
        () = endpoint.until_cut() => return Ok(()),
    };
    match ending {
        Ending::Closed => {
            client.end();
            server.end();
        }
        Ending::Lost(Peer::Client) => deliver(to).await,
        Ending::Lost(Peer::Server) => deliver(from).await,
    }
    Ok(())
}

/// Waits a bounded time until the peer has received what was written.
async fn deliver(stream: &Stream) {
    let mut pause = FIRST_LOOK;
    while pause < DELIVERY && system::has_undelivered(stream) {
        sleep(pause).await;
        pause *= 2;
    }
}

// === impl Reset ===

impl<S> Reset<S>
where
    for<'s> SockRef<'s>: From<&'s S>,
{
    pub(super) fn new(stream: S) -> Self {
        Self(Some(stream))
    }

    /// Closes the connection in order: the kernel delivers what is still queued.
    fn end(mut self) {
        self.0 = None;
    }
}

impl Reset<net::TcpStream> {
    /// The port of the connection, which a listener with this target has accepted.
    pub(super) fn port(&self, target: &ServedPorts) -> Option<Arc<Port>> {
        target.port_of(self.0.as_ref()?)
    }

    /// Registers the connection with this thread's event loop. If that fails, it is closed in order.
    fn registered(mut self) -> io::Result<Reset<Stream>> {
        Ok(Reset(self.0.take().map(Stream::new).transpose()?))
    }
}

impl<S> Drop for Reset<S>
where
    for<'s> SockRef<'s>: From<&'s S>,
{
    fn drop(&mut self) {
        if let Some(stream) = &self.0
            && let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO))
        {
            tracing::debug!(%error, "Failed to reset a connection, closing it");
        }
    }
}

// === impl OnThread ===

impl OnThread {
    fn new(context: Arc<WorkerContext>) -> Self {
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
