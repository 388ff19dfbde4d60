//! Schedulers that the kernel lacks: their servers get the configured one until the model chooses another.
//!
//! For each server whose scheduler is missing the kernel runs `modprobe`. So the first server of a scheduler is sent without others
//! behind it (`commit`), and after a refusal none with it, until its module is there: looked for once a minute.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_kernel::module;
use ferry_model::{MissingSchedulers, Scheduler};

use crate::server::{ServerId, ServerSettings};

/// Takes the schedulers that a family's kernel half has found missing, each time this changes.
#[derive(Clone)]
pub struct SchedulerReports(pub Arc<dyn Fn(MissingSchedulers) + Send + Sync>);

/// The schedulers of one family's servers.
#[derive(Debug)]
pub(crate) struct Schedulers {
    /// the configured one, which is there
    fallback: Scheduler,
    /// those that the kernel has accepted, or had at a start
    proven: BTreeSet<Scheduler>,
    /// each with an advice
    missing: BTreeMap<Scheduler, String>,
    /// the next look for the modules of missing ones, not before
    next_look: Option<Instant>,
    /// servers that have the fallback instead of this scheduler
    replaced: HashMap<ServerId, Scheduler>,
    reports: Option<SchedulerReports>,
}

/// The pause between two looks for the modules of missing schedulers.
const LOOK_PERIOD: Duration = Duration::from_secs(60);

// === impl SchedulerReports ===

impl fmt::Debug for SchedulerReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SchedulerReports")
    }
}

// === impl Schedulers ===

impl Schedulers {
    pub(crate) fn new(fallback: Scheduler, reports: Option<SchedulerReports>) -> Self {
        Self {
            fallback,
            proven: BTreeSet::from([fallback]),
            missing: BTreeMap::new(),
            next_look: None,
            replaced: HashMap::new(),
            reports,
        }
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
    pub(crate) fn wanted(&self, id: ServerId, read: ServerSettings) -> ServerSettings {
        match self.replaced.get(&id) {
            Some(wanted) if read.scheduler == self.fallback => ServerSettings { scheduler: *wanted, ..read },
            Some(_) | None => read,
        }
    }

    pub(crate) fn forget(&mut self, id: ServerId) {
        self.replaced.remove(&id);
    }

    /// True if the kernel may lack this scheduler: no server has shown that it is there.
    pub(crate) fn is_unproven(&self, scheduler: Scheduler) -> bool {
        !self.proven.contains(&scheduler)
    }

    /// The kernel has a server with this scheduler.
    pub(crate) fn prove(&mut self, scheduler: Scheduler) {
        self.proven.insert(scheduler);
    }

    /// The kernel lacks this scheduler. False if it is the configured one, which nothing can replace.
    pub(crate) fn lack(&mut self, scheduler: Scheduler) -> bool {
        if scheduler == self.fallback {
            return false;
        }
        self.proven.remove(&scheduler);
        if !self.missing.contains_key(&scheduler) {
            let advice = module::find(&module_of(scheduler)).to_string();
            tracing::warn!(
                scheduler = scheduler.name(),
                instead = self.fallback.name(),
                advice,
                "Scheduler is missing, its virtual servers get the configured one"
            );
            self.missing.insert(scheduler, advice);
            self.report();
        }
        true
    }

    /// Looks for the modules of missing schedulers if that is due.
    pub(crate) fn tend(&mut self, now: Instant) {
        if !self.missing.is_empty() && self.next_look.is_none_or(|next| next <= now) {
            self.next_look = Some(now + LOOK_PERIOD);
            self.look_again();
        }
    }

    /// Tries schedulers again whose modules are there now.
    pub(crate) fn look_again(&mut self) {
        let before = self.missing.len();
        self.missing.retain(|scheduler, _| {
            // A built-in one is never missing.
            let is_missing = !module::is_loaded(&module_of(*scheduler));
            if !is_missing {
                tracing::info!(
                    scheduler = scheduler.name(),
                    "Scheduler is available, setting it on its virtual servers"
                );
            }
            is_missing
        });
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::tests::logged;
    use super::*;

    fn recording() -> (Schedulers, Arc<Mutex<Vec<MissingSchedulers>>>) {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let take = Arc::clone(&reports);
        let report = SchedulerReports(Arc::new(move |missing| take.lock().unwrap().push(missing)));
        (Schedulers::new(Scheduler::Rr, Some(report)), reports)
    }

    #[test]
    fn a_thousand_refused_servers_are_one_line_and_one_report_for_each_scheduler() {
        let (mut schedulers, reports) = recording();
        let lines = logged(|| {
            for _ in 0..1000 {
                assert!(schedulers.lack(Scheduler::Twos) && schedulers.lack(Scheduler::Nq));
            }
            assert!(!schedulers.lack(Scheduler::Rr), "nothing replaces the configured one");
        });
        assert_eq!((lines, reports.lock().unwrap().len()), (2, 2));
    }

    #[test]
    fn a_scheduler_is_unproven_until_the_kernel_has_accepted_it() {
        let (mut schedulers, _) = recording();
        assert!(!schedulers.is_unproven(Scheduler::Rr) && schedulers.is_unproven(Scheduler::Nq));
        schedulers.prove(Scheduler::Nq);
        assert!(!schedulers.is_unproven(Scheduler::Nq));
        schedulers.lack(Scheduler::Nq);
        assert!(schedulers.is_unproven(Scheduler::Nq), "its module was removed");
    }

    #[test]
    fn modules_of_missing_schedulers_are_looked_for_once_a_minute() {
        let (mut schedulers, _) = recording();
        let now = Instant::now();
        schedulers.tend(now);
        assert_eq!(schedulers.next_look, None, "none is missing");
        schedulers.lack(Scheduler::Nq);
        for (seconds, looks) in [(0, true), (2, false), (59, false), (60, true), (61, false)] {
            let before = schedulers.next_look;
            schedulers.tend(now + Duration::from_secs(seconds));
            assert_eq!(schedulers.next_look != before, looks, "{seconds}");
        }
    }
}
