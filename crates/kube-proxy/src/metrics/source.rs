//! Staleness of the API server's objects, per kind. Ferry's own metrics.

use std::time::{Instant, SystemTime};

use prometheus::{GaugeVec, IntGaugeVec, Registry};

use super::row::MetricKind::Gauge;
use super::row::{MetricRow, row};
use crate::health::Freshness;

const KIND: &[&str] = &["kind"];

const SYNCED: MetricRow =
    row("kubeproxy_source_synced", Gauge, KIND, "1 if the initial list of a kind has been complete");
const CONNECTED: MetricRow = row("kubeproxy_source_connected", Gauge, KIND, "1 if a list or watch of a kind is open");
const CONTACT: MetricRow = row(
    "kubeproxy_source_last_contact_timestamp_seconds",
    Gauge,
    KIND,
    "The last time the API server sent anything about a kind",
);

/// Every metric of this module, in the order of its registration.
pub const TABLE: &[MetricRow] = &[SYNCED, CONNECTED, CONTACT];

/// The gauges; without an API server they aren't exported.
#[derive(Debug)]
pub struct SourceMetrics {
    synced: IntGaugeVec,
    connected: IntGaugeVec,
    contact: GaugeVec,
}

// === impl SourceMetrics ===

impl SourceMetrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            synced: SYNCED.gauges(registry)?,
            connected: CONNECTED.gauges(registry)?,
            contact: CONTACT.float_gauges(registry)?,
        })
    }

    /// Sets the gauges; `now` and `clock` are the same moment of two clocks.
    pub(crate) fn note(&self, freshness: &Freshness, now: Instant, clock: SystemTime) {
        for (kind, fresh) in freshness.now(now) {
            let label = kind.to_string();
            let labels = [label.as_str()];
            self.synced.with_label_values(&labels).set(fresh.synced.into());
            self.connected.with_label_values(&labels).set(fresh.connected.into());
            let contact = fresh.contact.and_then(|age| clock.checked_sub(age));
            let since = contact.and_then(|contact| contact.duration_since(SystemTime::UNIX_EPOCH).ok());
            self.contact.with_label_values(&labels).set(since.unwrap_or_default().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ferry_api::object::Kind;

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn freshness_becomes_gauges() {
        let metrics = Metrics::new().unwrap();
        assert!(!metrics.encode().contains("kubeproxy_source_"), "without an API server there is nothing to tell");
        let start = Instant::now();
        let freshness = Freshness::new(start, &[Kind::Service, Kind::Node]);
        freshness.connected(Kind::Service, start + Duration::from_secs(2));
        freshness.synced(Kind::Service);
        let clock = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_010);
        metrics.source.note(&freshness, start + Duration::from_secs(5), clock);
        let page = metrics.encode();
        for line in [
            "kubeproxy_source_synced{kind=\"Service\"} 1",
            "kubeproxy_source_connected{kind=\"Service\"} 1",
            "kubeproxy_source_last_contact_timestamp_seconds{kind=\"Service\"} 1.000007e+06",
            "kubeproxy_source_synced{kind=\"Node\"} 0",
            "kubeproxy_source_last_contact_timestamp_seconds{kind=\"Node\"} 0",
        ] {
            assert!(page.lines().any(|known| known == line), "{line}: {page}");
        }
    }
}
