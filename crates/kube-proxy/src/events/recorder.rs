//! Bounded queue of events, from any thread to the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::event::KubeEvent;

/// Records events without blocking: if the queue is full, the event is dropped and counted. Clones share the queue.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<EventQueue>);

#[derive(Clone, Debug)]
struct EventQueue {
    sender: Sender<(KubeEvent, Timestamp)>,
    dropped: Arc<AtomicU64>,
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: Receiver<(KubeEvent, Timestamp)>,
    dropped: Arc<AtomicU64>,
}

/// Both ends of a queue of this capacity.
pub(crate) fn open(capacity: usize) -> (Recorder, Inbox) {
    let (sender, receiver) = channel(capacity);
    let dropped = Arc::new(AtomicU64::new(0));
    (Recorder(Some(EventQueue { sender, dropped: Arc::clone(&dropped) })), Inbox { receiver, dropped })
}

// === impl Recorder ===

impl Recorder {
    /// A recorder that drops all events: there is no API server.
    pub fn nobody() -> Self {
        Self(None)
    }

    /// Records an event that happens now.
    pub fn record(&self, event: KubeEvent) {
        let Some(EventQueue { sender, dropped }) = &self.0 else { return };
        if sender.try_send((event, Timestamp::now())).is_err() {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl Inbox ===

impl Inbox {
    /// The next event and its time; `None` when all recorders are dropped. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<(KubeEvent, Timestamp)> {
        self.receiver.recv().await
    }

    /// All queued events.
    #[cfg(test)]
    pub(crate) fn waiting(&mut self) -> Vec<KubeEvent> {
        std::iter::from_fn(|| self.receiver.try_recv().ok()).map(|(event, _)| event).collect()
    }

    /// The number of events dropped since the last call.
    pub(super) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::event;
    use super::*;

    #[test]
    fn what_is_too_much_is_counted() {
        let (recorder, mut inbox) = open(3);
        let clone = recorder.clone();
        for number in 0..5 {
            let recorder = if number % 2 == 0 { &recorder } else { &clone };
            recorder.record(event(&number.to_string()));
        }
        assert_eq!((inbox.take_dropped(), inbox.take_dropped()), (2, 0));
        assert_eq!(inbox.waiting(), ["0", "1", "2"].map(event));
        drop(inbox);
        // without a reader, recording neither blocks nor fails
        recorder.record(event("late"));
        Recorder::nobody().record(event("none"));
    }
}
