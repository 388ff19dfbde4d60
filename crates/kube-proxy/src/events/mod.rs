//! Events: what somebody who looks at an object of the cluster should know about it. They are told in passing: nobody waits
//! for them, and nothing depends on them. With manifests there is nobody to tell, and the log has it all.
//!
//! A [`Recorder`] takes them from any thread, a [`Writer`] brings them to the API server: repeats become a series
//! (`series`), what the server can't take now is tried again, and nothing grows without bound.

mod event;
mod outbox;
mod recorder;
mod series;
#[cfg(test)]
mod testing;
mod writer;

use std::time::Duration;

pub use event::{Event, Level, NOTE_BYTES, Regarding};
pub use recorder::Recorder;
#[cfg(test)]
pub(crate) use recorder::{Inbox, open as open_queue};
pub use writer::Writer;

use ferry_client::Client;

/// Times and bounds. The default is upstream's; tests shorten it.
#[derive(Clone, Debug)]
pub struct Timing {
    /// from a try that failed to the next one
    pub pause: Duration,
    /// tries of one request
    pub tries: u32,
    /// the longest wait that a server can ask for
    pub retry_after_limit: Duration,
    /// how long the body of an answer is read
    pub answer: Duration,
    /// an event that is repeated within this time becomes a series, which ends after so long without a repeat
    pub silence: Duration,
    /// how often the server is told how far a series has come
    pub refresh: Duration,
    /// events about one object that are told at once
    pub burst: u32,
    /// after that, one each time this has passed
    pub refill: Duration,
}

/// Events that wait to be looked at; more are dropped.
const QUEUE: usize = 1000;

/// A way for events to the server of this client, in whose runtime the writer has to run. `machine` is the name of this one.
pub fn open(client: Client, machine: &str, timing: Timing) -> (Recorder, Writer) {
    let (recorder, inbox) = recorder::open(QUEUE);
    (recorder, Writer::new(client, machine, timing, inbox))
}

impl Default for Timing {
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
