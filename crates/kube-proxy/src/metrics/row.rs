//! A row of the metrics' tables: name, kind, labels, help text and buckets; and its registration.

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// only increases
    Counter,
    /// increases and decreases
    Gauge,
    /// with these buckets
    Histogram(Buckets),
}

/// Bounds of a histogram's buckets, in seconds unless noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// 0.001 · 2^k, k = 0 … 14
    Sync,
    /// 0, 0.25, 0.5, 1 … 59 by 1, 60 … 115 by 5, 120 … 300 by 30
    NetworkProgramming,
    /// 10 µs · 4^k, k = 0 … 9
    Commit,
    /// 0.005 … 60: upstream's for requests
    RequestSeconds,
    /// 64 … 16 Mi, in bytes: upstream's for requests
    RequestSize,
    /// ten minutes … four years: upstream's for certificates
    CertificateAge,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricRow {
    /// its full name
    pub name: &'static str,
    /// its kind
    pub kind: MetricKind,
    /// its labels
    pub labels: &'static [&'static str],
    /// its HELP text
    pub help: &'static str,
}

/// The label of metrics of one IP family.
pub(super) const FAMILY: &[&str] = &["ip_family"];
/// The labels of metrics of one engine.
pub(super) const ENGINE: &[&str] = &["ip_family", "mode"];

use Buckets::{CertificateAge, Commit, NetworkProgramming, RequestSeconds, RequestSize, Sync};
use MetricKind::{Counter, Gauge as GaugeKind, Histogram};

/// A row.
pub(crate) const fn row(
    name: &'static str,
    kind: MetricKind,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricRow {
    MetricRow { name, kind, labels, help }
}

// === impl MetricRow ===

impl MetricRow {
    /// The type in its TYPE line.
    pub fn type_word(&self) -> &'static str {
        match self.kind {
            Counter => "counter",
            GaugeKind => "gauge",
            Histogram(_) => "histogram",
        }
    }

    pub(super) fn opts(&self) -> Opts {
        Opts::new(self.name, self.help)
    }

    pub(crate) fn counters(&self, registry: &Registry) -> Result<IntCounterVec, prometheus::Error> {
        registered(registry, IntCounterVec::new(self.opts(), self.labels)?)
    }

    pub(super) fn float_counters(&self, registry: &Registry) -> Result<CounterVec, prometheus::Error> {
        registered(registry, CounterVec::new(self.opts(), self.labels)?)
    }

    pub(super) fn counter(&self, registry: &Registry) -> Result<IntCounter, prometheus::Error> {
        registered(registry, IntCounter::with_opts(self.opts())?)
    }

    pub(crate) fn gauges(&self, registry: &Registry) -> Result<IntGaugeVec, prometheus::Error> {
        registered(registry, IntGaugeVec::new(self.opts(), self.labels)?)
    }

    pub(super) fn float_gauges(&self, registry: &Registry) -> Result<GaugeVec, prometheus::Error> {
        registered(registry, GaugeVec::new(self.opts(), self.labels)?)
    }

    pub(super) fn gauge(&self, registry: &Registry) -> Result<IntGauge, prometheus::Error> {
        registered(registry, IntGauge::with_opts(self.opts())?)
    }

    pub(super) fn float_gauge(&self, registry: &Registry) -> Result<Gauge, prometheus::Error> {
        registered(registry, Gauge::with_opts(self.opts())?)
    }

    pub(super) fn histograms(&self, registry: &Registry) -> Result<HistogramVec, prometheus::Error> {
        registered(registry, HistogramVec::new(self.histogram_opts(), self.labels)?)
    }

    pub(super) fn histogram(&self, registry: &Registry) -> Result<prometheus::Histogram, prometheus::Error> {
        registered(registry, prometheus::Histogram::with_opts(self.histogram_opts())?)
    }

    fn histogram_opts(&self) -> HistogramOpts {
        let bounds = match self.kind {
            Histogram(buckets) => buckets.bounds(),
            Counter | GaugeKind => Vec::new(),
        };
        HistogramOpts::from(self.opts()).buckets(bounds)
    }
}

// === impl Buckets ===

impl Buckets {
    /// The upper bounds.
    pub fn bounds(self) -> Vec<f64> {
        match self {
            Sync => (0..15).map(|k| 0.001 * f64::from(1 << k)).collect(),
            NetworkProgramming => {
                let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
                [0.0, 0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect()
            }
            Commit => (0..10).map(|k| 0.000_01 * f64::from(1 << (2 * k))).collect(),
            RequestSeconds => vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0],
            RequestSize => [6, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24].into_iter().map(|k| f64::from(1 << k)).collect(),
            CertificateAge => {
                const HOUR: f64 = 3600.0;
                const DAY: f64 = 24.0 * HOUR;
                let days = [1.0, 7.0, 30.0, 90.0, 180.0, 360.0, 1440.0].map(|days| days * DAY);
                [600.0, 1800.0, HOUR, 4.0 * HOUR].into_iter().chain(days).collect()
            }
        }
    }
}

/// Registers a collector.
pub(super) fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_upstreams() {
        let sync = Sync.bounds();
        assert_eq!((sync.len(), sync[0]), (15, 0.001));
        assert!((sync[14] - 16.384).abs() < 1e-9);
        let network = NetworkProgramming.bounds();
        assert_eq!(&network[..5], &[0.0, 0.25, 0.5, 1.0, 2.0]);
        assert_eq!(&network[61..65], &[59.0, 60.0, 65.0, 70.0]);
        assert_eq!(&network[network.len() - 8..], &[115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]);
    }
}
