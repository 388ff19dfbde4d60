//! Metrics of the snapshot, the file that keeps the objects of the API server. They are Ferry's own.

use std::time::SystemTime;

use prometheus::{Gauge, IntCounterVec, IntGauge, Registry};

use super::row::MetricKind::{Counter, Gauge as GaugeKind};
use super::row::{MetricRow, row};
use crate::health::Freshness;

const IN_USE: MetricRow = row(
    "kubeproxy_snapshot_in_use",
    GaugeKind,
    &[],
    "1 while Services are served from a snapshot: the lists of the API server have not been complete since the start",
);
const CONFIRMED: MetricRow = row(
    "kubeproxy_snapshot_confirmed_timestamp_seconds",
    GaugeKind,
    &[],
    "The last time the API server confirmed the objects of the snapshot that was written or used last",
);
const SIZE: MetricRow =
    row("kubeproxy_snapshot_size_bytes", GaugeKind, &[], "Size of the snapshot that was written last, in bytes");
const WRITES: MetricRow = row(
    "kubeproxy_snapshot_writes_total",
    Counter,
    &["result"],
    "Attempts to write the snapshot, by result: success or failure",
);
const REFUSALS: MetricRow = row(
    "kubeproxy_snapshot_refusals_total",
    Counter,
    &["reason"],
    "Snapshots that a start has not used, by reason: damaged, version, cluster, node, age, size or unreadable",
);

/// Every metric of this module, in the order of its registration.
pub const TABLE: &[MetricRow] = &[IN_USE, CONFIRMED, SIZE, WRITES, REFUSALS];

/// The gauges and counters.
#[derive(Debug)]
pub struct SnapshotMetrics {
    in_use: IntGauge,
    confirmed: Gauge,
    size: IntGauge,
    writes: IntCounterVec,
    refusals: IntCounterVec,
}

// === impl SnapshotMetrics ===

impl SnapshotMetrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            in_use: IN_USE.gauge(registry)?,
            confirmed: CONFIRMED.float_gauge(registry)?,
            size: SIZE.gauge(registry)?,
            writes: WRITES.counters(registry)?,
            refusals: REFUSALS.counters(registry)?,
        })
    }

    /// Sets the gauge of use.
    pub(crate) fn note(&self, freshness: &Freshness) {
        self.in_use.set(freshness.snapshot_in_use().is_some().into());
    }

    /// Sets the time at which the API server confirmed the snapshot's objects.
    pub fn confirmed(&self, time: SystemTime) {
        self.confirmed.set(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }

    /// Counts a written snapshot of this size.
    pub fn written(&self, bytes: u64) {
        self.size.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.writes.with_label_values(&["success"]).inc();
    }

    /// Counts a failed attempt to write one.
    pub fn failed(&self) {
        self.writes.with_label_values(&["failure"]).inc();
    }

    /// Counts a snapshot that isn't used for this reason.
    pub fn refused(&self, reason: &str) {
        self.refusals.with_label_values(&[reason]).inc();
    }
}
