//! Schedulers that the kernel lacks: their servers get the configured one until the model chooses another.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use ferry_kernel::module;
use ferry_model::{MissingSchedulers, Scheduler};

use crate::server::{ServerId, Settings};

/// Takes the schedulers that a family's kernel half has found missing, each time this changes.
#[derive(Clone)]
pub struct SchedulerReports(pub Arc<dyn Fn(MissingSchedulers) + Send + Sync>);

/// The schedulers of one family's servers.
#[derive(Debug)]
pub(crate) struct Schedulers {
    /// the configured one, which is there
    fallback: Scheduler,
    missing: BTreeMap<Scheduler, String>,
    /// servers that have the fallback instead of this scheduler
    replaced: HashMap<ServerId, Scheduler>,
    reports: Option<SchedulerReports>,
}

// === impl SchedulerReports ===

impl fmt::Debug for SchedulerReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SchedulerReports")
    }
}

// === impl Schedulers ===

impl Schedulers {
    pub(crate) fn new(fallback: Scheduler, reports: Option<SchedulerReports>) -> Self {
        Self { fallback, missing: BTreeMap::new(), replaced: HashMap::new(), reports }
    }

    /// The configured scheduler.
    pub(crate) fn fallback(&self) -> Scheduler {
        self.fallback
    }

    /// The scheduler to write for a server that wants this one.
    pub(crate) fn chosen(&mut self, id: ServerId, wanted: Scheduler) -> Scheduler {
        if self.missing.contains_key(&wanted) {
            self.replaced.insert(id, wanted);
            self.fallback
        } else {
            self.replaced.remove(&id);
            wanted
        }
    }

    /// The settings as they were wanted, of a server as it was read.
    pub(crate) fn wanted(&self, id: ServerId, read: Settings) -> Settings {
        match self.replaced.get(&id) {
            Some(wanted) if read.scheduler == self.fallback => Settings { scheduler: *wanted, ..read },
            Some(_) | None => read,
        }
    }

    pub(crate) fn forget(&mut self, id: ServerId) {
        self.replaced.remove(&id);
    }

    /// The kernel lacks this scheduler. False if it is the configured one, which nothing can replace.
    pub(crate) fn lack(&mut self, scheduler: Scheduler) -> bool {
        if scheduler == self.fallback {
            return false;
        }
        let advice = module::find(&module_of(scheduler)).to_string();
        tracing::warn!(
            scheduler = scheduler.name(),
            instead = self.fallback.name(),
            advice,
            "Scheduler is missing, its virtual servers get the configured one"
        );
        if self.missing.insert(scheduler, advice).is_none() {
            self.report();
        }
        true
    }

    /// Tries schedulers again whose modules are there now; called when everything is read back.
    pub(crate) fn look_again(&mut self) {
        let before = self.missing.len();
        self.missing.retain(|scheduler, _| !module::find(&module_of(*scheduler)).is_present());
        if self.missing.len() != before {
            self.replaced.retain(|_, scheduler| self.missing.contains_key(scheduler));
            self.report();
        }
    }

    fn report(&self) {
        if let Some(SchedulerReports(report)) = &self.reports {
            report(self.missing.clone());
        }
    }
}

/// The kernel module of a scheduler.
pub(crate) fn module_of(scheduler: Scheduler) -> String {
    format!("ip_vs_{scheduler}")
}
