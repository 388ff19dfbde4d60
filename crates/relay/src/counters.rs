//! Counters that the relay's threads raise and any thread reads: one atomic number each, so reading costs no lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// The number of things that exist now, for example open connections.
#[derive(Debug, Default)]
pub struct Gauge(AtomicUsize);

/// The counts of what a service port has served and refused.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// Connections that reached an endpoint.
    pub connections: Counter,
    /// Connections that are open, those that are being established included.
    pub open_connections: Gauge,
    /// UDP associations that were made.
    pub associations: Counter,
    /// UDP associations that exist.
    pub open_associations: Gauge,
    /// Connections, or first datagrams, refused because the port has no endpoint.
    pub refused_without_endpoint: Counter,
    /// Connections, or datagrams, refused because the source ranges don't contain the client.
    pub refused_sources: Counter,
    /// Connections, or first datagrams, refused at the limit of the port or of the relay.
    pub refused_at_limit: Counter,
    /// Connections, or first datagrams, for which every try failed.
    pub failures: Counter,
    /// Tries after the first one of a connection or association.
    pub retries: Counter,
    /// Bytes from clients to endpoints.
    pub bytes_to_endpoints: Counter,
    /// Bytes from endpoints to clients.
    pub bytes_to_clients: Counter,
    /// Datagrams that a full buffer or an error of a socket has cost.
    pub dropped_datagrams: Counter,
}

/// The counts of what one endpoint of a service port has served.
#[derive(Debug, Default)]
pub struct EndpointCounters {
    /// Established connections, and UDP associations.
    pub connections: Counter,
    /// Those that are open.
    pub open: Gauge,
    /// Tries that were refused or timed out, and associations that an ICMP error ended.
    pub failures: Counter,
    /// Bytes from clients.
    pub bytes_to_endpoint: Counter,
    /// Bytes to clients.
    pub bytes_from_endpoint: Counter,
}

/// The counters of the whole relay.
#[derive(Debug, Default)]
pub struct Totals {
    /// Open connections of all ports.
    pub open_connections: Gauge,
    /// UDP associations of all ports.
    pub open_associations: Gauge,
    /// Failures to open a listener, and listeners that failed later.
    pub listener_errors: Counter,
    /// Connections to gates that were refused because their original destination is unknown, is the gate itself, or has no route.
    pub refused_without_route: Counter,
    /// Calls that failed because descriptors or memory for sockets were exhausted.
    pub exhausted: Counter,
}

// === impl Counter ===

impl Counter {
    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts so many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }
}

// === impl Gauge ===

impl Gauge {
    /// The number.
    pub fn value(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more, unless `limit` of them exist; returns whether it did.
    pub fn enter(&self, limit: usize) -> bool {
        let entered = self.0.fetch_add(1, Ordering::Relaxed) < limit;
        if !entered {
            self.leave();
        }
        entered
    }

    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_stops_at_its_limit() {
        let gauge = Gauge::default();
        assert!(gauge.enter(2) && gauge.enter(2));
        assert!(!gauge.enter(2));
        assert_eq!(gauge.value(), 2);
        gauge.leave();
        assert!(gauge.enter(2));
    }
}
