//! Queue of reports to the main thread: urgent reports wake it at once, the others once a second.
//!
//! Waking a sleeping thread costs more than processing the report of a small change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::reporter::Report;

/// Both ends of the queue.
#[derive(Clone, Debug, Default)]
pub struct Reports(Arc<ReportQueue>);

#[derive(Debug, Default)]
struct ReportQueue {
    waiting: Mutex<Vec<Report>>,
    /// the reader waits for any report, urgent or not
    idle: AtomicBool,
    wake: Notify,
}

/// Batching interval of reports that are not urgent.
pub(super) const GATHERING: Duration = Duration::from_secs(1);

// === impl Reports ===

impl Reports {
    /// Adds a report; never blocks.
    pub fn send(&self, report: Report) {
        let (urgent, wakes) = (report.is_urgent(), report.wakes());
        let mut waiting = self.lock();
        let apart = match waiting.last_mut() {
            Some(last) => last.merge(report),
            None => Some(report),
        };
        waiting.extend(apart);
        drop(waiting);
        if wakes && (self.0.idle.swap(false, Ordering::AcqRel) || urgent) {
            self.0.wake.notify_one();
        }
    }

    /// Ends a wait as an urgent report does: the reports were taken by a scrape.
    pub fn wake(&self) {
        self.0.wake.notify_one();
    }

    /// Takes all reports, in their order.
    pub fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *self.lock())
    }

    /// Waits for an urgent report; from the given moment on, for any. Cancel-safe. Only one task may wait.
    pub async fn wait(&self, gathered: Instant) {
        tokio::select! {
            () = self.0.wake.notified() => return,
            () = sleep_until(gathered) => {}
        }
        self.0.idle.store(true, Ordering::Release);
        if !self.lock().iter().any(Report::wakes) {
            self.0.wake.notified().await;
        }
        // Reports from now on are batched again.
        self.0.idle.store(false, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Report>> {
        // A panic can't leave the vector of reports half written.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::SystemTime;

    use ferry_api::object::{Family, ObjectName, Timestamp};
    use ferry_plane::{CommitError, Outcome};

    use super::super::reporter::SyncPass;
    use super::*;

    fn sync_pass(outcome: Outcome) -> Report {
        let pass = SyncPass {
            family: Family::V4,
            outcome,
            pending: 0,
            synced: true,
            settled: true,
            ended: SystemTime::UNIX_EPOCH,
        };
        Report::SyncPass(Box::new(pass))
    }

    fn small() -> Report {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        Report::Triggered { service: ObjectName::new("default", "web"), family: Family::V4, time }
    }

    /// Runs with paused time, which advances only while all tasks wait.
    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(test);
    }

    async fn waited(reports: &Reports, gathered: Instant) -> Duration {
        let start = Instant::now();
        reports.wait(gathered).await;
        start.elapsed()
    }

    #[test]
    fn the_first_report_after_a_while_is_read_at_once() {
        run(async {
            let reports = Reports::default();
            let reader = reports.clone();
            let reader = tokio::spawn(async move { waited(&reader, Instant::now()).await });
            tokio::task::yield_now().await;
            reports.send(small());
            assert_eq!(reader.await.unwrap(), Duration::ZERO);
            assert_eq!(reports.take().len(), 1);
        });
    }

    #[test]
    fn further_reports_are_gathered() {
        run(async {
            let reports = Reports::default();
            let gathered = Instant::now() + GATHERING;
            reports.send(small());
            reports.send(sync_pass(Outcome::default()));
            assert_eq!(waited(&reports, gathered).await, GATHERING);
            assert_eq!(reports.take().len(), 2);
        });
    }

    #[test]
    fn a_report_after_one_that_waited_is_gathered_too() {
        run(async {
            let reports = Reports::default();
            reports.send(small());
            waited(&reports, Instant::now()).await;
            reports.take();
            let gathered = Instant::now() + GATHERING;
            reports.send(small());
            assert_eq!(waited(&reports, gathered).await, GATHERING);
        });
    }

    #[test]
    fn an_error_is_read_at_once() {
        run(async {
            let reports = Reports::default();
            let error = Some(Arc::new(CommitError::Busy(io::Error::other("lock"))));
            reports.send(small());
            reports.send(sync_pass(Outcome { error, ..Outcome::default() }));
            assert_eq!(waited(&reports, Instant::now() + GATHERING).await, Duration::ZERO);
            assert_eq!(reports.take().len(), 2, "in their order");
        });
    }

    #[test]
    fn changes_wake_nobody_and_are_added_up() {
        run(async {
            let reports = Reports::default();
            for _ in 0..1000 {
                reports.send(Report::Changed { services: 1, slices: 2 });
            }
            let reader = reports.clone();
            let reader = tokio::spawn(async move { waited(&reader, Instant::now()).await });
            tokio::task::yield_now().await;
            reports.send(Report::Changed { services: 0, slices: 1 });
            sleep_until(Instant::now() + 5 * GATHERING).await;
            reports.send(sync_pass(Outcome::default()));
            assert_eq!(reader.await.unwrap(), 5 * GATHERING, "only the pass wakes");
            let taken = reports.take();
            assert!(
                matches!(taken[..], [Report::Changed { services: 1000, slices: 2001 }, Report::SyncPass(_)]),
                "{taken:?}"
            );
        });
    }

    #[test]
    fn what_came_while_nobody_waited_is_not_lost() {
        run(async {
            let reports = Reports::default();
            for _ in 0..2 {
                reports.send(small());
                assert_eq!(waited(&reports, Instant::now()).await, Duration::ZERO);
                assert_eq!(reports.take().len(), 1);
            }
        });
    }
}
