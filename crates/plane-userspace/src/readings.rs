//! Readings of the relay's counters, by port of a Service.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferry_api::object::{Family, ObjectName, Protocol};
use ferry_relay::{Balancer, Endpoint, Port, Relay, Totals};

use crate::port::{PortId, SCOPES};

/// The ports of the relay, whose engines note them, for metrics.
#[derive(Clone, Debug, Default)]
pub struct PortDirectory(Arc<Mutex<Ports>>);

#[derive(Debug, Default)]
struct Ports {
    served: BTreeMap<(Family, PortId), ServedPort>,
    /// of what served these ports before: counters never fall
    past: BTreeMap<(Family, PortId), PortReading>,
}

/// A service port with one scope.
#[derive(Debug, Default)]
struct ServedPort {
    /// its ports of the relay: several where its listeners serve in different ways
    ports: Vec<Arc<Port>>,
    /// has the endpoints
    balancer: Option<Arc<Balancer>>,
}

/// Reads the counters of a relay.
#[derive(Clone, Debug)]
pub struct Readings {
    directory: PortDirectory,
    relay: Arc<Relay>,
}

/// The counts of a port of a Service since it is served, both scopes together; only of one with connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReading {
    /// the family
    pub family: Family,
    service: ObjectName,
    /// the port's name; empty when unnamed
    pub name: Arc<str>,
    /// its protocol
    pub protocol: Protocol,
    /// TCP connections that reached an endpoint, or UDP associations
    pub connections: u64,
    /// open ones
    pub open: u64,
    /// connections for which no endpoint could be reached
    pub failures: u64,
    /// tries after the first one of a connection
    pub retries: u64,
    /// connections refused because there was no endpoint
    pub refused_without_endpoint: u64,
    /// connections refused at a limit
    pub refused_at_limit: u64,
    /// connections refused because the source ranges don't contain the client (way bind: in way redirect the table drops them)
    pub refused_sources: u64,
    /// bytes from clients
    pub bytes_to_endpoints: u64,
    /// bytes to clients
    pub bytes_to_clients: u64,
    /// lost datagrams
    pub dropped_datagrams: u64,
    /// the endpoints that were used, and those removed that connections hold: some more than once, if both scopes have them
    pub endpoints: Vec<EndpointReading>,
}

/// The counts of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointReading {
    /// its address
    pub address: SocketAddr,
    /// established connections and associations
    pub connections: u64,
    /// open ones
    pub open: u64,
    /// tries that were refused or timed out
    pub failures: u64,
    /// bytes from clients
    pub bytes_to_endpoint: u64,
    /// bytes to clients
    pub bytes_to_clients: u64,
}

// === impl PortDirectory ===

impl PortDirectory {
    pub(crate) fn insert_port(&self, family: Family, id: &PortId, port: &Arc<Port>) {
        self.lock().served.entry((family, id.clone())).or_default().ports.push(Arc::clone(port));
    }

    pub(crate) fn insert_balancer(&self, family: Family, id: &PortId, balancer: &Arc<Balancer>) {
        self.lock().served.entry((family, id.clone())).or_default().balancer = Some(Arc::clone(balancer));
    }

    /// Forgets a port of the relay; its counts only with the last thing that serves the service port.
    pub(crate) fn remove_port(&self, family: Family, id: &PortId, port: &Arc<Port>) {
        let mut ports = self.lock();
        let key = (family, id.clone());
        if let Some(served) = ports.served.get_mut(&key) {
            served.ports.retain(|known| !Arc::ptr_eq(known, port));
        }
        let mut reading = PortReading::of(family, id);
        reading.count(port);
        reading.open = 0;
        match ports.past.get_mut(&key) {
            Some(past) => past.add(reading),
            None => drop(ports.past.insert(key, reading)),
        }
        ports.forget_ended(family, id);
    }

    pub(crate) fn remove_balancer(&self, family: Family, id: &PortId) {
        let mut ports = self.lock();
        if let Some(served) = ports.served.get_mut(&(family, id.clone())) {
            served.balancer = None;
        }
        ports.forget_ended(family, id);
    }

    fn lock(&self) -> MutexGuard<'_, Ports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Ports ===

impl Ports {
    /// Forgets a service port that is not served with this scope any more, and its counts if it isn't with either.
    fn forget_ended(&mut self, family: Family, id: &PortId) {
        let key = (family, id.clone());
        if self.served.get(&key).is_some_and(ServedPort::has_ended) {
            self.served.remove(&key);
        }
        let scopes = SCOPES.map(|scope| (family, PortId { scope, ..id.clone() }));
        if !scopes.iter().any(|scope| self.served.contains_key(scope)) {
            scopes.iter().for_each(|scope| drop(self.past.remove(scope)));
        }
    }
}

// === impl ServedPort ===

impl ServedPort {
    fn has_ended(&self) -> bool {
        self.ports.is_empty() && self.balancer.is_none()
    }

    fn reading(&self, family: Family, id: &PortId) -> PortReading {
        let mut reading = PortReading::of(family, id);
        self.ports.iter().for_each(|port| reading.count(port));
        let endpoints = self.balancer.iter().flat_map(|balancer| balancer.known());
        let endpoints = endpoints.map(|endpoint| EndpointReading::of(&endpoint));
        reading.endpoints = endpoints.filter(|endpoint| endpoint.connections + endpoint.failures > 0).collect();
        reading
    }
}

// === impl EndpointReading ===

impl EndpointReading {
    fn of(endpoint: &Endpoint) -> Self {
        let counters = endpoint.counters();
        Self {
            address: endpoint.address(),
            connections: counters.connections.value(),
            open: count(counters.open.value()),
            failures: counters.failures.value(),
            bytes_to_endpoint: counters.bytes_to_endpoint.value(),
            bytes_to_clients: counters.bytes_from_endpoint.value(),
        }
    }

    /// Adds the counts of the same endpoint in the other scope.
    pub fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.open += other.open;
        self.failures += other.failures;
        self.bytes_to_endpoint += other.bytes_to_endpoint;
        self.bytes_to_clients += other.bytes_to_clients;
    }
}

// === impl Readings ===

impl Readings {
    /// Of this relay's ports.
    pub fn new(directory: PortDirectory, relay: Arc<Relay>) -> Self {
        Self { directory, relay }
    }

    /// The counters of all ports together.
    pub fn totals(&self) -> &Totals {
        self.relay.totals()
    }

    /// The ports with connections, in order.
    pub fn ports(&self) -> Vec<PortReading> {
        let ports = self.directory.lock();
        let served = ports.served.iter().map(|(key, port)| ((key, false), port.reading(key.0, &key.1)));
        let past = ports.past.iter().map(|(key, reading)| ((key, true), reading.clone()));
        let of_scopes: BTreeMap<_, _> = served.chain(past).collect();
        let mut readings: Vec<PortReading> = Vec::new();
        for reading in of_scopes.into_values() {
            match readings.last_mut() {
                Some(last) if last.is_same(&reading) => last.add(reading),
                Some(_) | None => readings.push(reading),
            }
        }
        readings.retain(PortReading::is_used);
        readings
    }
}

// === impl PortReading ===

impl PortReading {
    /// Without counts.
    fn of(family: Family, id: &PortId) -> Self {
        Self {
            family,
            service: id.service.clone(),
            name: Arc::clone(&id.name),
            protocol: id.protocol,
            connections: 0,
            open: 0,
            failures: 0,
            retries: 0,
            refused_without_endpoint: 0,
            refused_at_limit: 0,
            refused_sources: 0,
            bytes_to_endpoints: 0,
            bytes_to_clients: 0,
            dropped_datagrams: 0,
            endpoints: Vec::new(),
        }
    }

    /// Adds the counts of a port of the relay.
    fn count(&mut self, port: &Port) {
        let counters = port.counters();
        self.connections += counters.connections.value() + counters.associations.value();
        self.open += count(counters.open_connections.value() + counters.open_associations.value());
        self.failures += counters.failures.value();
        self.retries += counters.retries.value();
        self.refused_without_endpoint += counters.refused_without_endpoint.value();
        self.refused_at_limit += counters.refused_at_limit.value();
        self.refused_sources += counters.refused_sources.value();
        self.bytes_to_endpoints += counters.bytes_to_endpoints.value();
        self.bytes_to_clients += counters.bytes_to_clients.value();
        self.dropped_datagrams += counters.dropped_datagrams.value();
    }

    /// The namespace of the Service.
    pub fn namespace(&self) -> &str {
        self.service.namespace()
    }

    /// The name of the Service.
    pub fn service(&self) -> &str {
        self.service.name()
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.family, &self.service, &self.name, self.protocol)
            == (other.family, &other.service, &other.name, other.protocol)
    }

    fn is_used(&self) -> bool {
        let refused = self.refused_without_endpoint + self.refused_at_limit + self.refused_sources;
        self.connections + self.open + self.failures + refused > 0
    }

    /// Adds the counts of the other scope, or of the past.
    fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.open += other.open;
        self.failures += other.failures;
        self.retries += other.retries;
        self.refused_without_endpoint += other.refused_without_endpoint;
        self.refused_at_limit += other.refused_at_limit;
        self.refused_sources += other.refused_sources;
        self.bytes_to_endpoints += other.bytes_to_endpoints;
        self.bytes_to_clients += other.bytes_to_clients;
        self.dropped_datagrams += other.dropped_datagrams;
        self.endpoints.extend(other.endpoints);
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
