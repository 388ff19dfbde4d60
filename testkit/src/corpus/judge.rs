//! Whether what came of a connection is what the model decided.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ferry_api::object::{Family, Protocol};
use ferry_model::{Snat, Verdict};

use super::plan::Try;
use super::terrain::Addresses;
use crate::lab::Place;
use crate::probe::{Answer, Outcome};

/// What is there to answer, besides the rules.
pub(super) struct Scene<'a> {
    /// the node's addresses
    pub(super) addresses: &'a Addresses,
    /// all servers
    pub(super) servers: &'a BTreeSet<(Protocol, SocketAddr)>,
}

// === impl Scene ===

impl Scene<'_> {
    /// The endpoint that answered, if one had to and did; or what is wrong.
    pub(super) fn judge(&self, tried: &Try, outcome: &Outcome) -> Result<Option<SocketAddr>, &'static str> {
        match (&tried.verdict, outcome) {
            (Verdict::Forward(pool), Outcome::Answered(answer)) => {
                let at = endpoint(answer).ok_or("this is no endpoint")?;
                let snat = pool.iter().find(|(known, _)| SocketAddr::new(known.address, known.port) == at);
                let (_, snat) = snat.ok_or("this endpoint is not in the set")?;
                self.judge_source(tried, answer, at, *snat).map(|()| Some(at))
            }
            (Verdict::Drop, Outcome::Timeout) | (Verdict::Reject, Outcome::Refused) => Ok(None),
            (Verdict::Pass, _) => self.judge_untouched(tried, outcome).map(|()| None),
            (Verdict::Forward(_), _) => Err("an endpoint has to answer"),
            (Verdict::Drop, _) => Err("nothing has to come"),
            (Verdict::Reject, _) => Err("it has to be refused"),
        }
    }

    fn judge_source(&self, tried: &Try, answer: &Answer, at: SocketAddr, snat: Snat) -> Result<(), &'static str> {
        let seen = answer.seen.ip();
        let owner = self.addresses.owner(at.ip());
        // what ends on the node passes none of the places where the kernel masquerades
        let snat = if owner == Place::Node && tried.ask.from != Place::Node { Snat::Keep } else { snat };
        match snat {
            Snat::Keep if seen == tried.ask.source => Ok(()),
            Snat::Keep => Err("the source has to be kept"),
            Snat::Masquerade => {
                let own = self.addresses.towards(owner, Family::of(seen));
                if own.contains(&seen) { Ok(()) } else { Err("the source has to be masqueraded") }
            }
        }
    }

    /// A connection that is none of ours comes to whoever has the address, from where it comes.
    fn judge_untouched(&self, tried: &Try, outcome: &Outcome) -> Result<(), &'static str> {
        let served = self.servers.contains(&(tried.ask.protocol, tried.ask.to));
        match outcome {
            Outcome::Answered(answer) => {
                let itself = endpoint(answer) == Some(tried.ask.to) && answer.seen.ip() == tried.ask.source;
                if itself { Ok(()) } else { Err("it has to be left alone") }
            }
            Outcome::Refused if !served => Ok(()),
            // who listens to all SCTP refuses none
            Outcome::Timeout if !served && tried.ask.protocol == Protocol::Sctp => Ok(()),
            Outcome::Refused | Outcome::Timeout | Outcome::Failed(_) => Err("it has to be left alone"),
        }
    }
}

/// Whether a server has to be put where this connection goes if it is left alone. The node refuses by itself.
pub(super) fn wants_server(tried: &Try, addresses: &Addresses) -> bool {
    tried.verdict == Verdict::Pass && addresses.owner(tried.ask.to.ip()) != Place::Node
}

fn endpoint(answer: &Answer) -> Option<SocketAddr> {
    answer.endpoint.parse().ok()
}
