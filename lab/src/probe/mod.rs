//! Probes: servers that answer with their identity and the client's address, and clients that connect to them.

mod client;
mod held;
pub(crate) mod sctp;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

pub use client::{Hammer, ProbeClient};
pub use held::{Echo, Fate, Held};
pub use server::ProbeServer;

/// Outcome of one connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeOutcome {
    /// a server answered
    Answered(ProbeAnswer),
    /// refused by a TCP reset or an ICMP error
    Refused,
    /// established, and reset without an answer
    Reset,
    /// no answer within the time limit
    Timeout,
    /// any other error, with the system's message
    Failed(String),
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeAnswer {
    /// the server's machine and port, `pod-a:8080`; in the corpus test its address and port
    pub endpoint: String,
    /// the client's address, as seen by the server
    pub seen: SocketAddr,
}

/// Outcomes of several connections, in order.
#[derive(Clone, PartialEq, Eq)]
pub struct ProbeTally(pub Vec<ProbeOutcome>);

// === impl ProbeAnswer ===

impl ProbeAnswer {
    /// Formats an answer for [`ProbeAnswer::parse`].
    pub(crate) fn text(endpoint: impl fmt::Display, seen: SocketAddr) -> String {
        let seen = SocketAddr::new(seen.ip().to_canonical(), seen.port());
        format!("{endpoint} {seen}")
    }

    /// Parses a server's answer; a malformed one is a failure.
    pub(crate) fn parse(text: &[u8]) -> ProbeOutcome {
        let text = String::from_utf8_lossy(text);
        let answer = text
            .split_once(' ')
            .and_then(|(endpoint, seen)| Some(ProbeAnswer { endpoint: endpoint.to_owned(), seen: seen.parse().ok()? }));
        answer.map_or_else(|| ProbeOutcome::Failed(format!("answer {text:?}")), ProbeOutcome::Answered)
    }
}

// === impl ProbeTally ===

impl ProbeTally {
    /// The answers among the outcomes.
    pub fn answers(&self) -> impl Iterator<Item = &ProbeAnswer> {
        self.0.iter().filter_map(|outcome| match outcome {
            ProbeOutcome::Answered(answer) => Some(answer),
            ProbeOutcome::Refused | ProbeOutcome::Reset | ProbeOutcome::Timeout | ProbeOutcome::Failed(_) => None,
        })
    }

    /// True if all connections were answered.
    pub fn all_answered(&self) -> bool {
        self.answers().count() == self.0.len()
    }

    /// Number of answers by endpoint.
    pub fn endpoints(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for answer in self.answers() {
            *counts.entry(answer.endpoint.as_str()).or_default() += 1;
        }
        counts
    }

    /// The source addresses that servers saw.
    pub fn sources(&self) -> BTreeSet<IpAddr> {
        self.answers().map(|answer| answer.seen.ip()).collect()
    }

    /// True if every outcome equals this one.
    pub fn all(&self, expected: &ProbeOutcome) -> bool {
        self.0.iter().all(|outcome| outcome == expected)
    }
}

impl fmt::Display for ProbeTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = BTreeMap::<String, usize>::new();
        for outcome in &self.0 {
            let text = match outcome {
                ProbeOutcome::Answered(answer) => format!("{} saw {}", answer.endpoint, answer.seen.ip()),
                ProbeOutcome::Refused => "refused".to_owned(),
                ProbeOutcome::Reset => "reset".to_owned(),
                ProbeOutcome::Timeout => "timeout".to_owned(),
                ProbeOutcome::Failed(why) => format!("failed: {why}"),
            };
            *counts.entry(text).or_default() += 1;
        }
        for (i, (text, count)) in counts.iter().enumerate() {
            write!(f, "{}{count} × {text}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for ProbeTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
