//! Converts the engines' [`Outcome`]s to metrics and log lines, on the main thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use ferry_api::object::{Family, ObjectName, Timestamp};
use ferry_plane::{Acknowledged, Outcome, Unit, UnitId};

use crate::metrics::Metrics;

/// A report of another thread to the main one.
#[derive(Debug)]
pub enum Report {
    /// a sync pass of an engine
    SyncPass(Box<SyncPass>),
    /// a slice of this Service changed; `time` is its last-change trigger time
    Triggered {
        /// the Service
        service: ObjectName,
        /// the slice's family
        family: Family,
        /// the trigger time
        time: Timestamp,
    },
    /// changes of objects since the previous report of this sort
    Changed {
        /// changes of Services
        services: u32,
        /// changes of EndpointSlices
        slices: u32,
    },
}

/// One sync pass of an engine.
#[derive(Debug)]
pub struct SyncPass {
    /// the engine's family
    pub family: Family,
    /// its result
    pub outcome: Outcome,
    /// units handed to the engine and not acknowledged
    pub pending: usize,
    /// true if changes were committed or tried; false for a drift check alone
    pub synced: bool,
    /// everything handed over is in force, except for units in quarantine
    pub settled: bool,
    /// end of the pass
    pub ended: SystemTime,
}

/// Updates metrics and logs from reports.
#[derive(Debug)]
pub struct Reporter {
    mode: &'static str,
    metrics: Arc<Metrics>,
    triggers: BTreeMap<(Family, UnitId), Vec<Timestamp>>,
    /// logged units in quarantine, each with the reason
    quarantined: BTreeMap<Family, BTreeMap<UnitId, String>>,
    /// logged error of a family's sync passes
    failing: BTreeMap<Family, String>,
}

/// Most trigger times that are kept for one unit.
const TRIGGERS: usize = 64;

// === impl Report ===

impl Report {
    /// True for reports that must not be delayed: errors and repairs, for operators, and changed responses to the health checks
    /// of load balancers.
    pub(super) fn is_urgent(&self) -> bool {
        match self {
            Self::SyncPass(pass) => pass.is_urgent(),
            Self::Triggered { .. } | Self::Changed { .. } => false,
        }
    }

    /// True for reports that wait for another one, or for a scrape: waking a thread costs more than a change of the core.
    pub(super) fn wakes(&self) -> bool {
        !matches!(self, Self::Changed { .. })
    }

    /// Merges the next report into this one, so that a long queue of changes takes no memory; returns it if that isn't possible.
    pub(super) fn merge(&mut self, next: Self) -> Option<Self> {
        match (self, next) {
            (Self::Changed { services, slices }, Self::Changed { services: further, slices: further_slices }) => {
                *services = services.saturating_add(further);
                *slices = slices.saturating_add(further_slices);
                None
            }
            (_, next) => Some(next),
        }
    }
}

// === impl SyncPass ===

impl SyncPass {
    fn is_urgent(&self) -> bool {
        let Outcome { acked, quarantined, error, repairs, contested, .. } = &self.outcome;
        let followed = |unit: &Option<Arc<Unit>>| match unit.as_deref() {
            Some(Unit::Base(_)) => true,
            Some(Unit::Service(state)) => state.health_check.is_some(),
            None => false,
        };
        error.is_some()
            || *repairs > 0
            || !(contested.is_empty() && quarantined.is_empty())
            || acked.iter().any(|unit| followed(&unit.before) || followed(&unit.after))
    }
}

// === impl Reporter ===

impl Reporter {
    /// A reporter for engines of this mode.
    pub fn new(mode: &'static str, metrics: Arc<Metrics>) -> Self {
        Self { mode, metrics, triggers: BTreeMap::new(), quarantined: BTreeMap::new(), failing: BTreeMap::new() }
    }

    /// The units in quarantine, each with its family and the kernel's error.
    pub(super) fn quarantined(&self) -> impl Iterator<Item = (Family, &UnitId, &str)> {
        let of = |(family, units): (&Family, _)| (*family, units);
        self.quarantined.iter().map(of).flat_map(|(family, units): (Family, &BTreeMap<UnitId, String>)| {
            units.iter().map(move |(unit, error)| (family, unit, error.as_str()))
        })
    }

    /// Keeps a slice's trigger time until the change is in the kernel.
    pub fn triggered(&mut self, service: ObjectName, family: Family, time: Timestamp) {
        let times = self.triggers.entry((family, UnitId::Service(service))).or_default();
        // A unit in quarantine may be pending for long while its slices keep changing.
        if times.len() < TRIGGERS {
            times.push(time);
        }
    }

    /// Counts changes as pending, until a sync ends.
    pub fn changed(&self, services: u32, slices: u32) {
        self.metrics.service_changes_pending.add(services.into());
        self.metrics.endpoint_changes_pending.add(slices.into());
    }

    /// Updates metrics and logs from a sync pass.
    pub fn sync_pass(&mut self, pass: &SyncPass) {
        self.measure(pass);
        self.log_quarantine(pass);
        self.log_failure(pass);
        let SyncPass { family, outcome, .. } = pass;
        if outcome.repairs > 0 {
            tracing::warn!(
                %family,
                objects = outcome.repairs,
                named = %outcome.repaired.join(", "),
                "Repaired kernel objects after foreign changes"
            );
        }
        if !outcome.contested.is_empty() {
            tracing::warn!(
                %family,
                named = %outcome.contested.join(", "),
                "Another program keeps changing kernel objects of this proxy, suspending their repair"
            );
        }
        let changed = !outcome.acked.is_empty() || outcome.ops > 0 || outcome.repairs > 0;
        if outcome.error.is_some() || !changed {
            return;
        }
        tracing::debug!(
            %family,
            mode = self.mode,
            acknowledged = outcome.acked.len(),
            ops = outcome.ops,
            full = outcome.full,
            elapsed = ?outcome.elapsed,
            "Synced"
        );
        for Acknowledged { id, before, after } in &outcome.acked {
            let change = match (before, after) {
                (None, Some(_)) => "added",
                (_, None) => "removed",
                (Some(_), Some(_)) => "changed",
            };
            tracing::trace!(%family, unit = %id, change, "Rules are in force");
        }
    }

    fn measure(&mut self, pass: &SyncPass) {
        let SyncPass { family, outcome, .. } = pass;
        let family_label = family.to_string();
        let labels = [family_label.as_str()];
        let engine = [family_label.as_str(), self.mode];
        let metrics = &self.metrics;
        let seconds = outcome.elapsed.as_secs_f64();
        let failed = outcome.error.is_some();
        if pass.synced {
            metrics.sync_duration.with_label_values(&labels).observe(seconds);
            let kind = if outcome.full { &metrics.full_sync_duration } else { &metrics.partial_sync_duration };
            kind.with_label_values(&labels).observe(seconds);
            if !failed {
                metrics.last_sync.with_label_values(&labels).set(unix_seconds(pass.ended));
                self.catch_up_with_clock(pass, &labels);
                metrics.endpoint_changes_pending.set(0);
                metrics.service_changes_pending.set(0);
            }
        }
        if failed {
            metrics.mode_failed(*family);
        }
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        metrics.engine_commit.with_label_values(&engine).observe(seconds);
        metrics.engine_pending.with_label_values(&engine).set(count(pass.pending));
        metrics.engine_quarantined.with_label_values(&engine).set(count(outcome.quarantined.len()));
        metrics.engine_ops.with_label_values(&engine).inc_by(outcome.ops as u64);
        metrics.engine_repairs.with_label_values(&engine).inc_by(outcome.repairs as u64);
        metrics.engine_contested.with_label_values(&engine).inc_by(outcome.contested.len() as u64);
        self.observe_programming(pass, &family_label);
    }

    /// Where the clock was set back, the last change has a time that is to come, and would seem to wait until then.
    fn catch_up_with_clock(&self, pass: &SyncPass, labels: &[&str]) {
        let queued = self.metrics.last_queued.with_label_values(labels);
        if queued.get() > unix_seconds(SystemTime::now()) {
            queued.set(unix_seconds(pass.ended));
        }
    }

    fn observe_programming(&mut self, pass: &SyncPass, label: &str) {
        if self.triggers.is_empty() {
            return;
        }
        let now = unix_seconds(pass.ended);
        for unit in &pass.outcome.acked {
            for time in self.triggers.remove(&(pass.family, unit.id.clone())).unwrap_or_default() {
                let then = time.seconds as f64 + f64::from(time.nanoseconds) / 1e9;
                self.metrics.network_programming.with_label_values(&[label]).observe((now - then).max(0.0));
            }
        }
    }

    fn log_quarantine(&mut self, pass: &SyncPass) {
        let SyncPass { family, outcome, .. } = pass;
        let said = self.quarantined.entry(*family).or_default();
        let waiting: BTreeSet<&UnitId> = outcome.quarantined.iter().map(|(unit, _)| unit).collect();
        said.retain(|unit, _| {
            let waits = waiting.contains(unit);
            if !waits {
                tracing::info!(%family, %unit, "Kernel accepts the unit again");
            }
            waits
        });
        for (unit, error) in &outcome.quarantined {
            let error = error.to_string();
            if said.get(unit) != Some(&error) {
                tracing::error!(%family, %unit, err = error, "Kernel rejected the unit, keeping its last good state");
                said.insert(unit.clone(), error);
            }
        }
    }

    fn log_failure(&mut self, pass: &SyncPass) {
        let SyncPass { family, outcome, .. } = pass;
        match &outcome.error {
            Some(error) => {
                let error = error.to_string();
                if self.failing.get(family) != Some(&error) {
                    tracing::error!(%family, err = error, "Sync failed, retrying");
                    self.failing.insert(*family, error);
                }
            }
            None => {
                if self.failing.remove(family).is_some() {
                    tracing::info!(%family, "Sync succeeds again");
                }
            }
        }
    }
}

/// Seconds since 1970.
pub(super) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use ferry_plane::{Acknowledged, CommitError};

    use super::*;
    use crate::metrics::mode::NftablesMetrics;

    fn sync_pass(outcome: Outcome) -> SyncPass {
        SyncPass { family: Family::V4, outcome, pending: 0, synced: true, settled: false, ended: SystemTime::now() }
    }

    fn service(name: &str) -> Acknowledged {
        Acknowledged { id: UnitId::Service(ObjectName::new("default", name)), before: None, after: None }
    }

    #[test]
    fn a_sync_pass_becomes_metrics() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let mut reporter = Reporter::new("nftables", Arc::clone(&metrics));
        reporter.changed(2, 3);
        assert_eq!((metrics.service_changes_pending.get(), metrics.endpoint_changes_pending.get()), (2, 3));
        reporter.triggered(ObjectName::new("default", "a"), Family::V4, Timestamp { seconds: 1, nanoseconds: 0 });
        let elapsed = Duration::from_millis(1);
        reporter.sync_pass(&sync_pass(Outcome {
            acked: vec![service("b")],
            ops: 7,
            repairs: 2,
            elapsed,
            ..Outcome::default()
        }));
        assert_eq!(metrics.network_programming.with_label_values(&["IPv4"]).get_sample_count(), 0);
        reporter.sync_pass(&sync_pass(Outcome {
            acked: vec![service("a")],
            full: true,
            elapsed,
            ..Outcome::default()
        }));
        assert_eq!(metrics.network_programming.with_label_values(&["IPv4"]).get_sample_count(), 1);
        assert_eq!(metrics.engine_ops.with_label_values(&["IPv4", "nftables"]).get(), 7);
        assert_eq!(metrics.engine_repairs.with_label_values(&["IPv4", "nftables"]).get(), 2);
        assert_eq!(metrics.sync_duration.with_label_values(&["IPv4"]).get_sample_count(), 2);
        assert_eq!(metrics.full_sync_duration.with_label_values(&["IPv4"]).get_sample_count(), 1);
        assert_eq!(metrics.endpoint_changes_pending.get(), 0);
        assert!(metrics.last_sync.with_label_values(&["IPv4"]).get() > 1e9);
    }

    #[test]
    fn only_what_was_done_is_logged_as_synced() {
        let mut reporter = Reporter::new("nftables", Arc::new(Metrics::new().unwrap()));
        let mut says = |outcome| crate::logging::logged(4, || reporter.sync_pass(&sync_pass(outcome)));
        let acked = || vec![service("a")];
        let error = || Some(Arc::new(CommitError::Busy(io::Error::other("lock"))));
        assert_eq!(says(Outcome { worked: true, full: true, ..Outcome::default() }), "");
        let text = says(Outcome { contested: vec!["it".to_owned()], ..Outcome::default() });
        assert!(text.contains("suspending their repair") && !text.contains("\"Synced\""), "{text}");
        for outcome in [
            Outcome { acked: acked(), ..Outcome::default() },
            Outcome { ops: 1, ..Outcome::default() },
            Outcome { repairs: 1, ..Outcome::default() },
        ] {
            let text = says(outcome);
            assert_eq!(text.matches("\"Synced\" family=\"IPv4\"").count(), 1, "{text}");
        }
        let text = says(Outcome { acked: acked(), ops: 1, error: error(), ..Outcome::default() });
        assert!(text.contains("Sync failed") && !text.contains("\"Synced\""), "{text}");
        assert_eq!(says(Outcome { error: error(), ..Outcome::default() }), "");
    }

    /// Dashboards alert on the difference of these two times: one rejected Service must not hide the state of all others.
    #[test]
    fn a_pass_with_a_unit_in_quarantine_or_without_work_is_a_successful_sync() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let mut reporter = Reporter::new("nftables", Arc::clone(&metrics));
        let lag = || {
            let of = |gauges: &prometheus::GaugeVec| gauges.with_label_values(&["IPv4"]).get();
            of(&metrics.last_queued) - of(&metrics.last_sync)
        };
        let error = Arc::new(CommitError::Refused(Vec::new()));
        let quarantined = vec![(service("a").id, error)];
        for outcome in [Outcome { quarantined, ..Outcome::default() }, Outcome::default()] {
            reporter.changed(1, 1);
            metrics.last_queued.with_label_values(&["IPv4"]).set(unix_seconds(SystemTime::now()));
            assert!(lag() > 0.0);
            reporter.sync_pass(&sync_pass(outcome));
            assert!(lag() <= 0.0, "{}", lag());
            assert_eq!((metrics.service_changes_pending.get(), metrics.endpoint_changes_pending.get()), (0, 0));
        }
    }

    #[test]
    fn units_in_quarantine_are_told_until_the_kernel_accepts_them() {
        let mut reporter = Reporter::new("nftables", Arc::new(Metrics::new().unwrap()));
        let error = Arc::new(CommitError::Busy(io::Error::other("in use")));
        let quarantined = vec![(service("a").id, Arc::clone(&error)), (UnitId::Base, error)];
        reporter.sync_pass(&sync_pass(Outcome { quarantined, ..Outcome::default() }));
        let told = |reporter: &Reporter| -> Vec<String> {
            reporter.quarantined().map(|(family, unit, error)| format!("{family} {unit}: {error}")).collect()
        };
        let all = told(&reporter);
        assert_eq!(all.len(), 2);
        assert!(all[1].starts_with("IPv4 service default/a: ") && all[1].ends_with("in use"), "{all:?}");
        reporter.sync_pass(&sync_pass(Outcome::default()));
        assert_eq!(told(&reporter), [""; 0]);
    }

    #[test]
    fn a_clock_that_was_set_back_leaves_no_change_waiting() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let mut reporter = Reporter::new("nftables", Arc::clone(&metrics));
        let queued = metrics.last_queued.with_label_values(&["IPv4"]);
        queued.set(unix_seconds(SystemTime::now()) + 3600.0);
        reporter.sync_pass(&sync_pass(Outcome::default()));
        assert!(queued.get() <= metrics.last_sync.with_label_values(&["IPv4"]).get());
    }

    #[test]
    fn a_failed_sync_pass_leaves_changes_pending() {
        let metrics = Arc::new(Metrics::new().unwrap());
        metrics.add_mode(Box::new(NftablesMetrics::register)).unwrap();
        let mut reporter = Reporter::new("nftables", Arc::clone(&metrics));
        reporter.changed(3, 0);
        let error = Some(Arc::new(CommitError::Busy(io::Error::other("lock"))));
        reporter.sync_pass(&sync_pass(Outcome { error, ..Outcome::default() }));
        assert_eq!(metrics.service_changes_pending.get(), 3);
        assert!(metrics.encode().contains("_nftables_sync_failures_total{ip_family=\"IPv4\"} 1"));
        assert!(metrics.last_sync.with_label_values(&["IPv4"]).get() < 1.0);
        assert!(reporter.failing.contains_key(&Family::V4));
        reporter.sync_pass(&sync_pass(Outcome::default()));
        assert!(reporter.failing.is_empty());
    }
}
