//! Readings of the relay's counters, by port of a Service.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferry_api::object::{Family, ObjectName, Protocol};
use ferry_relay::{Port, Relay, Totals};

use crate::base::SCOPES;
use crate::element::PortId;

/// The ports of the relay, whose engines note them, for metrics.
#[derive(Clone, Debug, Default)]
pub struct Directory(Arc<Mutex<Ports>>);

#[derive(Debug, Default)]
struct Ports {
    served: BTreeMap<(Family, PortId), Arc<Port>>,
    /// the scopes of served ports that are not served any more: counters never fall
    past: BTreeMap<(Family, PortId), PortReading>,
}

/// Reads the counters of a relay.
#[derive(Clone, Debug)]
pub struct Readings {
    directory: Directory,
    relay: Arc<Relay>,
}

/// The counts of a port of a Service since it is served, both scopes together; only of one that somebody has used.
#[derive(Clone, Debug)]
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
    /// bytes from clients
    pub bytes_to_endpoints: u64,
    /// bytes to clients
    pub bytes_to_clients: u64,
    /// lost datagrams
    pub dropped_datagrams: u64,
    /// the endpoints that were used, each once for each scope
    pub endpoints: Vec<EndpointReading>,
}

/// The counts of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointReading {
    /// its address
    pub address: SocketAddr,
    /// established connections and associations
    pub connections: u64,
    /// open ones
    pub open: u64,
    /// tries that were refused or timed out
    pub failures: u64,
}

// === impl Directory ===

impl Directory {
    pub(crate) fn insert(&self, family: Family, id: &PortId, port: &Arc<Port>) {
        self.lock().served.insert((family, id.clone()), Arc::clone(port));
    }

    /// Forgets a scope of a port; its counts only with the last one.
    pub(crate) fn remove(&self, family: Family, id: &PortId) {
        let mut ports = self.lock();
        let key = (family, id.clone());
        let Some(port) = ports.served.remove(&key) else { return };
        let scopes = SCOPES.map(|scope| (family, PortId { scope, ..id.clone() }));
        if scopes.iter().any(|scope| ports.served.contains_key(scope)) {
            let reading = PortReading { open: 0, endpoints: Vec::new(), ..PortReading::of(family, id, &port) };
            match ports.past.get_mut(&key) {
                Some(past) => past.add(reading),
                None => drop(ports.past.insert(key, reading)),
            }
        } else {
            scopes.iter().for_each(|scope| drop(ports.past.remove(scope)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Readings ===

impl Readings {
    /// Of this relay's ports.
    pub fn new(directory: Directory, relay: Arc<Relay>) -> Self {
        Self { directory, relay }
    }

    /// The counters of all ports together.
    pub fn totals(&self) -> &Totals {
        self.relay.totals()
    }

    /// The ports that somebody has used, in order.
    pub fn ports(&self) -> Vec<PortReading> {
        let ports = self.directory.lock();
        let served = ports.served.iter().map(|(key, port)| ((key, false), PortReading::of(key.0, &key.1, port)));
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
    fn of(family: Family, id: &PortId, port: &Port) -> Self {
        let counters = port.counters();
        let endpoints = port.endpoints();
        let endpoints = endpoints.iter().map(|endpoint| EndpointReading {
            address: endpoint.address(),
            connections: endpoint.counters().connections.value(),
            open: count(endpoint.counters().open.value()),
            failures: endpoint.counters().failures.value(),
        });
        Self {
            family,
            service: id.service.clone(),
            name: Arc::clone(&id.name),
            protocol: id.protocol,
            connections: counters.connections.value() + counters.associations.value(),
            open: count(counters.open_connections.value() + counters.open_associations.value()),
            failures: counters.failures.value(),
            retries: counters.retries.value(),
            refused_without_endpoint: counters.refused_without_endpoint.value(),
            refused_at_limit: counters.refused_at_limit.value(),
            bytes_to_endpoints: counters.bytes_to_endpoints.value(),
            bytes_to_clients: counters.bytes_to_clients.value(),
            dropped_datagrams: counters.dropped_datagrams.value(),
            endpoints: endpoints.filter(|endpoint| endpoint.connections + endpoint.failures > 0).collect(),
        }
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
        self.connections + self.open + self.failures + self.refused_without_endpoint + self.refused_at_limit > 0
    }

    /// Adds the other scope's counts.
    fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.open += other.open;
        self.failures += other.failures;
        self.retries += other.retries;
        self.refused_without_endpoint += other.refused_without_endpoint;
        self.refused_at_limit += other.refused_at_limit;
        self.bytes_to_endpoints += other.bytes_to_endpoints;
        self.bytes_to_clients += other.bytes_to_clients;
        self.dropped_datagrams += other.dropped_datagrams;
        self.endpoints.extend(other.endpoints);
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
