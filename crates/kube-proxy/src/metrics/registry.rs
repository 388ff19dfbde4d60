//! Metrics of every mode, and the page with all metrics.

use std::sync::{Arc, OnceLock};

use ferry_api::config::{Feature, Maturity};
use ferry_api::object::Family;
use prometheus::{Gauge, GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::client::RestMetrics;
use super::config::ConfigMetrics;
use super::mode::{ModeMetrics, Register};
use super::row::Buckets::{Commit, NetworkProgramming, Sync};
use super::row::MetricKind::{Counter, Gauge as GaugeKind, Histogram};
use super::row::{ENGINE, FAMILY, MetricRow, registered, row};
use super::self_test::SelfTestMetrics;
use super::snapshot::SnapshotMetrics;
use super::source::SourceMetrics;
use super::{process, text};
use crate::version;

/// Every metric that is registered here. The text is encoded by [`Metrics::encode`].
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// duration of every sync pass
    pub sync_duration: HistogramVec,
    /// duration of full syncs
    pub full_sync_duration: HistogramVec,
    /// duration of incremental syncs
    pub partial_sync_duration: HistogramVec,
    /// last successful sync, Unix seconds
    pub last_sync: GaugeVec,
    /// last change handed to the engine, Unix seconds
    pub last_queued: GaugeVec,
    /// time from a pod's change to its endpoint's rules
    pub network_programming: HistogramVec,
    /// EndpointSlice events since the last sync
    pub endpoint_changes_pending: IntGauge,
    /// EndpointSlice events, once per family
    pub endpoint_changes_total: IntCounter,
    /// Services that changed since the last sync
    pub service_changes_pending: IntGauge,
    /// Service events, once per family
    pub service_changes_total: IntCounter,
    /// duration of sweeps of the conntrack table
    pub conntrack_duration: HistogramVec,
    /// deleted stale conntrack entries
    pub conntrack_deleted: IntCounterVec,
    /// Services with policy Local that have endpoints, none of them on this node
    pub no_local_endpoints: IntGaugeVec,
    /// responses of /healthz
    pub healthz: IntCounterVec,
    /// responses of /livez
    pub livez: IntCounterVec,
    /// 1 for the mode that runs
    pub engine_mode: IntGaugeVec,
    /// units that were handed to the engine and aren't in the kernel yet
    pub engine_pending: IntGaugeVec,
    /// units in quarantine: the kernel rejects them
    pub engine_quarantined: IntGaugeVec,
    /// kernel objects repaired after foreign changes
    pub engine_repairs: IntCounterVec,
    /// times that repairs of an object were suspended because another program keeps changing it
    pub engine_contested: IntCounterVec,
    /// committed operations
    pub engine_ops: IntCounterVec,
    /// duration of sync passes that did work
    pub engine_commit: HistogramVec,
    /// 1 for each feature gate that is on, 0 for the others
    features: IntGaugeVec,
    /// metrics of the API client
    pub rest: Arc<RestMetrics>,
    /// staleness of objects
    pub source: SourceMetrics,
    /// periodic tests of the data path
    pub self_test: SelfTestMetrics,
    /// the file that keeps the API server's objects
    pub snapshot: SnapshotMetrics,
    /// the running configuration
    pub config: ConfigMetrics,
    /// metrics of the running mode, once it is known
    mode: OnceLock<Box<dyn ModeMetrics>>,
}

const SYNC_DURATION: MetricRow = row(
    "kubeproxy_sync_proxy_rules_duration_seconds",
    Histogram(Sync),
    FAMILY,
    "[ALPHA] SyncProxyRules latency in seconds",
);
const FULL_SYNC: MetricRow = row(
    "kubeproxy_sync_full_proxy_rules_duration_seconds",
    Histogram(Sync),
    FAMILY,
    "[ALPHA] SyncProxyRules latency in seconds for full resyncs",
);
const PARTIAL_SYNC: MetricRow = row(
    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
    Histogram(Sync),
    FAMILY,
    "[ALPHA] SyncProxyRules latency in seconds for partial resyncs",
);
const LAST_SYNC: MetricRow = row(
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    GaugeKind,
    FAMILY,
    "[ALPHA] The last time proxy rules were successfully synced",
);
const LAST_QUEUED: MetricRow = row(
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    GaugeKind,
    FAMILY,
    "[ALPHA] The last time a sync of proxy rules was queued",
);
const NETWORK_PROGRAMMING: MetricRow = row(
    "kubeproxy_network_programming_duration_seconds",
    Histogram(NetworkProgramming),
    FAMILY,
    "[ALPHA] In Cluster Network Programming Latency in seconds",
);
const ENDPOINTS_PENDING: MetricRow = row(
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
    GaugeKind,
    &[],
    "[ALPHA] Pending proxy rules Endpoint changes",
);
const ENDPOINTS_TOTAL: MetricRow = row(
    "kubeproxy_sync_proxy_rules_endpoint_changes_total",
    Counter,
    &[],
    "[ALPHA] Cumulative proxy rules Endpoint changes",
);
const SERVICES_PENDING: MetricRow = row(
    "kubeproxy_sync_proxy_rules_service_changes_pending",
    GaugeKind,
    &[],
    "[ALPHA] Pending proxy rules Service changes",
);
const SERVICES_TOTAL: MetricRow = row(
    "kubeproxy_sync_proxy_rules_service_changes_total",
    Counter,
    &[],
    "[ALPHA] Cumulative proxy rules Service changes",
);
const CONNTRACK_DURATION: MetricRow = row(
    "kubeproxy_conntrack_reconciler_sync_duration_seconds",
    Histogram(Sync),
    FAMILY,
    "[ALPHA] ReconcileConntrackFlowsLatency latency in seconds",
);
const CONNTRACK_DELETED: MetricRow = row(
    "kubeproxy_conntrack_reconciler_deleted_entries_total",
    Counter,
    FAMILY,
    "[ALPHA] Cumulative conntrack flows deleted by conntrack reconciler",
);
const NO_LOCAL_ENDPOINTS: MetricRow = row(
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    GaugeKind,
    &["ip_family", "traffic_policy"],
    "[ALPHA] Number of services with a Local traffic policy and no endpoints",
);
const HEALTHZ: MetricRow =
    row("kubeproxy_proxy_healthz_total", Counter, &["code"], "[ALPHA] Cumulative proxy healthz HTTP status");
const LIVEZ: MetricRow =
    row("kubeproxy_proxy_livez_total", Counter, &["code"], "[ALPHA] Cumulative proxy livez HTTP status");
const ENGINE_MODE: MetricRow = row(
    "kubeproxy_engine_mode_info",
    GaugeKind,
    &["mode", "configured"],
    "Always 1: the mode that runs, and the configured one, which differs if it can't start and a fallback runs",
);
const ENGINE_PENDING: MetricRow =
    row("kubeproxy_engine_pending_units", GaugeKind, ENGINE, "Services and base objects not in the kernel yet");
const ENGINE_QUARANTINED: MetricRow = row(
    "kubeproxy_engine_quarantined_units",
    GaugeKind,
    ENGINE,
    "Services and base objects in quarantine: rejected by the kernel, their last good state stays",
);
const ENGINE_REPAIRS: MetricRow =
    row("kubeproxy_engine_repairs_total", Counter, ENGINE, "Kernel objects repaired after foreign changes");
const ENGINE_CONTESTED: MetricRow = row(
    "kubeproxy_engine_contested_total",
    Counter,
    ENGINE,
    "Times that repairs of an object were suspended because another program keeps changing it",
);
const ENGINE_OPS: MetricRow = row("kubeproxy_engine_ops_total", Counter, ENGINE, "Kernel objects written or deleted");
const ENGINE_COMMIT: MetricRow =
    row("kubeproxy_engine_commit_seconds", Histogram(Commit), ENGINE, "Duration of sync passes that did work");
const BUILD_INFO: MetricRow = row(
    "kubernetes_build_info",
    GaugeKind,
    &[
        "build_date",
        "compiler",
        "git_commit",
        "git_tree_state",
        "git_version",
        "go_version",
        "major",
        "minor",
        "platform",
    ],
    "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, \
     build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
);

const FEATURES: MetricRow = row(
    "kubernetes_feature_enabled",
    GaugeKind,
    &["name", "stage"],
    "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
);
const HIDDEN: MetricRow = row("hidden_metrics_total", Counter, &[], "[BETA] The count of hidden metrics.");
const DISABLED: MetricRow = row("disabled_metrics_total", Counter, &[], "[BETA] The count of disabled metrics.");

/// Every metric of this module, in the order of its registration.
pub const TABLE: &[MetricRow] = &[
    SYNC_DURATION,
    FULL_SYNC,
    PARTIAL_SYNC,
    LAST_SYNC,
    LAST_QUEUED,
    NETWORK_PROGRAMMING,
    ENDPOINTS_PENDING,
    ENDPOINTS_TOTAL,
    SERVICES_PENDING,
    SERVICES_TOTAL,
    CONNTRACK_DURATION,
    CONNTRACK_DELETED,
    NO_LOCAL_ENDPOINTS,
    HEALTHZ,
    LIVEZ,
    ENGINE_MODE,
    ENGINE_PENDING,
    ENGINE_QUARANTINED,
    ENGINE_REPAIRS,
    ENGINE_CONTESTED,
    ENGINE_OPS,
    ENGINE_COMMIT,
    BUILD_INFO,
    FEATURES,
    HIDDEN,
    DISABLED,
];

// === impl Metrics ===

impl Metrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let r = &registry;
        build_info(r)?;
        // Ferry hides and disables none, and alerts may compare with zero.
        HIDDEN.counter(r)?;
        DISABLED.counter(r)?;
        Ok(Self {
            sync_duration: SYNC_DURATION.histograms(r)?,
            full_sync_duration: FULL_SYNC.histograms(r)?,
            partial_sync_duration: PARTIAL_SYNC.histograms(r)?,
            last_sync: LAST_SYNC.float_gauges(r)?,
            last_queued: LAST_QUEUED.float_gauges(r)?,
            network_programming: NETWORK_PROGRAMMING.histograms(r)?,
            endpoint_changes_pending: ENDPOINTS_PENDING.gauge(r)?,
            endpoint_changes_total: ENDPOINTS_TOTAL.counter(r)?,
            service_changes_pending: SERVICES_PENDING.gauge(r)?,
            service_changes_total: SERVICES_TOTAL.counter(r)?,
            conntrack_duration: CONNTRACK_DURATION.histograms(r)?,
            conntrack_deleted: CONNTRACK_DELETED.counters(r)?,
            no_local_endpoints: NO_LOCAL_ENDPOINTS.gauges(r)?,
            healthz: HEALTHZ.counters(r)?,
            livez: LIVEZ.counters(r)?,
            engine_mode: ENGINE_MODE.gauges(r)?,
            engine_pending: ENGINE_PENDING.gauges(r)?,
            engine_quarantined: ENGINE_QUARANTINED.gauges(r)?,
            engine_repairs: ENGINE_REPAIRS.counters(r)?,
            engine_contested: ENGINE_CONTESTED.counters(r)?,
            engine_ops: ENGINE_OPS.counters(r)?,
            engine_commit: ENGINE_COMMIT.histograms(r)?,
            features: FEATURES.gauges(r)?,
            rest: Arc::new(RestMetrics::new(r)?),
            source: SourceMetrics::new(r)?,
            self_test: SelfTestMetrics::new(r)?,
            snapshot: SnapshotMetrics::new(r)?,
            config: ConfigMetrics::new(r)?,
            mode: OnceLock::new(),
            registry,
        })
    }

    /// Adds the metrics of the running mode.
    ///
    /// # Errors
    /// If they contradict the others, or a mode was added before.
    pub fn add_mode(&self, register: Register) -> Result<(), prometheus::Error> {
        let mode = register(&self.registry)?;
        self.mode.set(mode).map_err(|_| prometheus::Error::AlreadyReg)
    }

    /// Sets the values of feature gates.
    pub fn set_features(&self, features: impl Iterator<Item = Feature>) {
        for Feature { name, maturity, enabled } in features {
            // upstream leaves the stage of what is generally available empty
            let stage = if maturity == Maturity::Stable { String::new() } else { maturity.to_string() };
            self.features.with_label_values(&[name, stage.as_str()]).set(enabled.into());
        }
    }

    /// Counts a failed sync pass of the family's engine.
    pub fn mode_failed(&self, family: Family) {
        if let Some(mode) = self.mode.get() {
            mode.failed(family);
        }
    }

    /// The page, in Prometheus' text format.
    pub fn encode(&self) -> String {
        self.rest.refresh();
        if let Some(mode) = self.mode.get() {
            mode.refresh();
        }
        let mut page = String::new();
        text::append(&mut page, &self.registry.gather());
        process::append(&mut page);
        page
    }
}

fn build_info(registry: &Registry) -> Result<(), prometheus::Error> {
    let version = version::full();
    let platform = version::platform();
    let (major, minor) = version::major_and_minor();
    let values = ["", "rustc", "", "", &version, "", major, minor, &platform];
    let labels = BUILD_INFO.labels.iter().zip(values);
    let opts = labels.fold(BUILD_INFO.opts(), |opts, (label, value)| opts.const_label(*label, value));
    registered(registry, Gauge::with_opts(opts)?)?.set(1.0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::metrics::mode::NftablesMetrics;
    use crate::metrics::{client, config, self_test, snapshot, source};
    use crate::planes::PLANES;

    /// All metrics of all modes, each once, in the order of the documentation.
    fn rows() -> impl Iterator<Item = &'static MetricRow> {
        let mut seen = BTreeSet::new();
        let of_modes = PLANES.iter().flat_map(|plane| plane.metrics).filter(move |row| seen.insert(row.name));
        let of_objects = source::TABLE.iter().chain(snapshot::TABLE).chain(self_test::TABLE);
        TABLE.iter().chain(of_modes).chain(of_objects).chain(config::TABLE).chain(client::TABLE)
    }

    #[test]
    fn everything_on_the_page_stands_in_the_tables() {
        let metrics = Metrics::new().unwrap();
        metrics.sync_duration.with_label_values(&["IPv4"]).observe(0.002);
        metrics.engine_commit.with_label_values(&["IPv4", "nftables"]).observe(0.002);
        metrics.add_mode(Box::new(NftablesMetrics::register)).unwrap();
        metrics.mode_failed(Family::V4);
        let page = metrics.encode();
        let types: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert!(types.len() > 8, "{types:?}");
        for line in types {
            let known = rows().map(|row| (row.name, row.type_word()));
            let known = known.chain(process::TABLE.iter().map(|row| (row.name, row.kind)));
            assert!(known.into_iter().any(|(name, word)| line == format!("{name} {word}")), "{line}");
        }
        assert!(page.contains("kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.002\"} 1"));
        assert!(page.contains(
            "# HELP kubeproxy_sync_proxy_rules_duration_seconds [ALPHA] SyncProxyRules latency in seconds\n"
        ));
        assert!(page.contains(&format!("git_version=\"{}\"", version::full())), "{page}");
    }

    #[test]
    fn the_documentation_has_the_same_table() {
        let text = include_str!("../../../../docs/metrics.md");
        let documented: Vec<(String, String, String)> = text
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                (cells[1].trim_matches('`').to_owned(), cells[2].to_owned(), cells[3].to_owned())
            })
            .collect();
        let registered = rows().map(|row| {
            let labels: Vec<String> = row.labels.iter().map(|label| format!("`{label}`")).collect();
            (row.name.to_owned(), row.type_word().to_owned(), labels.join(", "))
        });
        let of_process = process::TABLE.iter().map(|row| (row.name.to_owned(), row.kind.to_owned(), String::new()));
        assert_eq!(documented, registered.chain(of_process).collect::<Vec<_>>());
    }
}
