//! The self-test of the data path. Ferry's own metrics.

use std::time::Duration;

use ferry_api::object::Family;
use prometheus::{GaugeVec, IntCounterVec, Registry};

use super::row::MetricKind::{Counter, Gauge};
use super::row::{MetricRow, row};

const TESTS: MetricRow = row(
    "kubeproxy_self_tests_total",
    Counter,
    &["ip_family", "result"],
    "Periodic connections through the Service of the self-test, by result: success or failure",
);
const DURATION: MetricRow = row(
    "kubeproxy_self_test_duration_seconds",
    Gauge,
    &["ip_family"],
    "Duration of the last such connection that has succeeded",
);

/// Every metric of this module, in the order of its registration.
pub const TABLE: &[MetricRow] = &[TESTS, DURATION];

/// The counters; without periodic tests they aren't exported.
#[derive(Debug)]
pub struct SelfTestMetrics {
    tests: IntCounterVec,
    duration: GaugeVec,
}

// === impl SelfTestMetrics ===

impl SelfTestMetrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self { tests: TESTS.counters(registry)?, duration: DURATION.float_gauges(registry)? })
    }

    /// Counts a test, with its duration if it has succeeded.
    pub fn tested(&self, family: Family, duration: Option<Duration>) {
        let (family, result) = (family.to_string(), if duration.is_some() { "success" } else { "failure" });
        self.tests.with_label_values(&[family.as_str(), result]).inc();
        if let Some(duration) = duration {
            self.duration.with_label_values(&[&family]).set(duration.as_secs_f64());
        }
    }
}
