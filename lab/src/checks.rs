//! Soft assertions: a test evaluates many expectations, and reports all failed ones at its end.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::lab::is_node_address;
use crate::probe::{ProbeOutcome, ProbeTally};

/// The source address that a server is expected to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenSource {
    /// this address, or the node's where an endpoint reaches itself (hairpin)
    Kept(IpAddr),
    /// an address of the node
    Masqueraded,
    /// not checked
    Any,
}

/// Collects failed expectations; panics with them when dropped.
#[derive(Debug, Default)]
pub struct Checks {
    passed: usize,
    failures: Vec<String>,
}

impl Checks {
    /// Without failures.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a failure unless the condition holds.
    pub fn that(&mut self, is_so: bool, otherwise: impl FnOnce() -> String) {
        if is_so {
            self.passed += 1;
        } else {
            self.failures.push(otherwise());
        }
    }

    /// Expects that every connection was answered, that exactly these endpoints answered, and that they saw such a source.
    pub fn served(&mut self, what: &str, tally: &ProbeTally, endpoints: &[&str], source: SeenSource) {
        let expected: BTreeSet<_> = endpoints.iter().copied().collect();
        let answering: BTreeSet<_> = tally.endpoints().into_keys().collect();
        self.that(tally.all_answered() && answering == expected, || {
            format!("{what}: expected answers from {endpoints:?}, got {tally}")
        });
        self.source(what, tally, source);
    }

    /// Expects that every answer came from an endpoint that saw such a source.
    pub fn source(&mut self, what: &str, tally: &ProbeTally, source: SeenSource) {
        let is_right = |seen: IpAddr| match source {
            SeenSource::Kept(address) => seen == address,
            SeenSource::Masqueraded => is_node_address(seen),
            SeenSource::Any => true,
        };
        self.that(tally.answers().all(|answer| is_right(answer.seen.ip())), || {
            format!("{what}: expected the source {source:?}, got {tally}")
        });
    }

    /// Expects that every connection was refused at once.
    pub fn refused(&mut self, what: &str, tally: &ProbeTally) {
        self.that(tally.all(&ProbeOutcome::Refused), || format!("{what}: expected a refusal, got {tally}"));
    }

    /// Expects that no connection got an answer.
    pub fn silent(&mut self, what: &str, tally: &ProbeTally) {
        self.that(tally.all(&ProbeOutcome::Timeout), || format!("{what}: expected silence, got {tally}"));
    }

    /// Expects that the endpoints answered about equally often: by a chi-square test that a fair choice fails once in ten million
    /// times with up to four endpoints.
    pub fn even(&mut self, what: &str, tally: &ProbeTally, endpoints: usize) {
        let counts = tally.endpoints();
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let chi_square: f64 = {
            let expected = tally.0.len() as f64 / endpoints as f64;
            counts.values().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
        };
        self.that(tally.all_answered() && counts.len() == endpoints && chi_square < 35.0, || {
            format!("{what}: expected an even spread over {endpoints}, got {tally}")
        });
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        let total = self.passed + self.failures.len();
        if !self.failures.is_empty() && !std::thread::panicking() {
            panic!("{} of {total} expectations failed:\n{}", self.failures.len(), self.failures.join("\n"));
        }
    }
}
