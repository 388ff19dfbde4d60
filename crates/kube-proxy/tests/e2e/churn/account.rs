//! Judges all new connections by the rules in force at their time.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use ferry_lab::LabMachine;
use ferry_lab::patience::slowly;

use crate::driver::{History, Period};
use crate::load::{Ended, Outcomes};
use crate::services::{CARRIERS, Pool, Way};

/// After such a pause TCP may have sent a packet again though none was lost.
const STANDSTILL: Duration = Duration::from_millis(500);
/// On a slow machine one in this number of connections may be a UDP client that asks again: an answer that takes longer than the 0.3 s for
/// which the cleaner spares an unanswered flow is lost (decision 23).
const SLOW_ANSWERS: usize = 1000;
/// Failures of each kind that are printed one by one.
const EXAMPLES: usize = 20;

/// The connections so far.
pub(crate) struct Account<'a> {
    history: &'a History,
    start: Instant,
    connections: usize,
    failed: Vec<String>,
    astray: Vec<String>,
    counts: BTreeMap<String, usize>,
    retransmissions: BTreeMap<LabMachine, u64>,
    asked_again: usize,
    pause: Duration,
}

// === impl Account ===

impl<'a> Account<'a> {
    pub(crate) fn new(history: &'a History) -> Self {
        Self {
            history,
            start: history.iter().flatten().flatten().map(|period| period.written).min().expect("a beginning"),
            connections: 0,
            failed: Vec::new(),
            astray: Vec::new(),
            counts: BTreeMap::new(),
            retransmissions: BTreeMap::new(),
            asked_again: 0,
            pause: Duration::ZERO,
        }
    }

    /// Judges the connections of one place.
    pub(crate) fn take(&mut self, outcomes: Outcomes) {
        self.connections += outcomes.ended.len();
        self.retransmissions.insert(outcomes.place, outcomes.retransmissions);
        self.asked_again += outcomes.asked_again;
        self.pause = self.pause.max(outcomes.pause);
        for ended in &outcomes.ended {
            let role = CARRIERS[usize::from(ended.service)];
            let say = |what: &str| {
                let since = ended.from.saturating_duration_since(self.start).as_secs_f64();
                format!(
                    "{} to {role:?} at {} {}, {:?}, {since:.6} s for {:.3} ms: {what}",
                    outcomes.place.name(),
                    ended.protocol,
                    ended.at,
                    ended.way,
                    (ended.to - ended.from).as_secs_f64() * 1e3
                )
            };
            match &ended.outcome {
                Err(why) => {
                    *self.counts.entry(format!("{role:?} {} {why}", outcomes.place.name())).or_default() += 1;
                    self.failed.push(say(why));
                }
                Ok(endpoint) => {
                    let allowed = self.allowed(ended);
                    if !allowed.has(*endpoint) {
                        self.astray.push(say(&format!("{} answered, allowed: {allowed}", Pool(1 << endpoint))));
                    }
                }
            }
        }
    }

    /// All endpoints that a packet of the connection may have reached: the pools that may have been in force between its
    /// beginning and its response.
    fn allowed(&self, ended: &Ended) -> Pool {
        let way = Way::ALL.iter().position(|way| *way == ended.way).expect("one of them");
        let periods = &self.history[usize::from(ended.service)][way];
        let in_force = |period: &Period| period.acknowledged <= ended.from;
        let first = periods.iter().rposition(in_force).unwrap_or(0);
        let possible = periods[first..].iter().take_while(|period| period.written <= ended.to);
        Pool(possible.fold(0, |all, period| all | period.pool.0))
    }

    /// # Panics
    /// If a connection failed, or reached a wrong endpoint, or its first packet was lost.
    pub(crate) fn judge(&self) {
        let lost: u64 = self.retransmissions.values().sum();
        let lost = if self.pause < STANDSTILL { lost } else { 0 };
        let is_slow = slowly(STANDSTILL) > STANDSTILL;
        let asks = if is_slow { self.connections.div_ceil(SLOW_ANSWERS) } else { 0 };
        let unanswered = if self.pause < STANDSTILL { self.asked_again.saturating_sub(asks) } else { 0 };
        let examples = |of: &[String]| of.iter().take(EXAMPLES).cloned().collect::<Vec<_>>().join("\n");
        assert!(
            self.failed.is_empty() && self.astray.is_empty() && lost == 0 && unanswered == 0,
            "{self}\n{:?}\nfailed:\n{}\nled to an endpoint that was gone:\n{}",
            self.counts,
            examples(&self.failed),
            examples(&self.astray)
        );
    }
}

impl fmt::Display for Account<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connections, {} failed, {} led to an endpoint that was gone, first packets sent again: {:?}, by UDP clients: {}, \
             longest pause {:.0} ms",
            self.connections,
            self.failed.len(),
            self.astray.len(),
            self.retransmissions,
            self.asked_again,
            self.pause.as_secs_f64() * 1e3
        )
    }
}
