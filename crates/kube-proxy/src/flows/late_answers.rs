//! Entries that endpoints of UDP make by late answers.
//!
//! An endpoint may answer after the entry of the flow was deleted. The answer makes an entry of its own, from the endpoint to the client's
//! port. Where flows keep that port, a packet of the client that is led to the endpoint again would get the same pair of tuples, and the
//! kernel drops it until the entry expires (decision 23).

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use ferry_kernel::conntrack::Entry;
use ferry_model::RightFlows;
use ferry_model::state::Pool;

use super::flow_match::FlowMatch;

/// The endpoints whose late answers may block new flows.
#[derive(Debug, Default)]
pub(super) struct LateAnswers {
    /// by their place in memory: frontends of one port of a Service share pools
    pools: BTreeMap<usize, LedTo>,
    /// the result for an entry of each endpoint. Made when the first entry needs it
    endpoints: OnceCell<HashMap<SocketAddr, FlowMatch>>,
}

/// A pool that new flows are led to, and the result for entries of its endpoints.
#[derive(Debug)]
struct LedTo {
    pool: Pool,
    result: FlowMatch,
}

// === impl LateAnswers ===

impl LateAnswers {
    /// Adds the pools of a frontend. Patience leaves an entry for the next check, since it may as well be a request of the endpoint that
    /// waits for its answer.
    pub(super) fn add(&mut self, right: &RightFlows, patient: bool) {
        // Endpoints that linger get no new flows.
        let pools = match right {
            RightFlows::To([cluster, local, _]) | RightFlows::ToOrUntranslated([cluster, local, _]) => [cluster, local],
            RightFlows::Answered | RightFlows::Untranslated => return,
        };
        let result = if patient { FlowMatch::Unanswered } else { FlowMatch::Stale };
        for pool in pools.into_iter().filter(|pool| !pool.is_empty()) {
            let led_to = self.pools.entry(Arc::as_ptr(&pool.0).addr());
            let led_to = led_to.or_insert_with(|| LedTo { pool: pool.clone(), result });
            led_to.result = led_to.result.max(result);
        }
    }

    /// True if no late answer blocks a flow.
    pub(super) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// The result for an entry that a late answer may have made; `None` for any other.
    pub(super) fn judge(&self, entry: &Entry) -> Option<FlowMatch> {
        let is_untranslated = (entry.reply.from(), entry.reply.to()) == (entry.original.to(), entry.original.from());
        if self.is_empty() || !is_untranslated || entry.is_answered() {
            return None;
        }
        self.endpoints.get_or_init(|| self.results()).get(&entry.original.from()).copied()
    }

    fn results(&self) -> HashMap<SocketAddr, FlowMatch> {
        let mut results = HashMap::new();
        for LedTo { pool, result } in self.pools.values() {
            for endpoint in pool.0.iter() {
                let of_endpoint = results.entry(SocketAddr::new(endpoint.address, endpoint.port)).or_insert(*result);
                *of_endpoint = (*of_endpoint).max(*result);
            }
        }
        results
    }
}
