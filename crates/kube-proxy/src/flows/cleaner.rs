//! The thread that lists conntrack entries and deletes stale ones.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ferry_api::object::{Family, Protocol};
use ferry_kernel::clock::processor_time;
use ferry_kernel::conntrack::{ConntrackError, ConntrackSocket, DELETIONS_PER_SEND, Entry, Filter};
use ferry_kernel::memory;
use ferry_model::PerFamily;

use super::flow_match::FlowMatch;
use super::matcher::{Matcher, Patience, frontends, need_local_addresses, protocols};
use super::pace::Pace;
use super::queue::FlowRules;
use super::replies::Replies;
use super::reports::FlowReports;
use super::table::ConntrackTable;
use super::unanswered::{Unanswered, UnansweredFlow, WATCHED, WatchError};
use crate::metrics::Metrics;
use crate::threads::{STACK_BYTES, Threads};

/// Maximum number of stale flows taken from one list, which bounds memory: 1.4 MB. If there are more, the list is repeated
/// after these are deleted.
const MOST: usize = 16_384;

/// A pass over this number of frontends, or with this number of deleted flows, leaves free memory behind that is worth trimming.
const LARGE: usize = 2048;

/// Deletes stale flows.
#[derive(Debug)]
pub(super) struct Cleaner {
    reports: Arc<FlowReports>,
    metrics: Arc<Metrics>,
    /// names of devices whose addresses don't count as the node's
    own_devices: Vec<&'static str>,
    replies: Replies,
    pace: Pace,
    /// from one pass to the next: when a socket of netfilter is closed, the kernel keeps the lock of all commits of nf_tables
    /// until what the last one has removed is freed, which takes a grace period of RCU. After a failure it is opened anew
    socket: Option<ConntrackSocket>,
    /// flows that a first check has left
    unanswered: PerFamily<Unanswered>,
    /// the error logged last, by family
    logged: PerFamily<Option<String>>,
}

/// Why a pass did not come to its end.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("connection tracking: {0}")]
    Table(#[from] ConntrackError),
    #[error("listing local addresses: {0}")]
    Addresses(#[source] io::Error),
    #[error("flows without an answer: {0}")]
    Unanswered(#[from] WatchError),
    /// the rules in force are uncertain; the engine's loop logs the reason
    #[error("the last sync failed")]
    Doubt,
}

/// A pass over one family.
struct CleanerPass<'a> {
    reports: &'a FlowReports,
    family: Family,
    rules: FlowRules,
    replies: Replies,
    local: Vec<IpAddr>,
    own_devices: &'a [&'static str],
    table: &'a mut dyn ConntrackTable,
    /// UDP flows that wait for an answer
    unanswered: &'a mut Unanswered,
    /// number of deleted flows
    deleted: &'a mut usize,
}

// === impl PassError ===

impl PassError {
    fn is_hopeless(&self) -> bool {
        matches!(self, Self::Table(ConntrackError::Unusable(_)))
    }
}

/// Starts the cleaner; returns the state through which engines report to it. `own_devices` are the names of the proxy's own devices,
/// whose addresses don't count as the node's.
///
/// # Errors
/// If the thread can't be started.
pub fn start(
    replies: Replies,
    own_devices: Vec<&'static str>,
    metrics: &Arc<Metrics>,
    threads: &Threads,
) -> anyhow::Result<Arc<FlowReports>> {
    let flows = Arc::new(FlowReports::new(replies.keeps_client_ports));
    let cleaner = Cleaner::new(Arc::clone(&flows), Arc::clone(metrics), own_devices, replies);
    threads.spawn("flows", STACK_BYTES, move || cleaner.run())?;
    Ok(flows)
}

// === impl Cleaner ===

impl Cleaner {
    /// A cleaner for these reports. The addresses of devices that a mode creates for itself don't count as the node's. `replies`:
    /// the sender of replies of translated flows in this mode.
    pub(super) fn new(
        reports: Arc<FlowReports>,
        metrics: Arc<Metrics>,
        own_devices: Vec<&'static str>,
        replies: Replies,
    ) -> Self {
        let pace = Pace::new(Instant::now());
        let unanswered = PerFamily::default();
        Self { reports, metrics, own_devices, replies, pace, socket: None, unanswered, logged: PerFamily::default() }
    }

    /// Never ends.
    pub(super) fn run(mut self) -> ! {
        loop {
            let next = Family::ALL.into_iter().filter_map(|family| self.unanswered.of(family).next()).min();
            for family in self.reports.wait(&self.pace, next) {
                self.check(family);
            }
            for family in Family::ALL {
                self.look_again(family);
            }
        }
    }

    /// Checks the frontends that are due.
    fn check(&mut self, family: Family) {
        let start = Instant::now();
        let rules = self.reports.take(family, start);
        let frontends = rules.right.len();
        let result = self.pass(family, rules, |pass| pass.run());
        let now = Instant::now();
        let duration = self.metrics.conntrack_duration.with_label_values(&[&family.to_string()]);
        duration.observe(now.saturating_duration_since(start).as_secs_f64());
        match &result {
            Ok(_) => {
                self.reports.done(family);
                self.pace.passed(family);
            }
            Err(failure) => {
                self.reports.failed(family, now);
                self.pace.failed(family, now, failure.is_hopeless());
            }
        }
        if frontends.max(result.as_ref().copied().unwrap_or(0)) >= LARGE {
            memory::trim();
        }
        self.log(family, result.err().filter(|failure| !matches!(failure, PassError::Doubt)));
    }

    /// Checks flows without an answer whose time has come. If that fails, the next check of their frontends finds them.
    fn look_again(&mut self, family: Family) {
        let flows = self.unanswered.of_mut(family).take(Instant::now());
        if flows.is_empty() {
            return;
        }
        let rules = self.reports.take_again(family, flows.iter().flat_map(|flow| frontends(&flow.entry)));
        let result = self.pass(family, rules, |pass| pass.run_unanswered(&flows));
        self.reports.done(family);
        if let Err(error) = result {
            tracing::debug!(%family, %error, "Checking unanswered UDP flows failed, leaving them to the second check");
        }
    }

    /// Makes a pass by these rules, and accounts for it. Returns the number of deleted flows.
    fn pass(
        &mut self,
        family: Family,
        rules: FlowRules,
        work: impl FnOnce(&mut CleanerPass<'_>) -> Result<(), PassError>,
    ) -> Result<usize, PassError> {
        let (work_before, frontends, mut deleted) = (processor_time(), rules.right.len(), 0);
        let result =
            self.socket.take().map_or_else(ConntrackSocket::open, Ok).map_err(PassError::from).and_then(|mut table| {
                let mut pass = CleanerPass {
                    reports: &self.reports,
                    family,
                    rules,
                    replies: self.replies.clone(),
                    local: Vec::new(),
                    own_devices: &self.own_devices,
                    table: &mut table,
                    unanswered: self.unanswered.of_mut(family),
                    deleted: &mut deleted,
                };
                let result = work(&mut pass);
                if !matches!(result, Err(PassError::Table(_) | PassError::Unanswered(_))) {
                    self.socket = Some(table);
                }
                result
            });
        let worked = processor_time().saturating_sub(work_before);
        self.pace.spend(Instant::now(), worked);
        self.metrics.conntrack_deleted.with_label_values(&[&family.to_string()]).inc_by(deleted as u64);
        if deleted > 0 {
            tracing::debug!(%family, flows = deleted, frontends, ?worked, "Deleted stale conntrack entries");
        }
        result.map(|()| deleted)
    }

    /// Logs an error once, and its end.
    fn log(&mut self, family: Family, failure: Option<PassError>) {
        let logged = self.logged.of_mut(family);
        let error = failure.map(|failure| failure.to_string());
        match (&error, &logged) {
            (Some(err), logged) if logged.as_ref() != Some(err) => {
                tracing::error!(%family, err, "Deleting stale conntrack entries failed, retrying");
            }
            (None, Some(_)) => tracing::info!(%family, "Deleting stale conntrack entries succeeds again"),
            _ => {} // logged already, or nothing to log
        }
        *logged = error;
    }
}

// === impl CleanerPass ===

impl CleanerPass<'_> {
    /// Deletes the stale flows of all frontends.
    fn run(&mut self) -> Result<(), PassError> {
        self.list_local_addresses()?;
        for protocol in protocols(&self.rules) {
            while self.once(protocol)? {}
        }
        Ok(())
    }

    /// Deletes those of these stale flows whose clients have sent again without an answer.
    fn run_unanswered(&mut self, flows: &[UnansweredFlow]) -> Result<(), PassError> {
        let one_way = self.unanswered.look(flows, self.table)?;
        if one_way.is_empty() {
            return Ok(());
        }
        self.list_local_addresses()?;
        self.remove_unanswered(&one_way)
    }

    fn list_local_addresses(&mut self) -> Result<(), PassError> {
        if need_local_addresses(&self.rules, self.replies.owner) {
            self.local = self.table.local_addresses(self.own_devices).map_err(PassError::Addresses)?;
        }
        Ok(())
    }

    /// Lists once and deletes the stale entries. Returns true if there may be more, beyond the maximum.
    fn once(&mut self, protocol: Protocol) -> Result<bool, PassError> {
        let matcher = self.matcher(protocol, Patience::FirstCheck);
        let (mut wrong, mut more, mut unanswered) = (Vec::new(), false, Vec::new());
        let mut each = |entry: &Entry| match matcher.judge(entry) {
            FlowMatch::Stale if wrong.len() < MOST => wrong.push(*entry),
            FlowMatch::Stale => more = true,
            FlowMatch::Unanswered if unanswered.len() < WATCHED => unanswered.push(*entry),
            // those beyond the maximum are left for the next check
            FlowMatch::Unanswered | FlowMatch::Right => {}
        };
        let listed = self.list(&matcher.filters(), &mut each);
        // If all were gone already, another program deletes them, and repeating might never end.
        more &= self.remove(matcher, &wrong)? > 0;
        if protocol == Protocol::Udp {
            match self.unanswered.watch(&unanswered, self.table, Instant::now()) {
                Ok(idle) => self.remove_unanswered(&idle)?,
                Err(error) => {
                    tracing::debug!(family = %self.family, %error, "Watching unanswered UDP flows failed, leaving them to the second check")
                }
            }
        }
        // Entries of an interrupted list are valid; the rest follows with the next list.
        listed?;
        Ok(more)
    }

    /// Lists the entries that match one of these filters, each once.
    fn list(&mut self, filters: &[Filter], each: &mut dyn FnMut(&Entry)) -> Result<(), ConntrackError> {
        filters.iter().enumerate().try_for_each(|(index, filter)| {
            let is_listed = |entry: &Entry| filters.iter().take(index).any(|earlier| earlier.matches(entry));
            self.table.dump(filter, &mut |entry| {
                if !is_listed(entry) {
                    each(entry)
                }
            })
        })
    }

    /// Deletes those of these UDP flows that are still stale, though they have no answer.
    fn remove_unanswered(&mut self, flows: &[Entry]) -> Result<(), PassError> {
        if !flows.is_empty() {
            self.remove(self.matcher(Protocol::Udp, Patience::None), flows)?;
        }
        Ok(())
    }

    /// Deletes the entries that are still stale; returns their number. Many take a while, in which endpoints may return: so
    /// each portion is compared with the newest rules right before it is deleted.
    fn remove(&mut self, mut matcher: Matcher, wrong: &[Entry]) -> Result<usize, PassError> {
        let mut removed = 0;
        for portion in wrong.chunks(DELETIONS_PER_SEND) {
            if self.renew()? {
                matcher = self.matcher(matcher.protocol(), matcher.patience());
            }
            let still: Vec<Entry> = portion.iter().filter(|entry| matcher.is_wrong(entry)).copied().collect();
            let deletion = self.table.delete(&still);
            removed += deletion.deleted;
            *self.deleted += deletion.deleted;
            if let Some(error) = deletion.error {
                return Err(error.into());
            }
        }
        Ok(removed)
    }

    /// Takes the newest rules; returns true if they differ. A flow may follow rules that were in force, but not reported yet,
    /// when the current ones were taken.
    fn renew(&mut self) -> Result<bool, PassError> {
        if !self.reports.settle(self.family) {
            return Err(PassError::Doubt);
        }
        let Some(newer) = self.reports.newer(self.family, &self.rules) else { return Ok(false) };
        self.rules = newer;
        Ok(true)
    }

    fn matcher(&self, protocol: Protocol, patience: Patience) -> Matcher {
        Matcher::new((self.family, protocol), &self.rules, (&self.local, &self.replies), patience)
    }
}

#[cfg(test)]
mod tests;
