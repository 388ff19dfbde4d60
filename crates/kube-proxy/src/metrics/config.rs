//! The running configuration, and the last reading of its files. Ferry's own metrics.

use std::time::SystemTime;

use ferry_api::config::KubeProxyConfiguration;
use prometheus::{Gauge, IntGauge, IntGaugeVec, Registry};
use sha2::{Digest as _, Sha256};

use super::row::MetricKind::Gauge as GaugeKind;
use super::row::{MetricRow, row};

const INFO: MetricRow = row(
    "kubeproxy_config_info",
    GaugeKind,
    &["sha256"],
    "Always 1: the digest of the running configuration, as --write-config-to writes it without hostnameOverride",
);
const SUCCESSFUL: MetricRow = row(
    "kubeproxy_config_last_reload_successful",
    GaugeKind,
    &[],
    "1 if the files of the configuration could be used when they were read last; 0: an earlier configuration runs",
);
const TIME: MetricRow = row(
    "kubeproxy_config_last_reload_timestamp_seconds",
    GaugeKind,
    &[],
    "The last time the files of the configuration were read",
);

/// Every metric of this module, in the order of its registration.
pub const TABLE: &[MetricRow] = &[INFO, SUCCESSFUL, TIME];

/// The gauges.
#[derive(Debug)]
pub struct ConfigMetrics {
    info: IntGaugeVec,
    successful: IntGauge,
    time: Gauge,
}

// === impl ConfigMetrics ===

impl ConfigMetrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            info: INFO.gauges(registry)?,
            successful: SUCCESSFUL.gauge(registry)?,
            time: TIME.float_gauge(registry)?,
        })
    }

    /// Sets the digest of the configuration that has just been read and runs. The node's name is left out, so that nodes with the
    /// same configuration have the same digest.
    pub fn run(&self, config: &KubeProxyConfiguration) {
        let config = KubeProxyConfiguration { hostname_override: String::new(), ..config.clone() };
        let digest: String = Sha256::digest(config.to_yaml()).iter().map(|byte| format!("{byte:02x}")).collect();
        self.info.with_label_values(&[digest.as_str()]).set(1);
        self.read(true);
    }

    /// The files were read, and could be used or not.
    pub fn read(&self, successful: bool) {
        self.successful.set(successful.into());
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.time.set(since.unwrap_or_default().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(config: &KubeProxyConfiguration) -> String {
        let registry = Registry::new();
        ConfigMetrics::new(&registry).unwrap().run(config);
        let families = registry.gather();
        let info = families.iter().find(|family| family.name() == INFO.name).unwrap();
        info.get_metric()[0].get_label()[0].value().to_owned()
    }

    #[test]
    fn nodes_differ_in_the_digest_by_their_configuration_alone() {
        let config = KubeProxyConfiguration::default();
        let named = KubeProxyConfiguration { hostname_override: "node-a".to_owned(), ..config.clone() };
        let other = KubeProxyConfiguration { cluster_cidr: "10.0.0.0/8".to_owned(), ..config.clone() };
        assert_eq!(digest(&config).len(), 64);
        assert_eq!(digest(&named), digest(&config));
        assert_ne!(digest(&other), digest(&config));
    }

    #[test]
    fn the_last_reading_is_noted() {
        let metrics = ConfigMetrics::new(&Registry::new()).unwrap();
        metrics.read(true);
        assert_eq!(metrics.successful.get(), 1);
        metrics.read(false);
        assert_eq!(metrics.successful.get(), 0);
        assert!(metrics.time.get() > 1.7e9);
    }
}
