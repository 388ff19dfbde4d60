//! Matches conntrack entries against the rules for flows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use ferry_api::object::{Family, Protocol};
use ferry_kernel::conntrack::{Entry, Filter};
use ferry_model::state::{Endpoint, FrontendAddr, NodePortAddresses, Pool};
use ferry_model::{Flow, ReplyOwner, RightFlows};

use super::flow_match::FlowMatch;
use super::late_answers::LateAnswers;
use super::queue::{FlowKey, FlowRules};
use super::replies::Replies;

/// From this number of endpoints on, a hash set is used.
const MANY: usize = 16;

/// The rules of one protocol, indexed for lookups by many entries.
#[derive(Debug)]
pub(super) struct Matcher {
    family: Family,
    protocol: Protocol,
    addresses: HashMap<SocketAddr, FrontendRule>,
    ports: HashMap<u16, FrontendRule>,
    /// addresses that serve node ports
    nodes: HashSet<IpAddr>,
    /// node ports that every local address may have served until now
    left_ports: HashMap<u16, FrontendRule>,
    /// local addresses that don't serve node ports
    left_nodes: HashSet<IpAddr>,
    /// loopback does too
    localhost: bool,
    patience: Patience,
    replies: Replies,
    /// addresses of this machine, without those of loopback
    local: HashSet<IpAddr>,
    /// of UDP, where flows keep their clients' ports
    late_answers: LateAnswers,
}

/// Policy for stale flows whose answer may be in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// the first check of a frontend leaves them for its second one
    FirstCheck,
    /// they are deleted
    None,
}

/// Rule of one frontend.
#[derive(Clone, Debug)]
struct FrontendRule {
    right: Right,
    /// flows that may be answered any moment are left for the next check
    patient: bool,
}

/// The valid flows of a frontend.
#[derive(Clone, Debug)]
enum Right {
    /// as the model decides
    By(RightFlows),
    /// those to one of many endpoints
    Among {
        endpoints: Rc<HashSet<Endpoint>>,
        /// untranslated flows are right, too
        or_untranslated: bool,
    },
}

// === impl Matcher ===

impl Matcher {
    /// For these rules, as far as they are about the protocol; `local`: this machine's addresses, without those of
    /// loopback.
    pub(super) fn new(
        (family, protocol): (Family, Protocol),
        rules: &FlowRules,
        (local, replies): (&[IpAddr], &Replies),
        patience: Patience,
    ) -> Self {
        let mut matcher = Self {
            family,
            protocol,
            addresses: HashMap::new(),
            ports: HashMap::new(),
            nodes: match &rules.node_ports {
                NodePortAddresses::All => local.iter().copied().collect(),
                NodePortAddresses::Only(addresses) => addresses.iter().copied().collect(),
            },
            left_ports: HashMap::new(),
            left_nodes: HashSet::new(),
            localhost: rules.localhost && rules.node_ports == NodePortAddresses::All,
            patience,
            replies: replies.clone(),
            local: local.iter().copied().collect(),
            late_answers: LateAnswers::default(),
        };
        matcher.left_nodes = local.iter().filter(|address| !matcher.nodes.contains(address)).copied().collect();
        // Frontends of one port of a Service share their pools, and so the set made of them.
        let mut sets = BTreeMap::new();
        for (key, right) in rules.right.iter().filter(|((of, _), _)| *of == protocol) {
            let patient = patience == Patience::FirstCheck && rules.again.contains(key);
            if replies.keeps_client_ports && protocol == Protocol::Udp {
                matcher.late_answers.add(right, patient);
            }
            let rule = FrontendRule { right: Right::new(right, &mut sets), patient };
            if let Some(port) = port_of_nodes(key).filter(|_| rules.left.contains(key)) {
                let of_nobody = FrontendRule { right: Right::By(RightFlows::Untranslated), patient: rule.patient };
                matcher.left_ports.insert(port, of_nobody);
            }
            match key.1 {
                FrontendAddr::Vip(address, port) => {
                    matcher.addresses.insert(SocketAddr::new(address, port), rule);
                }
                FrontendAddr::NodePort(port) => {
                    matcher.ports.insert(port, rule);
                }
            }
        }
        matcher
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(super) fn patience(&self) -> Patience {
        self.patience
    }

    /// The narrowest filters that cover all rules, and the entries that late answers have made.
    pub(super) fn filters(&self) -> Vec<Filter> {
        let (family, protocol) = (self.family, self.protocol.number());
        let destination = all_same(self.addresses.keys().map(SocketAddr::ip)).filter(|_| self.ports.is_empty());
        let port = all_same(self.addresses.keys().map(SocketAddr::port).chain(self.ports.keys().copied()));
        // Answered flows are right by every rule for TCP.
        let of_frontends = Filter { family, protocol, destination, port, unanswered: self.protocol == Protocol::Tcp };
        let of_late_answers = Filter { family, protocol, destination: None, port: None, unanswered: true };
        let is_covered = self.late_answers.is_empty() || destination.is_none() && port.is_none();
        if is_covered { vec![of_frontends] } else { vec![of_frontends, of_late_answers] }
    }

    /// True if the entry is stale by the rules here, and may be deleted.
    pub(super) fn is_wrong(&self, entry: &Entry) -> bool {
        self.judge(entry) == FlowMatch::Stale
    }

    /// Compares the entry with the rules here. Where an address of the node has a frontend of its own, that takes precedence
    /// over a node port, as it does for packets; the node port takes over from one that is gone.
    pub(super) fn judge(&self, entry: &Entry) -> FlowMatch {
        let destination = entry.original.to();
        let at_address = self.addresses.get(&destination);
        let at_port = || {
            let at_port = self.ports.get(&destination.port())?;
            let ours = self.nodes.contains(&destination.ip()) || (self.localhost && destination.ip().is_loopback());
            ours.then_some(at_port)
        };
        let left = || {
            let left = self.left_ports.get(&destination.port())?;
            self.left_nodes.contains(&destination.ip()).then_some(left)
        };
        // Conntrack zones belong to other programs: a flow in one has met no rule of ours.
        if entry.zone != 0 {
            return FlowMatch::Right;
        }
        if let Some(judged) = self.late_answers.judge(entry) {
            return judged;
        }
        let flow = self.flow(entry);
        let is_ours = |address: IpAddr| address.is_loopback() || self.local.contains(&address);
        // A listener of UDP tells which of its flows are stale. Of TCP a translated flow is right, whoever answers it: that it has no
        // answer yet means that its first packet is on its way to the listener.
        if self.protocol != Protocol::Tcp && self.replies.owner.is_answered_by_proxy(&flow, is_ours) {
            let rule = at_address.filter(|rule| !rule.is_of_nobody()).or_else(at_port).or(at_address).or_else(left);
            return rule.map_or(FlowMatch::Right, |rule| self.judge_by_proxy(rule, &flow));
        }
        match at_address {
            // New flows find the node port, if there is one.
            Some(rule) if rule.passes_some() => {
                let by_port = at_port().map_or(FlowMatch::Stale, |port| port.judge(&flow));
                rule.judge(&flow).min(by_port)
            }
            Some(rule) if !rule.is_of_nobody() => rule.judge(&flow),
            at_address => at_port().or(at_address).or_else(left).map_or(FlowMatch::Right, |rule| rule.judge(&flow)),
        }
    }

    /// Compares a flow that the proxy answers with the rule. Where nothing leads to its listener any more, the entry still does; the
    /// listener stays for a moment, and what it has received may be answered.
    fn judge_by_proxy(&self, rule: &FrontendRule, flow: &Flow) -> FlowMatch {
        match self.leads_by_proxy(rule, flow) {
            true => FlowMatch::Right,
            false if rule.patient && !flow.answered => FlowMatch::Unanswered,
            false => FlowMatch::Stale,
        }
    }

    /// True if the listener that answers this flow leads to some endpoint of the rule.
    fn leads_by_proxy(&self, rule: &FrontendRule, flow: &Flow) -> bool {
        let Some(behind) = &self.replies.behind else { return rule.serves() };
        let allows = |endpoint: &Endpoint| {
            let answers_from = SocketAddr::new(endpoint.address, endpoint.port);
            rule.right.allows(&Flow { answers_from, ..*flow })
        };
        behind(self.family, flow.answers_from.port()).is_some_and(|endpoints| endpoints.iter().any(allows))
    }

    fn flow(&self, entry: &Entry) -> Flow {
        Flow {
            protocol: self.protocol,
            destination: entry.original.to(),
            answers_from: entry.reply.from(),
            answered: entry.is_answered(),
        }
    }
}

// === impl FrontendRule ===

impl FrontendRule {
    /// True if the frontend is gone.
    fn is_of_nobody(&self) -> bool {
        matches!(self.right, Right::By(RightFlows::Untranslated))
    }

    /// True if it leads to some endpoint.
    fn serves(&self) -> bool {
        match &self.right {
            Right::By(RightFlows::To(pools) | RightFlows::ToOrUntranslated(pools)) => {
                pools.iter().any(|pool| !pool.is_empty())
            }
            Right::By(RightFlows::Untranslated) => false,
            Right::By(RightFlows::Answered) | Right::Among { .. } => true,
        }
    }

    /// True if packets pass by the frontend untranslated while some endpoints keep their flows.
    fn passes_some(&self) -> bool {
        matches!(self.right, Right::By(RightFlows::ToOrUntranslated(_)) | Right::Among { or_untranslated: true, .. })
    }

    /// Compares a flow with the rule. An endpoint that left the pool may still be answering a request; without the entry its
    /// answer would not be translated.
    fn judge(&self, flow: &Flow) -> FlowMatch {
        let may_be_answered = !flow.answered && flow.is_translated();
        match self.right.allows(flow) {
            true => FlowMatch::Right,
            false if self.patient && may_be_answered => FlowMatch::Unanswered,
            false => FlowMatch::Stale,
        }
    }
}

// === impl Right ===

impl Right {
    fn new(right: &RightFlows, sets: &mut BTreeMap<[usize; 3], Rc<HashSet<Endpoint>>>) -> Self {
        match right {
            RightFlows::To(pools) | RightFlows::ToOrUntranslated(pools)
                if pools.iter().map(Pool::len).sum::<usize>() >= MANY =>
            {
                let places = pools.each_ref().map(|pool| Arc::as_ptr(&pool.0).addr());
                let all = || Rc::new(pools.iter().flat_map(|pool| pool.0.iter().copied()).collect());
                let endpoints = Rc::clone(sets.entry(places).or_insert_with(all));
                Self::Among { endpoints, or_untranslated: matches!(right, RightFlows::ToOrUntranslated(_)) }
            }
            right => Self::By(right.clone()),
        }
    }

    fn allows(&self, flow: &Flow) -> bool {
        match self {
            Self::By(right) => right.allows(flow),
            Self::Among { endpoints, or_untranslated } => {
                let endpoint = Endpoint { address: flow.answers_from.ip(), port: flow.answers_from.port() };
                endpoints.contains(&endpoint) || *or_untranslated && !flow.is_translated()
            }
        }
    }
}

/// The frontends that may have translated a UDP flow.
pub(super) fn frontends(entry: &Entry) -> [FlowKey; 2] {
    let to = entry.original.to();
    [FrontendAddr::Vip(to.ip(), to.port()), FrontendAddr::NodePort(to.port())].map(|at| (Protocol::Udp, at))
}

/// The protocols of these rules, TCP last: its clients retransmit after a second only.
pub(super) fn protocols(rules: &FlowRules) -> Vec<Protocol> {
    let mut protocols: Vec<Protocol> = rules.right.keys().map(|(protocol, _): &FlowKey| *protocol).collect();
    protocols.dedup();
    protocols.reverse();
    protocols
}

/// True if some of these rules apply to node ports on every local address, or flows to local addresses are the proxy's.
pub(super) fn need_local_addresses(rules: &FlowRules, replies: ReplyOwner) -> bool {
    let of_all = rules.node_ports == NodePortAddresses::All;
    replies == ReplyOwner::Proxy
        || !rules.left.is_empty()
        || of_all && rules.right.keys().any(|key| port_of_nodes(key).is_some())
}

fn port_of_nodes((_, at): &FlowKey) -> Option<u16> {
    match at {
        FrontendAddr::NodePort(port) => Some(*port),
        FrontendAddr::Vip(..) => None,
    }
}

fn all_same<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

#[cfg(test)]
mod tests;
