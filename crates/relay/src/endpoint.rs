//! One endpoint of a service port: its address, its counters, and its end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::counters::EndpointCounters;

/// An endpoint. Connections hold it, so it outlives its removal from the port.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    counters: EndpointCounters,
    created: Instant,
    /// Until when it stands behind the others, in milliseconds since `created`.
    behind_until: AtomicU64,
    removed: AtomicBool,
    /// It was removed and keeps its connections: it is not gone.
    lingering: AtomicBool,
    /// How often it was removed: an end that was put off counts for one of the times only.
    removals: AtomicU64,
    cut: AtomicBool,
    cut_signal: Notify,
}

// === impl Endpoint ===

impl Endpoint {
    /// An endpoint without connections.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            counters: EndpointCounters::default(),
            created: Instant::now(),
            behind_until: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            lingering: AtomicBool::new(false),
            removals: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            cut_signal: Notify::new(),
        }
    }

    /// Its address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its counters.
    pub fn counters(&self) -> &EndpointCounters {
        &self.counters
    }

    /// True once the port doesn't choose it any more: it gets no new connection or association.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// True if it was removed and [set aside](Self::set_aside).
    pub fn lingers(&self) -> bool {
        self.lingering.load(Ordering::Acquire)
    }

    /// True if it was removed and doesn't linger.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_removed() && !self.lingers()
    }

    /// Marks the endpoint as removed and gone: clients with an association get another endpoint, its connections live on.
    pub fn remove(&self) {
        self.leave(false);
    }

    /// Marks the endpoint as removed, but not gone: its connections and associations stay, and an end that was put off does not come.
    pub fn set_aside(&self) {
        self.leave(true);
    }

    fn leave(&self, lingers: bool) {
        self.removals.fetch_add(1, Ordering::Relaxed);
        self.lingering.store(lingers, Ordering::Release);
        self.removed.store(true, Ordering::Release);
    }

    /// The port has it again, before its connections were cut. Returns false if they were: then it stays as it is.
    pub(crate) fn restore(&self) -> bool {
        if self.is_cut() {
            return false;
        }
        self.removed.store(false, Ordering::Release);
        self.lingering.store(false, Ordering::Release);
        true
    }

    /// The number of its removals so far.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Relaxed)
    }

    /// Cuts it if it is still removed, since the removal of this number.
    pub(crate) fn cut_if_gone_since(&self, removals: u64) {
        if self.is_removed() && self.removals() == removals {
            self.cut();
        }
    }

    /// Resets its connections and ends its associations.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.cut_signal.notify_waiters();
    }

    /// True if its connections are to be reset.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Waits until [`Self::cut`] is called.
    pub(crate) async fn until_cut(&self) {
        // Created before the flag is read: a signal after that wakes it.
        let signal = self.cut_signal.notified();
        if !self.is_cut() {
            signal.await;
        }
    }

    /// True while it stands behind the others after a failure.
    pub(crate) fn is_behind(&self, now: Instant) -> bool {
        self.milliseconds(now) < self.behind_until.load(Ordering::Relaxed)
    }

    /// Counts a failure and puts the endpoint behind the others for a while.
    pub(crate) fn put_behind(&self, now: Instant, pause: Duration) {
        self.counters.failures.increment();
        self.behind_until.store(self.milliseconds(now + pause), Ordering::Relaxed);
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.created).as_millis()).unwrap_or(u64::MAX)
    }
}
