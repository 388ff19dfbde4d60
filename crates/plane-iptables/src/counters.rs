//! Counters of the tool's runs, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferry_kernel::iptables::Table;

use crate::mirror::at;

/// Counters of one family. May be read from any thread.
#[derive(Debug, Default)]
pub struct Counters {
    runs: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    partial_failures: AtomicU64,
    lock_waits: AtomicU64,
    lock_wait_micros: AtomicU64,
    rules: [AtomicU64; Table::ALL.len()],
    written: [AtomicU64; Table::ALL.len()],
}

// === impl Counters ===

impl Counters {
    /// Number of runs of `iptables-restore`, including failed ones.
    pub fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Bytes written to `iptables-restore`.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of failed runs.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Number of failed runs that were to change rules of an earlier run.
    pub fn partial_failures(&self) -> u64 {
        self.partial_failures.load(Ordering::Relaxed)
    }

    /// Number of runs that waited for the lock of the legacy variant, including those that timed out.
    pub fn lock_waits(&self) -> u64 {
        self.lock_waits.load(Ordering::Relaxed)
    }

    /// Total time of waiting for the lock.
    pub fn lock_wait(&self) -> Duration {
        Duration::from_micros(self.lock_wait_micros.load(Ordering::Relaxed))
    }

    /// Number of our rules in this table.
    pub fn rules(&self, table: Table) -> u64 {
        self.rules.get(at(table)).map_or(0, |rules| rules.load(Ordering::Relaxed))
    }

    /// Number of rules that the last commit wrote to this table.
    pub fn written(&self, table: Table) -> u64 {
        self.written.get(at(table)).map_or(0, |rules| rules.load(Ordering::Relaxed))
    }

    pub(crate) fn ran(&self, bytes: usize) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn waited(&self, wait: Duration) {
        self.lock_waits.fetch_add(u64::from(!wait.is_zero()), Ordering::Relaxed);
        self.lock_wait_micros.fetch_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, partial: bool) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.partial_failures.fetch_add(u64::from(partial), Ordering::Relaxed);
    }

    pub(crate) fn set_rules(&self, table: Table, rules: usize) {
        if let Some(gauge) = self.rules.get(at(table)) {
            gauge.store(rules as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_written(&self, table: Table, rules: usize) {
        if let Some(gauge) = self.written.get(at(table)) {
            gauge.store(rules as u64, Ordering::Relaxed);
        }
    }
}
