//! The reader of the queue of reports: metrics and logs at once, then the turns for whoever else follows them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::time::Instant;

use super::queue::{GATHERING, Reports};
use super::turns::{Report, Reporter, Turn};

/// What was reported, and who makes metrics and logs of it.
#[derive(Debug)]
pub struct Inbox {
    reports: Reports,
    reporter: Reporter,
    /// in metrics and logs already
    turns: VecDeque<Box<Turn>>,
    /// until then further reports are gathered
    gathered: Instant,
}

/// The main thread's, for the task that follows reports and the one that answers a scrape.
pub type SharedInbox = Rc<RefCell<Inbox>>;

// === impl Inbox ===

impl Inbox {
    /// Reads these reports. Needs the runtime's clock.
    pub fn new(reports: Reports, reporter: Reporter) -> Self {
        Self { reports, reporter, turns: VecDeque::new(), gathered: Instant::now() }
    }

    /// Brings metrics and logs up to date with all that has been reported by now.
    pub fn catch_up(&mut self) {
        for report in self.reports.take() {
            match report {
                Report::Turn(turn) => {
                    self.reporter.turn(&turn);
                    self.turns.push_back(turn);
                }
                Report::Triggered { service, family, time } => self.reporter.triggered(service, family, time),
            }
        }
    }

    /// Waits until there is a turn to follow. May be dropped while it waits.
    pub async fn turn(inbox: &RefCell<Self>) -> Box<Turn> {
        loop {
            let (reports, gathered) = {
                let mut inbox = inbox.borrow_mut();
                if let Some(turn) = inbox.turns.pop_front() {
                    return turn;
                }
                (inbox.reports.clone(), inbox.gathered)
            };
            reports.wait(gathered).await;
            let mut inbox = inbox.borrow_mut();
            inbox.catch_up();
            inbox.gathered = Instant::now() + GATHERING;
        }
    }
}
