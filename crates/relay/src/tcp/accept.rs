//! Accepts the connections of one listener and gives each to a thread.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::connection::{self, Admitted, Reset};
use crate::gate::ServedPorts;
use crate::system::{self, Acceptor};
use crate::worker::{WorkerHandle, least_loaded};

/// Pauses while descriptors are exhausted: connections wait in the kernel's queue, and the thread does not spin.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// Accepts until the listener fails, and returns the error. `target` returns what the listener serves at the moment; `at` is the
/// position of this thread among all.
pub(crate) async fn accept(
    listener: &Acceptor,
    target: impl Fn() -> ServedPorts,
    workers: &Arc<[WorkerHandle]>,
    at: usize,
) -> io::Error {
    let Some(worker) = workers.get(at) else { return io::ErrorKind::NotFound.into() };
    let mut pause = None;
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                pause = None;
                let stream = Reset::new(stream);
                let Some(port) = stream.port(&target()) else {
                    // Dropping the connection resets it.
                    worker.context.totals.refused_without_route.increment();
                    continue;
                };
                if let Some(admitted) = Admitted::new(stream, client.ip(), &port, &worker.context) {
                    start(admitted, workers, at);
                }
            }
            Err(error) if system::lacks_resources(&error) => {
                worker.context.totals.exhausted.increment();
                if pause.is_none() {
                    tracing::warn!(%error, listener = target().name(), "Failed to accept connections, which wait: raise the limit of open files");
                }
                let [first, longest] = PAUSES;
                let next = pause.map_or(first, |before: Duration| longest.min(2 * before));
                pause = Some(next);
                sleep(next).await;
            }
            Err(error) if system::is_of_connection(&error) => {}
            Err(error) => return error,
        }
    }
}

/// Serves a connection on this thread, or on one that has fewer.
fn start(admitted: Admitted, workers: &Arc<[WorkerHandle]>, at: usize) {
    let Some(other) = least_loaded(workers, at).and_then(|other| workers.get(other)) else {
        tokio::spawn(connection::serve(admitted));
        return;
    };
    // Counted there at once, so that not all of a burst go to the same thread.
    let moved = admitted.moved(&other.context);
    other.runtime.spawn(connection::serve(moved));
}
