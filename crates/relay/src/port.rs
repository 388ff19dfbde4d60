//! A service port: what listeners serve. It has its source ranges, its choice of endpoints, its limit and its counters.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use crate::choose::{Choice, Choose};
use crate::counters::{Gauge, PortCounters, Totals};
use crate::sources::SourceRanges;

/// A service port. Several listeners can serve the same one, over TCP or UDP.
#[derive(Debug)]
pub struct Port {
    name: String,
    choose: Arc<dyn Choose>,
    sources: RwLock<Option<SourceRanges>>,
    limit: AtomicUsize,
    counters: PortCounters,
}

/// The reason why a connection, or the first datagram of a client, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// the source ranges don't contain the client
    Source,
    /// the port, or the relay, has as many connections or associations as it may
    Limit,
    /// there is no endpoint
    NoEndpoint,
    /// every try failed
    Failed,
    /// descriptors or memory for sockets are exhausted
    Exhausted,
}

/// The kind of what is counted by a [`Permit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitKind {
    /// a TCP connection
    Connection,
    /// a UDP association
    Association,
}

/// One open connection or association of a port, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    port: Arc<Port>,
    totals: Arc<Totals>,
    kind: PermitKind,
}

// === impl Port ===

impl Port {
    /// A port that admits every client. `name` is for logs and metrics; `limit` is the most open connections (TCP) and the most associations
    /// (UDP) of the port.
    pub fn new(name: impl Into<String>, choose: Arc<dyn Choose>, limit: usize) -> Self {
        Self {
            name: name.into(),
            choose,
            sources: RwLock::new(None),
            limit: AtomicUsize::new(limit),
            counters: PortCounters::default(),
        }
    }

    /// The name for logs and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The counters.
    pub fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// Replaces the source ranges; `None` admits every client. Holds for new connections and for every datagram.
    pub fn set_sources(&self, sources: Option<SourceRanges>) {
        *self.sources.write().unwrap_or_else(PoisonError::into_inner) = sources;
    }

    /// Replaces the limit; connections beyond it live on.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn choose(&self) -> &dyn Choose {
        &*self.choose
    }

    pub(crate) fn admits(&self, client: IpAddr) -> bool {
        let sources = self.sources.read().unwrap_or_else(PoisonError::into_inner);
        sources.as_ref().is_none_or(|sources| sources.admit(client))
    }

    /// The endpoints to try for a client that the port admits.
    pub(crate) fn choice(&self, client: IpAddr) -> Result<Choice, Refusal> {
        let choice = self.choose.choose(client, Instant::now());
        if choice.is_empty() { Err(Refusal::NoEndpoint) } else { Ok(choice) }
    }

    pub(crate) fn count_refusal(&self, refusal: Refusal) {
        match refusal {
            Refusal::Source => self.counters.refused_sources.increment(),
            Refusal::Limit => self.counters.refused_at_limit.increment(),
            Refusal::NoEndpoint => self.counters.refused_without_endpoint.increment(),
            Refusal::Failed | Refusal::Exhausted => self.counters.failures.increment(),
        }
    }
}

// === impl Permit ===

impl Permit {
    /// Counts a connection or association, unless the port or the relay, which may have `limit` of them, is full.
    pub(crate) fn new(port: &Arc<Port>, totals: &Arc<Totals>, kind: PermitKind, limit: usize) -> Result<Self, Refusal> {
        let (of_port, of_all) = gauges(port, totals, kind);
        if !of_all.enter(limit) {
            return Err(Refusal::Limit);
        }
        if !of_port.enter(port.limit.load(Ordering::Relaxed)) {
            of_all.leave();
            return Err(Refusal::Limit);
        }
        Ok(Self { port: Arc::clone(port), totals: Arc::clone(totals), kind })
    }

    pub(crate) fn port(&self) -> &Arc<Port> {
        &self.port
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (of_port, of_all) = gauges(&self.port, &self.totals, self.kind);
        of_port.leave();
        of_all.leave();
    }
}

fn gauges<'a>(port: &'a Port, totals: &'a Totals, kind: PermitKind) -> (&'a Gauge, &'a Gauge) {
    match kind {
        PermitKind::Connection => (&port.counters.open_connections, &totals.open_connections),
        PermitKind::Association => (&port.counters.open_associations, &totals.open_associations),
    }
}
