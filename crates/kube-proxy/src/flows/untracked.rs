//! A system that tracks no connections for the proxy: there is nothing to clean, and what the engines' loops report is dropped.

use std::sync::Arc;
use std::task::Waker;

use ferry_api::object::Family;
use ferry_plane::{Outcome, Served, SyncEngine};

use super::Replies;
use crate::metrics::Metrics;
use crate::threads::Threads;

/// The reports of the engines' loops, which are dropped.
#[derive(Debug, Default)]
pub struct FlowReports;

/// Reports for the loop of one engine.
#[derive(Debug)]
pub struct FlowObserver(Family);

/// Starts nothing.
///
/// # Errors
/// None.
pub fn start(
    _replies: Replies,
    _own_devices: Vec<&'static str>,
    _metrics: &Arc<Metrics>,
    _threads: &Threads,
) -> anyhow::Result<Arc<FlowReports>> {
    Ok(Arc::default())
}

// === impl FlowReports ===

impl FlowReports {
    /// The reporting end for this family.
    pub fn observer(self: &Arc<Self>, family: Family) -> FlowObserver {
        FlowObserver(family)
    }

    /// Foreign rules with these frontends were removed.
    pub fn mislead(&self, _family: Family, _served: Vec<Served>) {}
}

// === impl FlowObserver ===

impl FlowObserver {
    /// Family of the engine.
    pub fn family(&self) -> Family {
        self.0
    }

    /// Sets what is woken for a sync pass.
    pub fn wake_by(&self, _waker: Waker) {}

    /// Marks the beginning of a sync pass.
    pub fn begin(&self) {}

    /// Reports the outcome of the sync pass.
    pub fn end(&mut self, _outcome: &Outcome, _engine: &dyn SyncEngine) {}
}
