//! The thread that looks through the connection table.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_kernel::conntrack::{AT_ONCE, Entry, Error, Socket};
use ferry_kernel::memory;
use ferry_model::PerFamily;

use rustix::time::{ClockId, clock_gettime};

use super::matcher::{Matcher, need_local_addresses, protocols};
use super::pace::Pace;
use super::queue::Rules;
use super::shared::Shared;
use super::table::Table;
use crate::serve::metrics::Metrics;

/// How many wrong flows one list may bring, so that memory stays bounded: 1.4 MB. Where there are more, it is made again
/// when these are gone.
const MOST: usize = 16_384;

/// A pass over so many frontends, or with so many flows removed, leaves memory behind that is worth giving back.
const LARGE: usize = 2048;

/// Removes flows that became wrong.
#[derive(Debug)]
pub struct Cleaner {
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    pace: Pace,
    /// from one pass to the next: when a socket of netfilter is closed, the kernel keeps the lock of all commits of nf_tables
    /// until what the last one has removed is freed, which takes a grace period of RCU. After a failure it is opened anew
    socket: Option<Socket>,
    /// the error of each family that was said last
    said: PerFamily<Option<String>>,
}

/// Why a pass did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("connection tracking: {0}")]
    Table(#[from] Error),
    #[error("listing local addresses: {0}")]
    Addresses(#[source] io::Error),
    /// what is in force is not certain; the engine's loop says why
    #[error("the last sync failed")]
    Doubt,
}

/// A pass over one family.
struct Look<'a> {
    shared: &'a Shared,
    family: Family,
    rules: Rules,
    local: Vec<IpAddr>,
    table: &'a mut dyn Table,
    /// flows removed
    deleted: &'a mut usize,
}

// === impl Failure ===

impl Failure {
    fn is_hopeless(&self) -> bool {
        matches!(self, Self::Table(Error::Unusable(_)))
    }
}

// === impl Cleaner ===

impl Cleaner {
    /// Works by what is told here.
    pub fn new(shared: Arc<Shared>, metrics: Arc<Metrics>) -> Self {
        Self { shared, metrics, pace: Pace::new(Instant::now()), socket: None, said: PerFamily::default() }
    }

    /// Never ends.
    pub fn run(mut self) -> ! {
        loop {
            for family in self.shared.wait(&self.pace) {
                self.pass(family);
            }
        }
    }

    fn pass(&mut self, family: Family) {
        let (start, work_before) = (Instant::now(), work_time());
        let rules = self.shared.take(family, start);
        let frontends = rules.right.len();
        let mut deleted = 0;
        let result = self.socket.take().map_or_else(Socket::open, Ok).map_err(Failure::from).and_then(|mut table| {
            let look = Look {
                shared: &self.shared,
                family,
                rules,
                local: Vec::new(),
                table: &mut table,
                deleted: &mut deleted,
            };
            look.everywhere()?;
            self.socket = Some(table);
            Ok(())
        });
        let now = Instant::now();
        let took = now.saturating_duration_since(start);
        let worked = work_time().saturating_sub(work_before);
        self.pace.spend(now, worked);
        match &result {
            Ok(()) => {
                self.shared.done(family);
                self.pace.passed(family);
            }
            Err(failure) => {
                self.shared.failed(family, now);
                self.pace.failed(family, now, failure.is_hopeless());
            }
        }
        let label = family.to_string();
        self.metrics.conntrack_duration.with_label_values(&[&label]).observe(took.as_secs_f64());
        self.metrics.conntrack_deleted.with_label_values(&[&label]).inc_by(deleted as u64);
        if deleted > 0 {
            tracing::debug!(%family, flows = deleted, frontends, ?took, ?worked, "Removed flows that had become wrong");
        }
        if frontends.max(deleted) >= LARGE {
            memory::trim();
        }
        self.say(family, result.err().filter(|failure| !matches!(failure, Failure::Doubt)));
    }

    /// Says an error once, and that it is over.
    fn say(&mut self, family: Family, failure: Option<Failure>) {
        let said = self.said.of_mut(family);
        let error = failure.map(|failure| failure.to_string());
        match (&error, &said) {
            (Some(err), said) if said.as_ref() != Some(err) => {
                tracing::error!(%family, err, "Removing flows that became wrong failed, trying again");
            }
            (None, Some(_)) => tracing::info!(%family, "Removing flows that became wrong works again"),
            _ => {} // said already, or nothing to say
        }
        *said = error;
    }
}

// === impl Look ===

impl Look<'_> {
    fn everywhere(mut self) -> Result<(), Failure> {
        if need_local_addresses(&self.rules) {
            self.local = self.table.local_addresses().map_err(Failure::Addresses)?;
        }
        for protocol in protocols(&self.rules) {
            while self.once(protocol)? {}
        }
        Ok(())
    }

    /// Makes one list, and removes what is wrong in it. Whether there may be more, which did not fit.
    fn once(&mut self, protocol: Protocol) -> Result<bool, Failure> {
        let matcher = self.matcher(protocol);
        let (mut wrong, mut more) = (Vec::new(), false);
        let listed = self.table.dump(&matcher.filter(), &mut |entry| {
            if matcher.is_wrong(entry) {
                if wrong.len() < MOST { wrong.push(*entry) } else { more = true }
            }
        });
        // If all were gone already, others are at work, and there is no end to wait for.
        more &= self.remove(protocol, matcher, &wrong)? > 0;
        // What an interrupted list brought was right; the rest is for the next time.
        listed?;
        Ok(more)
    }

    /// Removes what is still wrong; how many that were. Many take a while, in which endpoints return: so each portion is
    /// looked at once more right before it goes.
    fn remove(&mut self, protocol: Protocol, mut matcher: Matcher, wrong: &[Entry]) -> Result<usize, Failure> {
        let mut removed = 0;
        for portion in wrong.chunks(AT_ONCE) {
            if self.renew()? {
                matcher = self.matcher(protocol);
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

    /// Takes the newest rules; whether these are others. Any flow may come from rules that were in force already, but not
    /// told when ours were taken.
    fn renew(&mut self) -> Result<bool, Failure> {
        if !self.shared.settle(self.family) {
            return Err(Failure::Doubt);
        }
        let Some(newer) = self.shared.newer(self.family, &self.rules) else { return Ok(false) };
        self.rules = newer;
        Ok(true)
    }

    fn matcher(&self, protocol: Protocol) -> Matcher {
        Matcher::new(self.family, protocol, &self.rules, &self.local)
    }
}

/// Processor time that this thread has used: what a busy machine makes of it is no reason to rest longer.
fn work_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests;
