//! Reads the queue of reports: updates metrics and logs at once, then passes on the sync passes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ferry_api::object::Family;
use ferry_plane::UnitId;
use tokio::time::Instant;

use super::history::{PassHistory, PastPass};
use super::queue::{GATHERING, Reports};
use super::reporter::{Report, Reporter, SyncPass};

/// Received reports, and the reporter that turns them into metrics and log lines.
#[derive(Debug)]
pub struct Inbox {
    reports: Reports,
    reporter: Reporter,
    history: PassHistory,
    /// sync passes that are already in metrics and logs
    passes: VecDeque<Box<SyncPass>>,
    /// further reports are batched until then
    gathered: Instant,
}

/// Shared by two tasks of the main thread: one follows reports, the other serves scrapes.
pub type SharedInbox = Rc<RefCell<Inbox>>;

// === impl Inbox ===

impl Inbox {
    /// An inbox of these reports. Needs the runtime's clock.
    pub fn new(reports: Reports, reporter: Reporter) -> Self {
        Self { reports, reporter, history: PassHistory::default(), passes: VecDeque::new(), gathered: Instant::now() }
    }

    /// Updates metrics and logs with all reports queued so far, for a scrape. The sync passes among them go on to their follower.
    pub fn catch_up(&mut self) {
        self.read();
        if !self.passes.is_empty() {
            self.reports.wake();
        }
    }

    /// The last sync passes that did something, oldest first.
    pub fn passes(&self) -> impl DoubleEndedIterator<Item = &PastPass> {
        self.history.passes()
    }

    /// Why the last sync pass of this family failed, if it did.
    pub fn failure(&self, family: Family) -> Option<&str> {
        self.history.failure(family)
    }

    /// The units in quarantine, each with its family and the kernel's error.
    pub fn quarantined(&self) -> impl Iterator<Item = (Family, &UnitId, &str)> {
        self.reporter.quarantined()
    }

    fn read(&mut self) {
        for report in self.reports.take() {
            match report {
                Report::SyncPass(pass) => {
                    self.reporter.sync_pass(&pass);
                    self.history.note(&pass);
                    self.passes.push_back(pass);
                }
                Report::Triggered { service, family, time } => self.reporter.triggered(service, family, time),
                Report::Changed { services, slices } => self.reporter.changed(services, slices),
            }
        }
    }

    /// Waits for the next sync pass. Cancel-safe.
    pub async fn sync_pass(inbox: &RefCell<Self>) -> Box<SyncPass> {
        loop {
            let (reports, gathered) = {
                let mut inbox = inbox.borrow_mut();
                if let Some(pass) = inbox.passes.pop_front() {
                    return pass;
                }
                (inbox.reports.clone(), inbox.gathered)
            };
            reports.wait(gathered).await;
            let mut inbox = inbox.borrow_mut();
            inbox.read();
            inbox.gathered = Instant::now() + GATHERING;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use ferry_api::object::Family;
    use ferry_plane::Outcome;
    use tokio::time::timeout;

    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test(start_paused = true)]
    async fn a_pass_that_a_scrape_has_read_is_followed_without_another_report() {
        let reports = Reports::default();
        let reporter = Reporter::new("nftables", Arc::new(Metrics::new().unwrap()));
        let inbox = RefCell::new(Inbox::new(reports.clone(), reporter));
        let (family, ended) = (Family::V4, SystemTime::UNIX_EPOCH);
        for pending in 0..3 {
            let follower = Inbox::sync_pass(&inbox);
            let outcome = Outcome::default();
            let pass = SyncPass { family, outcome, pending, synced: true, settled: true, ended };
            let scrape = async {
                tokio::task::yield_now().await;
                reports.send(Report::SyncPass(Box::new(pass)));
                inbox.borrow_mut().catch_up();
            };
            let (followed, ()) = tokio::join!(timeout(Duration::from_secs(60), follower), scrape);
            assert_eq!(followed.unwrap().pending, pending);
        }
    }
}
