use ferry_model::Scope;
use ferry_relay::{DEFAULT_PENALTY, PortCounters, RelayConfig};

use super::*;

/// The numbers that [`counted`] counts; other ones for each count, so that sums show all of them.
const FIRST: u64 = 100;
const SECOND: u64 = 1_000;

// === impl PortDirectory ===

impl PortDirectory {
    /// The service ports that are served in a family.
    pub(crate) fn serves(&self, family: Family) -> impl Iterator<Item = PortId> {
        let served: Vec<_> = self.lock().served.keys().cloned().collect();
        served.into_iter().filter(move |(of, _)| *of == family).map(|(_, id)| id)
    }
}

fn id(name: &str, scope: Scope) -> PortId {
    PortId { service: ObjectName::new("demo", "web"), name: name.into(), protocol: Protocol::Tcp, scope }
}

fn readings() -> Readings {
    let (relay, _) = Relay::new(RelayConfig { workers: 1, ..RelayConfig::default() }).unwrap();
    Readings::new(PortDirectory::default(), Arc::new(relay))
}

fn port() -> Arc<Port> {
    Arc::new(Port::new("web", Arc::new(Balancer::new(None, DEFAULT_PENALTY)), usize::MAX))
}

/// A port of the relay that has counted this number, and one, two, three and so on more.
fn counted(number: u64) -> Arc<Port> {
    let port = port();
    let of = port.counters();
    let counters = [
        &of.connections,
        &of.associations,
        &of.failures,
        &of.retries,
        &of.refused_without_endpoint,
        &of.refused_at_limit,
        &of.refused_sources,
        &of.bytes_to_endpoints,
        &of.bytes_to_clients,
        &of.dropped_datagrams,
    ];
    for (counter, more) in counters.into_iter().zip(0..) {
        counter.add(number + more);
    }
    for (gauge, times) in [(&of.open_connections, number), (&of.open_associations, number + 1)] {
        assert!((0..times).all(|_| gauge.enter(usize::MAX)));
    }
    port
}

/// The reading of ports that have counted these numbers; those that have counted `open` are still served.
fn read(family: Family, numbers: &[u64], open: &[u64]) -> PortReading {
    let sum = |more: u64| numbers.iter().map(|number| number + more).sum::<u64>();
    PortReading {
        connections: sum(0) + sum(1),
        open: open.iter().map(|number| 2 * number + 1).sum(),
        failures: sum(2),
        retries: sum(3),
        refused_without_endpoint: sum(4),
        refused_at_limit: sum(5),
        refused_sources: sum(6),
        bytes_to_endpoints: sum(7),
        bytes_to_clients: sum(8),
        dropped_datagrams: sum(9),
        ..PortReading::of(family, &id("http", Scope::Cluster))
    }
}

#[test]
fn the_ports_of_both_scopes_are_read_as_one_and_those_that_went_are_counted() {
    let readings = readings();
    let (directory, [cluster, local]) = (&readings.directory, SCOPES.map(|scope| id("http", scope)));
    let (first, second) = (counted(FIRST), counted(SECOND));
    directory.insert_port(Family::V4, &cluster, &first);
    directory.insert_port(Family::V4, &local, &second);
    directory.insert_port(Family::V6, &local, &counted(FIRST));
    let v6 = read(Family::V6, &[FIRST], &[FIRST]);
    assert_eq!(readings.ports(), [read(Family::V4, &[FIRST, SECOND], &[FIRST, SECOND]), v6.clone()]);
    // Open connections of a port that went are in the relay's counts, not in the service port's.
    directory.remove_port(Family::V4, &local, &second);
    assert_eq!(readings.ports(), [read(Family::V4, &[FIRST, SECOND], &[FIRST]), v6.clone()]);
    directory.insert_port(Family::V4, &local, &first);
    directory.remove_port(Family::V4, &local, &first);
    assert_eq!(readings.ports(), [read(Family::V4, &[FIRST, SECOND, FIRST], &[FIRST]), v6.clone()]);
    // With the last scope that is served all are forgotten.
    directory.remove_port(Family::V4, &cluster, &first);
    assert_eq!(readings.ports(), [v6]);
    assert!(std::ptr::eq(readings.totals(), readings.relay.totals()));
}

#[test]
fn counts_stay_while_a_port_or_a_balancer_serves() {
    let readings = readings();
    let (directory, http) = (&readings.directory, id("http", Scope::Cluster));
    let (balancer, first) = (Arc::new(Balancer::new(None, DEFAULT_PENALTY)), counted(FIRST));
    directory.insert_port(Family::V4, &http, &first);
    directory.insert_balancer(Family::V4, &http, &balancer);
    directory.remove_port(Family::V4, &http, &first);
    assert_eq!(readings.ports(), [read(Family::V4, &[FIRST], &[])]);
    directory.insert_port(Family::V4, &http, &port());
    directory.remove_balancer(Family::V4, &http);
    assert_eq!(readings.ports(), [read(Family::V4, &[FIRST], &[])]);
    assert_eq!(directory.serves(Family::V4).count(), 1);
}

#[test]
fn a_balancer_that_goes_last_ends_a_port() {
    let readings = readings();
    let (directory, http) = (&readings.directory, id("http", Scope::Cluster));
    directory.insert_balancer(Family::V4, &http, &Arc::new(Balancer::new(None, DEFAULT_PENALTY)));
    directory.remove_balancer(Family::V4, &http);
    assert_eq!(directory.serves(Family::V4).count(), 0);
}

#[test]
fn ports_with_other_names_are_read_apart_and_unused_ones_not_at_all() {
    let readings = readings();
    let used: [fn(&PortCounters); 6] = [
        |of| of.connections.add(1),
        |of| assert!(of.open_connections.enter(1)),
        |of| of.failures.add(1),
        |of| of.refused_without_endpoint.add(1),
        |of| of.refused_at_limit.add(1),
        |of| of.refused_sources.add(1),
    ];
    for (number, used) in used.into_iter().enumerate() {
        let port = port();
        used(port.counters());
        readings.directory.insert_port(Family::V4, &id(&format!("port-{number}"), Scope::Cluster), &port);
        readings.directory.insert_port(Family::V4, &id(&format!("unused-{number}"), Scope::Cluster), &self::port());
    }
    let read = readings.ports();
    let names: Vec<_> = read.iter().map(|port| (port.namespace(), port.service(), &*port.name)).collect();
    assert_eq!(names, ["port-0", "port-1", "port-2", "port-3", "port-4", "port-5"].map(|name| ("demo", "web", name)));
}

#[test]
fn endpoints_are_read_that_had_a_connection_or_a_failure() {
    let readings = readings();
    let balancer = Arc::new(Balancer::new(None, DEFAULT_PENALTY));
    let addresses = [1, 2, 3].map(|last| SocketAddr::from(([192, 0, 2, last], 80)));
    balancer.replace(&addresses, []);
    let http = id("http", Scope::Cluster);
    readings.directory.insert_balancer(Family::V4, &http, &balancer);
    readings.directory.insert_port(Family::V4, &http, &counted(FIRST));
    let endpoints = balancer.endpoints();
    let of = endpoints[0].counters();
    [&of.connections, &of.bytes_to_endpoint, &of.bytes_from_endpoint]
        .into_iter()
        .zip(FIRST..)
        .for_each(|(counter, more)| counter.add(more));
    assert!(of.open.enter(usize::MAX));
    endpoints[1].counters().failures.add(1);
    let unused = EndpointReading {
        address: addresses[1],
        connections: 0,
        open: 0,
        failures: 1,
        bytes_to_endpoint: 0,
        bytes_to_clients: 0,
    };
    let used = EndpointReading {
        address: addresses[0],
        connections: FIRST,
        open: 1,
        failures: 0,
        bytes_to_endpoint: FIRST + 1,
        bytes_to_clients: FIRST + 2,
    };
    assert_eq!(readings.ports()[0].endpoints, [used, unused]);
}

#[test]
fn the_counts_of_an_endpoint_in_both_scopes_add_up() {
    let of = |number: u64| EndpointReading {
        address: ([192, 0, 2, 1], 80).into(),
        connections: number,
        open: 2 * number,
        failures: 3 * number,
        bytes_to_endpoint: 5 * number,
        bytes_to_clients: 7 * number,
    };
    let mut sum = of(FIRST);
    sum.add(&of(SECOND));
    assert_eq!(sum, of(FIRST + SECOND));
}
