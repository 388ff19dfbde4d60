//! Counters that the relay's threads raise and any thread reads: one atomic number each, so reading costs no lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

/// The number of things that exist now, for example open connections.
#[derive(Debug, Default)]
pub struct Gauge(AtomicUsize);

/// The counts of what a service port has served and refused.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// Connections that reached an endpoint.
    pub connections: Count,
    /// Connections that are open, those that are being established included.
    pub open_connections: Gauge,
    /// UDP associations that were made.
    pub associations: Count,
    /// UDP associations that exist.
    pub open_associations: Gauge,
    /// Connections, or first datagrams, refused because the port has no endpoint.
    pub refused_without_endpoint: Count,
    /// Connections, or datagrams, refused because the source ranges don't contain the client.
    pub refused_sources: Count,
    /// Connections, or first datagrams, refused at the limit of the port or of the relay.
    pub refused_at_limit: Count,
    /// Connections, or first datagrams, for which every try failed.
    pub failures: Count,
    /// Tries after the first one of a connection or association.
    pub retries: Count,
    /// Bytes from clients to endpoints.
    pub bytes_to_endpoints: Count,
    /// Bytes from endpoints to clients.
    pub bytes_to_clients: Count,
    /// Datagrams that a full buffer or an error of a socket has cost.
    pub dropped_datagrams: Count,
}

/// The counts of what one endpoint of a service port has served.
#[derive(Debug, Default)]
pub struct EndpointCounters {
    /// Established connections, and UDP associations.
    pub connections: Count,
    /// Those that are open.
    pub open: Gauge,
    /// Tries that were refused or timed out, and associations that an ICMP error ended.
    pub failures: Count,
    /// Bytes from clients.
    pub bytes_to_endpoint: Count,
    /// Bytes to clients.
    pub bytes_from_endpoint: Count,
}

/// The counters of the whole relay.
#[derive(Debug, Default)]
pub struct Totals {
    /// Open connections of all ports.
    pub open_connections: Gauge,
    /// UDP associations of all ports.
    pub open_associations: Gauge,
    /// Failures to open a listener, and listeners that failed later.
    pub listener_errors: Count,
    /// Connections to gates that were refused because their original destination is unknown, is the gate itself, or has no route.
    pub refused_without_route: Count,
    /// Calls that failed because descriptors or memory for sockets were exhausted.
    pub exhausted: Count,
}

// === impl Count ===

impl Count {
    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
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

    /// Counts one more, unless `limit` of them exist.
    pub(crate) fn enter(&self, limit: usize) -> bool {
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
