//! Dials the endpoints of a choice, one after another, with a time limit for each try.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::choose::Choice;
use crate::config::RelayConfig;
use crate::endpoint::Endpoint;
use crate::port::{Port, Refusal};
use crate::socket;
use crate::system::{self, Stream};
use crate::worker::WorkerContext;

/// Connects to the first endpoint that answers. One that refuses is not tried again; one that doesn't answer in time is, with a
/// longer limit, if there are fewer endpoints than tries. If all that are left have been removed meanwhile, others are chosen.
pub(super) async fn dial(
    port: &Port,
    mut choice: Choice,
    client: IpAddr,
    context: &WorkerContext,
) -> Result<(Stream, Arc<Endpoint>), Refusal> {
    let (mut tries, mut without_port) = (0, None);
    for (count, &limit) in context.config.dial_limits.iter().enumerate() {
        if !choice.is_empty() && choice.of_try(tries).is_none() {
            (choice, tries) = (port.choice(client)?, 0);
        }
        let Some(endpoint) = choice.of_try(tries) else { break };
        if count > 0 {
            port.counters().retries.increment();
        }
        match connect(endpoint.address(), limit, &context.config).await {
            Ok(Ok(stream)) => {
                port.choose().connected(client, &endpoint, Instant::now());
                return Ok((stream, endpoint));
            }
            Ok(Err(error)) if system::lacks_resources(&error) => return Err(exhausted(port, context, &error)),
            // Local ports are used up towards this endpoint alone, which is not to blame.
            Ok(Err(error)) if system::lacks_local_port(&error) => {
                choice.discard(&endpoint);
                without_port = Some(error);
                continue;
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, port = port.name(), endpoint = %endpoint.address(), "Failed to connect to an endpoint");
                // The next one moves into its place.
                choice.discard(&endpoint);
            }
            Err(_elapsed) => tries += 1,
        }
        port.choose().failed(client, &endpoint, Instant::now());
    }
    Err(without_port.map_or(Refusal::Failed, |error| exhausted(port, context, &error)))
}

/// Connects within a time limit.
async fn connect(address: SocketAddr, limit: Duration, config: &RelayConfig) -> Result<io::Result<Stream>, Elapsed> {
    let stream = match socket::connect(address, config).and_then(Stream::new) {
        Ok(stream) => stream,
        Err(error) => return Ok(Err(error)),
    };
    // An endpoint on this node has answered already, which saves the timer and a turn of the thread.
    if SockRef::from(&stream).peer_addr().is_ok() {
        return Ok(other_than_itself(stream, address));
    }
    let ready = timeout(limit, stream.writable()).await?;
    let outcome = ready.and_then(|()| SockRef::from(&stream).take_error()).and_then(|error| error.map_or(Ok(()), Err));
    Ok(outcome.and_then(|()| other_than_itself(stream, address)))
}

/// A connection to a port of this machine where nobody listens can get that very port as its own, and meet itself.
fn other_than_itself(stream: Stream, peer: SocketAddr) -> io::Result<Stream> {
    if SockRef::from(&stream).local_addr()?.as_socket() == Some(peer) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// Counts that this process has no descriptor, memory or local port left, of which no endpoint is at fault.
fn exhausted(port: &Port, context: &WorkerContext, error: &io::Error) -> Refusal {
    context.totals.exhausted.increment();
    tracing::debug!(%error, port = port.name(), "Failed to open a socket towards an endpoint");
    Refusal::Exhausted
}
