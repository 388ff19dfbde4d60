//! Modes ipvs and nftables: finds chains of other programs in the hook `forward` whose policy drops packets of Services, reports
//! them, and writes the rule that accepts these packets if `acceptForward` asks for it.
//!
//! Neither mode can accept them in a table of its own, since a packet has to pass the chains of all tables. Upstream's chains in
//! mode iptables stand where the policy does. The policy may appear at any time: nf_tables is read again when it notifies a change
//! of another table, and legacy tables every 15 s, but in the long run for no more than 0.01 % of a core.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferry_api::config::MODE_NFTABLES;
use ferry_api::object::Family;
use ferry_kernel::clock::processor_time;
use ferry_kernel::forward::{ChainPlace, ForwardChain, ForwardChains, Traffic};
use ferry_plane::Served;

use super::{Opening, RetireError, Retirement, RuleDomain};
use crate::input::{Input, NodeProblem, NodeWarning};
use crate::platform;
use crate::threads::{STACK_BYTES, Threads};

/// The rules in other programs' chains.
pub(super) const RULES: RuleDomain =
    RuleDomain { mode: MODE_NFTABLES, name: "accepting rule in forward chains", retire };

/// The comment of a rule that this program writes, and finds it by.
const COMMENT: &str = "kube-proxy";
/// The name of the thread.
const THREAD: &str = "forward";
/// The least pause between two readings of nf_tables.
const PERIOD: Duration = Duration::from_secs(1);
/// The least pause between two readings of legacy tables, whose changes are not notified; and after a failure.
const LEGACY_PERIOD: Duration = Duration::from_secs(15);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);
/// With this ratio of pauses to the processor time of readings these take 0.01 % of a core.
const RATIO: u32 = 10_000;
/// Pauses that may be owed: after a quiet time, some readings in a row have only the least pause between them.
const CREDIT: Duration = Duration::from_secs(60);

/// Ends the thread's wait.
struct Alarm(SyncSender<()>);

/// The watch of one mode.
pub(super) struct ForwardWatch {
    chains: ForwardChains,
    /// what the mode needs to be accepted
    traffic: Traffic,
    /// `acceptForward`
    writes: bool,
    families: Vec<Family>,
    inputs: SyncSender<Input>,
    /// the generation of nf_tables that was read last
    generation: Option<u32>,
    nft: ForwardFindings,
    legacy: ForwardFindings,
    /// what was reported last
    reported: BTreeMap<Family, String>,
}

/// The result of the last reading of some tables, and the time of the next one.
struct ForwardFindings {
    /// name in the log
    of: &'static str,
    /// the chains that lose packets, with texts for operators
    problems: Vec<(ChainPlace, String)>,
    /// not before
    due: Instant,
    /// when the pauses of all readings so far will have passed
    settled_at: Instant,
    /// consecutive readings that wrote a rule: another program may remove it each time
    writes: u32,
    /// text of the last failure, which is logged once
    failure: Option<String>,
}

/// Removes this program's rules from the chains of one family. A table of both families counts as one of IPv4, which is never
/// switched off alone.
fn retire(family: Family, _: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
    let failed = |error: anyhow::Error| RetireError::Failed(error.context("removing a rule from a forward chain"));
    let mut chains = ForwardChains::open(COMMENT).map_err(|error| match platform::lacks_subsystem(&error) {
        true => RetireError::Absent(error.into()),
        false => failed(error.into()),
    })?;
    let mut removed = 0;
    for chain in chains.nft().map_err(|error| failed(error.into()))? {
        if Family::ALL.into_iter().find(|family| chain.place().covers(*family)) == Some(family) {
            chains.withdraw(&chain).map_err(|error| failed(error.into()))?;
            removed += chain.own_rules();
        }
    }
    Ok(removed)
}

/// The text for operators.
fn describe(place: &ChainPlace, traffic: Traffic, outcome: &str) -> String {
    let lost = match traffic {
        Traffic::Established => "established connections, and so replies of pods are lost",
        Traffic::Translated => "connections of Services, and so they are lost on their way to pods",
    };
    let command = place.command(traffic);
    format!("{place} has policy DROP, and no rule there is known to accept {lost}: run `{command}`{outcome}")
}

// === impl Alarm ===

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        // One that waits is enough.
        let _ = self.0.try_send(());
    }
}

// === impl ForwardWatch ===

impl ForwardWatch {
    /// Prepares the watch of a mode that needs this traffic to be accepted.
    ///
    /// # Errors
    /// The system's, if it has no socket left.
    pub(super) fn open(opening: &Opening<'_>, traffic: Traffic) -> anyhow::Result<Self> {
        Ok(Self {
            chains: ForwardChains::open(COMMENT).context("opening a socket that reads forward chains")?,
            traffic,
            writes: opening.config.ferry.accept_forward,
            families: opening.families.to_vec(),
            inputs: opening.inputs.clone(),
            generation: None,
            nft: ForwardFindings::new("nf_tables"),
            legacy: ForwardFindings::new("legacy tables"),
            reported: BTreeMap::new(),
        })
    }

    /// Starts its thread, which is woken by what is given to `subscribe`.
    ///
    /// # Errors
    /// The system's, if it has no thread left.
    pub(super) fn start(mut self, threads: &Threads, subscribe: impl FnOnce(Waker)) -> anyhow::Result<()> {
        let (alarm, alarms) = sync_channel(1);
        subscribe(Waker::from(Arc::new(Alarm(alarm))));
        threads.spawn(THREAD, STACK_BYTES, move || {
            // Without a receiver the program is ending.
            while let Some(next) = self.look() {
                if alarms.recv_timeout(next.saturating_duration_since(Instant::now()))
                    == Err(RecvTimeoutError::Disconnected)
                {
                    break;
                }
            }
        })
    }

    /// Reads what may have changed, and reports it. Returns the time of the next look, if there is no alarm before; `None` if
    /// nothing receives reports any more.
    fn look(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let is_current = self.nft.due <= now && {
            let read = self.read_nft();
            self.nft.log_failure(read)
        };
        if self.legacy.due <= now {
            let read = self.read_legacy();
            self.legacy.log_failure(read);
        }
        let next = if is_current { self.legacy.due } else { self.legacy.due.min(self.nft.due) };
        self.report().then_some(next)
    }

    fn read_nft(&mut self) -> io::Result<()> {
        // First: a change during the reading is found by the next one.
        let generation = self.chains.generation()?;
        if self.generation == Some(generation) {
            return Ok(());
        }
        let before = processor_time();
        let (mut problems, mut written) = (Vec::new(), false);
        for chain in self.chains.nft()? {
            let (problem, has_written) = self.settle(&chain);
            written |= has_written;
            problems.extend(problem.map(|text| (chain.place().clone(), text)));
        }
        self.nft.problems = problems;
        self.nft.writes = if written { self.nft.writes.saturating_add(1) } else { 0 };
        let least = PERIOD * 2_u32.saturating_pow(self.nft.writes.saturating_sub(1).min(16));
        self.nft.pause(processor_time().saturating_sub(before), least);
        self.generation = Some(generation);
        Ok(())
    }

    /// Writes or removes the rule of a chain in nf_tables. Returns the problem that is left, and true if the rule was written.
    fn settle(&mut self, chain: &ForwardChain) -> (Option<String>, bool) {
        let (place, traffic) = (chain.place(), self.traffic);
        let loses = self.families.iter().any(|family| place.covers(*family)) && chain.loses(traffic);
        if loses && self.writes {
            if chain.has_own_rule(traffic) {
                return (None, false);
            }
            let error = match self.chains.accept(chain, traffic) {
                Ok(()) => {
                    tracing::info!(chain = %place, "Wrote a rule that accepts forwarded packets of Services");
                    return (None, true);
                }
                Err(error) => error,
            };
            let outcome = format!("; kube-proxy can't write this rule (acceptForward): {error}");
            return (Some(describe(place, traffic, &outcome)), false);
        }
        if chain.own_rules() > 0 {
            match self.chains.withdraw(chain) {
                Ok(()) => tracing::info!(chain = %place, "Removed the rule that accepts forwarded packets of Services"),
                Err(error) => {
                    tracing::warn!(chain = %place, err = %error, "Removing a rule from a forward chain failed")
                }
            }
        }
        let outcome = ", or set acceptForward: true in the FerryConfiguration and kube-proxy writes this rule";
        (loses.then(|| describe(place, traffic, outcome)), false)
    }

    fn read_legacy(&mut self) -> io::Result<()> {
        let before = processor_time();
        let mut problems = Vec::new();
        let outcome =
            if self.writes { "; acceptForward has no effect here: only this tool can write the table" } else { "" };
        for family in &self.families {
            let chain = self.chains.legacy(*family)?;
            if let Some(chain) = chain.filter(|chain| chain.loses(self.traffic)) {
                problems.push((chain.place().clone(), describe(chain.place(), self.traffic, outcome)));
            }
        }
        self.legacy.problems = problems;
        self.legacy.pause(processor_time().saturating_sub(before), LEGACY_PERIOD);
        Ok(())
    }

    /// Reports what differs from the last report; false if nothing receives it.
    fn report(&mut self) -> bool {
        for family in self.families.clone() {
            let problems = self.nft.problems.iter().chain(&self.legacy.problems);
            let texts: Vec<&str> =
                problems.filter(|(place, _)| place.covers(family)).map(|(_, text)| text.as_str()).collect();
            let note = (!texts.is_empty()).then(|| texts.join("; "));
            if self.reported.get(&family) == note.as_ref() {
                continue;
            }
            let warning = NodeWarning { problem: NodeProblem::ForwardPolicyDrop, family, note: note.clone() };
            if self.inputs.send(Input::NodeWarning(warning)).is_err() {
                return false;
            }
            match note {
                Some(note) => self.reported.insert(family, note),
                None => self.reported.remove(&family),
            };
        }
        true
    }
}

// === impl ForwardFindings ===

impl ForwardFindings {
    fn new(of: &'static str) -> Self {
        let now = Instant::now();
        Self { of, problems: Vec::new(), due: now, settled_at: now, writes: 0, failure: None }
    }

    /// Sets the time of the next reading after one of this length.
    fn pause(&mut self, took: Duration, least: Duration) {
        let now = Instant::now();
        let settled_at = self.settled_at.max(now) + took.saturating_mul(RATIO);
        self.settled_at = settled_at.min(now + CREDIT + LONGEST);
        let owed = self.settled_at.saturating_duration_since(now).saturating_sub(CREDIT);
        self.due = now + owed.max(least.min(LONGEST));
    }

    /// True if a reading succeeded. Else logs a failure that differs from the last one; the last result stays.
    fn log_failure(&mut self, read: io::Result<()>) -> bool {
        let Err(error) = read else {
            self.failure = None;
            return true;
        };
        self.due = Instant::now() + LEGACY_PERIOD;
        let error = error.to_string();
        if self.failure.as_ref() != Some(&error) {
            tracing::warn!(of = self.of, err = error, "Reading forward chains failed, retrying");
            self.failure = Some(error);
        }
        false
    }
}

#[cfg(test)]
mod tests;
