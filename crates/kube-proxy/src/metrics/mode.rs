//! Metrics of a single mode, registered in that mode only, as upstream does.

use std::fmt;
use std::time::Duration;

use ferry_api::object::Family;
use prometheus::{CounterVec, IntCounterVec, IntGaugeVec, Registry};

use super::row::MetricKind::{Counter, Gauge};
use super::row::{ENGINE, FAMILY, MetricRow, row};

/// The metrics of a mode.
pub trait ModeMetrics: fmt::Debug + Send + Sync {
    /// Counts a failed sync pass of the family's engine.
    fn failed(&self, family: Family);
    /// Updates the metrics before a scrape.
    fn refresh(&self);
}

/// Registers the metrics of a mode. The error is a contradiction between them.
pub type Register = Box<dyn FnOnce(&Registry) -> Result<Box<dyn ModeMetrics>, prometheus::Error>>;

/// The metrics of mode nftables.
#[derive(Debug)]
pub struct NftablesMetrics {
    failures: IntCounterVec,
}

/// The metrics of mode ipvs.
#[derive(Debug)]
pub struct IpvsMetrics {
    /// named as upstream's, where alerts look
    failures: IntCounterVec,
}

/// The metrics of mode iptables, read at each scrape.
pub struct IptablesMetrics {
    mode: &'static str,
    read: Box<dyn Fn() -> IptablesCounts + Send + Sync>,
    rules: IntGaugeVec,
    rules_last: IntGaugeVec,
    failures: IntCounterVec,
    partial_failures: IntCounterVec,
    invalid_dropped: IntCounterVec,
    localhost_accepted: IntCounterVec,
    lock_waits: IntCounterVec,
    lock_wait: CounterVec,
    runs: IntCounterVec,
    bytes: IntCounterVec,
}

/// Counts of mode iptables since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IptablesCounts {
    /// each served family
    pub families: Vec<(Family, IptablesFamilyCounts)>,
    /// packets dropped because conntrack classified them as invalid, if they are counted
    pub invalid_dropped: Option<u64>,
    /// packets to node ports on loopback, if they are counted
    pub localhost_accepted: Option<u64>,
}

/// Counts of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IptablesFamilyCounts {
    /// per table: its name, the number of owned rules, and the number of rules that the last sync wrote
    pub rules: Vec<(&'static str, u64, u64)>,
    /// failed runs of iptables-restore
    pub failures: u64,
    /// failed runs of incremental syncs
    pub partial_failures: u64,
    /// runs that had to wait for the xtables lock
    pub lock_waits: u64,
    /// total time of these waits
    pub lock_wait: Duration,
    /// runs of iptables-restore
    pub runs: u64,
    /// bytes of their input
    pub bytes: u64,
}

const TABLE_FAMILY: &[&str] = &["table", "ip_family"];

const NFTABLES_FAILURES: MetricRow = row(
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
    Counter,
    FAMILY,
    "[ALPHA] Cumulative proxy nftables sync failures",
);
const RULES: MetricRow = row(
    "kubeproxy_sync_proxy_rules_iptables_total",
    Gauge,
    TABLE_FAMILY,
    "[ALPHA] Total number of iptables rules owned by kube-proxy",
);
const RULES_LAST: MetricRow = row(
    "kubeproxy_sync_proxy_rules_iptables_last",
    Gauge,
    TABLE_FAMILY,
    "[ALPHA] Number of iptables rules written by kube-proxy in last sync",
);
pub(crate) const FAILURES: MetricRow = row(
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    Counter,
    FAMILY,
    "[ALPHA] Cumulative proxy iptables restore failures",
);
const PARTIAL_FAILURES: MetricRow = row(
    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
    Counter,
    FAMILY,
    "[ALPHA] Cumulative proxy iptables partial restore failures",
);
const INVALID_DROPPED: MetricRow = row(
    "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
    Counter,
    &[],
    "[ALPHA] packets dropped by iptables to work around conntrack problems",
);
const LOCALHOST_ACCEPTED: MetricRow = row(
    "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
    Counter,
    &[],
    "[ALPHA] Number of packets accepted on nodeports of loopback interface",
);
const LOCK_WAITS: MetricRow =
    row("kubeproxy_engine_lock_waits_total", Counter, ENGINE, "Runs of iptables that had to wait for the xtables lock");
const LOCK_WAIT: MetricRow = row(
    "kubeproxy_engine_lock_wait_seconds_total",
    Counter,
    ENGINE,
    "Time that runs of iptables waited for the xtables lock",
);
const RUNS: MetricRow = row("kubeproxy_engine_tool_runs_total", Counter, ENGINE, "Runs of iptables-restore");
const BYTES: MetricRow =
    row("kubeproxy_engine_tool_bytes_total", Counter, ENGINE, "Bytes of input of iptables-restore");

/// Every metric of mode nftables.
pub const NFTABLES_TABLE: &[MetricRow] = &[NFTABLES_FAILURES];
/// Every metric of mode ipvs.
pub const IPVS_TABLE: &[MetricRow] = &[FAILURES];
/// Every metric of mode iptables.
pub const IPTABLES_TABLE: &[MetricRow] = &[
    RULES,
    RULES_LAST,
    FAILURES,
    PARTIAL_FAILURES,
    INVALID_DROPPED,
    LOCALHOST_ACCEPTED,
    LOCK_WAITS,
    LOCK_WAIT,
    RUNS,
    BYTES,
];

// === impl NftablesMetrics ===

impl NftablesMetrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub fn register(registry: &Registry) -> Result<Box<dyn ModeMetrics>, prometheus::Error> {
        Ok(Box::new(Self { failures: NFTABLES_FAILURES.counters(registry)? }))
    }
}

impl ModeMetrics for NftablesMetrics {
    fn failed(&self, family: Family) {
        self.failures.with_label_values(&[family.to_string()]).inc();
    }

    fn refresh(&self) {}
}

// === impl IpvsMetrics ===

impl IpvsMetrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub fn register(registry: &Registry) -> Result<Box<dyn ModeMetrics>, prometheus::Error> {
        Ok(Box::new(Self { failures: FAILURES.counters(registry)? }))
    }
}

impl ModeMetrics for IpvsMetrics {
    fn failed(&self, family: Family) {
        self.failures.with_label_values(&[family.to_string()]).inc();
    }

    fn refresh(&self) {}
}

// === impl IptablesMetrics ===

impl IptablesMetrics {
    /// Registers the whole table.
    ///
    /// # Errors
    /// If the table contradicts itself.
    pub fn register(
        mode: &'static str,
        read: impl Fn() -> IptablesCounts + Send + Sync + 'static,
        r: &Registry,
    ) -> Result<Box<dyn ModeMetrics>, prometheus::Error> {
        Ok(Box::new(Self {
            mode,
            read: Box::new(read),
            rules: RULES.gauges(r)?,
            rules_last: RULES_LAST.gauges(r)?,
            failures: FAILURES.counters(r)?,
            partial_failures: PARTIAL_FAILURES.counters(r)?,
            invalid_dropped: INVALID_DROPPED.counters(r)?,
            localhost_accepted: LOCALHOST_ACCEPTED.counters(r)?,
            lock_waits: LOCK_WAITS.counters(r)?,
            lock_wait: LOCK_WAIT.float_counters(r)?,
            runs: RUNS.counters(r)?,
            bytes: BYTES.counters(r)?,
        }))
    }

    fn refresh_family(&self, family: Family, counts: &IptablesFamilyCounts) {
        let family = family.to_string();
        for (table, owned, written) in &counts.rules {
            let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            self.rules.with_label_values(&[*table, &family]).set(gauge(*owned));
            self.rules_last.with_label_values(&[*table, &family]).set(gauge(*written));
        }
        for (counter, value) in [(&self.failures, counts.failures), (&self.partial_failures, counts.partial_failures)] {
            // Upstream exports the counter only after the first failure.
            if value > 0 {
                catch_up(counter, &[&family], value);
            }
        }
        let engine = [family.as_str(), self.mode];
        catch_up(&self.lock_waits, &engine, counts.lock_waits);
        catch_up(&self.runs, &engine, counts.runs);
        catch_up(&self.bytes, &engine, counts.bytes);
        let lock_wait = self.lock_wait.with_label_values(&engine);
        lock_wait.inc_by((counts.lock_wait.as_secs_f64() - lock_wait.get()).max(0.0));
    }
}

impl fmt::Debug for IptablesMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IptablesMetrics").finish_non_exhaustive()
    }
}

impl ModeMetrics for IptablesMetrics {
    fn failed(&self, _: Family) {}

    fn refresh(&self) {
        let counts = (self.read)();
        for (family, counts) in &counts.families {
            self.refresh_family(*family, counts);
        }
        for (counter, packets) in
            [(&self.invalid_dropped, counts.invalid_dropped), (&self.localhost_accepted, counts.localhost_accepted)]
        {
            // Upstream exports zero where nothing counts them.
            catch_up(counter, &[], packets.unwrap_or_default());
        }
    }
}

/// Sets a counter to an external count. A smaller count means that the external one was reset.
pub(crate) fn catch_up(counters: &IntCounterVec, labels: &[&str], value: u64) {
    let counter = counters.with_label_values(labels);
    if value < counter.get() {
        counter.reset();
    }
    counter.inc_by(value - counter.get());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn each_mode_shows_its_own() {
        let metrics = Metrics::new().unwrap();
        metrics.add_mode(Box::new(NftablesMetrics::register)).unwrap();
        assert!(!metrics.encode().contains("tables_sync"), "without a failure there is nothing");
        metrics.mode_failed(Family::V4);
        let page = metrics.encode();
        assert!(page.contains("\nkubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 1\n"));
        assert!(!page.contains("iptables"), "{page}");
    }

    #[test]
    fn what_is_counted_elsewhere_is_read_when_the_page_is() {
        let family = IptablesFamilyCounts {
            rules: vec![("filter", 4, 2), ("nat", 20, 6)],
            failures: 0,
            partial_failures: 0,
            lock_waits: 1,
            lock_wait: Duration::from_millis(1500),
            runs: 3,
            bytes: 4096,
        };
        let counts = IptablesCounts { families: vec![(Family::V4, family)], ..IptablesCounts::default() };
        let counts = Arc::new(Mutex::new(counts));
        let read = {
            let counts = Arc::clone(&counts);
            move || counts.lock().unwrap().clone()
        };
        let metrics = Metrics::new().unwrap();
        metrics.add_mode(Box::new(move |r| IptablesMetrics::register("iptables", read, r))).unwrap();
        let page = metrics.encode();
        for line in [
            "kubeproxy_sync_proxy_rules_iptables_total{ip_family=\"IPv4\",table=\"nat\"} 20",
            "kubeproxy_sync_proxy_rules_iptables_last{ip_family=\"IPv4\",table=\"filter\"} 2",
            "kubeproxy_engine_lock_wait_seconds_total{ip_family=\"IPv4\",mode=\"iptables\"} 1.5",
            "kubeproxy_engine_tool_bytes_total{ip_family=\"IPv4\",mode=\"iptables\"} 4096",
        ] {
            assert!(page.lines().any(|known| known == line), "{line}: {page}");
        }
        assert!(page.contains("\nkubeproxy_iptables_ct_state_invalid_dropped_packets_total 0\n"));
        for absent in ["nftables", "failures_total"] {
            assert!(!page.contains(absent), "{absent}: {page}");
        }
        {
            let mut counts = counts.lock().unwrap();
            counts.invalid_dropped = Some(7);
            counts.families[0].1.failures = 2;
            counts.families[0].1.rules[1].1 = 3;
        }
        metrics.mode_failed(Family::V4);
        let page = metrics.encode();
        for line in [
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total 7",
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"} 2",
            "kubeproxy_sync_proxy_rules_iptables_total{ip_family=\"IPv4\",table=\"nat\"} 3",
            "kubeproxy_engine_tool_runs_total{ip_family=\"IPv4\",mode=\"iptables\"} 3",
        ] {
            assert!(page.lines().any(|known| known == line), "{line}: {page}");
        }
        // The kernel's counter was reset.
        counts.lock().unwrap().invalid_dropped = Some(2);
        assert!(metrics.encode().contains("\nkubeproxy_iptables_ct_state_invalid_dropped_packets_total 2\n"));
    }
}
