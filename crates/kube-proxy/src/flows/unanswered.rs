//! Stale UDP flows without an answer: finds those whose clients don't wait for one.
//!
//! A client that sends a request just before its endpoint is removed gets the answer only through the conntrack entry; a client
//! that is never answered, such as one that sends metrics, has to lose the entry to reach another endpoint. An entry records
//! neither its age nor its packets, but each packet resets its timeout. So the remaining time of an entry shows if no packet came
//! for a second. The timeouts of the other entries are shortened: the client's next packet resets them, which a look a few
//! milliseconds later finds. A client that sends again without an answer does not wait for one.

use std::io;
use std::time::{Duration, Instant};

use ferry_kernel::conntrack::{ConntrackError, Entry};

use super::table::ConntrackTable;

/// Maximum number of flows watched at a time; others are left to the second check of their frontends.
pub(super) const WATCHED: usize = 128;
/// A flow without a packet for this long is not waiting for an answer, in seconds. Timeouts are read in whole seconds.
const IDLE: u32 = 1;
/// Timeouts are shortened by this, in seconds: more than the error of reading them.
const SHORTER: u32 = 2;
/// Delay of the first look after a timeout was shortened. Each further look comes after twice the time.
const FIRST: Duration = Duration::from_millis(5);
/// Number of looks. The last one precedes the second check of the frontend, which waits for no answer.
const LOOKS: u32 = 5;
/// For this long a shortened timeout would be mistaken for that of an idle flow.
const SHORTENED: Duration = Duration::from_secs((IDLE + SHORTER) as u64);

/// The watched flows of one family.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    flows: Vec<UnansweredFlow>,
}

/// A flow whose timeout was shortened.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnansweredFlow {
    /// its entry
    pub(super) entry: Entry,
    /// the timeout that it was given, in seconds
    given: u32,
    /// when it was given that
    shortened: Instant,
    /// number of looks so far
    looks: u32,
}

/// Why flows can't be watched.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchError {
    #[error("connection tracking: {0}")]
    Table(#[from] ConntrackError),
    #[error("reading net.netfilter.nf_conntrack_udp_timeout: {0}")]
    Timeout(#[from] io::Error),
}

// === impl Unanswered ===

impl Unanswered {
    /// Time of the next look.
    pub(super) fn next(&self) -> Option<Instant> {
        self.flows.iter().filter_map(UnansweredFlow::due).min()
    }

    /// Takes the flows whose look is due.
    pub(super) fn take(&mut self, now: Instant) -> Vec<UnansweredFlow> {
        self.flows.extract_if(.., |flow| flow.due().is_some_and(|due| due <= now)).collect()
    }

    /// Begins to watch these flows, except those beyond [`WATCHED`]. Returns those that wait for no answer. After an error some
    /// timeouts may be shortened: it remembers these flows without looking at them.
    pub(super) fn watch(
        &mut self,
        found: &[Entry],
        table: &mut dyn ConntrackTable,
        now: Instant,
    ) -> Result<Vec<Entry>, WatchError> {
        self.flows.retain(|flow| flow.due().is_some() || now < flow.shortened + SHORTENED);
        let is_new = |entry: &&Entry| !self.flows.iter().any(|flow| flow.entry.is_same_flow(entry));
        let room = WATCHED.saturating_sub(self.flows.len());
        let new: Vec<Entry> = found.iter().filter(is_new).take(room).copied().collect();
        let (mut idle, mut shortened) = (Vec::new(), Vec::new());
        if new.is_empty() {
            return Ok(idle);
        }
        let full = table.unanswered_timeout()?;
        table.timeouts(&new, &mut |entry, seconds| {
            if entry.is_answered() {
                return;
            }
            if seconds.saturating_add(IDLE) < full {
                idle.push(*entry);
            } else if let Some(given) = seconds.checked_sub(SHORTER).filter(|given| *given > 0) {
                shortened.push((*entry, given));
            }
        })?;
        let set = table.set_timeouts(&shortened);
        let looks = if set.is_ok() { 0 } else { LOOKS };
        let watched = |(entry, given)| UnansweredFlow { entry, given, shortened: now, looks };
        self.flows.extend(shortened.into_iter().map(watched));
        set?;
        Ok(idle)
    }

    /// Looks at these flows, which were taken. Returns those whose clients have sent again without an answer, and goes on
    /// watching the others for a while, except those that were answered or have ended. After an error it remembers all of them
    /// without further looks.
    pub(super) fn look(
        &mut self,
        flows: &[UnansweredFlow],
        table: &mut dyn ConntrackTable,
    ) -> Result<Vec<Entry>, WatchError> {
        let (mut one_way, mut waiting) = (Vec::new(), Vec::new());
        let entries: Vec<Entry> = flows.iter().map(|flow| flow.entry).collect();
        let looked = table.timeouts(&entries, &mut |entry, seconds| {
            let flow = flows.iter().find(|flow| flow.entry.is_same_flow(entry));
            let Some(flow) = flow.filter(|_| !entry.is_answered()) else { return };
            if seconds > flow.given {
                one_way.push(*entry);
            } else {
                waiting.push(UnansweredFlow { looks: flow.looks + 1, ..*flow });
            }
        });
        match looked {
            Ok(()) => self.flows.append(&mut waiting),
            Err(_) => self.flows.extend(flows.iter().map(|flow| UnansweredFlow { looks: LOOKS, ..*flow })),
        }
        looked?;
        Ok(one_way)
    }
}

// === impl UnansweredFlow ===

impl UnansweredFlow {
    /// Time of the next look; `None` after the last.
    fn due(&self) -> Option<Instant> {
        (self.looks < LOOKS).then(|| self.shortened + FIRST * ((2 << self.looks) - 1))
    }
}
