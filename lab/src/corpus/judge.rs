//! Compares the outcome of a connection with the model's verdict.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ferry_api::object::{Family, Protocol};
use ferry_model::{Snat, Verdict};

use super::plan::Try;
use super::terrain::Addresses;
use crate::lab::LabMachine;
use crate::probe::{ProbeAnswer, ProbeOutcome};

/// The lab's addresses and servers, which answer independently of the rules.
pub(super) struct Scene<'a> {
    /// the node's addresses
    pub(super) addresses: &'a Addresses,
    /// all servers
    pub(super) servers: &'a BTreeSet<(Protocol, SocketAddr)>,
    /// connections to endpoints are the proxy's own
    pub(super) relays: bool,
    /// the proxy itself listens at the addresses of Services: it accepts a connection before it refuses it
    pub(super) listens: bool,
}

// === impl Scene ===

impl Scene<'_> {
    /// Checks an outcome: the endpoint that answered, if the verdict is to forward.
    ///
    /// # Errors
    /// If the outcome contradicts the verdict: the expectation that failed.
    pub(super) fn judge(&self, tried: &Try, outcome: &ProbeOutcome) -> Result<Option<SocketAddr>, &'static str> {
        match (&tried.verdict, outcome) {
            (Verdict::Forward(pool), ProbeOutcome::Answered(answer)) => {
                let at = endpoint(answer).ok_or("the answer names no endpoint")?;
                let snat = pool.iter().find(|(known, _)| SocketAddr::new(known.address, known.port) == at);
                let (_, snat) = snat.ok_or("the endpoint is not in the pool")?;
                self.judge_source(tried, answer, at, *snat).map(|()| Some(at))
            }
            (Verdict::Drop, ProbeOutcome::Timeout) | (Verdict::Reject, ProbeOutcome::Refused) => Ok(None),
            (Verdict::Reject, ProbeOutcome::Reset) if self.listens => Ok(None),
            (Verdict::Pass, _) => self.judge_untouched(tried, outcome).map(|()| None),
            (Verdict::Forward(_), _) => Err("expected an answer of an endpoint"),
            (Verdict::Drop, _) => Err("expected no answer"),
            (Verdict::Reject, _) => Err("expected a refusal"),
        }
    }

    fn judge_source(&self, tried: &Try, answer: &ProbeAnswer, at: SocketAddr, snat: Snat) -> Result<(), &'static str> {
        let seen = answer.seen.ip();
        let owner = self.addresses.owner(at.ip());
        // packets delivered to the node itself don't pass the postrouting hook, where masquerading happens
        let skips_postrouting = owner == LabMachine::Node && tried.ask.from != LabMachine::Node && !self.relays;
        let snat = if skips_postrouting { Snat::Keep } else { snat };
        match snat {
            Snat::Keep if seen == tried.ask.source => Ok(()),
            Snat::Keep => Err("expected the source to be kept"),
            Snat::Masquerade => {
                let own = self.addresses.towards(owner, Family::of(seen));
                if own.contains(&seen) { Ok(()) } else { Err("expected the source to be masqueraded") }
            }
        }
    }

    /// An untranslated connection reaches the owner of its destination address, with its source kept.
    fn judge_untouched(&self, tried: &Try, outcome: &ProbeOutcome) -> Result<(), &'static str> {
        let served = self.servers.contains(&(tried.ask.protocol, tried.ask.to));
        match outcome {
            ProbeOutcome::Answered(answer) => {
                let itself = endpoint(answer) == Some(tried.ask.to) && answer.seen.ip() == tried.ask.source;
                if itself { Ok(()) } else { Err("expected the packet to pass untranslated") }
            }
            ProbeOutcome::Refused if !served => Ok(()),
            // a raw socket takes in all SCTP, so the kernel refuses none
            ProbeOutcome::Timeout if !served && tried.ask.protocol == Protocol::Sctp => Ok(()),
            ProbeOutcome::Refused | ProbeOutcome::Reset | ProbeOutcome::Timeout | ProbeOutcome::Failed(_) => {
                Err("expected the packet to pass untranslated")
            }
        }
    }
}

/// True if the connection needs a server at its destination because the rules pass it. The node itself refuses without one.
pub(super) fn wants_server(tried: &Try, addresses: &Addresses) -> bool {
    tried.verdict == Verdict::Pass && addresses.owner(tried.ask.to.ip()) != LabMachine::Node
}

fn endpoint(answer: &ProbeAnswer) -> Option<SocketAddr> {
    answer.endpoint.parse().ok()
}
