//! Kubernetes Events about Services and the Node, best-effort: no component waits for them or depends on them. With manifests no
//! Events are written, and the log has the same facts.
//!
//! A [`Recorder`] accepts events from any thread, an [`EventWriter`] sends them to the API server: repeats become a series
//! (`series`), failed requests are retried (`outbox`), and all memory is bounded.

mod event;
mod outbox;
mod recorder;
mod series;
#[cfg(test)]
mod testing;
mod writer;

use std::time::Duration;

pub use event::{KubeEvent, Level, NOTE_BYTES, Regarding};
pub use recorder::Recorder;
#[cfg(test)]
pub(crate) use recorder::{Inbox, open as open_queue};
pub use writer::EventWriter;

use ferry_client::Client;

/// Times and bounds. The default is upstream's; tests shorten it.
#[derive(Clone, Debug)]
pub struct EventTiming {
    /// pause between two attempts of a request
    pub pause: Duration,
    /// attempts of one request
    pub tries: u32,
    /// longest Retry-After that is respected
    pub retry_after_limit: Duration,
    /// time limit of reading the body of a response
    pub answer: Duration,
    /// an event repeated within this time becomes a series, which ends after the same time without a repeat
    pub silence: Duration,
    /// interval of patching a series
    pub refresh: Duration,
    /// token bucket per object: events without waiting
    pub burst: u32,
    /// token bucket per object: interval of further events
    pub refill: Duration,
}

/// Capacity of the queue of events; further ones are dropped.
const QUEUE: usize = 1000;

/// A recorder and its writer, which must run in the client's runtime. `machine` is this machine's name.
pub fn open(client: Client, machine: &str, timing: EventTiming) -> (Recorder, EventWriter) {
    let (recorder, inbox) = recorder::open(QUEUE);
    (recorder, EventWriter::new(client, machine, timing, inbox))
}

impl Default for EventTiming {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(10),
            tries: 12,
            retry_after_limit: Duration::from_secs(5 * 60),
            answer: Duration::from_secs(5),
            silence: Duration::from_mins(6),
            refresh: Duration::from_mins(30),
            burst: 25,
            refill: Duration::from_mins(5),
        }
    }
}
