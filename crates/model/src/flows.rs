//! Decides which conntrack entries become stale when a Service goes from one state to another.
//!
//! Only the first packet of a flow traverses the nat rules; the conntrack entry translates all others. A TCP connection to a
//! removed endpoint ends by itself. A UDP flow doesn't: while the client keeps sending, its datagrams go to the removed
//! endpoint. And a packet that arrived before its rule has left an entry that keeps later packets from the rule.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferry_api::object::Protocol;

use crate::decide::matching_frontends;
use crate::packet::Packet;
use crate::profile::{Profile, ReplyOwner};
use crate::state::{Action, BaseState, Endpoint, FrontendAddr, Pool, PortState, Scope, ServiceState};

/// The criterion by which conntrack entries of one frontend are current or stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// the flows' protocol
    pub protocol: Protocol,
    /// their original destination
    pub at: FrontendAddr,
    /// those that may stay
    pub right: RightFlows,
    /// stale flows are possible now; else this rule only replaces an earlier one that is still queued
    pub due: bool,
}

/// The flows to a frontend that may stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RightFlows {
    /// UDP and SCTP: flows to an endpoint of one of these pools; none, if all are empty
    To([Pool; 3]),
    /// UDP and SCTP, where packets pass by the frontend untranslated while endpoints still serve the flows they have, but get
    /// no new ones: flows to one of these, and untranslated flows
    ToOrUntranslated([Pool; 3]),
    /// TCP: all but untranslated flows without an answer
    Answered,
    /// UDP and SCTP, where the frontend is gone, or packets pass by it: untranslated flows, which may be routed to another owner
    /// of the address
    Untranslated,
}

/// A flow, as the conntrack entry describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// its protocol
    pub protocol: Protocol,
    /// original destination
    pub destination: SocketAddr,
    /// source of the answers: the endpoint, once translated
    pub answers_from: SocketAddr,
    /// an answer was seen
    pub answered: bool,
}

/// One frontend of a state.
#[derive(Clone, Copy, Debug)]
struct FlowFrontend<'a> {
    port: &'a PortState,
    /// the scopes to whose endpoints some connections are led
    scopes: [bool; 2],
    /// some pass by untranslated
    passes: bool,
}

// === impl FlowRule ===

impl FlowRule {
    /// Rule for a frontend that is gone. `None` for TCP, whose connections end by themselves.
    pub fn gone(protocol: Protocol, at: FrontendAddr) -> Option<Self> {
        (protocol != Protocol::Tcp).then_some(Self { protocol, at, right: RightFlows::Untranslated, due: true })
    }
}

// === impl RightFlows ===

impl RightFlows {
    /// True if this flow to the frontend may stay.
    pub fn allows(&self, flow: &Flow) -> bool {
        match self {
            Self::To(pools) => flow.leads_to(pools),
            Self::ToOrUntranslated(pools) => !flow.is_translated() || flow.leads_to(pools),
            Self::Answered => flow.answered || flow.is_translated(),
            Self::Untranslated => !flow.is_translated(),
        }
    }
}

// === impl Flow ===

impl Flow {
    /// True if the destination was translated.
    pub fn is_translated(&self) -> bool {
        self.answers_from != self.destination
    }

    fn leads_to(&self, pools: &[Pool]) -> bool {
        let endpoint = Endpoint { address: self.answers_from.ip(), port: self.answers_from.port() };
        pools.iter().any(|pool| pool.0.contains(&endpoint))
    }
}

// === impl ReplyOwner ===

impl ReplyOwner {
    /// True if the proxy itself answers this flow: then its listener tells whether it is stale. `is_local` is true for the addresses
    /// of this machine, those of loopback among them. A flow that leads elsewhere was translated by another mode's rules.
    pub fn is_answered_by_proxy(self, flow: &Flow, is_local: impl FnOnce(IpAddr) -> bool) -> bool {
        match self {
            Self::Endpoint => false,
            Self::Proxy => flow.is_translated() && is_local(flow.answers_from.ip()),
        }
    }
}

// === impl FlowFrontend ===

impl FlowFrontend<'_> {
    /// UDP, SCTP: the endpoints whose flows are right.
    fn pools(&self) -> [&Pool; 3] {
        [&self.port.cluster, &self.port.local, &self.port.lingering]
    }

    /// True if some connections are led to endpoints.
    fn forwards(&self) -> bool {
        self.scopes.contains(&true)
    }

    /// The rule for what is served now, if the table could hold something else.
    fn rule(&self, before: Option<&Self>, at: FrontendAddr, keeps_client_ports: bool) -> Option<FlowRule> {
        let appears = self.forwards() && before.is_none_or(|before| !before.forwards());
        let protocol = self.port.protocol;
        if protocol == Protocol::Tcp {
            return appears.then_some(FlowRule { protocol, at, right: RightFlows::Answered, due: true });
        }
        // Where the proxy answers, a scope has a listener of its own, which goes with the last frontend that leads there.
        let differs = |before: &Self| {
            before.scopes != self.scopes
                || lacks_some(&self.pools(), &before.pools())
                || keeps_client_ports && self.forwards_to_more_than(before)
        };
        let due = appears || before.is_none_or(differs);
        let pools = self.pools();
        let right = match (self.passes, pools.iter().all(|pool| pool.is_empty())) {
            (true, true) => RightFlows::Untranslated,
            (true, false) => RightFlows::ToOrUntranslated(pools.map(Pool::clone)),
            (false, _) => RightFlows::To(pools.map(Pool::clone)),
        };
        Some(FlowRule { protocol, at, right, due })
    }

    /// True if new flows of some scope may be led to an endpoint to which those of that scope were not: one that lingered has no new flows.
    fn forwards_to_more_than(&self, before: &Self) -> bool {
        lacks_some(&[&before.port.cluster], &[&self.port.cluster])
            || lacks_some(&[&before.port.local], &[&self.port.local])
    }
}

/// True if some endpoint of the other pools is in none of these. Pools at the same place are often the same.
fn lacks_some(these: &[&Pool], others: &[&Pool]) -> bool {
    let mut sorted: Option<Vec<Endpoint>> = None;
    let mut is_here = |endpoint: &Endpoint| {
        let all = sorted.get_or_insert_with(|| {
            let mut all: Vec<Endpoint> = these.iter().flat_map(|pool| pool.0.iter().copied()).collect();
            all.sort_unstable();
            all
        });
        all.binary_search(endpoint).is_ok()
    };
    let is_same = |(other, this): &(&&Pool, &&Pool)| Arc::ptr_eq(&other.0, &this.0);
    others.iter().zip(these).filter(|pair| !is_same(pair)).any(|(other, _)| !other.0.iter().all(&mut is_here))
}

/// Rules for the flows to a Service's frontends after a change of its state; `None` is no Service. At most one rule for each
/// frontend. Endpoints that have come make one due only where `keeps_client_ports` ([`Profile::keeps_client_ports`]).
pub fn flow_rules(
    before: Option<&ServiceState>,
    after: Option<&ServiceState>,
    keeps_client_ports: bool,
) -> Vec<FlowRule> {
    let (before, after) = (served(before), served(after));
    let gone = before.keys().filter(|key| !after.contains_key(key));
    let gone = gone.filter_map(|(protocol, at)| FlowRule::gone(*protocol, *at));
    let here = after.iter().filter_map(|(key, served)| served.rule(before.get(key), key.1, keeps_client_ports));
    gone.chain(here).collect()
}

/// The rules for flows to a packet's destination; a flow is stale if none of them allows it. Empty if no frontend matches: another program
/// may have translated the flow. A frontend at the destination takes precedence over a node port, except for flows that pass it.
pub fn rules_at(states: &[ServiceState], base: &BaseState, packet: &Packet, profile: &Profile) -> Vec<RightFlows> {
    // Which of them are due doesn't matter.
    let rules: Vec<FlowRule> = states.iter().flat_map(|state| flow_rules(None, Some(state), false)).collect();
    let rule_of = |at: FrontendAddr| {
        rules.iter().find(|rule| rule.protocol == packet.protocol && rule.at == at).map(|rule| rule.right.clone())
    };
    let [by_address, by_node_port] = matching_frontends(states, base, packet, profile).map(|at| at.and_then(rule_of));
    match by_address {
        Some(right @ (RightFlows::To(_) | RightFlows::Answered)) => vec![right],
        passed => passed.into_iter().chain(by_node_port).collect(),
    }
}

/// The frontends of a state, by protocol and address.
fn served(state: Option<&ServiceState>) -> BTreeMap<(Protocol, FrontendAddr), FlowFrontend<'_>> {
    let mut served = BTreeMap::new();
    for port in state.iter().flat_map(|state| &state.ports) {
        for frontend in &port.frontends {
            let treatment = frontend.treatment;
            let actions = [treatment.pod, treatment.host, treatment.other];
            let leads_to =
                |scope| actions.iter().any(|action| matches!(action, Action::Forward { to, .. } if *to == scope));
            let scopes = [Scope::Cluster, Scope::Local].map(leads_to);
            let passes = actions.contains(&Action::Pass);
            served.insert((port.protocol, frontend.at), FlowFrontend { port, scopes, passes });
        }
    }
    served
}

#[cfg(test)]
mod tests;
