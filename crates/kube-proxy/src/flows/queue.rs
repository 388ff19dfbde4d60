//! Queue of frontends whose flows are to be checked, with their rules, for one family.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use ferry_api::object::Protocol;
use ferry_model::state::{FrontendAddr, NodePortAddresses};
use ferry_model::{FlowRule, RightFlows};

/// Checks per frontend: one at once, one after [`AGAIN`], one after [`LATE`].
const CHECKS: u8 = 3;
/// Delay of the second check. A packet that traversed the old rules before the first check is entered by then, and an answer
/// that was on its way has arrived.
pub(super) const AGAIN: Duration = Duration::from_millis(300);
/// Delay of the last check after the second. On a machine without time a packet takes longer than [`AGAIN`] from the rules to the
/// conntrack table, and a read of the table may miss an entry while others are deleted.
const LATE: Duration = Duration::from_secs(3);

/// A frontend's flows of one protocol.
pub(super) type FlowKey = (Protocol, FrontendAddr);

/// Queued frontends. A later rule replaces the earlier one, so there are never more than there are frontends.
#[derive(Debug)]
pub(super) struct FlowQueue {
    waiting: HashMap<FlowKey, QueuedFrontend>,
    /// incremented with each rule that is replaced or added
    revision: u64,
    node_ports: NodePortAddresses,
    localhost: bool,
}

#[derive(Debug)]
struct QueuedFrontend {
    right: RightFlows,
    /// remaining checks, without the one under way
    checks: u8,
    /// time of the next check
    due: Instant,
    /// a check is under way
    taken: bool,
    /// of a node port: until now every local address may have served it
    left: bool,
}

/// Rules of one pass.
#[derive(Clone, Debug)]
pub(super) struct FlowRules {
    /// the valid flows of each frontend
    pub(super) right: BTreeMap<FlowKey, RightFlows>,
    /// frontends whose second check is to come: their unanswered flows are left for it
    pub(super) again: HashSet<FlowKey>,
    /// node ports whose flows to local addresses that no longer serve them are stale, too
    pub(super) left: HashSet<FlowKey>,
    /// the addresses that serve node ports
    pub(super) node_ports: NodePortAddresses,
    /// loopback does too
    pub(super) localhost: bool,
    /// changes when there are newer ones
    revision: u64,
}

/// The rules of one sync pass. The rule of a frontend's present owner takes precedence over that of an owner that lost it.
#[derive(Debug, Default)]
pub(super) struct SyncRules {
    by_frontend: BTreeMap<FlowKey, FlowRule>,
    /// rules that served node ports on every local address were removed
    everywhere_before: bool,
}

// === impl SyncRules ===

impl SyncRules {
    pub(super) fn add(&mut self, rules: impl IntoIterator<Item = FlowRule>) {
        for rule in rules {
            match self.by_frontend.entry((rule.protocol, rule.at)) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(rule);
                }
                std::collections::btree_map::Entry::Occupied(mut known) => {
                    let due = rule.due || known.get().due;
                    if known.get().right == RightFlows::Untranslated {
                        known.insert(rule);
                    }
                    known.get_mut().due = due;
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_frontend.is_empty()
    }

    /// Rules that served node ports on every local address were removed: flows to addresses that no longer serve them are stale.
    pub(super) fn leave_addresses(&mut self) {
        self.everywhere_before = true;
    }

    /// The node ports whose flows must be checked.
    pub(super) fn node_ports(&self) -> HashSet<(Protocol, u16)> {
        self.by_frontend.iter().filter(|(_, rule)| rule.due).filter_map(|(key, _)| node_port(*key)).collect()
    }

    /// The ports of removed frontends.
    pub(super) fn gone(&self) -> HashSet<(Protocol, u16)> {
        let gone = self.by_frontend.iter().filter(|(_, rule)| rule.right == RightFlows::Untranslated);
        gone.filter_map(|((protocol, at), _)| Some((*protocol, at.vip_port()?))).collect()
    }
}

// === impl FlowQueue ===

impl Default for FlowQueue {
    fn default() -> Self {
        Self { waiting: HashMap::new(), revision: 0, node_ports: NodePortAddresses::All, localhost: false }
    }
}

impl FlowQueue {
    /// Queues the rules of a sync pass. One that isn't due only replaces a queued one. Returns true if any was due.
    pub(super) fn offer(&mut self, rules: SyncRules, now: Instant) -> bool {
        let mut any_due = false;
        for (key, rule) in rules.by_frontend {
            any_due |= rule.due;
            // TCP connections end by themselves.
            let left = rules.everywhere_before && key.0 != Protocol::Tcp && node_port(key).is_some();
            match self.waiting.get_mut(&key) {
                Some(waiting) => {
                    waiting.right = rule.right;
                    waiting.left |= left;
                    if rule.due {
                        (waiting.checks, waiting.due) = (CHECKS, now);
                    }
                }
                None if rule.due => {
                    self.waiting.insert(
                        key,
                        QueuedFrontend { right: rule.right, checks: CHECKS, due: now, taken: false, left },
                    );
                }
                None => continue,
            }
            self.revision += 1;
        }
        any_due
    }

    /// Sets the addresses that serve node ports; `true` if loopback does, too.
    pub(super) fn serve_node_ports(&mut self, addresses: &NodePortAddresses, localhost: bool) {
        if self.node_ports != *addresses || self.localhost != localhost {
            self.node_ports.clone_from(addresses);
            self.localhost = localhost;
            self.revision += 1;
        }
    }

    /// Time of the next check; `None` if no frontend is queued.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.values().filter(|waiting| waiting.checks > 0).map(|waiting| waiting.due).min()
    }

    /// Takes all frontends whose check is due. They stay queued until [`Self::done`] or [`Self::failed`], so that newer rules
    /// reach them.
    pub(super) fn take(&mut self, now: Instant) -> FlowRules {
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.checks > 0 && waiting.due <= now) {
            waiting.checks -= 1;
            waiting.due = now + if waiting.is_first() { AGAIN } else { LATE };
            waiting.taken = true;
        }
        self.taken()
    }

    /// Takes these frontends, as far as they are queued, beside their checks. No flow of theirs is left for a later check.
    pub(super) fn take_again(&mut self, keys: impl Iterator<Item = FlowKey>) -> FlowRules {
        for key in keys {
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.taken = true;
            }
        }
        self.taken()
    }

    /// The present rules of the frontends that were taken, if they differ from these.
    pub(super) fn newer(&self, than: &FlowRules) -> Option<FlowRules> {
        (self.revision != than.revision).then(|| self.taken())
    }

    /// Ends the check of the frontends that were taken; those without a further check leave the queue.
    pub(super) fn done(&mut self) {
        self.waiting.retain(|_, waiting| {
            waiting.taken = false;
            waiting.checks > 0
        });
        // A start queues all frontends.
        self.waiting.shrink_to_fit();
    }

    /// Schedules the frontends that were taken for another check.
    pub(super) fn failed(&mut self, now: Instant) {
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.taken) {
            waiting.taken = false;
            waiting.checks = (waiting.checks + 1).min(CHECKS);
            waiting.due = waiting.due.min(now);
        }
    }

    /// With a node port come the queued addresses of its port number: one of these may be the node's and takes precedence.
    fn taken(&self) -> FlowRules {
        let taken = || self.waiting.iter().filter(|(_, waiting)| waiting.taken);
        let ports: HashSet<(Protocol, u16)> = taken().filter_map(|(key, _)| node_port(*key)).collect();
        let stands_before = |(protocol, at): FlowKey| match at {
            FrontendAddr::Vip(_, port) => ports.contains(&(protocol, port)),
            FrontendAddr::NodePort(_) => false,
        };
        let before = || self.waiting.iter().filter(|(key, waiting)| !waiting.taken && stands_before(**key));
        let all = || taken().chain(before());
        FlowRules {
            again: all().filter(|(_, waiting)| waiting.is_first()).map(|(key, _)| *key).collect(),
            right: all().map(|(key, waiting)| (*key, waiting.right.clone())).collect(),
            left: taken().filter(|(_, waiting)| waiting.left).map(|(key, _)| *key).collect(),
            node_ports: self.node_ports.clone(),
            localhost: self.localhost,
            revision: self.revision,
        }
    }
}

// === impl QueuedFrontend ===

impl QueuedFrontend {
    /// True if the first check is under way, or yet to come.
    fn is_first(&self) -> bool {
        self.checks + 1 >= CHECKS
    }
}

fn node_port((protocol, at): FlowKey) -> Option<(Protocol, u16)> {
    match at {
        FrontendAddr::NodePort(port) => Some((protocol, port)),
        FrontendAddr::Vip(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ferry_model::state::{Endpoint, Pool};

    use super::*;

    const VIP: FrontendAddr = FrontendAddr::Vip(IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 1)), 53);

    fn to(endpoints: &[u8]) -> RightFlows {
        let endpoint = |n: &u8| Endpoint { address: IpAddr::from([10, 1, 0, *n]), port: 53 };
        let pool: Vec<_> = endpoints.iter().map(endpoint).collect();
        RightFlows::To([Pool::new(pool), Pool::default(), Pool::default()])
    }

    fn rule(at: FrontendAddr, right: RightFlows, due: bool) -> FlowRule {
        FlowRule { protocol: Protocol::Udp, at, right, due }
    }

    fn sync_rules(rules: impl IntoIterator<Item = FlowRule>) -> SyncRules {
        let mut all = SyncRules::default();
        all.add(rules);
        all
    }

    fn right_of(rules: &FlowRules) -> Vec<RightFlows> {
        rules.right.values().cloned().collect()
    }

    #[test]
    fn who_has_a_frontend_now_beats_who_had_it_in_any_order() {
        let gone = rule(VIP, RightFlows::Untranslated, true);
        for right in [to(&[2]), to(&[])] {
            let here = rule(VIP, right.clone(), false);
            for rules in [[gone.clone(), here.clone()], [here.clone(), gone.clone()]] {
                let (mut queue, now) = (FlowQueue::default(), Instant::now());
                assert!(queue.offer(sync_rules(rules), now), "what either asks for is asked for");
                assert_eq!(right_of(&queue.take(now)), std::slice::from_ref(&right));
            }
        }
    }

    #[test]
    fn the_latest_rule_wins_over_sync_passes() {
        let (mut queue, now) = (FlowQueue::default(), Instant::now());
        queue.offer(sync_rules([rule(VIP, to(&[2]), true)]), now);
        queue.offer(sync_rules([rule(VIP, to(&[]), true)]), now);
        assert_eq!(right_of(&queue.take(now)), [to(&[])]);
    }

    #[test]
    fn a_rule_that_is_not_due_only_replaces_one_that_waits() {
        let (mut queue, now) = (FlowQueue::default(), Instant::now());
        assert!(!queue.offer(sync_rules([rule(VIP, to(&[1]), false)]), now));
        assert_eq!(queue.next(), None);
        queue.offer(sync_rules([rule(VIP, to(&[1]), true)]), now);
        assert!(!queue.offer(sync_rules([rule(VIP, to(&[1, 2]), false)]), now));
        assert_eq!(right_of(&queue.take(now)), [to(&[1, 2])]);
    }

    #[test]
    fn newer_rules_reach_a_check_that_is_under_way() {
        let (mut queue, now) = (FlowQueue::default(), Instant::now());
        queue.offer(sync_rules([rule(VIP, to(&[1]), true)]), now);
        let taken = queue.take(now);
        assert!(queue.newer(&taken).is_none());
        queue.offer(sync_rules([rule(FrontendAddr::NodePort(1), to(&[]), false)]), now);
        assert!(queue.newer(&taken).is_none(), "nobody waits for this one");
        queue.offer(sync_rules([rule(FrontendAddr::NodePort(1), to(&[]), true)]), now);
        assert_eq!(right_of(&queue.newer(&taken).unwrap()), [to(&[1])], "only those that were taken");
        queue.offer(sync_rules([rule(VIP, to(&[1, 2]), false)]), now);
        assert_eq!(right_of(&queue.newer(&taken).unwrap()), [to(&[1, 2])]);
        let only = NodePortAddresses::Only(Vec::new());
        queue.serve_node_ports(&only, false);
        assert_eq!(queue.newer(&taken).unwrap().node_ports, only);
    }

    #[test]
    fn each_is_looked_at_three_times() {
        let (mut queue, now) = (FlowQueue::default(), Instant::now());
        queue.offer(sync_rules([rule(VIP, to(&[1]), true)]), now);
        assert_eq!(queue.take(now).right.len(), 1);
        queue.done();
        assert_eq!(queue.next(), Some(now + AGAIN));
        assert_eq!(queue.take(now).right.len(), 0, "not yet");
        queue.offer(sync_rules([rule(VIP, to(&[1, 2]), false)]), now);
        let second = queue.take(now + AGAIN);
        assert_eq!(
            (right_of(&second), second.again.len()),
            (vec![to(&[1, 2])], 0),
            "unanswered flows aren't left for a third"
        );
        queue.done();
        assert_eq!(queue.next(), Some(now + AGAIN + LATE));
        assert_eq!(right_of(&queue.take(now + AGAIN + LATE)), [to(&[1, 2])]);
        queue.done();
        assert_eq!(queue.next(), None);
        assert!(queue.waiting.is_empty());
    }

    #[test]
    fn a_failed_check_is_repeated() {
        let (mut queue, now) = (FlowQueue::default(), Instant::now());
        queue.offer(sync_rules([rule(VIP, to(&[1]), true)]), now);
        for _ in 0..3 {
            assert_eq!(queue.take(now).right.len(), 1);
            queue.failed(now);
            assert_eq!(queue.next(), Some(now));
        }
        for when in [now, now + AGAIN, now + AGAIN + LATE] {
            assert_eq!(queue.take(when).right.len(), 1);
            queue.done();
        }
        assert_eq!(queue.next(), None);
    }

    /// The address may be one of the node's; then its rule takes precedence over that of the node port, which makes the flow
    /// stale.
    #[test]
    fn an_address_that_waits_stands_before_a_node_port_of_its_number() {
        let (mut queue, now) = (FlowQueue::default(), Instant::now());
        let at = |port| FrontendAddr::Vip(IpAddr::from([192, 0, 2, 1]), port);
        queue.offer(sync_rules([rule(FrontendAddr::NodePort(30053), to(&[1]), true)]), now);
        let taken = queue.take(now);
        queue.offer(sync_rules([rule(at(30053), to(&[7]), true), rule(at(53), to(&[8]), true)]), now);
        let both = [to(&[7]), to(&[1])];
        assert_eq!(right_of(&queue.newer(&taken).unwrap()), both, "it comes during a check");
        queue.done();
        assert_eq!(queue.take(now).right.len(), 2);
        queue.done();
        queue.offer(sync_rules([rule(FrontendAddr::NodePort(30053), to(&[2]), true)]), now);
        assert_eq!(right_of(&queue.take(now)), [to(&[7]), to(&[2])], "its next check is yet to come");
    }

    #[test]
    fn a_rule_that_comes_during_a_check_is_checked_afterwards() {
        let (mut queue, now) = (FlowQueue::default(), Instant::now());
        queue.offer(sync_rules([rule(VIP, to(&[1, 2]), true)]), now);
        queue.take(now);
        queue.offer(sync_rules([rule(VIP, to(&[1]), true)]), now);
        queue.done();
        assert_eq!(queue.next(), Some(now));
        assert_eq!(right_of(&queue.take(now)), [to(&[1])]);
    }
}
