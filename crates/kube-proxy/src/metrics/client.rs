//! Metrics of the API client, with upstream's names, labels, buckets and help texts.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ferry_client::Observe;
use prometheus::{Gauge, Histogram, HistogramVec, IntCounterVec, IntGauge, Registry};

use super::row::Buckets::{CertificateAge, RequestSeconds, RequestSize};
use super::row::MetricKind::{Counter, Gauge as GaugeKind, Histogram as HistogramKind};
use super::row::{MetricRow, row};

const VERB_HOST: &[&str] = &["verb", "host"];

const REQUESTS: MetricRow = row(
    "rest_client_requests_total",
    Counter,
    &["code", "method", "host"],
    "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
);
const DURATION: MetricRow = row(
    "rest_client_request_duration_seconds",
    HistogramKind(RequestSeconds),
    VERB_HOST,
    "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
);
const LIMITER: MetricRow = row(
    "rest_client_rate_limiter_duration_seconds",
    HistogramKind(RequestSeconds),
    VERB_HOST,
    "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.",
);
const REQUEST_SIZE: MetricRow = row(
    "rest_client_request_size_bytes",
    HistogramKind(RequestSize),
    VERB_HOST,
    "[ALPHA] Request size in bytes. Broken down by verb and host.",
);
const RESPONSE_SIZE: MetricRow = row(
    "rest_client_response_size_bytes",
    HistogramKind(RequestSize),
    VERB_HOST,
    "[ALPHA] Response size in bytes. Broken down by verb and host.",
);
const RETRIES: MetricRow = row(
    "rest_client_request_retries_total",
    Counter,
    &["code", "verb", "host"],
    "[ALPHA] Number of request retries, partitioned by status code, verb, and host.",
);
const PLUGIN_CALLS: MetricRow = row(
    "rest_client_exec_plugin_call_total",
    Counter,
    &["code", "call_status"],
    "[ALPHA] Number of calls to an exec plugin, partitioned by the type of event encountered (no_error, \
     plugin_execution_error, plugin_not_found_error, client_internal_error) and an optional exit code. The exit code will \
     be set to 0 if and only if the plugin call was successful.",
);
const PLUGIN_TTL: MetricRow = row(
    "rest_client_exec_plugin_ttl_seconds",
    GaugeKind,
    &[],
    "[ALPHA] Gauge of the shortest TTL (time-to-live) of the client certificate(s) managed by the auth exec plugin. The \
     value is in seconds until certificate expiry (negative if already expired). If auth exec plugins are unused or \
     manage no TLS certificates, the value will be +INF.",
);
const PLUGIN_AGE: MetricRow = row(
    "rest_client_exec_plugin_certificate_rotation_age",
    HistogramKind(CertificateAge),
    &[],
    "[ALPHA] Histogram of the number of seconds the last auth exec plugin client certificate lived before being rotated. \
     If auth exec plugin client certificates are unused, histogram will contain no data.",
);
const TRANSPORTS: MetricRow = row(
    "rest_client_transport_create_calls_total",
    Counter,
    &["result"],
    "[ALPHA] Number of calls to get a new transport, partitioned by the result of the operation hit: obtained from the \
     cache, miss: created and added to the cache, miss-gc: recreated and added back to the cache after being garbage \
     collected, uncacheable: created and not cached",
);
const TRANSPORT_ENTRIES: MetricRow = row(
    "rest_client_transport_cache_entries",
    GaugeKind,
    &[],
    "[ALPHA] Number of transport entries in the internal cache.",
);

const CONNECTIONS: MetricRow = row(
    "kubeproxy_source_connections_total",
    Counter,
    &["result"],
    "Attempts to connect to the API server: connections made, by their protocol (h2, http/1.1), and those that failed, by \
     whether somebody answered (failed, unreachable)",
);

/// Every metric of this module, in the order of its registration.
pub const TABLE: &[MetricRow] = &[
    REQUESTS,
    DURATION,
    LIMITER,
    REQUEST_SIZE,
    RESPONSE_SIZE,
    RETRIES,
    PLUGIN_CALLS,
    PLUGIN_TTL,
    PLUGIN_AGE,
    TRANSPORTS,
    TRANSPORT_ENTRIES,
    CONNECTIONS,
];

/// Metrics of the API client.
#[derive(Debug)]
pub struct RestMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    limiter: HistogramVec,
    request_size: HistogramVec,
    response_size: HistogramVec,
    retries: IntCounterVec,
    plugin_calls: IntCounterVec,
    plugin_ttl: Gauge,
    plugin_age: Histogram,
    transports: IntCounterVec,
    transport_entries: IntGauge,
    connections: IntCounterVec,
    /// expiry of a plugin's certificate
    plugin_expiry: Mutex<Option<SystemTime>>,
}

// === impl RestMetrics ===

impl RestMetrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: REQUESTS.counters(registry)?,
            duration: DURATION.histograms(registry)?,
            limiter: LIMITER.histograms(registry)?,
            request_size: REQUEST_SIZE.histograms(registry)?,
            response_size: RESPONSE_SIZE.histograms(registry)?,
            retries: RETRIES.counters(registry)?,
            plugin_calls: PLUGIN_CALLS.counters(registry)?,
            plugin_ttl: PLUGIN_TTL.float_gauge(registry)?,
            plugin_age: PLUGIN_AGE.histogram(registry)?,
            transports: TRANSPORTS.counters(registry)?,
            transport_entries: TRANSPORT_ENTRIES.gauge(registry)?,
            connections: CONNECTIONS.counters(registry)?,
            plugin_expiry: Mutex::new(None),
        })
    }

    /// Updates time-dependent metrics.
    pub(super) fn refresh(&self) {
        let expiry = *self.plugin_expiry.lock().unwrap_or_else(PoisonError::into_inner);
        self.plugin_ttl.set(expiry.map_or(f64::INFINITY, |expiry| {
            let now = SystemTime::now();
            match expiry.duration_since(now) {
                Ok(left) => left.as_secs_f64(),
                Err(past) => -past.duration().as_secs_f64(),
            }
        }));
    }
}

impl Observe for RestMetrics {
    fn answered(&self, code: &str, method: &str, host: &str) {
        self.requests.with_label_values(&[code, method, host]).inc();
    }

    fn waited(&self, method: &str, host: &str, time: Duration) {
        self.limiter.with_label_values(&[method, host]).observe(time.as_secs_f64());
    }

    fn ended(&self, method: &str, host: &str, took: Duration, (sent, came): (u64, Option<u64>)) {
        self.duration.with_label_values(&[method, host]).observe(took.as_secs_f64());
        self.request_size.with_label_values(&[method, host]).observe(sent as f64);
        if let Some(size) = came {
            self.response_size.with_label_values(&[method, host]).observe(size as f64);
        }
    }

    fn retried(&self, code: &str, method: &str, host: &str) {
        self.retries.with_label_values(&[code, method, host]).inc();
    }

    fn connected(&self, result: &str) {
        self.connections.with_label_values(&[result]).inc();
    }

    fn plugin_call(&self, status: &str, code: i32) {
        self.plugin_calls.with_label_values(&[code.to_string().as_str(), status]).inc();
    }

    fn plugin_certificate(&self, expiry: Option<SystemTime>) {
        *self.plugin_expiry.lock().unwrap_or_else(PoisonError::into_inner) = expiry;
    }

    fn plugin_certificate_replaced(&self, age: Duration) {
        self.plugin_age.observe(age.as_secs_f64());
    }

    fn transport_created(&self) {
        self.transports.with_label_values(&["miss"]).inc();
        self.transport_entries.set(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn what_the_client_reports_stands_on_the_page() {
        const HOST: &str = "10.0.0.1:6443";
        let metrics = Metrics::new().unwrap();
        assert!(metrics.encode().contains("\nrest_client_exec_plugin_ttl_seconds +Inf\n"));
        let client: &dyn Observe = &*metrics.rest;
        client.answered("200", "GET", HOST);
        client.waited("GET", HOST, Duration::from_secs(3));
        client.ended("GET", HOST, Duration::from_secs(2), (5, Some(70)));
        client.ended("POST", HOST, Duration::from_secs(2), (5, None));
        client.retried("401", "GET", HOST);
        client.connected("h2");
        client.plugin_call("plugin_execution_error", 3);
        client.plugin_certificate(Some(SystemTime::now() + Duration::from_secs(100)));
        client.plugin_certificate_replaced(Duration::from_secs(9));
        client.transport_created();
        let page = metrics.encode();
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"10.0.0.1:6443\",method=\"GET\"} 1",
            "rest_client_rate_limiter_duration_seconds_sum{host=\"10.0.0.1:6443\",verb=\"GET\"} 3",
            "rest_client_request_duration_seconds_sum{host=\"10.0.0.1:6443\",verb=\"GET\"} 2",
            "rest_client_request_size_bytes_sum{host=\"10.0.0.1:6443\",verb=\"POST\"} 5",
            "rest_client_response_size_bytes_sum{host=\"10.0.0.1:6443\",verb=\"GET\"} 70",
            "rest_client_request_retries_total{code=\"401\",host=\"10.0.0.1:6443\",verb=\"GET\"} 1",
            "kubeproxy_source_connections_total{result=\"h2\"} 1",
            "rest_client_exec_plugin_call_total{call_status=\"plugin_execution_error\",code=\"3\"} 1",
            "rest_client_exec_plugin_certificate_rotation_age_sum 9",
            "rest_client_transport_create_calls_total{result=\"miss\"} 1",
            "rest_client_transport_cache_entries 1",
        ] {
            assert!(page.lines().any(|each| each == line), "{line}");
        }
        assert!(!page.contains("rest_client_response_size_bytes_sum{host=\"10.0.0.1:6443\",verb=\"POST\"}"));
        let left = page.lines().find_map(|line| line.strip_prefix("rest_client_exec_plugin_ttl_seconds "));
        assert!((90.0..=100.0).contains(&left.unwrap().parse::<f64>().unwrap()), "{left:?}");
    }
}
