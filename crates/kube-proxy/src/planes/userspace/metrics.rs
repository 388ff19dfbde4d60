//! Metrics of mode userspace, read from the relay's counters at each scrape: by port of a Service, by endpoint, and of all together.
//!
//! Ports and endpoints that nobody has used have no series, so that a page of thousands of Services stays small.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use ferry_api::object::Family;
use ferry_plane_userspace::{EndpointReading, PortReading, Readings, Totals};
use prometheus::{IntCounterVec, IntGaugeVec, Registry};

use crate::metrics::MetricKind::{Counter, Gauge, Histogram};
use crate::metrics::MetricRow;
use crate::metrics::mode::{FAILURES, ModeMetrics, catch_up};
use crate::metrics::row::row;

/// The metrics of mode userspace.
pub(super) struct UserspaceMetrics {
    readings: Readings,
    /// named as upstream's, where alerts look
    failures: IntCounterVec,
    of_port: Vec<(&'static PortSeries, MetricVector)>,
    of_endpoint: Vec<(&'static EndpointSeries, MetricVector)>,
    of_all: Vec<(&'static TotalSeries, IntCounterVec)>,
}

/// The vector of a row.
enum MetricVector {
    Counter(IntCounterVec),
    Gauge(IntGaugeVec),
}

/// The value of a further label, if the row has one, and a number.
type Shown = (Option<&'static str>, u64);

/// A row with what it shows of a service port; the values of further labels come with the numbers.
struct PortSeries {
    row: MetricRow,
    read: fn(&PortReading) -> Vec<Shown>,
}

/// A row with what it shows of an endpoint.
struct EndpointSeries {
    row: MetricRow,
    read: fn(&EndpointReading) -> Vec<Shown>,
}

/// A row with what it shows of the whole relay.
struct TotalSeries {
    row: MetricRow,
    read: fn(&Totals) -> u64,
}

const PORT: &[&str] = &["ip_family", "namespace", "service", "port", "protocol"];
const PORT_REASON: &[&str] = &["ip_family", "namespace", "service", "port", "protocol", "reason"];
const PORT_DIRECTION: &[&str] = &["ip_family", "namespace", "service", "port", "protocol", "direction"];
const ENDPOINT: &[&str] = &["ip_family", "namespace", "service", "port", "protocol", "endpoint"];
const ENDPOINT_DIRECTION: &[&str] = &["ip_family", "namespace", "service", "port", "protocol", "endpoint", "direction"];

const WAY: MetricRow =
    row("kubeproxy_userspace_way", Gauge, &["way"], "1 for the way in which traffic reaches the proxy");
const CONNECTIONS: MetricRow = row(
    "kubeproxy_userspace_connections_total",
    Counter,
    PORT,
    "TCP connections that reached an endpoint, and UDP associations, by port of a Service",
);
const OPEN: MetricRow = row(
    "kubeproxy_userspace_open_connections",
    Gauge,
    PORT,
    "Open TCP connections and UDP associations, by port of a Service",
);
const PORT_FAILURES: MetricRow = row(
    "kubeproxy_userspace_failures_total",
    Counter,
    PORT,
    "Connections for which no endpoint could be reached, by port of a Service",
);
const RETRIES: MetricRow = row(
    "kubeproxy_userspace_retries_total",
    Counter,
    PORT,
    "Tries after the first one of a connection, by port of a Service",
);
const REFUSED: MetricRow = row(
    "kubeproxy_userspace_refused_total",
    Counter,
    PORT_REASON,
    "Connections that were refused, by port of a Service and reason",
);
const BYTES: MetricRow = row(
    "kubeproxy_userspace_bytes_total",
    Counter,
    PORT_DIRECTION,
    "Relayed bytes, by port of a Service and direction",
);
const DROPPED: MetricRow = row(
    "kubeproxy_userspace_dropped_datagrams_total",
    Counter,
    PORT,
    "Datagrams that a full buffer or an error of a socket has cost, by port of a Service",
);
const ENDPOINT_CONNECTIONS: MetricRow = row(
    "kubeproxy_userspace_endpoint_connections_total",
    Counter,
    ENDPOINT,
    "TCP connections and UDP associations to an endpoint",
);
const ENDPOINT_OPEN: MetricRow = row(
    "kubeproxy_userspace_endpoint_open_connections",
    Gauge,
    ENDPOINT,
    "Open TCP connections and UDP associations to an endpoint",
);
const ENDPOINT_FAILURES: MetricRow = row(
    "kubeproxy_userspace_endpoint_failures_total",
    Counter,
    ENDPOINT,
    "Tries of an endpoint that were refused or timed out",
);
const ENDPOINT_BYTES: MetricRow = row(
    "kubeproxy_userspace_endpoint_bytes_total",
    Counter,
    ENDPOINT_DIRECTION,
    "Relayed bytes, by endpoint and direction",
);
const LISTENER_ERRORS: MetricRow = row(
    "kubeproxy_userspace_listener_errors_total",
    Counter,
    &[],
    "Listeners that could not be opened, or failed later",
);
const WITHOUT_ROUTE: MetricRow = row(
    "kubeproxy_userspace_refused_without_route_total",
    Counter,
    &[],
    "Connections that were reset because no port of a Service has their destination",
);
const EXHAUSTED: MetricRow = row(
    "kubeproxy_userspace_exhausted_total",
    Counter,
    &[],
    "System calls that failed because file descriptors, memory or local ports were used up",
);

const OF_PORT: &[PortSeries] = &[
    PortSeries { row: CONNECTIONS, read: |port| vec![(None, port.connections)] },
    PortSeries { row: OPEN, read: |port| vec![(None, port.open)] },
    PortSeries { row: PORT_FAILURES, read: |port| vec![(None, port.failures)] },
    PortSeries { row: RETRIES, read: |port| vec![(None, port.retries)] },
    PortSeries {
        row: REFUSED,
        read: |port| {
            vec![
                (Some("no_endpoint"), port.refused_without_endpoint),
                (Some("limit"), port.refused_at_limit),
                (Some("source"), port.refused_sources),
            ]
        },
    },
    PortSeries {
        row: BYTES,
        read: |port| vec![(Some("to_endpoints"), port.bytes_to_endpoints), (Some("to_clients"), port.bytes_to_clients)],
    },
    PortSeries { row: DROPPED, read: |port| vec![(None, port.dropped_datagrams)] },
];

const OF_ENDPOINT: &[EndpointSeries] = &[
    EndpointSeries { row: ENDPOINT_CONNECTIONS, read: |endpoint| vec![(None, endpoint.connections)] },
    EndpointSeries { row: ENDPOINT_OPEN, read: |endpoint| vec![(None, endpoint.open)] },
    EndpointSeries { row: ENDPOINT_FAILURES, read: |endpoint| vec![(None, endpoint.failures)] },
    EndpointSeries {
        row: ENDPOINT_BYTES,
        read: |endpoint| {
            let EndpointReading { bytes_to_endpoint, bytes_to_clients, .. } = *endpoint;
            vec![(Some("to_endpoints"), bytes_to_endpoint), (Some("to_clients"), bytes_to_clients)]
        },
    },
];

const OF_ALL: &[TotalSeries] = &[
    TotalSeries { row: LISTENER_ERRORS, read: |totals| totals.listener_errors.value() },
    TotalSeries { row: WITHOUT_ROUTE, read: |totals| totals.refused_without_route.value() },
    TotalSeries { row: EXHAUSTED, read: |totals| totals.exhausted.value() },
];

/// Every metric of mode userspace.
pub(super) const USERSPACE_TABLE: &[MetricRow] = &[
    FAILURES,
    WAY,
    CONNECTIONS,
    OPEN,
    PORT_FAILURES,
    RETRIES,
    REFUSED,
    BYTES,
    DROPPED,
    ENDPOINT_CONNECTIONS,
    ENDPOINT_OPEN,
    ENDPOINT_FAILURES,
    ENDPOINT_BYTES,
    LISTENER_ERRORS,
    WITHOUT_ROUTE,
    EXHAUSTED,
];

// === impl MetricVector ===

impl MetricVector {
    fn register(row: &MetricRow, registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(match row.kind {
            Gauge => Self::Gauge(row.gauges(registry)?),
            Counter | Histogram(_) => Self::Counter(row.counters(registry)?),
        })
    }

    /// Forgets ports and endpoints that are gone.
    fn reset(&self) {
        match self {
            Self::Counter(counters) => counters.reset(),
            Self::Gauge(gauges) => gauges.reset(),
        }
    }

    fn show(&self, labels: &[&str], value: u64) {
        match self {
            Self::Counter(counters) => catch_up(counters, labels, value),
            Self::Gauge(gauges) => gauges.with_label_values(labels).set(i64::try_from(value).unwrap_or(i64::MAX)),
        }
    }
}

// === impl UserspaceMetrics ===

impl UserspaceMetrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub(super) fn register(
        readings: Readings,
        way: &str,
        registry: &Registry,
    ) -> Result<Box<dyn ModeMetrics>, prometheus::Error> {
        WAY.gauges(registry)?.with_label_values(&[way]).set(1);
        let of_port = OF_PORT.iter().map(|series| Ok((series, MetricVector::register(&series.row, registry)?)));
        let of_endpoint = OF_ENDPOINT.iter().map(|series| Ok((series, MetricVector::register(&series.row, registry)?)));
        let of_all = OF_ALL.iter().map(|series| Ok((series, series.row.counters(registry)?)));
        Ok(Box::new(Self {
            readings,
            failures: FAILURES.counters(registry)?,
            of_port: of_port.collect::<Result<_, prometheus::Error>>()?,
            of_endpoint: of_endpoint.collect::<Result<_, prometheus::Error>>()?,
            of_all: of_all.collect::<Result<_, prometheus::Error>>()?,
        }))
    }

    fn show_port(&self, port: &PortReading) {
        let (family, protocol) = (port.family.to_string(), port.protocol.to_string());
        let labels = [family.as_str(), port.namespace(), port.service(), &port.name, &protocol];
        for (series, vector) in &self.of_port {
            for (extra, value) in (series.read)(port) {
                if value > 0 || extra.is_none() {
                    vector.show(&labels.iter().copied().chain(extra).collect::<Vec<_>>(), value);
                }
            }
        }
        // An endpoint has a reading for each scope.
        let mut by_address: BTreeMap<SocketAddr, EndpointReading> = BTreeMap::new();
        for endpoint in &port.endpoints {
            by_address.entry(endpoint.address).and_modify(|known| known.add(endpoint)).or_insert(*endpoint);
        }
        for (address, endpoint) in &by_address {
            let address = address.to_string();
            for (series, vector) in &self.of_endpoint {
                for (extra, value) in (series.read)(endpoint) {
                    vector.show(&labels.iter().copied().chain([&*address]).chain(extra).collect::<Vec<_>>(), value);
                }
            }
        }
    }
}

impl ModeMetrics for UserspaceMetrics {
    fn failed(&self, family: Family) {
        self.failures.with_label_values(&[family.to_string()]).inc();
    }

    fn refresh(&self) {
        for (_, vector) in &self.of_port {
            vector.reset();
        }
        for (_, vector) in &self.of_endpoint {
            vector.reset();
        }
        self.readings.ports().iter().for_each(|port| self.show_port(port));
        for (series, counters) in &self.of_all {
            catch_up(counters, &[], (series.read)(self.readings.totals()));
        }
    }
}

impl fmt::Debug for UserspaceMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserspaceMetrics").finish_non_exhaustive()
    }
}
